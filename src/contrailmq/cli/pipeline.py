"""`contrailmq pipeline ...`: the jobs around a store, on Spark (`local[*]` unless --master is given) or in a pool.

Every command prints a table, or one JSON document with --json. Exit codes: 0 done, 1 findings (verify), 2 an error.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.pipeline_output import answer_rows, print_found

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from contrailmq.spark.decoding.decode import Selection
    from contrailmq.spark.jobs.replay import ReplayResult
    from contrailmq.spark.runtime.engine import Engine

app = typer.Typer(help="Jobs on the log: archive, rebuild, verify, report, replay, redrive, ask.", no_args_is_help=True)

Store = Annotated[str, typer.Option("--store", help="Store directory; a comma list or glob for many brokers.")]
Master = Annotated[str | None, typer.Option("--master", help="Spark master; local[*] unless given.")]
EngineName = Annotated[str, typer.Option("--engine", help="spark, or local for a process pool without Spark.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]
Topics = Annotated[str | None, typer.Option("--topics", help="Only these topics, separated by commas.")]
Namesrv = Annotated[str | None, typer.Option("-n", "--namesrv", help="NameServer addresses, host:port;host:port.")]
Since = Annotated[str | None, typer.Option("--since", help="Stored at or after: ISO time (UTC) or epoch ms.")]
Until = Annotated[str | None, typer.Option("--until", help="Stored before: ISO time (UTC) or epoch ms.")]
ClientOption = Annotated[
    list[str] | None,
    typer.Option("--client", metavar="NAME=VALUE", help="Key or TLS setting: accessKey, secretKey, tls.enable ..."),
]
ClientFile = Annotated[
    Path | None, typer.Option("--client-file", help="Properties file with such settings; keeps secrets off `ps`.")
]
BrokerAwayTimeout = Annotated[
    int | None,
    typer.Option(
        "--broker-away-timeout-ms", min=0, help="How long a broker or NameServer that is away is waited for; 60,000."
    ),
]
StartingOffsets = Annotated[
    str | None, typer.Option("--starting-offsets", help='From these queue offsets on: {"Orders": {"0": 23}}.')
]
EndingOffsets = Annotated[
    str | None, typer.Option("--ending-offsets", help='Up to these queue offsets: {"Orders": {"0": 99}}.')
]
Rate = Annotated[float, typer.Option("--rate", min=0, help="At most so many messages a second; 0: no limit.")]


_REPORT_ROWS = 20  # of queues, tags and producers in a table; --json gives more
_DATE_DIGITS = 8  # of 20260131, which ISO allows
_MS_MIN = 10**11  # smaller ones are seconds by mistake
_POOL_BYTES_MIN = 256 * 1024 * 1024  # below, starting processes takes longer than the work


@app.command()
def archive(
    target: Annotated[str, typer.Option("--to", help="Directory of the archive.")],
    store: Annotated[str | None, typer.Option("--store", help="Store directory; a comma list or glob.")] = None,
    namesrv: Namesrv = None,
    topics: Topics = None,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Continue after damaged stretches.")] = False,
    delta: Annotated[bool, typer.Option("--delta", help="Also list the files in a Delta table there.")] = False,
    iceberg: Annotated[bool, typer.Option("--iceberg", help="Also list the files in an Iceberg table there.")] = False,
    client: ClientOption = None,
    client_file: ClientFile = None,
    away_timeout_ms: BrokerAwayTimeout = None,
    broker_name: Annotated[
        str | None, typer.Option("--broker-name", help="Of the store, for the column brokerName; else its address.")
    ] = None,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Append what a store, or topics of a cluster, gained to a partitioned Parquet archive, exactly once."""
    with _errors():
        if (store is None) == (namesrv is None):
            raise typer.BadParameter("give either --store or --namesrv with --topics")
        if namesrv is not None:
            unused: dict[str, object] = {
                "--skip-corrupt": skip_corrupt,
                "--engine local": engine == "local",
                "--broker-name": broker_name,
            }
            _without_effect("with --namesrv", unused)
            shown = _archive_topics(
                namesrv, topics, target, master, _client(client, client_file, away_timeout_ms), dry_run=dry_run
            )
            listed = {} if dry_run else _published(target, delta=delta, iceberg=iceberg)
            print_found({**shown, **listed}, as_json, title="archive")
            return
        assert store is not None
        _without_effect("with --store", _of_clusters(client, client_file, away_timeout_ms))
        from contrailmq.spark.decoding.log_plan import LogSettings
        from contrailmq.spark.jobs import archive as job

        settings = LogSettings(selection=_selection(topics), skip_corrupt=skip_corrupt, broker_name=broker_name)
        absent = job.topics_without_queue(store, settings)
        if absent:
            typer.echo(
                f"warning: {store} has no consume queue of {', '.join(absent)}: check the names, or go on if such "
                "messages are yet to come",
                err=True,
            )
        with _engine(engine, master, store) as chosen, _progress("archive", as_json) as tell:
            done = job.archive(store, target, chosen, settings=settings, dry_run=dry_run, on_progress=tell)
        listed = {} if dry_run else _published(target, delta=delta, iceberg=iceberg)
        print_found({**asdict(done), **listed}, as_json, title="archive")


