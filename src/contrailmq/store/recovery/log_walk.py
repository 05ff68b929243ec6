"""Walks the commit log from record to record, as fast as plain Python goes. Recovery, verify and rebuild use it.

`walk` hands every whole record of one file to a `Sink` without decoding it: fixed fields as numbers, topic and
properties as bytes. The first thing that is not a whole record ends the walk and is returned as the verdict. The buffer
should be a mapping, whose slices are bytes. `_common` reads the common shape (magic V1, both hosts IPv4) and leaves
every doubt to `check_record`.

Two shorter loops serve most of recovery: `_judged` passes records that only have to be whole, `_expected` those whose
unit is nearly always right, which it finds by queue id and topic. Both repeat the shape test to save a call per record.
A record of 1 KiB takes 1.3 us there and 2.4 us here, checksum included; handing it over takes 2 us and the sink's time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from mmap import MADV_DONTNEED, mmap
from typing import Final, NamedTuple, Protocol

from contrailmq.message.checksum import crc32
from contrailmq.message.codec import BLANK_MAGIC, Kind, Verdict, check_record
from contrailmq.message.record import (
    HEAD_V4_BYTES,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    RecordView,
    head_struct,
    read_store_time,
    view_record,
)
from contrailmq.store.queues.derivation import IN_NO_QUEUE

_PLACE: Final = ("size", "magic", "body_crc", "physical_offset", "sys_flag", "body_bytes")
_HEAD: Final = head_struct(*_PLACE, "queue_id", "queue_offset", "store_time")
_SHORT_HEAD: Final = head_struct(*_PLACE, "queue_id", "queue_offset")
_SHORTEST_HEAD: Final = head_struct(*_PLACE)
_QUEUE_UNIT: Final = struct.Struct(">qiq")
_TAGS: Final = b"TAGS\x01"
_UNCOMMON: Final = HOSTS_V6 | IN_NO_QUEUE
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC))


class LogFile(Protocol):
    """A file of the commit log, mapped. MappedFile is one; so is what verify maps for reading only."""

    @property
    def base(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def mapping(self) -> mmap: ...


class Sink(Protocol):
    """Takes each record of a walk, in log order."""

    def take(self, record: RecordView, /) -> None: ...


class Unheard:
    """A sink for a walk whose end alone matters."""

    def take(self, _record: RecordView, /) -> None:
        """Nobody listens."""


class Expected(Protocol):
    """A queue, what stands in it from `block_first` up to `block_end`, and which offset its next record should have."""

    topic_part: bytes  # the topic's length and bytes, as in a record
    topic_bytes: int  # of that
    block: bytes
    block_first: int
    block_end: int
    next_offset: int


class Expects(NamedTuple):
    """What a walk needs to find by itself that a record's unit is right."""

    likely: dict[int, Expected]  # by queue id: the one seen last
    queues: Mapping[tuple[bytes, int], Expected]  # by topic and queue id; of those whose units hold tags codes
    marks: dict[int, bytes]  # by tags code: a tag that has it, and the separator behind it
    begin: int  # of the physical offsets for which this holds
    end: int


class WalkEnd(NamedTuple):
    """Where a walk of one file ended and what is there; how many records it saw; the last one's offset and time."""

    position: int
    verdict: Verdict
    records: int
    last_offset: int
    store_time_ms: int


def walk(
    file: LogFile,
    sink: Sink,
    *,
    position: int = 0,
    limit: int | None = None,
    check_body_crc: bool,
    check_record_crc: bool = False,
    take_from: int = 0,
    expects: Expects | None = None,
) -> WalkEnd:
    """Every whole record from `position` (a record's begin) up to the first thing that is not one, or to `limit`.

    All are judged; those below the physical offset `take_from` are not handed over, nor those that are as expected.
    """
    buffer, base, end_of_data = file.mapping, file.base, file.size_bytes if limit is None else limit
    take = sink.take
    records = store_time = 0
    last = -1
    with_body_crc = check_body_crc and not check_record_crc
    passes_to = max(take_from, expects.end if expects is not None else 0) if not check_record_crc else 0
    while True:
        if base + position < passes_to:
            run = _passed(buffer, position, end_of_data, base, with_body_crc, take_from, expects)
            if run.records:
                records, last, position = records + run.records, run.last, run.position
                store_time = read_store_time(buffer, last)
        view = None if check_record_crc else _common(buffer, position, end_of_data, base, with_body_crc)
        if view is None:
            verdict = check_record(
                buffer,
                position,
                limit=end_of_data,
                physical_offset=base + position,
                check_body_crc=check_body_crc,
                check_record_crc=check_record_crc,
            )
            if verdict.kind is not Kind.WHOLE:
                # Read once and not soon again: a start would leave a whole log file in our resident memory.
                buffer.madvise(MADV_DONTNEED)
                return WalkEnd(position, verdict, records, base + last if last >= 0 else -1, store_time)
            view = view_record(buffer, position)
        store_time, last = view.store_time_ms, position
        records += 1
        if base + position >= take_from:
            take(view)
        position += view.size_bytes


