"""Pulled bytes to messages: the body of a pull answer is records of the commit log, one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from contrailmq.client.errors import ClientError
from contrailmq.message import MessageError, StoredMessage, SysFlag
from contrailmq.message.checksum import crc32
from contrailmq.message.inner_batch import unwrapped
from contrailmq.message.record import MAGIC_AT, MAGIC_V1, MAGIC_V2, read_record
from contrailmq.wire.pop_strings import PopHandle

_WRAPPED: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP  # PullAPIWrapper asks for both

_MAGICS: Final = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))


class ReceivedMessage(StoredMessage):
    """A stored message that came through a broker: it also knows which broker, and what the pull said of the queue.

    `reconsume_times` is the number of earlier failures; the client raises it when it retries locally.
    """

    __slots__ = ("broker_name", "consume_start_s", "max_offset", "min_offset")

    broker_name: str
    consume_start_s: float  # when the listener was last given it, on the loop's clock; 0 before that
    min_offset: int  # of its queue, when it was pulled
    max_offset: int


class PoppedMessage(ReceivedMessage):
    """A message that is with one consumer until `visible_at_s`; `handle` is the receipt that brokers want of him."""

    __slots__ = ("asked_topic", "handle", "stored_topic", "visible_at_s")

    handle: PopHandle
    asked_topic: str  # whose route knows the broker
    stored_topic: str  # where the broker has it: the topic itself, or a retry topic of the group
    visible_at_s: float  # on the loop's clock: from then on it may be with another consumer

    @property
    def receipt_handle(self) -> str:
        """The handle as brokers and proxies write it."""
        return self.handle.encode()


M = TypeVar("M", bound=ReceivedMessage)


def decode_messages(
    body: bytes,
    *,
    broker_name: str = "",
    min_offset: int = 0,
    max_offset: int = 0,
    on_damage: Callable[[str], None] | None = None,
) -> list[ReceivedMessage]:
    """Every record of a pull, query or view answer. Raises ClientError when the bytes are not records."""
    return decode_records(
        ReceivedMessage,
        body,
        broker_name=broker_name,
        min_offset=min_offset,
        max_offset=max_offset,
        on_damage=on_damage,
    )


def decode_records(
    kind: type[M],
    body: bytes,
    *,
    broker_name: str,
    min_offset: int = 0,
    max_offset: int = 0,
    on_damage: Callable[[str], None] | None = None,
) -> list[M]:
    """The same as messages of a kind.

    With `on_damage` each body is held against its checksum, and what is damaged is left out and reported; the records
    after it are found again, because each has a magic number and a checksum.

    About 3 us a message: 60,000 messages a second leave 16 us for everything that a consumer does.
    """
    messages: list[M] = []
    position, end = 0, len(body)
    while position < end:
        try:
            message = read_record(kind, body, position)
        except MessageError as exc:
            if on_damage is None:
                raise ClientError(f"the broker's answer of {end} bytes cannot be read: {exc}") from exc
            on_damage(str(exc))
            position = _next_record(body, position)
            continue
        position += message.size_bytes
        if on_damage is not None and (fault := _fault(message)):
            on_damage(fault)
            continue
        message.broker_name = broker_name
        message.consume_start_s = 0.0
        message.min_offset = min_offset
        message.max_offset = max_offset
        if message.sys_flag & _WRAPPED == _WRAPPED:
            messages += _parts(message)
        else:
            messages.append(message)
    return messages


def _fault(message: StoredMessage) -> str:
    """What is wrong with a body; empty when it is the one that was stored."""
    stored = message.stored_body
    found = crc32(stored) & 0x7FFFFFFF
    if found == message.body_crc or not stored:
        return ""
    return (
        f"the body of {message.topic}/{message.queue_id} at queue offset {message.queue_offset}, physical offset "
        f"{message.physical_offset}, has the checksum {found:#010x}, expected {message.body_crc & 0xFFFFFFFF:#010x}"
    )


def _next_record(body: bytes, position: int) -> int:
    """Where the next sound record begins after damage; the end if there is no more."""
    while True:
        found = [at for magic in _MAGICS if (at := body.find(magic, position + 1 + MAGIC_AT)) >= 0]
        if not found:
            return len(body)
        position = min(found) - MAGIC_AT
        try:
            if not _fault(read_record(StoredMessage, body, position)):
                return position
        except MessageError:
            continue


def _parts(message: M) -> list[M]:
    try:
        parts = unwrapped(message)
    except MessageError as exc:
        raise ClientError(f"the inner batch at offset {message.queue_offset} cannot be read: {exc}") from exc
    for part in parts:
        part.broker_name, part.consume_start_s = message.broker_name, message.consume_start_s
        part.min_offset, part.max_offset = message.min_offset, message.max_offset
    return parts
