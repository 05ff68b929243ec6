"""`tables`: topics of a store or of brokers as typed tables, each message once, whatever is killed when.

One run or micro-batch goes through these steps, alone in its directory (a lock):

1. What failed runs left is removed. Where messages decide a schema, tasks look at them first (schemas.py). A new
   version of a table's columns is stored.
2. Tasks read, decode and write files that nobody lists yet. A body that cannot be decoded becomes a row of the
   quarantine. Where tables have keys, other tasks merge what changed into the rows so far (merging.py).
3. One commit lists the files of all tables and says how far the sources were read (table_manifest.py).
4. Delta and Iceberg tables are brought to that commit (publishing.py).

A kill before 3 leaves files that do not count; the messages are read again. A kill after 3 leaves Delta and Iceberg
tables behind, and the next run brings them up first.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from contrailmq.spark.columns import View
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.store_files import confirmed_end, find_stores, log_files, store_identity, store_name
from contrailmq.spark.jobs.archive import check_target, place_within, query_id
from contrailmq.spark.jobs.archive_topics import CHECKPOINT, check_checkpoint
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveState
from contrailmq.spark.jobs.upkeep import RETENTION_S
from contrailmq.spark.runtime.engine import Engine, Progress, SparkEngine
from contrailmq.spark.runtime.task_process import freeze
from contrailmq.spark.sources.portions import EMIT_OPTION, PORTION_COLUMN, read_portions
from contrailmq.spark.topic_tables.absent import check_cluster, check_stores
from contrailmq.spark.topic_tables.merging import is_change, merge, plan_merges
from contrailmq.spark.topic_tables.publishing import check_libraries, forget_replaced, publish
from contrailmq.spark.topic_tables.row_files import TopicPlan, write_rows
from contrailmq.spark.topic_tables.schemas import Question, Surveys, joined, make_plans, questions, survey
from contrailmq.spark.topic_tables.spec import READ_COLUMNS, TablesError, TableSpec, make_specs
from contrailmq.spark.topic_tables.table_manifest import TableManifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

Specs = Mapping[str, TableSpec | Mapping[str, Any]]  # by topic; plain values as in the file
_VIEW: Final = View(READ_COLUMNS, required=frozenset(READ_COLUMNS) & View().required)
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
_SURVEY_SCHEMA: Final = pa.schema([("found", pa.binary())])
_cleaned: Final[set[str]] = set()  # directories whose leavings this process removed: once is enough for a stream


@dataclass(frozen=True, slots=True)
class TablesResult:
    """What one run added. `rows` are those of tables, or changes of them; `tables` has them by topic, and `offsets` say
    how far each store was read."""

    rows: int
    quarantined: int
    files: int
    size_bytes: int
    log_bytes: int
    version: int
    tables: dict[str, int]
    offsets: dict[str, int]


class _Span(NamedTuple):
    """A stretch of a store's log that is to be read for some topics."""

    store: str
    topics: tuple[str, ...]
    begin: int
    end: int
    broker_name: str | None


class _Work(NamedTuple):
    part: LogPart
    settings: LogSettings
    target: str
    plans: dict[str, TopicPlan]
    asked: dict[str, Question]


