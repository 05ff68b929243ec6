"""Administration of messages: finding them, having one consumed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

from contrailmq.client.admin.admin_offsets import AdminOffsets
from contrailmq.client.admin.traces import TraceStep, steps_of
from contrailmq.client.consuming.pulling import PullRequest, pull
from contrailmq.client.consuming.subscription import SqlFilter, make_subscription
from contrailmq.client.errors import ClientError
from contrailmq.client.records import ReceivedMessage, decode_messages
from contrailmq.client.results import PullStatus
from contrailmq.message import (
    RESERVED_PROPERTIES,
    ContrailError,
    Message,
    MessageError,
    MessageQueue,
    StoredMessage,
    SystemTopic,
    parse_offset_message_id,
)
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult
from contrailmq.wire.bodies import decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectError, ResponseError
from contrailmq.wire.header import ExtValue

TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # RocketMQ's group for tools; brokers have it from the start
UNIQUE_KEY_WINDOW_MS: Final = 3 * 24 * 3600 * 1000  # how far back a unique id is looked for, as Java's tools do
END_OF_TIME_MS: Final = 2**63 - 1
PULL_COUNT: Final = 32
PORT_MAX: Final = 65_535
TRACES_MAX: Final = 64  # trace messages of one message that are read


_log = logging.getLogger(__name__)


class AdminMessages(AdminOffsets):
    """Messages."""

    async def message(self, topic: str, message_id: str) -> StoredMessage | None:
        """By its id, the unique one that senders and listeners know or the offset one; None when there is none.

        When nobody answers at the broker that an offset id names, its slave is asked. ConnectError when that lacks it.
        """
        found = await self.messages_by_unique_key(topic, message_id)
        if found:
            return found[0]
        if not _is_place(message_id):
            return None
        try:
            return await self.message_at(message_id)
        except ResponseError:
            return None
        except ConnectError:
            copy = await self._copy_of(topic, message_id)
            if copy is None:
                raise
            return copy

    async def message_at(self, offset_message_id: str) -> StoredMessage:
        """By its place: the offset message id holds the broker's address and the physical offset."""
        host, port, offset = parse_offset_message_id(offset_message_id)
        return await self._view(f"{host}:{port}", offset, offset_message_id)

    async def _copy_of(self, topic: str, offset_message_id: str) -> StoredMessage | None:
        """The message at the same place of a slave's log, where it carries the id that its master gave it."""
        _, _, offset = parse_offset_message_id(offset_message_id)
        for address in (await self._topic_readers(topic)).values():
            with contextlib.suppress(ResponseError):  # no message is there
                found = await self._view(address, offset, offset_message_id)
                if found.offset_message_id == offset_message_id.upper():
                    return found
        return None

    async def _view(self, address: str, offset: int, offset_message_id: str) -> StoredMessage:
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        faults: list[str] = []
        found = decode_messages(answer.body, on_damage=faults.append)
        if not found:
            raise ClientError(f"the message {offset_message_id} is damaged: {'; '.join(faults)}")
        return found[0]

    async def messages_by_key(
        self, topic: str, key: str, *, max_count: int = 32, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS
    ) -> list[StoredMessage]:
        """Messages that have the key, newest first. The index is a hash, so keys are compared again here."""
        found = await self._query(topic, key, max_count, begin_ms, end_ms, is_unique_key=False)
        return list[StoredMessage](message for message in found if key in message.keys)[:max_count]

    async def messages_by_unique_key(self, topic: str, unique_key: str) -> list[StoredMessage]:
        """Messages with this unique id: more than one when a send was retried."""
        begin_ms = time.time_ns() // 1_000_000 - UNIQUE_KEY_WINDOW_MS
        found = await self._query(topic, unique_key, 32, begin_ms, END_OF_TIME_MS, is_unique_key=True)
        return [message for message in found if message.message_id == unique_key]

    async def messages_by_time(
        self, topic: str, *, begin_ms: int, end_ms: int, max_count: int = 1000
    ) -> list[StoredMessage]:
        """Messages that were stored in the time span, oldest first within each queue."""
        messages: list[StoredMessage] = []
        for queue in await self.queues(topic):
            offset = await self.search_offset(queue, begin_ms)
            async for message in self._read(queue, offset):
                if message.store_time_ms > end_ms or len(messages) >= max_count:
                    break
                messages.append(message)
        return messages

    async def read_range(
        self, queue: MessageQueue, offset: int, end: int, wanted: str | SqlFilter | None = None
    ) -> list[ReceivedMessage]:
        """The messages with offsets from `offset` up to `end`, which is not included; of them what is wanted."""
        found: list[ReceivedMessage] = []
        if offset >= end:
            return found
        async for message in self._read(queue, offset, wanted):
            if message.queue_offset >= end:
                break
            found.append(message)
            if message.queue_offset == end - 1:
                break
        return found

    async def trace(self, message_id: str, *, topic: str = SystemTopic.TRACE) -> list[TraceStep]:
        """Who sent the message and who consumed it, in order of time; empty when nobody traced it."""
        found = await self.messages_by_key(topic, message_id, max_count=TRACES_MAX)
        return steps_of([readable_body(message) for message in found], message_id)

    async def consume_directly(
        self, group: str, client_id: str, message: StoredMessage
    ) -> ConsumeMessageDirectlyResult:
        """Let one running member consume a message now."""
        host, port, _ = parse_offset_message_id(message.offset_message_id)
        ext: dict[str, ExtValue] = {
            "consumerGroup": self._name(group),
            "clientId": client_id,
            "msgId": message.offset_message_id,
            "brokerName": message.broker_name if isinstance(message, ReceivedMessage) else "",
            "topic": message.topic,
        }
        answer = await self._ask(f"{host}:{port}", RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        return decode_body(answer.body, ConsumeMessageDirectlyResult)

    # Reading.
    async def _query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, is_unique_key: bool
    ) -> list[ReceivedMessage]:
        if not key:
            raise ClientError("a query needs a key")
        ext: dict[str, ExtValue] = {
            "topic": self._name(topic),
            "key": key,
            "maxNum": max_count,
            "beginTimestamp": begin_ms,
            "endTimestamp": end_ms,
            "indexType": "U" if is_unique_key else "K",
            "_UNIQUE_KEY_QUERY": is_unique_key,
        }
        accept = (int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND))
        readers = await self._topic_readers(topic)
        answers = await asyncio.gather(
            *(self._ask(address, RequestCode.QUERY_MESSAGE, ext, accept=accept) for address in readers.values())
        )
        messages = [
            message
            for name, answer in zip(readers, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
            for message in decode_messages(answer.body, broker_name=name, on_damage=_tell)
            if message.topic == self._name(topic)
        ]
        return sorted(messages, key=lambda message: message.store_time_ms, reverse=True)

    async def _read(
        self, queue: MessageQueue, offset: int, wanted: str | SqlFilter | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Messages from an offset to the present end of the queue."""
        real = queue._replace(topic=self._name(queue.topic))
        subscription = make_subscription(real.topic, wanted, version=0)
        while True:
            request = PullRequest(
                real,
                offset,
                subscription,
                PULL_COUNT,
                1024 * 1024,
                suspend_s=0.0,
                carries_subscription=True,
                timeout_s=self.options.request_timeout_s,
            )
            pulled = await pull(self._connected(), TOOLS_GROUP, request)
            for message in pulled.messages:
                yield message
            if pulled.status is PullStatus.NO_NEW_MESSAGE or pulled.next_offset == offset:
                return
            offset = pulled.next_offset


def copy_of(message: StoredMessage) -> Message:
    """A new message with the same body, tags, keys and properties, for all groups of the topic."""
    properties = {name: text for name, text in message.properties.items() if name not in RESERVED_PROPERTIES}
    return Message(
        message.topic, readable_body(message), tags=message.tags, keys=list(message.keys), properties=properties
    )


def _is_place(message_id: str) -> bool:
    """Whether it has the form of an offset id. A unique id is as long; its process id stands where the port would."""
    try:
        _, port, _ = parse_offset_message_id(message_id)
    except MessageError:
        return False
    return 0 < port <= PORT_MAX


def readable_body(message: StoredMessage) -> bytes:
    """Decompressed; as it is stored where that fails, which shows what is there."""
    try:
        return bytes(message.body)
    except ContrailError:
        return bytes(message.stored_body)


def _tell(fault: str) -> None:
    _log.error("a damaged record is left out: %s", fault)
