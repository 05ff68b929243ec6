"""Under which hashes the index enters a record: its unique key, every key of KEYS, and its tag, in this order.

Keys are hashed as `topic#key` and tags as `topic#T#tag` (5.5.0 enters tags, 5.3 did not). They are computed when a
record is appended, because its properties are known then; without an index they are not computed.
"""

from __future__ import annotations

from typing import Final

from contrailmq.message import Property, java_hash, java_hash_of_id
from contrailmq.message.hashing import java_hash_within
from contrailmq.message.property_text import end_of, find_decoded, key_of
from contrailmq.store.queues.queue_state import QueueState

_SPACE: Final = 32
_TAGS: Final = key_of(Property.TAGS)


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
        tags = find_decoded(properties, _TAGS)
    if tags:
        tag_hash = state.tag_hashes.get(tags)
        hashes.append(state.meet_tags(tags) if tag_hash is None else tag_hash)
    return hashes


def note_spans(
    state: QueueState, data: bytes, unique_key: tuple[int, int], keys: tuple[int, int], tags: tuple[int, int]
) -> tuple[int, list[int]]:
    """The tags code of a record and what `key_hashes` gives, of values that stand in `data` as UTF-8; an end of 0: the
    record has no such property."""
    hashes: list[int] = []
    is_indexed = state.is_indexed
    if unique_key[1] and is_indexed:
        hashes.append(java_hash_within(data, unique_key[0], unique_key[1], seed=state.key_seed))
    if keys[1] and is_indexed:
        _add_key_hashes(hashes, data, keys[0], keys[1], state.key_seed)
    if not tags[1]:
        return 0, hashes
    encoded = data[tags[0] : tags[1]]
    code, tag_hash = state.tags_met.get(encoded) or state.meet_encoded_tags(encoded)
    if is_indexed:
        hashes.append(tag_hash)
    return code, hashes


def _add_key_hashes(hashes: list[int], data: bytes, begin: int, end: int, seed: int) -> None:
    """Those of the KEYS that stand in data[begin:end] as UTF-8."""
    while begin < end:
        stop = end_of(data, _SPACE, begin, end)
        if begin < stop:
            hashes.append(java_hash_within(data, begin, stop, seed=seed))
        begin = stop + 1
