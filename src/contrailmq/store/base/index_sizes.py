"""How many slots and units an existing index file was made with.

RocketMQ does not store the two numbers: header (40 bytes), slots (4 bytes each), units (20 bytes each) lie in a file
whose total size alone is known, and a reader with other numbers would look in the wrong places. Here they are found
from the content: a slot count is right when the units that it implies lead back to slots that point at them. The usual
answers (RocketMQ's defaults, and the same 1:4 ratio) are tried first; the search over the rest is only for stores made
with odd sizes and opened without their broker.conf.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.files import Files

_HEADER_BYTES: Final = 40
_SLOT_BYTES: Final = 4
_UNIT_BYTES: Final = 20
_HEADER = struct.Struct(">qqqqii")  # begin time, end time, begin offset, end offset, used slots, next unit number
_UNIT = struct.Struct(">iqii")  # key hash, physical offset, seconds since begin, previous unit
_SLOT = struct.Struct(">i")
_UNITS_CHECKED_MAX: Final = 64  # a wrong slot count survives one unit with odds of about 1 in the slot count


class IndexSizes(NamedTuple):
    slots: int
    units: int


def read_index_sizes(files: Files, directory: Path) -> IndexSizes:
    """From the oldest index file; zeros when there is none."""
    for path in files.list_directory(directory):
        total = files.size(path) if path.name.isdigit() else 0
        if total > _HEADER_BYTES + _SLOT_BYTES + _UNIT_BYTES:
            return _sizes_of(files, path, total)
    return IndexSizes(0, 0)


def _sizes_of(files: Files, path: Path, total: int) -> IndexSizes:
    descriptor = files.open(path, writable=False)
    try:
        mapping = files.map(descriptor, total, writable=False)
    finally:
        files.close(descriptor)
    try:
        payload = total - _HEADER_BYTES
        usual = payload // (_SLOT_BYTES + 4 * _UNIT_BYTES)
        usual -= (usual - payload // _SLOT_BYTES) % 5  # slots = payload / 4 (mod 5), or the units are not whole
        if _fits(mapping, usual, payload):
            return _with_units(usual, payload)
        for slots in range(payload // _SLOT_BYTES % 5 or 5, payload // _SLOT_BYTES, 5):
            if _fits(mapping, slots, payload):
                return _with_units(slots, payload)
    finally:
        files.unmap(mapping)
    return IndexSizes(0, 0)


def _with_units(slots: int, payload: int) -> IndexSizes:
    return IndexSizes(slots, (payload - slots * _SLOT_BYTES) // _UNIT_BYTES)


def _fits(mapping: mmap.mmap, slots: int, payload: int) -> bool:
    """Do the first units of the file lead back to slots, were there `slots` of them?"""
    _, _, _, end_offset, used, count = _HEADER.unpack_from(mapping)
    units = (payload - slots * _SLOT_BYTES) // _UNIT_BYTES
    if slots <= 0 or count > units or used > slots:
        return False
    last_of: dict[int, int] = {}  # by slot: the last unit of its chain so far
    for number in range(1, min(count, _UNITS_CHECKED_MAX)):
        position = _HEADER_BYTES + slots * _SLOT_BYTES + number * _UNIT_BYTES
        key_hash, offset, _, previous = _UNIT.unpack_from(mapping, position)
        slot = key_hash % slots
        if key_hash < 0 or not 0 <= offset <= end_offset or previous != last_of.get(slot, 0):
            return False
        last_of[slot] = number
        (newest,) = _SLOT.unpack_from(mapping, _HEADER_BYTES + slot * _SLOT_BYTES)
        if not number <= newest < count:
            return False
    return True
