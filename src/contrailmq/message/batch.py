"""Several messages in one body, as producers send them and brokers take them apart.

    batch := part*
    part  := size:i32 magic:i32=0 crc:i32=0 flag:i32 body_length:i32 body properties_length:i16 properties

Everything is big-endian; `size` counts the whole part. Topic, queue and hosts are the request's, one for all.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from contrailmq.message.errors import MessageError
from contrailmq.message.properties import PROPERTIES_BYTES_MAX

_HEAD: Final = struct.Struct(">iiiii")
_HEAD_READ: Final = struct.Struct(">i8xii")  # magic and checksum of a part say nothing
_I16: Final = struct.Struct(">h")
_HEAD_BYTES: Final = 20
assert _HEAD.size == _HEAD_BYTES
BATCH_PART_BYTES_MIN: Final = _HEAD_BYTES + 2  # what a part takes besides body and properties


class BatchPart(NamedTuple):
    """One message of a client's batch: what differs from part to part."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(parts: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """A batch body of (flag, body, properties) as clients send it (MessageDecoder.encodeMessages)."""
    return b"".join(itertools.chain.from_iterable(itertools.starmap(batch_part, parts)))


def batch_part(flag: int, body: bytes, properties: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """One part as pieces to join."""
    properties_bytes = len(properties)
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise MessageError(
            f"properties: {properties_bytes} bytes, the limit is {PROPERTIES_BYTES_MAX}: move data into the body",
            field="properties",
            size=properties_bytes,
            limit=PROPERTIES_BYTES_MAX,
        )
    try:
        head = _HEAD.pack(BATCH_PART_BYTES_MIN + len(body) + properties_bytes, 0, 0, flag, len(body))
    except struct.error as exc:
        raise MessageError(f"flag: {flag!r} is not a signed 32-bit number ({exc})", field="flag") from exc
    return head, body, _I16.pack(properties_bytes), properties


def split_batch(batch: bytes) -> list[BatchPart]:
    """The parts of a client's batch body. Raises `MessageError` where a length does not fit."""
    parts: list[BatchPart] = []
    position, end, new = 0, len(batch), tuple.__new__  # BatchPart(...) would take a third longer for each
    while position < end:
        flag, body, properties, position = part_spans(batch, position, len(parts))
        parts.append(new(BatchPart, (flag, batch[body : properties - 2], batch[properties:position])))
    return parts


def part_spans(batch: bytes, position: int, number: int) -> tuple[int, int, int, int]:
    """Of the part that begins here: its flag, where body and properties begin, and where the part ends.

    Raises `MessageError` where a length does not fit.
    """
    end = len(batch)
    if end - position < BATCH_PART_BYTES_MIN:
        raise bad_batch(number, f"{end - position} bytes are left, a part needs {BATCH_PART_BYTES_MIN}")
    size, flag, body_length = _HEAD_READ.unpack_from(batch, position)
    body = position + _HEAD_BYTES
    properties = body + body_length + 2
    if body_length < 0 or properties > end:
        raise bad_batch(number, f"its body of {body_length} bytes does not fit into the batch's {end}")
    properties_length = _I16.unpack_from(batch, properties - 2)[0]
    following = properties + properties_length
    if properties_length < 0 or following > end or following - position != size:
        raise bad_batch(number, f"its parts have {following - position} bytes, its size says {size}")
    return flag, body, properties, following


def bad_batch(index: int, reason: str) -> MessageError:
    return MessageError(f"part {index} of the batch is malformed: {reason}", field="body")
