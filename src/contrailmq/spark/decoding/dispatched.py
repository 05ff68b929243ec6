"""What dispatch makes of records: consume-queue units and index entries, for a whole block at once.

This is the store's derivation (store/queues/derivation.py) as arithmetic on columns, with what due_units.py adds;
`rebuild` writes the results and `verify` compares them with what is on disk. One suite holds both against the store's
(tests/spark/test_derivation.py).

- A **unit** is due for every record but prepared and rolled-back ones and inner batches (whose queues are of another
  format and in another directory): place, size and tags code. The code of a message that waits for a delay level is its
  delivery time instead.
- An **index entry** is due for the unique key, each key and the tag of every record but rolled-back ones: the absolute
  value of Java's hash of `topic#key`, for a tag of `topic#T#tag` (since RocketMQ 5.5; older ones enter no tags).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.message import Property, SysFlag, SystemTopic, java_hash, tags_code
from contrailmq.spark.decoding.property_table import Properties, parse_properties
from contrailmq.spark.decoding.records import Int, Mask, Records, stable_order
from contrailmq.spark.decoding.slices import take_slices, text_column
from contrailmq.store.delay_levels import DELAY_LEVELS, DelayLevels
from contrailmq.store.queues.derivation import IN_NO_QUEUE
from contrailmq.store.queues.queue_state import TAG_KIND

_COUNTED_MAX: Final = 1 << 22  # 32 MiB of counters; beyond that sorting takes less memory


@dataclass(frozen=True, slots=True)
class Units:
    """Units due for a block, in log order. `queue` indexes `queues`."""

    queues: list[tuple[str, int]]
    queue: Int
    queue_offset: Int
    physical_offset: Int
    size: Int
    tags_code: Int


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Index entries due for a block, in the order in which a broker puts them."""

    key_hash: Int
    physical_offset: Int
    store_time_ms: Int
    is_tag: Mask


class Dispatcher:
    """Derives units and index entries from blocks. `levels` is the broker's messageDelayLevel."""

    def __init__(self, levels: str = DELAY_LEVELS) -> None:
        self._delay_levels = DelayLevels(levels)

    def dispatch(self, records: Records) -> tuple[Units, IndexEntries]:
        """What a broker would put into its queues and into its index for a block."""
        units, entries = self.due(records)
        return units, entries()

    def due(self, records: Records) -> tuple[Units, Callable[[], IndexEntries]]:
        """The same with the index entries still to be made, which takes as long as all the rest."""
        buffer = pa.py_buffer(records.data)
        topics = text_column(take_slices(buffer, records.topic_start, records.topic_bytes)).dictionary_encode()
        table = parse_properties(take_slices(buffer, records.properties_start, records.properties_bytes))
        kind = records.sys_flag & SysFlag.TRANSACTION_MASK
        names = topics.dictionary.to_pylist()
        codes = topics.indices.to_numpy().astype(np.int64)
        queued = (records.sys_flag & IN_NO_QUEUE) == 0
        tags = table.column(Property.TAGS).dictionary_encode()
        units = self._units(records, table, names, codes, tags, queued)
        return units, lambda: _entries(records, table, names, codes, tags, kind != SysFlag.TRANSACTION_ROLLBACK)

    def _units(
        self,
        records: Records,
        table: Properties,
        names: list[str],
        codes: Int,
        tag_texts: pa.DictionaryArray,
        queued: Mask,
    ) -> Units:
        tags = _tags_codes(tag_texts)
        if SystemTopic.SCHEDULE in names:
            waiting = np.flatnonzero(codes == names.index(SystemTopic.SCHEDULE))
            levels = table.column(Property.DELAY).to_pylist()
            for row in waiting.tolist():
                due_ms = self._delay_levels.due_ms(levels[row], int(records.store_time_ms[row]))
                if due_ms is not None:
                    tags[row] = due_ms
        pairs, queue = numbered(codes[queued], records.queue_id[queued])
        return Units(
            queues=[(names[code], queue_id) for code, queue_id in pairs],
            queue=queue,
            queue_offset=records.queue_offset[queued],
            physical_offset=records.physical_offset[queued],
            size=records.size[queued],
            tags_code=tags[queued],
        )


def numbered(codes: Int, queue_ids: Int) -> tuple[list[tuple[int, int]], Int]:
    """The distinct (topic, queue id) in order, and for each row its number among them. Queues are few: by counting."""
    if not len(codes):
        return [], codes
    width = int(queue_ids.max()) + 1
    if int(queue_ids.min()) < 0 or width * (int(codes.max()) + 1) > _COUNTED_MAX:
        pairs, queue = np.unique(np.stack([codes, queue_ids]), axis=1, return_inverse=True)
        return [(code, queue_id) for code, queue_id in pairs.T.tolist()], queue.reshape(-1)
    keys = codes * width + queue_ids
    present = np.flatnonzero(np.bincount(keys))
    numbers = np.empty(int(present[-1]) + 1, dtype=np.int64)
    numbers[present] = np.arange(len(present))
    return [divmod(key, width) for key in present.tolist()], numbers[keys]


