"""The consume queues of a store seen from outside: their files, the units in them, and where in the log these point.

A running broker deletes files, and queues with their topics, while they are looked at. What is gone when it is listed
is left out. To read units of a file that is gone since raises FileNotFoundError: only callers know what that means.
"""

from __future__ import annotations

import contextlib
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.spark.decoding.records import Int

UNIT_BYTES: Final = 20
_UNITS_TO_BELIEVE: Final = 16  # at a queue's end: as many may point to damage before the queue tells nothing
_UNITS_FOR_A_SEARCH: Final = 1000  # that are read in the time of two bisections
_UNIT: Final = struct.Struct(">qiq")  # physical offset, size, tags code
# RocketMQ fills the head of a queue that starts late with such units, `store repair` places of lost messages.
_PRE_BLANK_SIZE: Final = 2147483647
PRE_BLANK_BYTES: Final = _UNIT.pack(0, _PRE_BLANK_SIZE, 0)
_BLANKS_READ: Final = 4096  # units at once, where one looks for the end of such a stretch
assert _UNIT.size == UNIT_BYTES


class QueueFiles(NamedTuple):
    """The files of one consume queue, in order."""

    topic: str
    queue_id: int
    paths: tuple[str, ...]


def queue_files(store: str, topics: Iterable[str] | None = None) -> list[QueueFiles]:
    """Every consume queue of a store, or those of the named topics."""
    return queue_files_under(os.path.join(store, "consumequeue"), topics)


def queue_files_under(folder: str, topics: Iterable[str] | None = None) -> list[QueueFiles]:
    """Every consume queue below a directory, by topic and queue id."""
    wanted = None if topics is None else set(topics)
    found: list[QueueFiles] = []
    for queue in _queue_folders_under(folder, wanted):
        paths = sorted(str(path) for path in _inside(queue) if path.name.isdecimal())
        found.append(QueueFiles(queue.parent.name, int(queue.name), tuple(paths)))
    return sorted(found)


def all_queues(store: str) -> set[tuple[str, int]]:
    """(topic, queue id) of every queue of a store, those of inner batches (queue.type=BatchCQ) too."""
    return {
        (queue.parent.name, int(queue.name))
        for kind in ("consumequeue", "batchconsumequeue")
        for queue in _queue_folders_under(os.path.join(store, kind), None)
    }


def queue_folders(store: str) -> Iterator[Path]:
    """The directory of every consume queue of a store."""
    return _queue_folders_under(os.path.join(store, "consumequeue"), None)


def _queue_folders_under(folder: str, topics: set[str] | None) -> Iterator[Path]:
    for topic in _inside(Path(folder)):
        if topics is None or topic.name in topics:
            yield from (queue for queue in _inside(topic) if queue.name.isdecimal() and queue.is_dir())


