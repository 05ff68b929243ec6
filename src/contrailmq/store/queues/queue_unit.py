"""The unit of a consume queue: where a message is.

    unit := physical_offset:i64  size_bytes:i32  tags_code:i64          (big-endian, 20 bytes)

Zeros mark space that was never written; a pre-blank unit (0, 2147483647, 0) keeps the place of a message that is gone.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

_UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = 20
assert _UNIT.size == UNIT_BYTES

PRE_BLANK_SIZE: Final = 2**31 - 1
PRE_BLANK: Final = _UNIT.pack(0, PRE_BLANK_SIZE, 0)


class Unit(NamedTuple):
    """Where a message is, how long it is, and the code its tag is filtered by."""

    physical_offset: int
    size_bytes: int
    tags_code: int

    @property
    def is_valid(self) -> bool:
        return self.physical_offset >= 0 and self.size_bytes > 0

    @property
    def is_pre_blank(self) -> bool:
        return self.size_bytes == PRE_BLANK_SIZE and self.physical_offset == 0


def begins_again(queue_offset: int, next_offset: int) -> bool:
    """Whether a record of the log is the first of a new life of its queue, of either kind: its topic was deleted, and
    made again. All up to `next_offset` is of the life before, and no longer in the queue."""
    return queue_offset == 0 < next_offset


class Boundary(enum.Enum):
    """Which end of the messages of one instant a search by time wants."""

    LOWER = "LOWER"
    UPPER = "UPPER"


def offset_by_time(
    low: int, high: int, time_ms: int, time_of: Callable[[int], int], boundary: Boundary = Boundary.LOWER
) -> int:
    """Search the offsets [low, high) of a queue by store time: LOWER is the first message at or after the time, UPPER
    the last at or before it.

    Nothing that late: LOWER gives `high`, UPPER the last message. Nothing that early: the first message. `time_of`
    gives -1 for a message that is gone; like Java (ConsumeQueue.binarySearchInQueueByTime) we then look further right.
    Times never decrease along a queue of ours. Where a clock was set back, one of the places with the time is found.
    """
    first, is_lower = low, boundary is Boundary.LOWER
    while low < high:
        middle = (low + high) // 2
        found_ms = time_of(middle)
        if found_ms < time_ms or (found_ms == time_ms and not is_lower):
            low = middle + 1
        else:
            high = middle
    return low if is_lower else max(first, low - 1)


pack_unit: Final = _UNIT.pack
unpack_units: Final = _UNIT.iter_unpack
unpack_unit: Final = _UNIT.unpack_from
