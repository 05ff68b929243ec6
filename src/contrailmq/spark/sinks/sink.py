"""The sink of `rocketmq`: rows to topics, each acknowledged, each with a key that repeats carry again.

Delivery is at least once, unless `delivery=exactly-once` is given (exactly_once.py). Each message carries
`CONTRAIL_DEDUP_KEY`: the value of `dedupKeyColumn`, else the one in the row's `properties`, else one made of the write,
the partition, the row's number and a digest of the row (packing.py). `deduplicated(frame)` drops repeats when reading.
A made key repeats only if rows come in the same partitions and order: not after a shuffle without an order, nor when
options that shape partitions change between attempts. Then a repeat may stay, but no other row is dropped (the digest
has 32 bits).

Rows of one queue are sent in batches of at most 1 MiB, delayed rows one by one. A batch is tried again, with growing
pauses, until it is acknowledged or tries or time (patience.py) run out. `write` returns after the last one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from contrailmq.message import MessageError
from contrailmq.message.names import check_group, check_topic
from contrailmq.spark.access import parse_access
from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import Options
from contrailmq.spark.runtime.patience import AWAY_OPTION, AWAY_TIMEOUT_MS
from contrailmq.spark.runtime.task_process import freeze
from contrailmq.spark.sinks.decisions import Decisions, write_batch
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sinks.sending import BATCH_COUNT, ExactlyOnce, SinkSettings, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXACTLY_ONCE_OPTIONS: Final = ("writeId", "transactionTimeoutMs")
SINK_OPTIONS: Final = (
    "producerGroup",
    "dedupKeyColumn",
    "sendTries",
    "sendTimeoutMs",
    "batchCount",
    "delivery",
    *_EXACTLY_ONCE_OPTIONS,
)
_TRANSACTION_TIMEOUT_MS: Final = 300_000


# column -> Spark types it may have
SINK_COLUMNS: Final = {
    "body": ("string", "binary"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "queueId": ("int", "bigint", "smallint"),
    "shardingKey": ("string",),
    "delayLevel": ("int", "bigint"),
    "deliverAt": ("timestamp", "bigint"),
    "flag": ("int", "bigint"),
}
_KEY_TYPES: Final = ("string", "int", "bigint")  # others have no one text: binary would become b'...'


class WriteDone(WriterCommitMessage):  # type: ignore[misc]
    """What one task sent."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def parse_sink(options: Options, schema: StructType, *, is_overwrite: bool, is_stream: bool = False) -> SinkSettings:
    """Settings of a write; refuses what could only fail later, row by row."""
    if is_overwrite:
        raise OptionError("a topic cannot be overwritten: use mode('append')")
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    topic, dedup = options.text("topic"), options.text("dedupKeyColumn")
    if "body" not in types:
        raise OptionError(f"the rows have no column body (string or binary); they have {', '.join(types)}")
    if topic is not None:
        _check_name("topic", topic, check_topic)
    elif "topic" not in types:
        raise OptionError("the rows have no column topic: add one, or give the option topic")
    if dedup is not None and dedup not in types:
        raise OptionError(f"option dedupKeyColumn names {dedup!r}, which the rows do not have")
    if dedup is not None and types[dedup] not in _KEY_TYPES:
        raise OptionError(f"option dedupKeyColumn names {dedup!r}, which is {types[dedup]}: cast it to string")
    for name, found in types.items():
        if name in SINK_COLUMNS and found not in SINK_COLUMNS[name]:
            raise OptionError(f"column {name} is {found}: it must be {' or '.join(SINK_COLUMNS[name])}")
        if name not in SINK_COLUMNS and name != dedup:
            raise OptionError(
                f"column {name!r} has no place in a message: drop it; known are {', '.join(SINK_COLUMNS)}"
            )
    exactly_once = _exactly_once(options, types, is_stream=is_stream)
    default_group = "contrailmq_spark" + ("" if exactly_once is None else f"_{exactly_once.log_id}")
    group = options.text("producerGroup", default_group) or default_group
    _check_name("producerGroup", group, check_group)
    return SinkSettings(
        namesrv=options.required("nameServer", "namesrvAddr", "namesrv"),
        access=parse_access(options.passed),
        topic=topic,
        group=group,
        dedup_column=dedup,
        tries=options.number("sendTries", 5, least=1),
        timeout_s=options.number("sendTimeoutMs", 10_000, least=1) / 1000,
        batch_count=options.number("batchCount", BATCH_COUNT, least=1),
        away_timeout_s=options.number(AWAY_OPTION, AWAY_TIMEOUT_MS) / 1000,
        token=secrets.token_hex(8),
        exactly_once=exactly_once,
    )


def _exactly_once(options: Options, types: dict[str, str], *, is_stream: bool) -> ExactlyOnce | None:
    """The settings of exactly-once delivery; None for the default."""
    if options.choice("delivery", "at-least-once", "exactly-once") == "at-least-once":
        options.refuse(_EXACTLY_ONCE_OPTIONS, "without delivery=exactly-once")
        return None
    if is_stream:
        options.refuse(("writeId",), "on a stream: its batches have numbers")
    late = [name for name in ("delayLevel", "deliverAt") if name in types]
    if late:
        raise OptionError(f"column {late[0]} cannot go with delivery=exactly-once, whose messages wait for the commit")
    checkpoint = options.text("checkpointLocation")
    if not checkpoint:
        raise OptionError(
            "delivery=exactly-once needs the option checkpointLocation: the directory in which it notes what is "
            "committed" + ("" if is_stream else "; keep it for the next write")
        )
    decisions = Decisions.below(checkpoint)
    return ExactlyOnce(
        folder=str(decisions.folder),
        log_id=decisions.id(),
        write_name=write_batch(options.text("writeId")),
        immunity_s=options.number("transactionTimeoutMs", _TRANSACTION_TIMEOUT_MS, least=1000) // 1000,
    )


