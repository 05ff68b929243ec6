"""The `commitlog` data source: a store's files as a DataFrame, in batch and as a stream, without any broker.

    spark.read.format("commitlog").load("/data/store")
    spark.readStream.format("commitlog").option("path", "/data/store").option("topics", "Orders").load()

A DataFrame is a snapshot, planned once up to the confirmed end of the log. A stream's offsets are physical offsets per
store directory. They are always the start of a record, and the rows between two of them depend on the log alone. A
stream finds new store directories that match a glob. A store keeps its identity under another name, such as a link.

Parameter names below are Spark's contract. pyspark has no types for mypy, hence the ignores. `pushFilters` is missing
on purpose: Spark 4.3 reuses the pruned plan of one query for the next and loses rows (tests/spark/test_push_down.py).
"""

from __future__ import annotations

import contrailmq.spark.runtime.needs  # noqa: F401  it tells what a worker lacks before a traceback does

# isort: split
import contextlib
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from contrailmq.spark.columns import OptionError
from contrailmq.spark.decoding.decode import QueueKey, Selection
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.queue_units import all_queues
from contrailmq.spark.decoding.scan import BLOCK_BYTES
from contrailmq.spark.decoding.store_files import (
    RANGE_BYTES,
    StoreFilesError,
    confirmed_end,
    find_stores,
    log_files,
    record_at_or_after,
    renamed,
    store_identity,
)
from contrailmq.spark.options import (
    ANY_BROKER,
    EARLIEST,
    LATEST,
    PRUNING_OPTIONS,
    OffsetsJson,
    Options,
    check_offsets,
    check_times,
    parse_offsets,
    parse_pruning,
)
from contrailmq.spark.runtime.task_process import freezing
from contrailmq.spark.runtime.worker_daemon import end_quietly
from contrailmq.spark.sources.portions import EMIT_OPTION, PORTION_DDL, emits_portions, pack_portion
from contrailmq.spark.sources.pruned import pruned_log
from contrailmq.spark.sources.tables import created_with, missing_hint, saved_options, table_schema
from contrailmq.spark.sources.task_metrics import TASK_METRICS_OPTION, told_by_task, view_of
from contrailmq.spark.sources.typed_bodies import BODY_OPTIONS, TypedBodies, read_typed, typed_bodies, typed_view

end_quietly()

_BATCH_OPTIONS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_OPTIONS: Final = ("maxBytesPerTrigger",)
KNOWN_OPTIONS: Final = (
    "path",
    "topics",
    "topic",
    "subscribe",
    "includeSystemTopics",
    "restoreRealTopic",
    "columns",
    "properties",
    "columnStyle",
    "decompress",
    "onCorrupt",
    "checkCrc",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "brokerName",
    "plan",
    "rangeBytes",
    "minPartitions",
    "batchBytes",
    "failOnDataLoss",
    EMIT_OPTION,
    TASK_METRICS_OPTION,
    *PRUNING_OPTIONS,
    *BODY_OPTIONS,
    *_BATCH_OPTIONS,
    *_STREAM_OPTIONS,
)
_VERSION: Final = 1  # of the offset JSON in checkpoints
_log: Final = logging.getLogger(__name__)


