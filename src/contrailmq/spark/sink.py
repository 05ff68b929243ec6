"""The sink of `rocketmq`: rows to topics, every one acknowledged, each with a key that repeats carry again.

Delivery is at least once. A task that is tried again sends its rows again; so each message carries the property
`CONTRAIL_DEDUP_KEY`, made of the write (query and batch of a stream, else a token of the job), the partition and the
row's number, or taken from a column of the user's (`dedupKeyColumn`). It is the same on every attempt as long as the
rows come in the same order, which holds for replayed source ranges and not after a shuffle without an order.
`deduplicated(frame)` drops repeats on the reading side.

Rows of one queue are sent in batches of at most 1 MiB; a batch is tried again, with growing pauses, until it is
acknowledged or tries run out; `write` returns after the last acknowledgement. Delayed rows travel one by one (RocketMQ
has no delayed batches).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from contrailmq.client.batch import BATCH_BYTES_ADVISED
from contrailmq.client.raw import QueueReader
from contrailmq.client.sync import Producer
from contrailmq.message import ContrailError, Message, MessageQueue, check_message, java_hash
from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SINK_OPTIONS: Final = ("producerGroup", "dedupKeyColumn", "sendTries", "sendTimeoutMs", "batchCount")
DEDUP_PROPERTY: Final = "CONTRAIL_DEDUP_KEY"
_BATCH_COUNT: Final = 1000
_PAUSE_S: Final = 0.2  # before the second try; doubled each time

# column -> Spark types it may have
_COLUMNS: Final = {
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


class SendFailedError(ContrailError):
    """A batch of rows was not acknowledged within the allowed tries."""

    retriable = True


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How to write."""

    namesrv: str
    topic: str | None
    group: str
    dedup_column: str | None
    tries: int
    timeout_s: float
    batch_count: int
    token: str  # names this write in the de-duplication keys of a batch job


