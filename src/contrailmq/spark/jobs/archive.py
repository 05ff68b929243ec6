"""`archive`: a store's log as partitioned Parquet, incremental, exactly once.

Each run continues where the last commit stopped, writes what came since inside the tasks, and commits files and offsets
together. Run it as often as you like; kill it when you like: the archive holds every row once.

`archive_stream` does the same for any stream (of brokers or of a growing store): each micro-batch of Spark is a commit
that also carries the query's id and batch number. A batch that Spark repeats after a crash finds its number there.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from contrailmq.spark.columns import COLUMNS, RECORD_COLUMN, View
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.queue_units import all_queues
from contrailmq.spark.decoding.store_files import (
    confirmed_end,
    find_stores,
    is_store,
    log_files,
    renamed,
    store_identity,
    store_name,
)
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveError, ArchiveState, Layout, Manifest
from contrailmq.spark.jobs.parquet_files import write_batches
from contrailmq.spark.runtime.engine import Engine, Progress
from contrailmq.spark.runtime.task_process import freeze
from contrailmq.spark.sources.portions import EMIT_OPTION, PORTION_COLUMN, read_portions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

_log: Final = logging.getLogger(__name__)
RECORDS_VIEW: Final = View((*COLUMNS, RECORD_COLUMN), required=View().required)  # with records as in the log
_cleaned: Final[set[str]] = set()  # archives whose leavings this process removed: once is enough for a stream
NAMELESS_QUERY: Final = "stream"  # the id of a query if Spark does not report it (PYSPARK_PIN_THREAD=false)
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  # the directory of a partition without a value, to Hive and Spark
# Spark makes a letter of each byte of a topic, and null of one name. RocketMQ takes ASCII alone, a log may hold more.
_TOPIC_OF_DIRECTORY: Final = f"decode(encode(coalesce(topic, '{_NO_VALUE}'), 'ISO-8859-1'), 'UTF-8')"
_FILE_DDL: Final = "path string, topic string, date string, rows bigint, size_bytes bigint"
_FILE_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("topic", pa.string()),
        ("date", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)


class _Work(NamedTuple):
    part: LogPart
    settings: LogSettings
    archive: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What one run added."""

    rows: int
    files: int
    size_bytes: int
    log_bytes: int
    version: int
    offsets: dict[str, int]


