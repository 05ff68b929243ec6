"""One IndexFile: a hash table on disk from `topic#key` to physical offsets.

    file   := header slot[slots] unit[units]                                  (big-endian)
    header := begin_time:i64 end_time:i64 begin_offset:i64 end_offset:i64 used_slots:i32 count:i32      (40 bytes)
    slot   := unit_number:i32                 (the newest unit of its chain; 0: none)
    unit   := key_hash:i32 physical_offset:i64 seconds:i32 previous:i32       (20 bytes; unit 0 is never used)
    mark   := count:i32 units_crc:u32 end_time:i64 own_crc:u32                (ours, in the place of unit 0)

`count` is the number of the next unit, so it begins at 1. `seconds` counts from the header's begin time, which the
first put sets *after* it computed its own seconds, so a rolled file measures its first unit from the end of the file
before (IndexFile.putKey, matched). The file being filled is allocated and mapped; others are mapped when first read. A
put costs 0.7 us. Every 4,096 units we leave a mark: the number of units and their CRC-32 (`own_crc` covers the mark and
the begin time). After a kill the file goes back to its newest mark: header and slots are rebuilt from the units (5 s
for 20 million), and later entries come from the log. A file that is full has its checksum in queue_ledger.py.
"""

from __future__ import annotations

import logging
import mmap
import struct
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from contrailmq.message.checksum import crc32
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.files import MADV_DONTNEED, MADV_RANDOM, Files

_log = logging.getLogger(__name__)

_HEADER: Final = struct.Struct(">qqqqii")
_SLOT: Final = struct.Struct(">i")
_UNIT: Final = struct.Struct(">iqii")
_MARK: Final = struct.Struct(">iIqI")
_MARKED: Final = struct.Struct(">iIqq")  # what the mark's own checksum is of
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
UNIT_BYTES: Final = 20
assert _HEADER.size == HEADER_BYTES
assert _SLOT.size == SLOT_BYTES
assert _UNIT.size == _MARK.size == UNIT_BYTES

SECONDS_MAX: Final = 2**31 - 1
MARK_UNITS: Final = 4_096  # 80 KB: 10 us of checksum; at most so many, and one dispatch, are entered again after a kill
_CHUNK_BYTES: Final = 50_000 * UNIT_BYTES  # read at once
NO_CHECKSUM: Final = -1
DAMAGED: Final = -2  # in place of a checksum, in the ledger: the next start makes the file again

_slot_at: Final = _SLOT.unpack_from
_unit_at: Final = _UNIT.unpack_from
_put_slot: Final = _SLOT.pack_into
_put_header: Final = _HEADER.pack_into


def index_file_bytes(slots: int, units: int) -> int:
    return HEADER_BYTES + slots * SLOT_BYTES + units * UNIT_BYTES


def stored_hash(key_hash: int) -> int:
    """A Java hash as the index keeps it: the absolute value, and 0 for the smallest int, whose abs() Java has not."""
    return abs(key_hash) if key_hash != -(2**31) else 0