def tables(
    stores: str,
    target: str,
    engine: Engine,
    specs: Specs,
    *,
    skip_corrupt: bool = False,
    broker_name: str | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> TablesResult:
    """Add what the stores (a path, comma list or glob) gained since the last run to the tables at `target`."""
    chosen = _checked(specs)
    check_target(target, find_stores(stores))
    manifest = TableManifest(target)
    if dry_run:
        head = manifest.load()
        check_stores(stores, head, chosen)
        spans = _spans(stores, head, chosen, skip_corrupt, broker_name)
        return _result((), sum(span.end - span.begin for span in spans), head.version, _reached(spans))
    with manifest.writing() as head:
        check_stores(stores, head, chosen)
        spans = _spans(stores, head, chosen, skip_corrupt, broker_name)
        manifest.remove_leavings()
        publish(manifest, chosen)
        work = [
            _Work(part, _settings(span, skip_corrupt), str(manifest.archive), {}, {})
            for span in spans
            for part in plan_parts(span.store, span.begin, span.end, _settings(span, skip_corrupt))
        ]
        seen = _look(engine, work, questions(manifest.archive, chosen))
        plans = make_plans(manifest.archive, chosen, seen)
        done = engine.run(_write_part, [item._replace(plans=plans) for item in work], on_progress)
        written = [file for files in done for file in files]
        after = head
        if any(span.begin != span.end for span in spans):
            files, gone = _merged(manifest, written, plans, engine)
            names = {store_identity(span.store): span.broker_name for span in spans if span.broker_name is not None}
            after = manifest.advance(head, files, gone, offsets=_ends(spans), names=names)
        _finish(manifest, chosen, written)
    return _result(written, sum(span.end - span.begin for span in spans), after.version, _reached(spans))


def _merged(
    manifest: TableManifest, written: list[ArchivedFile], plans: dict[str, TopicPlan], engine: Engine
) -> tuple[list[ArchivedFile], set[str]]:
    """The files to list and those to list no more, when changes by key are merged into their tables."""
    files = [file for file in written if not is_change(file)]
    if len(files) == len(written):
        return files, set()
    merges = plan_merges(str(manifest.archive), written, manifest.load().files, plans)
    merged = [file for done in engine.run(merge, merges) for file in done]
    return files + merged, {file.path for work in merges for file in work.current}


def _finish(manifest: TableManifest, specs: Mapping[str, TableSpec], written: list[ArchivedFile]) -> None:
    """After a commit: tables are brought up, and what is not needed any more is deleted."""
    publish(manifest, specs)
    for file in filter(is_change, written):
        (manifest.archive / file.path).unlink(missing_ok=True)
    if any(spec.key for spec in specs.values()):
        forget_replaced(manifest, specs, time.time_ns() // 1_000_000 - round(RETENTION_S * 1000))


def _checked(specs: Specs) -> dict[str, TableSpec]:
    given = {topic: spec for topic, spec in specs.items() if isinstance(spec, TableSpec)}
    plain = {topic: spec for topic, spec in specs.items() if not isinstance(spec, TableSpec)}
    chosen = {**given, **(make_specs(plain, "specs") if plain or not given else {})}
    check_libraries(chosen)
    return chosen


def _result(files: Any, log_bytes: int, version: int, offsets: dict[str, int]) -> TablesResult:
    by_topic: dict[str, int] = {}
    for file in files:
        if file.topic:
            by_topic[file.topic] = by_topic.get(file.topic, 0) + file.rows
    return TablesResult(
        sum(by_topic.values()),
        sum(file.rows for file in files if not file.topic),
        len(files),
        sum(file.size_bytes for file in files),
        log_bytes,
        version,
        dict(sorted(by_topic.items())),
        offsets,
    )


# ---------------------------------------------------------------------------------------------------- from stores


def _spans(
    stores: str, done: ArchiveState, specs: Mapping[str, TableSpec], skip_corrupt: bool, broker_name: str | None
) -> list[_Span]:
    """What is to be read: topics that are equally far together. A topic that is new begins at the log's beginning."""
    found: list[_Span] = []
    for store in find_stores(stores):
        files, identity = log_files(store), store_identity(store)
        first, end = files[0].base if files else 0, confirmed_end(store, skips_damage=skip_corrupt)
        name = _broker_name(store, done.names.get(identity), broker_name)
        by_begin: dict[int, list[str]] = {}
        for topic in specs:
            by_begin.setdefault(done.offsets.get(_source(topic, store), first), []).append(topic)
        for begin, topics in sorted(by_begin.items()):
            if begin < first:
                raise TablesError(
                    f"{store} was read up to {begin} for {', '.join(topics)}, but its log begins at {first} now: "
                    f"{first - begin} bytes were deleted unread; begin these tables in another directory, or run more "
                    "often than the log is cleaned"
                )
            if end < begin and confirmed_end(store) < begin:
                raise TablesError(
                    f"{store} was read up to {begin} for {', '.join(topics)}, but its log ends at {end} now: another "
                    "store took its place, or messages were lost; bring it back, or begin in another directory"
                )
            found.append(_Span(store, tuple(topics), begin, max(begin, end), name))
    return found


def _source(topic: str, store: str) -> str:
    """Under what name a commit says how far a topic of a store was read."""
    return f"{topic}@{store_identity(store)}"


def _ends(spans: list[_Span]) -> dict[str, int]:
    return {_source(topic, span.store): span.end for span in spans for topic in span.topics}


def _reached(spans: list[_Span]) -> dict[str, int]:
    """How far each store was read, as an archive tells it."""
    return {span.store: span.end for span in spans}


def _broker_name(store: str, kept: str | None, given: str | None) -> str | None:
    if kept is not None and given not in (None, kept):
        raise TablesError(f"{store} was read as the store of broker {kept!r}, not {given!r}: give that name or none")
    return kept or given or store_name(store)


def _settings(span: _Span, skip_corrupt: bool) -> LogSettings:
    return LogSettings(
        view=_VIEW,
        selection=Selection(topics=frozenset(span.topics)),
        skip_corrupt=skip_corrupt,
        broker_name=span.broker_name,
    )


def _look(engine: Engine, work: list[_Work], asked: Mapping[str, Question]) -> Surveys:
    """Look at messages, some parts at once, until nothing is asked any more."""
    found: Surveys = {}
    step = max(1, engine.tasks_at_once)
    for begin in range(0, len(work), step):
        left = {t: question for t, question in asked.items() if t not in found or not question.is_sample}
        some = [item for item in work[begin : begin + step] if left.keys() & (item.settings.selection.topics or ())]
        if some:
            found = joined([found, *engine.run(_survey_part, [item._replace(asked=left) for item in some])])
    return found


def _survey_part(work: _Work) -> Surveys:
    return survey(read_part(work.part, work.settings), work.asked)


def _write_part(work: _Work) -> list[ArchivedFile]:
    return write_rows(read_part(work.part, work.settings), work.target, work.plans)


# --------------------------------------------------------------------------------------------------- from streams


def tables_stream(stream: DataFrame | DataStreamReader, target: str, checkpoint: str, specs: Specs) -> DataStreamWriter:
    """A writer that adds a stream of messages to tables, exactly once.

    Give a source of ours as a reader, before its `load`: then tasks read and write in one go. Or give any stream with
    the columns of messages as a frame. Set a trigger on it and start it. One query per checkpoint; several queries may
    share a directory, one at a time.
    """
    chosen = _checked(specs)
    check_target(target)
    TableManifest(target)
    if hasattr(stream, "load"):  # also of Spark Connect, whose classes are others
        frame = stream.option(EMIT_OPTION, "pieces").option("columns", ",".join(READ_COLUMNS)).load()
    else:
        missing = [name for name in READ_COLUMNS if name not in stream.columns]
        if missing:
            raise TablesError(f"the stream lacks {', '.join(missing)}: read it with these columns")
        frame = stream.select(*READ_COLUMNS)
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    return writer.foreachBatch(partial(_add_batch, target=target, checkpoint=checkpoint, specs=chosen))


def _add_batch(frame: Any, batch_id: int, *, target: str, checkpoint: str, specs: dict[str, TableSpec]) -> None:
    query = query_id(frame.sparkSession, checkpoint)
    manifest = TableManifest(target)
    with manifest.writing() as head:
        if target not in _cleaned:
            manifest.remove_leavings()
            _cleaned.add(target)
        written: list[ArchivedFile] = []
        if head.batches.get(query, -1) < batch_id:
            asked = questions(manifest.archive, specs)
            seen = joined(_looked(frame, asked)) if asked else {}
            plans = make_plans(manifest.archive, specs, seen)
            written = _written(frame, str(manifest.archive), plans)
            files, gone = _merged(manifest, written, plans, SparkEngine(frame.sparkSession))
            within = place_within(manifest.archive, checkpoint)
            places = {} if within is None else {query: within}
            manifest.advance(head, files, gone, batches={query: batch_id}, checkpoints=places)
        _finish(manifest, specs, written)


def _messages(batches: Iterator[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    return read_portions(batches) if columns == [PORTION_COLUMN] else batches


def _looked(frame: Any, asked: dict[str, Question]) -> list[Surveys]:
    columns = frame.columns

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = survey(_messages(batches, columns), asked)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(found)], pa.binary())], schema=_SURVEY_SCHEMA)

    return [pickle.loads(row["found"]) for row in frame.mapInArrow(task, "found binary").collect()]


