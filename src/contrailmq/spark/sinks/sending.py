"""Sending rows to topics: batches per queue, tried again until acknowledged, with keys by which repeats are known.

Used by the Spark sink and by the jobs that send (`replay`, `redrive`); needs no pyspark. sink.py explains
the keys and the guarantees.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from contrailmq.client.blocking.raw_connection import Pieces
from contrailmq.client.errors import error_code
from contrailmq.client.producing.batch import BATCH_BYTES_ADVISED
from contrailmq.message import (
    ContrailError,
    Message,
    MessageQueue,
    Property,
    check_message,
    create_unique_id,
    encode_properties,
    java_hash,
)
from contrailmq.message.batch import BATCH_PART_BYTES_MIN, batch_part
from contrailmq.message.names import check_topic
from contrailmq.spark.access import Access
from contrailmq.spark.columns import OptionError
from contrailmq.spark.decoding.dispatched import java_hashes, numbered
from contrailmq.spark.decoding.records import stable_order
from contrailmq.spark.runtime.patience import AWAY_TIMEOUT_MS, BrokerAwayError, Patience
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY, Int, Joined, Parts, digest, pack_parts
from contrailmq.wire.codes import ResponseCode

if TYPE_CHECKING:
    from contrailmq.client.blocking.sync import Producer

BATCH_COUNT: Final = 1000
_Ticket = TypeVar("_Ticket")  # for a batch on its way
_PENDING_BYTES_MAX: Final = 64 * 1024 * 1024  # of all queues together: rows may name thousands of topics
_WAITING_BYTES_MAX: Final = 16 * 1024 * 1024  # full batches that wait behind those in flight
_ROUNDS_MAX: Final = 4  # of Arrow batches, before a batch that is on its way is waited for
_NO_PLACE: Final = -1  # of a row that names no queue
_PAUSE_S: Final = 0.2  # before the second try; doubled each time
# Answers about the rows, the topic or who sends. Others may pass: a topic that comes to be, a broker that is busy.
_FINAL: Final = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)


class SendFailedError(ContrailError):
    """A batch of rows was not acknowledged within the allowed tries."""

    retriable = True


class SendRefusedError(SendFailedError):
    """The broker refused rows for a reason that no further try mends."""

    retriable = False


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
    away_timeout_s: float = AWAY_TIMEOUT_MS / 1000
    token: str = ""  # names this write in the de-duplication keys of a batch job
    marks: tuple[tuple[str, str], ...] = ()  # properties that every message gets (halves.py)
    exactly_once: ExactlyOnce | None = None


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """What tasks and the driver need to know for exactly-once delivery (exactly_once.py)."""

    folder: str  # of the decisions
    log_id: str  # names the folder in half messages
    write_name: str  # of a batch write
    immunity_s: int
    done: tuple[tuple[str, int], ...] = ()  # query id -> its newest micro-batch that is visible
    is_write_done: bool = False


class Carrier(Protocol[_Ticket]):
    """What takes batches to brokers; `QueueReader` is one."""

    def publish_queues(self, topic: str) -> list[MessageQueue]: ...
    def forget_routes(self) -> None: ...
    def broker_names(self) -> list[str]: ...
    def post_batch(self, body: Pieces, queue: MessageQueue, *, producer_group: str = "") -> _Ticket: ...
    def is_answered(self, posted: _Ticket) -> bool: ...
    def batch_answer(self, posted: _Ticket) -> object: ...


def write_rows(batches: Iterator[pa.RecordBatch], settings: SinkSettings, key_prefix: str) -> int:
    """Send every row and wait for every acknowledgement; gives the number of rows."""
    with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
        return send_rows(batches, Sender(client, settings), settings, key_prefix)


def send_rows(
    batches: Iterator[pa.RecordBatch], sender: Sender[_Ticket], settings: SinkSettings, key_prefix: str
) -> int:
    """The same with a sender of one's own."""
    count = 0
    try:
        for batch in batches:
            _add_rows(sender, batch, settings, f"{key_prefix}-", count)
            count += batch.num_rows
        sender.flush()
    finally:
        sender.close()
    return count


