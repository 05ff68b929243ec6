"""Under which hashes the index enters a record: its unique key, every key of KEYS, and its tag, in this order.

Keys are hashed as `topic#key` and tags as `topic#T#tag` (5.5.0 enters tags, 5.3 did not). They are computed when a
record is appended, because then its properties are at hand; where there is no index, not at all.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Final

from contrailmq.message import Property, decode_properties, java_hash, java_hash_of_id
from contrailmq.message.hashing import java_hash_within
from contrailmq.store.queue_state import QueueState

if TYPE_CHECKING:
    from mypy_extensions import i64

_SPACE: Final = 32


def key_hashes(
    state: QueueState, keys: str | None, unique_key: str | None, tags: str | None, tags_code: int, properties: bytes
) -> list[int]:
    """Java hashes of a record's keys, none where no index is. Its tags are looked up when only their code is known."""
    hashes: list[int] = []
    if not state.is_indexed:
        return hashes
    seed = state.key_seed
    if unique_key:
        hashes.append(java_hash_of_id(unique_key, seed=seed))
    if keys:
        if " " in keys:
            hashes += [java_hash(key, seed=seed) for key in keys.split(" ") if key]
        else:
            hashes.append(java_hash(keys, seed=seed))
    if tags_code and tags is None:
        tags = _tags(properties)
    if tags:
        tag_hash = state.tag_hashes.get(tags)
        hashes.append(state.meet_tags(tags) if tag_hash is None else tag_hash)
    return hashes


def add_key_hashes(hashes: list[int], data: bytes, begin: int, end: int, seed: int) -> None:
    """Those of the KEYS that stand in data[begin:end] as UTF-8."""
    while begin < end:
        stop = end_of(data, _SPACE, begin, end)
        if begin < stop:
            hashes.append(java_hash_within(data, begin, stop, seed=seed))
        begin = stop + 1


def end_of(data: bytes, mark: int, begin: int, end: int) -> int:
    """Where this byte is in data[begin:end], or the end. Compiled, a call of `find` would take three times as long."""
    if not _IS_COMPILED:
        found = data.find(mark, begin, end)
        return found if found >= 0 else end
    place: i64 = begin
    stop: i64 = end
    byte: i64 = mark
    while place < stop and data[place] != byte:
        place += 1
    return place


_IS_COMPILED: Final = not isinstance(end_of, FunctionType)


def _tags(properties: bytes) -> str | None:
    """The TAGS property without decoding the others: 0.4 us instead of 2 us."""
    start = properties.find(b"TAGS\x01")
    if start < 0:
        return None
    if (start and properties[start - 1] != 2) or properties.find(b"TAGS\x01", start + 1) > 0:
        return decode_properties(properties).get(Property.TAGS)  # the end of another name, or one of two: rules decide
    end = properties.find(b"\x02", start)
    return str(properties[start + 5 : end if end >= 0 else len(properties)], "utf-8", "replace")
