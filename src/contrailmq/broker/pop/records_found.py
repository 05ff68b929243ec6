"""The messages of a read, one by one: their offsets, and their form for a consumer.

Messages of a topic go out as they lie in the log. Those of a retry topic are written anew: they lose the property that
is ours, and get the name of the topic that was asked for and the handle that acknowledges them (POP_CK).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from contrailmq.message import Property, encode_properties
from contrailmq.message.codec import decode_record, encode_record
from contrailmq.message.property_text import key_of
from contrailmq.message.record import head_struct, view_record
from contrailmq.wire.pop_strings import PopHandle

ORIGIN_PROPERTY: Final = "CONTRAIL_POP_OF"  # of a copy: the message that it is of, and that one's pop

_ORIGIN_GROUP: Final = key_of(Property.ORIGIN_GROUP)
_size_and_offset: Final = head_struct("size", "queue_offset").unpack_from


def split_records(slices: Iterable[memoryview]) -> Iterator[tuple[int, memoryview]]:
    """(offset in its queue, record) of each; a slice may hold several."""
    for part in slices:
        at, end = 0, len(part)
        while at < end:
            size, queue_offset = _size_and_offset(part, at)
            yield queue_offset, part[at : at + size]
            at += size


def is_of_group(record: memoryview, group: str) -> bool:
    """Whether a message of a retry topic is meant for a group: `%RETRY%a_b_c` is that of two (RocketMQ #7543)."""
    origin = view_record(record).find(_ORIGIN_GROUP)
    return origin is None or origin == group


def as_retried(record: memoryview, topic: str, handle: PopHandle | None) -> bytes:
    """A record of a retry topic for a consumer of `topic`; without a handle the client makes it, as for any other."""
    message = decode_record(record)
    properties = dict(message.properties)
    properties.pop(ORIGIN_PROPERTY, None)
    if handle is not None:
        properties[Property.POP_CHECKPOINT] = handle.encode()
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
