"""Index files laid out and read as columns.

    file   := header:40  slot:i32 * slots  unit * units
    header := begin_time:i64 end_time:i64 begin_physical:i64 end_physical:i64 used_slots:i32 next_unit:i32
    unit   := key_hash:i32 physical_offset:i64 seconds_since_begin:i32 previous_unit:i32     (20 bytes)

A slot holds the number of its newest unit, a unit the number of the one before it in the same slot. Unit 0 is never
used. All of a file's chains come from one stable sort by slot: the unit before, in sorted order, is the previous one if
its slot is the same. A file's first seconds are counted from the end time of the file before, as RocketMQ counts them.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.spark.decoding.records import stable_order
from contrailmq.spark.decoding.store_files import StoreFilesError
from contrailmq.spark.jobs.manifest import sync_folder
from contrailmq.spark.runtime.disk_errors import cause, remedy

HEADER: Final = struct.Struct(">qqqqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
_NUMBER: Final = struct.Struct(">i")
_PLACE: Final = struct.Struct(">q")
_UNIT: Final = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY: Final = np.dtype([("key_hash", "i8"), ("physical_offset", "i8"), ("store_time_ms", "i8")])
assert HEADER.size == HEADER_BYTES
assert _UNIT.itemsize == 20


class IndexShape(NamedTuple):
    """Slots and units of every index file: RocketMQ's maxHashSlotNum and maxIndexNum."""

    slots: int = 5_000_000
    units: int = 20_000_000

    @classmethod
    def of_store(cls, store: str) -> IndexShape | None:
        """The shape of the files that exist, the default if there are none; None if they do not show it.

        Most have RocketMQ's proportion of 1 to 4. Of others the header says where the last entry points to, and so
        which bytes it is.
        """
        paths = index_paths(store)
        for path in paths:
            shape = _shape_by_header(path)
            if shape is not None:
                return shape
        for path in paths:
            slots, rest = divmod(path.stat().st_size - HEADER_BYTES, SLOT_BYTES + 4 * _UNIT.itemsize)
            if rest == 0 and slots > 0:
                return cls(slots, 4 * slots)
        return None if paths else cls()

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.slots * SLOT_BYTES + self.units * _UNIT.itemsize


def index_paths(store: str) -> list[Path]:
    """The index files of a store, oldest first; none without the directory. One that cannot be listed is an error."""
    folder = Path(store, "index")
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as exc:  # Path.glob would take it for empty, and the index would be reported as missing
        raise StoreFilesError(
            f"host {socket.gethostname()} cannot list the index {folder}: {cause(exc)}; {remedy(exc)}"
        ) from exc
    return [folder / name for name in names]


def _shape_by_header(path: Path) -> IndexShape | None:
    """The shape by which the first and the last entry stand where the header and the slots say, if there is one."""
    size = path.stat().st_size
    if size <= HEADER_BYTES:
        return None
    with open(path, "rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    _, _, begin, end, _, following = HEADER.unpack_from(data)
    count, last_place = following - 1, end.to_bytes(8, "big", signed=True)
    at = data.find(last_place, HEADER_BYTES) if count > 0 and end > 0 else -1
    while at >= 0:
        slots, rest = divmod(at - 4 - HEADER_BYTES - count * _UNIT.itemsize, SLOT_BYTES)
        units, uneven = divmod(size - HEADER_BYTES - slots * SLOT_BYTES, _UNIT.itemsize)
        if not rest and not uneven and slots > 0 and units > count:
            head = HEADER_BYTES + slots * SLOT_BYTES + _UNIT.itemsize
            (first_place,) = _PLACE.unpack_from(data, head + 4)
            (last_hash,) = _NUMBER.unpack_from(data, at - 4)
            (newest,) = _NUMBER.unpack_from(data, HEADER_BYTES + last_hash % slots * SLOT_BYTES)
            if first_place == begin and newest == count:
                return IndexShape(slots, units)
        at = data.find(last_place, at + 1)
    return None


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
    units = np.empty(count, dtype=_UNIT)
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
    never_used = bytes(_UNIT.itemsize)  # unit 0
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
            path, dtype=_UNIT, mode="r", offset=HEADER_BYTES + slots * SLOT_BYTES + _UNIT.itemsize, shape=(count,)
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