def _add_rows(
    sender: Sender[_Ticket], batch: pa.RecordBatch, settings: SinkSettings, key_prefix: str, first: int
) -> None:
    """Plain rows go from columns to batches (1 us each); others through a `Message` (20 us).

    If something is wrong with a row, making a message of it gives the error.
    """
    if not batch.num_rows:
        return
    packed = pack_parts(
        batch,
        topic=settings.topic,
        key_prefix=key_prefix,
        first_row=first,
        dedup_column=settings.dedup_column,
        marks="".join(f"{name}\x01{value}\x02" for name, value in settings.marks),
    )
    if packed is not None and sender.add_packed(batch, packed):
        return
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    for number in range(batch.num_rows):
        row = {name: values[number] for name, values in columns.items()}
        message = _message(row, settings)
        if DEDUP_PROPERTY not in message.properties:
            held = digest(
                message.topic, row.get("queueId"), message.flag, encode_properties(message.properties), message.body
            )
            message.properties[DEDUP_PROPERTY] = f"{key_prefix}{first + number}-{held}"
        message.properties.update(settings.marks)
        sender.add(message, row)


def make_message(row: dict[str, Any], settings: SinkSettings, dedup_key: str) -> Message:
    """A row as a message, checked as a producer checks it. A key that the row brings itself counts more."""
    message = _message(row, settings)
    message.properties.setdefault(DEDUP_PROPERTY, dedup_key)
    return message


def _message(row: dict[str, Any], settings: SinkSettings) -> Message:
    """A row as a message, which has a de-duplication key if the row has one: in its column, else as a property."""
    body = row["body"]
    topic = settings.topic or row.get("topic")
    if body is None or topic is None:
        raise OptionError(f"a row has no {'body' if body is None else 'topic'}: fill it before writing")
    properties = dict(row.get("properties") or {})
    if settings.dedup_column is not None:
        properties.pop(DEDUP_PROPERTY, None)
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
    if settings.dedup_column is not None:
        message.properties[DEDUP_PROPERTY] = _given_key(row, settings.dedup_column)
    check_message(message)
    return message


