"""Records that are not what was stored: how a read finds them, and what is known of those found.

A queue unit has a record's place, size and offset. So does the record, which also has a checksum of its body.
`sound_count` compares both for a whole batch, in place: 1.2 us per record of 1 KiB, half of it to fetch the bytes. A
reader asks once per record (queues/sound_runs.py). A record that differs was damaged after it was written. It is never
served, and reading continues at the next unit. Properties have no checksum (unless enabledAppendPropCRC adds one):
only their length is checked. The first PLACES_MAX damaged places are kept for the log, a figure and the operator.
"""

from __future__ import annotations

import logging
import struct
import threading
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message import MessageError, StoredMessage, SysFlag
from contrailmq.message.checksum import crc32
from contrailmq.message.record import HEAD_V4_BYTES, HOSTS_V6, MAGIC_V1, RECORD_BYTES_MIN, head_struct, read_record

_log = logging.getLogger(__name__)

PLACES_MAX: Final = 1_000
_head_of: Final = head_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag", "body_bytes"
).unpack_from
_UNCOMMON: Final = HOSTS_V6 | SysFlag.LOST


class Place(NamedTuple):
    """Where a damaged record lies. Topic and queue offset are what its queue says."""

    physical_offset: int
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    reason: str


class Damage:
    """The damaged places that reads met since the store was opened. Any thread may note one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, Place] = {}
        self._guard = threading.Lock()
        self._is_full = False

    def note(self, place: Place) -> None:
        with self._guard:
            if place.physical_offset in self._places or self._is_full:
                return
            self._places[place.physical_offset] = place
            self._is_full = len(self._places) >= PLACES_MAX
        _log.error(
            "store %s: the record of %s/%d at queue offset %d, physical offset %d, %d bytes, is damaged and passed "
            "over: %s; restore the log file from a copy (`contrailmq store verify` finds what else is damaged)",
            self._path,
            place.topic,
            place.queue_id,
            place.queue_offset,
            place.physical_offset,
            place.size_bytes,
            place.reason,
        )
        if self._is_full:
            _log.error("store %s: %d damaged records are known, more are not reported", self._path, PLACES_MAX)

    @property
    def count(self) -> int:
        """How many are known; PLACES_MAX stands for so many or more."""
        return len(self._places)

    def places(self) -> list[Place]:
        """In the order of the log."""
        with self._guard:
            return sorted(self._places.values())


def sound_count(
    view: memoryview,
    base: int,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    topic: bytes,
    queue_id: int,
    queue_offset: int,
) -> int:
    """How many records, from the first on, are what their queue says; `fault_of` says why the next one is not.

    They lie at these physical offsets in a view that begins at `base`, and have queue offsets from `queue_offset` on.
    Without a topic (of a light queue, whose records are another topic's) neither topic nor queue is compared. A record
    of an uncommon shape (IPv6 hosts, a long topic) ends the count.
    """
    topic_bytes = len(topic)
    unpack_tail = _tail_struct(topic_bytes).unpack_from
    count = 0
    for physical_offset, size in zip(offsets, sizes, strict=True):
        if size < RECORD_BYTES_MIN:
            break
        begin = physical_offset - base
        head: tuple[int, int, int, int, int, int, int, int] = _head_of(view, begin)
        own_size, magic, crc, own_queue, own_queue_offset, own_offset, sys_flag, body_bytes = head
        body_begin = begin + HEAD_V4_BYTES
        body_end = body_begin + body_bytes
        if (
            magic != MAGIC_V1
            or own_size != size
            or own_offset != physical_offset
            or sys_flag & _UNCOMMON
            or (topic_bytes and (own_queue_offset != queue_offset + count or own_queue != queue_id))
            or not 0 <= body_bytes <= size - RECORD_BYTES_MIN
        ):
            break
        if not topic_bytes:
            unpack_tail = _tail_struct(view[body_end]).unpack_from
        try:
            tail: tuple[int, bytes, int] = unpack_tail(view, body_end)
        except struct.error:  # the view ends before
            break
        topic_length, own_topic, properties_bytes = tail
        if (
            begin + size - body_end != 3 + len(own_topic) + properties_bytes
            or topic_length != len(own_topic)
            or (topic_bytes and own_topic != topic)
            or (body_bytes and crc32(view[body_begin:body_end]) & 0x7FFFFFFF != crc)
        ):
            break
        count += 1
    return count


@lru_cache(256)
def _tail_struct(topic_bytes: int) -> struct.Struct:
    """What follows the body under V1, up to the properties."""
    return struct.Struct(f">B{topic_bytes}sH")


def fault_of(record: memoryview, physical_offset: int, topic: bytes, queue_id: int, queue_offset: int) -> str:
    """Why these bytes are not the record that a queue means; empty when they are. The rules are `sound_count`'s."""
    if sound_count(record, physical_offset, (physical_offset,), (len(record),), topic, queue_id, queue_offset):
        return ""
    return _fault_in_words(record, physical_offset, topic, queue_id, queue_offset)


def _fault_in_words(record: memoryview, physical_offset: int, topic: bytes, queue_id: int, queue_offset: int) -> str:
    """The same for every shape of record, slower."""
    try:
        said = read_record(StoredMessage, record)
    except MessageError as exc:
        return str(exc)
    if said.size_bytes != len(record):
        return f"it says {said.size_bytes} bytes, its queue {len(record)}"
    if said.physical_offset != physical_offset:
        return f"it says physical offset {said.physical_offset}"
    if topic and (said.queue_id, said.queue_offset) != (queue_id, queue_offset):
        return f"it says queue {said.queue_id}, queue offset {said.queue_offset}"
    if topic and said.topic.encode(errors="replace") != topic:
        return f"it says topic {said.topic[:64]!r}"
    return body_fault(said)


def body_fault(message: StoredMessage) -> str:
    """Why a body is not the one that was stored; empty when it is."""
    if message.sys_flag & SysFlag.LOST:
        return "an interrupted `contrailmq store repair` left a placeholder there: run it again"
    body = message.stored_body
    found = crc32(body) & 0x7FFFFFFF
    if not body or found == message.body_crc:
        return ""
    return f"its body has the checksum {found:#010x}, not {message.body_crc & 0xFFFFFFFF:#010x}"
