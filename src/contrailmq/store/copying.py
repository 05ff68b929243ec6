"""Messages that wait in a system topic, copied into their real one as bytes: what delivery of levels and timers does.

    text := 0x02 properties                so that every property, the first too, begins with 0x02 name 0x01

A delivered message is its record once more, at another place. So head and body are taken over as bytes, the property
string may get an addition at its end, and only a few values are looked up in it: 5 us where decoding and encoding took
25. Where it goes to stands at the end of the property string (the broker put it there), and is the same for many
messages: it is looked up once. What is not of the usual form (IPv6 hosts, a long topic, a record checksum) is None
here, and takes the way through `decode_record`.
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

# queue offset, physical offset, where the body ends, where the properties begin, flags, text (see above)
Parts = tuple[int, int, int, int, int, str]


def property_key(name: str) -> str:
    """What a property begins with inside of `text`."""
    return f"\x02{name}\x01"


TAIL_MAX: Final = 256  # characters of a text's end that are worth remembering
REAL_TOPIC: Final = property_key(Property.REAL_TOPIC)
_QUEUE_ID: Final = property_key(Property.REAL_QUEUE_ID)
_CRC32: Final = property_key(Property.CRC32)
_TAGS: Final = property_key(Property.TAGS)
_KEYS: Final = property_key(Property.KEYS)
_UNIQUE_KEY: Final = property_key(Property.UNIQUE_KEY)
_TAGS_SIZE, _KEYS_SIZE, _UNIQUE_KEY_SIZE = map(len, (_TAGS, _KEYS, _UNIQUE_KEY))


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
    return queue_offset, physical_offset, body_end, start, sys_flag, "\x02" + str(record[start:], "utf-8", "replace")


def value_of(text: str, key: str) -> str | None:
    """The value behind a key, as `decode_properties` finds it: of two equal names the last that has a value."""
    start = text.rfind(key)
    if start < 0:
        return None
    start += len(key)
    end = text.find("\x02", start)
    value = text[start:] if end < 0 else text[start:end]
    return value or decode_properties(text).get(key[1:-1])


def real_copy(record: memoryview, parts: Parts, addition: bytes = b"") -> Copy | None:
    """The record as it goes into its real topic; None when it has to be decoded for that."""
    _, _, body_end, properties_start, sys_flag, text = parts
    rfind, find = text.rfind, text.find
    at = rfind(REAL_TOPIC)
    if at < 0 or text[-1] != "\x02" or rfind(_CRC32) >= 0:
        return None
    place = (_known_destination(text[at:]) if len(text) - at <= TAIL_MAX else None) or _destination(text)
    if place is None:
        return None
    # `value_of`, without three calls
    tags = keys = unique_key = None
    if (start := rfind(_TAGS)) >= 0:
        end = find("\x02", start := start + _TAGS_SIZE)
        tags = text[start:end] if end > start else value_of(text, _TAGS)
    if (start := rfind(_KEYS)) >= 0:
        end = find("\x02", start := start + _KEYS_SIZE)
        keys = text[start:end] if end > start else value_of(text, _KEYS)
    if (start := rfind(_UNIQUE_KEY)) >= 0:
        end = find("\x02", start := start + _UNIQUE_KEY_SIZE)
        unique_key = text[start:end] if end > start else value_of(text, _UNIQUE_KEY)
    return _tuple(
        Copy,
        (
            place[0],
            place[1],
            bytearray(record[:body_end]),
            record[properties_start:].tobytes() + addition,
            0 if tags is None else _code(tags),
            keys,
            unique_key,
            tags,
            sys_flag,
        ),
    )


_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less


def _destination(text: str) -> tuple[str, int] | None:
    """Topic and queue of a text; None when it does not say both."""
    topic, queue_id = value_of(text, REAL_TOPIC), value_of(text, _QUEUE_ID)
    if topic is None or queue_id is None or not (queue_id.isascii() and queue_id.isdigit()):
        return None
    return topic, int(queue_id)


_known_destination: Final = lru_cache(maxsize=4096)(_destination)
_code: Final = lru_cache(maxsize=4096)(tags_code)
