"""Which messages were at damaged places of the log, as queues and record headers tell. For repair.py.

* `units_in`: which units point into a range of the log.
* `named_by_headers`: which messages the headers in a damaged range name where the queues know nothing, as after a kill.
  A header is believed if its record is whole but for the checksum of the body.
* `Claims`, `mislabelled`: which whole records contradict their queue in topic, queue, offset or flag. Opening a store
  would give such a record another one's place.

The record is wrong, and not the queue, if the record of a neighbouring unit agrees with the queue. Without such a
neighbour nothing is done: reads pass over the record, and verify names it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from contrailmq.message import SysFlag
from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import RecordView, view_record
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.derivation import IN_NO_QUEUE
from contrailmq.store.queues.light_queues import LIGHT_PREFIX
from contrailmq.store.queues.placeholder import LostMessage, is_placeholder
from contrailmq.store.queues.queue_unit import UNIT_BYTES, pack_unit
from contrailmq.store.tools.read_only import ReadOnlyLogFile, StoreView

# A store whose queues lack more units than this is to be opened or rebuilt first: 80 MB of memory.
DOUBTS_MAX: Final = 10_000_000
_PLACE_BYTES: Final = 12  # of a unit, without its tags code


class UnitPlace(NamedTuple):
    """A unit of an ordinary queue that points at what is gone."""

    queue: ConsumeQueue
    queue_offset: int


class Mislabelled(NamedTuple):
    """A whole record that is another one than its queue says."""

    begin: int
    end: int
    reason: str
    store_time_ms: int


def units_in(view: StoreView, begin: int, end: int) -> Iterator[tuple[LostMessage, UnitPlace | None]]:
    """Every unit that points at a record within [begin, end), of all queues."""
    for queue in view.queues:
        for offset, unit in queue.scan(queue.offset_of_physical(begin), queue.max_offset):
            if unit.is_pre_blank:
                continue
            if unit.physical_offset >= end:
                break
            if begin <= unit.physical_offset and unit.physical_offset + unit.size_bytes <= end:
                place = (unit.physical_offset, unit.size_bytes)
                yield LostMessage(queue.topic, queue.queue_id, offset, *place), UnitPlace(queue, offset)
    for batches in view.queues.batches:
        first = batches.number_where(lambda unit: unit.physical_offset >= begin)
        for batch in batches.scan(first):
            if batch.physical_offset + batch.size_bytes > end:
                break
            said = (batch.base_offset, batch.physical_offset, batch.size_bytes, batch.batch_size)
            yield LostMessage(batches.topic, batches.queue_id, *said), None


def named_by_headers(view: StoreView, file: ReadOnlyLogFile, begin: int, end: int) -> Iterator[LostMessage]:
    """Messages of a damaged range that no queue has reached yet, as long as headers follow each other."""
    at = begin
    while at < end:
        position, limit = at - file.base, end - file.base
        verdict = check_record(file.mapping, position, limit=limit, physical_offset=at, check_body_crc=False)
        if verdict.kind is not Kind.WHOLE:
            return
        record = view_record(file.mapping, position)
        queue = view.queues.get(record.topic_name, record.queue_id)
        is_known = queue is not None and record.queue_offset < queue.max_offset
        is_queued = not record.sys_flag & IN_NO_QUEUE and not view.queues.batches.holds(record.topic_name)
        if is_queued and not is_known and record.queue_offset >= 0:
            yield LostMessage(record.topic_name, record.queue_id, record.queue_offset, at, record.size_bytes)
        at += verdict.size_bytes


class Claims:
    """Takes each whole record of a walk, and keeps the places of those that do not have the unit they claim."""

    def __init__(self, view: StoreView) -> None:
        self._queues = view.queues
        self._known: dict[tuple[bytes, int], ConsumeQueue | None] = {}
        self.doubts = array("q")  # ascending

    def take(self, record: RecordView) -> None:
        key = (record.topic, record.queue_id)
        if key not in self._known:
            self._known[key] = self._queues.get(record.topic_name, record.queue_id)
        queue = self._known[key]
        if queue is not None and record.queue_offset >= 0 and not record.sys_flag & (IN_NO_QUEUE | SysFlag.LOST):
            stands = queue.read_units(record.queue_offset, 1)
            if stands[:_PLACE_BYTES] == pack_unit(record.physical_offset, record.size_bytes, 0)[:_PLACE_BYTES]:
                return
        if len(self.doubts) < DOUBTS_MAX:
            self.doubts.append(record.physical_offset)


def mislabelled(view: StoreView, claims: Claims) -> list[Mislabelled]:
    """Records without the unit that they claim, while a unit of another place points at them."""
    doubts, found = claims.doubts, {}
    for queue in view.queues if doubts else ():
        if queue.topic.startswith(LIGHT_PREFIX):
            continue  # their units point at records of other topics
        for offset, unit in queue.scan(queue.offset_of_physical(doubts[0]), queue.max_offset):
            at = bisect_left(doubts, unit.physical_offset)
            if at == len(doubts) or doubts[at] != unit.physical_offset or unit.is_pre_blank:
                continue
            record = _record_at(view, unit.physical_offset)
            if record is not None and record.size_bytes == unit.size_bytes and _is_believed(view, queue, offset):
                says = f"its header says {record.topic_name}/{record.queue_id} at {record.queue_offset}"
                is_of = f"it is of {queue.topic}/{queue.queue_id} at {offset}"
                reason = f"{says}, system flag {record.sys_flag:#x}; {is_of}"
                end = unit.physical_offset + unit.size_bytes
                found[unit.physical_offset] = Mislabelled(unit.physical_offset, end, reason, record.store_time_ms)
    return [found[place] for place in sorted(found)]


def _is_believed(view: StoreView, queue: ConsumeQueue, queue_offset: int) -> bool:
    """Whether a unit beside this one has a record that says so itself."""
    for beside in (queue_offset - 1, queue_offset + 1):
        data = queue.read_units(beside, 1) if queue.min_offset <= beside < queue.max_offset else b""
        if len(data) < UNIT_BYTES:
            continue
        record = _record_at(view, int.from_bytes(data[:8], "big"))
        if record is not None and (record.topic_name, record.queue_id, record.queue_offset) == (
            queue.topic,
            queue.queue_id,
            beside,
        ):
            return True
    return False


def _record_at(view: StoreView, physical_offset: int) -> RecordView | None:
    """What the record at a place says of itself; None when none is there, or a placeholder."""
    file = next((file for file in view.log_files if file.base <= physical_offset < file.end), None)
    if file is None:
        return None
    position = physical_offset - file.base
    if check_record(file.mapping, position, physical_offset=physical_offset).kind is not Kind.WHOLE:
        return None
    record = view_record(file.mapping, position)
    return None if is_placeholder(record.sys_flag) else record
