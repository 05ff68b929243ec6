"""Values cut out of a buffer, as Arrow columns: the place of each is known, and nothing is done per row in Python.

Parts of records (bodies, topics, properties) and parts of properties (names, values) are such slices. Columns that
repeat a few texts many times are laid out the same way and are here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contrailmq.spark.decoding.records import Bytes, Int

WORD_BYTES: Final = 8
_EQUAL_BYTES_MAX: Final = 64  # from where on Arrow copies faster
LOW_BYTES: Final = np.array([(1 << (8 * size)) - 1 for size in range(WORD_BYTES + 1)], dtype=np.uint64)
# An entry of Arrow's binary_view that does not fit in itself.
_VIEW = np.dtype([("size", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("offset", "<i4")])


def take_slices(data: pa.Buffer, start: Int, size: Int) -> pa.BinaryArray:
    """Copy n slices of a buffer (ascending, not overlapping, below 2 GiB) into one binary column.

    The buffer is described as values and the gaps between them, both by offsets alone, and Arrow takes the values:
    nothing is touched per row in Python. Values of a kilobyte and more go 2 to 3 times faster as views, and values that
    all have the same size, as ids and most tags have, twice as fast as items of a NumPy array.
    """
    count = len(start)
    if count == 0:
        return pa.array([], pa.binary())
    least = int(size.min())
    if 0 < least == int(size.max()) <= _EQUAL_BYTES_MAX:
        return _take_equal_slices(data, start, least)
    if least > 12 and int(size.sum()) >= 512 * count:
        return _take_long_slices(data, start, size)
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2] = start
    offsets[1::2] = start + size
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), data])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def only_slice(data: Bytes, start: Int, size: Int) -> bytes | None:
    """The value that all of n slices have, when they have the same one; else None. Eight bytes are read at least."""
    if not len(start) or int(start[-1]) + WORD_BYTES > len(data) or not (size == size[0]).all():
        return None
    size_bytes = int(size[0])
    if size_bytes < WORD_BYTES:
        return bytes(data[start[0] : start[0] + size_bytes]) if _is_same(data, start, LOW_BYTES[size_bytes]) else None
    for at in (*range(0, size_bytes - WORD_BYTES, WORD_BYTES), size_bytes - WORD_BYTES):
        if not _is_same(data, start + at, LOW_BYTES[WORD_BYTES]):
            return None
    return bytes(data[start[0] : start[0] + size_bytes])


def _is_same(data: Bytes, start: Int, mask: np.uint64) -> bool:
    words = np.ndarray((len(data) - WORD_BYTES + 1,), dtype="<u8", buffer=data, strides=(1,))[start]
    return not ((words ^ words[0]) & mask).any()


def _take_equal_slices(data: pa.Buffer, start: Int, size: int) -> pa.BinaryArray:
    overlapping = np.ndarray((data.size - size + 1,), dtype=f"V{size}", buffer=data, strides=(1,))
    offsets, values = tiled_offsets([size], len(start)), overlapping[start].view(np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(start), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def repeated(texts: list[str], count: int) -> pa.StringArray:
    """The same few texts `count` times over: their bytes are laid out once and tiled."""
    octets = [text.encode() for text in texts]
    offsets = tiled_offsets([len(text) for text in octets], count)
    data = np.tile(np.frombuffer(b"".join(octets), dtype=np.uint8), count)
    return pa.Array.from_buffers(pa.string(), len(octets) * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def tiled_offsets(sizes: list[int], count: int) -> npt.NDArray[np.int32]:
    """Arrow's offsets of values of these sizes, `count` times over."""
    if len(sizes) == 1:
        return np.arange(0, (count + 1) * sizes[0], sizes[0], dtype=np.int32)
    ends = np.cumsum(sizes, dtype=np.int32)
    offsets = np.zeros(len(sizes) * count + 1, dtype=np.int32)
    np.add(np.arange(count, dtype=np.int32)[:, None] * ends[-1], ends, out=offsets[1:].reshape(count, -1))
    return offsets


def _take_long_slices(data: pa.Buffer, start: Int, size: Int) -> pa.BinaryArray:
    views = np.zeros(len(start), dtype=_VIEW)
    octets = np.frombuffer(data, dtype=np.uint8)
    fours = np.ndarray((len(octets) - 3,), dtype="V4", buffer=octets, strides=(1,))
    views["size"], views["offset"], views["prefix"] = size, start, fours[start]
    array = pa.Array.from_buffers(pa.binary_view(), len(start), [None, pa.py_buffer(views), data])
    return array.cast(pa.binary())


def text_column(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes as text; what is not UTF-8 shows replacement characters, as Java's decoder shows it."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return map_values(raw, lambda value: value.decode("utf-8", "replace"))


def map_values(raw: pa.BinaryArray, text_of: Callable[[bytes], str]) -> pa.StringArray:
    """A text for each value, made in Python once for each distinct one."""
    encoded = raw.dictionary_encode()
    texts = pa.array([text_of(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)
