"""A slot under delivery: which messages it holds, when each of them is due, and how many are done.

    chain  ->  found  ->  waiting, by the millisecond  ->  ready  ->  done

The units of a slot are chained backwards through the timer log, so all of them are read before the first message is
delivered. Units that were written lately are read where the caller stands, a portion at a time: 20,000 of them take as
long as 2,000 deliveries, and a worker that read them would fight the caller for the interpreter. Those of an old slot
lie on pages that are not in memory any more, and are read by a worker. Then each message is looked at for the time
that it asks for (a unit has the slot's time only), and waits for its millisecond; messages of one millisecond stay in
the order they were taken in. When the tick is over all are due, and their own times are not looked for any more.

A slot grows while it is delivered: `grow` says so, and the new end of its chain goes the same way.

A slot of 100,000 timers takes 2.1 MB while it is delivered.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from concurrent.futures import Executor, Future
from typing import Final

from contrailmq.store.timer.log import BROKEN, TimerLog, TimerMagic
from contrailmq.store.timer.records import RecordReader, own_times
from contrailmq.store.timer.wheel import Slot

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

    def add(self, physical_offset: int, size_bytes: int, write_time_ms: int, magic: int) -> None:
        self.physical_offsets.append(physical_offset)
        self.sizes.append(size_bytes)
        self.write_times_ms.append(write_time_ms)
        self.magics.append(magic)

    def take(self, other: Messages, begin: int = 0) -> None:
        """Those of another, from one of them on, behind these."""
        self.physical_offsets += other.physical_offsets[begin:]
        self.sizes += other.sizes[begin:]
        self.write_times_ms += other.write_times_ms[begin:]
        self.magics += other.magics[begin:]

    def reverse(self) -> None:
        for column in (self.physical_offsets, self.sizes, self.write_times_ms, self.magics):
            column.reverse()

    def without_repetition(self) -> Messages:
        """Each message once."""
        seen: set[int] = set()
        found = Messages()
        for at, physical_offset in enumerate(self.physical_offsets):
            if physical_offset not in seen:
                seen.add(physical_offset)
                found.add(physical_offset, self.sizes[at], self.write_times_ms[at], self.magics[at])
        return found


class DueSlot:
    """Owner: TimerStore. `ready` are the messages that may be delivered, in this order; `done` of them were."""

    def __init__(self, slot: Slot, precision_ms: int) -> None:
        self.slot = slot  # as it is on the wheel
        self.time_ms = slot.time_ms
        self.end_ms = slot.time_ms + precision_ms
        self.ready = Messages()
        self.done = 0
        self.asked_end = 0  # of the portion that a worker reads; 0 when none does
        self.mark_offsets: list[int] = []  # marks of recalled messages, which were not read yet
        self.mark_sizes: list[int] = []
        self.unused_marks: Counter[str] = Counter()  # those that were: topic -> how many have found no message yet
        self.used_marks: list[str] = []  # topics of those that have
        self.deleted_keys: set[str] = set()
        self.changes: Counter[str] = Counter()  # what its delivery has changed in the counts of waiting timers
        self.next_ms = NEVER_MS  # when the first of those that wait is due
        self._waiting: dict[int, Messages] = {}  # when they are due -> in the order they were taken in
        self._found = Messages()  # of the chain that is read: newest first, and turned round when it was read
        self._dated = 0  # of those found: their time is known
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
        has_more = self._position >= 0 or self._dated < len(self._found) or self._top != self.slot.last_position
        return self._loading is None and has_more

    @property
    def is_done(self) -> bool:
        """Whether all that is known of the slot was delivered."""
        return self.done == len(self.ready) and not self._waiting

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
        for due_ms in sorted([due_ms for due_ms in self._waiting if due_ms <= until_ms]):
            self.ready.take(self._waiting.pop(due_ms))
        self.next_ms = min(self._waiting, default=NEVER_MS)

    # --- the chain

    def _read_all(self, timer_log: TimerLog) -> None:
        while self._position >= 0:
            self._read(timer_log, _WORKER_UNITS)

    def _read(self, timer_log: TimerLog, max_count: int) -> None:
        time_ms, lowest = self.time_ms, self._lowest
        units, self._position = timer_log.chain(self._position, self._bottom, max_count)
        if self._is_growth and self._position == -1:
            units.pop()
        take = self._found.add
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
                take(physical_offset, size_bytes, write_time_ms, magic)
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
        self._found.reverse()
        if self._is_tangled:  # see recovery.py: a crash after the slot was put back on the wheel
            self._found = self._found.without_repetition()

    # --- the time of each message

    def _look(self, reader: RecordReader, now_ms: int, max_count: int) -> bool:
        """Have messages wait for their time; whether all of them do. False also while a worker reads them."""
        found, begin = self._found, self._dated
        if now_ms >= self.end_ms and begin < len(found):
            self._wait_until(self.end_ms).take(found, begin)
        elif begin < len(found):
            end = min(begin + max_count, len(found))
            offsets, sizes = found.physical_offsets[begin:end], found.sizes[begin:end]
            if not reader.prepare(offsets, sizes):
                return False
            first_ms, last_ms = self.time_ms + 1, self.end_ms
            times, magics = found.write_times_ms, found.magics
            for at, own_ms in enumerate(own_times(reader, offsets, sizes), begin):
                # Not known, and what rolls: when the tick is over.
                due_ms = own_ms if first_ms <= own_ms <= last_ms else (first_ms if 0 < own_ms < first_ms else last_ms)
                self._wait_until(due_ms).add(offsets[at - begin], sizes[at - begin], times[at], magics[at])
            reader.release()
            self._dated = end
            if end < len(found):
                return False
        self._found, self._dated = Messages(), 0
        return True

    def _wait_until(self, due_ms: int) -> Messages:
        messages = self._waiting.get(due_ms)
        if messages is None:
            messages = self._waiting[due_ms] = Messages()
            self.next_ms = min(self.next_ms, due_ms)
        return messages
