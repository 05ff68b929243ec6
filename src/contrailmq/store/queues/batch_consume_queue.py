"""Batch consume queues: ROOT/batchconsumequeue/ of topics with queue.type=BatchCQ (RocketMQ 5.x).

    unit := physical_offset:i64 size_bytes:i32 tags_code:i64 store_time:i64 base_offset:i64 batch_size:i16
            compacted_offset:i32=-1 reserved:i32=0                                   (big-endian, 46 bytes)

A unit is one record with the messages base_offset .. base_offset + batch_size - 1. Unit n is at byte 46 n; files cut
that address space and are named by their first byte. A message is found by searching the base offsets, which only
increase. Appended units are pending until housekeeping or a flush writes them; they can be read meanwhile, and
recovery restores lost ones from the log (batch_queue_table.py). Appending takes no lock, so other threads must not read
`end` and the pending units together: `_written` says where the pending ones begin.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message.checksum import crc32
from contrailmq.store.files import Files
from contrailmq.store.queues.descriptors import DescriptorCache, file_base
from contrailmq.store.queues.queue_unit import Boundary, begins_again

_UNIT: Final = struct.Struct(">qiqqqhii")
BATCH_UNIT_BYTES: Final = 46
assert _UNIT.size == BATCH_UNIT_BYTES
BATCH_SIZE_MAX: Final = 2**15 - 1
NOT_COMPACTED: Final = -1
PENDING_BYTES_MAX: Final = 2_048 * BATCH_UNIT_BYTES  # as many units as in an ordinary queue
_SCAN_UNITS: Final = 4_096


class BatchUnit(NamedTuple):
    """One record of a batch topic."""

    physical_offset: int
    size_bytes: int
    tags_code: int
    store_time_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int = NOT_COMPACTED
    reserved: int = 0

    @property
    def is_valid(self) -> bool:
        return self.physical_offset >= 0 and self.size_bytes > 0 and self.base_offset >= 0 and self.batch_size > 0

    @property
    def following(self) -> int:
        """The offset after its last message."""
        return self.base_offset + self.batch_size


class BatchConsumeQueue:
    """Units of one (topic, queue id). Owned by BatchQueueTable; one thread appends, any thread reads.

    `max_offset` is exclusive; `physical_max` is the end of the last record pointed at, -1 when there is none.
    """

    def __init__(
        self, topic: str, queue_id: int, where: str, *, file_bytes: int, files: Files, descriptors: DescriptorCache
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.where = where
        self.file_bytes = -(-file_bytes // BATCH_UNIT_BYTES) * BATCH_UNIT_BYTES
        self._files = files
        self._descriptors = descriptors
        self._lock = threading.Lock()
        self._bases: list[int] = []  # of the files, ascending
        self._pending = bytearray()
        self._written = 0  # number of the first pending unit
        self._unsynced: set[int] = set()
        self._checksum = 0  # of the units [checked_from, checked_to)
        self._checked_from = self._checked_to = 0
        self.first = 0  # number of the first unit whose record is in the log
        self.end = 0  # number that the next unit gets
        self.min_offset = 0
        self.max_offset = 0
        self.physical_max = -1

    def __repr__(self) -> str:
        return f"<BatchConsumeQueue {self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    def __len__(self) -> int:
        return self.end - self.first

    def __iter__(self) -> Iterator[BatchUnit]:
        return self.scan(self.first)

    # --- writing

    def append(self, unit: BatchUnit) -> bool:
        """Add a unit; False when the queue has that record already."""
        assert unit.is_valid
        if unit.physical_offset < self.physical_max or unit.base_offset < self.max_offset:
            return False
        self._pending += _UNIT.pack(*unit)
        if self.end == self.first:
            self.min_offset = unit.base_offset
        self.end += 1
        self.max_offset = unit.following
        self.physical_max = unit.physical_offset + unit.size_bytes
        if len(self._pending) >= PENDING_BYTES_MAX:
            self.write_pending()
        return True

    def begins_again(self, unit: BatchUnit) -> bool:
        """As in ConsumeQueue.begins_again."""
        return begins_again(unit.base_offset, self.max_offset) and unit.physical_offset >= self.physical_max

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    def write_pending(self) -> int:
        """Hand the pending units to the operating system; how many bytes. They stay pending when that fails."""
        with self._lock:
            data = bytes(self._pending)
            address = self._written * BATCH_UNIT_BYTES
            done = 0
            while done < len(data):
                base = self._base_of(address + done)
                if base not in self._bases:
                    self._descriptors.create(self.where, base, self.file_bytes)
                    self._bases.append(base)
                piece = data[done : done + base + self.file_bytes - address - done]
                self._descriptors.pwrite(self.where, base, piece, address + done - base)
                self._unsynced.add(base)
                done += len(piece)
            del self._pending[: len(data)]
            self._written += len(data) // BATCH_UNIT_BYTES
            return len(data)

    def sync(self) -> None:
        """Force what was written to the disk."""
        self._descriptors.sync_all(self.where, self._unsynced)

    def truncate_physical(self, physical_offset: int) -> int:
        """Forget the units whose records end above a place of the log; how many. Leaves zeros after the cut."""
        keep = self.number_where(lambda unit: unit.physical_offset + unit.size_bytes > physical_offset)
        cut = self.end - keep
        if cut:
            self.truncate(keep)
        return cut

    def truncate(self, keep: int) -> None:
        """Forget the units from a number on that it has."""
        self.write_pending()
        with self._lock:
            end = keep * BATCH_UNIT_BYTES
            while self._bases and self._bases[-1] >= end:
                base = self._bases.pop()
                self._descriptors.unlink(self.where, base)
                self._unsynced.discard(base)
            if self._bases and end < self._bases[-1] + self.file_bytes:
                self._descriptors.zero_from(self.where, self._bases[-1], end - self._bases[-1], self.file_bytes)
                self._unsynced.add(self._bases[-1])
            self._checksum, self._checked_from, self._checked_to = 0, keep, keep
        self._set_end(keep)

    def start_at(self, queue_offset: int) -> None:
        """An empty queue whose next message gets this offset."""
        assert self.end == self.first
        self.min_offset = self.max_offset = queue_offset

    def reset(self) -> None:
        """Forget everything."""
        self.destroy()
        self.first = self.end = self._written = self.min_offset = self.max_offset = 0
        self.physical_max = -1

    def destroy(self) -> None:
        with self._lock:
            self._pending.clear()
            self._written = self.end
            self._unsynced.clear()
            self._descriptors.forget(self.where)
            self._bases.clear()
            directory = Path(self.where)
            if self._files.exists(directory):
                for path in self._files.list_directory(directory):
                    self._files.unlink(path)
                self._files.remove_directory(directory)

    # --- cleaning

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Records below the log's minimum are gone."""
        self.first = self.number_where(lambda unit: unit.physical_offset >= log_min_offset)
        first = self.unit_at(self.first)
        self.min_offset = first.base_offset if first is not None else self.max_offset

    def delete_files_below(self, log_min_offset: int) -> int:
        """Remove files all of whose records are gone from the log, never the last one; how many."""
        deleted = 0
        while len(bases := list(self._bases)) > 1:
            last = self.unit_at(bases[1] // BATCH_UNIT_BYTES - 1)
            if last is None or last.physical_offset >= log_min_offset:
                break
            with self._lock:
                if self._bases[:2] != bases[:2]:
                    break  # its topic was deleted meanwhile
                self._descriptors.unlink(self.where, self._bases.pop(0))
                self._unsynced.discard(bases[0])
            self.first = max(self.first, bases[1] // BATCH_UNIT_BYTES)
            deleted += 1
        return deleted

    # --- reading

    def read(self, number: int, max_count: int) -> bytes:
        """Raw units from a number on, at most so many, never past the file that holds the first one."""
        with self._lock:
            written = self._written
            if not self._begin() <= number < self.end:
                return b""
            if number >= written:
                start = (number - written) * BATCH_UNIT_BYTES
                return bytes(self._pending[start : start + max_count * BATCH_UNIT_BYTES])
            address = number * BATCH_UNIT_BYTES
            base = self._base_of(address)
            stop = min(address + max_count * BATCH_UNIT_BYTES, written * BATCH_UNIT_BYTES, base + self.file_bytes)
            return self._descriptors.pread(self.where, base, stop - address, address - base)

    def unit_at(self, number: int) -> BatchUnit | None:
        data = self.read(number, 1)
        return BatchUnit(*_UNIT.unpack(data)) if len(data) == BATCH_UNIT_BYTES else None

    def scan(self, number: int) -> Iterator[BatchUnit]:
        """Every unit from a number on."""
        while data := self.read(number, _SCAN_UNITS):
            for fields in _UNIT.iter_unpack(data):
                yield BatchUnit(*fields)
            number += len(data) // BATCH_UNIT_BYTES

    def number_where(self, holds: Callable[[BatchUnit], bool]) -> int:
        """The number of the first unit that holds, where all after it do too; `end` when none does."""
        low, high = self._begin(), self.end
        while low < high:
            middle = (low + high) // 2
            unit = self.unit_at(middle)
            if unit is not None and not holds(unit):
                low = middle + 1
            else:
                high = middle
        return low

    def number_of(self, queue_offset: int) -> int:
        """The number of the unit whose batch holds an offset, or of the next one."""
        return self.number_where(lambda unit: unit.following > queue_offset)

    def find(self, queue_offset: int) -> BatchUnit | None:
        """The unit whose batch holds an offset."""
        unit = self.unit_at(self.number_of(queue_offset))
        return unit if unit is not None and unit.base_offset <= queue_offset else None

    def places(self, queue_offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tags code) of the record that holds an offset, and of those after it."""
        units = islice(self.scan(self.number_of(queue_offset)), max_count) if self.find(queue_offset) else ()
        return [(unit.physical_offset, unit.size_bytes, unit.tags_code) for unit in units]

    def offset_at(self, time_ms: int, boundary: Boundary) -> int:
        """The first offset of the first batch stored at or after a time (UPPER: of the last one at or before it)."""
        if boundary is Boundary.LOWER:
            unit = self.unit_at(max(self.first, self.number_where(lambda unit: unit.store_time_ms >= time_ms)))
            return unit.base_offset if unit is not None else self.max_offset
        unit = self.unit_at(self.number_where(lambda unit: unit.store_time_ms > time_ms) - 1)
        return max(unit.base_offset, self.min_offset) if unit is not None else self.min_offset

    # --- opening

    def load(self) -> None:
        """Find the files: units up to the first that is not one. The rebuild removes what does not follow."""
        self._bases = []
        for path in self._files.list_directory(Path(self.where)):
            base = file_base(path.name)
            is_next = not self._bases or base == self._bases[-1] + self.file_bytes
            if base is None or base % self.file_bytes or not is_next or self._files.size(path) != self.file_bytes:
                continue
            self._bases.append(base)
        self.end = self._written = (self._bases[-1] + self.file_bytes) // BATCH_UNIT_BYTES if self._bases else 0
        self.first = number = self._begin()
        following = 0
        for unit in self.scan(number):
            if not unit.is_valid or unit.base_offset < following:
                break
            following = unit.following
            number += 1
        self._set_end(number)
        first = self.unit_at(self.first)
        self.min_offset = first.base_offset if first is not None else self.max_offset

    def checksum(self) -> tuple[int, int, int]:
        """(first unit, end, CRC-32 of them) of what was handed to the operating system."""
        begin, written = self._begin(), self._written
        if self._checked_from != begin or self._checked_to > written:
            self._checksum, self._checked_from, self._checked_to = 0, begin, begin
        self._checksum = self._crc(self._checked_to, written, self._checksum)
        self._checked_to = written
        return begin, written, self._checksum

    def agrees_with(self, begin: int, end: int, checksum: int) -> bool:
        """Whether these units are there; cleaning may have removed whole files since."""
        return self._begin() == begin and end <= self.end and self._crc(begin, end, 0) == checksum

    def _crc(self, begin: int, end: int, checksum: int) -> int:
        while begin < end and (data := self.read(begin, min(end - begin, _SCAN_UNITS))):
            checksum = crc32(data, checksum)
            begin += len(data) // BATCH_UNIT_BYTES
        return checksum

    # --- leaves

    def _base_of(self, address: int) -> int:
        return address - address % self.file_bytes

    def _begin(self) -> int:
        """Number of the first unit in a file."""
        return self._bases[0] // BATCH_UNIT_BYTES if self._bases else self._written

    def _set_end(self, end: int) -> None:
        """While nothing is pending."""
        self.end = self._written = end
        last = self.unit_at(end - 1) if end > self._begin() else None
        self.max_offset = last.following if last is not None else 0
        self.physical_max = last.physical_offset + last.size_bytes if last is not None else -1
        self.first = min(self.first, end)
        if end == self.first:
            self.min_offset = self.max_offset
