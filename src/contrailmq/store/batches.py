"""The records of a client's batch, packed without a call for each; see CommitLog.append_batch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from contrailmq.message import Property, decode_properties
from contrailmq.message.checksum import crc32
from contrailmq.message.record import HEAD_V4
from contrailmq.store.record import MAGIC_V1, BatchPart

_I16: Final = struct.Struct(">h")


def pack_parts(
    parts: Sequence[BatchPart],
    sizes: Sequence[int],
    offsets: Sequence[int],
    topic_part: bytes,
    queue_id: int,
    first_queue_offset: int,
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_times: int,
) -> list[bytes]:
    """Pieces that joined are the records, V1 and with IPv4 hosts. struct.error when a number does not fit its field."""
    pieces: list[bytes] = []
    pack, pack_length, queue_offset = HEAD_V4.pack, _I16.pack, first_queue_offset
    for (flag, body, properties), size, offset in zip(parts, sizes, offsets, strict=True):
        head = pack(
            size,
            MAGIC_V1,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            offset,
            sys_flag,
            born_time_ms,
            born_host,
            store_time_ms,
            store_host,
            reconsume_times,
            0,
            len(body),
        )
        pieces += (head, body, topic_part, pack_length(len(properties)), properties)
        queue_offset += 1
    return pieces


def plain_sizes(parts: Sequence[BatchPart], overhead_bytes: int) -> list[int]:
    """Of the records that `pack_parts` makes."""
    return [overhead_bytes + len(part.body) + len(part.properties) for part in parts]


def ended(parts: Sequence[BatchPart]) -> Sequence[BatchPart]:
    """The parts with the last separator, which clients may leave out: what ends in it never looks like a lost write."""
    if all(part.properties[-1:] in (b"\x02", b"") for part in parts):
        return parts
    return [
        part if part.properties[-1:] in (b"\x02", b"") else part._replace(properties=part.properties + b"\x02")
        for part in parts
    ]


class Known(NamedTuple):
    """What dispatch needs of a part's properties."""

    keys: str | None
    unique_key: str | None
    tags: str | None
    is_delayed: bool


def known_of(parts: Sequence[BatchPart]) -> list[Known]:
    """Of each part. Parts of a batch mostly differ in their unique key alone: what is around it is decoded once."""
    found: list[Known] = []
    around: bytes | None = None
    keys = tags = None
    delayed = False
    for part in parts:
        properties = part.properties
        start = properties.find(_UNIQUE_KEY)
        if start < 0 or (start and properties[start - 1] != _SEPARATOR):  # none, or the end of another name
            found.append(_decoded(properties))
            continue
        value = start + len(_UNIQUE_KEY)
        end = properties.find(b"\x02", value)
        if end <= value or properties.find(_UNIQUE_KEY, end) >= 0:  # empty, not ended, or there twice
            found.append(_decoded(properties))
            continue
        others = properties[:start] + properties[end + 1 :]
        if others != around:
            keys, _, tags, delayed = _decoded(others)
            around = others
        found.append(Known(keys, str(properties[value:end], "utf-8", "replace"), tags, delayed))
    return found


_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode() + b"\x01"
_SEPARATOR: Final = 2


def _decoded(properties: bytes) -> Known:
    known = decode_properties(properties)
    return Known(known.get(Property.KEYS), known.get(Property.UNIQUE_KEY), known.get(Property.TAGS), _is_delayed(known))


def _is_delayed(properties: Mapping[str, str]) -> bool:
    """Whether a part asks for a delay level; what is no number counts as one, and the batch is refused."""
    text = properties.get(Property.DELAY)
    if not text:
        return False
    try:
        return int(text) > 0
    except ValueError:
        return True