def seconds_since(begin_ms: int, store_time_ms: int) -> int:
    """What a unit says of its record's time; 0 before the begin, and where no begin is known (IndexFile.putKey)."""
    return min((store_time_ms - begin_ms) // 1000, SECONDS_MAX) if 0 < begin_ms <= store_time_ms else 0


class _Mark(NamedTuple):
    units: int  # the file's count then
    units_crc: int
    end_time_ms: int


class IndexFile:
    """Owned by IndexService; one thread puts, any thread looks up.

    A reader keeps the mapping that it began with: that one is never closed under it, only replaced or dropped here, and
    its pages go with the last reader.
    """

    def __init__(self, path: Path, *, slots: int, units: int, files: Files) -> None:
        self.path = path
        self.slots = slots
        self.units = units
        self._files = files
        self._units_start = HEADER_BYTES + slots * SLOT_BYTES
        self._map: mmap.mmap | None = None
        self._map_turn = threading.Lock()  # to set it
        self.is_writable = False
        self.is_destroyed = False
        self.begin_time_ms = 0
        self.end_time_ms = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.checksum = NO_CHECKSUM  # of the used part, taken when the count was this
        self.checksum_count = 0
        self.is_doubtful = False  # the checksum is the ledger's and was not compared yet, or `damage` was found
        self.damage = ""
        self.is_restored = False  # at this start, from its mark
        self._marked_count = 1
        self._marked_crc = 0

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.count - 1} entries>"

    @property
    def is_full(self) -> bool:
        return self.count >= self.units

    @property
    def is_vouched_for(self) -> bool:
        """Whether the checksum of what is in it is known, or that it is damaged."""
        return self.checksum_count == self.count or bool(self.damage)

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
        self.is_writable = True
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
        if self.is_writable:
            return
        mark = self._mark()
        if mark is not None and mark.units == self.count:
            self._marked_crc = mark.units_crc
        else:  # another program wrote it
            self._marked_crc = 0
            for data in self._unit_chunks(self.count):
                self._marked_crc = crc32(data, self._marked_crc)
        self._marked_count = self.count
        descriptor = self._files.open(self.path)
        try:
            self._files.allocate(descriptor, index_file_bytes(self.slots, self.units))
            self._set_map(self._files.map(descriptor, index_file_bytes(self.slots, self.units), writable=True))
        finally:
            self._files.close(descriptor)
        self.is_writable = True
        self.mark()

    @property
    def is_marked(self) -> bool:
        return any(self._mapped()[self._units_start : self._units_start + UNIT_BYTES])

    def restore(self) -> str | None:
        """After a kill, make the file what it was at its newest mark; the reason when it is not that any more."""
        mark = self._mark()
        if mark is None or not 1 < mark.units <= self.units:
            return "its mark is damaged, or the header's begin time"
        slots, number, checksum = array("i", bytes(self.slots * SLOT_BYTES)), 1, 0
        for data in self._unit_chunks(mark.units):
            checksum = crc32(data, checksum)
            fields = array("i", data)
            if sys.byteorder == "little":
                fields.byteswap()
            for key_hash in fields[:: UNIT_BYTES // 4]:
                slots[key_hash % self.slots] = number
                number += 1
        if checksum != mark.units_crc:
            return f"its first {mark.units - 1} units are not those that were written"
        self.used_slots = self.slots - slots.count(0)
        self.count, self.end_time_ms = mark.units, mark.end_time_ms
        mapping = self._mapped()
        self.begin_offset = _unit_at(mapping, self._units_start + UNIT_BYTES)[1]
        self.end_offset = _unit_at(mapping, self._units_start + (mark.units - 1) * UNIT_BYTES)[1]
        self.make_writable()
        if sys.byteorder == "little":
            slots.byteswap()
        self._mapped()[HEADER_BYTES : self._units_start] = slots.tobytes()
        self._write_header()
        self.is_restored = True
        if self.is_full:
            self.flush()
            self.seal()
        return None

    def flush(self) -> None:
        """Force the file to the disk."""
        if not self.is_writable:
            return
        descriptor = self._files.open(self.path)
        try:
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def seal(self) -> None:
        """No more puts: give up the writable mapping."""
        self.close()

    def close(self) -> None:
        self.is_writable = False
        self._set_map(None)

    def destroy(self) -> None:
        self.is_destroyed = True
        self.close()
        self._files.unlink(self.path)

    @contextmanager
    def while_it_is_there(self) -> Iterator[None]:
        """Around work in another thread than the one that may destroy the file: what is left of it is then skipped."""
        try:
            yield
        except FileNotFoundError:
            if not self.is_destroyed:
                raise

    # --- putting

    def put(self, key_hashes: list[int], physical_offset: int, store_time_ms: int) -> int:
        """Enter one message under these hashes; how many fitted (fewer only when the file is full then)."""
        return self.put_all([(key_hashes, physical_offset, store_time_ms)])

    def put_all(self, records: Sequence[tuple[list[int], int, int]]) -> int:
        """Enter (Java hashes, physical offset, store time) in log order; how many hashes before the file was full.

        Units go before slots and slots before the header, each once for all.
        """
        assert self._map is not None
        mapping, slots, start = self._map, self.slots, self._units_start
        number = first = self.count
        end, begin, time_ms, seconds = self.units, self.begin_time_ms, -1, 0
        begin_offset, end_offset, end_time = self.begin_offset, self.end_offset, self.end_time_ms
        used_slots = self.used_slots
        newest: dict[int, int] = {}  # where a slot is -> the number that it gets
        units = BytesWriter()
        for key_hashes, physical_offset, store_time_ms in records:
            if number >= end:
                break
            if store_time_ms != time_ms:
                seconds = min((store_time_ms - begin) // 1000, SECONDS_MAX) if 0 < begin <= store_time_ms else 0
                time_ms = store_time_ms
            for key_hash in key_hashes:
                if number >= end:
                    break
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
                write_i32_be(units, key_hash)
                write_i64_be(units, physical_offset)
                write_i32_be(units, seconds)
                write_i32_be(units, previous)
                if number == 1:  # after its own seconds were computed from the end of the file before
                    begin_offset, begin, seconds = physical_offset, store_time_ms, 0
                number += 1
                end_offset, end_time = physical_offset, store_time_ms
        if number > first:
            mapping[start + first * UNIT_BYTES : start + number * UNIT_BYTES] = units.getvalue()
            for slot, newest_number in newest.items():
                _put_slot(mapping, slot, newest_number)
            self.begin_time_ms, self.end_time_ms = begin, end_time
            self.begin_offset, self.end_offset, self.used_slots = begin_offset, end_offset, used_slots
            _put_header(mapping, 0, begin, end_time, begin_offset, end_offset, used_slots, number)
            self.count = number
            if number - self._marked_count >= MARK_UNITS or number >= self.units:
                self.mark()
        return number - first

    def mark(self) -> None:
        """Leave a mark of all units. Call it from the thread that puts, or while none does."""
        if not self.is_writable or self.count == 1:
            return
        mapping, start, count = self._mapped(), self._units_start, self.count
        new = mapping[start + self._marked_count * UNIT_BYTES : start + count * UNIT_BYTES]
        self._marked_crc, self._marked_count = crc32(new, self._marked_crc), count
        said = count, self._marked_crc, self.end_time_ms
        _MARK.pack_into(mapping, start, *said, crc32(_MARKED.pack(*said, self.begin_time_ms)))

    def _mark(self) -> _Mark | None:
        """The newest mark; None when there is none that is whole."""
        count, units_crc, end_time_ms, own_crc = _MARK.unpack_from(self._mapped(), self._units_start)
        if crc32(_MARKED.pack(count, units_crc, end_time_ms, self.begin_time_ms)) != own_crc:
            return None
        return _Mark(count, units_crc, end_time_ms)

    # --- looking up

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether an entry of this file may lie in the time range (IndexFile.isTimeMatched)."""
        return begin_ms <= self.end_time_ms and end_ms >= self.begin_time_ms

    def find(self, key_hash: int, *, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of entries with this hash, newest first and each once, that lie in [begin, end].

        Times are whole seconds, so an entry can look up to 999 ms early; the hash can collide. The caller reads the
        records and compares.

        A chain leads to smaller numbers and offsets and stays in its slot, or CorruptStoreError.
        """
        mapping, slots = self._mapped(), self.slots
        found: list[int] = []
        slot = key_hash % slots
        number: int = _slot_at(mapping, HEADER_BYTES + slot * SLOT_BYTES)[0]
        if not 0 <= number < self.units:
            raise self.damaged(f"slot {slot} points at unit {number} of {self.units}")
        start, file_begin, count = self._units_start, self.begin_time_ms, self.count
        before = 2**63
        while number and len(found) < max_count:
            unit_hash, physical_offset, seconds, previous = _unit_at(mapping, start + number * UNIT_BYTES)
            if unit_hash % slots != slot or physical_offset > before or seconds < 0 or not 0 <= previous < number:
                raise self.damaged(f"unit {number} does not belong in the chain of slot {slot}")
            # The first unit is measured from the end of the file before, and its record stored at the begin time.
            time_ms = file_begin + seconds * 1000 if number > 1 else file_begin
            if time_ms < begin_ms:
                break
            # Slots are written before the count: a unit that is being put leads to the ones before it.
            if unit_hash == key_hash and time_ms <= end_ms and number < count and found[-1:] != [physical_offset]:
                found.append(physical_offset)
            before, number = physical_offset, previous
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
        empty = array("i", mapping[HEADER_BYTES : self._units_start]).count(0)
        if empty != self.slots - len(newest):
            return f"{self.slots - empty} slots point at units, {len(newest)} of them should"
        return None

    def take_checksum(self) -> None:
        """Note the checksum of what is in the file now, unless it is known."""
        count = self.count
        if self.checksum_count != count:
            checksum = self.compute_checksum()
            if not self.is_writable:  # somebody began to fill it meanwhile
                self.checksum, self.checksum_count = checksum, count

    def compute_checksum(self) -> int:
        """Of the used part."""
        checksum = 0
        for data in self._chunks(0, self.used_bytes):
            checksum = crc32(data, checksum)
        return checksum

    def settle(self) -> None:
        """Compare a doubtful file with its checksum, once. CorruptStoreError: the next start rebuilds it."""
        if self.damage:
            raise CorruptStoreError(self.path, self.damage)
        found = self.compute_checksum()
        if found != self.checksum:
            raise self.damaged(
                f"the checksum of its {self.used_bytes} bytes is {found:08x}, {self.checksum:08x} was written"
            )
        self.is_doubtful = False

    def damaged(self, cause: str) -> CorruptStoreError:
        """Remember that this file cannot be trusted; the error for the caller."""
        self.damage = f"{cause}: this index file is damaged, it is rebuilt from the log at the next start"
        self.is_doubtful = True
        _log.error("%s: %s", self.path, self.damage)
        return CorruptStoreError(self.path, self.damage)

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

    def _write_header(self) -> None:
        times_and_offsets = self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset
        _put_header(self._mapped(), 0, *times_and_offsets, self.used_slots, self.count)

    def _unit_chunks(self, count: int) -> Iterator[bytes]:
        """The units below `count`, from the first on."""
        return self._chunks(self._units_start + UNIT_BYTES, self._units_start + count * UNIT_BYTES)

    def _chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """Read and not mapped: that would count as our memory."""
        descriptor = self._files.open(self.path, writable=False)
        try:
            for position in range(begin, end, _CHUNK_BYTES):
                yield self._files.pread(descriptor, min(_CHUNK_BYTES, end - position), position)
        finally:
            self._files.close(descriptor)

    def _mapped(self) -> mmap.mmap:
        mapping = self._map
        return mapping if mapping is not None else self._map_to_read()

    def _map_to_read(self) -> mmap.mmap:
        descriptor = self._files.open(self.path, writable=False)
        try:
            mapping = self._files.map(descriptor, index_file_bytes(self.slots, self.units), writable=False)
        finally:
            self._files.close(descriptor)
        self._files.advise(mapping, MADV_RANDOM)
        with self._map_turn:
            if self._map is None:
                self._map = mapping
            return self._map  # or what another thread has mapped meanwhile, perhaps to put

    def _set_map(self, mapping: mmap.mmap | None) -> None:
        with self._map_turn:
            before, self._map = self._map, mapping
        if before is not None:
            self._files.let_go(before)