def _given_key(row: dict[str, Any], column: str) -> str:
    key = row[column]
    if key is None or not str(key).strip():
        state = "no" if key is None else "a blank"
        raise OptionError(f"a row has {state} {column}, by which repeats are to be known: fill it first")
    return str(key)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A full batch, which waits for the one before it."""

    pieces: Pieces
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Posted(Generic[_Ticket]):
    """A batch on its way, or why it did not get there."""

    pieces: Pieces
    posted: _Ticket | ContrailError
    round: int  # of Arrow batches, in which it was sent


@dataclass(slots=True)
class _Pending:
    """Parts of a batch that is not full yet."""

    pieces: list[bytes | memoryview] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0


class Sender(Generic[_Ticket]):
    """Gathers messages per queue and sends them in batches. Owned by one task.

    A queue has one batch on its way at most, so its messages keep their order also when a batch must be sent again.
    Meanwhile the next ones are filled and wait, up to some megabytes, so that Spark can go on making rows.
    """

    def __init__(
        self, client: Carrier[_Ticket], settings: SinkSettings, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._settings, self._sleep = client, settings, sleep
        self._pending: dict[MessageQueue, _Pending] = {}
        self._pending_bytes = 0
        self._waiting: dict[MessageQueue, deque[_Batch]] = {}
        self._waiting_bytes = 0
        self._posted: dict[MessageQueue, _Posted[_Ticket]] = {}
        self._round = 0
        self._queues: dict[str, list[MessageQueue]] = {}
        self._by_id: dict[tuple[str, int], MessageQueue] = {}
        self._turn = secrets.randbelow(1 << 16)  # tasks begin at different queues
        self._producer: Producer | None = None

    def add(self, message: Message, row: dict[str, Any]) -> None:
        """Take a message; send its queue's batch when it is full."""
        queue = self.choose(message.topic, row.get("queueId"), row.get("shardingKey"))
        if row.get("delayLevel") or row.get("deliverAt") is not None:
            self._send_alone(message, queue)
            return
        self.add_to(queue, message)

    def add_to(self, queue: MessageQueue, message: Message) -> None:
        """Take a message, which is not to wait anywhere, for this queue."""
        own = {**message.properties}
        own.setdefault(Property.UNIQUE_KEY, create_unique_id())
        self.add_part(queue, message.flag, message.body, encode_properties(own))

    def add_part(self, queue: MessageQueue, flag: int, body: bytes, properties: bytes) -> None:
        """Take a message by its parts, of which the caller knows that they are right."""
        size = BATCH_PART_BYTES_MIN + len(body) + len(properties)
        pending = self._pending.get(queue)
        if pending is not None and pending.size_bytes + size > BATCH_BYTES_ADVISED:
            self._send(queue)
        self._take(queue, batch_part(flag, body, properties), count=1, size_bytes=size)

    def add_packed(self, batch: pa.RecordBatch, packed: Parts) -> bool:
        """Take the rows of a batch, which `pack_parts` made parts of; False, and nothing is taken, if one has no topic.

        Rows of a queue keep their order. What is on its way are slices of large buffers: none outlives a few Arrow
        batches.
        """
        names = batch.schema.names
        topics = pa.array([self._settings.topic] * len(batch)) if self._settings.topic else batch.column("topic")
        if topics.null_count:
            return False
        coded = topics.dictionary_encode()
        codes, texts = coded.indices.to_numpy().astype(np.int64), coded.dictionary.to_pylist()
        queues = [self._queues_of(topic) for topic in texts]
        places = np.full(len(batch), _NO_PLACE)
        if "shardingKey" in names:
            keys = batch.column("shardingKey")
            rows = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
            hashes = java_hashes(keys.drop_null(), np.zeros(len(rows), dtype=np.int64))
            places[rows] = hashes % np.array([len(found) for found in queues])[codes[rows]]
        if "queueId" in names:
            ids = batch.column("queueId")
            rows = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
            places[rows] = self._places_of(texts, codes[rows], ids.drop_null().to_numpy().astype(np.int64))
        width = max(len(found) for found in queues) + 1
        groups = codes * width + places + 1
        order = stable_order(groups)
        bounds = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1)).tolist()
        self._round += 1
        for queue in [queue for queue, sent in self._posted.items() if sent.round <= self._round - _ROUNDS_MAX]:
            self._settle(queue)
        parts = packed.joined(order)
        for begin, end in itertools.pairwise(bounds):
            code, place = divmod(int(groups[order[begin]]), width)
            named = queues[code][place - 1] if place else None
            self._take_parts(texts[code], named, Joined(parts.bounds[begin : end + 1], parts.data))
        for pending in self._pending.values():
            pending.pieces = [piece if isinstance(piece, bytes) else bytes(piece) for piece in pending.pieces]
        return True

    def _places_of(self, topics: list[str], codes: Int, queue_ids: Int) -> Int:
        """For rows that name their queue: its place among the topic's queues."""
        pairs, number = numbered(codes, queue_ids)
        named = [(topics[code], self.choose(topics[code], queue_id, None)) for code, queue_id in pairs]
        places = np.array([self._queues[topic].index(queue) for topic, queue in named], dtype=np.int64)
        found: Int = places[number]
        return found

    def _take_parts(self, topic: str, named: MessageQueue | None, parts: Joined) -> None:
        """Take parts for one queue, or for whatever queues have their turn: slices of one buffer."""
        bounds, data = parts
        row, count = 0, len(bounds) - 1
        while row < count:
            queue = named or self.choose(topic, None, None)
            pending = self._pending.get(queue) or _Pending()
            room = int(bounds[row]) + BATCH_BYTES_ADVISED - pending.size_bytes
            end = min(
                int(np.searchsorted(bounds, room, side="right")) - 1, row + self._settings.batch_count - pending.count
            )
            if end <= row and pending.count:
                self._send(queue)
                continue
            end = max(end, row + 1)  # one that is larger than a batch should be travels alone
            begin, stop = int(bounds[row]), int(bounds[end])
            self._take(queue, (data[begin:stop],), count=end - row, size_bytes=stop - begin)
            row = end

    def _take(self, queue: MessageQueue, pieces: Iterable[bytes | memoryview], *, count: int, size_bytes: int) -> None:
        """Into the queue's batch; send it when it is full."""
        pending = self._pending.get(queue)
        if pending is None:
            pending = self._pending[queue] = _Pending()
        pending.pieces += pieces
        pending.count += count
        pending.size_bytes += size_bytes
        self._pending_bytes += size_bytes
        if pending.count >= self._settings.batch_count:
            self._send(queue)
        elif self._pending_bytes > _PENDING_BYTES_MAX:
            for other in list(self._pending):
                self._send(other)

    def flush(self) -> None:
        """Send what is left and wait for all."""
        for queue in list(self._pending):
            self._send(queue)
        while self._waiting:
            for queue in list(self._waiting):
                self._post_next(queue)
        for queue in list(self._posted):
            self._settle(queue)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.shutdown()

    def choose(self, topic: str, queue_id: int | None, sharding_key: str | None) -> MessageQueue:
        """The queue that a row names, the one of its sharding key, or the one whose turn it is."""
        queues = self._queues_of(topic)
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

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            check_topic(topic)
            queues = self._queues[topic] = self._patience().call(lambda: self._client.publish_queues(topic))
            # An id that several brokers have means one of their queues, always the same, so that order is kept; ids
            # take turns at the brokers, so that each gets its part.
            brokers: dict[int, list[MessageQueue]] = {}
            for queue in sorted(queues):
                brokers.setdefault(queue.queue_id, []).append(queue)
            self._by_id |= {(topic, number): found[number % len(found)] for number, found in brokers.items()}
        return queues

    def _send(self, queue: MessageQueue) -> None:
        """Append a queue's batch to those that wait, and send what need not wait any more."""
        pending = self._pending.pop(queue)
        self._pending_bytes -= pending.size_bytes
        self._waiting.setdefault(queue, deque()).append(_Batch(pending.pieces, pending.size_bytes))
        self._waiting_bytes += pending.size_bytes
        self._turn += 1  # rows that name no queue go on to the next one
        for other in list(self._waiting):
            if self._is_free(other):
                self._post_next(other)
        while self._waiting_bytes > _WAITING_BYTES_MAX:
            self._post_next(next(iter(self._waiting)))

    def _is_free(self, queue: MessageQueue) -> bool:
        """Whether the batch that was on its way has arrived, or was none."""
        sent = self._posted.get(queue)
        return sent is None or isinstance(sent.posted, ContrailError) or self._client.is_answered(sent.posted)

    def _post_next(self, queue: MessageQueue) -> None:
        """Put a queue's oldest batch on its way, after the one before it has arrived."""
        self._settle(queue)
        batches = self._waiting.pop(queue)
        batch = batches.popleft()
        if batches:
            self._waiting[queue] = batches  # after the other queues
        self._waiting_bytes -= batch.size_bytes
        try:
            posted: _Ticket | ContrailError = self._post(batch.pieces, queue)
        except ContrailError as exc:
            posted = exc
        self._posted[queue] = _Posted(batch.pieces, posted, self._round)

    def _post(self, body: Pieces, queue: MessageQueue) -> _Ticket:
        # A lost connection drops the routes, also the one by which a topic that is not there yet comes to be.
        self._client.publish_queues(queue.topic)
        return self._client.post_batch(body, queue, producer_group=self._settings.group)

    def _settle(self, queue: MessageQueue) -> None:
        """Wait until the queue's batch is acknowledged, if one is on its way; send it again while tries are left."""
        if queue not in self._posted:
            return
        sent = self._posted.pop(queue)
        tries = iter([sent.posted])

        def send() -> None:
            first = next(tries, None)
            if isinstance(first, ContrailError):
                raise first
            self._client.batch_answer(self._post(sent.pieces, queue) if first is None else first)

        self._try(send, queue)

    def _send_alone(self, message: Message, queue: MessageQueue) -> None:
        if self._producer is None:
            from contrailmq.client.blocking.sync import Producer  # asyncio and all: only rows that wait need it

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
        """Send until it is acknowledged: so many tries, not counting those while the broker is away."""
        name = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
        pause_s, left, patience = _PAUSE_S, self._settings.tries, self._patience()
        while True:
            try:
                send()
                patience.answered()
                return
            except ContrailError as exc:
                if error_code(exc) in _FINAL:
                    raise SendRefusedError(f"{name} refused rows, for good: {exc}") from exc
                if patience.is_away(exc):
                    self._wait(patience, exc, name)
                    continue
                left -= 1
                if not left:
                    text = f"{name} did not acknowledge after {self._settings.tries} tries: {exc}"
                    raise SendFailedError(text) from exc
                self._sleep(pause_s)
                pause_s *= 2

    def _wait(self, patience: Patience, exc: ContrailError, name: str) -> None:
        try:
            patience.wait(exc)
        except BrokerAwayError as away:
            raise SendFailedError(f"{name} did not acknowledge: {away}") from away

    def _patience(self) -> Patience:
        return Patience(self._client, self._settings.away_timeout_s, sleep=self._sleep)