def _tags_codes(encoded: pa.DictionaryArray) -> Int:
    hashes = np.array([tags_code(tag) for tag in encoded.dictionary.to_pylist()] + [0], dtype=np.int64)
    indices = encoded.indices.fill_null(len(hashes) - 1).to_numpy()
    found: Int = hashes[indices]
    return found


def _entries(
    records: Records,
    table: Properties,
    names: list[str],
    codes: Int,
    tags: pa.DictionaryArray,
    indexed: Mask,
) -> IndexEntries:
    seeds = np.array([java_hash(f"{name}#") for name in names], dtype=np.int64)[codes]
    unique_rows, unique = _valued(table.column(Property.UNIQUE_KEY))
    tag_rows, tag_hashes = _tag_hashes(tags, names, codes)
    pieces = pc.split_pattern(table.column(Property.KEYS), " ")
    keys = pieces.flatten()
    key_rows = pc.list_parent_indices(pieces).to_numpy().astype(np.int64)
    filled = pc.greater(pc.binary_length(keys), 0).to_numpy(zero_copy_only=False)
    if not filled.all():
        keys, key_rows = keys.filter(pa.array(filled)), key_rows[filled]
    rows = np.concatenate([unique_rows, key_rows, tag_rows])
    hashes = np.concatenate([java_hashes(unique, seeds[unique_rows]), java_hashes(keys, seeds[key_rows]), tag_hashes])
    is_tag = np.arange(len(rows)) >= len(unique_rows) + len(key_rows)
    # A broker's order is record by record: unique key, keys, tag. The sort is stable and they stand in that order.
    order = stable_order(rows)
    if not indexed.all():
        order = order[indexed[rows[order]]]
    rows, hashes = rows[order], hashes[order]
    magnitude = np.abs(hashes)
    magnitude[hashes == -(2**31)] = 0  # Java's Math.abs has no positive for the least int; RocketMQ takes 0
    return IndexEntries(magnitude, records.physical_offset[rows], records.store_time_ms[rows], is_tag[order])


def _tag_hashes(tags: pa.DictionaryArray, names: list[str], codes: Int) -> tuple[Int, Int]:
    """Rows that have a tag, and the hashes of `topic#T#tag`: few pairs make many rows, so each is hashed once."""
    rows, of_row = _valued(tags.indices)
    texts = tags.dictionary.to_pylist()
    pairs, number = numbered(codes[rows], of_row.to_numpy().astype(np.int64))
    hashes = [java_hash(f"{names[code]}#{TAG_KIND}#{texts[tag]}") for code, tag in pairs]
    return rows, np.array(hashes, dtype=np.int64)[number]


def _valued(column: pa.Array) -> tuple[Int, pa.Array]:
    """Rows that have a value, and the values."""
    if not column.null_count:
        return np.arange(len(column)), column
    return np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)), column.drop_null()


def java_hashes(texts: pa.StringArray, seeds: Int) -> Int:
    """`java_hash(text, seed=seed)` for a column without nulls: one pass over character positions, not over texts."""
    count = len(texts)
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + count + 1].astype(
        np.int64
    )
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    hashes = (seeds & 0xFFFFFFFF).astype(np.uint32)
    start, size = offsets[:-1], np.diff(offsets)
    if count and int(size.min()) == int(size.max()):  # as unique ids are: rows of a matrix
        characters = data[offsets[0] : offsets[-1]].reshape(count, -1)
        for index in range(characters.shape[1]):
            hashes *= np.uint32(31)
            hashes += characters[:, index]
    elif count:
        longest = int(size.max())
        longest_first = stable_order(longest - size)
        start, hashes = start[longest_first], hashes[longest_first]
        # remaining[i]: how many texts have more than i characters; they are the first ones in this order.
        remaining = count - np.cumsum(np.bincount(size, minlength=longest))[:longest]
        for index, live in enumerate(remaining.tolist()):
            hashes[:live] = hashes[:live] * np.uint32(31) + data[start[:live] + index]
        in_place = np.empty_like(hashes)
        in_place[longest_first] = hashes
        hashes = in_place
    found: Int = hashes.view(np.int32).astype(np.int64)
    others = np.flatnonzero(~pc.string_is_ascii(texts).to_numpy(zero_copy_only=False))
    for row in others.tolist():  # UTF-16 units are not bytes there
        found[row] = java_hash(texts[row].as_py(), seed=int(seeds[row]))
    return found
