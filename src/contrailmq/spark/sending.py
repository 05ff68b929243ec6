"""Sending rows to topics: batches per queue, tried again until acknowledged, with keys by which repeats are known.

Used by the Spark sink and by the jobs that send (`replay`, `redrive`); needs no pyspark. What the keys are for, and
what is guaranteed, says sink.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from contrailmq.client.batch import BATCH_BYTES_ADVISED
from contrailmq.client.raw import PostedBatch, QueueReader
from contrailmq.message import (
    ContrailError,
    Message,
    MessageQueue,
    Property,
    check_message,
    create_unique_id,
    create_unique_ids,
    encode_properties,
    java_hash,
)
from contrailmq.message.batch import BATCH_PART_BYTES_MIN, batch_part
from contrailmq.message.model import BODY_BYTES_MAX
from contrailmq.message.properties import PROPERTIES_BYTES_MAX
from contrailmq.spark.access import Access
from contrailmq.spark.columns import OptionError

if TYPE_CHECKING:
    from contrailmq.client.sync import Producer

DEDUP_PROPERTY: Final = "CONTRAIL_DEDUP_KEY"
BATCH_COUNT: Final = 1000
_PENDING_BYTES_MAX: Final = 64 * 1024 * 1024  # of all queues together: rows may name thousands of topics
_SLOW_COLUMNS: Final = frozenset({"properties", "delayLevel", "deliverAt"})
_PAUSE_S: Final = 0.2  # before the second try; doubled each time


class SendFailedError(ContrailError):
    """A batch of rows was not acknowledged within the allowed tries."""

    retriable = True


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How to write."""

    namesrv: str
    access: Access = field(default_factory=Access)
    topic: str | None = None  # of every message; None: each row names its own
    group: str = "contrailmq_spark"
    dedup_column: str | None = None
    tries: int = 5
    timeout_s: float = 10.0
    batch_count: int = BATCH_COUNT
    token: str = ""  # names this write in the de-duplication keys of a batch job


def write_rows(batches: Iterator[pa.RecordBatch], settings: SinkSettings, key_prefix: str) -> int:
    """Send every row and wait for every acknowledgement; gives the number of rows."""
    count = 0
    with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
        sender = Sender(client, settings)
        try:
            for batch in batches:
                _add_rows(sender, batch, settings, f"{key_prefix}-", count)
                count += batch.num_rows
            sender.flush()
        finally:
            sender.close()
    return count


def _add_rows(sender: Sender, batch: pa.RecordBatch, settings: SinkSettings, key_prefix: str, first: int) -> None:
    """Rows that are plain go from columns to a batch's bytes (4 us each); others through a `Message` (20 us).

    Whatever is wrong with a row, the way through a message finds it and says so.
    """
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    none: list[None] = [None] * batch.num_rows
    if _SLOW_COLUMNS.isdisjoint(columns):
        topics = none if settings.topic else columns["topic"]
        names = ("body", "tags", "keys", "flag", "queueId", "shardingKey", settings.dedup_column or "")
        ids = create_unique_ids(batch.num_rows)
        rows = zip(*(columns.get(name, none) for name in names), topics, ids, strict=True)
        for number, (body, tags, keys, flag, queue_id, sharding_key, dedup, topic, unique_id) in enumerate(rows):
            topic = topic or settings.topic
            key = f"{key_prefix}{first + number}" if settings.dedup_column is None else dedup
            properties = _plain_properties(key, tags, keys, sharding_key, unique_id)
            is_plain = properties is not None and body and len(body) <= BODY_BYTES_MAX
            if topic is None or not is_plain or not sender.is_known(topic):
                row = {name: values[number] for name, values in columns.items()}
                sender.add(make_message(row, settings, f"{key_prefix}{first + number}"), row)
                continue
            assert properties is not None
            octets = body.encode() if isinstance(body, str) else body
            sender.add_part(sender.choose(topic, queue_id, sharding_key), flag or 0, octets, properties)
        return
    for number in range(batch.num_rows):
        row = {name: values[number] for name, values in columns.items()}
        sender.add(make_message(row, settings, f"{key_prefix}{first + number}"), row)


def _plain_properties(
    dedup_key: object, tags: str | None, keys: object, sharding_key: str | None, unique_id: str
) -> bytes | None:
    """What `make_message` and packing make of a row without properties of its own; None for what they must look at."""
    if not isinstance(dedup_key, str) or not dedup_key.strip():
        return None
    text, count = f"{DEDUP_PROPERTY}\x01{dedup_key}\x02", 3
    if tags:
        text, count = f"{text}TAGS\x01{tags}\x02", count + 1
    if keys:
        if not isinstance(keys, str):
            return None
        text, count = f"{text}KEYS\x01{keys}\x02", count + 1
    if sharding_key is not None:
        text, count = f"{text}WAIT\x01true\x02__SHARDINGKEY\x01{sharding_key}\x02UNIQ_KEY\x01{unique_id}\x02", count + 1
    else:
        text = f"{text}WAIT\x01true\x02UNIQ_KEY\x01{unique_id}\x02"
    if text.count("\x01") != count or text.count("\x02") != count:
        return None
    data = text.encode()
    return data if len(data) <= PROPERTIES_BYTES_MAX else None


