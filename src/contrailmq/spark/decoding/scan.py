"""Walks a commit-log file from any byte: whole records in blocks, bad stretches with their position.

Ranges of a file may be walked separately, on other machines. A record belongs to the range in which it *starts*:

1. A range that may begin inside a record looks for the magic, and for a record whose physical offset equals its place
   and whose parts add up. (A body that contains such a record can fool a range that begins inside that body.)
2. A range follows the chain of sizes, past its end if the last record reaches there, never past `limit`.
3. A range also checks the place after its last record. Otherwise both neighbours would skip a damaged record there.

A broken chain is a bad stretch up to the next record found by rule 1. A failed CRC is a bad stretch of one record.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from contrailmq.message import ContrailError
from contrailmq.message.codec import BLANK_BYTES, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, Buffer
from contrailmq.message.record import MAGIC_AT, RECORD_BYTES_MIN, SIZE_AND_MAGIC, head_struct
from contrailmq.spark.decoding.records import Bytes, Int, Records, gather

BLOCK_BYTES: Final = 8 * 1024 * 1024  # batches of 2 to 16 MB pass through Spark equally well, larger ones worse
BLOCK_ROWS: Final = 20_000
_head_of: Final = head_struct("size", "magic", "physical_offset").unpack_from
_SIZE: Final = struct.Struct(">i")
_MAGIC_PREFIX: Final = b"\xda\xa3\x20"  # of both record magics
_RUN_LEAST: Final = 16  # records of one size in a row that are worth a look at all of them at once
_STEPS_LEAST: Final = 64
_PAGE: Final = mmap.ALLOCATIONGRANULARITY


class CorruptLogError(ContrailError):
    """A stretch of a commit log holds no valid record; `start` and `stop` are physical offsets."""

    def __init__(self, stretch: BadStretch) -> None:
        self.path, self.start, self.stop = stretch.path, stretch.start, stretch.stop
        super().__init__(
            f"{stretch.path}: {stretch.reason} at physical offset {stretch.start} ({stretch.stop - stretch.start} "
            "bytes): recover or verify the store (contrailmq pipeline verify); to go on without it, read with "
            "onCorrupt=skip, or archive with --skip-corrupt"
        )

    def __reduce__(self) -> tuple[type[CorruptLogError], tuple[BadStretch]]:
        reason = str(self).removeprefix(f"{self.path}: ").partition(" at physical offset")[0]
        return CorruptLogError, (BadStretch(self.path, self.start, self.stop, reason),)


class BadStretch(NamedTuple):
    """Bytes of a log file that are not a valid record. Offsets are physical."""

    path: str
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range of one commit-log file, in physical offsets: `base <= start < stop <= limit`."""

    path: str
    base: int  # physical offset of the file's first byte
    start: int
    stop: int
    limit: int  # nothing at or beyond is read: the end of the file or of the confirmed log, whichever is lower
    is_aligned: bool  # a record is known to begin at start
    is_missing: bool = False  # no file holds these bytes; `path` is the directory that should


