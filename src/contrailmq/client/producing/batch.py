"""Several messages in one request: which may travel together, and how they are packed (`message/batch.py`).

All messages of a batch go to one queue and are acknowledged together. They share the topic and WAIT; none is
delayed, transactional or a retry. The limit is one for the whole batch (4 MiB by default; RocketMQ's
documents advise 1 MiB), and cutting a long list into batches is the caller's decision: `split_batch` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from contrailmq.message import RETRY_PREFIX, Message, MessageError, Property, create_unique_ids, encode_properties
from contrailmq.message.batch import BATCH_PART_BYTES_MIN, encode_batch

BATCH_BYTES_ADVISED: Final = 1024 * 1024  # what RocketMQ's documents advise; brokers accept 4 MiB
_TIMERS: Final = (Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SECONDS, Property.TIMER_DELIVER_MS)
_DELAYS: Final = frozenset({Property.DELAY, *_TIMERS})
_UNIQUE_KEY_BYTES: Final = 8 + 1 + 56 + 1  # room for the id that sending adds, IPv6 form


def check_batch(messages: Sequence[Message]) -> None:
    """Raise MessageError unless the messages may travel as one batch."""
    if not messages:
        raise _refuse("a batch needs at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise _refuse(f"a batch cannot go to the retry topic {first.topic!r}: send one by one")
    for index, message in enumerate(messages):
        if message.topic != first.topic:
            raise _refuse(
                f"message {index} of the batch has topic {message.topic!r}, the first {first.topic!r}: they must agree"
            )
        if not _DELAYS.isdisjoint(message.properties) and _is_delayed(message):
            raise _refuse(f"message {index} of the batch is delayed: send delayed messages one by one")
        if message.properties.get(Property.WAIT) != first.properties.get(Property.WAIT):
            raise _refuse(f"message {index} of the batch differs in wait_store_ok: it must be the same for all")


def pack_batch(messages: Sequence[Message], *, namespace: str = "") -> tuple[bytes, list[str]]:
    """The request body, and the unique ids: messages without one get it here.

    Messages of a batch often have equal properties; these are encoded once (0.6 us less for each of the others).
    """
    parts: list[tuple[int, bytes, bytes]] = []
    ids = create_unique_ids(len(messages))
    common: dict[str, str] | None = None
    encoded = b""
    for index, message in enumerate(messages):
        properties = message.properties
        if properties != common:
            common = properties
            own = {**properties, Property.INSTANCE_ID: namespace} if namespace else properties
            encoded = encode_properties(own)
        unique_key = properties.get(Property.UNIQUE_KEY)
        if unique_key is None:
            part = encoded + b"%b\x01%b\x02" % (_UNIQUE_KEY, ids[index].encode())
        else:
            part, ids[index] = encoded, unique_key
        parts.append((message.flag, message.body, part))
    return encode_batch(parts), ids


_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()


def item_bytes(message: Message) -> int:
    """The size of one message inside a batch, with the unique id that sending adds."""
    return BATCH_PART_BYTES_MIN + len(message.body) + len(encode_properties(message.properties)) + _UNIQUE_KEY_BYTES


def split_batch(messages: Iterable[Message], *, max_bytes: int = BATCH_BYTES_ADVISED) -> Iterator[list[Message]]:
    """Cut a list into batches of at most `max_bytes`, in order. A message that alone is too large is an error."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        one = item_bytes(message)
        if one > max_bytes:
            raise _refuse(f"one message takes {one} bytes in a batch, the limit is {max_bytes}: send it alone")
        if batch and size + one > max_bytes:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += one
    if batch:
        yield batch


def _is_delayed(message: Message) -> bool:
    return message.delay_level > 0 or any(name in message.properties for name in _TIMERS)


def _refuse(text: str) -> MessageError:
    return MessageError(text, field="batch")
