"""Messages: found by time, key, id or place; one in full, with its trace and where each group stands; sent again.

A search brings rows without bodies, at most `FOUND_MAX` of them: bodies may have megabytes, and are read one at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from contrailmq.client.admin.admin_messages import copy_of, readable_body
from contrailmq.client.admin.times import END_OF_TIME_MS, parse_time
from contrailmq.client.admin.traces import TraceStep
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import SendResult
from contrailmq.console.model.asking import Asking, BrokerPlace, Seen
from contrailmq.console.model.contents import BodyView, view_body
from contrailmq.console.model.topics import Topics
from contrailmq.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    ContrailError,
    MessageQueue,
    Property,
    StoredMessage,
    SystemTopic,
)
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, GroupList
from contrailmq.wire.bodies import decode_body
from contrailmq.wire.codes import RequestCode

FOUND_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class MessageRow:
    """What a list shows of a message, and its place."""

    message_id: str
    queue: MessageQueue
    queue_offset: int
    store_time_ms: int
    size_bytes: int
    tags: str
    keys: str
    reconsume_times: int = 0
    sent_to: str = ""  # of a retry or a dead letter: the topic that it was sent to


@dataclass(frozen=True, slots=True)
class Found:
    rows: list[MessageRow]
    about_count: int  # how many the span has, before any limit

    @property
    def is_cut(self) -> bool:
        return self.about_count > len(self.rows)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group is, as seen from one message."""

    group: str
    offset: int  # -1: it has none in the queue
    behind: int  # messages that it must consume before it has passed this one; 0 when it has

    @property
    def text(self) -> str:
        if self.offset < 0:
            return "has consumed nothing of this queue"
        return "has passed it" if not self.behind else f"has {self.behind} to go until it has passed it"


@dataclass(frozen=True, slots=True)
class MessageDetail:
    row: MessageRow
    topic: str
    properties: dict[str, str]
    body: BodyView
    raw_body: bytes
    born_time_ms: int
    born_host: str
    store_host: str
    offset_message_id: str
    message: StoredMessage

    @property
    def body_topic(self) -> str:
        """The topic whose schema the body has: of a retry or a dead letter the one that it was sent to."""
        is_moved = self.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        return self.properties.get(Property.RETRY_TOPIC, self.topic) if is_moved else self.topic