@app.command()
def rebuild(
    store: Store,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the files that were replaced.")] = False,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Build a store's consume queues and index again from its commit log; verified, then swapped in."""
    with _errors():
        from contrailmq.spark.decoding.store_files import find_stores
        from contrailmq.spark.jobs import rebuild as job

        rows = []
        with _engine(engine, master, store) as chosen, _progress("rebuild", as_json) as tell:
            for found in find_stores(store):
                done = job.rebuild(found, chosen, dry_run=dry_run, on_progress=tell)
                if not keep_old:
                    job.remove_old(done)
                rows.append({"store": found, **asdict(done), "old": done.old if keep_old else []})
        print_found(rows[0] if len(rows) == 1 else rows, as_json, title="rebuild")


@app.command()
def verify(
    store: Store,
    slave: Annotated[str | None, typer.Option("--slave", help="Store of a slave, compared with --store.")] = None,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Check log, queues and index of a store against each other. Exits with 1 when something was found."""
    with _errors():
        from contrailmq.spark.decoding.store_files import find_stores
        from contrailmq.spark.jobs import verify as job
        from contrailmq.spark.jobs.swap import is_in_use

        stores = find_stores(store)
        if slave is not None and len(stores) > 1:
            raise typer.BadParameter(f"--slave is compared with one store, and --store names {len(stores)}")
        with _engine(engine, master, store) as chosen, _progress("verify", as_json) as tell:
            findings = [row for one in stores for row in job.verify(one, chosen, slave=slave, on_progress=tell)]
        rows = [finding._asdict() for finding in findings]
        print_found(
            {"findings": rows} if as_json else rows,
            as_json,
            title=f"verify, findings: {len(rows)}" if rows else "findings",
        )
        late = [row for row in rows if row["kind"] in ("no-unit", "no-index-entry")]
        if late and any(is_in_use(found) for found in stores):
            typer.echo(
                f"note: a running broker holds {store} and writes queues and index later than the log, so {len(late)} "
                "findings (no-unit, no-index-entry) may not be damage: verify again when it has stopped",
                err=True,
            )
        if rows:
            raise typer.Exit(1)


@app.command()
def report(
    store: Store,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with plots to this file.")] = None,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Traffic, sizes, latencies, lag, retries and delays of a store."""
    with _errors():
        from contrailmq.spark.jobs import report as job
        from contrailmq.spark.jobs.report_page import page

        with _engine(engine, master, store) as chosen, _progress("report", as_json) as tell:
            done = job.report(store, chosen, on_progress=tell)
        if html is not None:
            html.write_text(page(done), encoding="utf-8")
        if as_json:
            print_found(done.to_json(), as_json, title="")
            return
        print_found([row._asdict() for row in done.topics], False, title=f"{done.messages:,} messages")
        queues = [
            {"topic": topic, "queue_id": queue_id, "messages": count, **({"store": of} if len(done.stores) > 1 else {})}
            for topic, queue_id, count, _, of in sorted(done.queues, key=lambda row: -row[2])[:_REPORT_ROWS]
        ]
        print_found(queues, False, title="queues")
        tags = [{"topic": topic, "tag": tag, "messages": count} for topic, tag, count in done.tags[:_REPORT_ROWS]]
        print_found(tags, False, title="tags")
        hosts = [{"topic": topic, "host": host, "messages": count} for topic, host, count in done.hosts[:_REPORT_ROWS]]
        print_found(hosts, False, title="producers")
        print_found([row._asdict() for row in done.lags], False, title="lag per group")
        names = ("kind", "group", "messages")
        print_found(
            [dict(zip(names, row, strict=True)) for row in done.retries], False, title="retries and dead letters"
        )
        print_found([row._asdict() for row in done.delays], False, title="delayed")
        if html is not None:
            typer.echo(f"page: {html}")


@app.command()
def package(target: Annotated[Path, typer.Argument(help="The zip to write.")] = Path("contrailmq.zip")) -> None:
    """Pack contrailmq for `spark-submit --py-files`, where the driver does not have it installed."""
    with _errors():
        from contrailmq.spark.runtime.shipping import pack_package

        shutil.copyfile(pack_package(), target)
        typer.echo(str(target))


@app.command()
def ask(
    sql: Annotated[str, typer.Argument(help="A query on the view `log`.")],
    store: Annotated[str | None, typer.Option("--store", help="Store directory; a comma list or glob.")] = None,
    archived: Annotated[str | None, typer.Option("--archive", help="Directory of an archive.")] = None,
    namesrv: Namesrv = None,
    topics: Topics = None,
    client: ClientOption = None,
    client_file: ClientFile = None,
    away_timeout_ms: BrokerAwayTimeout = None,
    rows_max: Annotated[int, typer.Option("--rows", min=1, help="Print at most so many rows.")] = 100,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Ask a store, an archive or topics in SQL: contrailmq pipeline ask --store DIR "select count(*) from log"."""
    with _errors():
        import contrailmq.spark

        if sum(given is not None for given in (store, archived, namesrv)) != 1:
            raise typer.BadParameter("give exactly one of --store, --archive and --namesrv with --topics")
        if namesrv is None:
            _without_effect("without --namesrv", _of_clusters(client, client_file, away_timeout_ms))
        else:
            _required(topics, "--topics")
        names = _listed(topics, "--topics")
        if archived is not None:
            from contrailmq.spark.jobs.manifest import Manifest

            Manifest(archived).check_archive()  # before Spark is started
        options = _client(client, client_file, away_timeout_ms)
        with _session("contrailmq ask", master) as spark:
            answer = contrailmq.spark.ask(
                spark,
                sql,
                store=store,
                archive=archived,
                namesrv=namesrv,
                topics=None if names is None else ",".join(names),
                options=options,
            )
            rows = answer.limit(rows_max + 1).collect()
            print_found(answer_rows(rows[:rows_max], answer.schema), as_json, title="")
        if len(rows) > rows_max:
            typer.echo(f"note: there are more than {rows_max} rows: see more of them with --rows", err=True)


@app.command()
def replay(
    source: Annotated[str, typer.Option("--from", help="An archive, or store directories.")],
    namesrv: Namesrv = None,
    topic: Annotated[
        str | None, typer.Option("--to-topic", help="Topic to send to; each one's own if not given.")
    ] = None,
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    starting: StartingOffsets = None,
    ending: EndingOffsets = None,
    client: ClientOption = None,
    client_file: ClientFile = None,
    away_timeout_ms: BrokerAwayTimeout = None,
    rate: Rate = 0.0,
    skip_unsendable: Annotated[
        bool, typer.Option("--skip-unsendable", help="Pass over messages that no client may send (empty bodies).")
    ] = False,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Send stored messages again, each queue in its order; where they came from stays with them as properties."""
    with _errors():
        from contrailmq.spark.jobs import replay as job

        selection = replace(
            _selection(topics, since=since, until=until),
            starting_offsets=_offsets(starting, "--starting-offsets", is_start=True),
            ending_offsets=_offsets(ending, "--ending-offsets", is_start=False),
        )
        address = "" if dry_run and namesrv is None else _required(namesrv, "--namesrv")
        options = _client(client, client_file, away_timeout_ms)
        with _engine(engine, master) as chosen, _progress("replay", as_json) as tell:
            done = job.replay(
                source,
                topic,
                address,
                chosen,
                selection=selection,
                options=options,
                per_second=rate,
                skip_unsendable=skip_unsendable,
                dry_run=dry_run,
                on_progress=tell,
            )
        _print_sent(done, as_json, title="replay")


@app.command()
def redrive(
    group: Annotated[str, typer.Option("--group", help="Consumer group whose dead letters to send back.")],
    namesrv: Namesrv = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Only letters with one of these tags.")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Only such letters.")
    ] = None,
    client: ClientOption = None,
    client_file: ClientFile = None,
    away_timeout_ms: BrokerAwayTimeout = None,
    rate: Rate = 0.0,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to their topics; a letter that was sent back already is not sent again.

    Run one at a time for a group. Of two at once each may send every letter, with the same key: consumers that drop
    repeats (`deduplicated` on Spark, `contrailmq.idempotent`) drop the second, others get it twice.
    """
    with _errors():
        from contrailmq.spark.jobs import replay as job

        address, options = _required(namesrv, "--namesrv"), _client(client, client_file, away_timeout_ms)
        properties, chosen_tags = _named(where, "--property"), _listed(tags, "--tags")
        with _engine(engine, master) as chosen, _progress("redrive", as_json) as tell:
            done = job.redrive(
                group,
                address,
                chosen,
                tags=None if chosen_tags is None else frozenset(chosen_tags),
                properties=properties,
                options=options,
                per_second=rate,
                dry_run=dry_run,
                on_progress=tell,
            )
        _print_sent(done, as_json, title="redrive")


def _print_sent(done: ReplayResult, as_json: bool, *, title: str) -> None:
    """The counts, and on stderr what the user should know."""
    for note in done.notes:
        typer.echo(f"warning: {note}", err=True)
    print_found({"found": done.found, "sent": done.sent, "skipped": done.skipped}, as_json, title=title)


def _published(target: str, *, delta: bool, iceberg: bool) -> dict[str, int]:
    """How many files were listed in the archive's tables, as far as tables are wanted."""
    from contrailmq.spark.jobs.delta import publish_delta
    from contrailmq.spark.jobs.iceberg import publish_iceberg

    listed = {"delta_files": publish_delta(target)} if delta else {}
    return {**listed, "iceberg_files": publish_iceberg(target)} if iceberg else listed


def _of_clusters(client: list[str] | None, file: Path | None, away_timeout_ms: int | None) -> dict[str, object]:
    """Options that are for brokers, by name."""
    away = None if away_timeout_ms is None else str(away_timeout_ms)  # a zero is given, too
    return {"--client": client, "--client-file": file, "--broker-away-timeout-ms": away}


def _client(given: list[str] | None, file: Path | None, away_timeout_ms: int | None) -> dict[str, str]:
    """Keys, TLS settings and patience as the options of the source; what is given by hand wins over the file."""
    from contrailmq.spark.access import PREFIX, access_of
    from contrailmq.spark.runtime.patience import AWAY_OPTION
    from contrailmq.wire.properties import read_properties

    found = {} if file is None else read_properties(file)
    found |= _named(given, "--client")
    options = {f"{PREFIX}{name.removeprefix(PREFIX)}": value for name, value in found.items()}
    access_of(options)  # refuses names without effect before anything is started
    return options if away_timeout_ms is None else {**options, AWAY_OPTION: str(away_timeout_ms)}


def _named(given: list[str] | None, option: str) -> dict[str, str]:
    """Values by their names, from texts like name=value."""
    found: dict[str, str] = {}
    for text in given or []:
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise typer.BadParameter(f"{option} is {text.split('=')[0]!r} without a name or value: give name=value")
        found[name] = value
    return found


def _archive_topics(
    namesrv: str, topics: str | None, target: str, master: str | None, options: dict[str, str], *, dry_run: bool
) -> dict[str, int]:
    from contrailmq.spark.jobs.archive_topics import archive_topics, topics_to_archive

    names = ",".join(_listed(_required(topics, "--topics"), "--topics") or [])
    if dry_run:
        return topics_to_archive(namesrv, names, target, options=options)
    with _session("contrailmq archive", master) as spark:
        return archive_topics(spark, namesrv, names, target, options=options)


def _without_effect(where: str, options: dict[str, object]) -> None:
    """Refuse options that would do nothing."""
    for name, given in options.items():
        if given:
            raise typer.BadParameter(f"{name} has no effect {where}: leave it out")


def _offsets(text: str | None, option: str, *, is_start: bool) -> dict[tuple[str, int], int]:
    """Offsets by (topic, queue id) from JSON; -2 as a start and -1 as an end mean all that is there."""
    from contrailmq.spark.columns import OptionError
    from contrailmq.spark.options import ANY_BROKER, EARLIEST, LATEST, check_offsets, parse_offsets

    if text is None:
        return {}
    tree = parse_offsets(text, option)
    check_offsets(tree, option, refused=LATEST if is_start else EARLIEST)
    found: dict[tuple[str, int], int] = {}
    for topic, brokers in tree.items():
        if brokers.keys() - {ANY_BROKER}:
            raise OptionError(
                f"option {option} names brokers for {topic}, and a log does not know its broker: leave that level out, "
                f'{{"{topic}": {{"0": 23}}}}'
            )
        for queue_id, offset in brokers.get(ANY_BROKER, {}).items():
            found[topic, queue_id] = offset if offset >= 0 else 0 if is_start else 2**63 - 1
    return found


@contextmanager
def _engine(name: str, master: str | None, store: str | None = None) -> Iterator[Engine]:
    """The engine by its name. Without a store the local one is this process: sending is seldom worth a pool."""
    if name not in ("spark", "local"):
        raise typer.BadParameter(f"--engine is {name!r}: it takes spark or local")
    if name == "local" and master is not None:
        raise typer.BadParameter("--master is for Spark: leave it out with --engine local")
    if name == "local":
        from contrailmq.spark.decoding.store_files import find_stores, log_files
        from contrailmq.spark.runtime.engine import LocalEngine

        found = [] if store is None else find_stores(store)
        size_bytes = sum(file.size_bytes for one in found for file in log_files(one))
        pool = LocalEngine(1 if size_bytes < _POOL_BYTES_MIN else None)
        try:
            yield pool
        finally:
            pool.close()
        return
    from contrailmq.spark.runtime.engine import SparkEngine

    with _session("contrailmq pipeline", master) as session:
        yield SparkEngine(session)


@contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    import contrailmq.spark

    session = contrailmq.spark.session(name, **({"master": master} if master else {}))
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # wrong SQL as JSON with a trace: we report it
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _progress(name: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if as_json or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _errors() -> Iterator[None]:
    from contrailmq.message import ContrailError, printable_lines

    try:
        yield
    except ContrailError as exc:
        typer.echo(f"error: {printable_lines(str(exc))}", err=True)
        raise typer.Exit(1 if _is_missing(exc) else 2) from exc
    except OSError as exc:
        from contrailmq.spark.runtime.disk_errors import cause, remedy

        place = "" if exc.filename is None else f"{exc.filename}: "
        typer.echo(f"error: {place}{cause(exc)}; {remedy(exc)}", err=True)
        raise typer.Exit(2) from exc
    except _spark_errors() as exc:
        typer.echo(f"error: {printable_lines(_cause(str(exc)))}", err=True)
        raise typer.Exit(2) from exc


def _is_missing(error: Exception) -> bool:
    """Whether what Spark needs is not installed, as with a module that cannot be imported (`cli.main`)."""
    from contrailmq.spark.environment import SparkEnvironmentError

    return isinstance(error, SparkEnvironmentError)


def _spark_errors() -> tuple[type[Exception], ...]:
    """Spark's errors, without importing it for a job that did without."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _cause(text: str) -> str:
    """What went wrong, out of Spark's text: our own error if a task raised one, else its first line that says it."""
    ours = re.findall(r"^\s*(?:\w+\.)*contrailmq\.[\w.]*Error: (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1])
    told = re.sub(r"\AAn error occurred while calling .+\n: ", "", text.strip())  # by Py4J, before Java's own
    return told.partition("\n")[0].rstrip(";")


def _selection(topics: str | None, *, since: str | None = None, until: str | None = None) -> Selection:
    from contrailmq.spark.decoding.decode import Selection

    names = _listed(topics, "--topics")
    begin_ms, end_ms = _time_ms(since, "--since", 0), _time_ms(until, "--until", 2**63 - 1)
    if begin_ms >= end_ms:
        raise typer.BadParameter(f"--since {since} is not before --until {until}: there is nothing between them")
    return Selection(topics=None if names is None else frozenset(names), begin_ms=begin_ms, end_ms=end_ms)


def _listed(text: str | None, option: str) -> list[str] | None:
    """Names separated by commas. A list without one is an error: it would choose everything, or nothing."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter(f"{option} is {text!r} and lacks a name: separate names by commas, or leave it out")
    return names


def _time_ms(text: str | None, option: str, default: int) -> int:
    if text is None:
        return default
    if text.isdecimal() and len(text) != _DATE_DIGITS:
        if 0 < int(text) < _MS_MIN:
            raise typer.BadParameter(f"{option} {text} is in 1973 or before: give milliseconds since 1970, not seconds")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither an ISO time nor milliseconds since 1970") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _required(value: str | None, name: str) -> str:
    import os

    found = value or (os.environ.get("NAMESRV_ADDR") if name == "--namesrv" else None)
    if not found:
        raise typer.BadParameter(f"{name} is missing")
    return found