def _common(buffer: mmap, position: int, end_of_data: int, base: int, with_body_crc: bool) -> RecordView | None:
    """The whole record of the common shape that stands there; None when `check_record` has to judge."""
    if position + RECORD_BYTES_MIN > end_of_data:
        return None
    size, magic, crc, queue_id, queue_offset, own, sys_flag, time_ms, length = _HEAD.unpack_from(buffer, position)
    end = position + size
    body = position + HEAD_V4_BYTES
    topic = body + length + 1
    if (
        magic != MAGIC_V1
        or sys_flag & HOSTS_V6
        or own != base + position
        or end > end_of_data
        or not body < topic <= end - 2
    ):
        return None
    topic_end = topic + buffer[topic - 1]
    if (
        topic_end > end - 2
        or topic_end - topic >= 128
        or not buffer[topic_end - 1]  # a lost page reads as zeros: check_record looks closer
        or not (buffer[end - 1] or topic_end + 2 == end)
        or (buffer[topic_end] << 8) + buffer[topic_end + 1] != end - topic_end - 2
        or (with_body_crc and length and crc32(buffer[body : topic - 1]) & 0x7FFFFFFF != crc)
    ):
        return None
    return RecordView(
        buffer, position, size, crc, queue_id, queue_offset, own, sys_flag, time_ms, body, topic - 1,
        buffer[topic:topic_end], buffer[topic_end + 2 : end],
    )  # fmt: skip


class Hole(NamedTuple):
    """Bytes of one file that are not records, from one physical offset to another, with whole ones behind them."""

    begin: int
    end: int
    reason: str


def _find(buffer: mmap, needle: bytes, begin: int, limit: int) -> int:
    """`mmap.find`, which before Python 3.11.5 reads one byte after its end: past the file there is no memory, and the
    process dies (CPython's gh-105235; Debian 12 has 3.11.2)."""
    found = buffer.find(needle, begin, min(limit, len(buffer) - 1))
    last = len(buffer) - len(needle)
    return last if found < 0 and begin <= last and limit == len(buffer) and buffer[last:] == needle else found


def next_record(file: LogFile, position: int, limit: int) -> int:
    """Where the next whole record, or the file's BLANK, begins behind `position`; -1 when none does before `limit`.

    A record says its own place and has a checksum, so nothing else is taken for one.
    """
    buffer, at = file.mapping, position + 1
    while True:
        found = [place for magic in _MAGICS if (place := _find(buffer, magic, at + MAGIC_AT, limit)) >= 0]
        if not found:
            return -1
        at = min(found) - MAGIC_AT
        verdict = check_record(buffer, at, limit=limit, physical_offset=file.base + at)
        is_end = verdict.kind is Kind.BLANK and at + verdict.size_bytes == file.size_bytes
        if verdict.kind is Kind.WHOLE or is_end:
            return at
        at += 1


def walk_over(
    file: LogFile, sink: Sink, *, position: int = 0, limit: int | None = None, expects: Expects | None = None
) -> list[Hole]:
    """Walk by headers, over what is damaged; the holes. For parts of the log that are known to go on behind them."""
    end_of_data = file.size_bytes if limit is None else limit
    holes: list[Hole] = []
    while True:
        end = walk(file, sink, position=position, limit=end_of_data, check_body_crc=False, expects=expects)
        if end.verdict.kind is Kind.BLANK or end.position >= end_of_data:
            return holes
        position = next_record(file, end.position, end_of_data)
        hole_end = position if position >= 0 else end_of_data
        holes.append(Hole(file.base + end.position, file.base + hole_end, end.verdict.reason))
        if position < 0:
            return holes


class Run(NamedTuple):
    """Records that were passed over: where they end, how many, where the last one begins (positions in the file)."""

    position: int
    records: int
    last: int


