"""Rows to the parts of a batch (`message/batch.py`), column by column.

A part is a head, the body, a length and the properties. Four columns are laid out as views in send order, and Arrow
copies them in one pass (`Parts.joined`): 1.5 us of CPU per row of 1 KiB, digests included. Requests are slices of it.

A de-duplication key ends with a digest of the row: the CRC-32 of

    topic 02 queue-id-or-nothing 02 flag 02 properties-as-sent-without-the-two-keys body        (02: that byte)

So a row never gets another row's key when a repeated batch deals its rows differently. `digest` states it for one row,
`_digests` for a batch. Only plain rows are packed here; any other sends its Arrow batch through `Message` (sending.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise, repeat
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.message import create_unique_ids
from contrailmq.message.batch import BATCH_PART_BYTES_MIN
from contrailmq.message.checksum import crc32
from contrailmq.message.model import BODY_BYTES_MAX
from contrailmq.message.properties import PROPERTIES_BYTES_MAX, RESERVED_PROPERTIES

DEDUP_PROPERTY: Final = "CONTRAIL_DEDUP_KEY"
_NOT_PACKED: Final = frozenset({"delayLevel", "deliverAt"})
_PACKED_BYTES_MAX: Final = 1 << 30  # Arrow counts the bytes of a column with 31 bits
_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
assert _HEAD.itemsize + 2 == BATCH_PART_BYTES_MIN
_SEPARATORS: Final = (1, 2)
_HEX: Final = np.frombuffer(b"".join(b"%02x" % value for value in range(256)), dtype="u2")

Int = npt.NDArray[np.int64]
Texts: TypeAlias = pa.StringArray | str  # of each row, or the same of all
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


def pack_parts(
    batch: pa.RecordBatch,
    *,
    topic: str | None,
    key_prefix: str,
    first_row: int,
    dedup_column: str | None,
    marks: str = "",
) -> Parts | None:
    """A part for each row; None when one of them is not plain. `topic` is that of all rows, unless a column has them.

    De-duplication keys are `key_prefix`, the row's number from `first_row` on and its digest, unless a column has them.
    `marks` are properties that every row gets and no digest counts.
    """
    if not _NOT_PACKED.isdisjoint(batch.schema.names) or batch.nbytes > _PACKED_BYTES_MAX:
        return None
    bodies = batch.column("body").cast(pa.binary())
    sizes = _lengths(bodies)
    if bodies.null_count or not len(bodies) or sizes.min() == 0 or sizes.max() > BODY_BYTES_MAX:
        return None
    flags, own = _flags(batch), _own_pairs(batch)
    if flags is None or own is None:
        return None
    if dedup_column is None:
        topics = topic or batch.column("topic")
        keys = _numbered_keys(batch, bodies, _heads(batch, topics, flags, own.texts), key_prefix, first_row)
    else:
        keys = _given_keys(batch.column(dedup_column))
    properties = None if keys is None else _properties(own, marks, keys, len(bodies))
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


def digest(topic: str, queue_id: int | None, flag: int, properties: bytes, body: bytes) -> str:
    """What a row holds, in eight digits. `properties` are as they are sent, without the two keys."""
    head = f"{topic}\x02{'' if queue_id is None else queue_id}\x02{flag}\x02".encode()
    return f"{crc32(body, crc32(properties, crc32(head))):08x}"


def _heads(batch: pa.RecordBatch, topics: Texts, flags: Int | int, own: Texts) -> Texts:
    """What a digest begins with: all that a row has but its body."""
    queue_ids: Texts = ""
    if "queueId" in batch.schema.names:
        queue_ids = batch.column("queueId").cast(pa.string()).fill_null("")
    flag_texts: Texts = str(flags) if isinstance(flags, int) else pa.array(flags).cast(pa.string())
    return _joined((topics, "\x02", queue_ids, "\x02", flag_texts, "\x02", own))


def _digests(heads: Texts, bodies: pa.BinaryArray) -> pa.StringArray:
    """The digest of each row."""
    begun = repeat(crc32(heads.encode())) if isinstance(heads, str) else map(crc32, heads.cast(pa.binary()).to_pylist())
    data, bounds = memoryview(bodies.buffers()[2]), offsets_of(bodies).tolist()
    found = [crc32(data[begin:end], head) for (begin, end), head in zip(pairwise(bounds), begun, strict=False)]
    digits = _HEX[np.array(found, dtype=">u4").view(np.uint8)]
    return _binary(digits.view("V8")).view(pa.string())


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


def _numbered_keys(
    batch: pa.RecordBatch, bodies: pa.BinaryArray, heads: Texts, key_prefix: str, first_row: int
) -> tuple[Texts, ...] | None:
    """The pieces of keys; None when a row has no topic."""
    if not isinstance(heads, str) and heads.null_count:
        return None
    numbers = pa.array(np.arange(first_row, first_row + batch.num_rows)).cast(pa.string())
    return key_prefix, numbers, "-", _digests(heads, bodies)


def _given_keys(keys: pa.Array) -> tuple[Texts, ...] | None:
    """Keys of a column, as pieces; None when one is null or blank."""
    texts = keys.cast(pa.string()) if pa.types.is_integer(keys.type) else keys
    if texts.type != pa.string() or texts.null_count or pc.any(pc.equal(pc.utf8_trim_whitespace(texts), "")).as_py():
        return None
    return (texts,)


def _flags(batch: pa.RecordBatch) -> Int | int | None:
    if "flag" not in batch.schema.names:
        return 0
    flags: Int = batch.column("flag").cast(pa.int64()).fill_null(0).to_numpy()
    return flags if len(flags) and flags.min() >= -(2**31) and flags.max() < 2**31 else None


class _Pairs(NamedTuple):
    """Properties of each row as one text, and how many there are in all."""

    texts: Texts
    pairs: int


def _properties(own: _Pairs, marks: str, dedup_keys: tuple[Texts, ...], rows: int) -> pa.StringArray | None:
    """The properties of each row as messages give them, in the same order: the two keys come last."""
    ids = pa.array(create_unique_ids(rows))
    properties: pa.StringArray = _joined(
        (own.texts, f"{marks}{DEDUP_PROPERTY}\x01", *dedup_keys, "\x02UNIQ_KEY\x01", ids, "\x02")
    )
    # Every row has the separators of its pairs; if all rows together have no more, none of the texts holds one.
    data, pairs = np.frombuffer(properties.buffers()[2], dtype=np.uint8), own.pairs + rows * (2 + marks.count("\x01"))
    return None if any(np.count_nonzero(data == separator) != pairs for separator in _SEPARATORS) else properties


def _own_pairs(batch: pa.RecordBatch) -> _Pairs | None:
    """All properties of each row but the two keys, in the order of a `Message`."""
    pieces: list[Texts] = []
    pairs = batch.num_rows  # WAIT
    if "properties" in batch.schema.names:
        own = _own_properties(batch.column("properties"))
        if own is None:
            return None
        pieces.append(own.texts)
        pairs += own.pairs

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
    return _Pairs(_joined(pieces), pairs)


def _joined(pieces: Iterable[Texts]) -> Texts:
    """The pieces of each row one after the other; one text if it is the same for all rows."""
    merged: list[Texts] = []
    for is_same, run in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        texts = list(run)
        merged += ["".join(texts)] if is_same else texts
    return merged[0] if len(merged) == 1 else pc.binary_join_element_wise(*merged, "")


def _own_properties(maps: pa.MapArray) -> _Pairs | None:
    """The users' own properties of each row; None when one of them needs a second look."""
    bounds = maps.offsets.to_numpy().astype(np.int64)
    begin, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    names, values = maps.keys.slice(begin, count), maps.items.slice(begin, count)
    bounds -= begin
    if not count:
        return _Pairs("", 0)
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
    return _Pairs(pa.Array.from_buffers(pa.string(), len(maps), [None, ends, pairs.buffers()[2]]), count)
