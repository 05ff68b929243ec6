"""What `store repair` writes over damaged bytes of the log: records that keep the places of others.

    placeholder := record of transaction type ROLLBACK, sysFlag bit LOST, a body of zeros, no properties

It is a whole record for every reader of the log, Apache's too. A rolled-back record is in no queue and in no index, so
nobody gets one. Where the queues know what was there, a placeholder has that record's size, topic, queue id and
queue offset: rebuilding queues from the log (reconcile.py) then leaves an empty (pre-blank) unit at that offset, and
no later message moves to it. Elsewhere the queue offset is -1, and the topic says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from contrailmq.message import TOPIC_BYTES_MAX, SysFlag
from contrailmq.message.codec import BLANK_BYTES, encode_blank, encode_record
from contrailmq.message.record import RECORD_BYTES_MIN
from contrailmq.store.queues.queue_unit import PRE_BLANK, pack_unit

UNKNOWN_TOPIC: Final = "rmq_sys_DAMAGED"  # cut to what fits
PLACEHOLDER_BYTES_MIN: Final = RECORD_BYTES_MIN + 1  # with a topic of one letter
_PLACEHOLDER_BYTES_MAX: Final = 1 << 20  # of unknown ones: readers hold a record in memory
PLACEHOLDER_FLAG: Final = SysFlag.TRANSACTION_ROLLBACK | SysFlag.LOST
_NO_HOST: Final = bytes(8)
_PLACE_BYTES: Final = 12  # of a unit, without its tags code


class LostMessage(NamedTuple):
    """What a queue says of a record that is damaged. A batch has several messages, from `queue_offset` on."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    messages: int = 1

    @property
    def end(self) -> int:
        return self.physical_offset + self.size_bytes


def is_placeholder(sys_flag: int) -> bool:
    """Both marks: a single flipped bit makes no record one."""
    return sys_flag & PLACEHOLDER_FLAG == PLACEHOLDER_FLAG


def may_be_emptied(unit: bytes, physical_offset: int, size_bytes: int) -> bool:
    """Whether a unit points at this place, or is pre-blank, or something between: a power cut may tear it there."""
    place, stands = pack_unit(physical_offset, size_bytes, 0)[:_PLACE_BYTES], unit[:_PLACE_BYTES]
    empty = PRE_BLANK[:_PLACE_BYTES]
    return any(stands in (empty[:torn] + place[torn:], place[:torn] + empty[torn:]) for torn in range(_PLACE_BYTES + 1))


def placeholders(
    begin: int, end: int, known: Sequence[LostMessage], *, store_time_ms: int, ends_file: bool
) -> Iterator[bytes]:
    """Records that fill [begin, end) of the log exactly; a BLANK comes last where the file ends there.

    `known` is in log order. One that leaves too little room beside it is not kept apart.
    """
    position = begin
    for lost in known:
        before, behind = lost.physical_offset - position, end - lost.end
        fits = behind >= BLANK_BYTES if ends_file else behind == 0 or behind >= PLACEHOLDER_BYTES_MIN
        if fits and _body_bytes(lost) >= 0 and (before == 0 or before >= PLACEHOLDER_BYTES_MIN):
            yield from _unknown(position, before, store_time_ms)
            yield _encode(lost, store_time_ms)
            position = lost.end
    left = end - position
    if ends_file:
        blank_bytes = BLANK_BYTES if left >= BLANK_BYTES + PLACEHOLDER_BYTES_MIN else left
        yield from _unknown(position, left - blank_bytes, store_time_ms)
        yield encode_blank(blank_bytes) + bytes(blank_bytes - BLANK_BYTES)
    else:
        yield from _unknown(position, left, store_time_ms)


def _unknown(position: int, size_bytes: int, store_time_ms: int) -> Iterator[bytes]:
    """Placeholders over a stretch of which nothing is known: none, or as many as it takes."""
    while size_bytes:
        fits_into_one = size_bytes <= _PLACEHOLDER_BYTES_MAX
        # The last two share what is left, so that neither is too small to be a record.
        size = size_bytes if fits_into_one else min(_PLACEHOLDER_BYTES_MAX, size_bytes - PLACEHOLDER_BYTES_MIN)
        topic = UNKNOWN_TOPIC[: size - RECORD_BYTES_MIN]
        yield _encode(LostMessage(topic, 0, -1, position, size), store_time_ms)
        position, size_bytes = position + size, size_bytes - size


def _body_bytes(lost: LostMessage) -> int:
    topic_bytes = len(lost.topic.encode())
    length_bytes = 0 if topic_bytes <= TOPIC_BYTES_MAX else 1  # of the topic's length, beyond the one of magic V1
    return lost.size_bytes - RECORD_BYTES_MIN - length_bytes - topic_bytes


def _encode(lost: LostMessage, store_time_ms: int) -> bytes:
    record = encode_record(
        lost.topic,
        bytes(_body_bytes(lost)),
        b"",
        queue_id=lost.queue_id,
        queue_offset=lost.queue_offset,
        physical_offset=lost.physical_offset,
        born_host=_NO_HOST,
        store_host=_NO_HOST,
        born_time_ms=store_time_ms,
        store_time_ms=store_time_ms,
        sys_flag=PLACEHOLDER_FLAG,
        body_bytes_max=lost.size_bytes,
    )
    assert len(record) == lost.size_bytes
    return record
