"""What a master puts when a slave has delivered in its place: the messages of slots that never reached the slave.

They are those from a physical offset on: the end of what the slave knew. Their time is over. Marks among them recall
messages among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contrailmq.message import Property, StoredMessage
from contrailmq.store.timer.delivery import Delivery
from contrailmq.store.timer.log import TimerLog, TimerUnit
from contrailmq.store.timer.records import RecordReader, is_recalled, read_timer
from contrailmq.store.timer.wheel import Slot, TimerWheel

_CHAIN_UNITS: Final = 1024  # read together


def put_unknown(
    wheel: TimerWheel,
    timer_log: TimerLog,
    delivery: Delivery,
    reader: RecordReader,
    slots: Sequence[Slot],
    begin: int,
    now_ms: int,
) -> Slot | None:
    """Put the messages of these slots that lie at `begin` or later, and close the slots.

    Returns the slot at which the store would take no more, None when all is done.
    """
    try:
        for slot in slots:
            if not _put_of_slot(timer_log, delivery, reader, slot, begin, now_ms):
                return slot
            wheel.shut(slot)
    finally:
        reader.release()
    return None


def _put_of_slot(
    timer_log: TimerLog, delivery: Delivery, reader: RecordReader, slot: Slot, begin: int, now_ms: int
) -> bool:
    found: list[tuple[TimerUnit, StoredMessage]] = []
    for unit in reversed(_units_from(timer_log, slot, begin)):
        message = read_timer(reader, unit.physical_offset, unit.size_bytes)
        if message is not None:
            found.append((unit, message))
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


def _units_from(timer_log: TimerLog, slot: Slot, begin: int) -> list[TimerUnit]:
    """Newest first."""
    timer_log.write()
    found: dict[int, TimerUnit] = {}
    position = slot.last_position
    while position >= 0:
        units, position = timer_log.chain(position, slot.first_position, _CHAIN_UNITS)
        found |= {unit.physical_offset: unit for unit in units if unit.physical_offset >= begin}
    return list(found.values())