class Messages:
    def __init__(self, asking: Asking, topics: Topics) -> None:
        self._asking = asking
        self._topics = topics

    # --- finding

    async def by_time(self, topic: str, *, begin_ms: int, end_ms: int, max_count: int = FOUND_MAX) -> Seen[Found]:
        """Stored within the span, newest first: the newest of each queue when there are more than `max_count`."""
        if begin_ms > end_ms:
            raise ContrailError("the time span ends before it begins: exchange the two times")
        queues = await self._queues(topic)
        spans, notes = [], []
        for queue, span in zip(queues, await self._spans(queues, begin_ms, end_ms), strict=True):
            if isinstance(span, str):
                notes.append(f"{queue.broker_name} queue {queue.queue_id}: {span}")
            elif span[0] < span[1]:
                spans.append((queue, *span))
        count = sum(end - begin for _, begin, end in spans)
        rows: list[MessageRow] = []
        share = max(1, max_count // len(spans)) if spans else 0
        for queue, begin, end in spans:
            try:
                found = await self._asking.read_range(queue, max(begin, end - share), end)
            except ContrailError as exc:
                notes.append(f"{queue.broker_name} queue {queue.queue_id}: {exc}")
                continue
            rows += [row_of(message, queue) for message in found if begin_ms <= message.store_time_ms <= end_ms]
        rows.sort(key=lambda row: row.store_time_ms, reverse=True)
        return Seen(Found(rows[:max_count], max(count, len(rows))), tuple(notes))

    async def by_key(self, topic: str, key: str) -> Seen[Found]:
        if not key.strip():
            raise ContrailError("give a key to look for")
        return await self._all(await self._asking.messages_by_key(topic, key.strip(), max_count=64))

    async def by_id(self, topic: str, message_id: str) -> Seen[Found]:
        """By the unique id that senders and listeners know, or by the offset id."""
        if not message_id.strip():
            raise ContrailError("give an id to look for")
        found = await self._asking.message(topic, message_id.strip())
        return await self._all([found] if found is not None else [])

    async def by_offset(self, topic: str, queue: MessageQueue, offset: int) -> Seen[Found]:
        begin, end = await self._asking.min_offset(queue), await self._asking.max_offset(queue)
        if not begin <= offset < end:
            has = f"it has {begin} to {end - 1}" if end > begin else "it is empty"
            raise ContrailError(f"queue {queue.queue_id} of {queue.broker_name} has no offset {offset}: {has}")
        found = await self._asking.read_range(queue, offset, offset + 1)
        return Seen(Found([row_of(message, queue) for message in found], len(found)))

    async def queues(self, topic: str) -> list[MessageQueue]:
        return await self._queues(topic)

    # --- one message

    async def detail(self, queue: MessageQueue, offset: int) -> MessageDetail:
        found = await self._asking.read_range(queue, offset, offset + 1)
        if not found:
            raise ContrailError(
                f"{queue.topic} has no message {offset} in queue {queue.queue_id} of {queue.broker_name}: "
                "it was cleaned up, or the topic was deleted"
            )
        message, body = found[0], readable_body(found[0])
        return MessageDetail(
            row=row_of(message, queue),
            topic=message.topic,
            properties=dict(message.properties),
            body=view_body(body),
            raw_body=body,
            born_time_ms=message.born_time_ms,
            born_host=str(message.born_host),
            store_host=str(message.store_host),
            offset_message_id=message.offset_message_id,
            message=message,
        )

    async def standings(self, queue: MessageQueue, offset: int) -> Seen[list[Standing]]:
        """Where each group that consumes the topic stands relative to the message."""

        async def groups_on(place: BrokerPlace) -> list[str]:
            answer = await self._asking.ask_place(place, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": queue.topic})
            return decode_body(answer.body, GroupList).group_list

        places = [place for place in await self._asking.readable_places() if place.name == queue.broker_name]
        seen = await self._asking.of_each(places, groups_on)
        groups = sorted({group for found in seen.value.values() for group in found})
        offsets = await asyncio.gather(*(self._asking.offset(group, queue) for group in groups))
        standings = [
            Standing(group, at, max(0, offset + 1 - max(at, 0))) for group, at in zip(groups, offsets, strict=True)
        ]
        return Seen(standings, seen.notes)

    async def trace(self, message_id: str, *, topic: str = SystemTopic.TRACE) -> list[TraceStep]:
        """Empty when nobody traced it."""
        return await self._asking.trace(message_id, topic=topic)

    # --- acting

    async def resend(self, message: StoredMessage) -> SendResult:
        """A new message with the same body, tags, keys and properties, for all groups of the topic."""
        return await self._topics.send_message(copy_of(message))

    async def consume(self, group: str, client_id: str, message: StoredMessage) -> ConsumeMessageDirectlyResult:
        """Let one running member have it now."""
        return await self._asking.consume_directly(group, client_id, message)

    # --- asking

    async def _queues(self, topic: str) -> list[MessageQueue]:
        if not topic:
            raise ContrailError("choose a topic first")
        return await self._asking.queues(topic)

    async def _spans(self, queues: list[MessageQueue], begin_ms: int, end_ms: int) -> list[tuple[int, int] | str]:
        async def span(queue: MessageQueue) -> tuple[int, int] | str:
            try:
                end = await self._asking.max_offset(queue)
                begin = await self._asking.search_offset(queue, begin_ms)
                if end_ms < END_OF_TIME_MS:
                    end = min(end, await self._asking.search_offset(queue, end_ms + 1))
                return begin, end
            except ContrailError as exc:
                return str(exc)

        return list(await asyncio.gather(*(span(queue) for queue in queues)))

    async def _all(self, found: list[StoredMessage]) -> Seen[Found]:
        names = {place.address: place.name for place in await self._asking.places()}
        rows = [row_of(message, _queue_of(message, names)) for message in found]
        return Seen(Found(rows, len(rows)))


def read_time(text: str) -> int:
    """Epoch milliseconds of a time that somebody typed."""
    try:
        return parse_time(text)
    except ValueError as exc:
        raise ContrailError(str(exc)) from None


def row_of(message: StoredMessage, queue: MessageQueue) -> MessageRow:
    return MessageRow(
        message_id=message.message_id,
        queue=queue,
        queue_offset=message.queue_offset,
        store_time_ms=message.store_time_ms,
        size_bytes=message.size_bytes,
        tags=message.tags or "",
        keys=" ".join(message.keys),
        reconsume_times=message.reconsume_times,
        sent_to=message.properties.get(Property.RETRY_TOPIC, ""),
    )


def _queue_of(message: StoredMessage, names: dict[str, str]) -> MessageQueue:
    """What is found by its place does not say which broker has it: the address that stored it does."""
    name = message.broker_name if isinstance(message, ReceivedMessage) else ""
    return MessageQueue(message.topic, name or names.get(str(message.store_host), ""), message.queue_id)
