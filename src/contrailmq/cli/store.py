"""`contrailmq store inspect|verify|rebuild|repair|truncate|copy DIR`: looking at a store, mending it, copying one.

`inspect` and `verify` change nothing and may be run on a copy, on a damaged store, and without the broker's
configuration: file sizes are taken from the files, delay levels from what the broker left there. If a directory
holds the stores of several brokers, each is shown. `verify` exits with 1 if it finds something. `rebuild` and
`repair` take the store's lock, so they refuse while a broker has the directory open.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from contrailmq.message import printable, printable_json

if TYPE_CHECKING:
    from contrailmq.store import RepairReport, StoreConfig, StoreSummary, VerifyReport

_FINDINGS_SHOWN_MAX: Final = 50  # a screen or two
_REMEDIES: Final = {
    errno.ENOENT: "give a path that exists",
    errno.ENOTDIR: "give the store's root, which is a directory",
    errno.EACCES: "run it as the user who owns the store",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EROFS: "inspect and verify need no writing, rebuild and repair do: mount it for writing, or copy the store",
    errno.ENOSPC: "rebuild needs room for a second set of queues and index, repair for damaged bytes: free some space",
}
_UNMENDED_REMEDY: Final = (
    "restore the file from a copy, or make one of zeros (truncate -s) with the size and name that belong there and "
    "repair again"
)

app = typer.Typer(
    help="Look at a store directory, check it, rebuild its queues and index; repair, cut or copy its log.",
    no_args_is_help=True,
)

_Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="the store's root: the directory that holds commitlog/, or one that holds such stores"
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]
_Conf = Annotated[Path | None, typer.Option("-c", "--config", help="broker.conf, for file sizes and paths that differ")]


@app.command()
def inspect(directory: _Directory, as_json: _Json = False, config: _Conf = None) -> None:
    """Show what is there: files, ranges, topics, queues, counts, times, checkpoint."""
    from contrailmq.store import StoreView, inspect_store

    found: list[dict[str, object]] = []
    for place in _stores(directory, config):
        with _reported(), StoreView(_config(place, config)) as view:
            summary = inspect_store(view)
        if as_json:
            counts = {"topics": summary.topics, "messages": summary.messages}
            found.append(asdict(summary) | counts | {"checkpoint": summary.checkpoint._asdict()})
        else:
            _print_summary(summary)
    if as_json:
        _print_json_of(directory, found)


@app.command()
def verify(directory: _Directory, as_json: _Json = False, config: _Conf = None) -> None:
    """Check everything against everything; exit with 1 if something does not fit. Changes nothing.

    Of a store in use, only what cannot be in flight is reported. Delays are those of the store's broker, or of -c.
    """
    from contrailmq.store import StoreView, verify_store

    found: list[dict[str, object]] = []
    is_ok = True
    places = _stores(directory, config)
    for place in places:
        with (
            _reported(),
            StoreView(_config(place, config)) as view,
            _progress("verify", quiet=as_json) as on_progress,
        ):
            report = verify_store(view, on_progress)
        is_ok = is_ok and report.is_ok
        if as_json:
            findings = [finding._asdict() for finding in report.findings]
            found.append(asdict(report) | {"ok": report.is_ok, "findings": findings})
        else:
            if place != directory:
                Console().print(f"store [bold]{escape(str(place))}[/bold]", soft_wrap=True)
            _print_verify(report)
    if as_json:
        _print_json_of(directory, found)
    if not is_ok:
        raise typer.Exit(1)


@app.command()
def rebuild(directory: _Directory, as_json: _Json = False, config: _Conf = None) -> None:
    """Make the queues and the index again from the log; the old ones stay until the new ones are checked."""
    from contrailmq.store import rebuild_store

    _require_one(directory, config, "rebuild")
    with _reported(), _progress("rebuild", quiet=as_json) as on_progress:
        report = rebuild_store(_config(directory, config), on_progress=on_progress)
    if as_json:
        _print_json(asdict(report))
        return
    Console().print(
        f"rebuilt {_counted(report.queues, 'queue')} with {_counted(report.units, 'message')} and "
        f"{_counted(report.index_entries, 'index entry', 'index entries')} in {_counted(report.index_files, 'file')}, "
        f"up to offset {report.log_max_offset:,}",
        soft_wrap=True,
    )
    if report.log_end:
        note = f"the log ends there ({report.log_end}): the next start cuts what follows"
        Console().print(note, soft_wrap=True)


@app.command()
def repair(
    directory: _Directory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what is damaged; exit with 1 if it is")] = False,
    as_json: _Json = False,
    config: _Conf = None,
) -> None:
    """Move damaged ranges of the log to DIR/damaged/, so that everything after them can be read again."""
    from contrailmq.store import find_damage, repair_store

    _require_one(directory, config, "repair")
    work = find_damage if dry_run else repair_store
    with _reported(), _progress("repair", quiet=as_json) as on_progress:
        report = work(_config(directory, config), on_progress=on_progress)
    if as_json:
        ranges = [asdict(one) | {"lost": [lost._asdict() for lost in one.lost]} for one in report.ranges]
        counts = {"damaged_bytes": report.damaged_bytes, "messages_lost": report.messages_lost}
        _print_json(asdict(report) | counts | {"ranges": ranges})
    else:
        _print_repair(report, directory)
    if report.unmended or (dry_run and (report.ranges or report.units_emptied)):
        raise typer.Exit(1)


@app.command()
def truncate(
    directory: _Directory,
    at: Annotated[int, typer.Option("--at", metavar="OFFSET", help="where the log is to end: a border of two records")],
    is_sure: Annotated[bool, typer.Option("--yes", help="do it; without it only what would be cut is said")] = False,
    as_json: _Json = False,
    config: _Conf = None,
) -> None:
    """Cut the newest messages off the log, for good: those of a slave that its master has lost."""
    from contrailmq.store import plan_truncation, truncate_store

    _require_one(directory, config, "truncate")
    with _reported():
        given = _config(directory, config)
        report = truncate_store(given, at) if is_sure else plan_truncation(given, at)
    if as_json:
        _print_json(asdict(report) | {"cut_bytes": report.cut_bytes})
    else:
        count = _counted(sum(report.messages.values()), "record")
        verb = "cut off" if report.is_done else "would be cut off"
        Console().print(
            f"{report.cut_bytes:,} bytes with {count} {verb}: the log ended at {report.log_max_offset:,}",
            soft_wrap=True,
        )
        for topic, records in report.messages.items():
            Console().print(f"  {_safe(topic)}: {records:,}", soft_wrap=True)
    if not report.is_done:
        Console(stderr=True).print("nothing was changed: --yes does it", soft_wrap=True)
        raise typer.Exit(1)


@app.command()
def copy(
    directory: _Directory,
    source: Annotated[str, typer.Option("--from", metavar="HOST:HAPORT", help="a broker's HA port: listenPort + 1")],
    until: Annotated[
        int | None, typer.Option("--until", metavar="OFFSET", help="end with the last record that ends there or before")
    ] = None,
    follows: Annotated[
        bool, typer.Option("--follow", help="go on with what the broker gets, until Ctrl-C or SIGTERM")
    ] = False,
    as_json: _Json = False,
    config: _Conf = None,
) -> None:
    """Copy the log of a running broker, ours or RocketMQ's, into DIR, without a stop; go on with a copy begun.

    Exit code 1: the broker went away; what came is kept, and the same command goes on. 2: it cannot be copied so.
    """
    from contrailmq.cli.store_copy import CopyError, InterruptedCopy, Source, copy_store

    if directory.exists() and any(directory.iterdir()) and not (directory / "commitlog").is_dir():
        _fail(f"{directory} is neither empty nor a store: give a directory of its own")
    try:
        with _reported(), _progress("copy", quiet=as_json) as on_progress:
            show = on_progress or (lambda done, total: None)
            copy_store(Source(source), _config(directory, config), until=until, follows=follows, show=show)
    except InterruptedCopy as exc:
        inspect(directory, as_json, config)
        _fail(str(exc), code=1)
    except CopyError as exc:
        _fail(str(exc))
    inspect(directory, as_json, config)


# --- output


def _print_summary(summary: StoreSummary) -> None:
    console = Console()
    state = "closed cleanly" if summary.was_clean_exit else "NOT closed cleanly: opening it will run recovery"
    if summary.owner_pid:
        state = _in_use(summary.owner_pid)
    console.print(f"store [bold]{_safe(summary.path)}[/bold], {state}", soft_wrap=True)
    log = _table("commit log", "files", "bytes each", "from and to offset", "first and last message")
    log.add_row(
        str(summary.log_files),
        f"{summary.log_file_bytes:,}",
        f"{summary.log_min_offset:,}\n{summary.log_max_offset:,}",
        f"{_time(summary.first_store_time_ms)}\n{_time(summary.last_store_time_ms)}",
    )
    console.print(log)
    queue_count = len(summary.queues) + len(summary.batch_queues)
    title = (
        f"{_counted(summary.messages, 'message')} in {_counted(queue_count, 'queue')}, "
        f"{_counted(summary.topics, 'topic')}"
    )
    queues = _table(title, "topic", "queue", "min", "max", "messages", "files")
    for queue in (*summary.queues, *summary.batch_queues):
        numbers = (queue.queue_id, queue.min_offset, queue.max_offset, queue.count, queue.files)
        queues.add_row(_safe(queue.topic), *(f"{number:,}" for number in numbers))
    console.print(queues)
    index = _table("index", "file", "entries", "from and to offset", "first and last message")
    for file in summary.index:
        index.add_row(
            file.name,
            f"{file.entries:,}",
            f"{file.begin_offset:,}\n{file.end_offset:,}",
            f"{_time(file.begin_time_ms)}\n{_time(file.end_time_ms)}",
        )
    console.print(index)
    checkpoint = _table("checkpoint", "field", "value")
    for name, value in summary.checkpoint._asdict().items():
        checkpoint.add_row(name, _time(value) if name.endswith("_time_ms") else f"{value:,}")
    console.print(checkpoint)
    for problem in summary.problems:
        console.print(f"[red]{_safe(problem)}[/red]", soft_wrap=True)


def _print_verify(report: VerifyReport) -> None:
    console = Console()
    if report.owner_pid:
        note = f"{_in_use(report.owner_pid)}: what may be on its way to the disk is left out"
        console.print(note, soft_wrap=True)
    looked = (
        f"{_counted(report.records, 'record')}, {_counted(report.units, 'queue unit')}, "
        f"{_counted(report.index_entries, 'index entry', 'index entries')}"
    )
    if report.is_ok:
        console.print(f"[green]ok[/green]: {looked}")
        return
    title = f"{_counted(report.findings_count, 'finding')} in {looked}"
    table = _table(title, "part", "where", "offset", "problem")
    for finding in report.findings[:_FINDINGS_SHOWN_MAX]:
        offset = "" if finding.offset is None else f"{finding.offset:,}"
        table.add_row(finding.part, _safe(finding.where), offset, _safe(finding.problem))
    console.print(table)
    if report.findings_count > _FINDINGS_SHOWN_MAX:
        console.print(f"and {report.findings_count - _FINDINGS_SHOWN_MAX:,} more (--json lists the first 1,000)")


def _print_repair(report: RepairReport, directory: Path) -> None:
    console = Console()
    for problem in report.unmended:
        note = f"not repaired: {problem}; {_UNMENDED_REMEDY}"
        console.print(f"[red]{_safe(note)}[/red]", soft_wrap=True)
    if report.log_end:
        why = "no queue points there" if report.was_clean_exit else "after a crash that is not damage"
        console.print(_safe(f"the log ends {report.log_end}: {why}; opening the store cuts it there"), soft_wrap=True)
    if not report.ranges:
        done = "nothing else is damaged" if report.unmended else "nothing is damaged"
        if report.units_emptied:
            begun = "is not finished" if report.is_dry_run else "was finished"
            done = f"{done}; an earlier repair {begun}: {_counted(report.units_emptied, 'queue unit')}"
        console.print(done, soft_wrap=True)
        return
    title = (
        f"{_counted(len(report.ranges), 'damaged range')}, {_counted(report.damaged_bytes, 'byte')}, "
        f"{_counted(report.messages_lost, 'message')} lost"
    )
    table = _table(title, "from", "to", "problem")
    for one in report.ranges[:_FINDINGS_SHOWN_MAX]:
        table.add_row(f"{one.begin:,}", f"{one.end:,}", _safe(one.reason))
    console.print(table)
    lost = [message for one in report.ranges for message in one.lost]
    messages = _table("lost, as the queues say", "topic", "queue", "queue offset", "offset", "bytes")
    for message in lost[:_FINDINGS_SHOWN_MAX]:
        numbers = (message.queue_id, message.queue_offset, message.physical_offset, message.size_bytes)
        messages.add_row(_safe(message.topic), *(f"{number:,}" for number in numbers))
    if lost:
        console.print(messages)
    if max(len(lost), len(report.ranges)) > _FINDINGS_SHOWN_MAX:
        console.print(f"the first {_FINDINGS_SHOWN_MAX} are shown (--json lists all)")
    end = f"the bytes are in {directory / 'damaged'}; run contrailmq store verify {directory}"
    console.print(_safe("nothing was changed" if report.is_dry_run else end), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        is_text = column in ("topic", "file", "part", "where", "problem", "field")
        is_whole = column in ("file", "from and to offset", "first and last message", "offset", "value")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=is_whole)
    return table


def _safe(text: str) -> str:
    """Names and problems come from files: neither markup nor what a terminal would act on."""
    return escape(printable(text))


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def _in_use(owner_pid: int) -> str:
    return f"in use by process {owner_pid}" if owner_pid > 0 else "in use by another process"


def _time(time_ms: int) -> str:
    """Local time with milliseconds; a dash for none."""
    return datetime.fromtimestamp(time_ms / 1000).isoformat(" ", "milliseconds") if time_ms > 0 else "-"


def _print_json(value: dict[str, object]) -> None:
    sys.stdout.write(printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def _print_json_of(directory: Path, found: list[dict[str, object]]) -> None:
    """A store's object; of a directory that holds stores, one object with the list of theirs."""
    if len(found) == 1 and found[0]["path"] == str(directory):
        _print_json(found[0])
    else:
        _print_json({"stores": found})