def parse_settings(options: Options) -> LogSettings:
    """Settings of a read from its options. What would do nothing is refused."""
    topics = options.names("topics", "topic", "subscribe")
    restores = options.flag("restoreRealTopic", default=False)
    pruning = parse_pruning(options)
    plan = options.choice("plan", "auto", "log", "queue", "index")
    is_for_all = topics is None and pruning.tags is None and pruning.queue_ids is None
    if plan == "queue" and (is_for_all or restores):
        raise OptionError(
            "option plan is queue, which is for some of the messages: "
            + (
                "name them as topics, tags or queueId"
                if is_for_all
                else "it finds none under their real topic, use log"
            )
        )
    if plan == "index" and pruning.keys is None:
        raise OptionError("option plan is index, by which messages with some keys are found: name them as keys")
    begin_ms, starting_times, starting_offsets = _side(options, "starting", "earliest", refused=LATEST)
    end_ms, ending_times, ending_offsets = _side(options, "ending", "latest", refused=EARLIEST)
    if begin_ms is not None and end_ms is not None and end_ms <= begin_ms:
        raise OptionError(
            f"option endingTimestamp is {end_ms}, not after startingTimestamp, {begin_ms}, so nothing would be read: "
            "give a later one"
        )
    for topic, _ in (*starting_times, *starting_offsets, *ending_times, *ending_offsets):
        if topics is not None and topic not in topics:
            raise OptionError(f"offsets or times are given for {topic!r}, which is not among the topics: correct it")
    return LogSettings(
        view=view_of(options),
        selection=Selection(
            topics=None if topics is None else frozenset(topics),
            with_system_topics=options.flag("includeSystemTopics", default=False),
            restore_real_topic=restores,
            starting_offsets=starting_offsets,
            ending_offsets=ending_offsets,
            starting_times_ms=starting_times,
            ending_times_ms=ending_times,
            begin_ms=0 if begin_ms is None else begin_ms,
            end_ms=2**63 - 1 if end_ms is None else end_ms,
            tags=pruning.tags,
            keys=pruning.keys,
            queue_ids=pruning.queue_ids,
        ),
        decompress=options.flag("decompress", default=True),
        skip_corrupt=options.choice("onCorrupt", "fail", "skip") == "skip",
        check_crc=options.flag("checkCrc", default=True),
        range_bytes=options.number("rangeBytes", RANGE_BYTES, least=4096),
        plan=plan,
        broker_name=options.text("brokerName"),
        batch_bytes=options.number("batchBytes", BLOCK_BYTES, least=4096),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
    )


Bounds = dict[QueueKey, int]


def _side(options: Options, side: str, unbounded: str, *, refused: int) -> tuple[int | None, Bounds, Bounds]:
    """One end, by Kafka's precedence: a time for all, times per queue, offsets. What counts less is not looked at."""
    if options.text(f"{side}Timestamp") is not None:
        return options.time_ms(f"{side}Timestamp"), {}, {}
    name = f"{side}OffsetsByTimestamp"
    times = options.text(name)
    if times is not None:
        found = parse_offsets(times, name)
        check_times(found, name)
        return None, _per_queue(found, name, options), {}
    name = f"{side}Offsets"
    text = options.text(name, unbounded) or unbounded
    if text.lower() in (unbounded, "latest"):  # a batch that starts at the end is refused where it is made
        return None, {}, {}
    if not text.lstrip().startswith("{"):
        raise OptionError(f"option {name} is {text!r}: a log takes {unbounded} or offsets as JSON")
    found = parse_offsets(text, name)
    check_offsets(found, name, refused=refused)
    bounds = _per_queue(found, name, options)
    return None, {}, {queue: offset for queue, offset in bounds.items() if offset >= 0}


def _per_queue(found: OffsetsJson, option: str, options: Options) -> Bounds:
    """Bounds by topic and queue. A log does not know its broker: a name is taken only if it is the one given."""
    for topic, brokers in found.items():
        for broker in brokers:
            if broker not in (ANY_BROKER, options.text("brokerName", ANY_BROKER)):
                raise OptionError(
                    f"option {option} names broker {broker!r} for {topic}, and a log does not know its broker: leave "
                    f'that level out, {{"{topic}": {{"0": 23}}}}, or give its name as brokerName'
                )
    return {
        (topic, queue_id): value
        for topic, brokers in found.items()
        for queues in brokers.values()
        for queue_id, value in queues.items()
    }