def archive(
    stores: str,
    target: str,
    engine: Engine,
    *,
    settings: LogSettings | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> ArchiveResult:
    """Append what the stores (a path, comma list or glob) gained since the last run to the archive at `target`.

    Rows have `brokerName`, so that those of two stores differ: the settings' name, else one made of the first record
    of the store. The archive keeps it: later runs give the same.
    """
    chosen = LogSettings() if settings is None else settings
    if chosen.broker_name is not None and len(find_stores(stores)) > 1:
        raise ArchiveError(
            f"{stores} are {len(find_stores(stores))} stores, and {chosen.broker_name!r} is the name of one broker: "
            "archive them one by one, or leave the name out"
        )
    check_target(target, find_stores(stores))
    manifest = Manifest(target)
    if dry_run:
        manifest.check_commits()
        head = renamed_state(manifest.load(), find_stores(stores))
        begins, ends = _bounds(stores, head, chosen)
        return ArchiveResult(0, 0, 0, sum(ends[s] - begins[s] for s in ends), head.version, ends)
    with manifest.writing() as head:
        before = renamed_state(head, find_stores(stores))
        begins, ends = _bounds(stores, before, chosen)
        names = _broker_names(ends, before, chosen)
        manifest.remove_leavings()
        work = [
            _Work(part, replace(chosen, broker_name=names.get(store)), str(manifest.archive), before.layout)
            for store in ends
            for part in plan_parts(store, begins[store], ends[store], chosen)
        ]
        files: list[ArchivedFile] = []
        for written in engine.run(_archive_part, work, on_progress):
            files.extend(written)
        topics = {store: _names(chosen) for store in ends}
        after = before
        if ends != begins:
            after = manifest.commit(before, files, offsets=ends, topics=topics, names=names)
    return ArchiveResult(
        sum(file.rows for file in files),
        len(files),
        sum(file.size_bytes for file in files),
        sum(ends[store] - begins[store] for store in ends),
        after.version,
        ends,
    )


def check_target(target: str | Path, stores: Iterable[str] = ()) -> None:
    """Refuse a directory that is a store or lies in one of these, and one without a name.

    A broker would find files that are not its own, and jobs take a store with a manifest in it for an archive.
    """
    if not str(target).strip():
        raise ArchiveError(
            f"the archive's directory has no name, {target!r} was given: name one (. is the current one)"
        )
    if is_store(str(target)):
        raise ArchiveError(f"{target} is a store, no place for an archive: give a directory beside it")
    place = Path(os.path.realpath(target))
    for store in stores:
        if place.is_relative_to(store_identity(store)):
            raise ArchiveError(
                f"{target} is inside the store {store}, no place for an archive: give a directory beside it"
            )


def topics_without_queue(stores: str, settings: LogSettings) -> list[str]:
    """Chosen topics of which no store has a consume queue: misspelt, or yet to come. None if a store has no queues."""
    absent = set(settings.selection.topics or ())
    for store in find_stores(stores) if absent else ():
        queues = all_queues(store)
        if not queues:
            return []  # its log may hold any topic
        absent -= {topic for topic, _ in queues}
    return sorted(absent)


def _archive_part(work: _Work) -> list[ArchivedFile]:
    return write_batches(read_part(work.part, work.settings), work.archive, work.layout)


def _broker_names(stores: Iterable[str], done: ArchiveState, settings: LogSettings) -> dict[str, str]:
    """The name that the rows of each store have, which is the one that the archive knows; none for an empty log."""
    found = {}
    for store in stores:
        kept, given = done.names.get(store), settings.broker_name
        if kept is not None and given not in (None, kept):
            raise ArchiveError(
                f"{store} was archived as the store of broker {kept!r}, not {given!r}: give that name or none, or "
                "another directory for the archive"
            )
        name = kept or given or store_name(store)
        if name is not None:
            found[store] = name
    return found


def _names(settings: LogSettings) -> list[str] | None:
    topics = settings.selection.topics
    return None if topics is None else sorted(topics)


def _bounds(stores: str, done: ArchiveState, settings: LogSettings) -> tuple[dict[str, int], dict[str, int]]:
    """Where each store is to be read from and to. `done` knows the stores by the names they have now (`renamed_state`).

    A log that was cleaned past the archive's end is an error, and so is one that ends before it. So is another choice
    of topics than before: what was skipped then would be missing for ever, since an archive goes on where it
    stopped.
    """
    begins, ends = {}, {}
    for store in find_stores(stores):
        files = log_files(store)
        first, end = files[0].base if files else 0, confirmed_end(store, skips_damage=settings.skip_corrupt)
        begin = done.offsets.get(store, first)
        if store in done.topics and done.topics[store] != _names(settings):
            before = done.topics[store]
            raise ArchiveError(
                f"{store} was archived up to {begin} with {'all topics' if before is None else ', '.join(before)}: "
                "give the same topics again, or another directory for the archive"
            )
        if begin < first:
            raise ArchiveError(
                f"{store} was archived up to {begin}, but its log begins at {first} now: {first - begin} bytes were "
                "deleted before they were archived; start a new archive, or archive more often than the log is cleaned"
            )
        if store in done.offsets and end < begin and confirmed_end(store) < begin:
            raise ArchiveError(
                f"{store} was archived up to {begin}, but its log ends at {end} now: another store took its place, or "
                "messages were lost; start another archive, or bring the store back"
            )
        begins[store], ends[store] = begin, max(begin, end)
    return begins, ends


def renamed_state(done: ArchiveState, stores: list[str]) -> ArchiveState:
    """The state with these stores under the names they have now; of several for one, that of the highest offset.

    Older commits know a store by the path that was given. The old name goes with the next commit, for a link may lead
    to another store one day.
    """
    offsets = dict(sorted(done.offsets.items(), key=lambda item: item[1]))
    topics = {name: done.topics[name] for name in offsets if name in done.topics}
    names = {name: done.names[name] for name in offsets if name in done.names}
    return replace(
        done,
        offsets=renamed(offsets, stores),
        topics=renamed(topics, stores),
        names=renamed(names, stores),
    )


def archive_stream(stream: DataFrame | DataStreamReader, target: str, checkpoint: str) -> DataStreamWriter:
    """A writer that appends a stream of messages to an archive, exactly once.

        archive_stream(spark.readStream.format("commitlog").option("path", store), "/archive", "/checkpoint").start()

    Give a source of ours as a reader, before its `load`: then tasks read and write in one go and no row passes through
    Spark, which is about twice as fast (a query's progress counts pieces of work instead of rows then). Or give any
    stream of messages as a frame (all columns, properties as a map). Either form goes on from a checkpoint of its own.

    Set a trigger on it and start it. One query per checkpoint; several queries may share an archive, one at a time.
    """
    check_target(target)
    if hasattr(stream, "load"):  # also of Spark Connect, whose classes are others
        frame = stream.option(EMIT_OPTION, "portions").load()
    else:
        missing = [name for name in COLUMNS if name not in stream.columns]
        if missing:
            raise ArchiveError(f"the stream lacks {', '.join(missing)}: read it without the option columns")
        frame = stream.select(*COLUMNS)
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    return writer.foreachBatch(partial(_append_batch, target=target, checkpoint=checkpoint))


def query_id(session: SparkSession, checkpoint: str) -> str:
    """The id that a query keeps from start to start, as its checkpoint has it. Spark Connect has it nowhere else."""
    context = getattr(session, "_sc", None)
    if context is not None:
        return str(context.getLocalProperty("sql.streaming.queryId") or NAMELESS_QUERY)
    (metadata,) = session.read.text(literal_path(f"{checkpoint}/metadata")).collect()
    return str(json.loads(metadata[0])["id"])


def _append_batch(frame: Any, batch_id: int, *, target: str, checkpoint: str) -> None:
    query = query_id(frame.sparkSession, checkpoint)
    manifest = Manifest(target)
    with manifest.writing() as before:
        if before.batches.get(query, -1) >= batch_id:
            _log.info("batch %d of query %s is in %s already", batch_id, query, target)
            return
        if target not in _cleaned:
            manifest.remove_leavings()
            _cleaned.add(target)
        folder, are_portions = str(manifest.archive), frame.columns == [PORTION_COLUMN]
        layout = before.layout

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            messages = read_portions(batches) if are_portions else batches
            rows = [file._asdict() for file in write_batches(messages, folder, layout)]
            freeze()
            yield pa.RecordBatch.from_pylist(rows, schema=_FILE_SCHEMA)

        files = [ArchivedFile(*row) for row in frame.mapInArrow(task, _FILE_DDL).collect()]
        within = place_within(manifest.archive, checkpoint)
        places = {} if within is None else {query: within}
        manifest.commit(before, files, batches={query: batch_id}, checkpoints=places)


def place_within(archive: Path, checkpoint: str) -> str | None:
    """A checkpoint's place in the archive, None if it is elsewhere."""
    place, root = Path(checkpoint), archive.absolute()
    return str(place.relative_to(root)) if place.is_relative_to(root) else None


def read_archive(spark: SparkSession, target: str) -> DataFrame:
    """An archive as a DataFrame of the usual columns and `date`: exactly the files that its manifest lists."""
    manifest = Manifest(target)
    manifest.check_archive()
    state = manifest.load()
    # The topic of a packed archive is in the files, of an older one in the directories as is the date.
    ddl = ", ".join(
        f"{name} {spark_type}"
        for name, (spark_type, _) in COLUMNS.items()
        if name != "topic" or state.layout == "packed"
    )
    ddl += ", date date" if state.layout == "packed" else ", topic string, date date"
    if not state.files:
        return spark.createDataFrame([], ddl).select(*COLUMNS, "date")
    reader = spark.read.schema(ddl).option("basePath", str(manifest.archive))
    frame = reader.parquet(*(literal_path(str(manifest.archive / file.path)) for file in state.files))
    is_plain = all(file.topic.isascii() and file.topic != _NO_VALUE for file in state.files)
    topic = "topic" if is_plain else f"{_TOPIC_OF_DIRECTORY} as topic"  # most filter by partition without a detour
    return frame.selectExpr(*(topic if name == "topic" else name for name in COLUMNS), "date")


def literal_path(path: str) -> str:
    """A path as a glob that matches nothing else: Hadoop takes every path to read for a glob, but no basePath."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)