def scan(
    part: Range,
    *,
    check_crc: bool,
    block_bytes: int = BLOCK_BYTES,
    block_rows: int = BLOCK_ROWS,
    ends_at_break: bool = False,
) -> Iterator[Records | BadStretch]:
    """Whole records of the range in log order, as blocks, and every bad stretch where it was met.

    With `ends_at_break` a break of the chain is the last thing that is given, and how far it reaches is not sought:
    past the end of a live log that would mean searching a gigabyte of unwritten space.
    """
    if part.is_missing:
        yield BadStretch(part.path, part.start, part.stop, "bytes that no log file holds")
        return
    with open(part.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    released = part.start - part.base
    items = scan_buffer(
        mapped,
        part,
        check_crc=check_crc,
        block_bytes=block_bytes,
        block_rows=block_rows,
        ends_at_break=ends_at_break,
    )
    for item in items:
        yield item
        if isinstance(item, Records) and len(item):
            # Pages already handed over are unmapped, so a large file costs no more memory than a small one.
            done = int(item.position[-1]) // _PAGE * _PAGE
            begin = released // _PAGE * _PAGE
            if done > begin:
                mapped.madvise(mmap.MADV_DONTNEED, begin, done - begin)
            released = done


def scan_buffer(
    buffer: Buffer,
    part: Range,
    *,
    check_crc: bool,
    block_bytes: int = BLOCK_BYTES,
    block_rows: int = BLOCK_ROWS,
    ends_at_break: bool = False,
) -> Iterator[Records | BadStretch]:
    """`scan` over bytes at hand: `buffer[0]` is the byte at physical offset `part.base`."""
    limit = min(part.limit - part.base, len(buffer))
    stop = min(part.stop - part.base, limit)
    position = part.start - part.base
    data: Bytes = np.frombuffer(buffer, dtype=np.uint8)[:limit]
    if not part.is_aligned:
        position = _find_record(buffer, data, part.base, position, limit)
    while position < stop:
        positions, position, is_stuck = _follow(
            buffer, data, position, stop=stop, limit=limit, bytes_max=block_bytes, rows_max=block_rows
        )
        records = gather(data, positions)
        is_whole = (
            records.sound
            & ((records.magic == MAGIC_V1) | (records.magic == MAGIC_V2))
            & (records.physical_offset == records.position + part.base)
        )
        reason = ""
        if not is_whole.all():
            first_bad = int(np.argmin(is_whole))
            position = int(records.position[first_bad])
            records = records.select(slice(0, first_bad))
            reason = _verdict(buffer, data, part.base, position, limit)
        elif is_stuck or stop <= position < limit:
            reason = _verdict(buffer, data, part.base, position, limit)
        yield from _checked(records, part.path, part.base, check_crc=check_crc)
        if reason == _BLANK:
            return
        if reason and ends_at_break:
            yield BadStretch(part.path, part.base + position, part.base + limit, reason)
            return
        if reason:
            found = _find_record(buffer, data, part.base, position + 1, limit)
            yield BadStretch(part.path, part.base + position, part.base + found, reason)
            position = found


def _checked(records: Records, path: str, base: int, *, check_crc: bool) -> Iterator[Records | BadStretch]:
    """The block without rows that fail their CRC, of the body or of all, and a stretch for each of those."""
    if not len(records):
        return
    if check_crc:
        bad_bodies, bad_records = records.bad_bodies(), records.bad_records()
        bad = bad_bodies | bad_records
        if bad.any():
            for row in np.flatnonzero(bad).tolist():
                start = base + int(records.position[row])
                what = "a body" if bad_bodies[row] else "a record"
                yield BadStretch(path, start, start + int(records.size[row]), f"{what} that fails its CRC")
            records = records.select(~bad)
    if len(records):
        yield records


_BLANK: Final = "blank"
_UNSOUND: Final = "parts that do not add up to the record's size"


def follow(data: Bytes) -> tuple[Int, int]:
    """Positions of the records that stand one after the other, by their sizes alone, and where that comes to an end."""
    size = len(data)
    positions, position, _ = _follow(
        data.data, data, 0, stop=size, limit=size, bytes_max=size, rows_max=1 + size // RECORD_BYTES_MIN
    )
    return positions, position


def _follow(
    buffer: Buffer, data: Bytes, position: int, *, stop: int, limit: int, bytes_max: int, rows_max: int
) -> tuple[Int, int, bool]:
    """Follow sizes from one record to the next, trusting them: the caller checks the whole block at once.

    Gives the positions, where the chain ends, and whether it cannot go on there. A wrong size leads to positions
    that are not records; the first of them is found by the caller. One step of Python to a record is the floor of a
    scan, except where records of one size follow each other: such a run is one look at every size-th byte. Whether one
    begins is asked after some steps, and after more of them each time that none did.
    """
    pieces: list[Int] = []
    rows_left, steps = rows_max, _STEPS_LEAST
    is_stuck = is_over = False
    bounds = _Bounds(min(stop, position + bytes_max), limit - RECORD_BYTES_MIN, limit)
    while rows_left and not is_over:
        run = _equal_run(data, position, bounds, rows_left)
        if len(run) > _RUN_LEAST:
            steps = _STEPS_LEAST
            position = int(run[-1]) + int(run[-1] - run[-2])
        else:
            steps = min(2 * steps, rows_max)
            run, position, is_over, is_stuck = _steps(buffer, position, bounds, min(steps, rows_left))
        pieces.append(run)
        rows_left -= len(run)
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64), position, is_stuck