def _written(frame: Any, folder: str, plans: dict[str, TopicPlan]) -> list[ArchivedFile]:
    columns = frame.columns

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [file._asdict() for file in write_rows(_messages(batches, columns), folder, plans)]
        freeze()
        yield pa.RecordBatch.from_pylist(rows, schema=_FILE_SCHEMA)

    return [ArchivedFile(*row) for row in frame.mapInArrow(task, _FILE_DDL).collect()]


def tables_topics(
    spark: SparkSession, namesrv: str, target: str, specs: Specs, *, options: Mapping[str, str] | None = None
) -> TablesResult:
    """Add what the topics gained at brokers since the last run to the tables at `target`, then end."""
    chosen = _checked(specs)
    check_target(target)
    manifest = TableManifest(target)
    check_checkpoint(manifest, target)
    check_cluster(namesrv, target, chosen, options or {})
    source = spark.readStream.format("rocketmq").options(**(options or {})).option("nameServer", namesrv)
    source = source.option("startingOffsets", "earliest").option("subscribe", ",".join(chosen))
    before = manifest.load()
    writer = tables_stream(source, target, str(Path(target, CHECKPOINT).absolute()), chosen)
    writer.trigger(availableNow=True).start().awaitTermination()
    after = manifest.load()
    new, _ = before.changes_to(after)
    return _result(new, 0, after.version, {})
