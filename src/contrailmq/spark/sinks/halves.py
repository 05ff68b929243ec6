"""Rows as half messages: what marks them, how they are sent, and where they wait.

`HalfCarrier` takes the batches that a `Sender` makes and sends each row as a half message of its own, many on their
way. A batch that is sent again gets new unique keys: of the first try it is not known what was stored, so those half
messages must never be committed. A unique key therefore names one half message for good.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from contrailmq.client.blocking.raw import Posted, QueueReader
from contrailmq.client.blocking.raw_connection import Pieces
from contrailmq.client.blocking.raw_halves import End, HalfPlace, checked, half_place, post_end, post_half
from contrailmq.message import ContrailError, MessageQueue, Property, create_unique_ids
from contrailmq.message.batch import BatchPart, split_batch
from contrailmq.message.property_text import find_text
from contrailmq.spark.sinks.sending import ExactlyOnce

MARK: Final = "CONTRAIL_TRANSACTION"  # the decisions' id and the batch: "<id>/<batch>"
WINDOW: Final = 256  # requests on their way: their answers fit into any socket's buffer
_UNIQUE_KEY: Final = f"{Property.UNIQUE_KEY}\x01"
_SCHEMA: Final = pa.schema(
    [("queue", pa.int32()), ("key", pa.string()), ("half", pa.int64()), ("physical", pa.int64())]
)


def marks_of(settings: ExactlyOnce, batch: str, *, group: str) -> tuple[tuple[str, str], ...]:
    """The properties that make a row of a batch a half message, and tell a check-back whose it is."""
    return (
        (Property.TRANSACTION_PREPARED, "true"),
        (Property.PRODUCER_GROUP, group),
        (Property.CHECK_IMMUNITY_SECONDS, str(settings.immunity_s)),
        (MARK, f"{settings.log_id}/{batch}"),
    )


def encode_places(places: Iterable[HalfPlace], **more: str) -> bytes:
    """Places as an Arrow stream, with texts beside them."""
    queues: dict[MessageQueue, int] = {}
    rows = [(queues.setdefault(queue, len(queues)), *rest) for queue, *rest in places]
    values = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
    columns = [pa.array(column, kind) for column, kind in zip(values, _SCHEMA.types, strict=True)]
    schema = _SCHEMA.with_metadata({"queues": json.dumps(list(queues)), **more})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return bytes(sink.getvalue())


def decode_places(data: bytes) -> tuple[list[HalfPlace], dict[str, str]]:
    """The way back: places, and the texts beside them."""
    table = pa.ipc.open_stream(data).read_all()
    texts = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    queues = [MessageQueue(*parts) for parts in json.loads(texts.pop("queues"))]
    columns = [column.to_pylist() for column in table.columns]
    return [HalfPlace(queues[queue], *rest) for queue, *rest in zip(*columns, strict=True)], texts


class PostedHalves(NamedTuple):
    """A batch on its way."""

    queue: MessageQueue
    waiting: deque[tuple[str, Posted]]
    places: list[HalfPlace]


class HalfCarrier:
    """Sends batches as half messages and remembers where they are. Owned by one task."""

    def __init__(self, client: QueueReader, group: str) -> None:
        self._client, self._group = client, group
        self._seen: set[str] = set()  # first keys of the batches that were posted
        self._posted: list[PostedHalves] = []  # and not answered yet
        self.places: list[HalfPlace] = []
        self.abandoned: list[HalfPlace] = []  # of tries that failed: known, and never to be committed
        self.publish_queues = client.publish_queues
        self.forget_routes = client.forget_routes
        self.broker_names = client.broker_names

    def post_batch(self, body: Pieces, queue: MessageQueue, *, producer_group: str = "") -> PostedHalves:
        parts = split_batch(b"".join(body))
        keys = [_key_of(part) for part in parts]
        if keys[0] in self._seen:
            new = create_unique_ids(len(parts))
            parts = [_renamed(part, old, key) for part, old, key in zip(parts, keys, new, strict=True)]
            keys = new
        self._seen.add(keys[0])
        posted = PostedHalves(queue, deque(), [])
        try:
            for key, part in zip(keys, parts, strict=True):
                if len(posted.waiting) >= WINDOW:
                    self._take_first(posted)
                posted.waiting.append((key, post_half(self._client, queue, part, group=self._group)))
        except ContrailError:
            self._abandon(posted)
            raise
        self._posted.append(posted)
        return posted

    def is_answered(self, posted: PostedHalves) -> bool:
        ticket = posted.waiting[-1][1]
        return ticket.connection.is_answered(ticket.opaque)

    def batch_answer(self, posted: PostedHalves) -> None:
        """Wait until every half message of the batch is stored, or say why one is not."""
        self._posted = [other for other in self._posted if other is not posted]
        try:
            while posted.waiting:
                self._take_first(posted)
        except ContrailError:
            self._abandon(posted)
            raise
        self.places += posted.places

    def _take_first(self, posted: PostedHalves) -> None:
        key, ticket = posted.waiting.popleft()
        posted.places.append(half_place(self._client, ticket, posted.queue, key))

    def _abandon(self, posted: PostedHalves) -> None:
        """Learn what else was stored, as far as the connection still tells."""
        for key, ticket in posted.waiting:
            try:
                posted.places.append(half_place(self._client, ticket, posted.queue, key))
            except ContrailError:
                continue  # the broker asks about it, and the decisions answer
        self.abandoned += posted.places

    def roll_back(self) -> None:
        """End all that this task knows of, as far as brokers answer; they ask about the rest."""
        while self._posted:
            self._abandon(self._posted.pop())
        end_all(self._client, [*self.places, *self.abandoned], End.ROLLBACK, group=self._group)


def end_all(
    client: QueueReader, places: Iterable[HalfPlace], how: End, *, group: str
) -> list[tuple[HalfPlace, ContrailError]]:
    """End half messages, many on their way; those whose end was not confirmed, and why."""
    failed: list[tuple[HalfPlace, ContrailError]] = []
    away: dict[str, ContrailError] = {}  # a broker that does not answer is not asked for every row
    waiting: deque[tuple[HalfPlace, Posted]] = deque()

    def take_first() -> None:
        place, ticket = waiting.popleft()
        try:
            checked(client.answer(ticket), ticket)
        except ContrailError as exc:
            failed.append((place, exc))

    for place in places:
        broker = place.queue.broker_name
        if broker in away:
            failed.append((place, away[broker]))
            continue
        if len(waiting) >= WINDOW:
            take_first()
        try:
            waiting.append((place, post_end(client, place, how, group=group)))
        except ContrailError as exc:
            away[broker] = exc
            failed.append((place, exc))
    while waiting:
        take_first()
    return failed


def keys_of(places: Iterable[HalfPlace]) -> Iterator[str]:
    return (place.unique_key for place in places)


def _key_of(part: BatchPart) -> str:
    key = find_text(part.properties.decode(), _UNIQUE_KEY)
    assert key is not None, "a sender gives every message an id"
    return key


def _renamed(part: BatchPart, old: str, new: str) -> BatchPart:
    found, wanted = (f"{_UNIQUE_KEY}{key}\x02".encode() for key in (old, new))
    assert part.properties.count(found) == 1, "an id stands once among the properties"
    return part._replace(properties=part.properties.replace(found, wanted))
