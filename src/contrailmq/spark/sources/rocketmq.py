"""The `rocketmq` data source: topics through brokers as DataFrames, in batch and as a stream, and as a sink.

    spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe", "Orders").load()
    spark.readStream.format("rocketmq")...load()          # begins at `latest` unless startingOffsets says otherwise
    frame.write.format("rocketmq").option("nameServer", ...).option("topic", "Out").mode("append").save()

Options follow Spark's Kafka connector where it has them. Checkpoints hold the next offset to read per topic, broker and
queue; a queue or broker that appears during a stream is read from its beginning. With `groupId` and
`commitGroupOffsets` the group's offset on the broker follows one micro-batch behind, for tools that show lag; only
`startingOffsets=group` reads it. Parameter names are Spark's contract. No `pushFilters`: see commitlog.py.
"""

from __future__ import annotations

import contrailmq.spark.runtime.needs  # noqa: F401  it tells what a worker lacks before a traceback does

# isort: split
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.errors import BrokerNotFoundError, NoRouteError
from contrailmq.message import MessageQueue
from contrailmq.spark.access import PREFIX, Access, parse_access
from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import (
    EARLIEST,
    LATEST,
    PRUNING_OPTIONS,
    Options,
    Pruning,
    check_offsets,
    check_times,
    parse_offsets,
    parse_pruning,
)
from contrailmq.spark.runtime.patience import AWAY_OPTION, AWAY_TIMEOUT_MS, BrokerAwayError, Patience
from contrailmq.spark.runtime.task_process import freezing
from contrailmq.spark.runtime.worker_daemon import end_quietly
from contrailmq.spark.sinks.exactly_once_sink import ExactlyOnceStreamWriter, ExactlyOnceWriter
from contrailmq.spark.sinks.sending import SinkSettings
from contrailmq.spark.sinks.sink import (
    SINK_COLUMNS,
    SINK_OPTIONS,
    RocketMQStreamWriter,
    RocketMQWriter,
    parse_sink,
)
from contrailmq.spark.sources.portions import EMIT_OPTION, PORTION_DDL, emits_portions, pack_portion
from contrailmq.spark.sources.pruned import pruned_topics
from contrailmq.spark.sources.tables import created_with, missing_hint, saved_options, table_schema
from contrailmq.spark.sources.task_metrics import TASK_METRICS_OPTION, told_by_task, view_of
from contrailmq.spark.sources.topic_marks import Marks, made_anew, marked
from contrailmq.spark.sources.topic_plan import (
    BATCH_BYTES,
    PULL_COUNT,
    Bound,
    DataLossError,
    Offsets,
    QueueRange,
    TopicSettings,
    check_brokers,
    check_starts,
    ending_offsets,
    find_queues,
    plan_queue_ranges,
    publish_offsets,
    queue_name,
    share_limit,
    starting_offsets,
    without_tags,
)
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.spark.sources.typed_bodies import BODY_OPTIONS, TypedBodies, read_typed, typed_bodies, typed_view

end_quietly()

_BATCH_OPTIONS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_OPTIONS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroupOffsets")
_READ_OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "subExpression",
    "sqlExpression",
    "groupId",
    "columns",
    "properties",
    "columnStyle",
    "decompress",
    "includeSystemTopics",
    "batchBytes",
    "pullBatchSize",
    "pullTimeoutMs",
    EMIT_OPTION,
    TASK_METRICS_OPTION,
    *PRUNING_OPTIONS,
    *BODY_OPTIONS,
    *_BATCH_OPTIONS,
    *_STREAM_OPTIONS,
)
_NAME_SERVER: Final = ("nameServer", "namesrvAddr", "namesrv")
KNOWN_OPTIONS: Final = (*_NAME_SERVER, "topic", AWAY_OPTION, *_READ_OPTIONS, *SINK_OPTIONS)
_VERSION: Final = 1
_ROW_WAS_READ: Final = "queueOffset"  # which every row has that was read, and none that is to be sent (tables.py)
_DEFAULT_GROUP: Final = "contrailmq_spark"
_Value = TypeVar("_Value", int, str)
_Result = TypeVar("_Result")
_Tree = dict[str, dict[str, dict[str, _Value]]]  # topic -> broker name -> queue id
_log: Final = logging.getLogger(__name__)
_readers: dict[
    tuple[str, str, float, Access], QueueReader
] = {}  # one per worker process: workers live on between tasks


