"""A slot under delivery: which messages it holds, and how many of them are done.

The units of a slot are chained backwards through the timer log, and those of an old slot lie on pages that are not in
memory any more. So a slot is loaded by a worker, except when it is small and was written lately. A slot of 100,000
timers takes 1.8 MB while it is delivered.
"""

from __future__ import annotations

import logging
from array import array
from concurrent.futures import Executor, Future
from typing import Final

from contrailmq.store.timer.log import TimerLog, TimerMagic
from contrailmq.store.timer.wheel import Slot

log = logging.getLogger("contrailmq.store.timer")

INLINE_MAX: Final = 256  # units that are walked at once: 0.5 ms


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
        self._loading: Future[None] | None = None

    def load(self, timer_log: TimerLog, workers: Executor) -> None:
        """Begin to read the chain; `is_loaded` says when that is over."""
        slot = self.slot
        if slot.timers <= INLINE_MAX and slot.first_position >= timer_log.fresh_from:
            self._walk(timer_log)
        else:
            timer_log.write()  # a worker reads the files only
            self._loading = workers.submit(self._walk, timer_log)

    @property
    def is_loading(self) -> bool:
        return self._loading is not None and not self._loading.done()

    @property
    def is_loaded(self) -> bool:
        """Raises what stopped the worker."""
        if self._loading is None:
            return True
        if not self._loading.done():
            return False
        loading, self._loading = self._loading, None
        loading.result()
        return True

    def _walk(self, timer_log: TimerLog) -> None:
        time_ms, first, last = self.slot.time_ms, self.slot.first_position, self.slot.last_position
        ends_at = last
        for position, unit in timer_log.chain(last, first):
            _, magic, write_time_ms, delay_ms, physical_offset, size_bytes, _ = unit
            if write_time_ms + delay_ms != time_ms:
                break
            ends_at = position
            if magic & (TimerMagic.DELETE | TimerMagic.ROLL) == TimerMagic.DELETE:
                self.mark_offsets.append(physical_offset)
                self.mark_sizes.append(size_bytes)
            else:
                self.physical_offsets.append(physical_offset)
                self.sizes.append(size_bytes)
                self.write_times_ms.append(write_time_ms)
                self.magics.append(magic)
        if ends_at != first:
            log.error(
                "timer log: slot %d is chained from %d, not from %d on: a unit is missing", time_ms, ends_at, first
            )
        for column in (self.physical_offsets, self.sizes, self.write_times_ms, self.magics):
            column.reverse()
