"""Messages that wait in a system topic, copied into their real one as bytes: what delivery of levels and timers does.

    text := 0x02 properties                so that every property, the first too, begins with 0x02 name 0x01

A delivered message is its record once more, at another place. So head and body are taken over as bytes, the property
string may get an addition at its end, and only a few values are looked up in it. The messages of one producer have the
same names of properties in the same order, a `Shape`: a pattern made of it finds the values of the next message with
one call. 3 us a message, where a search for each value took 5, and decoding and encoding 25.

What is not of the usual form (IPv6 hosts, a long topic, a record checksum) is not copied here, and takes the way
through `decode_record`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Final

from contrailmq.message import Property, SysFlag, decode_properties, tags_code
from contrailmq.message.checksum import crc32
from contrailmq.message.codec import MAGIC_V1
from contrailmq.store.base.journal import CopyPlace
from contrailmq.store.base.status import Copy

_FRONT: Final = struct.Struct(">ii12xqqi44xi")  # size, magic, queue_offset, physical_offset, sys_flag, body_length
FRONT_BYTES: Final = 88
assert _FRONT.size == FRONT_BYTES
front_of: Final = _FRONT.unpack_from
_PLACE: Final = struct.Struct(">28xq20xq")  # physical_offset, store_time
_BODY_CRC: Final = struct.Struct(">8xi")
UNUSUAL_FLAGS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH

_NO_ADDITIONS: Final[Iterable[bytes]] = repeat(b"")

# queue offset, physical offset, where the body ends, where the properties begin, flags, text (see above)
Parts = tuple[int, int, int, int, int, str]


def property_key(name: str) -> str:
    """What a property begins with inside of `text`."""
    return f"\x02{name}\x01"


QUEUE_ID_MAX: Final = 2**31 - 1
QUEUE_ID_DIGITS: Final = 9  # of those that are worth copying: each fits the record
COPY_MISSES_MAX: Final = 2  # groups of copies in a row of which the log took none: the next messages go one by one
TAIL_MAX: Final = 256  # characters of a text's end that are worth remembering
REAL_TOPIC: Final = property_key(Property.REAL_TOPIC)


def place_of(copy: Copy) -> CopyPlace:
    """Where the log has put a copy, and when: `append_copies` writes both into it."""
    physical_offset, store_time_ms = _PLACE.unpack_from(copy.head_and_body)
    return CopyPlace(physical_offset, store_time_ms)


def topic_part(topic: str) -> bytes:
    """A short topic as a record holds it."""
    return bytes((len(topic.encode()),)) + topic.encode()


def split(record: memoryview, topic: bytes) -> Parts | None:
    """None if it is not a record of the usual form, or not of this topic (see `topic_part`)."""
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


class Shape:
    """The names of a record's properties, in their order, as a pattern of what follows the body."""

    __slots__ = ("match", "picked")

    def __init__(self, topic: bytes, names: Sequence[bytes]) -> None:
        found = [name for name in names if name in _PICKED]
        pieces = (re.escape(name) + (_VALUE_GROUP if name in _PICKED else _VALUE) for name in names)
        self.match = re.compile(re.escape(topic) + b"(?s:..)(" + b"".join(pieces) + b")((?!))?").fullmatch
        # Of the match: all properties, then the values in the order of _PICKED; the last group is never there.
        self.picked = (1, *(found.index(name) + 2 if name in found else len(found) + 2 for name in _PICKED))


_PICKED: Final = tuple(
    name.encode()
    for name in (Property.TAGS, Property.KEYS, Property.UNIQUE_KEY, Property.REAL_TOPIC, Property.REAL_QUEUE_ID)
)
_VALUE: Final = b"\x01[^\x02]*+\x02"
_VALUE_GROUP: Final = b"\x01([^\x02]*+)\x02"
SHAPES_MAX: Final = 8  # tried before a record is looked at without one: each takes 0.2 us
_SEEN_MAX: Final = 256
_KNOWN_MAX: Final = 4096

# all properties, then the values in the order of _PICKED
_Values = tuple[bytes, bytes | None, bytes | None, bytes | None, bytes | None, bytes | None]


