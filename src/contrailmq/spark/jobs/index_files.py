"""Index files laid out and read as columns.

decoding/index_shape.py has the format. All of a file's chains come from one stable sort by slot: the unit before, in
sorted order, is the previous one if its slot is the same. A file's first seconds are counted from the end time of the
file before, as RocketMQ counts them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.spark.decoding.index_shape import (
    HEADER,
    HEADER_BYTES,
    INDEX_UNIT,
    SLOT_BYTES,
    IndexShape,
    index_paths,
)
from contrailmq.spark.decoding.records import stable_order
from contrailmq.spark.jobs.manifest import sync_folder

ENTRY: Final = np.dtype([("key_hash", "i8"), ("physical_offset", "i8"), ("store_time_ms", "i8")])


class IndexWritten(NamedTuple):
    """How much `write_index` wrote."""

    files: int
    entries: int


def write_index(folder: str, pieces: Iterable[npt.NDArray[np.void]], shape: IndexShape) -> IndexWritten:
    """Write index files for entries (arrays of `ENTRY`, in log order) into an empty folder; all is then on the disk."""
    files, count, end_time, end_physical = 0, 0, 0, 0
    names: set[str] = set()
    for entries in _in_files(pieces, shape.units - 1):
        name = _name(int(entries["store_time_ms"][0]), names)
        _write_file(os.path.join(folder, name), entries, shape, end_time, end_physical)
        end_time, end_physical = int(entries["store_time_ms"][-1]), int(entries["physical_offset"][-1])
        files, count = files + 1, count + len(entries)
    sync_folder(Path(folder))
    return IndexWritten(files, count)


def write_durably(path: str | Path, pieces: Iterable[bytes], size_bytes: int) -> None:
    """Write a new file of this size, with a hole after the given bytes. It is on disk when this returns.

    A sync that fails is final: the kernel may have dropped what it could not write, and a second one would succeed.
    """
    with open(path, "xb") as file:
        file.writelines(pieces)
        file.truncate(size_bytes)
        try:
            os.fsync(file.fileno())
        except OSError as exc:
            exc.filename = str(path)
            raise


def _in_files(pieces: Iterable[npt.NDArray[np.void]], room: int) -> Iterator[npt.NDArray[np.void]]:
    """The entries of each file: as many as have room, the last file's as many as are left."""
    held: list[npt.NDArray[np.void]] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= room:
            joined = np.concatenate(held)
            whole = count - count % room
            yield from np.split(joined[:whole], whole // room)
            held, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def _name(time_ms: int, taken: set[str]) -> str:
    """A file's name: a time to the millisecond, later than those before it."""
    while True:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
        name = moment.strftime("%Y%m%d%H%M%S") + f"{time_ms % 1000:03d}"
        if name not in taken and (not taken or name > max(taken)):
            taken.add(name)
            return name
        time_ms += 1


def _write_file(
    path: str, entries: npt.NDArray[np.void], shape: IndexShape, seed_time: int, seed_physical: int
) -> None:
    count = len(entries)
    slot = entries["key_hash"].astype(np.uint32) % np.uint32(shape.slots)
    order = stable_order(slot)
    ordered = slot[order]
    numbers = (order + 1).astype(np.int32)  # unit numbers begin at 1
    is_newest = np.concatenate([ordered[1:] != ordered[:-1], [True]])
    previous = np.empty(count, dtype=np.int32)
    previous[order[0]] = 0
    previous[order[1:]] = np.where(is_newest[:-1], np.int32(0), numbers[:-1])
    begin_time = int(entries["store_time_ms"][0])
    seconds = np.clip((entries["store_time_ms"] - begin_time) // 1000, 0, 2**31 - 1)
    if seed_time > 0:
        seconds[0] = min(max(0, (begin_time - seed_time) // 1000), 2**31 - 1)
    units = np.empty(count, dtype=INDEX_UNIT)
    units["key_hash"], units["physical_offset"] = entries["key_hash"], entries["physical_offset"]
    units["seconds"], units["previous"] = seconds, previous
    slots = np.zeros(shape.slots, dtype=">i4")
    slots[ordered[is_newest]] = numbers[is_newest]
    header = HEADER.pack(
        begin_time,
        int(entries["store_time_ms"][-1]),
        int(entries["physical_offset"][0]),
        int(entries["physical_offset"][-1]),
        int(is_newest.sum()),
        count + 1,
    )
    assert seed_physical <= int(entries["physical_offset"][0])
    never_used = bytes(INDEX_UNIT.itemsize)  # unit 0
    write_durably(path, [header, slots.tobytes(), never_used, units.tobytes()], shape.file_bytes)


def has_index(store: str, shape: IndexShape) -> bool:
    """Is there an index of this shape to compare?"""
    paths = index_paths(store)
    return bool(paths) and paths[0].stat().st_size == shape.file_bytes


class IndexUnits(NamedTuple):
    """Entries of one index file, in order, with what their times need."""

    path: str
    key_hash: npt.NDArray[np.int64]
    physical_offset: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]  # from 1 on
    entries: int  # of the whole file
    begin_time_ms: int
    end_time_ms: int
    end_before_ms: int | None  # of the file before; None for the first

    def seconds_due(self, store_time_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What the units should say of records stored then. Unit 1 counts from the file before (IndexFile.putKey)."""
        begin = np.where(self.number == 1, self.end_before_ms or 0, self.begin_time_ms)
        seconds = np.clip((store_time_ms - begin) // 1000, 0, 2**31 - 1)
        return np.where(begin > 0, seconds, 0)


def read_index(store: str, slots: int, start: int, stop: int) -> Iterator[IndexUnits]:
    """Entries of every index file that point between two physical offsets: they are in log order, hence a slice."""
    end_before: int | None = None
    for path in index_paths(store):
        if path.stat().st_size < HEADER_BYTES:
            continue
        with open(path, "rb") as file:
            begin_time, end_time, _, _, _, following = HEADER.unpack(file.read(HEADER_BYTES))
        count = following - 1
        if count <= 0:
            continue
        units = np.memmap(
            path,
            dtype=INDEX_UNIT,
            mode="r",
            offset=HEADER_BYTES + slots * SLOT_BYTES + INDEX_UNIT.itemsize,
            shape=(count,),
        )
        places = units["physical_offset"]
        low, high = (_first_at_or_after(places, bound) for bound in (start, stop))
        chosen = units[low:high]
        hashes, offsets, seconds = (
            chosen[name].astype(np.int64) for name in ("key_hash", "physical_offset", "seconds")
        )
        numbers = np.arange(low + 1, high + 1)
        yield IndexUnits(str(path), hashes, offsets, seconds, numbers, count, begin_time, end_time, end_before)
        end_before = end_time


def _first_at_or_after(places: npt.NDArray[np.void], bound: int) -> int:
    low, high = 0, len(places)
    while low < high:  # a handful of probes instead of a copy of the column
        middle = (low + high) // 2
        if int(places[middle]) < bound:
            low = middle + 1
        else:
            high = middle
    return low
