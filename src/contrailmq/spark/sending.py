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
from contrailmq.client.raw import QueueReader
from contrailmq.message import ContrailError, Message, MessageQueue, check_message, java_hash
from contrailmq.spark.access import Access
from contrailmq.spark.columns import OptionError

if TYPE_CHECKING:
    from contrailmq.client.sync import Producer

DEDUP_PROPERTY: Final = "CONTRAIL_DEDUP_KEY"
BATCH_COUNT: Final = 1000
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


@dataclass(slots=True)
class _Pending:
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0


def write_rows(batches: Iterator[pa.RecordBatch], settings: SinkSettings, key_prefix: str) -> int:
    """Send every row and wait for every acknowledgement; gives the number of rows."""
    count = 0
    with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
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
        pending = self._pending.setdefault(queue, _Pending())
        size = len(message.body) + sum(len(name) + len(value) + 2 for name, value in message.properties.items()) + 100
        if pending.messages and pending.size_bytes + size > BATCH_BYTES_ADVISED:
            self._send(queue)
            pending = self._pending.setdefault(queue, _Pending())
        pending.messages.append(message)
        pending.size_bytes += size
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

        def send() -> None:
            # A lost connection drops the routes, also the one by which a topic that is not there yet comes to be.
            self._client.publish_queues(queue.topic)
            self._client.send_batch(messages, queue, producer_group=self._settings.group)

        self._try(send, queue)
        self._turn += 1  # rows that name no queue go on to the next one

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
