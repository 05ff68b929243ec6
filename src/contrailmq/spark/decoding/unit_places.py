"""What consume-queue units say of records, held against the records: are they as told, and of which time.

Which units of a queue are of a time is found by bisection, as a broker seeks an offset by time (`offset_by_time`), in
the records that the units point to. Where a clock was set back, a queue passes the same time twice, and the search
finds one of the two places. So each unit that it leaves out is checked once more, by the head of its record: one that
is of the time after all is kept, and so is one whose record is not as told, for whoever reads it to tell. The rows are
those of the log, in whatever order its times are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from contrailmq.message.record import RECORD_BYTES_MIN, head_struct, read_store_time
from contrailmq.spark.decoding.records import Bytes, Int, Mask, Records, gather
from contrailmq.spark.decoding.scan import BLOCK_ROWS, Range
from contrailmq.store.queues.queue_unit import offset_by_time

FAR_MS: Final = 2**63 - 1
_head_of: Final = head_struct("size", "queue_id", "queue_offset", "physical_offset").unpack_from


class Places(NamedTuple):
    """What units say of a range's records, in the order of the log."""

    physical_offset: Int
    size: Int
    queue_offset: Int
    queue_id: Int
    is_wanted: Mask

    def rows(self, chosen: slice | Int | Mask) -> Places:
        physical_offset, size, queue_offset, queue_id, is_wanted = self
        return Places(physical_offset[chosen], size[chosen], queue_offset[chosen], queue_id[chosen], is_wanted[chosen])

    @property
    def ends(self) -> Int:
        return self.physical_offset + self.size


def are_as_told(records: Records, told: Places) -> Mask:
    """Which records are sound and just as their units say."""
    are_same: Mask = (
        (records.size == told.size)
        & (records.physical_offset == told.physical_offset)
        & (records.queue_offset == told.queue_offset)
        & (records.queue_id == told.queue_id)
    )
    return records.sound & are_same


def of_time(data: Bytes, part: Range, queue: Places, *, begin_ms: int, end_ms: int) -> Places:
    """The units of one queue, of which those are wanted that were and are stored from `begin_ms` to before `end_ms`.

    `data` is the file of the range. What is left out has been looked at: its record is as told, and of another time.
    """
    rows = np.flatnonzero(queue.is_wanted)

    def time_of(number: int) -> int:
        return _store_time(data, part, queue, int(rows[number]))

    low = offset_by_time(0, len(rows), begin_ms, time_of) if begin_ms > 0 else 0
    high = offset_by_time(low, len(rows), end_ms, time_of) if end_ms < FAR_MS else len(rows)
    outside = np.concatenate([rows[:low], rows[high:]])
    is_wanted = queue.is_wanted.copy()
    for first in range(0, len(outside), BLOCK_ROWS):
        block = outside[first : first + BLOCK_ROWS]
        times_ms = _store_times(data, part, queue.rows(block))
        is_wanted[block] = (times_ms < 0) | ((times_ms >= begin_ms) & (times_ms < end_ms))
    return queue._replace(is_wanted=is_wanted)


def _store_time(data: Bytes, part: Range, told: Places, row: int) -> int:
    """When the record of a unit was stored; -1 if another one is there. It leads the search, so a look is enough."""
    place, size_bytes = int(told.physical_offset[row]), int(told.size[row])
    if not part.base <= place <= _end_of(data, part) - max(size_bytes, RECORD_BYTES_MIN):
        return -1
    head = _head_of(data.data, place - part.base)
    is_it = head == (size_bytes, int(told.queue_id[row]), int(told.queue_offset[row]), place)
    return read_store_time(data.data, place - part.base) if is_it else -1


def _store_times(data: Bytes, part: Range, told: Places) -> Int:
    """The same for many, and for sure: only of records that are sound."""
    times_ms = np.full(len(told.size), -1, dtype=np.int64)
    is_within = (told.physical_offset >= part.base) & (told.ends <= _end_of(data, part))
    within = np.flatnonzero(is_within & (told.size >= RECORD_BYTES_MIN))
    if len(within):
        found = told.rows(within)
        records = gather(data, found.physical_offset - part.base)
        times_ms[within] = np.where(are_as_told(records, found), records.store_time_ms, -1)
    return times_ms


def _end_of(data: Bytes, part: Range) -> int:
    return min(part.limit, part.base + len(data))
