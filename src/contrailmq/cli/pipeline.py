"""`contrailmq pipeline ...`: the jobs around a store, on Spark (`local[*]` unless --master is given) or in a pool.

Every command prints a table, or one JSON document with --json. Exit codes: 0 done, 1 findings (verify), 2 an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.pipeline_metrics import begin
from contrailmq.cli.pipeline_output import answer_rows, print_found
from contrailmq.cli.pipeline_running import (
    chosen_engine,
    listed_names,
    selection_of,
    shown_progress,
    spark_session,
    time_ms,
    told_errors,
)
from contrailmq.cli.pipeline_tables import Config, Schema, TableForm, keep_from_brokers, keep_from_store, specs_of

if TYPE_CHECKING:
    from contrailmq.spark.decoding.log_plan import LogSettings
    from contrailmq.spark.jobs.replay import ReplayResult
    from contrailmq.spark.runtime.engine import Engine

app = typer.Typer(help="Jobs on the log and its archive.", no_args_is_help=True)

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
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Go on without what brokers lost, and with topics that were made again.")
]
StartingOffsets = Annotated[
    str | None, typer.Option("--starting-offsets", help='From these queue offsets on: {"Orders": {"0": 23}}.')
]
EndingOffsets = Annotated[
    str | None, typer.Option("--ending-offsets", help='Up to these queue offsets: {"Orders": {"0": 99}}.')
]
Archived = Annotated[str, typer.Option("--archive", help="Directory of the archive.")]
BrokerName = Annotated[
    str | None, typer.Option("--broker-name", help="Of the store, for the column brokerName; else its address.")
]
KeepRecords = Annotated[
    bool, typer.Option("--keep-records", help="Also keep each record as it is in the log, for `restore`.")
]
ForgetLost = Annotated[
    bool, typer.Option("--forget-lost", help="With --repair: go on without messages that the store lacks, too.")
]
Rate = Annotated[float, typer.Option("--rate", min=0, help="At most so many messages a second; 0: no limit.")]


_REPORT_ROWS = 20  # of queues, tags and producers in a table; --json gives more


@app.callback()
def jobs(
    context: typer.Context,
    metrics_file: Annotated[
        Path | None,
        typer.Option("--metrics-file", help="Leave the job's figures here, for Prometheus' textfile collector."),
    ] = None,
) -> None:
    """Jobs on the log and its archive."""
    begin(context.invoked_subcommand or "", metrics_file)


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
    accept_loss: AcceptLoss = False,
    broker_name: BrokerName = None,
    keep_records: KeepRecords = False,
    repairs: Annotated[bool, typer.Option("--repair", help="Make lost files again, from the store.")] = False,
    forget_lost: ForgetLost = False,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Append what a store, or topics of a cluster, gained to a Parquet archive, exactly once."""
    with told_errors(loss_option="--accept-loss"):
        if (store is None) == (namesrv is None):
            raise typer.BadParameter("give either --store or --namesrv with --topics")
        if repairs:
            _without_effect("with --repair", {"--dry-run": dry_run, "--topics": topics, "--broker-name": broker_name})
        elif forget_lost:
            _without_effect("without --repair", {"--forget-lost": True})
        if namesrv is not None:
            unused: dict[str, object] = {
                "--skip-corrupt": skip_corrupt,
                "--engine local": engine == "local",
                "--broker-name": broker_name,
                "--keep-records": keep_records,
                "--repair": repairs,
            }
            _without_effect("with --namesrv", unused)
            _without_effect("with --dry-run", {"--accept-loss": dry_run and accept_loss})
            options = _client(client, client_file, away_timeout_ms, accept_loss=accept_loss)
            shown = _archive_topics(namesrv, topics, target, master, options, dry_run=dry_run)
            listed = {} if dry_run else _published(target, delta=delta, iceberg=iceberg)
            print_found({**shown, **listed}, as_json, title="archive")
            return
        assert store is not None
        _without_effect("with --store", _of_clusters(client, client_file, away_timeout_ms, accept_loss=accept_loss))
        from contrailmq.spark.decoding.log_plan import LogSettings
        from contrailmq.spark.jobs import archive as job

        settings = LogSettings(selection=selection_of(topics), skip_corrupt=skip_corrupt, broker_name=broker_name)
        settings = replace(settings, view=job.RECORDS_VIEW) if keep_records else settings
        if repairs:
            with chosen_engine(engine, master, store) as chosen, shown_progress("repair", as_json) as tell:
                _repair(store, target, chosen, settings, forget_lost, as_json, tell)
            return
        _warn_of_absent(store, job.topics_without_queue(store, settings))
        with chosen_engine(engine, master, store) as chosen, shown_progress("archive", as_json) as tell:
            done = job.archive(store, target, chosen, settings=settings, dry_run=dry_run, on_progress=tell)
        listed = {} if dry_run else _published(target, delta=delta, iceberg=iceberg)
        print_found({**asdict(done), **listed}, as_json, title="archive")


