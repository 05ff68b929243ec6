"""The properties of many records, parsed at once with NumPy and Arrow: which entry has which name and value.

    properties := (name 0x01 value 0x02)*        the last 0x02 may be missing

The rules are those of `message.decode_properties`: split at 0x02; the first 0x01 of a piece ends the name; a piece
without a name or a value is dropped; of equal names the last wins. Nothing is done per row in Python.

In nearly all logs separators alternate and every row ends with 0x02, so entries are two strided slices; other blocks
are searched piece by piece. If all rows have the same `width` names in the same order, a name's entries are every
`width`-th one. If its values also have one length, each is a range of columns of a matrix (`AlikeProperties`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.spark.decoding.records import Bytes, Int, Mask
from contrailmq.spark.decoding.slices import LOW_BYTES, WORD_BYTES, repeated, take_slices, text_column, tiled_offsets

_NONE: Final = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PropertyTable:
    """Entries of `row_count` rows, in row order: `row[i]`, the name `names[name_codes[i]]`, where its value lies.

    With a `width` the entries of a row are its names in their order, and neither rows nor codes are stated.
    """

    row_count: int
    row: Int
    name_codes: Int
    names: pa.StringArray
    data: pa.Buffer
    value_start: Int
    value_bytes: Int
    width: int = 0  # of rows that all have the same names in the same order; 0 when some differ

    def column(self, name: str) -> pa.StringArray:
        """One property as a column: null where a row has none. Only its own values are copied."""
        code = self._code_of(name)
        if self.width and code >= 0:
            every = slice(code, None, self.width)
            return text_column(take_slices(self.data, self.value_start[every], self.value_bytes[every]))
        entries = np.flatnonzero(self.name_codes == code) if code >= 0 else np.empty(0, dtype=np.int64)
        if not len(entries):
            return pa.nulls(self.row_count, pa.string())
        values = text_column(take_slices(self.data, self.value_start[entries], self.value_bytes[entries]))
        if len(entries) == self.row_count:  # each row has the name once: all have it, in order
            return values
        at = np.full(self.row_count, -1, dtype=np.int64)
        at[self.row[entries]] = np.arange(len(entries))
        return values.take(pa.array(at, mask=at < 0))

    def maps(self) -> pa.MapArray:
        """All properties as a map column."""
        if self.width:
            offsets = tiled_offsets([self.width], self.row_count)
            keys = repeated(self.names.to_pylist(), self.row_count)
        else:
            offsets = np.zeros(self.row_count + 1, dtype=np.int32)
            np.cumsum(np.bincount(self.row, minlength=self.row_count), out=offsets[1:])
            keys = self.names.take(pa.array(self.name_codes))
        values = text_column(take_slices(self.data, self.value_start, self.value_bytes))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def _code_of(self, name: str) -> int:
        found = pc.index(self.names, pa.scalar(name)).as_py()
        return int(found)


@dataclass(frozen=True, slots=True)
class AlikeProperties:
    """Rows of one length that differ in nothing but the bytes of their values."""

    rows: npt.NDArray[np.uint8]  # one row of the matrix for each
    names: list[str]
    places: list[slice]  # of the values in a row, parallel to the names
    is_ascii: bool

    @property
    def width(self) -> int:
        return len(self.names)

    def column(self, name: str) -> pa.StringArray:
        """One property as a column: null where a row has none."""
        if name not in self.names:
            return pa.nulls(len(self.rows), pa.string())
        place = self.places[self.names.index(name)]
        return self._texts(self.rows[:, place], [place.stop - place.start])

    def maps(self) -> pa.MapArray:
        """All properties as a map column."""
        offsets = tiled_offsets([self.width], len(self.rows))
        values = np.concatenate([self.rows[:, place] for place in self.places], axis=1)
        texts = self._texts(values, [place.stop - place.start for place in self.places])
        return pa.MapArray.from_arrays(pa.array(offsets), repeated(self.names, len(self.rows)), texts)

    def _texts(self, values: npt.NDArray[np.uint8], sizes: list[int]) -> pa.StringArray:
        """Texts of these sizes out of each row of `values`."""
        ends = tiled_offsets(sizes, len(values))
        kind = pa.string() if self.is_ascii else pa.binary()
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values).reshape(-1))]
        texts = pa.Array.from_buffers(kind, len(ends) - 1, buffers)
        return texts if self.is_ascii else text_column(texts)


Properties = PropertyTable | AlikeProperties


def parse_properties(raw: pa.BinaryArray) -> Properties:
    """Parse a column of encoded properties (no nulls)."""
    count = len(raw)
    offsets = np.frombuffer(raw.buffers()[1], dtype=np.int32)[raw.offset : raw.offset + count + 1].astype(np.int64)
    data_buffer = raw.buffers()[2] or pa.py_buffer(b"")
    data: Bytes = np.frombuffer(data_buffer, dtype=np.uint8)
    alike = _parse_alike(data, offsets)
    return _parse_mixed(data_buffer, data, offsets) if alike is None else alike


def _parse_alike(data: Bytes, offsets: Int) -> AlikeProperties | None:
    """The rows as a matrix if each has the length, the names and the separators of the first; else None."""
    row_bytes = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
    if not row_bytes or not (np.diff(offsets) == row_bytes).all():
        return None
    rows = data[offsets[0] : offsets[-1]].reshape(-1, row_bytes)
    starts, separators, ends = _entries(rows[0], np.array([0, row_bytes]))
    if not ((separators > starts) & (separators < ends - 1)).all():
        return None  # a piece without a name or without a value
    raw_names = [rows[0, start:separator].tobytes() for start, separator in zip(starts, separators, strict=True)]
    names = [name.decode("utf-8", "replace") for name in raw_names]
    if len(set(names)) < len(names):
        return None
    places = [slice(int(separator) + 1, int(end)) for separator, end in zip(separators, ends, strict=True)]
    ends_before, starts_after = [0, *(place.stop for place in places)], [*(place.start for place in places), row_bytes]
    between = [slice(*columns) for columns in zip(ends_before, starts_after, strict=True)]
    if not all((rows[:, columns] == rows[0, columns]).all() for columns in between):
        return None
    octets = rows.reshape(-1) - np.uint8(1)
    is_separator = np.less(octets, 2, out=octets.view(np.bool_))  # in its own place: fresh memory costs as much again
    expected = sum(np.count_nonzero(is_separator[columns]) for columns in between)
    if np.count_nonzero(is_separator) != len(rows) * expected:
        return None  # one in a value
    return AlikeProperties(rows, names, places, is_ascii=int(rows.max()) < 0x80)


def _parse_mixed(data_buffer: pa.Buffer, data: Bytes, offsets: Int) -> PropertyTable:
    count = len(offsets) - 1
    start, first_separator, end = _entries(data, offsets)
    has_both = (first_separator > start) & (first_separator < end - 1)
    if not has_both.all():
        start, first_separator, end = start[has_both], first_separator[has_both], end[has_both]
    width = len(start) // count if count else 0
    if width and len(start) == width * count and bool((start[::width] == offsets[:-1]).all()):
        same = _same_names(data, start.reshape(count, width), (first_separator - start).reshape(count, width))
        if same is not None:
            value_start, value_bytes = first_separator + 1, end - first_separator - 1
            return PropertyTable(count, _NONE, _NONE, same, data_buffer, value_start, value_bytes, width)
    # Few rows are sought among many entries, not the other way round: six times fewer searches.
    row = np.repeat(np.arange(count, dtype=np.int64), np.diff(np.searchsorted(start, offsets)))
    codes, names = _coded_names(data_buffer, data, start, first_separator - start)
    value_start, value_bytes = first_separator + 1, end - first_separator - 1
    kept = _last_of_equal_names(row, codes, len(names))
    if kept is not None:
        row, codes, value_start, value_bytes = row[kept], codes[kept], value_start[kept], value_bytes[kept]
    return PropertyTable(count, row, codes, names, data_buffer, value_start, value_bytes)


def _same_names(data: Bytes, start: Int, size: Int) -> pa.StringArray | None:
    """The names of the first row if every row has just these, each once; else None. Compared eight bytes at a time."""
    firsts = size[0].tolist()
    read_to = start[-1] + (size[0] + WORD_BYTES - 1) // WORD_BYTES * WORD_BYTES
    if int(read_to.max()) > len(data) or not (size == size[0]).all():
        return None
    words = np.ndarray((len(data) - WORD_BYTES + 1,), dtype="<u8", buffer=data, strides=(1,))
    for column, name_bytes in enumerate(firsts):
        for at in range(0, name_bytes, WORD_BYTES):
            found = words[start[:, column] + at] & LOW_BYTES[min(WORD_BYTES, name_bytes - at)]
            if not (found == found[0]).all():
                return None
    raw = [bytes(data[begin : begin + name_bytes]) for begin, name_bytes in zip(start[0].tolist(), firsts, strict=True)]
    names = [name.decode("utf-8", "replace") for name in raw]
    return pa.array(names, pa.string()) if len(set(names)) == len(names) else None


def _coded_names(buffer: pa.Buffer, data: Bytes, start: Int, size: Int) -> tuple[Int, pa.StringArray]:
    """A number for each name, and the names by number.

    Most names have eight bytes at most (TAGS, KEYS, WAIT, CLUSTER, UNIQ_KEY): such a name is taken as one integer, a
    third of the time of copying it as text. A block with a longer one is done as text.
    """
    is_short = len(size) > 0 and int(size.max()) <= WORD_BYTES and int(start[-1]) + WORD_BYTES <= len(data)
    if is_short and data[start + size - 1].all():  # a zero at the end would make two names one
        words = np.ndarray((len(data) - WORD_BYTES + 1,), dtype="<u8", buffer=data, strides=(1,))[start]
        numbers = pa.array((words & LOW_BYTES[size]).view(np.int64)).dictionary_encode()
        raw = [number.to_bytes(WORD_BYTES, "little", signed=True) for number in numbers.dictionary.to_pylist()]
        names = [name.rstrip(b"\0").decode("utf-8", "replace") for name in raw]
        if len(set(names)) == len(names):  # two that are not UTF-8 may look the same
            return numbers.indices.to_numpy().astype(np.int64), pa.array(names, pa.string())
    encoded = text_column(take_slices(buffer, start, size)).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _entries(data: Bytes, offsets: Int) -> tuple[Int, Int, Int]:
    """Start, first 0x01 and end of every piece between 0x02s and row borders; no 0x01 shows as one at the end."""
    low, high = int(offsets[0]), int(offsets[-1])
    separators = np.flatnonzero((data[low:high] - np.uint8(1)) < 2) + low
    kinds = data[separators]
    filled_ends = offsets[1:][np.diff(offsets) > 0]
    is_regular = (
        len(separators) % 2 == 0
        and bool((kinds[0::2] == 1).all())
        and bool((kinds[1::2] == 2).all())
        and bool((data[filled_ends - 1] == 2).all())
    )
    if is_regular:
        end = separators[1::2]
        start = np.empty_like(end)
        if len(end):
            start[0], start[1:] = low, end[:-1] + 1
        return start, separators[0::2], end
    ones, twos = separators[kinds == 1], separators[kinds == 2]
    # A row border ends a piece as well, unless the row's last byte was a 0x02 already.
    ends = np.union1d(twos, filled_ends[data[filled_ends - 1] != 2])
    starts = np.concatenate([[low], np.where(data[np.minimum(ends[:-1], high - 1)] == 2, ends[:-1] + 1, ends[:-1])])
    if not len(ends):
        return ends, ends, ends
    after = np.searchsorted(ones, starts)
    first = np.where(after < len(ones), np.append(ones, high)[after], ends)
    return starts, np.minimum(first, ends), ends


def _last_of_equal_names(row: Int, codes: Int, name_count: int) -> Mask | None:
    """Which entries to keep, or None when no row repeats a name (the usual case, found by counting)."""
    pair = row * max(1, name_count) + codes
    if not len(pair):
        return None
    if int(pair[-1]) < 64 * len(pair) and int(np.bincount(pair).max()) == 1:
        return None
    _, last_from_behind = np.unique(pair[::-1], return_index=True)
    if len(last_from_behind) == len(pair):
        return None
    kept = np.zeros(len(pair), dtype=np.bool_)
    kept[len(pair) - 1 - last_from_behind] = True
    return kept