def reader_for(settings: TopicSettings) -> QueueReader:
    """A connection holder that this process keeps."""
    key = (settings.namesrv, settings.group or _DEFAULT_GROUP, settings.pull_timeout_s, settings.access)
    if key not in _readers:
        _readers[key] = settings.access.open(*key[:3])
    return _readers[key]


def parse_settings(options: Options, *, is_stream: bool) -> TopicSettings:
    """Settings of a read from its options. What would do nothing is refused."""
    options.refuse(SINK_OPTIONS, "on reading: it belongs to the sink")
    options.refuse(_BATCH_OPTIONS if is_stream else _STREAM_OPTIONS, f"on a {'stream' if is_stream else 'batch read'}")
    topics = options.names("subscribe", "topic")
    pattern, assign = options.text("subscribePattern"), options.text("assign")
    if sum(given is not None for given in (topics, pattern, assign)) != 1:
        raise OptionError("give exactly one of the options subscribe, subscribePattern and assign")
    if pattern is not None and not pattern.strip():
        raise OptionError("option subscribePattern is empty: give a regular expression, such as .* for all topics")
    pruning = parse_pruning(options)
    sql = options.text("sqlExpression")
    if options.text("subExpression") and (sql or pruning.tags is not None):
        other = "sqlExpression" if sql else "tags"
        raise OptionError(f"give one of the options subExpression and {other}, not both")
    starting = _bound(options, "starting", "latest" if is_stream else "earliest")
    if starting.word == "latest" and not is_stream and starting.default_ms is None and not starting.times_ms:
        raise OptionError("option startingOffsets is latest, where a batch would find nothing: give an earlier start")
    check_offsets(starting.offsets, "startingOffsets", refused=None if is_stream else LATEST)
    ending = _bound(options, "ending", "latest")
    if ending.word in ("earliest", "group"):
        raise OptionError(f"option endingOffsets is {ending.word}: it takes latest or offsets as JSON")
    check_offsets(ending.offsets, "endingOffsets", refused=EARLIEST)
    group = options.text("groupId")
    if starting.word == "group" and not group:
        raise OptionError("option startingOffsets is group: give the group as groupId")
    if options.flag("commitGroupOffsets", default=False) and not group:
        raise OptionError("option commitGroupOffsets needs a group: give it as groupId")
    return TopicSettings(
        namesrv=options.required(*_NAME_SERVER),
        access=parse_access(options.passed),
        topics=tuple(topics or ()),
        pattern=pattern,
        assigned=() if assign is None else _assigned(assign),
        starting=starting,
        ending=ending,
        no_match_is_error=options.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "error",
        group=group,
        with_system_topics=options.flag("includeSystemTopics", default=False),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        subscription=sql or options.text("subExpression") or _subscription(pruning),
        expression_type="SQL92" if sql else "TAG",
        tags=pruning.tags,
        keys=pruning.keys,
        queue_ids=pruning.queue_ids,
        view=view_of(options),
        decompress=options.flag("decompress", default=True),
        pull_count=options.number("pullBatchSize", PULL_COUNT, least=1),
        batch_bytes=options.number("batchBytes", BATCH_BYTES, least=1024),
        pull_timeout_s=options.number("pullTimeoutMs", 20_000, least=1) / 1000,
        away_timeout_s=options.number(AWAY_OPTION, AWAY_TIMEOUT_MS) / 1000,
    )


def _subscription(pruning: Pruning) -> str:
    """Tags as a broker takes them; all messages where it would read one otherwise. The text is compared in any case."""
    tags = sorted(pruning.tags or ())
    is_plain = all(tag == tag.strip() and "|" not in tag and tag != "*" and "\ufffd" not in tag for tag in tags)
    return " || ".join(tags) if tags and is_plain else "*"


