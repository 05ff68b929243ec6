"""Between the wall clock, by which messages name their times, and steady time, by which the wheel turns.

TIMER_OUT_MS, TIMER_DELIVER_MS and recall handles are times of the wall clock at admission. The wheel turns by steady
time (store/base/store_clock.py). So a message is taken in at TIMER_OUT_MS less its *shift*: how far the wall clock was
ahead when it was stored, usually 0. Shifts are whole ticks, so a slot stays together and a mark meets its message. They
are rounded down, so after a jump a timer is late by less than a tick, and early by at most READ_MS.

After a restart steady time equals the wall clock again (`is_moved`), and `resettle` gives each waiting message the slot
of its TIMER_OUT_MS less its new shift. A wheel with shifted units says so in `config/timersteady`, written before the
first one and removed at our next opening. Apache's broker ignores it and delivers those early or late by the jump.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from contrailmq.message import Property, SystemTopic, natural_number
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.store.base.store_clock import READ_MS, StoreClock
from contrailmq.store.timer.admission import rolled_slot_time_ms
from contrailmq.store.timer.host import TimerHost
from contrailmq.store.timer.log import BROKEN, TimerLog, TimerMagic, TimerUnit
from contrailmq.store.timer.records import is_recalled
from contrailmq.store.timer.wheel import Slot, TimerWheel

log = logging.getLogger("contrailmq.store.timer")

_CHAIN_UNITS: Final = 1024  # read together
DISPLACED_TEXT: Final = "The clock was set while timers waited: the next start puts them where they belong by then.\n"


class WheelTime:
    """Shifts of messages. Without a clock, and on a slave (which takes in what its master names), all are 0."""

    def __init__(self, host: TimerHost, clock: StoreClock | None, precision_ms: int) -> None:
        self._config = host.config
        self._clock = clock
        self.precision_ms = precision_ms

    def shift_ms(self, physical_offset: int) -> int:
        """Of a message."""
        if self._clock is None or self._config.is_slave:
            return 0
        return self._whole_ticks_ms(self._clock.ahead_ms(physical_offset))

    @property
    def shifts_ms(self) -> list[int]:
        """Of all messages that this process stored, each once, the newest first."""
        if self._clock is None or self._config.is_slave:
            return [0]
        return list(dict.fromkeys(map(self._whole_ticks_ms, self._clock.aheads_ms)))

    @property
    def is_moved(self) -> bool:
        """Whether the slots of the wheel are times of an earlier process that mean something else now."""
        return self._clock is not None and not self._config.is_slave and self._clock.is_moved

    def settled(self) -> None:
        """They are not any more, durably. OSError."""
        if self._clock is not None and not self._config.is_slave:
            self._clock.settled()

    def _whole_ticks_ms(self, ahead_ms: int) -> int:
        return (ahead_ms + READ_MS) // self.precision_ms * self.precision_ms


def resettle(
    store: TimerHost,
    time: WheelTime,
    wheel: TimerWheel,
    timer_log: TimerLog,
    cuts: list[int],
    *,
    now_ms: int,
    window_ms: int,
) -> int:
    """Put all that waits into the slots that `time` says, from the slot of now on; how many. Reads every one of them.

    A message that was recalled is left out here: its mark was meant for where it was, and may not meet it any more.
    As in put_back.py the new units of a slot are linked to its old ones until all of it is durable (`cuts`): a crash
    before that leaves the old chains.
    """
    tick_ms = now_ms // wheel.precision_ms * wheel.precision_ms
    waiting: dict[tuple[int, bool], TimerUnit] = {}
    old_ends: dict[int, int] = {}
    timer_log.write()
    for slot in list(wheel.all_slots()):
        if not slot.is_empty:
            old_ends[slot.time_ms] = slot.last_position
            for unit in _units(timer_log, slot):
                waiting[unit.physical_offset, unit.is_delete and not unit.is_roll] = unit
            wheel.shut(slot)
    marks = [_properties(store, unit) for (_, is_mark), unit in waiting.items() if is_mark]
    recalled = {mark[Property.TIMER_DELETE_UNIQUE_KEY] for mark in marks if Property.TIMER_DELETE_UNIQUE_KEY in mark}
    for (_, is_mark), unit in sorted(waiting.items()):
        properties = _properties(store, unit)
        out_ms = natural_number(properties.get(Property.TIMER_OUT_MS, ""))
        topic = properties.get(Property.REAL_TOPIC, "")
        if out_ms is None or (not is_mark and is_recalled(properties.get(Property.UNIQUE_KEY), topic, recalled)):
            continue
        out_ms -= time.shift_ms(unit.physical_offset)
        out_ms = max(out_ms // wheel.precision_ms * wheel.precision_ms, tick_ms)
        magic, time_ms = unit.magic & ~TimerMagic.ROLL, out_ms
        if out_ms - tick_ms >= window_ms:
            time_ms = rolled_slot_time_ms(out_ms, tick_ms, window_ms=window_ms, precision_ms=wheel.precision_ms)
            magic |= TimerMagic.ROLL
        slot = wheel.get(time_ms)
        previous = old_ends.get(time_ms, -1) if slot.is_empty else slot.last_position
        position = timer_log.append(
            unit._replace(previous=previous, magic=magic, write_time_ms=tick_ms, delay_ms=time_ms - tick_ms)
        )
        if slot.is_empty and previous >= 0:
            cuts.append(position)
        wheel.chain(slot, position, change=-1 if unit.is_delete else 1)
    return len(waiting)


def _units(timer_log: TimerLog, slot: Slot) -> list[TimerUnit]:
    found: list[TimerUnit] = []
    position = slot.last_position
    while position >= 0:
        units, position = timer_log.chain(position, slot.first_position, _CHAIN_UNITS)
        found += units
    if position == BROKEN:
        log.error("timer log: the chain of slot %d is broken after %d units", slot.time_ms, len(found))
    return found


def _properties(store: TimerHost, unit: TimerUnit) -> Mapping[str, str]:
    """Of its message; none when that is gone."""
    record = store.read_record(unit.physical_offset, unit.size_bytes)
    if record is None:
        return {}
    try:
        message = decode_record(record)
    except CorruptRecordError:
        return {}
    return message.properties if message.topic == SystemTopic.TIMER else {}