class _Bounds(NamedTuple):
    block_end: int  # no record of the block begins here or later
    last_head: int  # no head has room after it
    limit: int


def _steps(buffer: Buffer, position: int, bounds: _Bounds, count: int) -> tuple[Int, int, bool, bool]:
    """At most `count` records: their positions, the place after them, whether the block is over or stuck."""
    positions: list[int] = []
    unpack, append = _SIZE.unpack_from, positions.append
    block_end, last_head, limit = bounds
    is_over = is_stuck = False
    for _ in range(count):
        if position >= block_end:
            is_over = True
            break
        if position > last_head:
            is_over, is_stuck = True, position < limit
            break
        (size,) = unpack(buffer, position)
        if size < RECORD_BYTES_MIN:
            is_over = is_stuck = True
            break
        append(position)
        position += size
    return np.array(positions, np.int64), position, is_over, is_stuck


def _equal_run(data: Bytes, position: int, bounds: _Bounds, rows_max: int) -> Int:
    """Positions of the records from here on that state the same size as the first."""
    if position > bounds.last_head:
        return np.empty(0, np.int64)
    (size,) = _SIZE.unpack_from(data.data, position)
    if size < RECORD_BYTES_MIN:
        return np.empty(0, np.int64)
    end = min(bounds.block_end, bounds.last_head + 1, position + size * rows_max)
    stated = np.ndarray((len(data) - 3,), dtype=">i4", buffer=data, strides=(1,))[position:end:size]
    differs = stated != size
    count = int(np.argmax(differs)) if differs.any() else len(stated)
    return np.arange(position, position + count * size, size, dtype=np.int64)


def _verdict(buffer: Buffer, data: Bytes, base: int, position: int, limit: int) -> str:
    """What is at a place: empty for a sound record, `_BLANK` for the file's filler, else what is wrong."""
    if limit - position < BLANK_BYTES:
        return f"{limit - position} bytes where a record or the file's filler should be"
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        return _BLANK
    if size == 0 and magic == 0:
        return "unwritten space"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic {magic & 0xFFFFFFFF:#010x}"
    if size < RECORD_BYTES_MIN or position + size > limit:
        return f"a record of {size} bytes with {limit - position} left"
    if _head_of(buffer, position)[2] != base + position:
        return "a record that states another physical offset"
    return "" if gather(data, np.array([position], np.int64)).sound[0] else _UNSOUND


def _find_record(buffer: Buffer, data: Bytes, base: int, position: int, limit: int) -> int:
    """The first place at or after `position` where a sound record begins, or `limit`."""
    if not isinstance(buffer, mmap.mmap | bytes | bytearray):
        buffer = bytes(buffer)
    at = position + MAGIC_AT
    while True:
        # No record begins with the last byte, and before Python 3.11.5 the search reads one byte after its end.
        at = buffer.find(_MAGIC_PREFIX, at, limit - 1)
        if at < 0:
            return limit
        begin = at - MAGIC_AT
        if begin + RECORD_BYTES_MIN <= limit:
            size, magic, physical = _head_of(buffer, begin)
            is_record = magic in (MAGIC_V1, MAGIC_V2) and physical == base + begin and begin + size <= limit
            if is_record and gather(data, np.array([begin], np.int64)).sound[0]:
                return begin
        at += 1