# --- frame


def _stores(directory: Path, config: Path | None) -> list[Path]:
    """The store, or those of the brokers inside when it is a directory such as `contrailmq up --store` makes."""
    if config is not None or (directory / "commitlog").exists() or not directory.is_dir():
        return [directory]
    return sorted(place.parent for place in directory.glob("*/commitlog")) or [directory]


def _require_one(directory: Path, config: Path | None, job: str) -> None:
    inside = [place for place in _stores(directory, config) if place != directory]
    if inside:
        names = ", ".join(place.name for place in inside)
        typer.echo(f"error: {directory} holds the stores of {names}: {job} them one by one, by their path", err=True)
        raise typer.Exit(2)


def _config(directory: Path, config: Path | None) -> StoreConfig:
    from contrailmq.store import StoreConfig
    from contrailmq.store.config import recorded_settings

    if config is not None:
        return StoreConfig.from_properties(config, path=directory)
    return StoreConfig(directory, **recorded_settings(directory))


@contextmanager
def _reported() -> Iterator[None]:
    """An error of the store is a line on standard error and exit code 2, not a traceback."""
    from contrailmq.store import StoreError

    try:
        yield
    except (StoreError, OSError) as exc:
        text = _explained(exc) if isinstance(exc, OSError) else str(exc)
        Console(stderr=True).print(f"[red]{_safe(text)}[/red]", soft_wrap=True)
        raise typer.Exit(2) from exc


def _fail(text: str, *, code: int = 2) -> NoReturn:
    Console(stderr=True).print(f"[red]{_safe(text)}[/red]", soft_wrap=True)
    raise typer.Exit(code)


def _explained(error: OSError) -> str:
    """What the system refused, where, and what can be done about it."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{what}: {remedy}" if remedy else what


@contextmanager
def _progress(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error; none for JSON or when nobody watches."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
