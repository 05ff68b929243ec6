"""The timer log: one fixed unit per timer that was put on the wheel, in files of equal size.

    unit  := size:i32 (52)  previous:i64  magic:i32  write_time_ms:i64  delay_ms:i32  physical_offset:i64
             size_bytes:i32  topic_hash:i32  reserved:i64 (0)                                (big-endian, 52 bytes)
    blank := free_bytes:i32  0:i64  0xCBD43194:i32          (16 bytes; the rest of the file is unused)

A position is an address over all files; a file is named by its first. `previous` is the unit before in the same slot
or -1, to which Apache reads a chain. `write_time_ms + delay_ms` is the slot's time. A file ends with a blank when
a unit and a blank no longer both fit. Units are gathered in memory and written with one `pwrite` when the owner asks;
files are sparse and never mapped. Written units survive the process, `sync` makes them survive the machine.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.base.errors import CorruptStoreError, StoreIOError
from contrailmq.store.files import Files

_UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_BYTES: Final = 52
assert _UNIT.size == UNIT_BYTES
_PREVIOUS_AT: Final = 4  # in a unit
_NO_PREVIOUS: Final = struct.pack(">q", -1)
_BLANK: Final = struct.Struct(">iqi")
BLANK_BYTES: Final = 16
FILE_BYTES_MIN: Final = UNIT_BYTES + BLANK_BYTES
assert _BLANK.size == BLANK_BYTES
BLANK_MAGIC: Final = -875286124  # 0xCBD43194

FRESH_BYTES: Final = 32 << 20  # written this lately (600,000 units): still in memory
BROKEN: Final = -2  # in place of a position: the chain does not reach its first unit
_READ_BYTES: Final = 64 * 1024  # a slot's units often lie close together: one read serves about 1,200


class TimerMagic:
    """What a unit is. Bits above the low four make a unit unreadable."""

    DEFAULT: Final = 1
    ROLL: Final = 2
    DELETE: Final = 4


_MAGIC_MASK: Final = 0xF


class TimerUnit(NamedTuple):
    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    size_bytes: int
    topic_hash: int

    @property
    def slot_time_ms(self) -> int:
        return self.write_time_ms + self.delay_ms

    @property
    def is_roll(self) -> bool:
        return bool(self.magic & TimerMagic.ROLL)

    @property
    def is_delete(self) -> bool:
        return bool(self.magic & TimerMagic.DELETE)


_pack: Final = _UNIT.pack
_unpack: Final = _UNIT.unpack_from


def decode_unit(data: bytes, at: int = 0) -> TimerUnit | None:
    """None when the bytes are not a unit: unwritten, a blank, or damaged."""
    if len(data) - at < UNIT_BYTES:
        return None
    size, previous, magic, write_time, delay, physical, record_size, topic_hash, _ = _UNIT.unpack_from(data, at)
    if size != UNIT_BYTES or magic & ~_MAGIC_MASK or not magic & TimerMagic.DEFAULT:
        return None
    if write_time <= 0 or delay < 0 or physical < 0 or record_size <= 0 or previous < -1:
        return None
    return _tuple(TimerUnit, (previous, magic, write_time, delay, physical, record_size, topic_hash))


_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less


class TimerLog:
    """Owner: TimerStore, on one thread; `sync` may run on another."""

    def __init__(self, files: Files, directory: Path, *, file_bytes: int) -> None:
        assert file_bytes >= FILE_BYTES_MIN
        self.directory = directory
        self.file_bytes = file_bytes
        self.end = 0  # position of the next unit
        self._files = files
        self._descriptors: dict[int, int] = {}  # base -> descriptor, of every file
        self._pending = bytearray()
        self._pending_start = 0
        self._unsynced: set[int] = set()
        self._block = b""  # what was read last
        self._block_start = 0
        self._room_end = -1  # the last position of a unit in the newest file
        self._opened_end = 0  # what is before it was written by an earlier process

    # --- opening

    def open(self) -> None:
        """Find the files. Where the log ends is for `seek_end` to say, after the owner has walked it."""
        try:
            self._files.make_directory(self.directory)
            paths = self._files.list_directory(self.directory)
            for path in paths:
                if not (path.name.isdigit() and len(path.name) == 20):
                    raise CorruptStoreError(path, "not a timer-log file: its name must be 20 digits; move it away")
                if path == max(paths) and self._files.size(path) == 0:  # killed after making it
                    self._descriptors[int(path.name)] = self._grown(path)
                    continue
                if self._files.size(path) != self.file_bytes:
                    raise CorruptStoreError(
                        path,
                        f"the timer-log file has {self._files.size(path)} bytes, mappedFileSizeTimerLog says "
                        f"{self.file_bytes}: set the size that it was written with; if it was cut, move the directory "
                        "timerlog away, it is rebuilt from the commit log",
                    )
                self._descriptors[int(path.name)] = self._files.open(path)
        except OSError as exc:
            raise StoreIOError("open", self.directory, exc) from exc
        bases = self.bases
        for left, right in itertools.pairwise(bases):
            if left + self.file_bytes != right:
                raise CorruptStoreError(self.directory, f"timer-log files are missing between {left} and {right}")
        self.end = bases[0] if bases else 0

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            self._files.close(descriptor)
        self._descriptors.clear()

    @property
    def bases(self) -> list[int]:
        return sorted(self._descriptors)

    @property
    def begin(self) -> int:
        return min(self._descriptors, default=0)

    @property
    def room_end(self) -> int:
        """Where the files end."""
        return max(self._descriptors, default=-self.file_bytes) + self.file_bytes

    def next_position(self, position: int) -> int:
        """The position after the unit at `position`."""
        return self._room_from(position + UNIT_BYTES)

    def _room_from(self, position: int) -> int:
        """`position`, or the next file's begin when the rest of the file is too small for a unit and a blank."""
        base = position - position % self.file_bytes
        free = base + self.file_bytes - position
        return position if free >= UNIT_BYTES + BLANK_BYTES else base + self.file_bytes

    def seek_end(self, position: int) -> None:
        """End the log here: later bytes become zeros, later files go."""
        for base in [base for base in self._descriptors if base > position or (base == position and base)]:
            self._files.close(self._descriptors.pop(base))
            self._files.unlink(self._path(base))
        base = position - position % self.file_bytes
        if base in self._descriptors:
            descriptor = self._descriptors[base]
            self._files.truncate(descriptor, position - base)
            self._files.truncate(descriptor, self.file_bytes)
            self._unsynced.add(base)
        self.end = self._opened_end = position
        self._room_end = -1
        self._pending_start = position
        self._pending.clear()
        self._block = b""

    @property
    def last_position(self) -> int:
        """Of the newest unit; below 0 when there is none."""
        if self.end <= self.begin:
            return -1
        if self.end % self.file_bytes:
            return self.end - UNIT_BYTES
        return self.end - self.file_bytes + self._last_in_file

    @property
    def is_next_last_in_file(self) -> bool:
        """Whether the next unit's place is the one by which `delete_before`, and Apache, judge its file."""
        return self._room_from(self.end) % self.file_bytes == self._last_in_file

    @property
    def _last_in_file(self) -> int:
        return (self.file_bytes - UNIT_BYTES - BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES

    # --- writing

    def append(self, unit: TimerUnit) -> int:
        """Add a unit; its position. In memory until `write`."""
        return self.add(*unit)

    def add(
        self,
        previous: int,
        magic: int,
        write_time_ms: int,
        delay_ms: int,
        physical_offset: int,
        size_bytes: int,
        topic_hash: int,
    ) -> int:
        """`append` of these fields, without making a unit of them first: 0.5 us less."""
        position = self.end
        if position > self._room_end:
            position = self._room_from(position)
            if position != self.end:
                self._end_file(position)
            self._room_end = position - position % self.file_bytes + self.file_bytes - UNIT_BYTES - BLANK_BYTES
        assert magic & ~_MAGIC_MASK == 0
        assert size_bytes > 0
        self._pending += _pack(
            UNIT_BYTES, previous, magic, write_time_ms, delay_ms, physical_offset, size_bytes, topic_hash, 0
        )
        self.end = position + UNIT_BYTES
        return position

    def _end_file(self, next_base: int) -> None:
        free = next_base - self.end
        is_blank_missing = self._pending_start + len(self._pending) == self.end  # it is there when a write failed
        if is_blank_missing and free >= BLANK_BYTES:
            self._pending += _BLANK.pack(free, 0, BLANK_MAGIC)
        self.write()
        self._pending_start = next_base

    def write(self) -> None:
        """Hand everything appended to the operating system."""
        if not self._pending:
            return
        base = self._pending_start - self._pending_start % self.file_bytes
        try:
            descriptor = self._descriptors.get(base)
            if descriptor is None:
                descriptor = self._create(base)
            self._files.pwrite(descriptor, self._pending, self._pending_start - base)
        except OSError as exc:
            raise StoreIOError("write", self._path(base), exc) from exc
        if self._block_start + len(self._block) > self._pending_start:
            self._block = b""
        self._unsynced.add(base)
        self._pending_start += len(self._pending)
        self._pending = bytearray()

    def _create(self, base: int) -> int:
        path = self._path(base)
        descriptor = self._descriptors[base] = self._grown(path)
        self._files.sync_directory(self.directory)
        return descriptor

    def _grown(self, path: Path) -> int:
        descriptor = self._files.open(path, create=True)
        self._files.truncate(descriptor, self.file_bytes)
        return descriptor

    def take_unsynced(self) -> dict[int, int]:
        """The files (base -> descriptor) that `sync` is to sync; counted as clean from now on."""
        taken = {base: self._descriptors[base] for base in self._unsynced if base in self._descriptors}
        self._unsynced.clear()
        return taken

    def give_back_unsynced(self, taken: dict[int, int]) -> None:
        """They were not synced after all."""
        self._unsynced.update(taken)

    def sync(self, taken: dict[int, int]) -> None:
        self._sync(taken.values())

    def _sync(self, descriptors: Iterable[int]) -> None:
        try:
            for descriptor in descriptors:
                self._files.sync(descriptor)
        except OSError as exc:
            raise StoreIOError("sync", self.directory, exc) from exc

    def places_of_previous(self, positions: list[int]) -> list[tuple[int, int]]:
        """(descriptor, place in its file) of what `cut` is to write. The units must have been written."""
        return [
            (self._descriptors[base], position - base + _PREVIOUS_AT)
            for position in positions
            if (base := position - position % self.file_bytes) in self._descriptors
        ]

    def cut(self, places: list[tuple[int, int]]) -> None:
        """Make these units the first of their chains."""
        try:
            for descriptor, place in places:
                self._files.pwrite(descriptor, _NO_PREVIOUS, place)
        except OSError as exc:
            raise StoreIOError("write", self.directory, exc) from exc
        self._sync({descriptor for descriptor, _ in places})

    def forget_block(self) -> None:
        """What was read last may have been cut."""
        self._block = b""

    # --- reading

    def read(self, position: int) -> TimerUnit | None:
        """The unit at a position; None where none is."""
        if position >= self._pending_start and self._pending:
            offset = position - self._pending_start
            return decode_unit(bytes(self._pending[offset : offset + UNIT_BYTES]))
        offset = position - self._block_start
        if not 0 <= offset <= len(self._block) - UNIT_BYTES:
            self._block, self._block_start = self._block_around(position)
            offset = position - self._block_start
        return decode_unit(self._block, offset)

    def _block_around(self, position: int) -> tuple[bytes, int]:
        """(bytes of the file, the position of the first of them); no bytes where there is no file."""
        base = position - position % self.file_bytes
        descriptor = self._descriptors.get(base)
        if descriptor is None:
            return b"", position
        # Chains are walked backwards, recovery walks forwards: put the position near the end of a third.
        start = max(base, position - _READ_BYTES * 2 // 3)
        return self._files.pread(descriptor, min(_READ_BYTES, base + self.file_bytes - start), start - base), start

    @property
    def fresh_from(self) -> int:
        """Units from here on are read without the disk."""
        return max(self._opened_end, self.end - FRESH_BYTES)

    def chain(self, last: int, first: int, max_count: int) -> tuple[list[TimerUnit], int]:
        """Up to `max_count` units of a slot's chain, from its last one backwards, and the position to go on from.

        That is -1 after the first unit, and BROKEN where one is missing. What is gathered in memory has to be written
        first (`write`). Files only are read: that may be done on another thread, while files are added and none is
        removed.
        """
        units: list[TimerUnit] = []
        block, start, room = b"", 0, -1
        position = last
        for _ in range(max_count):
            offset = position - start
            if not 0 <= offset <= room:
                block, start = self._block_around(position)
                offset, room = position - start, len(block) - UNIT_BYTES
                if offset > room:
                    return units, BROKEN
            # `decode_unit`, without the call: this is done for each message that is delivered.
            size, previous, magic, write_time, delay, physical, record_size, topic_hash, _ = _unpack(block, offset)
            if size != UNIT_BYTES or magic & ~_MAGIC_MASK or not magic & 1 or record_size <= 0 or physical < 0:
                return units, BROKEN
            units.append(_tuple(TimerUnit, (previous, magic, write_time, delay, physical, record_size, topic_hash)))
            if position == first:
                return units, -1
            if not 0 <= previous < position:
                return units, BROKEN
            position = previous
        return units, position

    # --- cleaning

    def delete_before(self, physical_offset_min: int) -> int:
        """Remove files all of whose messages are gone from the commit log; the count. The last file stays."""
        removed = 0
        for base in self.bases[:-1]:
            last = base + self._last_in_file
            unit = self.read(last)
            if last >= self.end or unit is None or unit.physical_offset >= physical_offset_min:
                break
            self._files.close(self._descriptors.pop(base))
            self._files.unlink(self._path(base))
            removed += 1
        if removed:
            self._files.sync_directory(self.directory)
        return removed

    def _path(self, base: int) -> Path:
        return self.directory / f"{base:020d}"
