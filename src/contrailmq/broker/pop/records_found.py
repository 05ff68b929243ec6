"""The messages of a read, one by one: their offsets, and their form for a consumer.

Messages of a topic go out as they lie in the log. Those of a retry topic are written anew: they lose the property that
is ours, and get the name of the topic that was asked for and the handle that acknowledges them (POP_CK).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from contrailmq.message import MessageError, Property, StoredMessage, SysFlag, encode_properties
from contrailmq.message.codec import decode_record, encode_record, unwrap_inner_batch
from contrailmq.message.property_text import key_of
from contrailmq.message.record import head_struct, view_record
from contrailmq.wire.pop_strings import PopHandle

ORIGIN_PROPERTY: Final = "CONTRAIL_POP_OF"  # of a copy: the message that it is of, and that one's pop

_ORIGIN_GROUP: Final = key_of(Property.ORIGIN_GROUP)
FoundRecord = tuple[Sequence[int], memoryview | bytes]  # offsets in its queue, and the record

_INNER_NUM: Final = key_of(Property.INNER_NUM)
_size_offset_flags: Final = head_struct("size", "queue_offset", "sys_flag").unpack_from


def split_records(slices: Iterable[memoryview]) -> Iterator[tuple[Sequence[int], memoryview]]:
    """(offsets in its queue, record) of each; a slice may hold several. Only an inner batch has more than one."""
    for part in slices:
        at, end = 0, len(part)
        while at < end:
            size, queue_offset, sys_flag = _size_offset_flags(part, at)
            record = part[at : at + size]
            count = _inner_count(record) if sys_flag & SysFlag.INNER_BATCH else 1
            yield range(queue_offset, queue_offset + count), record
            at += size


def message_at(record: StoredMessage, offset: int) -> StoredMessage | None:
    """The message with an offset in a record of its queue; None where there is none."""
    try:
        return next((message for message in unwrap_inner_batch(record) if message.queue_offset == offset), None)
    except MessageError:
        return None


def _inner_count(record: memoryview) -> int:
    text = view_record(record).find(_INNER_NUM)
    return max(int(text), 1) if text is not None and text.isascii() and text.isdigit() and len(text) <= 5 else 1


def is_of_group(record: memoryview | bytes, group: str) -> bool:
    """Whether a message of a retry topic is meant for a group: `%RETRY%a_b_c` is that of two (RocketMQ #7543)."""
    origin = view_record(record).find(_ORIGIN_GROUP)
    return origin is None or origin == group


def as_retried(record: memoryview | bytes, topic: str, handle: PopHandle | None) -> bytes:
    """A record of a retry topic for a consumer of `topic`; without a handle the client makes it, as for any other."""
    message = decode_record(record)
    properties = dict(message.properties)
    properties.pop(ORIGIN_PROPERTY, None)
    if handle is not None:
        properties[Property.POP_CHECKPOINT] = handle.encode()
    return _encoded(message, topic, properties)


def rest_of_batch(record: memoryview | bytes, start: int) -> list[FoundRecord]:
    """The messages of an inner batch from an offset on, each as a record of its own, with its offset."""
    messages = unwrap_inner_batch(decode_record(record))
    return [
        ((message.queue_offset,), _encoded(message, message.topic, message.properties))
        for message in messages
        if message.queue_offset >= start
    ]


def _encoded(message: StoredMessage, topic: str, properties: Mapping[str, str]) -> bytes:
    return encode_record(
        topic,
        message.stored_body,
        encode_properties(properties),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        born_host=message.born_host_bytes,
        store_host=message.store_host_bytes,
        born_time_ms=message.born_time_ms,
        store_time_ms=message.store_time_ms,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body_bytes_max=max(len(message.stored_body), 1),
    )