def _inside(folder: Path) -> list[Path]:
    """What is in a directory; nothing where there is none, or none any more."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_units(queue: QueueFiles, first: int = 0, stop: int = 2**63 - 1) -> Units:
    """The valid units of a queue between two queue offsets as a structured array."""
    parts = []
    for begin, raw in _raw_units(queue, first, stop):
        units = np.empty(len(raw), dtype=UNIT)
        for name in ("physical_offset", "size", "tags_code"):
            units[name] = raw[name]
        units["queue_offset"] = np.arange(begin, begin + len(raw))
        parts.append(units[units["size"] != _PRE_BLANK_SIZE])
    return np.concatenate(parts) if parts else np.empty(0, dtype=UNIT)


def read_places(queue: QueueFiles, first: int, stop: int) -> tuple[Int, Int, Int]:
    """Physical offset, size and queue offset of the valid units: half of the time of `read_units`."""
    pieces: list[tuple[Int, Int, Int]] = []
    for begin, raw in _raw_units(queue, first, stop):
        size, queue_offset = raw["size"].astype(np.int64), np.arange(begin, begin + len(raw), dtype=np.int64)
        found = (raw["physical_offset"].astype(np.int64), size, queue_offset)
        is_blank = size == _PRE_BLANK_SIZE
        pieces.append((found[0][~is_blank], found[1][~is_blank], found[2][~is_blank]) if is_blank.any() else found)
    return _joined(pieces)


def _joined(pieces: Sequence[tuple[Int, Int, Int]]) -> tuple[Int, Int, Int]:
    """Three columns each, one piece after the other."""
    if len(pieces) == 1:
        return pieces[0]
    empty = np.empty(0, np.int64)
    first, second, third = (np.concatenate([empty, *(piece[at] for piece in pieces)]) for at in range(3))
    return first, second, third


def _raw_units(queue: QueueFiles, first: int, stop: int) -> Iterator[tuple[int, Units]]:
    """Units as they are on disk, and the queue offset of the first of them, file by file."""
    bases = [*map(_first_offset_of, queue.paths), stop]
    for path, base, next_base in zip(queue.paths, bases, bases[1:], strict=False):
        if next_base <= first:
            continue  # without a look: it may be deleted by now
        low = max(0, first - base)
        count = min(stop - base, os.stat(path).st_size // UNIT_BYTES) - low
        if count <= 0:
            continue
        raw = np.fromfile(path, dtype=_RAW_UNIT, count=count, offset=low * UNIT_BYTES)
        valid = (raw["size"] > 0) & (raw["physical_offset"] >= 0)
        yield base + low, raw if valid.all() else raw[: int(np.argmin(valid))]


_RAW_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
Units = npt.NDArray[np.void]
UNIT: Final = np.dtype([("physical_offset", "i8"), ("size", "i8"), ("tags_code", "i8"), ("queue_offset", "i8")])


def units_between(queue: QueueFiles, start: int, stop: int) -> tuple[int, int]:
    """Queue offsets of the units that point between two physical offsets: they are in the order of the log.

    Found by bisection, some twenty small reads for a place, unless the queue is short: then all units are read once.
    """
    end = _end_of_queue(queue)
    if queue.paths and end - _first_offset_of(queue.paths[0]) > _UNITS_FOR_A_SEARCH:
        return min(_first_unit_at(queue, start), end), min(_first_unit_at(queue, stop), end)
    physical_offset, _, queue_offset = read_places(queue, 0, end)
    first, last = np.append(queue_offset, end)[np.searchsorted(physical_offset, (start, stop))].tolist()
    return first, last


def _first_unit_at(queue: QueueFiles, physical_offset: int) -> int:
    """The first queue offset whose unit points at or beyond a place (or is unwritten): in the last file that begins
    before it, or behind."""
    begun = bisect_left(range(len(queue.paths)), True, key=lambda at: not _begins_before(queue, at, physical_offset))
    if not begun:
        return _first_offset_of(queue.paths[0])
    path = queue.paths[begun - 1]
    return _first_offset_of(path) + _units_before(path, physical_offset)


def _begins_before(queue: QueueFiles, at: int, physical_offset: int) -> bool:
    """Whether a file's first unit points before a place: the first that points anywhere, in this file or a later."""
    for path in queue.paths[at:]:
        with open(path, "rb", buffering=0) as file:
            place = _first_place(file.fileno(), 0, os.fstat(file.fileno()).st_size // UNIT_BYTES)[1]
        if place is not None:
            return place < physical_offset
    return False


def _units_before(path: str, physical_offset: int) -> int:
    """How many of a file's first units point before a place. Empty ones count like the unit after them."""
    with open(path, "rb", buffering=0) as file:
        low, high = 0, os.fstat(file.fileno()).st_size // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            at, place = _first_place(file.fileno(), middle, high)
            if place is not None and place < physical_offset:
                low = at + 1
            else:
                high = middle
    return low


def _first_place(descriptor: int, first: int, stop: int) -> tuple[int, int | None]:
    """The first unit of a range of a file that is not empty, and where it points: None for none or an unwritten one."""
    units_read = 1  # nearly always it is this one
    while first < stop:
        data = os.pread(descriptor, min(stop - first, units_read) * UNIT_BYTES, first * UNIT_BYTES)
        for place, size_bytes, _ in _UNIT.iter_unpack(data):
            if size_bytes != _PRE_BLANK_SIZE:
                return first, place if size_bytes > 0 else None
            first += 1
        units_read = _BLANKS_READ
    return first, None


def _first_offset_of(path: str) -> int:
    return int(os.path.basename(path)) // UNIT_BYTES


def _end_of_units(path: str) -> int:
    """The queue offset after the last unit of a file."""
    with open(path, "rb", buffering=0) as file:
        low, high = 0, os.fstat(file.fileno()).st_size // UNIT_BYTES
        while low < high:  # units fill a file from its start: find the first that is not one
            middle = (low + high) // 2
            if _UNIT.unpack(os.pread(file.fileno(), UNIT_BYTES, middle * UNIT_BYTES))[1] > 0:
                low = middle + 1
            else:
                high = middle
    return _first_offset_of(path) + low


def _end_of_queue(queue: QueueFiles) -> int:
    """The queue offset after the last unit of the last file that has one."""
    for path in reversed(queue.paths):
        end = _end_of_units(path)
        if end > _first_offset_of(path):
            return end
    return 0


def queue_end(queue: QueueFiles) -> int:
    """The end of the newest record that a queue points to, or 0."""
    for path in reversed(queue.paths):
        first, stop = _first_offset_of(path), _end_of_units(path)
        while first < stop:  # from the end: a message that is gone leaves an empty unit
            begin = max(first, stop - _UNITS_TO_BELIEVE)
            physical_offset, size, _ = read_places(queue, begin, stop)
            if len(size):
                return int(physical_offset[-1] + size[-1])
            stop = begin
    return 0


def queue_max(queue: QueueFiles) -> int:
    """The offset that a queue's next message gets, as far as its files tell."""
    return _end_of_queue(queue)


def dispatched_end(store: str) -> int:
    """The highest end that any consume queue points to, or 0. A queue that is being deleted tells nothing."""
    highest = 0
    for queue in queue_files(store):
        with contextlib.suppress(FileNotFoundError):
            highest = max(highest, queue_end(queue))
    return highest


def last_places(queue: QueueFiles) -> list[tuple[int, int]]:
    """Where the last units of a queue point to, and the sizes that they state. One that is being deleted has none."""
    try:
        end = _end_of_queue(queue)
        physical_offset, size, _ = read_places(queue, max(0, end - _UNITS_TO_BELIEVE), end)
    except FileNotFoundError:
        return []
    return list(zip(physical_offset.tolist(), size.tolist(), strict=True))