def _passed(
    buffer: mmap,
    position: int,
    end_of_data: int,
    base: int,
    with_body_crc: bool,
    take_from: int,
    expects: Expects | None,
) -> Run:
    """Pass over the records that need not be handed over, in one of the two short loops."""
    offset = base + position
    if offset < take_from:
        return _judged(buffer, position, end_of_data, base, with_body_crc, take_from)
    if expects is not None and expects.begin <= offset < expects.end:
        return _expected(buffer, position, end_of_data, base, with_body_crc, expects)
    return Run(position, 0, -1)


def _judged(buffer: mmap, position: int, end_of_data: int, base: int, with_body_crc: bool, until: int) -> Run:
    """Pass over records that are whole and of the common shape, below a physical offset; stop before the first other
    one."""
    unpack, checksum = _SHORTEST_HEAD.unpack_from, crc32
    stop = min(until - base, end_of_data - RECORD_BYTES_MIN + 1)
    records = 0
    last = -1
    while position < stop:
        size, magic, crc, own, sys_flag, length = unpack(buffer, position)
        end = position + size
        body = position + HEAD_V4_BYTES
        body_end = body + length
        if (
            magic != MAGIC_V1
            or own != base + position
            or sys_flag & HOSTS_V6
            or length < 0
            or body_end + 3 > end
            or end > end_of_data
        ):
            break
        tail = buffer[body_end:end]  # topic and properties
        topic_end = tail[0] + 1
        left = len(tail) - topic_end - 2
        if (
            topic_end > 128
            or left < 0
            or not tail[topic_end - 1]  # a lost page reads as zeros: check_record looks closer
            or not (tail[-1] or not left)
            or (tail[topic_end] << 8) + tail[topic_end + 1] != left
        ):
            break
        if with_body_crc and checksum(buffer[body:body_end]) & 0x7FFFFFFF != crc and length:
            break
        last = position
        records += 1
        position = end
    return Run(position, records, last)


def _expected(buffer: mmap, position: int, end_of_data: int, base: int, with_body_crc: bool, expects: Expects) -> Run:
    """Pass over records that are whole, of the common shape, and have their unit; stop before the first other one."""
    unpack, checksum, unit_at, unit_bytes = _SHORT_HEAD.unpack_from, crc32, _QUEUE_UNIT.unpack_from, _QUEUE_UNIT.size
    likely, queues, marks, _, beyond = expects
    likely_of, mark_of = likely.get, marks.get
    stop = min(beyond - base, end_of_data - RECORD_BYTES_MIN + 1)
    records = 0
    last = -1
    while position < stop:
        size, magic, crc, queue_id, queue_offset, own, sys_flag, length = unpack(buffer, position)
        end = position + size
        body_end = position + HEAD_V4_BYTES + length
        if (
            magic != MAGIC_V1
            or own != base + position
            or sys_flag & _UNCOMMON
            or length < 0
            or body_end + 3 > end
            or end > end_of_data
        ):
            break
        tail = buffer[body_end:end]  # topic and properties
        queue = likely_of(queue_id)
        if queue is None or not tail.startswith(queue.topic_part):
            queue = queues.get((tail[1 : tail[0] + 1], queue_id))
            if queue is None:
                break
            likely[queue_id] = queue
        properties = queue.topic_bytes + 2
        properties_bytes = end - body_end - properties
        if (
            queue_offset != queue.next_offset
            or not queue.block_first <= queue_offset < queue.block_end
            or properties_bytes <= 0
            or not tail[-1]
            or (tail[properties - 2] << 8) + tail[properties - 1] != properties_bytes
        ):
            break
        unit_offset, unit_size, code = unit_at(queue.block, (queue_offset - queue.block_first) * unit_bytes)
        if unit_offset != own or unit_size != size:
            break
        parts = tail.split(_TAGS)  # the one call that tells where it is and that there is no other
        if len(parts) > 1 or code:
            # Exactly one tag, and of that code, as the first property or behind another one.
            mark = mark_of(code)
            if (
                mark is None
                or len(parts) != 2
                or not parts[1].startswith(mark)
                or not (parts[0][-1] == 2 or len(parts[0]) == properties)
            ):
                break
        if with_body_crc and checksum(buffer[position + HEAD_V4_BYTES : body_end]) & 0x7FFFFFFF != crc and length:
            break
        queue.next_offset = queue_offset + 1
        last = position
        records += 1
        position = end
    return Run(position, records, last)