class Copier:
    """Makes copies of the records of one topic. Owner: who delivers them, on one thread.

    A record with a property that is `unwanted` in its copy is not copied.
    """

    def __init__(self, topic: str, *, unwanted: Iterable[str] = ()) -> None:
        self._topic = topic_part(topic)
        self._unwanted = frozenset(name.encode() for name in (Property.CRC32, *unwanted))
        self._shapes: list[Shape] = []  # the one that was found last comes first
        self._seen: dict[tuple[bytes, ...], None] = {}  # once: making a pattern costs as much as many copies
        self._places: dict[tuple[bytes | None, bytes | None], tuple[str, int]] = {}
        self._tags: dict[bytes, tuple[str, int]] = {}

    def copies(
        self,
        records: Iterable[memoryview],
        additions: Iterable[bytes] = _NO_ADDITIONS,
        is_wanted: Callable[[str, str | None], bool] | None = None,
    ) -> tuple[list[Copy], list[tuple[int, int]]]:
        """Records as they go into their real topics, up to one that is not copied, and (queue, physical) offsets.

        `additions` go to the end of the properties; `is_wanted` may say no to a topic and a unique key.
        """
        copies: list[Copy] = []
        offsets: list[tuple[int, int]] = []
        places, known_tags, shapes = self._places, self._tags, self._shapes
        for record, addition in zip(records, additions, strict=False):
            if len(record) < FRONT_BYTES:
                break
            size, magic, queue_offset, physical_offset, sys_flag, body_length = front_of(record)
            if size != len(record) or magic != MAGIC_V1 or sys_flag & UNUSUAL_FLAGS or body_length < 0:
                break
            body_end = FRONT_BYTES + body_length
            if body_length and crc32(record[FRONT_BYTES:body_end]) & 0x7FFFFFFF != _BODY_CRC.unpack_from(record)[0]:
                break  # a damaged body: its copy would be a damaged end of the log
            shape = shapes[0] if shapes else None
            match = None if shape is None else shape.match(record, body_end)
            values = match.group(*shape.picked) if shape and match else self._values(record, body_end)
            if values is None:
                break
            properties, tags, keys, unique_key, topic, queue_id = values
            place = places.get((topic, queue_id)) or self._place(topic, queue_id)
            key = str(unique_key, "utf-8", "replace") if unique_key else None
            if place is None or (is_wanted is not None and not is_wanted(place[0], key)):
                break
            tag, code = (known_tags.get(tags) or self._tag(tags)) if tags else (None, 0)
            names = str(keys, "utf-8", "replace") if keys else None
            head_and_body = bytearray(record[:body_end])
            copies.append(
                _tuple(
                    Copy,
                    (place[0], place[1], head_and_body, properties + addition, code, names, key, tag, sys_flag),
                )
            )
            offsets.append((queue_offset, physical_offset))
        return copies, offsets

    def _values(self, record: memoryview, body_end: int) -> _Values | None:
        """Of a record that is not of the newest shape; None when it has to be decoded."""
        for index, shape in enumerate(self._shapes):
            match = shape.match(record, body_end)
            if match is not None:
                self._shapes.insert(0, self._shapes.pop(index))
                properties, tags, keys, unique_key, topic, queue_id = match.group(*shape.picked)
                return properties, tags, keys, unique_key, topic, queue_id
        rest = record[body_end:].tobytes()
        if not rest.startswith(self._topic) or rest[-1] != _END or len(rest) < len(self._topic) + 2:
            return None
        properties = rest[len(self._topic) + 2 :]
        pieces = [piece.partition(b"\x01") for piece in properties.split(b"\x02")[:-1]]
        values = {name: value for name, _, value in pieces if name and value}
        if not self._unwanted.isdisjoint(values):
            return None
        names = tuple(name for name, separator, _ in pieces if name and separator)
        if len(names) == len(pieces) and len(set(names)) == len(names) and self._unwanted.isdisjoint(names):
            self._note(names)
        tags, keys, unique_key, topic, queue_id = map(values.get, _PICKED)
        return properties, tags, keys, unique_key, topic, queue_id

    def _note(self, names: tuple[bytes, ...]) -> None:
        if names not in self._seen:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen[names] = None
            return
        self._shapes.insert(0, Shape(self._topic, names))
        del self._shapes[SHAPES_MAX:]

    def _place(self, topic: bytes | None, queue_id: bytes | None) -> tuple[str, int] | None:
        """None when the properties do not say both."""
        if not topic or not queue_id or not queue_id.isdigit() or len(queue_id) > QUEUE_ID_DIGITS:
            return None
        if len(self._places) >= _KNOWN_MAX:
            self._places.clear()
        place = self._places[topic, queue_id] = str(topic, "utf-8", "replace"), int(queue_id)
        return place

    def _tag(self, tags: bytes) -> tuple[str, int]:
        if len(self._tags) >= _KNOWN_MAX:
            self._tags.clear()
        text = str(tags, "utf-8", "replace")
        known = self._tags[tags] = text, tags_code(text)
        return known


_END: Final = 2  # the last byte of a property string
_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less
