"""Messages that wait in a system topic, copied into their real one as bytes: what delivery of levels and timers does.

    text := 0x02 properties                so that every property, the first too, begins with 0x02 name 0x01

A delivered message is its record once more, at another place. So head and body are taken over as bytes, the property
string may get an addition at its end, and only five values are looked up in it: 6 us where decoding and encoding took
25. What is not of the usual form (IPv6 hosts, a long topic, a record checksum) is None here, and takes the way through
`decode_record`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from contrailmq.message import Property, SysFlag, decode_properties, tags_code
from contrailmq.store.record import MAGIC_V1
from contrailmq.store.status import Copy

_FRONT: Final = struct.Struct(">ii12xqqi44xi")  # size, magic, queue_offset, physical_offset, sys_flag, body_length
_FRONT_BYTES: Final = 88
assert _FRONT.size == _FRONT_BYTES
_UNUSUAL_FLAGS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH

Parts = tuple[int, int, int, int, bytes]  # queue offset, physical offset, where the body ends, flags, text (see above)


def property_key(name: str) -> bytes:
    """What a property begins with inside of `text`."""
    return b"\x02" + name.encode() + b"\x01"


REAL_TOPIC: Final = property_key(Property.REAL_TOPIC)
_CRC32: Final = property_key(Property.CRC32)
_COPIED: Final = tuple(
    (property_key(name), len(property_key(name)))
    for name in (Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.TAGS, Property.KEYS, Property.UNIQUE_KEY)
)


def topic_part(topic: str) -> bytes:
    """A short topic as a record holds it."""
    return bytes((len(topic.encode()),)) + topic.encode()


def split(record: memoryview, topic: bytes) -> Parts | None:
    """None when it is no record of the usual form, or not of this topic (see `topic_part`)."""
    if len(record) < _FRONT_BYTES:
        return None
    size, magic, queue_offset, physical_offset, sys_flag, body_length = _FRONT.unpack_from(record)
    if size != len(record) or magic != MAGIC_V1 or sys_flag & _UNUSUAL_FLAGS:
        return None
    body_end = _FRONT_BYTES + body_length
    start = body_end + len(topic) + 2
    if body_length < 0 or start > size or record[body_end : start - 2] != topic:
        return None
    return queue_offset, physical_offset, body_end, sys_flag, b"\x02" + record[start:]


def value_of(text: bytes, key: bytes) -> bytes | None:
    """The value behind a key, as `decode_properties` finds it: of two equal names the last that has a value."""
    start = text.rfind(key)
    if start < 0:
        return None
    start += len(key)
    end = text.find(b"\x02", start)
    value = text[start:] if end < 0 else text[start:end]
    if not value:
        found = decode_properties(text).get(key[1:-1].decode())
        return None if found is None else found.encode()
    return value


def real_copy(record: memoryview, parts: Parts, addition: bytes = b"") -> Copy | None:
    """The record as it goes into its real topic; None when it has to be decoded for that."""
    _, _, body_end, sys_flag, text = parts
    if text[-1] != 2 or _CRC32 in text:
        return None
    values: list[bytes | None] = []
    find, rfind = text.find, text.rfind
    for key, key_bytes in _COPIED:  # `value_of`, without five calls
        start = rfind(key)
        if start < 0:
            values.append(None)
        else:
            start += key_bytes
            end = find(b"\x02", start)
            values.append(text[start:end] if end > start else value_of(text, key))
    topic, queue_id, tags, keys, unique_key = values
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    tags_text, code = (None, 0) if tags is None else _tags(tags)
    return _tuple(
        Copy,
        (
            topic_text(topic),
            int(queue_id),
            bytearray(record[:body_end]),
            text[1:] + addition,
            code,
            None if keys is None else str(keys, "utf-8", "replace"),
            None if unique_key is None else str(unique_key, "utf-8", "replace"),
            tags_text,
            sys_flag,
        ),
    )


_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less


@lru_cache(maxsize=4096)
def topic_text(value: bytes) -> str:
    return str(value, "utf-8", "replace")


@lru_cache(maxsize=4096)
def _tags(value: bytes) -> tuple[str, int]:
    text = str(value, "utf-8", "replace")
    return text, tags_code(text)
