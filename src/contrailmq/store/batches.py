"""The records of a client's batch, packed without a call for each; see CommitLog.append_batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
    """Of each part. Four names are looked for, at half the price of making a map of all.

    Of equal names the last one counts. An empty value, and an end without separator, need the whole rule.
    """
    found: list[Known] = []
    new = tuple.__new__  # Known(...) would take 0.2 us longer
    for _, _, properties in parts:
        text = b"\x02" + properties
        if b"\x01\x02" in text or not text.endswith(b"\x02"):
            found.append(_decoded(properties))
            continue
        delay = _value(text, _DELAY)
        is_delayed = delay is not None and _asks_delay(delay)
        found.append(new(Known, (_value(text, _KEYS), _value(text, _UNIQUE_KEY), _value(text, _TAGS), is_delayed)))
    return found


_KEYS: Final = f"\x02{Property.KEYS}\x01".encode()
_UNIQUE_KEY: Final = f"\x02{Property.UNIQUE_KEY}\x01".encode()
_TAGS: Final = f"\x02{Property.TAGS}\x01".encode()
_DELAY: Final = f"\x02{Property.DELAY}\x01".encode()


def _value(text: bytes, name: bytes) -> str | None:
    start = text.rfind(name)
    if start < 0:
        return None
    start += len(name)
    return str(text[start : text.find(b"\x02", start)], "utf-8", "replace")


def _decoded(properties: bytes) -> Known:
    known = decode_properties(properties)
    delay = known.get(Property.DELAY)
    is_delayed = delay is not None and _asks_delay(delay)
    return Known(known.get(Property.KEYS), known.get(Property.UNIQUE_KEY), known.get(Property.TAGS), is_delayed)


def _asks_delay(text: str) -> bool:
    """Whether a part asks for a delay level; what is no number counts as one, and the batch is refused."""
    try:
        return int(text) > 0
    except ValueError:
        return True
