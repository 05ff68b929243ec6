"""Records of the common shape that follow each other in a block of bytes: found, checked, passed over.

Most records are of magic V1 with two IPv4 hosts. Those are told from their head and lengths alone, without a call for
each field: compiled, a record takes 0.05 us here and its checksum 0.2 us a KiB. Every doubt (another shape, a length
that does not fit, zeros where a lost page would have left them) is for `codec.check_record`, which knows the reasons.
A slave judges what its master sends with `sound_run`; its dispatch reads the same records with `shape_at`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be

from contrailmq.message.checksum import crc32
from contrailmq.message.record import (
    BODY_BYTES_AT,
    BODY_CRC_AT,
    HEAD_V4_BYTES,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
)

_TOPIC_BYTES_END: Final = 128  # from here on magic V2 is needed
NO_SHAPE: Final = (0, 0, 0)


def shape_at(block: bytes, at: int, offset: int) -> tuple[int, int, int]:
    """Where the body, the topic and the whole end of the record at block[at:], which says that it lies at `offset` of
    the log; NO_SHAPE when it is not whole, or not of the common shape."""
    left = len(block) - at
    if left < RECORD_BYTES_MIN:
        return NO_SHAPE
    size_bytes: int = read_i32_be(block, at)
    body_bytes: int = read_i32_be(block, at + BODY_BYTES_AT)
    own: int = read_i64_be(block, at + PHYSICAL_OFFSET_AT)
    magic: int = read_i32_be(block, at + MAGIC_AT)
    sys_flag: int = read_i32_be(block, at + SYS_FLAG_AT)
    end = at + size_bytes
    body_end = at + HEAD_V4_BYTES + body_bytes
    if (
        magic != MAGIC_V1
        or own != offset
        or sys_flag & HOSTS_V6
        or size_bytes > left
        or body_bytes < 0
        or body_end + 3 > end
    ):
        return NO_SHAPE
    topic_bytes: int = block[body_end]
    topic_end = body_end + 1 + topic_bytes
    if (
        topic_bytes >= _TOPIC_BYTES_END
        or topic_end + 2 > end
        or block[topic_end - 1] == 0  # of a lost page, or an empty topic
        or (block[end - 1] == 0 and topic_end + 2 < end)
        or block[topic_end] * 256 + block[topic_end + 1] != end - topic_end - 2
    ):
        return NO_SHAPE
    return body_end, topic_end, end


def sound_run(block: bytes, offset: int) -> tuple[int, int]:
    """Pass over the whole, sound records of the common shape with which a block begins that lies at `offset` of the
    log: where they end in it, and where the last one begins (-1: there is none)."""
    at, last = 0, -1
    while True:
        body_end, _, end = shape_at(block, at, offset + at)
        if end == 0:
            return at, last
        body = at + HEAD_V4_BYTES
        if body < body_end:
            expected: int = read_i32_be(block, at + BODY_CRC_AT)
            found: int = crc32(block[body:body_end])
            if found & 0x7FFFFFFF != expected:
                return at, last
        last = at
        at = end
