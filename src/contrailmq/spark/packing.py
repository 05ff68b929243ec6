"""Rows to the parts of a batch (`message/batch.py`), column by column.

A part is a head, the body, a length and the properties, and the parts of a batch lie one after the other. So four
columns are laid out row by row, in the order in which the rows are to be sent: as views on the columns' buffers, which
Arrow copies in one pass (`Parts.joined`). 10,000 rows of 1 KiB for four queues become request bodies at 1.1 us of CPU
each where a loop over rows took 4.4 us. What is sent are slices of that buffer.

Only plain rows are packed here: bodies and texts that are there and need no second look. One row that does need it
sends its whole Arrow batch through `Message` (sending.py), which finds what is wrong and says so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.message import create_unique_ids
from contrailmq.message.batch import BATCH_PART_BYTES_MIN
from contrailmq.message.model import BODY_BYTES_MAX
from contrailmq.message.properties import PROPERTIES_BYTES_MAX, RESERVED_PROPERTIES

DEDUP_PROPERTY: Final = "CONTRAIL_DEDUP_KEY"
_NOT_PACKED: Final = frozenset({"delayLevel", "deliverAt"})
_PACKED_BYTES_MAX: Final = 1 << 30  # Arrow counts the bytes of a column with 31 bits
_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
assert _HEAD.itemsize + 2 == BATCH_PART_BYTES_MIN
_SEPARATORS: Final = (1, 2)

Int = npt.NDArray[np.int64]
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE_BYTES_MAX: Final = 12  # a view of no more bytes holds them itself


class Joined(NamedTuple):
    """Parts one after the other: part n is `data[bounds[n]:bounds[n + 1]]`."""

    bounds: Int
    data: memoryview


class Parts(NamedTuple):
    """The four pieces of every row's part."""

    heads: pa.BinaryArray
    bodies: pa.BinaryArray
    lengths: npt.NDArray[np.int16]  # of the properties, big-endian
    properties: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.heads)

    def joined(self, rows: Int) -> Joined:
        """The parts of these rows, in their order."""
        sizes = _lengths(self.bodies)
        if int(sizes[rows].min()) <= _INLINE_BYTES_MAX:
            return self._joined_by_text(rows)
        views = np.zeros((len(rows), 4), dtype=_VIEW)
        lengths = views[:, 2]
        lengths["size"], lengths["prefix"] = 2, self.lengths.view("<u2")[rows]
        buffers = []
        for number, (place, column) in enumerate(((0, self.heads), (1, self.bodies), (3, self.properties))):
            bounds, data = offsets_of(column), column.buffers()[2]
            view, start = views[:, place], bounds[:-1][rows]
            view["size"], view["offset"], view["buffer"] = np.diff(bounds)[rows], start, number
            view["prefix"] = np.ndarray((data.size - 3,), dtype="<i4", buffer=data, strides=(1,))[start]
            buffers.append(data)
        pieces = pa.Array.from_buffers(pa.binary_view(), views.size, [None, pa.py_buffer(views), *buffers])
        whole = pieces.cast(pa.binary())
        return Joined(offsets_of(whole)[::4], memoryview(whole.buffers()[2]))

    def _joined_by_text(self, rows: Int) -> Joined:
        whole = pc.binary_join_element_wise(self.heads, self.bodies, _binary(self.lengths), self.properties, b"")
        whole = whole.take(pa.array(rows))
        return Joined(offsets_of(whole), memoryview(whole.buffers()[2]))


def pack_parts(batch: pa.RecordBatch, *, key_prefix: str, first_row: int, dedup_column: str | None) -> Parts | None:
    """A part for each row; None when one of them is not plain.

    De-duplication keys are `key_prefix` and the row's number from `first_row` on, unless a column has them.
    """
    if not _NOT_PACKED.isdisjoint(batch.schema.names) or batch.nbytes > _PACKED_BYTES_MAX:
        return None
    bodies = batch.column("body").cast(pa.binary())
    sizes = _lengths(bodies)
    if bodies.null_count or not len(bodies) or sizes.min() == 0 or sizes.max() > BODY_BYTES_MAX:
        return None
    keys = _dedup_keys(batch, key_prefix, first_row, dedup_column)
    flags = _flags(batch)
    if keys is None or flags is None:
        return None
    properties = _properties(batch, keys)
    if properties is None:
        return None
    properties_sizes = _lengths(properties)
    if properties_sizes.max() > PROPERTIES_BYTES_MAX:
        return None
    heads = np.zeros(len(bodies), dtype=_HEAD)
    heads["size"] = BATCH_PART_BYTES_MIN + sizes + properties_sizes
    heads["flag"], heads["body"] = flags, sizes
    lengths = properties_sizes.astype(">i2")
    return Parts(_binary(heads), bodies, lengths, properties.cast(pa.binary()))