def _bound(options: Options, side: str, default: str) -> Bound:
    """One end, by Kafka's precedence: a time for all, times per queue, offsets."""
    default_ms = options.text(f"{side}Timestamp")
    times = options.text(f"{side}OffsetsByTimestamp")
    text = options.text(f"{side}Offsets", default) or default
    if default_ms is not None:
        return Bound(default, default_ms=options.time_ms(f"{side}Timestamp"))
    if times is not None:
        times_ms = parse_offsets(times, f"{side}OffsetsByTimestamp")
        check_times(times_ms, f"{side}OffsetsByTimestamp")
        return Bound(default, times_ms=times_ms)
    if text.lower() in ("earliest", "latest", "group"):
        return Bound(text.lower())
    return Bound(default, offsets=parse_offsets(text, f"{side}Offsets"))


def _assigned(text: str) -> tuple[MessageQueue, ...]:
    import json

    try:
        tree = json.loads(text)
        lists = [ids for brokers in tree.values() for ids in brokers.values()]
        if not all(type(ids) is list and all(type(queue_id) is int for queue_id in ids) for ids in lists):
            raise TypeError("queues are lists of whole numbers")
        found = tuple(
            MessageQueue(topic, broker, queue_id)
            for topic, brokers in tree.items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
        )
    except (ValueError, AttributeError, TypeError) as exc:
        raise OptionError(f'option assign is not queues as JSON, {{"topic": {{"broker": [0, 1]}}}}: {text!r}') from exc
    if not found:
        raise OptionError(f"option assign names no queue: {text!r}")
    return found


def _limits(options: Options) -> dict[str, Any]:
    """How much a micro-batch takes: at most, at least, and how long it waits for the least."""
    rows_max, rows_min = options.number("maxOffsetsPerTrigger", 0), options.number("minOffsetsPerTrigger", 0)
    if rows_max and rows_min > rows_max:
        raise OptionError(
            f"option minOffsetsPerTrigger is {rows_min}, more than maxOffsetsPerTrigger, {rows_max}: swap them"
        )
    if not rows_min:
        options.refuse(("maxTriggerDelay",), "without minOffsetsPerTrigger")
    delay_max_s = _seconds(options.text("maxTriggerDelay", "15m") or "15m")
    return {"rows_max": rows_max, "rows_min": rows_min, "delay_max_s": delay_max_s}


