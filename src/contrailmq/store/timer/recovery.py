"""Brings the timer's files into agreement after any stop.

The checkpoint says what was durable at the last flush. The log may hold more units, and the wheel may lack them. So the
log is walked from one file before the flushed position, and units that their slot lacks are chained in. The log ends at
the first bytes that are not a unit, or at a unit that points past the end of the commit log: its message was never
durable (RocketMQ #10668). A slot that was put back (put_back.py) has its units twice: one without a predecessor begins
the chain again, and one whose message the slot has, or a newer one, is skipped because the old chain is whole.

Slots before the read time are closed. If a slot points past the end of the log, or the wheel is new, the wheel is
rebuilt from the log. Values of the journal (delivered.py) that are newer than the checkpoint replace it, but the walk
still begins at the flushed position, because the wheel lacks what came after.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from contrailmq.message import SystemTopic
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.store.timer.checkpoint import TimerCheckpoint
from contrailmq.store.timer.delivered import Delivered
from contrailmq.store.timer.host import TimerHost
from contrailmq.store.timer.log import TimerLog, TimerUnit
from contrailmq.store.timer.wheel import Slot, TimerWheel

log = logging.getLogger("contrailmq.store.timer")

BELIEVED_MS: Final = 10 * 365 * 86_400_000  # a read time further from now is damage, not a stop or a clock that was set


class Recovered(NamedTuple):
    """Where the stages go on, and what opening found.

    `retake_until` is above `queue_offset` when units were lost, or when this broker was a slave that had not taken in
    all that its master had: of the messages before it, those that were due before the read time have been delivered,
    the others are to be put on the wheel again.
    """

    queue_offset: int
    retake_until: int
    read_time_ms: int = 0
    replayed_units: int = 0
    is_rebuilt: bool = False
    is_journaled: bool = False  # a crash came after deliveries that only the journal knows


def recover(
    store: TimerHost,
    wheel: TimerWheel,
    timer_log: TimerLog,
    checkpoint: TimerCheckpoint,
    now_ms: int,
    delivered: Delivered | None = None,
) -> Recovered:
    """Make wheel and log agree and find where to go on. `now_ms` counts only where nothing was ever delivered."""
    is_unused = next(wheel.all_slots(), None) is None  # new or rebuilt: every unit that waits is missing
    start = timer_log.begin if is_unused else _start_of_walk(timer_log, checkpoint.log_flushed_position)
    end = _end_of_log(store, timer_log, start)
    if delivered is not None:
        checkpoint = delivered.advance(checkpoint, log_end=end)
    if not _is_credible(store, checkpoint, now_ms):
        log.warning("the timer checkpoint cannot be true (%s): timers are taken in from the timer log on", checkpoint)
        checkpoint = checkpoint._replace(queue_offset=0, master_queue_offset=0)
    read_time_ms = checkpoint.read_time_ms
    if not _is_believed_time(read_time_ms, now_ms):
        read_time_ms = _oldest_waiting_ms(wheel, now_ms)
    is_rebuilt = any(slot.last_position >= end for slot in wheel.all_slots())
    if is_rebuilt:
        log.warning("the timer wheel points past the end of the timer log: it is rebuilt from %d on", timer_log.begin)
        for slot in wheel.all_slots():
            wheel.put(Slot(slot.time_ms, -1, -1, 0))
        start = timer_log.begin
    replayed = 0
    position = start
    newest: TimerUnit | None = None
    newest_of: dict[int, int] = {}  # slot's time -> physical offset, of the slots that were replayed into
    while (unit := _unit_at(store, timer_log, position)) is not None:
        is_new = position >= checkpoint.log_flushed_position
        slot = wheel.get(unit.slot_time_ms)
        is_missing = position > slot.last_position and (is_new or unit.slot_time_ms >= read_time_ms)
        is_waiting = 0 <= slot.first_position <= position <= slot.last_position
        if is_missing and _chain_in(wheel, timer_log, slot, position, unit, newest_of):
            replayed += 1
            is_waiting = True
        if is_new and is_waiting:
            # Taken in after the clock went back. A flush may have brought it onto the wheel, and not ended.
            read_time_ms = min(read_time_ms, unit.slot_time_ms)
        if newest is None or unit.physical_offset >= newest.physical_offset:
            newest = unit
        position = timer_log.next_position(position)
    timer_log.seek_end(position)
    _close_delivered(wheel, read_time_ms)
    return _where_to_go_on(store, timer_log, checkpoint, newest)._replace(
        read_time_ms=read_time_ms, replayed_units=replayed, is_rebuilt=is_rebuilt, is_journaled=delivered is not None
    )


def _chain_in(
    wheel: TimerWheel, timer_log: TimerLog, slot: Slot, position: int, unit: TimerUnit, newest_of: dict[int, int]
) -> bool:
    """Chain a unit into its slot; False when that has its message."""
    change = -1 if unit.is_delete else 1
    if unit.previous < 0 and not slot.is_empty:
        wheel.put(Slot(slot.time_ms, position, position, change, slot.magic))
    else:
        newest = newest_of.get(slot.time_ms)
        if newest is None:
            last = timer_log.read(slot.last_position) if slot.last_position >= 0 else None
            newest = -1 if last is None else last.physical_offset
        if unit.physical_offset <= newest:
            return False
        wheel.chain(slot, position, change=change)
    newest_of[slot.time_ms] = unit.physical_offset
    return True


def _is_believed_time(read_time_ms: int, now_ms: int) -> bool:
    return read_time_ms != 0 and abs(read_time_ms - now_ms) <= BELIEVED_MS


def _is_credible(store: TimerHost, checkpoint: TimerCheckpoint, now_ms: int) -> bool:
    """Whether each value can be true. Where one cannot, the file was garbled, and its place in the timer topic would
    pass over messages that nobody took in."""
    is_in_topic = 0 <= checkpoint.queue_offset <= store.max_offset(SystemTopic.TIMER, 0)
    is_time = checkpoint.read_time_ms == 0 or _is_believed_time(checkpoint.read_time_ms, now_ms)
    return is_in_topic and is_time and checkpoint.log_flushed_position >= 0


def _oldest_waiting_ms(wheel: TimerWheel, now_ms: int) -> int:
    """Where reading begins without a checkpoint that can be true: now, or at the oldest slot that was not delivered."""
    waiting = [slot.time_ms for slot in wheel.all_slots() if not slot.is_empty]
    return min([now_ms // wheel.precision_ms * wheel.precision_ms, *waiting])


def _start_of_walk(timer_log: TimerLog, flushed_position: int) -> int:
    """One file before the one with the flushed position, as Apache does; the first for a position that cannot be."""
    if not timer_log.begin <= flushed_position <= timer_log.room_end:
        return timer_log.begin
    base = flushed_position - flushed_position % timer_log.file_bytes - timer_log.file_bytes
    return max(timer_log.begin, base)


def _end_of_log(store: TimerHost, timer_log: TimerLog, start: int) -> int:
    position = start
    while _unit_at(store, timer_log, position) is not None:
        position = timer_log.next_position(position)
    return position


def _unit_at(store: TimerHost, timer_log: TimerLog, position: int) -> TimerUnit | None:
    unit = timer_log.read(position)
    if unit is None or unit.physical_offset + unit.size_bytes > store.log_max_offset:
        return None
    return unit


def _close_delivered(wheel: TimerWheel, read_time_ms: int) -> None:
    for slot in wheel.all_slots():
        if slot.time_ms < read_time_ms and not slot.is_empty:
            wheel.shut(slot)


def _where_to_go_on(
    store: TimerHost, timer_log: TimerLog, checkpoint: TimerCheckpoint, newest: TimerUnit | None
) -> Recovered:
    """After the newest message on the wheel; further where the checkpoint knows of ones that never came onto it."""
    first, end = store.min_offset(SystemTopic.TIMER, 0), store.max_offset(SystemTopic.TIMER, 0)
    after_newest = first if newest is None else _queue_offset_of(store, newest) + 1
    has_lost_units = timer_log.end < checkpoint.log_flushed_position
    offset = after_newest if has_lost_units else max(after_newest, checkpoint.queue_offset)
    offset = max(first, min(offset, end))
    # A master's two offsets are the same; a slave's second is its master's (TimerMessageStore.prepareTimerCheckPoint).
    retake_until = min(max(checkpoint.queue_offset, checkpoint.master_queue_offset), end)
    return Recovered(offset, retake_until if retake_until > offset else 0)


def _queue_offset_of(store: TimerHost, unit: TimerUnit) -> int:
    record = store.read_record(unit.physical_offset, unit.size_bytes)
    if record is None:
        return -1
    try:
        message = decode_record(record)
    except CorruptRecordError:
        return -1
    return message.queue_offset if message.topic == SystemTopic.TIMER else -1
