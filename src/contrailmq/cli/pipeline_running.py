"""How commands of `contrailmq pipeline` run: engine, session, progress, errors in words, and shared options."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from contrailmq.cli.pipeline_metrics import measured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from contrailmq.spark.decoding.decode import Selection
    from contrailmq.spark.runtime.engine import Engine

_DATE_DIGITS = 8  # of 20260131, which ISO allows
_MS_MIN = 10**11  # smaller ones are seconds by mistake
_POOL_BYTES_MIN = 256 * 1024 * 1024  # below, starting processes takes longer than the work


@contextmanager
def chosen_engine(name: str, master: str | None, store: str | None = None) -> Iterator[Engine]:
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

    with spark_session("contrailmq pipeline", master) as session:
        yield SparkEngine(session)


@contextmanager
def spark_session(name: str, master: str | None) -> Iterator[SparkSession]:
    import contrailmq.spark

    session = contrailmq.spark.session(name, **({"master": master} if master else {}))
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # wrong SQL as JSON with a trace: we report it
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def shown_progress(name: str, as_json: bool) -> Iterator[Callable[[int, int], None]]:
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
def told_errors(*, loss_option: str | None = None) -> Iterator[None]:
    """Errors as one line. `loss_option` is what a command has for the source's failOnDataLoss, if it has something."""
    from contrailmq.message import ContrailError, printable_lines

    try:
        with measured():
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
        from contrailmq.spark.runtime.hidden_modules import hiding_text

        told = spark_cause(str(exc))
        if loss_option is not None:
            told = told.replace("start a new query with a new checkpoint", "begin in another directory")
            told = told.replace("set failOnDataLoss=false", f"give {loss_option}")
        typer.echo(f"error: {printable_lines(told)}", err=True)
        hidden = hiding_text()
        if hidden:
            typer.echo(f"perhaps because {printable_lines(hidden)}", err=True)
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


def spark_cause(text: str) -> str:
    """What went wrong, out of Spark's text: our own error if a task raised one, else its first line that says it."""
    ours = re.findall(r"^\s*(?:\w+\.)*contrailmq\.[\w.]*Error: (.+)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1])
    told = re.sub(r"\AAn error occurred while calling .+\n: ", "", text.strip())  # by Py4J, before Java's own
    return told.partition("\n")[0].rstrip(";")


def selection_of(
    topics: str | None,
    *,
    since: str | None = None,
    until: str | None = None,
    starting: str | None = None,
    ending: str | None = None,
) -> Selection:
    """Which messages the options of a command mean."""
    from contrailmq.spark.decoding.decode import Selection

    names = listed_names(topics, "--topics")
    begin_ms, end_ms = time_ms(since, "--since", 0), time_ms(until, "--until", 2**63 - 1)
    if begin_ms >= end_ms:
        raise typer.BadParameter(f"--since {since} is not before --until {until}: there is nothing between them")
    return Selection(
        topics=None if names is None else frozenset(names),
        begin_ms=begin_ms,
        end_ms=end_ms,
        starting_offsets=queue_offsets(starting, "--starting-offsets", is_start=True),
        ending_offsets=queue_offsets(ending, "--ending-offsets", is_start=False),
    )


def listed_names(text: str | None, option: str) -> list[str] | None:
    """Names separated by commas. A list without one is an error: it would choose everything, or nothing."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter(f"{option} is {text!r} and lacks a name: separate names by commas, or leave it out")
    return names


def time_ms(text: str | None, option: str, default: int) -> int:
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


def queue_offsets(text: str | None, option: str, *, is_start: bool) -> dict[tuple[str, int], int]:
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
