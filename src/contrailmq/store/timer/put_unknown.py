"""What a master puts when a slave has delivered in its place: of the slots that are over, what the slave has not done.

Those are the messages from a physical offset on, which never reached the slave: their time is over. And those that were
to roll in these slots: the slave took them in later than the master did, so it may have them in a later slot, or in
their last one. They roll now. One that rolled at the slave too, and went to another group, comes twice; otherwise one
that did not would never come. A mark in a slot recalls messages of that slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from contrailmq.message import Property, StoredMessage
from contrailmq.store.timer.delivery import Delivery
from contrailmq.store.timer.log import TimerLog, TimerUnit
from contrailmq.store.timer.records import RecordReader, is_recalled, out_ms_of, read_timer
from contrailmq.store.timer.wheel import Slot, TimerWheel
from contrailmq.store.timer.wheel_time import WheelTime

_CHAIN_UNITS: Final = 1024  # read together


def put_unknown(
    wheel: TimerWheel,
    timer_log: TimerLog,
    delivery: Delivery,
    reader: RecordReader,
    slots: Sequence[Slot],
    begin: int,
    now_ms: int,
    *,
    done_until_ms: int,
    time: WheelTime,
) -> Slot | None:
    """Put the messages of these slots that lie at `begin` or later, or roll and are due after the slots that the slave
    has done, `done_until_ms`. Close the slots.

    Returns the slot at which the store would take no more, None when all is done.
    """

    def is_open(message: StoredMessage) -> bool:
        return out_ms_of(message) - time.shift_ms(message.physical_offset) >= done_until_ms

    try:
        for slot in slots:
            found = _found(timer_log, reader, slot, begin, is_open)
            if not _put(delivery, found, now_ms):
                return slot
            wheel.shut(slot)
    finally:
        reader.release()
    return None


def _found(
    timer_log: TimerLog, reader: RecordReader, slot: Slot, begin: int, is_open: Callable[[StoredMessage], bool]
) -> list[tuple[TimerUnit, StoredMessage]]:
    found: list[tuple[TimerUnit, StoredMessage]] = []
    for unit in reversed(_units(timer_log, slot)):
        is_unknown = unit.physical_offset >= begin
        if not is_unknown and not unit.is_roll and not unit.is_delete:
            continue
        message = read_timer(reader, unit.physical_offset, unit.size_bytes)
        if message is not None and (is_unknown or unit.is_delete or is_open(message)):
            found.append((unit, message))
    return found


def _put(delivery: Delivery, found: Sequence[tuple[TimerUnit, StoredMessage]], now_ms: int) -> bool:
    """What no mark among them recalls."""
    keys = (message.properties.get(Property.TIMER_DELETE_UNIQUE_KEY) for _, message in found)
    deleted = {key for key in keys if key is not None}
    for unit, message in found:
        properties = message.properties
        if Property.TIMER_DELETE_UNIQUE_KEY in properties or is_recalled(
            properties.get(Property.UNIQUE_KEY), properties.get(Property.REAL_TOPIC, ""), deleted
        ):
            continue
        if not delivery.put(message, now_ms, unit.write_time_ms, unit.magic):
            return False
    return True


def _units(timer_log: TimerLog, slot: Slot) -> list[TimerUnit]:
    """Newest first."""
    timer_log.write()
    found: dict[int, TimerUnit] = {}
    position = slot.last_position
    while position >= 0:
        units, position = timer_log.chain(position, slot.first_position, _CHAIN_UNITS)
        found |= {unit.physical_offset: unit for unit in units}
    return list(found.values())