def offsets_of(column: pa.BinaryArray | pa.StringArray) -> Int:
    """Where the values of a column begin in its buffer, and where the last one ends."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return offsets.astype(np.int64)


def _lengths(column: pa.BinaryArray | pa.StringArray) -> Int:
    return np.diff(offsets_of(column))


def _binary(values: npt.NDArray[np.void] | npt.NDArray[np.int16]) -> pa.BinaryArray:
    """The bytes of each item as a value."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.itemsize)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def _dedup_keys(batch: pa.RecordBatch, key_prefix: str, first_row: int, column: str | None) -> pa.StringArray | None:
    if column is None:
        numbers = pa.array(np.arange(first_row, first_row + batch.num_rows)).cast(pa.string())
        return pc.binary_join_element_wise(key_prefix, numbers, "")
    keys = batch.column(column)
    if keys.type != pa.string() or keys.null_count or pc.any(pc.equal(pc.utf8_trim_whitespace(keys), "")).as_py():
        return None
    return keys


def _flags(batch: pa.RecordBatch) -> Int | int | None:
    if "flag" not in batch.schema.names:
        return 0
    flags: Int = batch.column("flag").cast(pa.int64()).fill_null(0).to_numpy()
    return flags if len(flags) and flags.min() >= -(2**31) and flags.max() < 2**31 else None


def _properties(batch: pa.RecordBatch, dedup_keys: pa.StringArray) -> pa.StringArray | None:
    """The properties of each row as `make_message` and sending give them, in the same order."""
    pieces: list[pa.StringArray | str] = [f"{DEDUP_PROPERTY}\x01", dedup_keys, "\x02"]
    pairs = 3 * batch.num_rows  # the key by which repeats are known, WAIT, UNIQ_KEY
    if "properties" in batch.schema.names:
        own = _own_properties(batch.column("properties"))
        if own is None:
            return None
        pieces.insert(0, own[0])
        pairs += own[1]

    def add(column: str, name: str, *, with_empty: bool) -> bool:
        nonlocal pairs
        if column not in batch.schema.names:
            return True
        texts = batch.column(column)
        if texts.type != pa.string():
            return False
        has = texts.is_valid() if with_empty else pc.fill_null(pc.greater(pc.binary_length(texts), 0), fill_value=False)
        count = pc.sum(has).as_py() or 0
        if count == len(texts):
            pieces.extend((f"{name}\x01", texts, "\x02"))
        elif count:
            pieces.append(pc.if_else(has, pc.binary_join_element_wise(f"{name}\x01", texts, "\x02", ""), ""))
        pairs += count
        return True

    if not (add("tags", "TAGS", with_empty=False) and add("keys", "KEYS", with_empty=False)):
        return None
    pieces.append("WAIT\x01true\x02")
    if not add("shardingKey", "__SHARDINGKEY", with_empty=True):
        return None
    pieces.extend(("UNIQ_KEY\x01", pa.array(create_unique_ids(batch.num_rows)), "\x02"))
    properties = pc.binary_join_element_wise(*pieces, "")
    # Every row has the separators of its pairs; if all rows together have no more, none of the texts holds one.
    data = np.frombuffer(properties.buffers()[2], dtype=np.uint8)
    if any(np.count_nonzero(data == separator) != pairs for separator in _SEPARATORS):
        return None
    return properties


def _own_properties(maps: pa.MapArray) -> tuple[pa.StringArray, int] | None:
    """The users' own properties of each row as one text, and how many there are in all."""
    bounds = maps.offsets.to_numpy().astype(np.int64)
    begin, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    names, values = maps.keys.slice(begin, count), maps.items.slice(begin, count)
    bounds -= begin
    if not count:
        return pa.array([""] * len(maps), pa.string()), 0
    coded = names.dictionary_encode()
    known = coded.dictionary.to_pylist()
    if any(not name.strip() or name in RESERVED_PROPERTIES or name == DEDUP_PROPERTY for name in known):
        return None
    if values.null_count or pc.any(pc.equal(pc.utf8_trim_whitespace(values), "")).as_py():
        return None
    lengths = np.diff(bounds)
    if maps.null_count and lengths[maps.is_null().to_numpy(zero_copy_only=False)].any():
        return None
    of_row = np.repeat(np.arange(len(maps)), lengths) * len(known) + coded.indices.to_numpy()
    if len(np.unique(of_row)) != count:  # of equal names the last one counts
        return None
    pairs = pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
    # Pairs of a row follow each other in the buffer: fewer bounds make one text of them.
    ends = pa.py_buffer(offsets_of(pairs)[bounds].astype(np.int32))
    return pa.Array.from_buffers(pa.string(), len(maps), [None, ends, pairs.buffers()[2]]), count