def make_message(row: dict[str, Any], settings: SinkSettings, dedup_key: str) -> Message:
    """A row as a message, checked as a producer checks it."""
    body = row["body"]
    topic = settings.topic or row.get("topic")
    if body is None or topic is None:
        raise OptionError(f"a row has no {'body' if body is None else 'topic'}: fill it before writing")
    if settings.dedup_column is not None:
        if row[settings.dedup_column] is None:
            raise OptionError(f"a row has no {settings.dedup_column}, by which repeats are to be known: fill it first")
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


@dataclass(slots=True)
class _Pending:
    """Parts of a batch that is not full yet."""

    pieces: list[bytes] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0


class Sender:
    """Gathers messages per queue and sends them in batches. Owned by one task.

    A queue has one batch on its way at most, so its messages keep their order also when a batch must be sent again;
    while it is on its way, the next one is filled, and other queues have theirs.
    """

    def __init__(
        self, client: QueueReader, settings: SinkSettings, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._settings, self._sleep = client, settings, sleep
        self._pending: dict[MessageQueue, _Pending] = {}
        self._pending_bytes = 0
        self._posted: dict[MessageQueue, tuple[bytes, PostedBatch | ContrailError]] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        self._by_id: dict[tuple[str, int], MessageQueue] = {}
        self._turn = secrets.randbelow(1 << 16)  # tasks begin at different queues
        self._producer: Producer | None = None

    def is_known(self, topic: str) -> bool:
        """Whether a message to this topic was sent already, hence its name checked."""
        return topic in self._queues

    def add(self, message: Message, row: dict[str, Any]) -> None:
        """Take a message; send its queue's batch when it is full."""
        queue = self.choose(message.topic, row.get("queueId"), row.get("shardingKey"))
        if row.get("delayLevel") or row.get("deliverAt") is not None:
            self._send_alone(message, queue)
            return
        own = {**message.properties}
        own.setdefault(Property.UNIQUE_KEY, create_unique_id())
        self.add_part(queue, message.flag, message.body, encode_properties(own))

    def add_part(self, queue: MessageQueue, flag: int, body: bytes, properties: bytes) -> None:
        """Take a message by its parts, of which the caller knows that they are right."""
        size = BATCH_PART_BYTES_MIN + len(body) + len(properties)
        pending = self._pending.get(queue)
        if pending is not None and pending.size_bytes + size > BATCH_BYTES_ADVISED:
            self._send(queue)
            pending = None
        if pending is None:
            pending = self._pending[queue] = _Pending()
        pending.pieces += batch_part(flag, body, properties)
        pending.count += 1
        pending.size_bytes += size
        self._pending_bytes += size
        if pending.count >= self._settings.batch_count:
            self._send(queue)
        elif self._pending_bytes > _PENDING_BYTES_MAX:
            for other in list(self._pending):
                self._send(other)

    def flush(self) -> None:
        """Send what is left and wait for all."""
        for queue in list(self._pending):
            self._send(queue)
        for queue in list(self._posted):
            self._settle(queue)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.shutdown()

    def choose(self, topic: str, queue_id: int | None, sharding_key: str | None) -> MessageQueue:
        """The queue that a row names, the one of its sharding key, or the one whose turn it is."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._client.publish_queues(topic)
            for queue in reversed(queues):
                self._by_id[topic, queue.queue_id] = queue
        if queue_id is not None:
            named = self._by_id.get((topic, queue_id))
            if named is None:
                raise OptionError(
                    f"topic {topic} has no queue {queue_id}: it has {sorted({q.queue_id for q in queues})}"
                )
            return named
        if sharding_key is not None:
            return queues[java_hash(sharding_key) % len(queues)]
        return queues[self._turn % len(queues)]

    def _send(self, queue: MessageQueue) -> None:
        """Put a queue's batch on its way, after the one before it has arrived."""
        pending = self._pending.pop(queue)
        self._pending_bytes -= pending.size_bytes
        self._settle(queue)
        body = b"".join(pending.pieces)
        try:
            self._posted[queue] = body, self._post(body, queue)
        except ContrailError as exc:
            self._posted[queue] = body, exc
        self._turn += 1  # rows that name no queue go on to the next one

    def _post(self, body: bytes, queue: MessageQueue) -> PostedBatch:
        # A lost connection drops the routes, also the one by which a topic that is not there yet comes to be.
        self._client.publish_queues(queue.topic)
        return self._client.post_batch(body, queue, producer_group=self._settings.group)

    def _settle(self, queue: MessageQueue) -> None:
        """Wait until the queue's batch is acknowledged, if one is on its way; send it again while tries are left."""
        if queue not in self._posted:
            return
        body, posted = self._posted.pop(queue)
        tries = iter([posted])

        def send() -> None:
            first = next(tries, None)
            if isinstance(first, ContrailError):
                raise first
            self._client.batch_answer(first or self._post(body, queue))

        self._try(send, queue)

    def _send_alone(self, message: Message, queue: MessageQueue) -> None:
        if self._producer is None:
            from contrailmq.client.sync import Producer  # asyncio and all: only rows that wait need it

            self._producer = Producer(
                self._settings.group,
                namesrv=self._settings.namesrv,
                tls=self._settings.access.tls(),
                credentials=self._settings.access.credentials(),
            )
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
