"""A slot under delivery: its messages, when each is due, and how many are done.

    chain  ->  messages, as they were taken in  ->  waiting, by the millisecond  ->  ready  ->  done

A slot's units are chained backwards through the timer log, so all are read before the first delivery. Recent units are
read by the caller in portions: 20,000 cost as much as 2,000 deliveries, and a worker would compete for the interpreter.
Units of an old slot are on disk and read by a worker. Each message's own time is then read from its record. Messages
of one millisecond keep their order. When the tick is over, all are due and no times are read any more.

`grow` reports that the slot grew during delivery. A slot of 100,000 timers takes 5 MB.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from concurrent.futures import Executor, Future
from typing import Final, NamedTuple

from contrailmq.store.timer.log import BROKEN, TimerLog, TimerMagic
from contrailmq.store.timer.records import RecordReader, own_times
from contrailmq.store.timer.wheel import Slot
from contrailmq.store.timer.wheel_time import WheelTime

log = logging.getLogger("contrailmq.store.timer")

WALK: Final = 8  # units that are read in the time in which one message is delivered
LOOK: Final = 4  # messages that are looked at in that time
NEVER_MS: Final = 2**63 - 1
_WORKER_UNITS: Final = 1024  # read by a worker before somebody else may have the interpreter


class Messages:
    """Columns over messages of a slot."""

    __slots__ = ("magics", "physical_offsets", "sizes", "write_times_ms")

    def __init__(self) -> None:
        self.physical_offsets: array[int] = array("q")
        self.sizes: array[int] = array("i")
        self.write_times_ms: array[int] = array("q")
        self.magics: array[int] = array("b")

    def __len__(self) -> int:
        return len(self.sizes)

    def take_reversed(self, other: Messages) -> None:
        """Those of another, the last one first."""
        self.physical_offsets += other.physical_offsets[::-1]
        self.sizes += other.sizes[::-1]
        self.write_times_ms += other.write_times_ms[::-1]
        self.magics += other.magics[::-1]

    def without_repetition(self) -> Messages:
        """Each message once."""
        first_of = {physical_offset: at for at, physical_offset in enumerate(self.physical_offsets)}
        found = Messages()
        for at in sorted(first_of.values()):
            found.physical_offsets.append(self.physical_offsets[at])
            found.sizes.append(self.sizes[at])
            found.write_times_ms.append(self.write_times_ms[at])
            found.magics.append(self.magics[at])
        return found


class Portion(NamedTuple):
    """Some messages that are ready."""

    physical_offsets: list[int]
    sizes: list[int]
    write_times_ms: list[int]
    magics: bytes


class DueSlot:
    """Owner: TimerStore. Of the messages that may be delivered, `ready_count`, the first `done` were."""

    def __init__(self, slot: Slot, precision_ms: int, wheel_time: WheelTime) -> None:
        self._wheel_time = wheel_time
        self.slot = slot  # as it is on the wheel
        self.time_ms = slot.time_ms
        self.end_ms = slot.time_ms + precision_ms
        self.done = 0
        self.told = 0  # of these, those that the journal has
        self.asked_end = 0  # of the portion that a worker reads; 0 when none does
        self.mark_offsets: list[int] = []  # marks of recalled messages, which were not read yet
        self.mark_sizes: list[int] = []
        self.unused_marks: Counter[str] = Counter()  # those that were: topic -> how many have found no message yet
        self.used_marks: list[str] = []  # topics of those that have
        self.deleted_keys: set[str] = set()
        self.changes: Counter[str] = Counter()  # what its delivery has changed in the counts of waiting timers
        self.next_ms = NEVER_MS  # when the first of those that wait is due
        self._messages = Messages()  # all that were read, in the order they were taken in
        self._dated = 0  # of these, those whose time is known
        self._asked_look = 0  # to here a worker reads them; 0 when none does
        self._waiting: dict[int, list[int]] = {}  # when they are due -> which messages
        self._ready: array[int] = array("i")  # which messages, in the order of their times
        self._found = Messages()  # of the chain that is read, newest first
        self._top = slot.last_position  # the chain is read from here
        self._bottom = slot.first_position  # to here
        self._is_growth = False  # the unit at the bottom was read before
        self._position = slot.last_position  # of the unit that is read next; below 0 when that is over
        self._lowest = NEVER_MS  # physical offset of the unit that was read last
        self._is_tangled = False  # the chain holds messages twice
        self._loading: Future[None] | None = None

    def load(self, timer_log: TimerLog, workers: Executor) -> None:
        """Begin to read the chain; `go_on` says when that is over."""
        timer_log.write()  # files only are read
        if self._bottom < timer_log.fresh_from:
            self._loading = workers.submit(self._read_all, timer_log)

    def grow(self, slot: Slot) -> None:
        """Units were chained to the slot: this is what it is now."""
        self.slot = slot

    @property
    def is_loading(self) -> bool:
        """Whether a worker reads the chain."""
        return self._loading is not None and not self._loading.done()

    @property
    def is_reading(self) -> bool:
        """Whether `go_on` has more to read."""
        has_more = self._position >= 0 or self._dated < len(self._messages) or self._top != self.slot.last_position
        return self._loading is None and has_more

    @property
    def is_done(self) -> bool:
        """Whether all that is known of the slot was delivered."""
        return self.done == len(self._ready) and not self._waiting

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def portion(self, end: int) -> Portion:
        """The messages that are ready, from the first that is not done on."""
        which, messages = self._ready[self.done : end], self._messages
        physical_offsets, sizes, times_ms, magics = (
            messages.physical_offsets, messages.sizes, messages.write_times_ms, messages.magics,
        )  # fmt: skip
        return Portion(
            [physical_offsets[at] for at in which],
            [sizes[at] for at in which],
            [times_ms[at] for at in which],
            bytes([magics[at] for at in which]),
        )

    @property
    def offsets_done(self) -> set[int]:
        """Physical offsets of what was delivered."""
        offsets = self._messages.physical_offsets
        return {offsets[at] for at in self._ready[: self.done]}

    def untold(self) -> array[int]:
        """Physical offsets of what was delivered and is not in the journal yet."""
        offsets = self._messages.physical_offsets
        return array("q", [offsets[at] for at in self._ready[self.told : self.done]])

    def go_on(self, timer_log: TimerLog, reader: RecordReader, now_ms: int, max_count: int) -> bool:
        """Read as much as takes as long as `max_count` deliveries; whether all messages wait for their time or are
        ready.

        Raises what stopped the worker.
        """
        if self._loading is not None:
            if not self._loading.done():
                return False
            loading, self._loading = self._loading, None
            loading.result()
        while True:
            if self._position >= 0:
                timer_log.write()
                self._read(timer_log, max_count * WALK)
                if self._position >= 0:
                    return False
            if not self._look(reader, now_ms, max_count * LOOK):
                return False
            if self._top == self.slot.last_position:
                return True
            # It was written lately: no worker is needed.
            self._bottom, self._top, self._is_growth = self._top, self.slot.last_position, True
            self._position, self._lowest = self._top, NEVER_MS

    def release(self, until_ms: int) -> None:
        """What is due by then becomes ready."""
        if self.next_ms > until_ms:
            return
        waiting, until_ms = self._waiting, min(until_ms, self.end_ms)
        for due_ms in range(self.next_ms, until_ms + 1):
            which = waiting.pop(due_ms, None)
            if which is not None:
                self._ready.extend(which)
        self.next_ms = NEVER_MS
        for due_ms in range(until_ms + 1, self.end_ms + 1):
            if due_ms in waiting:
                self.next_ms = due_ms
                break

    # --- the chain

    def _read_all(self, timer_log: TimerLog) -> None:
        while self._position >= 0:
            self._read(timer_log, _WORKER_UNITS)

    def _read(self, timer_log: TimerLog, max_count: int) -> None:
        time_ms, lowest = self.time_ms, self._lowest
        units, self._position = timer_log.chain(self._position, self._bottom, max_count)
        if self._is_growth and self._position == -1:
            units.pop()
        found = self._found
        take_offset, take_size, take_time, take_magic = (
            found.physical_offsets.append, found.sizes.append, found.write_times_ms.append, found.magics.append,
        )  # fmt: skip
        for _, magic, write_time_ms, delay_ms, physical_offset, size_bytes, _ in units:
            if write_time_ms + delay_ms != time_ms:
                self._position = BROKEN
                break
            if physical_offset >= lowest:
                self._is_tangled = True
            lowest = physical_offset
            if magic & (TimerMagic.DELETE | TimerMagic.ROLL) == TimerMagic.DELETE:
                self.mark_offsets.append(physical_offset)
                self.mark_sizes.append(size_bytes)
            else:
                take_offset(physical_offset)
                take_size(size_bytes)
                take_time(write_time_ms)
                take_magic(magic)
        self._lowest = lowest
        if self._position < 0:
            self._end_reading()

    def _end_reading(self) -> None:
        if self._position == BROKEN:
            log.error(
                "timer log: the chain of slot %d from %d back to %d is broken after %d units: a unit is missing",
                self.time_ms,
                self._top,
                self._bottom,
                len(self._found) + len(self.mark_sizes),
            )
        if self._is_tangled:  # see recovery.py: a crash after the slot was put back on the wheel
            self._found = self._found.without_repetition()
        self._messages.take_reversed(self._found)
        self._found = Messages()

    # --- the time of each message

    def _look(self, reader: RecordReader, now_ms: int, max_count: int) -> bool:
        """Have messages wait for their time; whether all of them do. False also while a worker reads them."""
        messages, begin = self._messages, self._dated
        if begin == len(messages):
            return True
        last_ms = self.end_ms
        if now_ms >= last_ms:
            self._waiting.setdefault(last_ms, []).extend(range(begin, len(messages)))
            self.next_ms = min(self.next_ms, last_ms)
            self._dated, self._asked_look = len(messages), 0
            return True
        end = self._asked_look or min(begin + max_count, len(messages))
        offsets, sizes = messages.physical_offsets[begin:end], messages.sizes[begin:end]
        self._asked_look = 0
        if not reader.prepare(offsets, sizes):
            self._asked_look = end  # the worker is asked for the same ones again
            return False
        first_ms, waiting, at = self.time_ms + 1, self._waiting, begin
        times_ms = own_times(reader, offsets, sizes)
        if self._wheel_time.shifts_ms != [0]:
            shift_ms = self._wheel_time.shift_ms
            times_ms = [own_ms - shift_ms(offset) for own_ms, offset in zip(times_ms, offsets, strict=True)]
            # One that rolled was stored under another shift than its wish: it is due when the tick is over.
            times_ms = [own_ms if first_ms <= own_ms <= last_ms else 0 for own_ms in times_ms]
        for own_ms in times_ms:
            due_ms = own_ms if first_ms <= own_ms <= last_ms else self._clamped(own_ms)
            which = waiting.get(due_ms)
            if which is None:
                waiting[due_ms] = [at]
                self.next_ms = min(self.next_ms, due_ms)
            else:
                which.append(at)
            at += 1
        reader.release()
        self._dated = end
        return end == len(messages)

    def _clamped(self, own_ms: int) -> int:
        """When a message is due whose own time is not known, or not in this tick: it rolls, or rolled with a delay."""
        return self.time_ms + 1 if 0 < own_ms <= self.time_ms else self.end_ms