class CommitLogSource(DataSource):  # type: ignore[misc]
    """`format("commitlog")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options  # Spark's base class keeps them under this name
        self._created = created_with(options)
        self._options = Options(options if self._created is None else self._created, known=KNOWN_OPTIONS)

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> str | StructType:
        settings = parse_settings(self._options)
        view = typed_view(settings.view, typed_bodies(self._options, settings.selection.topics))
        if self._created is not None:
            self._options.required("path")
            return table_schema(view, self._created)
        return PORTION_DDL if emits_portions(self._options, view) else view.ddl()

    def reader(self, schema: StructType) -> CommitLogReader:
        options = self._to_read(schema)
        options.refuse(_STREAM_OPTIONS, "on a batch read")
        if _begins_at_end(options):
            raise OptionError(
                "option startingOffsets is latest, where a batch would find nothing: give an earlier start"
            )
        settings = parse_settings(options)
        if emits_portions(options, settings.view):
            raise OptionError("emit=portions is for streams (archive_stream): leave it out")
        bodies = typed_bodies(options, settings.selection.topics)
        settings = replace(settings, view=typed_view(settings.view, bodies).fitted(schema))
        return CommitLogReader(options.required("path"), settings, options.number("minPartitions", 0), bodies)

    def streamReader(self, schema: StructType) -> CommitLogStreamReader:
        options = self._to_read(schema)
        options.refuse(_BATCH_OPTIONS, "on a stream")
        settings = parse_settings(options)
        emits, bodies = emits_portions(options, settings.view), typed_bodies(options, settings.selection.topics)
        if not emits:
            settings = replace(settings, view=typed_view(settings.view, bodies).fitted(schema))
        return CommitLogStreamReader(
            options.required("path"),
            settings,
            bytes_per_trigger=options.number("maxBytesPerTrigger", 0),
            partitions_min=options.number("minPartitions", 0),
            begins_at_end=_begins_at_end(options),
            emits_portions=emits,
            bodies=bodies,
        )

    def _to_read(self, schema: StructType) -> Options:
        """The options; for a table those it was created with, and those of the statement."""
        saved = saved_options(schema)
        if saved is None:
            missing_hint(self.options, "path")
            return self._options
        return Options({**saved, **self.options}, known=KNOWN_OPTIONS)


def _begins_at_end(options: Options) -> bool:
    """Whether only what comes is to be read. Times count more than offsets."""
    by_time = any(map(options.text, ("startingTimestamp", "startingOffsetsByTimestamp")))
    return not by_time and (options.text("startingOffsets") or "").lower() == "latest"


class _PartitionOf(InputPartition):  # type: ignore[misc]
    """One part of the plan as Spark carries it to a worker."""

    def __init__(self, part: LogPart) -> None:
        super().__init__(part)
        self.part = part


class CommitLogReader(DataSourceReader):  # type: ignore[misc]
    """Batch: the log from its first record to the confirmed end at planning time."""

    def __init__(
        self, pattern: str, settings: LogSettings, partitions_min: int = 0, bodies: TypedBodies | None = None
    ) -> None:
        self._pattern, self._settings, self._partitions_min = pattern, settings, partitions_min
        self._bodies = bodies

    def partitions(self) -> list[InputPartition]:
        stores = find_stores(self._pattern)
        _check_queues(stores, self._settings.selection)
        ends = {store: confirmed_end(store, skips_damage=self._settings.skip_corrupt) for store in stores}
        return _planned(
            {store: (_first_offset(store), ends[store]) for store in stores}, self._settings, self._partitions_min
        )

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _PartitionOf):  # Spark turns an empty plan into one partition without a value
            return iter(())
        batches = read_typed(self._settings, self._bodies, partial(read_part, partition.part))
        return freezing(told_by_task(batches, self._settings.view))

    def pruned(self) -> str:
        """What of the log is read, in one line."""
        stores = find_stores(self._pattern)
        log_bytes = sum(confirmed_end(store) - _first_offset(store) for store in stores)
        return pruned_log(stores, [partition.part for partition in self.partitions()], self._settings, log_bytes)


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Stream: what was appended to the log since the last micro-batch, up to the confirmed end."""

    def __init__(
        self,
        pattern: str,
        settings: LogSettings,
        *,
        bytes_per_trigger: int = 0,
        partitions_min: int = 0,
        begins_at_end: bool = False,
        emits_portions: bool = False,
        bodies: TypedBodies | None = None,
    ) -> None:
        self._pattern, self._settings, self._bodies = pattern, settings, bodies
        self._bytes_per_trigger, self._partitions_min = bytes_per_trigger, partitions_min
        self._begins_at_end, self._emits_portions = begins_at_end, emits_portions
        self._known_ends: dict[str, int] = {}  # only saves work: the log before it was walked already
        self._initial: dict[str, Any] | None = None
        self._final_ends: dict[str, int] | None = None
        self._checked: dict[str, Any] | None = None  # the end of a batch whose stores were looked at just now

    def initialOffset(self) -> dict[str, Any]:
        stores = find_stores(self._pattern)
        _check_queues(stores, self._settings.selection)
        begins = self._ends() if self._begins_at_end else {store: _first_offset(store) for store in stores}
        self._initial = _offset_json(begins)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._bytes_per_trigger) if self._bytes_per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._final_ends = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._final_ends if self._final_ends is not None else self._ends()
        begins = renamed(_offsets_of(start), ends)
        for store, end in ends.items():
            is_short = end < begins.get(store, 0) and confirmed_end(store) < begins[store]
            if is_short and self._settings.fail_on_data_loss:
                raise StoreFilesError(
                    f"{store} was read up to {begins[store]}, but its log ends at {end} now: another store took its "
                    "place, or messages were lost; start a new query, or set failOnDataLoss=false to wait until the "
                    "log has grown past that offset"
                )
        marks = renamed(start.get("marks", {}), ends)
        for store in self._replaced(begins, marks, [store for store in begins if ends.get(store, 0) >= begins[store]]):
            del begins[store]  # so it is a new one
        reached = {store: max(end, begins.get(store, 0)) for store, end in ends.items()}
        if isinstance(limit, ReadMaxBytes):
            reached = _share(begins, reached, limit.max_bytes)
        # A store that has vanished keeps its offset; planning says what to do about it.
        found = {**begins, **reached}
        is_first = start == self._initial
        new = {store: _first_offset(store) for store in reached if store not in begins}
        if not is_first and not new and found == _offsets_of(start):
            return start  # as it is written: another text is another offset to Spark
        for store, offset in reached.items():
            if begins.get(store) != offset or store not in marks:
                marks[store] = mark_before(store, offset)
        # As in `rocketmq`: where a batch began must be the same when Spark, which does not save it, plans it again.
        self._checked = _offset_json(found, {**begins, **new} if is_first else new, marks)
        return self._checked

    def reportLatestOffset(self) -> dict[str, Any]:
        return _offset_json(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = _offsets_of(end)
        begins = renamed({**_offsets_of(start), **end.get("began", {})}, ends)
        if end != self._checked:  # a batch that Spark plans again, after a restart
            self._replaced(ends, end.get("marks", {}), [store for store in ends if begins.get(store) != ends[store]])
        between: dict[str, tuple[int, int]] = {}
        for store, stop in sorted(ends.items()):
            begin = begins.get(store)
            if begin == stop:
                continue
            first = _first_offset(store)
            if begin is not None and begin < first:
                if self._settings.fail_on_data_loss:
                    raise StoreFilesError(
                        f"{store} was read up to {begin}, but its log begins at {first} now: {first - begin} bytes "
                        "were deleted unread; set failOnDataLoss=false to go on without them"
                    )
                begin = None
            between[store] = (first if begin is None else begin, stop)
        return _planned(between, self._settings, self._partitions_min, keeps_empty=True)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _PartitionOf):
            return iter(())
        if self._emits_portions:
            return pack_portion(read_part, partition.part, self._settings)
        batches = read_typed(self._settings, self._bodies, partial(read_part, partition.part))
        return freezing(told_by_task(batches, self._settings.view))

    def _replaced(self, reached: dict[str, int], marks: dict[str, str | None], stores: Iterable[str]) -> list[str]:
        """Those of the stores that are not the ones which were read up to these offsets."""
        found = [store for store in stores if is_another(store, reached[store], marks.get(store))]
        for store in found:
            text = (
                f"{store} holds other bytes before {reached[store]} than those that were read: another store took its "
                "place, its log was cut and written again, or `store repair` moved damage aside there"
            )
            if self._settings.fail_on_data_loss:
                raise StoreFilesError(
                    f"{text}; start a new query with a new checkpoint, or set failOnDataLoss=false to read it from its "
                    "beginning"
                )
            _log.warning("%s; it is read from its beginning", text)
        return found

    def _ends(self) -> dict[str, int]:
        skips, ends = self._settings.skip_corrupt, {}
        for store in find_stores(self._pattern):
            identity = store_identity(store)
            known_end = self._known_ends.get(identity, 0)
            ends[store] = confirmed_end(store, known_end=known_end, skips_damage=skips)
            self._known_ends[identity] = ends[store]
        return ends


