"""A slot under delivery: which messages it holds, and how many of them are done.

The units of a slot are chained backwards through the timer log, so all of them are read before the first message is
delivered. Units that were written lately are read where the caller stands, a portion at a time: 20,000 of them take as
long as 2,000 deliveries, and a worker that read them would fight the caller for the interpreter. Those of an old slot
lie on pages that are not in memory any more, and are read by a worker. A slot of 100,000 timers takes 2.1 MB while it
is delivered.
"""

from __future__ import annotations

import logging
from array import array
from concurrent.futures import Executor, Future
from typing import Final

from contrailmq.store.timer.log import BROKEN, TimerLog, TimerMagic
from contrailmq.store.timer.wheel import Slot

log = logging.getLogger("contrailmq.store.timer")

WALK: Final = 8  # units that are read in the time in which one message is delivered
_WORKER_UNITS: Final = 1024  # read by a worker before somebody else may have the interpreter


class DueSlot:
    """Columns over the slot's messages, in the order they were taken in. Owner: TimerStore; `done` are delivered."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.physical_offsets: array[int] = array("q")
        self.sizes: array[int] = array("i")
        self.write_times_ms: array[int] = array("q")
        self.magics: array[int] = array("b")
        self.mark_offsets: list[int] = []  # marks of recalled messages, which were not read yet
        self.mark_sizes: list[int] = []
        self.deleted_keys: set[str] = set()
        self.done = 0
        self._position = slot.last_position  # of the unit that is read next; below 0 when that is over
        self._loading: Future[None] | None = None

    def load(self, timer_log: TimerLog, workers: Executor) -> None:
        """Begin to read the chain; `go_on` says when that is over."""
        timer_log.write()  # files only are read
        if self.slot.first_position < timer_log.fresh_from:
            self._loading = workers.submit(self._read_all, timer_log)

    @property
    def is_loading(self) -> bool:
        """Whether a worker reads."""
        return self._loading is not None and not self._loading.done()

    @property
    def is_reading(self) -> bool:
        """Whether `go_on` has more to read."""
        return self._loading is None and self._position >= 0

    def go_on(self, timer_log: TimerLog, max_count: int) -> bool:
        """Read of the chain as much as takes as long as `max_count` deliveries; whether all of it was read.

        Raises what stopped the worker.
        """
        if self._loading is not None:
            if not self._loading.done():
                return False
            loading, self._loading = self._loading, None
            loading.result()
        if self._position >= 0:
            timer_log.write()
            self._read(timer_log, max_count * WALK)
        return self._position < 0

    def _read_all(self, timer_log: TimerLog) -> None:
        while self._position >= 0:
            self._read(timer_log, _WORKER_UNITS)

    def _read(self, timer_log: TimerLog, max_count: int) -> None:
        slot = self.slot
        time_ms = slot.time_ms
        units, self._position = timer_log.chain(self._position, slot.first_position, max_count)
        take_offset, take_size, take_time, take_magic = (
            self.physical_offsets.append, self.sizes.append, self.write_times_ms.append, self.magics.append,
        )  # fmt: skip
        for _, magic, write_time_ms, delay_ms, physical_offset, size_bytes, _ in units:
            if write_time_ms + delay_ms != time_ms:
                self._position = BROKEN
                break
            if magic & (TimerMagic.DELETE | TimerMagic.ROLL) == TimerMagic.DELETE:
                self.mark_offsets.append(physical_offset)
                self.mark_sizes.append(size_bytes)
            else:
                take_offset(physical_offset)
                take_size(size_bytes)
                take_time(write_time_ms)
                take_magic(magic)
        if self._position >= 0:
            return
        if self._position == BROKEN:
            log.error(
                "timer log: the chain of slot %d from %d back to %d is broken after %d units: a unit is missing",
                time_ms,
                slot.last_position,
                slot.first_position,
                len(self.sizes) + len(self.mark_sizes),
            )
        for column in (self.physical_offsets, self.sizes, self.write_times_ms, self.magics):
            column.reverse()
