"""Rows as half messages: what marks them, how they are sent, and where they wait.

`HalfCarrier` takes the batches that a `Sender` makes and sends them as half messages: together to a broker of ours, one
by one to others. A batch that is sent again gets new unique keys: of the first try it is not known what was stored, so
those half messages must never be committed. A unique key therefore names one half message for good.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final

import pyarrow as pa

from contrailmq.client.blocking.raw import Posted, QueueReader
from contrailmq.client.blocking.raw_connection import Pieces
from contrailmq.client.blocking.raw_halves import (
    ENDS_MAX,
    End,
    HalfPlace,
    confirmed,
    ends_refused,
    half_place,
    half_places,
    post_end,
    post_ends,
    post_half,
    post_half_batch,
)
from contrailmq.message import ContrailError, MessageQueue, Property, create_unique_ids
from contrailmq.message.batch import BatchPart, encode_batch, part_spans, split_batch
from contrailmq.message.property_text import find, key_of
from contrailmq.spark.sinks.sending import ExactlyOnce
from contrailmq.wire.codes import RequestCode

MARK: Final = "CONTRAIL_TRANSACTION"  # the decisions' id and the batch: "<id>/<batch>"
WINDOW: Final = 256  # requests on their way: their answers fit into any socket's buffer
_BATCHES_WINDOW: Final = 8  # requests with many ends
_UNIQUE_KEY: Final = key_of(Property.UNIQUE_KEY)
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
    """Places as an Arrow stream, with texts beside them: 0.5 us each, and twice that in a short one."""
    rows = list(places)
    queues: dict[MessageQueue, int] = {}
    numbers: list[int] = []
    queue, number = None, -1
    for place in rows:
        if place.queue is not queue:  # they come in runs of one queue
            queue, number = place.queue, queues.setdefault(place.queue, len(queues))
        numbers.append(number)
    values = [numbers, *([place[at] for place in rows] for at in range(1, len(_SCHEMA)))]
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


@dataclass(slots=True)
class PostedHalves:
    """A batch on its way: as one request, or one for each part."""

    queue: MessageQueue
    keys: list[str]
    body: bytes
    whole: Posted | None = None
    waiting: deque[tuple[str, Posted]] = field(default_factory=deque)
    places: list[HalfPlace] = field(default_factory=list)


class HalfCarrier:
    """Sends batches as half messages and remembers where they are. Owned by one task."""

    def __init__(self, client: QueueReader, group: str) -> None:
        self._client, self._group = client, group
        self._seen: set[str] = set()  # first keys of the batches that were posted
        self._singly: set[str] = set()  # brokers that take one half message at a time
        self._posted: list[PostedHalves] = []  # and not answered yet
        self.places: list[HalfPlace] = []
        self.abandoned: list[HalfPlace] = []  # of tries that failed: known, and never to be committed
        self.publish_queues = client.publish_queues
        self.forget_routes = client.forget_routes
        self.broker_names = client.broker_names

    def post_batch(self, body: Pieces, queue: MessageQueue, *, producer_group: str = "") -> PostedHalves:
        whole = b"".join(body)
        keys = _keys_in(whole)
        if keys[0] in self._seen:
            new = create_unique_ids(len(keys))
            parts = [_renamed(part, old, key) for part, old, key in zip(split_batch(whole), keys, new, strict=True)]
            keys, whole = new, encode_batch(parts)
        self._seen.add(keys[0])
        posted = PostedHalves(queue, keys, whole)
        if queue.broker_name in self._singly:
            self._post_singly(posted)
        else:
            posted.whole = post_half_batch(self._client, queue, (whole,), group=self._group)
        self._posted.append(posted)
        return posted

    def _post_singly(self, posted: PostedHalves) -> None:
        try:
            for key, part in zip(posted.keys, split_batch(posted.body), strict=True):
                if len(posted.waiting) >= WINDOW:
                    self._take_first(posted)
                posted.waiting.append((key, post_half(self._client, posted.queue, part, group=self._group)))
        except ContrailError:
            self._abandon(posted)
            raise

    def is_answered(self, posted: PostedHalves) -> bool:
        ticket = posted.whole or posted.waiting[-1][1]
        return ticket.connection.is_answered(ticket.opaque)

    def batch_answer(self, posted: PostedHalves) -> None:
        """Wait until every half message of the batch is stored, or say why one is not."""
        self._posted = [other for other in self._posted if other is not posted]
        if posted.whole is not None:
            whole, posted.whole = posted.whole, None
            places = half_places(self._client, whole, posted.queue, posted.keys)
            if places is not None:
                self.places += places
                return
            self._singly.add(posted.queue.broker_name)
            self._post_singly(posted)
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
        """Learn what else was stored, as far as the connection still tells. Brokers ask about what is not learned."""
        if posted.whole is not None:
            with contextlib.suppress(ContrailError):
                posted.places += half_places(self._client, posted.whole, posted.queue, posted.keys) or []
        for key, ticket in posted.waiting:
            with contextlib.suppress(ContrailError):
                posted.places.append(half_place(self._client, ticket, posted.queue, key))
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
    ends = _Ends(client, how, group)
    for _, run in groupby(places, key=lambda place: (place.queue.broker_name, place.queue.topic)):
        while chunk := list(islice(run, ENDS_MAX)):
            ends.post(chunk)
    while ends.waiting:
        ends.take_first()
    return ends.failed


class _Ends:
    """Ends on their way."""

    def __init__(self, client: QueueReader, how: End, group: str) -> None:
        self._client, self._how, self._group = client, how, group
        self._away: dict[str, ContrailError] = {}  # a broker that does not answer is not asked for every row
        self._singly: set[str] = set()  # brokers that take one end at a time
        self.waiting: deque[tuple[list[HalfPlace], Posted]] = deque()
        self.failed: list[tuple[HalfPlace, ContrailError]] = []

    def post(self, places: list[HalfPlace]) -> None:
        """Of one topic and broker."""
        broker = places[0].queue.broker_name
        is_single = broker in self._singly
        if is_single and len(places) > 1:
            for place in places:
                self.post([place])
            return
        if len(self.waiting) >= (WINDOW if is_single else _BATCHES_WINDOW):
            self.take_first()
        try:
            if broker in self._away:
                raise self._away[broker]
            send = post_end(self._client, places[0], self._how, group=self._group) if is_single else None
            ticket = send or post_ends(self._client, places, self._how, group=self._group)
            self.waiting.append((places, ticket))
        except ContrailError as exc:
            self._away[broker] = exc
            self.failed += ((place, exc) for place in places)

    def take_first(self) -> None:
        places, ticket = self.waiting.popleft()
        try:
            if ticket.code == RequestCode.END_TRANSACTION:
                confirmed(self._client.answer(ticket), ticket)
                return
            refused = ends_refused(self._client, ticket, places)
        except ContrailError as exc:
            self.failed += ((place, exc) for place in places)
            return
        if refused is None or refused:  # a single end says what is wrong with it
            self._singly.add(places[0].queue.broker_name)
            self.post(places if refused is None else refused)


def keys_of(places: Iterable[HalfPlace]) -> Iterator[str]:
    return (place.unique_key for place in places)


def _keys_in(batch: bytes) -> list[str]:
    """The unique keys of a packed batch, whose bodies are not copied for that."""
    keys: list[str] = []
    position, end = 0, len(batch)
    while position < end:
        _, _, properties, position = part_spans(batch, position, len(keys))
        key = find(batch[properties:position], _UNIQUE_KEY)
        assert key is not None, "a sender gives every message an id"
        keys.append(key.decode())
    return keys


def _renamed(part: BatchPart, old: str, new: str) -> BatchPart:
    found, wanted = (_UNIQUE_KEY + f"{key}\x02".encode() for key in (old, new))
    assert part.properties.count(found) == 1, "an id stands once among the properties"
    return part._replace(properties=part.properties.replace(found, wanted))