class WriteDone(WriterCommitMessage):  # type: ignore[misc]
    """What one task sent."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def parse_sink(options: Options, schema: StructType, *, is_overwrite: bool) -> SinkSettings:
    """Settings of a write; refuses what could only fail later, row by row."""
    if is_overwrite:
        raise OptionError("a topic cannot be overwritten: use mode('append')")
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    topic, dedup = options.text("topic"), options.text("dedupKeyColumn")
    if "body" not in types:
        raise OptionError(f"the rows have no column body (string or binary); they have {', '.join(types)}")
    if topic is None and "topic" not in types:
        raise OptionError("the rows have no column topic: add one, or give the option topic")
    if dedup is not None and dedup not in types:
        raise OptionError(f"option dedupKeyColumn names {dedup!r}, which the rows do not have")
    for name, found in types.items():
        if name in _COLUMNS and found not in _COLUMNS[name]:
            raise OptionError(f"column {name} is {found}: it must be {' or '.join(_COLUMNS[name])}")
        if name not in _COLUMNS and name != dedup:
            raise OptionError(f"column {name!r} has no place in a message: drop it; known are {', '.join(_COLUMNS)}")
    return SinkSettings(
        namesrv=options.required("nameServer", "namesrvAddr"),
        topic=topic,
        group=options.text("producerGroup", "contrailmq_spark") or "contrailmq_spark",
        dedup_column=dedup,
        tries=options.number("sendTries", 5, least=1),
        timeout_s=options.number("sendTimeoutMs", 10_000, least=1) / 1000,
        batch_count=options.number("batchCount", _BATCH_COUNT, least=1),
        token=secrets.token_hex(8),
    )


class RocketMQWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Batch writes."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteDone:
        return WriteDone(write_rows(iterator, self._settings, _key_prefix(self._settings)))

    def commit(self, messages: list[WriteDone | None]) -> None:
        return None  # every task returned after its last acknowledgement

    def abort(self, messages: list[WriteDone | None]) -> None:
        return None  # what was sent stays sent; the next attempt's messages carry the same keys


class RocketMQStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Micro-batch writes."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteDone:
        return WriteDone(write_rows(iterator, self._settings, _key_prefix(self._settings)))

    def commit(self, messages: list[WriteDone | None], batchId: int) -> None:
        return None

    def abort(self, messages: list[WriteDone | None], batchId: int) -> None:
        return None


def _key_prefix(settings: SinkSettings) -> str:
    """The part of de-duplication keys that all attempts of this task share and no other task has."""
    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    job = f"{query}-{batch}" if query else settings.token
    return f"{job}-{context.partitionId()}"


class _Pending(NamedTuple):
    messages: list[Message]
    size_bytes: list[int]


def write_rows(batches: Iterator[pa.RecordBatch], settings: SinkSettings, key_prefix: str) -> int:
    """Send every row and wait for every acknowledgement; gives the number of rows."""
    count = 0
    with QueueReader(namesrv=settings.namesrv, group=settings.group, timeout_s=settings.timeout_s) as client:
        sender = Sender(client, settings)
        try:
            for batch in batches:
                for row in _rows(batch):
                    sender.add(make_message(row, settings, f"{key_prefix}-{count}"), row)
                    count += 1
            sender.flush()
        finally:
            sender.close()
    return count


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def make_message(row: dict[str, Any], settings: SinkSettings, dedup_key: str) -> Message:
    """A row as a message, checked as a producer checks it."""
    body = row["body"]
    topic = settings.topic or row.get("topic")
    if body is None or topic is None:
        raise OptionError(f"a row has no {'body' if body is None else 'topic'}: fill it before writing")
    if settings.dedup_column is not None:
        dedup_key = str(row[settings.dedup_column])
    properties = dict(row.get("properties") or {})
    properties[DEDUP_PROPERTY] = dedup_key
    deliver_at = row.get("deliverAt")
    message = Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=row.get("keys") or (),
        properties=properties,
        flag=row.get("flag") or 0,
        delay_level=row.get("delayLevel") or 0,
        deliver_at=deliver_at if isinstance(deliver_at, datetime | int) else None,
        sharding_key=row.get("shardingKey"),
    )
    check_message(message)
    return message


class Sender:
    """Gathers messages per queue and sends them in batches. Owned by one task."""

    def __init__(
        self, client: QueueReader, settings: SinkSettings, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._settings, self._sleep = client, settings, sleep
        self._pending: dict[MessageQueue, _Pending] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turn = secrets.randbelow(1 << 16)  # tasks begin at different queues
        self._producer: Producer | None = None

    def add(self, message: Message, row: dict[str, Any]) -> None:
        """Take a message; send its queue's batch when it is full."""
        queue = self._choose(message.topic, row)
        if row.get("delayLevel") or row.get("deliverAt") is not None:
            self._send_alone(message, queue)
            return
        pending = self._pending.setdefault(queue, _Pending([], []))
        size = len(message.body) + sum(len(name) + len(value) + 2 for name, value in message.properties.items()) + 100
        if pending.messages and sum(pending.size_bytes) + size > BATCH_BYTES_ADVISED:
            self._send(queue)
            pending = self._pending.setdefault(queue, _Pending([], []))
        pending.messages.append(message)
        pending.size_bytes.append(size)
        if len(pending.messages) >= self._settings.batch_count:
            self._send(queue)

    def flush(self) -> None:
        """Send what is left and wait for it."""
        for queue in list(self._pending):
            self._send(queue)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.shutdown()

    def _choose(self, topic: str, row: dict[str, Any]) -> MessageQueue:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._client.publish_queues(topic)
        wanted, sharding_key = row.get("queueId"), row.get("shardingKey")
        if wanted is not None:
            for queue in queues:
                if queue.queue_id == wanted:
                    return queue
            raise OptionError(f"topic {topic} has no queue {wanted}: it has {sorted({q.queue_id for q in queues})}")
        if sharding_key is not None:
            return queues[java_hash(sharding_key) % len(queues)]
        return queues[self._turn % len(queues)]

    def _send(self, queue: MessageQueue) -> None:
        messages = self._pending.pop(queue).messages
        self._try(lambda: self._client.send_batch(messages, queue, producer_group=self._settings.group), queue)
        self._turn += 1  # rows that name no queue go on to the next one

    def _send_alone(self, message: Message, queue: MessageQueue) -> None:
        if self._producer is None:
            self._producer = Producer(self._settings.group, namesrv=self._settings.namesrv)
            self._producer.start()
        producer = self._producer
        self._try(lambda: producer.send(message, queue=queue), queue)

    def _try(self, send: Callable[[], object], queue: MessageQueue) -> None:
        pause_s = _PAUSE_S
        for left in reversed(range(self._settings.tries)):
            try:
                send()
                return
            except ContrailError as exc:
                if not left:
                    raise SendFailedError(
                        f"{queue.topic}/{queue.broker_name}/{queue.queue_id} did not acknowledge after "
                        f"{self._settings.tries} tries: {exc}"
                    ) from exc
                self._sleep(pause_s)
                pause_s *= 2


def deduplicated(frame: DataFrame, *, within: str | None = None) -> DataFrame:
    """Rows without the repeats that an at-least-once sink may leave. Rows that carry no key are all kept.

    The frame needs its `properties` as a map. For a stream give `within`, such as "1 hour": repeats that come later
    than that are not found, and state is dropped after it.
    """
    from pyspark.sql import functions

    place = functions.concat_ws("/", *[functions.col(name).cast("string") for name in _PLACE if name in frame.columns])
    key = functions.coalesce(functions.col("properties")[DEDUP_PROPERTY], place)
    marked = frame.withColumn("_dedup", key)
    if within is not None:
        marked = marked.withWatermark("storeTimestamp", within).dropDuplicatesWithinWatermark(["_dedup"])
    else:
        marked = marked.dropDuplicates(["_dedup"])
    return marked.drop("_dedup")


_PLACE: Final = ("topic", "brokerName", "storeHost", "queueId", "queueOffset", "physicalOffset")
