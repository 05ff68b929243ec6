"""Which half messages were committed, by the log itself.

A commit is two records: the message in its real topic, which points back at its half message, and a little later an op
message that lists the half message as ended. A kill between them leaves a message that is visible and whose half
message waits: its producer would be asked, would answer commit, and the message would be there twice. But the first
record is enough: the half message that it points at is ended.

Op messages list everything that was ended before them, so only what comes after the last one is read: about 200 ms of
the log, at half a microsecond per record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from contrailmq.message import Property, StoredMessage, SysFlag, SystemTopic
from contrailmq.message.codec import MAGIC_V1, MAGIC_V2, CorruptRecordError, Kind, check_record, decode_record
from contrailmq.message.record import RECORD_BYTES_MIN, head_struct
from contrailmq.store import MessageStore

_front_of: Final = head_struct("size", "magic", "sys_flag").unpack_from
_READ_BYTES: Final = 1 << 30  # a whole file at once: it is mapped


def committed_halves(store: MessageStore, begin: int) -> Iterator[StoredMessage]:
    """The half messages that the commits from a record of the log on point at.

    A copy of a committed message keeps its type: one that comes again, or a dead letter. It points at 0, where the half
    message of another may be, so the two must be one message in the topic that it was sent to.
    """
    for record in _commits(store, begin):
        half = store.lookup_sound(record.prepared_transaction_offset)
        if half is None or half.topic != SystemTopic.HALF:
            continue
        if half.properties.get(Property.REAL_TOPIC) == record.topic and is_same_half(half, record):
            yield half


def is_same_half(one: StoredMessage, other: StoredMessage) -> bool:
    """Whether these are one message in two places: one that was put back at the end of the queue."""
    identities = [
        (half.properties.get(Property.UNIQUE_KEY), half.born_time_ms, half.born_host_bytes, half.body_crc)
        for half in (one, other)
    ]
    return identities[0] == identities[1]


def _commits(store: MessageStore, offset: int) -> Iterator[StoredMessage]:
    """Records of type COMMIT, up to the end of the log or to the first bytes that are not a record."""
    while (view := store.read_log(offset, _READ_BYTES)) is not None:
        position, end = 0, len(view)
        while position + RECORD_BYTES_MIN <= end:
            size, magic, sys_flag = _front_of(view, position)
            if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= end - position:
                break
            if sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
                try:
                    yield decode_record(view, position)
                except CorruptRecordError:
                    return
            position += size
        rest = check_record(view, position)
        if rest.kind is not Kind.BLANK:
            return
        offset += position + rest.size_bytes