def _warn_of_absent(store: str, topics: list[str]) -> None:
    if topics:
        typer.echo(
            f"warning: {store} has no consume queue of {', '.join(topics)}: check the names, or go on if such messages "
            "are yet to come",
            err=True,
        )


def _repair(
    store: str,
    target: str,
    engine: Engine,
    settings: LogSettings,
    forget_lost: bool,
    as_json: bool,
    tell: Callable[[int, int], None],
) -> None:
    """Make lost files again; exits with 2 if some cannot be."""
    from contrailmq.spark.jobs.archive_repair import repair

    done = repair(store, target, engine, settings=settings, forget_lost=forget_lost, on_progress=tell)
    print_found(asdict(done), as_json, title="repair")
    for text in done.unrestored:
        typer.echo(f"{'warning: left out' if forget_lost else 'error: not restored'}: {text}", err=True)
    if done.unrestored and not forget_lost:
        typer.echo("restore these files from a backup, or go on without their messages: --forget-lost", err=True)
        raise typer.Exit(2)


@app.command()
def compact(
    target: Archived,
    target_mb: Annotated[int, typer.Option("--target-mb", min=1, help="Size of the files to make, in MB.")] = 128,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Join small files of an archive into large sorted ones; its Delta and Iceberg tables follow."""
    with told_errors():
        from contrailmq.spark.jobs import upkeep

        with chosen_engine(engine, master) as chosen, shown_progress("compact", as_json) as tell:
            done = upkeep.compact(target, chosen, target_bytes=target_mb << 20, dry_run=dry_run, on_progress=tell)
        print_found(asdict(done), as_json, title="compact")


@app.command()
def expire(
    target: Archived,
    before: Annotated[str, typer.Option("--before", help="Drop what was stored before: ISO time (UTC) or epoch ms.")],
    dry_run: DryRun = False,
    engine: EngineName = "local",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Drop old messages from an archive and its tables; `vacuum` deletes their files later."""
    with told_errors():
        from contrailmq.spark.jobs import upkeep

        before_ms = time_ms(before, "--before", 0)
        with chosen_engine(engine, master) as chosen, shown_progress("expire", as_json) as tell:
            done = upkeep.expire(target, before_ms, chosen, dry_run=dry_run, on_progress=tell)
        print_found(asdict(done), as_json, title="expire")


@app.command()
def vacuum(
    target: Archived,
    retain_hours: Annotated[
        float, typer.Option("--retain-hours", min=0, help="Keep files that were replaced less than so long ago.")
    ] = 168.0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete files that compaction and expiry replaced, and what failed runs left."""
    with told_errors():
        from contrailmq.spark.jobs import upkeep

        done = upkeep.vacuum(target, retention_s=retain_hours * 3600, dry_run=dry_run)
        print_found(asdict(done), as_json, title="vacuum")


@app.command()
def tables(
    target: Annotated[str, typer.Option("--to", help="Directory of the tables.")],
    store: Annotated[str | None, typer.Option("--store", help="Store directory; a comma list or glob.")] = None,
    namesrv: Namesrv = None,
    topics: Topics = None,
    config: Config = None,
    schema: Schema = None,
    table: TableForm = "parquet",
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Continue after damaged stretches.")] = False,
    client: ClientOption = None,
    client_file: ClientFile = None,
    away_timeout_ms: BrokerAwayTimeout = None,
    accept_loss: AcceptLoss = False,
    broker_name: BrokerName = None,
    dry_run: DryRun = False,
    engine: EngineName = "spark",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Keep a typed table for each topic up to date, each message once; bad rows go to a quarantine."""
    with told_errors():
        if (store is None) == (namesrv is None):
            raise typer.BadParameter("give either --store or --namesrv")
        specs = specs_of(topics, config, schema, table)
        if store is not None:
            _without_effect("with --store", _of_clusters(client, client_file, away_timeout_ms, accept_loss=accept_loss))
            keep_from_store(
                store,
                target,
                specs,
                skip_corrupt=skip_corrupt,
                broker_name=broker_name,
                dry_run=dry_run,
                engine=engine,
                master=master,
                as_json=as_json,
            )
            return
        unused: dict[str, object] = {
            "--skip-corrupt": skip_corrupt,
            "--engine local": engine == "local",
            "--broker-name": broker_name,
            "--dry-run": dry_run,
        }
        _without_effect("with --namesrv", unused)
        options = _client(client, client_file, away_timeout_ms, accept_loss=accept_loss)
        keep_from_brokers(
            _required(namesrv, "--namesrv"), target, specs, options=options, master=master, as_json=as_json
        )


@app.command()
def restore(
    source: Archived,
    target: Annotated[str, typer.Option("--to", help="Directory of the store to make.")],
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    starting: StartingOffsets = None,
    ending: EndingOffsets = None,
    broker_name: Annotated[str | None, typer.Option("--broker-name", help="Of several brokers in the archive.")] = None,
    log_file_bytes: Annotated[
        int, typer.Option("--log-file-bytes", min=65_536, help="Size of log files (mappedFileSizeCommitLog).")
    ] = 1 << 30,
    engine: EngineName = "local",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Make a store of an archive's messages, at their old queue offsets, for a broker to serve."""
    with told_errors():
        from contrailmq.spark.jobs import restore as job

        selection = selection_of(topics, since=since, until=until, starting=starting, ending=ending)
        with chosen_engine(engine, master) as chosen, shown_progress("restore", as_json) as tell:
            done = job.restore(
                source,
                target,
                chosen,
                selection=selection,
                broker_name=broker_name,
                log_file_bytes=log_file_bytes,
                on_progress=tell,
            )
        print_found(asdict(done), as_json, title="restore")
        if done.in_no_queue:
            typer.echo(
                f"warning: {done.in_no_queue} of {done.messages} messages are in the log and in no queue, so no broker "
                "serves them: their topic was deleted and made again later; restore them by themselves, with --until",
                err=True,
            )


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
    with told_errors():
        from contrailmq.spark.decoding.store_files import find_stores
        from contrailmq.spark.jobs import rebuild as job

        rows = []
        with chosen_engine(engine, master, store) as chosen, shown_progress("rebuild", as_json) as tell:
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
    with told_errors():
        from contrailmq.spark.decoding.store_files import find_stores
        from contrailmq.spark.jobs import verify as job
        from contrailmq.spark.jobs.swap import is_in_use

        stores = find_stores(store)
        if slave is not None and len(stores) > 1:
            raise typer.BadParameter(f"--slave is compared with one store, and --store names {len(stores)}")
        with chosen_engine(engine, master, store) as chosen, shown_progress("verify", as_json) as tell:
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
    with told_errors():
        from contrailmq.spark.jobs import report as job
        from contrailmq.spark.jobs.report_page import page

        with chosen_engine(engine, master, store) as chosen, shown_progress("report", as_json) as tell:
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
    with told_errors():
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
    with told_errors():
        import contrailmq.spark

        if sum(given is not None for given in (store, archived, namesrv)) != 1:
            raise typer.BadParameter("give exactly one of --store, --archive and --namesrv with --topics")
        if namesrv is None:
            _without_effect("without --namesrv", _of_clusters(client, client_file, away_timeout_ms))
        else:
            _required(topics, "--topics")
        names = listed_names(topics, "--topics")
        if archived is not None:
            from contrailmq.spark.jobs.manifest import Manifest

            Manifest(archived).check_archive()  # before Spark is started
        options = _client(client, client_file, away_timeout_ms)
        with spark_session("contrailmq ask", master) as spark:
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
    with told_errors():
        from contrailmq.spark.jobs import replay as job

        selection = selection_of(topics, since=since, until=until, starting=starting, ending=ending)
        address = "" if dry_run and namesrv is None else _required(namesrv, "--namesrv")
        options = _client(client, client_file, away_timeout_ms)
        with chosen_engine(engine, master) as chosen, shown_progress("replay", as_json) as tell:
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
    with told_errors():
        from contrailmq.spark.jobs import replay as job

        address, options = _required(namesrv, "--namesrv"), _client(client, client_file, away_timeout_ms)
        properties, chosen_tags = _named(where, "--property"), listed_names(tags, "--tags")
        with chosen_engine(engine, master) as chosen, shown_progress("redrive", as_json) as tell:
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


def _of_clusters(
    client: list[str] | None, file: Path | None, away_timeout_ms: int | None, *, accept_loss: bool = False
) -> dict[str, object]:
    """Options that are for brokers, by name."""
    away = None if away_timeout_ms is None else str(away_timeout_ms)  # a zero is given, too
    return {
        "--client": client,
        "--client-file": file,
        "--broker-away-timeout-ms": away,
        "--accept-loss": accept_loss,
    }


def _client(
    given: list[str] | None, file: Path | None, away_timeout_ms: int | None, *, accept_loss: bool = False
) -> dict[str, str]:
    """Keys, TLS settings and patience as the options of the source; what is given by hand wins over the file."""
    from contrailmq.spark.access import LOSS_OPTION, PREFIX, access_of
    from contrailmq.spark.runtime.patience import AWAY_OPTION
    from contrailmq.wire.properties import read_properties

    found = {} if file is None else read_properties(file)
    found |= _named(given, "--client")
    options = {f"{PREFIX}{name.removeprefix(PREFIX)}": value for name, value in found.items()}
    access_of(options)  # refuses names without effect before anything is started
    if accept_loss:
        options[LOSS_OPTION] = "false"
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

    names = ",".join(listed_names(_required(topics, "--topics"), "--topics") or [])
    if dry_run:
        return topics_to_archive(namesrv, names, target, options=options)
    with spark_session("contrailmq archive", master) as spark:
        return archive_topics(spark, namesrv, names, target, options=options)


def _without_effect(where: str, options: dict[str, object]) -> None:
    """Refuse options that would do nothing."""
    for name, given in options.items():
        if given:
            raise typer.BadParameter(f"{name} has no effect {where}: leave it out")


def _required(value: str | None, name: str) -> str:
    import os

    found = value or (os.environ.get("NAMESRV_ADDR") if name == "--namesrv" else None)
    if not found:
        raise typer.BadParameter(f"{name} is missing")
    return found