def _check_queues(stores: list[str], selection: Selection) -> None:
    """Refuse bounds for queues that the stores do not have, as far as they have queues at all."""
    if selection.restore_real_topic:
        return  # of a message that waits, the real queue may have none yet
    held = {queue for store in stores for queue in all_queues(store)}
    there = sorted({queue_id for topic, queue_id in held if selection.wants_topic(topic)})
    missing = sorted(selection.queue_ids.difference(there)) if selection.queue_ids is not None and there else []
    if missing:
        raise OptionError(
            f"option queueId names {missing[0]}, which no topic to be read has in {', '.join(stores)}: there are "
            + ", ".join(map(str, there[:20]))
        )
    for bounds in (
        selection.starting_offsets,
        selection.ending_offsets,
        selection.starting_times_ms,
        selection.ending_times_ms,
    ):
        for topic, queue_id in bounds:
            if held and (topic, queue_id) not in held:
                ids = sorted(found for name, found in held if name == topic)
                has = f"it has {', '.join(map(str, ids[:20]))} of that topic" if ids else "it has no such topic"
                raise OptionError(
                    f"offsets or times are given for queue {queue_id} of {topic!r}, which {', '.join(stores)} does "
                    f"not have: {has}"
                )


def _planned(
    between: dict[str, tuple[int, int]], settings: LogSettings, partitions_min: int, *, keeps_empty: bool = False
) -> list[InputPartition]:
    """The parts of several stores' logs, each between two physical offsets; about as many as wanted, or more."""
    if partitions_min:
        total = sum(stop - start for start, stop in between.values())
        settings = replace(settings, range_bytes=min(settings.range_bytes, max(4096, total // partitions_min)))
    return [
        _PartitionOf(part)
        for store, (start, stop) in between.items()
        for part in plan_parts(store, start, stop, settings, keeps_empty=keeps_empty)
    ]


def _share(begins: dict[str, int], ends: dict[str, int], bytes_max: int) -> dict[str, int]:
    """Ends such that about `bytes_max` lie before them, shared in proportion to each store's backlog."""
    backlog = {store: end - begins.get(store, _first_offset(store)) for store, end in ends.items()}
    total = sum(backlog.values())
    if total <= bytes_max:
        return ends
    shared = {}
    for store, end in ends.items():
        aim = begins.get(store, _first_offset(store)) + max(1, backlog[store] * bytes_max // total)
        shared[store] = record_at_or_after(store, aim, end) if backlog[store] else end
    return shared


def _first_offset(store: str) -> int:
    files = log_files(store)
    return files[0].base if files else 0


def _offset_json(
    offsets: dict[str, int], began: dict[str, int] | None = None, marks: dict[str, str | None] | None = None
) -> dict[str, Any]:
    # Spark compares offsets as text: sorted keys and plain integers, always.
    saved: dict[str, Any] = {"stores": {store: int(offsets[store]) for store in sorted(offsets)}, "version": _VERSION}
    if began:
        saved["began"] = {store: int(began[store]) for store in sorted(began)}
    held = {store: mark for store, mark in sorted((marks or {}).items()) if mark is not None}
    return {**saved, "marks": held} if held else saved


def _offsets_of(offset: dict[str, Any]) -> dict[str, int]:
    if offset.get("version") != _VERSION:
        raise OptionError(
            f"the checkpoint's offset {offset!r} is of another version than {_VERSION}: start a new query"
        )
    return {str(store): int(value) for store, value in offset["stores"].items()}


_SAMPLE_BYTES: Final = 1024  # one record at least leaves its times and its id in that, unless its body is large
_DIGEST_BYTES: Final = 8


def mark_before(store: str, offset: int) -> str | None:
    """The mark of what is before a physical offset; None if no file holds that, or none any more.

    By it a stream knows that a store is still the one it read from (topic_marks.py has the same for topics): another
    store under the same path, once its log is longer than the offset in a checkpoint, would be read from the middle.
    What a log holds below its confirmed end never changes, so a checkpoint holds a digest of it: of the first kilobyte
    of the log file that the offset ends in, and of the last one before the offset. Of a file that was cleaned away
    there is no mark; then the ordinary rule for bytes that were deleted unread holds.
    """
    for file in log_files(store):
        if file.base < offset <= file.base + file.size_bytes:
            held = offset - file.base
            with contextlib.suppress(FileNotFoundError), open(file.path, "rb") as opened:
                first = opened.read(min(held, _SAMPLE_BYTES))
                opened.seek(max(0, held - _SAMPLE_BYTES))
                last = opened.read(min(held, _SAMPLE_BYTES))
                return hashlib.blake2b(first + last, digest_size=_DIGEST_BYTES).hexdigest()
    return None


def is_another(store: str, offset: int, mark: str | None) -> bool:
    """Whether a store holds other bytes before an offset than when it was marked."""
    return mark is not None and mark_before(store, offset) not in (mark, None)
