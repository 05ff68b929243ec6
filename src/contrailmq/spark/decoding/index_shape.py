"""The shape of a store's index files, and where they are; jobs/index_files.py writes and compares them.

    file   := header:40  slot:i32 * slots  unit * units
    header := begin_time:i64 end_time:i64 begin_physical:i64 end_physical:i64 used_slots:i32 next_unit:i32
    unit   := key_hash:i32 physical_offset:i64 seconds_since_begin:i32 previous_unit:i32     (20 bytes)

A slot holds the number of its newest unit, a unit the number of the one before it in the same slot. Unit 0 is never
used. Slots and units are settings of the broker that no file states.
"""

from __future__ import annotations

import os
import socket
import struct
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from contrailmq.spark.decoding.store_files import StoreFilesError
from contrailmq.spark.runtime.disk_errors import cause, remedy

HEADER: Final = struct.Struct(">qqqqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
SLOT: Final = struct.Struct(">i")
INDEX_ENTRY: Final = struct.Struct(">iqii")
_PLACE: Final = struct.Struct(">q")
INDEX_UNIT: Final = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert HEADER.size == HEADER_BYTES
assert INDEX_UNIT.itemsize == INDEX_ENTRY.size == 20


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
            slots, rest = divmod(path.stat().st_size - HEADER_BYTES, SLOT_BYTES + 4 * INDEX_UNIT.itemsize)
            if rest == 0 and slots > 0:
                return cls(slots, 4 * slots)
        return None if paths else cls()

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.slots * SLOT_BYTES + self.units * INDEX_UNIT.itemsize


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
        slots, rest = divmod(at - 4 - HEADER_BYTES - count * INDEX_UNIT.itemsize, SLOT_BYTES)
        units, uneven = divmod(size - HEADER_BYTES - slots * SLOT_BYTES, INDEX_UNIT.itemsize)
        if not rest and not uneven and slots > 0 and units > count:
            head = HEADER_BYTES + slots * SLOT_BYTES + INDEX_UNIT.itemsize
            (first_place,) = _PLACE.unpack_from(data, head + 4)
            (last_hash,) = SLOT.unpack_from(data, at - 4)
            (newest,) = SLOT.unpack_from(data, HEADER_BYTES + last_hash % slots * SLOT_BYTES)
            if first_place == begin and newest == count:
                return IndexShape(slots, units)
        at = data.find(last_place, at + 1)
    return None
