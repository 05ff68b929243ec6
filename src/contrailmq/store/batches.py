"""The records of a client's batch, packed without a call for each; see CommitLog.append_batch.

What is done for each part is written as loops that make few objects: a batch has a thousand parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from contrailmq.message import Property, tags_code
from contrailmq.message.checksum import crc32
from contrailmq.message.record import HEAD_V4_BYTES
from contrailmq.store.queue_state import DispatchFact, QueueState
from contrailmq.store.record import MAGIC_V1, BatchPart

_I16: Final = struct.Struct(">h")
_ALIKE: Final = struct.Struct(">iq8sq8siq")  # the part of a head that all records of a batch share
_HEAD: Final = struct.Struct(f">iiiiiqq{_ALIKE.size}si")
assert _HEAD.size == HEAD_V4_BYTES
_SEPARATOR: Final = b"\x02"


def pack_parts(
    parts: Sequence[BatchPart],
    sizes: list[int],
    offsets: list[int],
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
    alike = _ALIKE.pack(sys_flag, born_time_ms, born_host, store_time_ms, store_host, reconsume_times, 0)
    pack, pack_length = _HEAD.pack, _I16.pack
    for number, (flag, body, properties) in enumerate(parts):
        head = pack(
            sizes[number],
            MAGIC_V1,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            first_queue_offset + number,
            offsets[number],
            alike,
            len(body),
        )
        pieces += (head, body, topic_part, pack_length(len(properties)), properties)
    return pieces


def plain_sizes(parts: Sequence[BatchPart], overhead_bytes: int) -> list[int]:
    """Of the records that `pack_parts` makes."""
    return [overhead_bytes + len(body) + len(properties) for _, body, properties in parts]


def ended(parts: Sequence[BatchPart]) -> Sequence[BatchPart]:
    """The parts with the last separator, which clients may leave out: what ends in it never looks like a lost write."""
    for _, _, properties in parts:
        if properties and not properties.endswith(_SEPARATOR):
            return [part._replace(properties=_ended(part.properties)) for part in parts]
    return parts


def _ended(properties: bytes) -> bytes:
    return properties if properties[-1:] in (_SEPARATOR, b"") else properties + _SEPARATOR


class Known(NamedTuple):
    """What a put and dispatch need of a part's properties."""

    keys: str | None
    unique_key: str | None
    tags: str | None
    is_delayed: bool
    is_inner: bool  # names a count of inner messages


_KEYS: Final = f"{Property.KEYS}\x01".encode()
_UNIQUE_KEY: Final = f"{Property.UNIQUE_KEY}\x01".encode()
_TAGS: Final = f"{Property.TAGS}\x01".encode()
_DELAY: Final = f"{Property.DELAY}\x01".encode()
_INNER: Final = f"{Property.INNER_NUM}\x01".encode()
_D: Final = 68  # numbers, not calls: a compiled loop has them inline
_I: Final = 73
_K: Final = 75
_T: Final = 84
_U: Final = 85
assert bytes((_D, _I, _K, _T, _U)) == b"DIKTU"


def known_of(parts: Sequence[BatchPart]) -> list[Known]:
    """Of each part: from pair to pair, five names are looked for. Compiled, half the price of making a map of all.

    As `decode_properties` has it: of equal names the last one counts, and an empty value is none.
    """
    found: list[Known] = []
    new = tuple.__new__  # Known(...) would take 0.2 us longer
    for _, _, properties in parts:
        keys: str | None = None
        unique_key: str | None = None
        tags: str | None = None
        is_delayed = is_inner = False
        place, end = 0, len(properties)
        while place < end:
            stop = properties.find(_SEPARATOR, place)
            if stop < 0:
                stop = end
            initial = properties[place]
            if initial == _U and properties.startswith(_UNIQUE_KEY, place):
                unique_key = _value(properties, place + len(_UNIQUE_KEY), stop, unique_key)
            elif initial == _K and properties.startswith(_KEYS, place):
                keys = _value(properties, place + len(_KEYS), stop, keys)
            elif initial == _T and properties.startswith(_TAGS, place):
                tags = _value(properties, place + len(_TAGS), stop, tags)
            elif initial == _D and properties.startswith(_DELAY, place):
                delay = _value(properties, place + len(_DELAY), stop, None)
                is_delayed = is_delayed if delay is None else _asks_delay(delay)
            elif initial == _I and properties.startswith(_INNER, place):
                is_inner = True
            place = stop + 1
        found.append(new(Known, (keys, unique_key, tags, is_delayed, is_inner)))
    return found


def _value(properties: bytes, start: int, stop: int, before: str | None) -> str | None:
    return str(properties[start:stop], "utf-8", "replace") if start < stop else before


def facts_of(
    parts: Sequence[BatchPart],
    known: list[Known],
    offsets: list[int],
    sizes: list[int],
    state: QueueState,
    first_queue_offset: int,
    sys_flag: int,
    store_time_ms: int,
) -> list[DispatchFact]:
    """What dispatch is told of the records."""
    facts: list[DispatchFact] = []
    for number, (_, _, properties) in enumerate(parts):
        keys, unique_key, tags, _, _ = known[number]
        code = tags_code(tags) if tags else 0
        offset, size, queue_offset = offsets[number], sizes[number], first_queue_offset + number
        facts.append(
            (state, offset, size, code, store_time_ms, queue_offset, keys, unique_key, sys_flag, properties, tags)
        )
    return facts


def _asks_delay(text: str) -> bool:
    """Whether a part asks for a delay level; what is no number counts as one, and the batch is refused."""
    try:
        return int(text) > 0
    except ValueError:
        return True
