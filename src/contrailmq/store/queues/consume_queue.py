"""One consume queue: the list of a queue's messages as 20-byte units that point into the commit log.

The unit of queue offset q is at address q x 20; files of `file_bytes` cut that address space and are named by their
first address. Zeros are space that was never written. A queue that starts above zero has its first file filled up with
*pre-blank* units (0, 2147483647, 0), which keep later units at their addresses and point at no message.

`extend` only adds to `pending`; readers see pending units too. One `pwrite` per queue writes them when 40 KB have
gathered, at housekeeping and at close. The file is sparse and never mapped for writing, so a full disk is an errno, not
a signal. Lost pending units cost nothing: the checkpoint moves only past synced units, and recovery walks the log from
there. One thread appends, without the lock: it extends `pending` in one bytecode. Readers copy under the lock that
removal takes.

Where we differ from Apache on purpose:
* A unit beyond the expected place is not written at the wrong one (ConsumeQueue.putMessagePositionInfo does): the gap
  becomes pre-blank units, which recovery fills in if the log still has the messages.
* A cut leaves zeros, not old units, and an empty last file gets no phantom entry (truncateDirtyLogicFiles).
* Pre-blank units count neither for the highest physical offset nor as the minimum.
* A file with a checksum in the ledger is compared with it before it serves a unit (`doubts`). One that differs raises
  CorruptStoreError, and the next start rebuilds the queue from the log.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from contrailmq.message.checksum import crc32
from contrailmq.message.record import RECORD_BYTES_MIN
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.files import Files
from contrailmq.store.queues.descriptors import DescriptorCache, file_base, file_name
from contrailmq.store.queues.queue_unit import (
    PRE_BLANK,
    UNIT_BYTES,
    Boundary,
    Unit,
    begins_again,
    offset_by_time,
    unpack_unit,
    unpack_units,
)
from contrailmq.store.queues.sound_runs import Runs, before

_log = logging.getLogger(__name__)

DAMAGED: Final = -2  # in place of a file's checksum: the next start makes the queue again
_UNWRITTEN: Final = bytes(UNIT_BYTES)
PENDING_BYTES_MAX: Final = 2_048 * UNIT_BYTES  # 15 us of pwrite shared by 2,048 appends; 40 KB a queue at most
_PAGE_UNITS: Final = 204
_SCAN_BYTES: Final = 3_276 * UNIT_BYTES  # what a scan reads at once, just under 64 KiB
_AHEAD_BYTES: Final = 128 * UNIT_BYTES  # what a small read takes along for the next one
_FAR_MS: Final = 2**63 - 1


class ConsumeQueue:
    """Units of one (topic, queue id). `max_offset` is exclusive: the offset that the next message gets.

    Owned by ConsumeQueueTable. `physical_max` is the end of the last record pointed at, -1 when there is none.
    """

    __slots__ = (
        "_descriptors",
        "_files",
        "_has_file",
        "_window",
        "_window_start",
        "bases",
        "checksums",
        "doubts",
        "ends_in_rubbish",
        "file_bytes",
        "first_physical",
        "loaded_last",
        "lock",
        "max_offset",
        "min_offset",
        "pending",
        "pending_start",
        "physical_max",
        "queue_id",
        "reads_kept",
        "sound",
        "strays",
        "topic",
        "unsynced",
        "where",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        where: str,
        *,
        file_bytes: int,
        files: Files,
        descriptors: DescriptorCache,
    ) -> None:
        assert file_bytes > 0
        assert file_bytes % UNIT_BYTES == 0
        self.topic = topic
        self.queue_id = queue_id
        self.where = where  # the directory; a text, because a Path costs 10 us and there may be 20,000 queues
        self.file_bytes = file_bytes
        self._files = files
        self._descriptors = descriptors
        self.lock = threading.Lock()
        self.min_offset = 0
        self.max_offset = 0
        self.physical_max = -1
        self.bases: list[int] = []  # first addresses of the files, ascending and without a gap
        self.pending = bytearray()
        self.pending_start = 0  # address of the first pending unit
        self.checksums: dict[int, int] = {}  # base -> CRC-32 of what was written to that file; absent: not known
        # base -> (checksum, end of the queue then) of files that were not compared yet; DAMAGED when they were
        self.doubts: dict[int, tuple[int, int]] = {}
        self.unsynced: set[int] = set()  # bases of files written since their last sync
        self.first_physical = -1  # where the first unit pointed at load; -1 when not known
        self.loaded_last: Unit | None = None  # the last unit at load
        self.strays: list[Path] = []  # files that `load` left out
        self.ends_in_rubbish = False  # something that is not a unit follows the last one
        self._has_file = False
        self._window = b""  # units that a read took along: a consumer asks for the next ones soon
        self._window_start = 0
        self.reads_kept = 0  # how many more reads to keep for other groups: recent.py counts
        self.sound: Runs = ()  # what reads have checked: reader.py adds

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    @property
    def directory(self) -> Path:
        return Path(self.where)

    # --- writing

    def has(self, queue_offset: int, physical_end: int) -> bool:
        """Whether the unit of a record is in already. After a restart a record may be dispatched twice.

        Java compares ends of records, not queue offsets.
        """
        return physical_end <= self.physical_max or queue_offset < self.max_offset

    def extend(self, queue_offset: int, unit: bytes, physical_end: int) -> None:
        """Put a unit at or after the end; the gap becomes pre-blank."""
        assert queue_offset >= self.max_offset
        if queue_offset > self.max_offset:
            self._skip_to(queue_offset)
        self.pending += unit
        self.max_offset = queue_offset + 1
        self.physical_max = physical_end

    def may_hold(self, queue_offset: int, physical_offset: int) -> bool:
        """Can the record at this place of the log have this offset? So many records must fit in before it.

        The checksum of a record does not cover its queue offset. A flipped bit there must not become a terabyte of
        pre-blank units, nor reset the queue.
        """
        gap = queue_offset - self.max_offset
        room = physical_offset - (self.physical_max if 0 < self.physical_max <= physical_offset else 0)
        return queue_offset >= 0 and (gap <= 0 or gap * RECORD_BYTES_MIN <= room)

    def begins_again(self, queue_offset: int, physical_offset: int) -> bool:
        """Whether this record of the log ends what the queue holds. Only a master knows of deletions; its slaves see
        the offset."""
        return begins_again(queue_offset, self.max_offset) and physical_offset >= self.physical_max

    def start_at(self, queue_offset: int) -> None:
        """An empty queue whose next message gets this offset."""
        assert self.max_offset == self.min_offset
        if queue_offset > self.max_offset:
            self._skip_to(queue_offset)
            self.min_offset = queue_offset

    def overwrite(self, queue_offset: int, unit: bytes) -> None:
        """Replace a unit that contradicts the log."""
        assert len(unit) == UNIT_BYTES
        assert queue_offset < self.max_offset
        address = queue_offset * UNIT_BYTES
        with self.lock:
            if address >= self.pending_start:
                position = address - self.pending_start
                self.pending[position : position + UNIT_BYTES] = unit
            else:
                position = address % self.file_bytes
                self._descriptors.pwrite(self.where, address - position, unit, position)
                self._window = b""
                self.unsynced.add(address - position)
                self.checksums.pop(address - position, None)
                self.doubts.pop(address - position, None)
        self.sound = before(self.sound, queue_offset)
        if queue_offset == self.max_offset - 1:
            self.physical_max = self._physical_end(queue_offset)

    def write_pending(self) -> int:
        """Hand the pending units to the operating system; how many bytes. They stay pending when that fails."""
        with self.lock:
            count = len(self.pending)
            if not count:
                return 0
            data = memoryview(bytes(self.pending[:count]))
            self._write(self.pending_start, data)
            del self.pending[:count]
            self.pending_start += count
            return count

    def sync(self) -> None:
        """Force what was written to the disk."""
        self._descriptors.sync_all(self.where, self.unsynced)

    # --- reading

    def read_units(self, queue_offset: int, max_count: int) -> bytes:
        """Raw units from `queue_offset` on, at most `max_count`, never past the file that holds the first one.

        Empty when nothing is there. Iterate with `unpack_units`.
        """
        address = queue_offset * UNIT_BYTES
        with self.lock:
            start = self.pending_start
            file_end = address - address % self.file_bytes + self.file_bytes
            end, all_end = address + max_count * UNIT_BYTES, start + len(self.pending)
            if end > all_end:  # a third of the time that `min` takes
                end = all_end
            if end > file_end:
                end = file_end
            if end <= address or not self._has_address(address):
                return b""
            if address >= start:
                return bytes(self.pending[address - start : end - start])
            position = address - self._window_start
            if position >= 0 and end - self._window_start <= len(self._window):
                return self._window[position : position + end - address]
            base = file_end - self.file_bytes
            if self.doubts and base in self.doubts:
                self._settle(base)
            ahead = min(max(end, address + _AHEAD_BYTES), file_end, start)
            data = self._descriptors.pread(self.where, base, ahead - address, address - base)
            if end > start:
                return data + self.pending[: end - start]
            if len(data) <= _AHEAD_BYTES:
                self._window, self._window_start = data, address
            return data[: end - address]

    def unit_at(self, queue_offset: int) -> Unit | None:
        """The unit of one offset, or None outside [min, max)."""
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        data = self.read_units(queue_offset, 1)
        return Unit(*unpack_unit(data)) if len(data) == UNIT_BYTES else None

    def scan(self, begin: int, end: int) -> Iterator[tuple[int, Unit]]:
        """Every unit of [begin, end) with its offset."""
        offset = begin
        while offset < end:
            data = self.read_units(offset, min(end - offset, _SCAN_BYTES // UNIT_BYTES))
            if not data:
                return
            for unit in unpack_units(data):
                yield offset, Unit(*unit)
                offset += 1

    def first_offset(self, begin: int, end: int, holds: Callable[[Unit], bool]) -> int:
        """The first offset in [begin, end) whose unit holds, where all after it do too; `end` when none does."""
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            data = self.read_units(middle, 1)
            if len(data) == UNIT_BYTES and not holds(Unit(*unpack_unit(data))):
                low = middle + 1
            else:
                high = middle
        return low

    def offset_of_physical(self, physical_offset: int) -> int:
        """The first offset whose message is at or above a place in the log; `max_offset` when none does."""
        found = self.max_offset
        end = self._blanks_begin(self.max_offset) if self.max_offset > self.min_offset else self.max_offset
        while True:
            found_here = self.first_offset(
                self.min_offset, end, lambda unit: unit.physical_offset >= physical_offset and not unit.is_pre_blank
            )
            if found_here == end:
                return found
            # Pre-blank units in the middle (the log has a hole) mislead the search: is there one before them, too?
            found = found_here
            end = self._blanks_begin(found)
            if end == found or end <= self.min_offset:
                return found

    def _blanks_begin(self, end: int) -> int:
        """Where the run of pre-blank units begins that ends just before `end`; `end` when there is none."""
        while end > self.min_offset:
            begin = max(self.min_offset, end - _PAGE_UNITS)
            units = [unit for _, unit in self.scan(begin, end)]
            while units and units[-1].is_pre_blank:
                units.pop()
            if units or begin + len(units) == end:
                return begin + len(units)
            end = begin
        return end

    def offset_at(
        self, time_ms: int, store_time_of: Callable[[int, int], int], boundary: Boundary = Boundary.LOWER
    ) -> int:
        """`offset_by_time` among all messages. `store_time_of(physical_offset, size_bytes)` reads the log and gives -1
        for a record that is gone."""

        def time_of(offset: int) -> int:
            data = self.read_units(offset, 1)
            if len(data) < UNIT_BYTES:
                return _FAR_MS
            physical_offset, size_bytes, _ = unpack_unit(data)
            return store_time_of(physical_offset, size_bytes)

        return offset_by_time(self.min_offset, self.max_offset, time_ms, time_of, boundary)

    # --- limits

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Raise the minimum over units whose messages are no longer in the log; an emptied queue keeps its maximum."""
        if self.first_physical < log_min_offset:
            self.min_offset = self.offset_of_physical(log_min_offset)

    def delete_files_below(self, log_min_offset: int) -> int:
        """Remove leading files all of whose messages are gone, never the last one; how many. Then call correct."""
        deleted = 0
        while self._delete_first_below(log_min_offset):
            deleted += 1
        return deleted

    def _delete_first_below(self, log_min_offset: int) -> bool:
        with self.lock:  # all of it: a topic that is deleted meanwhile takes its files, and may be made again
            if len(self.bases) < 2:
                return False
            base = self.bases[0]
            if base in self.doubts:
                self._settle(base)
            data = self._descriptors.pread(self.where, base, UNIT_BYTES, self.file_bytes - UNIT_BYTES)
            if len(data) == UNIT_BYTES and unpack_unit(data)[0] >= log_min_offset:
                return False
            self.bases.pop(0)
            self.unsynced.discard(base)
            self.checksums.pop(base, None)
            self.doubts.pop(base, None)
            self._descriptors.unlink(self.where, base)
            self.min_offset = max(self.min_offset, self.bases[0] // UNIT_BYTES)
            return True

    def truncate_to(self, max_offset: int) -> None:
        """Forget every unit from `max_offset` on, leaving zeros. The first file stays, so the maximum is kept."""
        if max_offset >= self.max_offset:
            return
        assert max_offset >= self.min_offset
        address = max_offset * UNIT_BYTES
        with self.lock:
            if address >= self.pending_start:
                del self.pending[address - self.pending_start :]
            else:
                base = address - address % self.file_bytes
                if base in self.doubts:
                    self._settle(base)
                self.pending.clear()
                self.pending_start = address
                self._window = b""
                self._cut_files(address)
        self.max_offset = max_offset
        self.sound = before(self.sound, max_offset)
        self.physical_max = self._physical_end(max_offset - 1)

    def destroy(self) -> None:
        """Remove every file and the directory."""
        with self.lock:
            for base in self.bases:
                self._descriptors.unlink(self.where, base)
            self.bases.clear()
            self.checksums.clear()
            self.doubts.clear()
            self.unsynced.clear()
            self.pending.clear()
            self.pending_start = 0
            self._window = b""
            self._has_file = False
            self.min_offset = self.max_offset = 0
            self.sound = ()
            self.physical_max = -1
            self._descriptors.forget(self.where)
            self._files.remove_directory_if_empty(self.directory)

    # --- checksums, for the ledger

    def snapshot(self) -> tuple[int, int, list[tuple[int, int]]]:
        """(Minimum, end of what is written, (base, checksum) of every file): what a later start can be held against."""
        with self.lock:
            written_end = self.pending_start // UNIT_BYTES
            known = self.checksums | {base: checksum for base, (checksum, _) in self.doubts.items()}
            files = [(base, known[base]) for base in self.bases if base in known]
            return min(self.min_offset, written_end), written_end, files

    def compute_checksums(self, bytes_max: int) -> int:
        """Read files whose checksum is not known (they were loaded, or mended), newest first; how many bytes."""
        done = 0
        for base in reversed(self.bases):
            with self.lock:
                used = min(self.file_bytes, self.pending_start - base)
                if base not in self.checksums and base not in self.doubts and used > 0 and done + used <= bytes_max:
                    self.checksums[base] = crc32(self._descriptors.pread(self.where, base, used, 0))
                    done += used
        return done

    def is_as_written(self, min_offset: int, max_offset: int, files: list[tuple[int, int]]) -> bool:
        """Whether it has these offsets and files, with checksums that are known already: for most, without a read."""
        return (
            self.max_offset == max_offset
            and self.min_offset == min_offset
            and self.pending_start == max_offset * UNIT_BYTES
            and len(files) == len(self.bases) == len(self.checksums)
            and all(self.checksums.get(base) == checksum for base, checksum in files)
        )

    def doubt(self, base: int, checksum: int, max_offset: int) -> None:
        """Compare this file, as `check_file` does, before it is read or written on."""
        self.doubts[base] = (checksum, max_offset)
        self.first_physical = -1

    def check_file(self, base: int, checksum: int, max_offset: int) -> bool:
        """Whether a file still has the bytes that it had when the queue ended at `max_offset`."""
        with self.lock:
            return self._check_file(base, checksum, max_offset)

    def _check_file(self, base: int, checksum: int, max_offset: int) -> bool:
        if self.pending_start == max_offset * UNIT_BYTES and base in self.checksums:
            return self.checksums[base] == checksum
        used = min(self.file_bytes, max_offset * UNIT_BYTES - base)
        data = self._descriptors.pread(self.where, base, min(self.file_bytes, self.pending_start - base), 0)
        if len(data) < used or crc32(data[:used]) != checksum:
            return False
        self.checksums[base] = crc32(data[used:], checksum)
        return True

    def _settle(self, base: int) -> None:
        """Compare a doubtful file, once; the caller has the lock. CorruptStoreError, now and at every later read."""
        checksum, max_offset = self.doubts[base]
        if checksum != DAMAGED and self._check_file(base, checksum, max_offset):
            del self.doubts[base]
            return
        first = base // UNIT_BYTES
        error = CorruptStoreError(
            self.directory / file_name(base),
            f"the units of {self.topic}/{self.queue_id} from offset {first} to "
            f"{min(max_offset, first + self.file_bytes // UNIT_BYTES) - 1} are not those that were written: this queue "
            "file is damaged, the queue is rebuilt from the log at the next start",
        )
        if checksum != DAMAGED:
            self.doubts[base] = (DAMAGED, max_offset)
            _log.error("%s", error)
        raise error

    def settle(self, bytes_max: int) -> int:
        """Compare doubtful files that nobody has read yet; how many bytes."""
        done = 0
        for base in sorted(self.doubts, reverse=True):
            with self.lock, suppress(CorruptStoreError):  # it was logged, and the ledger will say so
                if done < bytes_max and self.doubts.get(base, (DAMAGED, 0))[0] != DAMAGED:
                    done += self.file_bytes
                    self._settle(base)
        return done

    def is_doubtful_at(self, queue_offset: int) -> bool:
        address = queue_offset * UNIT_BYTES
        return address - address % self.file_bytes in self.doubts

    # --- opening

    def load(self) -> str | None:
        """Take up the files of the directory; the reason when some had to be left out, for a rebuild from the log.

        Java refuses to start on a queue file of odd size. The log has everything a queue says, so we keep the files
        before the first bad one and let recovery write the rest again.
        """
        head = self._load_only_file()
        if head is not None and self._load_few(head):
            return None
        reason = self._load_bases() if head is None else None
        self._has_file = bool(self.bases)
        if not self.bases:
            return reason
        last = self.bases[-1]
        first = self.bases[0] // UNIT_BYTES
        self.pending_start = last + self.file_bytes  # everything is readable while the end is searched
        self.max_offset = self.pending_start // UNIT_BYTES
        begin = last // UNIT_BYTES
        if head is None:
            head = self.read_units(begin, _PAGE_UNITS)
        end = begin + self._valid_units(begin, head)
        behind = head[(end - begin) * UNIT_BYTES :] or self.read_units(end, 1)
        self.ends_in_rubbish = bool(behind[:UNIT_BYTES].strip(b"\0"))
        self.max_offset = end
        self.pending_start = end * UNIT_BYTES
        self.min_offset = first
        first_unit = head[:UNIT_BYTES] if first == begin and end > begin else self.read_units(first, 1)
        if first_unit == PRE_BLANK:
            self.min_offset = self.first_offset(first, end, lambda unit: not unit.is_pre_blank)
            first_unit = self.read_units(self.min_offset, 1)
        self.first_physical = unpack_unit(first_unit)[0] if first_unit else -1
        position = (end - 1 - begin) * UNIT_BYTES
        last_unit = head[position : position + UNIT_BYTES] if end > begin else b""
        if len(last_unit) < UNIT_BYTES and end:
            last_unit = self.read_units(end - 1, 1)
        self.loaded_last = Unit(*unpack_unit(last_unit)) if last_unit else None
        self.physical_max = _physical_end(self.loaded_last)
        self._window = b""  # it may reach past the end that was found, where units will be written
        return reason

    def _load_only_file(self) -> bytes | None:
        """The first page of a queue with one file of the right size, which becomes its base; None for any other.

        Nearly all of 20,000 queues are like that. They are found with one listing, opening, size and read for each.
        """
        names = self._files.list_text(self.where)
        base = file_base(names[0]) if len(names) == 1 else None
        if base is None or base % self.file_bytes:
            return None
        try:
            size_bytes, head = self._descriptors.peek(self.where, base, _PAGE_UNITS * UNIT_BYTES)
        except IsADirectoryError:
            return None
        if size_bytes != self.file_bytes:
            return None
        self.bases, self.strays = [base], []
        return head

    def _load_few(self, head: bytes) -> bool:
        """Take up the only file when its units end within its first page, in zeros; False, and nothing done, else."""
        count = 0
        for physical_offset, size_bytes, _ in unpack_units(head):
            if size_bytes <= 0 or physical_offset < 0:
                break
            count += 1
        units = head[: count * UNIT_BYTES]
        behind = head[len(units) : len(units) + UNIT_BYTES]
        if not count or behind != _UNWRITTEN or units.startswith(PRE_BLANK):
            return False
        base = self.bases[0]
        self._has_file = True
        self.min_offset = base // UNIT_BYTES
        self.max_offset = self.min_offset + count
        self.pending_start = base + len(units)
        self.first_physical = unpack_unit(units)[0]
        self.loaded_last = Unit(*unpack_unit(units, len(units) - UNIT_BYTES))
        self.physical_max = _physical_end(self.loaded_last)
        self.checksums[base] = crc32(units)  # the ledger will be compared with it
        return True

    def _valid_units(self, begin: int, head: bytes) -> int:
        """How many units the last file has. Most of 20,000 queues end in its first page, which is `head`: one read."""
        if len(head) == _PAGE_UNITS * UNIT_BYTES and _is_valid_at(head, _PAGE_UNITS - 1):
            block = self.read_units(begin + _PAGE_UNITS, _SCAN_BYTES // UNIT_BYTES)
            count = len(block) // UNIT_BYTES
            if count and not _is_valid_at(block, count - 1):  # one read where a search over the file takes fifteen
                return _PAGE_UNITS + bisect.bisect(range(count), False, key=lambda at: not _is_valid_at(block, at))
            end = self.first_offset(begin + _PAGE_UNITS + count, self.max_offset, lambda unit: not unit.is_valid)
            return end - begin
        for count, (physical_offset, size_bytes, _) in enumerate(unpack_units(head)):
            if size_bytes <= 0 or physical_offset < 0:
                return count
        return len(head) // UNIT_BYTES

    def remove_strays(self) -> None:
        """Remove the files that `load` left out, before others of their names are made, and bytes past the end."""
        if self.ends_in_rubbish:
            with self.lock:
                self._cut_files(self.max_offset * UNIT_BYTES)
            self.ends_in_rubbish = False
        if self.strays:  # `forget` looks at every open file: not for each of 20,000 queues
            self._descriptors.forget(self.where)
        while self.strays:
            self._files.unlink(self.strays.pop())

    def _load_bases(self) -> str | None:
        self.bases = []
        self.strays = []
        reason: str | None = None
        for name, size_bytes in self._files.list_sizes(self.where):
            base = file_base(name)
            if base is None:
                continue
            if reason is None and size_bytes == self.file_bytes and base % self.file_bytes == 0 and self._follows(base):
                self.bases.append(base)
                continue
            reason = reason or f"queue file {name} has {size_bytes} bytes where {self._expected()} was expected"
            self.strays.append(self.directory / name)
        for index, base in enumerate(self.bases[:-1]):
            data = self._descriptors.pread(self.where, base, UNIT_BYTES, self.file_bytes - UNIT_BYTES)
            if not Unit(*unpack_unit(data)).is_valid:
                self.strays += [self.directory / file_name(lost) for lost in self.bases[index + 1 :]]
                del self.bases[index + 1 :]
                return f"queue file {file_name(base)} is not full although others follow it"
        return reason

    def _follows(self, base: int) -> bool:
        return not self.bases or base == self.bases[-1] + self.file_bytes

    def _expected(self) -> str:
        where = file_name(self.bases[-1] + self.file_bytes) if self.bases else "a multiple of the file size"
        return f"{self.file_bytes} bytes at {where}"

    # --- leaves

    def _has_address(self, address: int) -> bool:
        return address >= (self.bases[0] if self.bases else self.pending_start)

    def _physical_end(self, queue_offset: int) -> int:
        """End of the record that a unit points at; -1 for none and for pre-blank."""
        data = self.read_units(queue_offset, 1) if queue_offset >= 0 else b""
        return _physical_end(Unit(*unpack_unit(data)) if len(data) == UNIT_BYTES else None)

    def _skip_to(self, queue_offset: int) -> None:
        """Pre-blank up to an offset: from the start of its file in a new queue, from the end otherwise."""
        if not self._has_file and not self.pending:
            address = queue_offset * UNIT_BYTES
            self.pending_start = address - address % self.file_bytes
            blanks = (address - self.pending_start) // UNIT_BYTES
            self.min_offset = queue_offset
        else:
            blanks = queue_offset - self.max_offset
            if self.min_offset == self.max_offset:
                self.min_offset = queue_offset
        self.pending += PRE_BLANK * blanks
        self.max_offset = queue_offset

    def _write(self, start: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            position = (start + done) % self.file_bytes
            base = start + done - position
            part = data[done : done + self.file_bytes - position]
            if base in self.doubts:
                with suppress(CorruptStoreError):  # nobody reads it here
                    self._settle(base)
            if not self.bases or base > self.bases[-1]:
                self._create(base)
            self._descriptors.pwrite(self.where, base, part, position)
            self.unsynced.add(base)
            known = self.checksums.pop(base, None) if position else 0
            if known is not None:
                self.checksums[base] = crc32(part, known)
            done += len(part)

    def _create(self, base: int) -> None:
        self._descriptors.create(self.where, base, self.file_bytes)
        self.bases.append(base)
        self._has_file = True

    def _cut_files(self, address: int) -> None:
        while len(self.bases) > 1 and self.bases[-1] >= address:
            self._descriptors.unlink(self.where, self.bases.pop())
        for base in [base for base in (*self.checksums, *self.doubts) if base + self.file_bytes > address]:
            self.checksums.pop(base, None)
            self.doubts.pop(base, None)
        if self.bases:
            base = self.bases[-1]
            position = max(0, address - base)
            if position < self.file_bytes:
                self._descriptors.zero_from(self.where, base, position, self.file_bytes)
                self.unsynced.add(base)


def _is_valid_at(units: bytes, number: int) -> bool:
    return Unit(*unpack_unit(units, number * UNIT_BYTES)).is_valid


def _physical_end(unit: Unit | None) -> int:
    if unit is None or unit.is_pre_blank or not unit.is_valid:
        return -1
    return unit.physical_offset + unit.size_bytes
