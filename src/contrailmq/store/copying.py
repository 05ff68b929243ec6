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
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import repeat
from typing import Final

from contrailmq.message import Property, SysFlag, decode_properties, tags_code
from contrailmq.store.record import MAGIC_V1
from contrailmq.store.status import Copy

_FRONT: Final = struct.Struct(">ii12xqqi44xi")  # size, magic, queue_offset, physical_offset, sys_flag, body_length
FRONT_BYTES: Final = 88
assert _FRONT.size == FRONT_BYTES
front_of: Final = _FRONT.unpack_from
UNUSUAL_FLAGS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH

_NO_ADDITIONS: Final[Iterable[bytes]] = repeat(b"")

# queue offset, physical offset, where the body ends, where the properties begin, flags, text (see above)
Parts = tuple[int, int, int, int, int, str]


def property_key(name: str) -> str:
    """What a property begins with inside of `text`."""
    return f"\x02{name}\x01"


COPY_MISSES_MAX: Final = 2  # groups of copies in a row of which the log took none: the next messages go one by one
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
    if len(record) < FRONT_BYTES:
        return None
    size, magic, queue_offset, physical_offset, sys_flag, body_length = front_of(record)
    if size != len(record) or magic != MAGIC_V1 or sys_flag & UNUSUAL_FLAGS:
        return None
    body_end = FRONT_BYTES + body_length
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


def real_copies(
    records: Iterable[memoryview],
    topic: bytes,
    additions: Iterable[bytes] = _NO_ADDITIONS,
    is_plain: Callable[[str], bool] | None = None,
) -> tuple[list[Copy], list[tuple[int, int]]]:
    """Records of a topic (see `topic_part`) as they go into their real ones, up to one that has to be decoded for that.

    With them the (queue offset, physical offset) of each. `additions` go to the end of the properties; `is_plain` may
    say of a text that the record has to be decoded. One loop for all, over local names: a third less than with a call
    for each step of each record.
    """
    copies: list[Copy] = []
    offsets: list[tuple[int, int]] = []
    topic_bytes = len(topic)
    for record, addition in zip(records, additions, strict=False):
        if len(record) < FRONT_BYTES:
            break
        size, magic, queue_offset, physical_offset, sys_flag, body_length = front_of(record)
        body_end = FRONT_BYTES + body_length
        start = body_end + topic_bytes + 2
        if size != len(record) or magic != MAGIC_V1 or sys_flag & UNUSUAL_FLAGS or body_length < 0 or start > size:
            break
        text = "\x02" + str(record[start:], "utf-8", "replace")
        find, rfind = text.find, text.rfind
        at = rfind(REAL_TOPIC)
        if at < 0 or text[-1] != "\x02" or record[body_end : start - 2] != topic or find(_CRC32) >= 0:
            break
        place = (_known_destination(text[at:]) if len(text) - at <= TAIL_MAX else None) or _destination(text)
        if place is None or (is_plain is not None and not is_plain(text)):
            break
        # `value_of`, without three calls
        tags = keys = unique_key = None
        if (begin := rfind(_TAGS)) >= 0:
            end = find("\x02", begin := begin + _TAGS_SIZE)
            tags = text[begin:end] if end > begin else value_of(text, _TAGS)
        if (begin := rfind(_KEYS)) >= 0:
            end = find("\x02", begin := begin + _KEYS_SIZE)
            keys = text[begin:end] if end > begin else value_of(text, _KEYS)
        if (begin := rfind(_UNIQUE_KEY)) >= 0:
            end = find("\x02", begin := begin + _UNIQUE_KEY_SIZE)
            unique_key = text[begin:end] if end > begin else value_of(text, _UNIQUE_KEY)
        head_and_body, properties = bytearray(record[:body_end]), record[start:].tobytes() + addition
        code = 0 if tags is None else _code(tags)
        copies.append(
            _tuple(Copy, (place[0], place[1], head_and_body, properties, code, keys, unique_key, tags, sys_flag))
        )
        offsets.append((queue_offset, physical_offset))
    return copies, offsets


_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less


def _destination(text: str) -> tuple[str, int] | None:
    """Topic and queue of a text; None when it does not say both."""
    topic, queue_id = value_of(text, REAL_TOPIC), value_of(text, _QUEUE_ID)
    if topic is None or queue_id is None or not (queue_id.isascii() and queue_id.isdigit()):
        return None
    return topic, int(queue_id)


_known_destination: Final = lru_cache(maxsize=4096)(_destination)
_code: Final = lru_cache(maxsize=4096)(tags_code)
