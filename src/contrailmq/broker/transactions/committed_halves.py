"""Which half messages were committed, by the log itself.

A commit is two records: the message in its real topic, which points back at its half message, and a little later an op
message that lists the half message as ended. A kill between them leaves a message that is visible and whose half
message waits: its producer would be asked, would say commit, and the message would be there twice. But the first record
says all: what it points at is ended.

Op messages list everything that was ended before them, so only what lies behind the last one is looked at: some 200 ms
of the log. Half a microsecond a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from contrailmq.message import Property, StoredMessage, SysFlag
from contrailmq.message.codec import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, CorruptRecordError, decode_record
from contrailmq.store.message_store import MessageStore

_FRONT: Final = struct.Struct(">ii28xi")  # size, magic, sys_flag
_READ_BYTES: Final = 1 << 30  # a whole file at once: it is mapped


def committed_halves(store: MessageStore, begin: int) -> Iterator[int]:
    """Physical offsets of the half messages that the commits from a record of the log on point at."""
    for record in _commits(store, begin):
        yield record.prepared_transaction_offset


def is_same_half(one: StoredMessage, other: StoredMessage) -> bool:
    """Whether these are one message in two places: one that was put back at the end of the queue."""
    identities = [
        (half.properties.get(Property.UNIQUE_KEY), half.born_time_ms, half.born_host_bytes, half.body_crc)
        for half in (one, other)
    ]
    return identities[0] == identities[1]


def _commits(store: MessageStore, offset: int) -> Iterator[StoredMessage]:
    """Records of type COMMIT, up to the end of the log or to the first bytes that are no record."""
    unpack = _FRONT.unpack_from
    while (view := store.read_log(offset, _READ_BYTES)) is not None:
        position, end = 0, len(view)
        while position + _FRONT.size <= end:
            size, magic, sys_flag = unpack(view, position)
            if magic not in (MAGIC_V1, MAGIC_V2) or not _FRONT.size <= size <= end - position:
                break
            if sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
                try:
                    yield decode_record(view, position)
                except CorruptRecordError:
                    return
            position += size
        if position + 8 > end:
            return
        size, magic = struct.unpack_from(">ii", view, position)
        if magic != BLANK_MAGIC or size <= 0:
            return
        offset += position + size