def _check_name(option: str, name: str, check: Callable[[str], None]) -> None:
    try:
        check(name)
    except MessageError as exc:
        raise OptionError(f"option {option}: {exc}") from exc


class RocketMQWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Batch writes."""

    def __init__(self, settings: SinkSettings, blank: tuple[str, ...] = ()) -> None:
        self._settings, self._blank = settings, blank

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteDone:
        return _write(dropped(iterator, self._blank), self._settings)

    def commit(self, messages: list[WriteDone | None]) -> None:
        return None  # every task returned after its last acknowledgement

    def abort(self, messages: list[WriteDone | None]) -> None:
        return None  # what was sent stays sent; the next attempt's messages carry the same keys


class RocketMQStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Micro-batch writes."""

    def __init__(self, settings: SinkSettings, blank: tuple[str, ...] = ()) -> None:
        self._settings, self._blank = settings, blank

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteDone:
        return _write(dropped(iterator, self._blank), self._settings)

    def commit(self, messages: list[WriteDone | None], batchId: int) -> None:
        return None

    def abort(self, messages: list[WriteDone | None], batchId: int) -> None:
        return None


def _write(rows: Iterator[pa.RecordBatch], settings: SinkSettings) -> WriteDone:
    done = WriteDone(write_rows(rows, settings, key_prefix(settings)))
    freeze()
    return done


def dropped(rows: Iterator[pa.RecordBatch], blank: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The rows without the columns of a table that no message takes. A value there is refused, not lost."""
    for batch in rows:
        for name in blank:
            if batch.column(name).null_count < batch.num_rows:
                raise OptionError(
                    f"column {name!r} has no place in a message that is sent: leave it out, INSERT INTO t (body, tags) "
                    f"...; known are {', '.join(SINK_COLUMNS)}"
                )
        yield batch.drop_columns(list(blank)) if blank else batch


def key_prefix(settings: SinkSettings) -> str:
    """The part of de-duplication keys that all attempts of this task share and no other task has."""
    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    job = f"{query}-{batch}" if query else settings.token
    return f"{job}-{context.partitionId()}"


def deduplicated(frame: DataFrame, *, within: str | None = None) -> DataFrame:
    """Rows without the repeats that an at-least-once sink may leave. Rows that carry no key are all kept.

    The frame needs its `properties` as a map. For a stream give `within`, such as "1 hour": a key is remembered for so
    long after its row was read, and a repeat that is read later stays. A stream also needs `storeHost`, `queueOffset`
    and `physicalOffset`, by which it tells rows without a key apart: Spark has no other way to pass a row by a stream's
    state.

    Times of storing would not do for `within`: queues are not read in the order of these, and Spark drops what lies
    before its watermark, repeat or not.
    """
    from pyspark.sql import functions

    _check_frame(frame)
    key = functions.col("properties")[DEDUP_PROPERTY]
    if not frame.isStreaming:
        return _first_of_each(frame.withColumn("_dedup", key)).drop("_dedup")
    place = [functions.coalesce(functions.col(name).cast("string"), functions.lit("")) for name in _PLACE]
    marked = frame.withColumn("_dedup", functions.coalesce(key, functions.concat_ws("/", *place)))
    if within is None:
        return marked.dropDuplicates(["_dedup"]).drop("_dedup")
    read = marked.withColumn("_read", functions.current_timestamp()).withWatermark("_read", within)
    return read.dropDuplicatesWithinWatermark(["_dedup"]).drop("_dedup", "_read")


# What names a message: a record by its broker and place in the log, and a message of an inner batch by its offset.
_PLACE: Final = ("storeHost", "queueOffset", "physicalOffset")


def _check_frame(frame: DataFrame) -> None:
    """Refuse a frame in which keys, or rows without one, cannot be told apart."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    found = types.get("properties")
    if found != "map<string,string>":
        state = "missing" if found is None else found
        raise OptionError(
            f"column properties is {state}: repeats are known by a property, so read the frame with properties=map, "
            "without columnStyle=kafka, and with properties among its columns"
        )
    missing = [name for name in _PLACE if name not in types]
    if frame.isStreaming and missing:
        raise OptionError(
            f"the stream has no {', '.join(missing)}, without which rows that carry no key would be lost: read "
            f"properties, {', '.join(_PLACE)} too, and drop them afterwards"
        )


def _first_of_each(marked: DataFrame) -> DataFrame:
    """One row of each `_dedup`, and every row that has none, in one pass.

    Rows without a key are dealt to tasks by what they hold. A number of the row's own would do so more evenly, but it
    changes when Spark repeats a task, and rows would be lost between two attempts.
    """
    from pyspark.sql import Window, functions

    key = functions.col("_dedup")
    plain = [field.name for field in marked.schema.fields if "map<" not in field.dataType.simpleString()]
    deal = functions.when(key.isNull(), functions.xxhash64(*plain))
    number = functions.row_number().over(Window.partitionBy(key, deal).orderBy(functions.lit(0)))
    return marked.withColumn("_number", number).where(key.isNull() | (functions.col("_number") == 1)).drop("_number")
