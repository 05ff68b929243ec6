"""A half message becomes visible: its record once more, in its real topic, changed as bytes.

Only the type, the pointer back and the property string change (state/half_text.py), so nothing is decoded. What a delay
level or the timer would have to see, and what is not of the usual form, is not committed here (store/log/copying.py):
it takes the way through `halves.TransactionService`.
"""

from __future__ import annotations

import struct
from typing import Final

from contrailmq.broker.state.half_text import visible_properties
from contrailmq.broker.transactions.transaction_check import CLOCK_SET
from contrailmq.message import Property, SysFlag, SystemTopic
from contrailmq.message.record import PREPARED_OFFSET_AT, SYS_FLAG_AT, head_struct
from contrailmq.store import Copier, Copy

# What the broker's other rewrites act on: such a message goes by itself.
_LATER: Final = (
    Property.DELAY,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELIVER_MS,
    CLOCK_SET,
)
_span_in: Final = head_struct("size", "physical_offset").unpack_from
_FLAGS_INTO: Final = struct.Struct(">i").pack_into
_POINTS_BACK_INTO: Final = struct.Struct(">q").pack_into
_TYPE: Final = int(SysFlag.TRANSACTION_MASK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in


def half_copier() -> Copier:
    """Makes copies of those half messages that `committed` may turn into visible ones."""
    return Copier(SystemTopic.HALF, unwanted=_LATER)


def committed(copy: Copy, half_at: int) -> Copy:
    """The record as it becomes visible: of type COMMIT, and pointing back at its half message."""
    topic, queue_id, record, half, code, keys, unique_key, tags, flags = copy
    sys_flag = (flags & ~_TYPE) | _COMMIT
    _FLAGS_INTO(record, SYS_FLAG_AT, sys_flag)
    _POINTS_BACK_INTO(record, PREPARED_OFFSET_AT, half_at)
    properties = visible_properties(half, topic, queue_id)
    return _tuple(Copy, (topic, queue_id, record, properties, code, keys, unique_key, tags, sys_flag))


def span_of(copy: Copy) -> tuple[int, int]:
    """Where in the log a copy begins that was written, and its size."""
    size_bytes, physical_offset = _span_in(copy.head_and_body)
    return physical_offset, size_bytes
