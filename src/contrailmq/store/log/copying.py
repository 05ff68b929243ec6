"""Messages that wait in a system topic, copied into their real one as bytes: what delivery of levels and timers does.

A delivered message is its record once more, at another place. So head and body are taken over as bytes, the property
string may get an addition at its end, and only a few values are looked up in it, in one pass
(message/property_text.py). 4 us a message, where decoding and encoding took 25.

What is not of the usual form (IPv6 hosts, a long topic, a record checksum) is not copied here, and takes the way
through `decode_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Final

from contrailmq.message import Property, SysFlag, tags_code
from contrailmq.message.checksum import crc32
from contrailmq.message.property_text import Keys, key_of
from contrailmq.message.record import HEAD_V4_BYTES, HOSTS_V6, MAGIC_V1, head_struct
from contrailmq.store.base.journal import CopyPlace
from contrailmq.store.base.status import Copy

_front_of: Final = head_struct(
    "size", "magic", "body_crc", "queue_offset", "physical_offset", "sys_flag", "body_bytes"
).unpack_from
_place_in: Final = head_struct("physical_offset", "store_time").unpack_from
_UNUSUAL_FLAGS: Final = HOSTS_V6 | SysFlag.INNER_BATCH

QUEUE_ID_MAX: Final = 2**31 - 1
QUEUE_ID_DIGITS: Final = 9  # of those that are worth copying: each fits the record
COPY_MISSES_MAX: Final = 2  # groups of copies in a row of which the log took none: the next messages go one by one
_KNOWN_MAX: Final = 4096
_NO_ADDITIONS: Final[Iterable[bytes]] = repeat(b"")
_WANTED: Final = tuple(
    key_of(name)
    for name in (Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.UNIQUE_KEY, Property.TAGS, Property.KEYS)
)  # in the order in which their spans are taken
_WANTED_SPANS: Final = 2 * len(_WANTED)


def place_of(copy: Copy) -> CopyPlace:
    """Where the log has put a copy, and when: `append_copies` writes both into it."""
    physical_offset, store_time_ms = _place_in(copy.head_and_body)
    return CopyPlace(physical_offset, store_time_ms)


class Copier:
    """Makes copies of the records of one topic. Owner: who delivers them, on one thread.

    A record with a property that is `unwanted` in its copy is not copied.
    """

    def __init__(self, topic: str, *, unwanted: Iterable[str] = ()) -> None:
        self._topic = bytes((len(topic.encode()),)) + topic.encode()
        self._keys = Keys((*_WANTED, *(key_of(name) for name in (Property.CRC32, *unwanted))))
        self._places: dict[tuple[bytes, bytes], tuple[str, int]] = {}
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
        places, known_tags = self._places, self._tags
        for record, addition in zip(records, additions, strict=False):
            if len(record) < HEAD_V4_BYTES:
                break
            size, magic, body_crc, queue_offset, physical_offset, sys_flag, body_bytes = _front_of(record)
            if size != len(record) or magic != MAGIC_V1 or sys_flag & _UNUSUAL_FLAGS or body_bytes < 0:
                break
            body_end = HEAD_V4_BYTES + body_bytes
            if body_bytes and crc32(record[HEAD_V4_BYTES:body_end]) & 0x7FFFFFFF != body_crc:
                break  # a damaged body: its copy would be a damaged end of the log
            rest = record[body_end:].tobytes()
            if not rest.startswith(self._topic) or rest[-1] != _END:
                break
            spans = self._keys.find_spans(rest, len(self._topic) + 2, len(rest))
            topic_at, topic_end, queue_at, queue_end, unique_at, unique_end, tags_at, tags_end, keys_at, keys_end = (
                spans[:_WANTED_SPANS]
            )
            if any(spans[_WANTED_SPANS:]):
                break  # it has to be decoded
            topic, queue_id = rest[topic_at:topic_end], rest[queue_at:queue_end]
            place = places.get((topic, queue_id)) or self._place(topic, queue_id)
            key = str(rest[unique_at:unique_end], "utf-8", "replace") if unique_end else None
            if place is None or (is_wanted is not None and not is_wanted(place[0], key)):
                break
            tags = rest[tags_at:tags_end]
            tag, code = (known_tags.get(tags) or self._tag(tags)) if tags else (None, 0)
            names = str(rest[keys_at:keys_end], "utf-8", "replace") if keys_end else None
            properties = rest[len(self._topic) + 2 :]
            head_and_body = bytearray(record[:body_end])
            copies.append(
                _tuple(
                    Copy,
                    (place[0], place[1], head_and_body, properties + addition, code, names, key, tag, sys_flag),
                )
            )
            offsets.append((queue_offset, physical_offset))
        return copies, offsets

    def _place(self, topic: bytes, queue_id: bytes) -> tuple[str, int] | None:
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
