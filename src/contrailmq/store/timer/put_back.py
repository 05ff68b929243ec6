"""Puts the undelivered rest of a slot back on the wheel, after a stop or a clock that was set back.

    before   slot -> L ... F                 units of all its messages
    after    slot -> L' ... F' (-> L ... F)  new units of the rest; the link after F' is cut when all of it is durable

So the next reader of the slot, also Apache's, finds exactly the rest. While the link is there, a crash that loses the
slot's new positions leaves the old chain, and recovery.py skips units whose message the slot has. Apache reads a chain
to a unit without a predecessor, hence the cut, the last step of a flush.

Two rules of Apache's about the newest unit need a unit or two more. Its recovery continues after the message of the
log's last unit, so the newest message's unit is repeated after the rest. It deletes a log file when the message of the
file's last unit is gone from the commit log, so no unit of an old message may be last. A newest message that was
delivered from this slot is repeated as a mark that recalls nothing; so is the last one of a slot with no rest. Messages
of a chain stay in the order of the commit log, on which recovery relies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from contrailmq.store.timer.log import TimerLog, TimerMagic, TimerUnit
from contrailmq.store.timer.wheel import NO_POSITION, Slot, TimerWheel

_CHAIN_UNITS: Final = 1024  # read together


def put_back(timer_log: TimerLog, wheel: TimerWheel, slot: Slot, done: Collection[int], cuts: list[int]) -> None:
    """Chain what is not done of a slot again, with its marks. `done` are physical offsets.

    `cuts` gets the units whose links are to be cut (`TimerLog.cut`) when the next flush is over.
    """
    newest = _Newest(timer_log, wheel, slot, cuts)
    units = _rest(timer_log, slot, done)
    timers = sum(-1 if _is_mark(unit) else 1 for unit in units)
    if not units:
        units = [_without_effect(_known(timer_log, slot.last_position))]
    elif newest.is_here and units[-1].physical_offset != newest.unit.physical_offset:
        units.append(_without_effect(newest.unit))
    first, last = NO_POSITION, slot.last_position
    for unit in units:
        if timer_log.is_next_last_in_file:
            newest.repeat()
        last = timer_log.append(unit._replace(previous=last))
        first = last if first < 0 else first
    wheel.put(Slot(slot.time_ms, first, last, max(timers, 0), slot.magic))
    cuts.append(first)
    if not newest.is_here:
        newest.repeat()


class _Newest:
    """The newest unit of the log. `is_here`: in the slot that is put back."""

    def __init__(self, timer_log: TimerLog, wheel: TimerWheel, slot: Slot, cuts: list[int]) -> None:
        self._log = timer_log
        self._wheel = wheel
        self._cuts = cuts
        self._passed_ms = slot.time_ms - wheel.precision_ms  # of a slot that was delivered
        self._position = timer_log.last_position
        self.unit = _known(timer_log, self._position)
        self.is_here = self._position == slot.last_position

    def repeat(self) -> None:
        """Add the unit once more: in its own place of its chain, or where nobody reads it."""
        if self.is_here:
            passed = self._wheel.get(self._passed_ms)
            self._log.append(
                _without_effect(self.unit)._replace(
                    previous=passed.last_position, write_time_ms=self._passed_ms, delay_ms=0
                )
            )
            return
        position = self._log.append(self.unit)
        slot = self._wheel.get(self.unit.slot_time_ms)
        if slot.last_position == self._position:
            first = position if slot.first_position == self._position else slot.first_position
            self._wheel.put(slot._replace(first_position=first, last_position=position))
        if self._position in self._cuts:
            self._cuts.append(position)
        self._position = position


def _rest(timer_log: TimerLog, slot: Slot, done: Collection[int]) -> list[TimerUnit]:
    """The units that are not done, and the marks, in the order they were taken in; each message once."""
    timer_log.write()
    rest: dict[tuple[int, bool], TimerUnit] = {}
    position = slot.last_position
    while position >= 0:
        units, position = timer_log.chain(position, slot.first_position, _CHAIN_UNITS)
        for unit in units:
            is_mark = _is_mark(unit)
            if is_mark or unit.physical_offset not in done:
                rest[unit.physical_offset, is_mark] = unit
    return list(reversed(rest.values()))


def _is_mark(unit: TimerUnit) -> bool:
    return unit.is_delete and not unit.is_roll


def _without_effect(unit: TimerUnit) -> TimerUnit:
    """As a mark: a message that names no other recalls none, and is not delivered."""
    return unit._replace(magic=TimerMagic.DEFAULT | TimerMagic.DELETE)


def _known(timer_log: TimerLog, position: int) -> TimerUnit:
    unit = timer_log.read(position)
    assert unit is not None, position
    return unit