class RocketMQSource(DataSource):  # type: ignore[misc]
    """`format("rocketmq")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self._created = created_with(options)
        self._options = _checked_options(options if self._created is None else self._created)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str | StructType:
        view = typed_view(view_of(self._options), typed_bodies(self._options, _topics_of(self._options)))
        if self._created is not None:
            self._options.required(*_NAME_SERVER)
            return table_schema(view, self._created)
        return PORTION_DDL if emits_portions(self._options, view) else view.ddl()

    def reader(self, schema: StructType) -> RocketMQReader:
        options = self._to_read(schema)
        settings = parse_settings(options, is_stream=False)
        if emits_portions(options, settings.view):
            raise OptionError("emit=portions is for streams (archive_stream): leave it out")
        bodies = typed_bodies(options, settings.topics)
        settings = replace(settings, view=typed_view(settings.view, bodies).fitted(schema))
        return RocketMQReader(settings, **_shape(options), bodies=bodies)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:
        options = self._to_read(schema)
        settings = parse_settings(options, is_stream=True)
        emits, bodies = emits_portions(options, settings.view), typed_bodies(options, settings.topics)
        if not emits:
            settings = replace(settings, view=typed_view(settings.view, bodies).fitted(schema))
        return RocketMQStreamReader(
            settings,
            **_shape(options),
            **_limits(options),
            is_mirrored=options.flag("commitGroupOffsets", default=False),
            emits_portions=emits,
            bodies=bodies,
        )

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter | ExactlyOnceWriter:
        settings, blank = self._sink(schema, overwrite, is_stream=False)
        return (RocketMQWriter if settings.exactly_once is None else ExactlyOnceWriter)(settings, blank)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter | ExactlyOnceStreamWriter:
        settings, blank = self._sink(schema, overwrite, is_stream=True)
        return (RocketMQStreamWriter if settings.exactly_once is None else ExactlyOnceStreamWriter)(settings, blank)

    def _to_read(self, schema: StructType) -> Options:
        """The options; for a table those it was created with, but for the sink's, and those of the statement."""
        saved = saved_options(schema)
        if saved is None:
            missing_hint(self.options, _NAME_SERVER[0])
            return self._options
        return _checked_options({**_without(saved, SINK_OPTIONS), **self.options})

    def _sink(self, schema: StructType, overwrite: bool, *, is_stream: bool) -> tuple[SinkSettings, tuple[str, ...]]:
        """How to write, and the columns of a table that no message takes: these must be null in all rows."""
        saved = saved_options(schema)
        if saved is None:
            missing_hint(self.options, _NAME_SERVER[0])
            self._options.refuse(_READ_OPTIONS, "on writing: it belongs to the source")
            return parse_sink(self._options, schema, is_overwrite=overwrite, is_stream=is_stream), ()
        if _ROW_WAS_READ not in schema.names:
            raise OptionError(
                f"the table has no column {_ROW_WAS_READ}, by which rows to be sent are told from rows of another "
                "table: create it without the option columns, or write with a DataFrame"
            )
        topics = [topic for topic in saved.get("subscribe", "").split(",") if topic.strip()]
        topic = {"topic": topics[0].strip()} if len(topics) == 1 else {}
        options = _checked_options({**topic, **_without(saved, _READ_OPTIONS), **self.options})
        blank = tuple(name for name in schema.names if name not in SINK_COLUMNS)
        taken = StructType([field for field in schema.fields if field.name not in blank])
        return parse_sink(options, taken, is_overwrite=overwrite, is_stream=is_stream), blank


def _topics_of(options: Options) -> tuple[str, ...]:
    """The topics that are named, as far as they are."""
    return tuple(options.names("subscribe", "topic") or ())


def _checked_options(given: Mapping[str, str]) -> Options:
    if any(name.lower() == "path" for name in given):
        raise OptionError("format rocketmq takes no path: name topics by the option subscribe, or topic when writing")
    return Options(given, known=KNOWN_OPTIONS, passed_through=PREFIX)


