"""One IndexFile: a hash table on disk from `topic#key` to physical offsets.

    file   := header slot[slots] unit[units]                                  (big-endian)
    header := begin_time:i64 end_time:i64 begin_offset:i64 end_offset:i64 used_slots:i32 count:i32      (40 bytes)
    slot   := unit_number:i32                 (the newest unit of its chain; 0: none)
    unit   := key_hash:i32 physical_offset:i64 seconds:i32 previous:i32       (20 bytes; unit 0 is never used)

`count` is the number that the next unit gets, so it begins at 1 and a file holds `units` - 1 entries. `seconds` counts
from the header's begin time. The first put sets the begin time *after* its own seconds were computed: in a rolled file
the first unit is therefore measured from the end of the file before it (IndexFile.putKey, matched).

The file being filled is allocated and mapped, because it is written at random places; the others are mapped for
reading when a query first wants them. A put costs one slot and one unit, 0.7 us; the header is written once for
all messages of a dispatch.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contrailmq.message.checksum import crc32
from contrailmq.store.files import MADV_DONTNEED, MADV_RANDOM, Files

_HEADER: Final = struct.Struct(">qqqqii")
_SLOT: Final = struct.Struct(">i")
_UNIT: Final = struct.Struct(">iqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
UNIT_BYTES: Final = 20
assert _HEADER.size == HEADER_BYTES
assert _SLOT.size == SLOT_BYTES
assert _UNIT.size == UNIT_BYTES

SECONDS_MAX: Final = 2**31 - 1
_CHECKSUM_CHUNK_BYTES: Final = 1 << 20

_slot_at: Final = _SLOT.unpack_from
_unit_at: Final = _UNIT.unpack_from
_put_slot: Final = _SLOT.pack_into
_put_unit: Final = _UNIT.pack_into
_put_header: Final = _HEADER.pack_into


def index_file_bytes(slots: int, units: int) -> int:
    return HEADER_BYTES + slots * SLOT_BYTES + units * UNIT_BYTES


def stored_hash(key_hash: int) -> int:
    """A Java hash as the index keeps it: the absolute value, and 0 for the smallest int, whose abs() Java has not."""
    return abs(key_hash) if key_hash != -(2**31) else 0


def seconds_since(begin_ms: int, store_time_ms: int) -> int:
    """What a unit says of its record's time; 0 before the begin, and where no begin is known (IndexFile.putKey)."""
    return min((store_time_ms - begin_ms) // 1000, SECONDS_MAX) if 0 < begin_ms <= store_time_ms else 0


class IndexFile:
    """Owned by IndexService; one thread puts, any thread looks up."""

    def __init__(self, path: Path, *, slots: int, units: int, files: Files) -> None:
        self.path = path
        self.slots = slots
        self.units = units
        self._files = files
        self._units_start = HEADER_BYTES + slots * SLOT_BYTES
        self._map: mmap.mmap | None = None
        self._is_writable = False
        self.begin_time_ms = 0
        self.end_time_ms = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.checksum = -1  # of the used part, taken when the count was this; -1: never
        self.checksum_count = 0

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.count - 1} entries>"

    @property
    def is_full(self) -> bool:
        return self.count >= self.units

    @property
    def entries(self) -> int:
        return self.count - 1

    @property
    def used_bytes(self) -> int:
        """Header, slots and the units that there are."""
        return self._units_start + self.count * UNIT_BYTES

    # --- life

    def create(self, *, previous: IndexFile | None) -> None:
        """A new file, allocated for real, whose header begins where the previous file ended."""
        descriptor = self._files.open(self.path, create=True)
        try:
            self._files.allocate(descriptor, index_file_bytes(self.slots, self.units))
            self._map = self._files.map(descriptor, index_file_bytes(self.slots, self.units), writable=True)
        except OSError:
            self._files.unlink(self.path)  # an empty file would be taken for a damaged one at the next start
            raise
        finally:
            self._files.close(descriptor)
        self._is_writable = True
        if previous is not None:
            self.begin_time_ms = self.end_time_ms = previous.end_time_ms
            self.begin_offset = self.end_offset = previous.end_offset
            # The count stays 0 until the first put, as Java leaves it; a loader takes 0 for 1.
            _put_header(self._map, 0, *(self.end_time_ms,) * 2, *(self.end_offset,) * 2, 0, 0)

    def load(self) -> None:
        """Read the header of an existing file; its size must be right (see IndexService.load)."""
        descriptor = self._files.open(self.path, writable=False)
        try:
            header = self._files.pread(descriptor, HEADER_BYTES, 0)
        finally:
            self._files.close(descriptor)
        (
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            count,
        ) = _HEADER.unpack(header)
        self.count = max(count, 1)

    def make_writable(self) -> None:
        """Go on filling a loaded file. It may be sparse (Java's are): allocate before mapping."""
        if self._is_writable:
            return
        self._unmap()
        descriptor = self._files.open(self.path)
        try:
            self._files.allocate(descriptor, index_file_bytes(self.slots, self.units))
            self._map = self._files.map(descriptor, index_file_bytes(self.slots, self.units), writable=True)
        finally:
            self._files.close(descriptor)
        self._is_writable = True

    def undo_unfinished(self) -> int:
        """Take back a message whose header was not written: its units are above the count, but slots point at them.

        Units are written before slots and slots before the header, so whatever a slot points at has its `previous`.
        """
        following = self._units_start + self.count * UNIT_BYTES
        if self.count < self.units and not any(self._mapped()[following : following + UNIT_BYTES]):
            return 0  # the first unit that a put writes is not there: it had not begun
        data = self._mapped()[HEADER_BYTES : HEADER_BYTES + self.slots * SLOT_BYTES]
        numbers = array("i", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        if max(numbers) < self.count:
            return 0
        self.make_writable()
        mapping = self._mapped()
        undone = 0
        for slot, number in enumerate(numbers):
            if number >= self.count:
                newest = number
                while newest >= self.count:
                    if newest >= self.units:  # no put wrote that: `fault` will find it
                        newest = 0
                        break
                    previous = _unit_at(mapping, self._units_start + newest * UNIT_BYTES)[3]
                    newest = previous if 0 <= previous < newest else 0
                _put_slot(mapping, HEADER_BYTES + slot * SLOT_BYTES, newest)
                undone += 1
        return undone

    def flush(self) -> None:
        """Force the file to the disk."""
        if not self._is_writable:
            return
        descriptor = self._files.open(self.path)
        try:
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def seal(self) -> None:
        """No more puts: give up the writable mapping."""
        self._unmap()
        self._is_writable = False

    def close(self) -> None:
        self._unmap()
        self._is_writable = False

    def destroy(self) -> None:
        self.close()
        self._files.unlink(self.path)

    # --- putting

    def put(self, key_hashes: Sequence[int], physical_offset: int, store_time_ms: int) -> int:
        """Enter one message under these hashes; how many fitted (fewer only when the file is full then)."""
        return self.put_all([(key_hash, physical_offset, store_time_ms) for key_hash in key_hashes])

    def put_all(self, items: Sequence[tuple[int, int, int]]) -> int:
        """Enter (Java hash, physical offset, store time) in log order; how many went in before the file was full.

        Units go before slots and slots before the header, each once for all: see `undo_unfinished`.
        """
        assert self._map is not None
        mapping, slots, start = self._map, self.slots, self._units_start
        number = first = self.count
        if len(items) > self.units - number:
            items = items[: self.units - number]
        begin, time_ms, seconds = self.begin_time_ms, -1, 0
        used_slots = self.used_slots
        newest: dict[int, int] = {}  # where a slot is -> the number that it gets
        for key_hash, physical_offset, store_time_ms in items:
            if store_time_ms != time_ms:
                seconds = min((store_time_ms - begin) // 1000, SECONDS_MAX) if 0 < begin <= store_time_ms else 0
                time_ms = store_time_ms
            if key_hash < 0:
                key_hash = stored_hash(key_hash)
            slot = HEADER_BYTES + key_hash % slots * SLOT_BYTES
            previous = newest.get(slot, 0)
            if not previous:
                previous = _slot_at(mapping, slot)[0]
                if not 0 < previous < number:  # Java allows `count` itself, which is a unit that does not exist yet
                    previous = 0
                    used_slots += 1
            newest[slot] = number
            _put_unit(mapping, start + number * UNIT_BYTES, key_hash, physical_offset, seconds, previous)
            if number == 1:  # after its own seconds were computed from the end of the file before
                begin, seconds = store_time_ms, 0
            number += 1
        if number > first:
            if first == 1:
                self.begin_offset, self.begin_time_ms = items[0][1], begin
            for slot, newest_number in newest.items():
                _put_slot(mapping, slot, newest_number)
            _, end_offset, end_time = items[-1]
            self.end_offset, self.end_time_ms, self.used_slots = end_offset, end_time, used_slots
            _put_header(mapping, 0, begin, end_time, self.begin_offset, end_offset, used_slots, number)
            self.count = number
        return number - first

    # --- looking up

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether an entry of this file may lie in the time range (IndexFile.isTimeMatched)."""
        return begin_ms <= self.end_time_ms and end_ms >= self.begin_time_ms

    def find(self, key_hash: int, *, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of entries with this hash, newest first, that may lie in [begin, end].

        Times are whole seconds, so an entry can look up to 999 ms early; the hash can collide. The caller reads the
        records and compares. A chain only ever leads to smaller numbers, so this ends on any bytes.
        """
        mapping = self._mapped()
        found: list[int] = []
        number: int = _slot_at(mapping, HEADER_BYTES + key_hash % self.slots * SLOT_BYTES)[0]
        if not 0 < number < self.units:
            return found
        start, file_begin, count = self._units_start, self.begin_time_ms, self.count
        while len(found) < max_count:
            unit_hash, physical_offset, seconds, previous = _unit_at(mapping, start + number * UNIT_BYTES)
            if seconds < 0:
                break
            time_ms = file_begin + seconds * 1000
            # Slots are written before the count: a unit that is being put leads to the ones before it.
            if unit_hash == key_hash and begin_ms <= time_ms <= end_ms and number < count:
                found.append(physical_offset)
            if not 0 < previous < number or time_ms < begin_ms:
                break
            number = previous
        return found

    # --- checking

    def fault(self, *, units_checked_max: int) -> str | None:
        """What contradicts itself in this file, or None. Looks at every unit when there are at most so many.

        Putting the units in again in order must give each its `previous` and in the end every slot.
        """
        count = self.count
        if not 1 <= count <= self.units or not 0 <= self.used_slots <= min(count, self.slots):
            return f"header says {self.used_slots} used slots and {count - 1} of {self.units - 1} entries"
        if self.begin_offset > self.end_offset or self.begin_time_ms > self.end_time_ms:
            return "header ends before it begins"
        if count > units_checked_max:
            return None
        mapping = self._mapped()
        newest: dict[int, int] = {}
        before = self.begin_offset
        start = self._units_start + UNIT_BYTES
        data = mapping[start : start + (count - 1) * UNIT_BYTES]
        for number, (key_hash, offset, seconds, previous) in enumerate(_UNIT.iter_unpack(data), 1):
            slot = key_hash % self.slots
            if (
                key_hash < 0
                or seconds < 0
                or not before <= offset <= self.end_offset
                or previous != newest.get(slot, 0)
            ):
                return f"unit {number} contradicts the units before it"
            newest[slot] = number
            before = offset
        if count > 1 and (before != self.end_offset or len(newest) != self.used_slots):
            return f"the last unit points at {before}, {len(newest)} slots are used: the header says otherwise"
        for slot, number in newest.items():
            if _slot_at(mapping, HEADER_BYTES + slot * SLOT_BYTES)[0] != number:
                return f"slot {slot} does not point at its newest unit {number}"
        return None

    def take_checksum(self) -> None:
        """Note the checksum of what is in the file now, unless it is known."""
        if self.checksum_count != self.count:
            self.checksum, self.checksum_count = self.compute_checksum(), self.count

    def compute_checksum(self) -> int:
        """Of the used part, read and not mapped: it would count as our memory."""
        descriptor = self._files.open(self.path, writable=False)
        checksum, end = 0, self.used_bytes
        try:
            for position in range(0, end, _CHECKSUM_CHUNK_BYTES):
                data = self._files.pread(descriptor, min(_CHECKSUM_CHUNK_BYTES, end - position), position)
                checksum = crc32(data, checksum)
        finally:
            self._files.close(descriptor)
        return checksum

    def forget_pages(self) -> None:
        """Give the pages that a check brought in back to the page cache."""
        if self._map is not None:
            self._files.advise(self._map, MADV_DONTNEED)

    def scan(self) -> list[tuple[int, int, int]]:
        """(key hash, physical offset, seconds) of every entry, oldest first."""
        start = self._units_start + UNIT_BYTES
        data = self._mapped()[start : start + (self.count - 1) * UNIT_BYTES]
        return [(key_hash, offset, seconds) for key_hash, offset, seconds, _ in _UNIT.iter_unpack(data)]

    # --- leaves

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            descriptor = self._files.open(self.path, writable=False)
            try:
                self._map = self._files.map(descriptor, index_file_bytes(self.slots, self.units), writable=False)
            finally:
                self._files.close(descriptor)
            self._files.advise(self._map, MADV_RANDOM)
        return self._map

    def _unmap(self) -> None:
        if self._map is not None:
            self._files.unmap(self._map)
            self._map = None
