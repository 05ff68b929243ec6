"""The timer wheel: which timers are due at which tick, as a file of fixed slots.

    wheel := slot * (2 x slots_total)              (big-endian; 38,707,200 bytes with the default of 7 x 86,400 slots)
    slot  := tick:i64  first_position:i64  last_position:i64  count:i32  magic:i32          (32 bytes)

Tick `time_ms // precision_ms` has the slot `tick mod (2 x slots_total)`; a slot with another tick stored in it is
empty. The positions point into the timer log, whose units chain back from last to first. Changed slots stay in memory
until `flush`, after the timer log was synced, so no slot on disk points at a unit that a power failure could take. They
are written with `pwrite` into a sparse file; memory holds only what changed since the last flush. A delivered slot is
*closed*: its first position becomes -1, its last one stays. Apache leaves it open and relies on a read time that never
goes back. Here the read time may go back, and a closed slot shows what was delivered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.base.errors import CorruptStoreError, StoreIOError
from contrailmq.store.files import Files

_SLOT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = 32
assert _SLOT.size == SLOT_BYTES

SLOTS_TOTAL: Final = 7 * 86_400  # TimerMessageStore.TIMER_WHEEL_TTL_DAY days of seconds, whatever the precision
NO_POSITION: Final = -1
BLOCK_SLOTS: Final = 128  # what is looked at together
_BLOCK_BYTES: Final = BLOCK_SLOTS * SLOT_BYTES  # what a walk reads at once: one page
SPAN_SLOTS: Final = 256 * BLOCK_SLOTS
_SPAN_BYTES: Final = SPAN_SLOTS * SLOT_BYTES  # of a walk over everything: an empty wheel takes 20 ms
_ZEROS: Final = bytes(_SPAN_BYTES)
_COUNT_MAX: Final = 2**31 - 1


class Slot(NamedTuple):
    """The timers of one tick. Positions are -1 when there are none; `is_closed` when they were delivered."""

    time_ms: int
    first_position: int
    last_position: int
    timers: int
    magic: int = 0

    @property
    def is_empty(self) -> bool:
        return self.first_position < 0

    @property
    def is_closed(self) -> bool:
        return self.first_position < 0 <= self.last_position


class TimerWheel:
    """Slots by time. Owner: TimerStore, on one thread; `write_slots` and `sync` may run on another."""

    def __init__(self, files: Files, path: Path, *, precision_ms: int, slots_total: int = SLOTS_TOTAL) -> None:
        assert precision_ms > 0
        self.path = path
        self.precision_ms = precision_ms
        self.slots = 2 * slots_total
        self.size_bytes = self.slots * SLOT_BYTES
        self.span_ms = self.slots * precision_ms  # two times this far apart share a slot
        self._files = files
        self._changed: dict[int, bytes] = {}  # index -> slot, since the last flush
        self._changed_blocks: dict[int, int] = {}  # block -> how many of its slots are in _changed
        self._descriptor = -1

    def open(self) -> None:
        """Raises `CorruptStoreError` when the file has another size: it was made with another number of slots."""
        is_new = not self._files.exists(self.path)
        try:
            self._descriptor = self._files.open(self.path, create=True)
            if is_new or self._files.size(self.path) == 0:
                self._files.truncate(self._descriptor, self.size_bytes)
                self._files.sync(self._descriptor)
                self._files.sync_directory(self.path.parent)
        except OSError as exc:
            raise StoreIOError("open", self.path, exc) from exc
        size = self._files.size(self.path)
        if size != self.size_bytes:
            self.close()
            raise CorruptStoreError(
                self.path,
                f"the timer wheel has {size} bytes, {self.size_bytes} are expected: cut, or another version's; "
                "move it away, it is rebuilt from the timer log",
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1

    def index(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % self.slots

    def get(self, time_ms: int) -> Slot:
        """The slot of that time; an empty one when the place is another lap's."""
        tick = time_ms // self.precision_ms
        index = tick % self.slots
        data = self._changed.get(index) or self._files.pread(self._descriptor, SLOT_BYTES, index * SLOT_BYTES)
        own_tick, first, last, count, magic = _SLOT.unpack(data)
        if own_tick != tick:
            return Slot(tick * self.precision_ms, NO_POSITION, NO_POSITION, 0)
        return Slot(tick * self.precision_ms, first, last, count, magic)

    def put(self, slot: Slot) -> None:
        tick = slot.time_ms // self.precision_ms
        assert tick > 0
        assert slot.first_position <= slot.last_position
        count = max(-_COUNT_MAX, min(slot.timers, _COUNT_MAX))
        index = tick % self.slots
        if index not in self._changed:
            block = index // BLOCK_SLOTS
            self._changed_blocks[block] = self._changed_blocks.get(block, 0) + 1
        self._changed[index] = _SLOT.pack(tick, slot.first_position, slot.last_position, count, slot.magic)

    def add(self, time_ms: int, position: int, *, change: int) -> None:
        """Chain one more unit into a slot. `change` is +1 for a timer and -1 for a mark that deletes one."""
        self.chain(self.get(time_ms), position, change=change)

    def chain(self, slot: Slot, position: int, *, change: int) -> None:
        """The same, for a slot that was just read."""
        time_ms, first, _, timers, magic = slot
        self.put(Slot(time_ms, position if first < 0 else first, position, timers + change, magic))

    def shut(self, slot: Slot) -> None:
        """Close a slot: all its timers up to its last position were delivered."""
        self.put(slot._replace(first_position=NO_POSITION, timers=0))

    def occupied(self, from_ms: int, to_ms: int) -> Iterator[Slot]:
        """Slots with timers, in time order, from `from_ms` up to and without `to_ms`; looks at each place once.

        Slots are looked at in groups of up to BLOCK_SLOTS, each as of one moment: a flush moves slots from memory to
        the file, and a group that was read from the file before it and from memory after it would miss them.
        """
        tick, end = from_ms // self.precision_ms, to_ms // self.precision_ms
        end = min(end, tick + self.slots)
        while tick < end:
            index = tick % self.slots
            stop = min(end, tick + self.slots - index, tick + BLOCK_SLOTS - index % BLOCK_SLOTS)
            yield from self._occupied_now(tick, stop)
            tick = stop

    def _occupied_now(self, tick: int, stop: int) -> list[Slot]:
        index = tick % self.slots
        block = self._files.pread(self._descriptor, (stop - tick) * SLOT_BYTES, index * SLOT_BYTES)
        if _is_zero(block) and index // BLOCK_SLOTS not in self._changed_blocks:
            return []
        found = []
        for wanted, data in zip(range(tick, stop), _blocks(block), strict=True):
            own_tick, first, last, count, magic = _SLOT.unpack(self._changed.get(wanted % self.slots, data))
            if own_tick == wanted and first >= 0:
                found.append(Slot(own_tick * self.precision_ms, first, last, count, magic))
        return found

    def is_span_empty(self, start: int) -> bool:
        """Whether no slot from index `start` to `start + SPAN_SLOTS` was ever used."""
        numbers = range(start // BLOCK_SLOTS, (start + SPAN_SLOTS) // BLOCK_SLOTS)
        if any(number in numbers for number in self._changed_blocks):
            return False
        size_bytes = min(_SPAN_BYTES, self.size_bytes - start * SLOT_BYTES)
        return _is_zero(self._files.pread(self._descriptor, size_bytes, start * SLOT_BYTES))

    def block(self, start: int) -> list[Slot]:
        """Those of the slots with index `start` to `start + BLOCK_SLOTS` that hold timers, as of now."""
        size_bytes = min(_BLOCK_BYTES, self.size_bytes - start * SLOT_BYTES)
        block = self._files.pread(self._descriptor, size_bytes, start * SLOT_BYTES)
        number = start // BLOCK_SLOTS
        if number not in self._changed_blocks and _is_zero(block):
            return []
        return [slot for slot in self._slots_of(number, block) if not slot.is_empty]

    def all_slots(self) -> Iterator[Slot]:
        """Every slot that holds timers, of any lap, in the order of the file: for recovery and for counting."""
        for span_start in range(0, self.size_bytes, _SPAN_BYTES):
            span = self._files.pread(self._descriptor, min(_SPAN_BYTES, self.size_bytes - span_start), span_start)
            if _is_zero(span) and not self._changed_blocks:
                continue
            for start in range(0, len(span), _BLOCK_BYTES):
                block = span[start : start + _BLOCK_BYTES]
                number = (span_start + start) // _BLOCK_BYTES
                if number in self._changed_blocks or not _is_zero(block):
                    yield from self._slots_of(number, block)

    def _slots_of(self, number: int, block: bytes) -> Iterator[Slot]:
        for index, data in enumerate(_blocks(block), number * BLOCK_SLOTS):
            tick, first, last, count, magic = _SLOT.unpack(self._changed.get(index, data))
            if tick > 0 and last >= 0:
                yield Slot(tick * self.precision_ms, first, last, count, magic)

    # --- flushing, in three steps so that the two slow ones can run on another thread

    def take_changes(self) -> dict[int, bytes]:
        """What `write_slots` is to write. The slots stay readable from memory until `forget`."""
        return dict(self._changed)

    def write_slots(self, changes: dict[int, bytes]) -> None:
        """Write and sync. The timer log must have been synced first."""
        try:
            for index in sorted(changes):
                self._files.pwrite(self._descriptor, changes[index], index * SLOT_BYTES)
        except OSError as exc:
            raise StoreIOError("write", self.path, exc) from exc
        try:
            if changes:
                self._files.sync(self._descriptor)
        except OSError as exc:
            raise StoreIOError("sync", self.path, exc) from exc

    def forget(self, changes: dict[int, bytes]) -> None:
        """Drop from memory what is in the file now, unless it has changed again."""
        for index, data in changes.items():
            if self._changed.get(index) is data:
                del self._changed[index]
                block = index // BLOCK_SLOTS
                left = self._changed_blocks[block] - 1
                if left:
                    self._changed_blocks[block] = left
                else:
                    del self._changed_blocks[block]

    @property
    def changed_count(self) -> int:
        return len(self._changed)


def _is_zero(data: bytes) -> bool:
    """By one memcmp: 100 times as fast as counting zeros."""
    return data == (_ZEROS if len(data) == _SPAN_BYTES else _ZEROS[: len(data)])


def _blocks(data: bytes) -> Iterator[bytes]:
    return (data[start : start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES))