def _without(saved: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    lower = {name.lower() for name in names}
    return {name: value for name, value in saved.items() if name.lower() not in lower}


def _shape(options: Options) -> dict[str, int]:
    return {
        "partitions_min": options.number("minPartitions", 0),
        "records_max": options.number("maxRecordsPerPartition", 0),
    }


class _RangePartition(InputPartition):  # type: ignore[misc]
    def __init__(self, part: QueueRange) -> None:
        super().__init__(part)
        self.part = part


class RocketMQReader(DataSourceReader):  # type: ignore[misc]
    """Batch: each queue from its start to its end as they are at planning time."""

    def __init__(
        self,
        settings: TopicSettings,
        *,
        partitions_min: int = 0,
        records_max: int = 0,
        bodies: TypedBodies | None = None,
    ) -> None:
        self._settings, self._partitions_min, self._records_max = settings, partitions_min, records_max
        self._bodies = bodies

    def partitions(self) -> list[InputPartition]:
        return _patiently(self._settings, self._plan)

    def _plan(self) -> list[InputPartition]:
        source = reader_for(self._settings)
        check_brokers(source, self._settings)
        queues = find_queues(source, self._settings, _names(self._settings))
        begins = starting_offsets(source, queues, self._settings)
        check_starts(source, begins, self._settings)
        ends = ending_offsets(source, queues, self._settings)
        ranges = plan_queue_ranges(begins, ends, partitions_min=self._partitions_min, records_max=self._records_max)
        ranges = without_tags(reader_for(self._settings), ranges, self._settings)
        return [_RangePartition(part) for part in ranges]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._settings, self._bodies)

    def pruned(self) -> str:
        """What of the topics is read, in one line."""
        ranges = [partition.part for partition in self.partitions()]
        return _patiently(self._settings, lambda: pruned_topics(reader_for(self._settings), self._settings, ranges))


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Stream: what queues gained since the last micro-batch.

    Spark saves where a micro-batch ends, not where it begins: for the first one it asks `initialOffset` again and
    again, also after a restart, and a queue that appeared has no start at all. Both would be elsewhere when the batch
    is planned a second time. So the end of a batch also says where queues began that its start does not tell.
    """

    def __init__(
        self,
        settings: TopicSettings,
        *,
        partitions_min: int = 0,
        records_max: int = 0,
        rows_max: int = 0,
        rows_min: int = 0,
        delay_max_s: float = 900.0,
        is_mirrored: bool = False,
        emits_portions: bool = False,
        bodies: TypedBodies | None = None,
    ) -> None:
        self._bodies = bodies
        self._settings, self._partitions_min, self._records_max = settings, partitions_min, records_max
        self._rows_max, self._rows_min, self._delay_max_s = rows_max, rows_min, delay_max_s
        self._is_mirrored, self._emits_portions = is_mirrored, emits_portions
        self._initial: dict[str, Any] | None = None
        self._final_ends: Offsets | None = None
        self._waiting_since_s: float | None = None
        self._is_start_mirrored = False
        self._checked: dict[str, Any] | None = None  # the end of a batch whose queues were looked at just now
        self._has_looked = False  # whether marks of idle queues were compared since the start

    def initialOffset(self) -> dict[str, Any]:
        begins = self._patiently(self._starts)
        self._initial = offsets_json(begins)
        return self._initial

    def _starts(self) -> Offsets:
        source = reader_for(self._settings)
        check_brokers(source, self._settings)
        return starting_offsets(source, self._queues(), self._settings)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max) if self._rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._final_ends = self._patiently(self._ends)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        try:
            return self._patiently(lambda: self._latest(start, limit))
        except BrokerAwayError as exc:
            text = "if a broker is gone for good, failOnDataLoss=false goes on without its queues"
            raise BrokerAwayError(f"{exc}; {text}") from exc

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begins = offsets_of(start)
        if self._is_mirrored and not self._is_start_mirrored:
            self._mirror(begins)
            self._is_start_mirrored = True
        ends = self._ends() if self._final_ends is None else self._not_before(begins, self._final_ends)
        self._check_vanished(begins, ends)
        # At the start idle queues, too: one that was made again may be just as long, and a run that ends would miss it.
        least = 1 if self._has_looked else 0
        looked_at = [queue for queue, end in ends.items() if queue in begins and end - begins[queue] >= least]
        remade = self._made_anew(start, looked_at)
        self._has_looked = True
        kept = {queue: offset for queue, offset in begins.items() if queue not in remade}
        reached = dict(ends)
        known = self._with_new_queues(kept, reached)
        if self._final_ends is None and self._is_held_back(known, reached):
            return start
        if isinstance(limit, ReadMaxRows):
            reached = share_limit(known, reached, limit.max_rows)
        is_first = start == self._initial
        began = {queue: begin for queue, begin in {**begins, **known}.items() if is_first or begins.get(queue) != begin}
        found = {**begins, **reached}
        if not began and found == begins:
            return start  # as it is written: another text is another offset to Spark
        marks = marked(reader_for(self._settings), reached, before=kept, marks=_marks_of(start))
        away = {queue: mark for queue, mark in _marks_of(start).items() if queue not in reached}
        self._checked = offsets_json(found, began, {**away, **marks})
        return self._checked

    def reportLatestOffset(self) -> dict[str, Any]:
        return offsets_json(self._patiently(self._ends))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._patiently(lambda: self._plan(start, end))

    def _plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = offsets_of(end)
        begins = self._with_new_queues({**offsets_of(start), **_began_of(end)}, ends)
        if end != self._checked:  # a batch that Spark plans again, after a restart
            self._made_anew(end, [queue for queue in ends if ends[queue] > begins[queue]])
        ranges = plan_queue_ranges(begins, ends, partitions_min=self._partitions_min, records_max=self._records_max)
        ranges = without_tags(reader_for(self._settings), ranges, self._settings)
        return [_RangePartition(part) for part in ranges]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if self._emits_portions and isinstance(partition, _RangePartition):
            return pack_portion(_read_part, partition.part, self._settings)
        return _read(partition, self._settings, self._bodies)

    def commit(self, end: dict[str, Any]) -> None:
        if self._is_mirrored:
            self._patiently(lambda: self._mirror(offsets_of(end)))

    def _patiently(self, do: Callable[[], _Result]) -> _Result:
        return _patiently(self._settings, do)

    def _queues(self) -> list[MessageQueue]:
        return find_queues(reader_for(self._settings), self._settings, _names(self._settings))

    def _ends(self) -> Offsets:
        """Where queues end now; without those whose topic or broker is not there."""
        source = reader_for(self._settings)
        ends: Offsets = {}
        for queue in find_queues(source, self._settings, _names(self._settings), skip_missing=True):
            try:
                ends[queue] = source.max_offset(queue)
            except (NoRouteError, BrokerNotFoundError):
                continue  # whether that is an error is decided where the offsets before are known
        return ends

    def _not_before(self, begins: Offsets, final_ends: Offsets) -> Offsets:
        """Ends that Spark looked up before the start: a queue that grew in between ends at its start.

        One whose broker was away then, or that did not exist, ends where it ends when it is first seen.
        """
        early = [queue for queue in begins if final_ends.get(queue, -1) < begins[queue]]
        ends = self._ends() if early else {}
        self._final_ends = {**{queue: ends[queue] for queue in early if queue in ends}, **final_ends}
        grown = [queue for queue in early if queue in final_ends and ends.get(queue, -1) >= begins[queue]]
        return {**self._final_ends, **{queue: begins[queue] for queue in grown}}

    def _with_new_queues(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Beginnings of all queues: those without an offset yet begin at their earliest message.

        So does a queue that ends before its offset: it was created again, and nothing of it was read.
        """
        source = reader_for(self._settings)
        return {
            queue: begins[queue] if queue in begins and begins[queue] <= end else source.min_offset(queue)
            for queue, end in ends.items()
        }

    def _check_vanished(self, begins: Offsets, ends: Offsets) -> None:
        gone = sorted(queue for queue in begins if queue not in ends)
        ids = self._settings.queue_ids
        left_out = [queue for queue in gone if ids is not None and queue.queue_id not in ids]
        if left_out:
            raise OptionError(
                f"option queueId leaves {queue_name(left_out[0])} out, which the checkpoint has: give the option as "
                "before, or start a new query with a new checkpoint"
            )
        if gone and self._settings.fail_on_data_loss:
            source = reader_for(self._settings)
            there = source.broker_names()
            for queue in gone:
                if queue.broker_name not in there:
                    raise BrokerNotFoundError(queue.broker_name)  # which is waited for
            source.forget_routes()
            if self._ends().keys() >= set(gone):  # its broker came back between the two questions
                raise BrokerNotFoundError(gone[0].broker_name)
            raise DataLossError(
                f"{queue_name(gone[0])} ({len(gone)} in all) is no longer there, though its broker is: the topic was "
                "deleted or has fewer queues now; set failOnDataLoss=false to go on without"
            )
        short = [queue for queue in begins if queue in ends and ends[queue] < begins[queue]]
        if short and self._settings.fail_on_data_loss:
            raise DataLossError(
                f"{queue_name(short[0])} ends at {ends[short[0]]}, before the offset {begins[short[0]]} that was read "
                "already: the topic was created again; set failOnDataLoss=false to read it from its beginning"
            )

    def _made_anew(self, reached: dict[str, Any], queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues that are not the ones which were read up to these offsets (topic_marks.py)."""
        offsets = offsets_of(reached)
        remade = made_anew(reader_for(self._settings), offsets, _marks_of(reached), queues)
        if remade:
            text = (
                f"{queue_name(remade[0])} ({len(remade)} in all) holds another message before the offset "
                f"{offsets[remade[0]]} than the one that was read there: the topic was deleted and created again, or "
                "another broker took its broker's name, and what it holds before that offset was not read"
            )
            if self._settings.fail_on_data_loss:
                raise DataLossError(
                    f"{text}; start a new query with a new checkpoint, or set failOnDataLoss=false to read it from its "
                    "beginning"
                )
            _log.warning("%s; it is read from its beginning", text)
        return remade

    def _is_held_back(self, begins: Offsets, ends: Offsets) -> bool:
        """Whether there is too little for a micro-batch and not yet too long a wait."""
        if not self._rows_min:
            return False
        backlog = sum(ends[queue] - begins[queue] for queue in ends)
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        if backlog >= self._rows_min or now_s - self._waiting_since_s >= self._delay_max_s:
            self._waiting_since_s = None
            return False
        return True

    def _mirror(self, offsets: Offsets) -> None:
        publish_offsets(reader_for(self._settings), offsets)


def _patiently(settings: TopicSettings, do: Callable[[], _Result]) -> _Result:
    """Do it, and again while a broker or NameServer is away."""
    return Patience(reader_for(settings), settings.away_timeout_s).call(do)


def _read(
    partition: InputPartition | None, settings: TopicSettings, bodies: TypedBodies | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _RangePartition):  # Spark turns an empty plan into one partition without a value
        return iter(())
    batches = read_typed(settings, bodies, partial(_read_part, partition.part))
    return freezing(told_by_task(batches, settings.view))


def _read_part(part: QueueRange, settings: TopicSettings) -> Iterator[pa.RecordBatch]:
    return read_range(part, settings, reader_for(settings))


def _names(settings: TopicSettings) -> list[str]:
    return [] if settings.pattern is None else reader_for(settings).topics()


def offsets_json(offsets: Offsets, began: Offsets | None = None, marks: Marks | None = None) -> dict[str, Any]:
    """Offsets for a checkpoint, where queues began that the offsets before do not tell, and marks of what was read."""
    saved: dict[str, Any] = {"offsets": _tree(offsets), "version": _VERSION}
    if began:
        saved["began"] = _tree(began)
    if marks:
        saved["marks"] = _tree(marks)
    return saved


def _tree(values: Mapping[MessageQueue, _Value]) -> _Tree[_Value]:
    """Spark compares offsets as text: sorted keys and plain integers, always."""
    tree: _Tree[_Value] = {}
    for queue in sorted(values):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = values[queue]
    return tree


def offsets_of(offset: dict[str, Any]) -> Offsets:
    """Offsets from a checkpoint."""
    if offset.get("version") != _VERSION:
        raise OptionError(
            f"the checkpoint's offset is of version {offset.get('version')}, not {_VERSION}: begin with a new one"
        )
    return _by_queue(offset["offsets"])


def _began_of(offset: dict[str, Any]) -> Offsets:
    return _by_queue(offset.get("began", {}))


def _marks_of(offset: dict[str, Any]) -> Marks:
    return _by_queue(offset.get("marks", {}))


def _by_queue(tree: _Tree[_Value]) -> dict[MessageQueue, _Value]:
    return {
        MessageQueue(topic, broker, int(queue_id)): value
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, value in queues.items()
    }


def _seconds(text: str) -> float:
    """A delay like 15m, 90s or 500ms."""
    for suffix, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        number = text.strip().removesuffix(suffix)
        if number != text.strip() and number.strip().replace(".", "", 1).isdecimal():
            return float(number) * factor
    raise OptionError(f"option maxTriggerDelay is {text!r}: it takes a number with ms, s, m or h")
