"""A store directory seen from outside: its log files, how far they may be read, and how to cut them into ranges.

**How far.** A live or crashed store holds unwritten space, and after a recovery by RocketMQ also stale bytes behind the
end that look like good records. So a reader may neither stop at the first thing it does not understand (damage would
hide everything behind it) nor read on from there (stale records would rise again). The confirmed end settles it:

1. Everything below the highest end that any consume queue points to was once a whole record. What is not one today is
   damage, and is reported; so are bytes that no file holds, be a file gone or cut short. Whoever passes over damage
   believes only units that point to a whole record: one that is wrong must not place the end where nothing is yet.
2. From there the chain is followed as far as records are whole, CRC included. What follows is not part of the log.

Without consume queues rule 2 starts at the last log file that begins with a record, as a broker's recovery does.
"""

from __future__ import annotations

import glob
import os
import socket
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.message import ContrailError
from contrailmq.spark.records import Int, Records
from contrailmq.spark.scan import BadStretch, Range, scan
from contrailmq.store.record import BLANK_MAGIC

RANGE_BYTES: Final = 64 * 1024 * 1024  # of log per task
UNIT_BYTES: Final = 20
_UNITS_TO_BELIEVE: Final = 16  # at a queue's end: as many may point to damage before the queue tells nothing
_UNITS_FOR_A_SEARCH: Final = 500  # that are read in the time of a bisection
_UNIT: Final = struct.Struct(">qiq")  # physical offset, size, tags code
_PRE_BLANK_SIZE: Final = 2147483647  # RocketMQ fills the head of a queue that starts late with such units
assert _UNIT.size == UNIT_BYTES


class StoreFilesError(ContrailError):
    """A directory is not a store that this host can read."""


class LogFile(NamedTuple):
    """One commit-log file: the physical offset of its first byte, and its size."""

    path: str
    base: int
    size_bytes: int


class QueueFiles(NamedTuple):
    """The files of one consume queue, in order."""

    topic: str
    queue_id: int
    paths: tuple[str, ...]


def find_stores(pattern: str) -> list[str]:
    """Store directories behind a comma list of paths and globs, each once; each must hold a commit log."""
    found: list[str] = []
    for text in pattern.split(","):
        matches = sorted(glob.glob(text.strip())) if glob.has_magic(text) else [text.strip()]
        if not matches:
            raise StoreFilesError(f"nothing matches {text.strip()!r} on host {socket.gethostname()}")
        found.extend(_root_of(os.path.abspath(match)) for match in matches)
    for store in found:
        log_files(store)
    return list({store_identity(store): store for store in reversed(found)}.values())[::-1]


def store_identity(store: str) -> str:
    """The same for every name that a store has on this host: links, and its commitlog directory."""
    return os.path.realpath(_root_of(store))


def _root_of(path: str) -> str:
    """The store whose commit log a path is, or the path itself."""
    root, name = os.path.split(os.path.realpath(path))
    if name != "commitlog" or os.path.isdir(os.path.join(path, "commitlog")):
        return path
    parent = os.path.dirname(path)
    return parent if os.path.realpath(parent) == root else root


def log_files(store: str) -> list[LogFile]:
    """The commit-log files of a store (or of a commitlog directory itself) in order, empty ones left out."""
    folder, files = store, list[LogFile]()
    try:
        folder = _log_folder(store)
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and entry.name.isdecimal())
        for name in names:
            path = os.path.join(folder, name)
            size_bytes = os.stat(path).st_size
            if size_bytes:
                files.append(LogFile(path, int(name), size_bytes))
    except OSError as exc:
        raise StoreFilesError(
            f"host {socket.gethostname()} cannot read {folder}: {exc.strerror}; every executor needs the store's path"
        ) from exc
    return files


def _log_folder(store: str) -> str:
    folder = os.path.join(store, "commitlog")
    if os.path.isdir(folder):
        return folder
    if os.path.isdir(store) and any(name.isdecimal() and len(name) == 20 for name in os.listdir(store)):
        return store
    state = "has no commitlog directory" if os.path.isdir(store) else "is not a directory"
    raise StoreFilesError(f"{store} {state} on host {socket.gethostname()}: give the root directory of a store")


def queue_files(store: str, topics: Iterable[str] | None = None) -> list[QueueFiles]:
    """Every consume queue of a store, or those of the named topics."""
    return queue_files_under(os.path.join(store, "consumequeue"), topics)


def queue_files_under(folder: str, topics: Iterable[str] | None = None) -> list[QueueFiles]:
    """Every consume queue below a directory, by topic and queue id."""
    wanted = None if topics is None else set(topics)
    found: list[QueueFiles] = []
    for queue in _queue_folders_under(folder, wanted):
        paths = sorted(str(path) for path in queue.iterdir() if path.name.isdecimal())
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
    root = Path(folder)
    for topic in root.iterdir() if root.is_dir() else ():
        if (topics is None or topic.name in topics) and topic.is_dir():
            yield from (queue for queue in topic.iterdir() if queue.name.isdecimal() and queue.is_dir())


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
    for path in queue.paths:
        base = _first_offset_of(path)
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
    """Queue offsets of the units that point between two physical offsets: they are in the order of the log."""
    first, last = _first_units_at(queue, [start, stop])
    return first, last


def _first_units_at(queue: QueueFiles, places: Sequence[int]) -> list[int]:
    """For each place of the log the first queue offset whose unit points at or beyond it; the queue's end if none does.

    Found by bisection, some fifteen small reads for a place, unless the queue is short: then all units are read once.
    """
    end = _end_of_queue(queue)
    if queue.paths and end - _first_offset_of(queue.paths[0]) > _UNITS_FOR_A_SEARCH * len(places):
        return [min(_first_unit_at(queue, place), end) for place in places]
    physical_offset, _, queue_offset = read_places(queue, 0, end)
    found: list[int] = np.append(queue_offset, end)[np.searchsorted(physical_offset, places)].tolist()
    return found


def _first_unit_at(queue: QueueFiles, physical_offset: int) -> int:
    """The first queue offset whose unit points at or beyond a place (or is unwritten): in the last file that begins
    before it, or behind."""
    begun = bisect_left(queue.paths, True, key=lambda path: not _units_before(path, physical_offset, units_max=1))
    if not begun:
        return _first_offset_of(queue.paths[0])
    path = queue.paths[begun - 1]
    return _first_offset_of(path) + _units_before(path, physical_offset)


def _units_before(path: str, physical_offset: int, *, units_max: int | None = None) -> int:
    """How many of a file's first units point before a place, or before everything."""
    with open(path, "rb", buffering=0) as file:
        low, high = 0, os.fstat(file.fileno()).st_size // UNIT_BYTES
        high = high if units_max is None else min(high, units_max)
        while low < high:
            middle = (low + high) // 2
            place, size_bytes, _ = _unit_at(file.fileno(), middle)
            if size_bytes > 0 and (place < physical_offset or size_bytes == _PRE_BLANK_SIZE):
                low = middle + 1
            else:
                high = middle
    return low


def _first_offset_of(path: str) -> int:
    return int(os.path.basename(path)) // UNIT_BYTES


def _end_of_units(path: str) -> int:
    """The queue offset behind the last unit of a file."""
    with open(path, "rb", buffering=0) as file:
        low, high = 0, os.fstat(file.fileno()).st_size // UNIT_BYTES
        while low < high:  # units fill a file from its start: find the first that is not one
            middle = (low + high) // 2
            if _unit_at(file.fileno(), middle)[1] > 0:
                low = middle + 1
            else:
                high = middle
    return _first_offset_of(path) + low


def _end_of_queue(queue: QueueFiles) -> int:
    """The queue offset behind the last unit: of the last file that has one."""
    for path in reversed(queue.paths):
        end = _end_of_units(path)
        if end > _first_offset_of(path):
            return end
    return 0


def queue_end(queue: QueueFiles) -> int:
    """The end of the newest record that a queue points to, or 0."""
    for path in reversed(queue.paths):
        count = _end_of_units(path) - _first_offset_of(path)
        if count:
            with open(path, "rb", buffering=0) as file:
                physical_offset, size_bytes, _ = _unit_at(file.fileno(), count - 1)
            return 0 if size_bytes == _PRE_BLANK_SIZE else physical_offset + size_bytes
    return 0


def _unit_at(descriptor: int, index: int) -> tuple[int, int, int]:
    physical_offset, size_bytes, tags_code = _UNIT.unpack(os.pread(descriptor, UNIT_BYTES, index * UNIT_BYTES))
    return physical_offset, size_bytes, tags_code


def confirmed_end(store: str, *, known_end: int = 0, skips_damage: bool = False) -> int:
    """The physical offset up to which the log may be read. `known_end` is an end found earlier, from which to go on.

    For a reader that `skips_damage` it is the end of a whole record.
    """
    files = log_files(store)
    if not files:
        return known_end
    reached = _follow_whole(files, known_end) if known_end else 0
    if known_end and _is_unwritten(files, reached):
        return max(known_end, reached)
    # At the first look, and wherever the chain breaks at something: only the queues tell whether it goes on behind.
    dispatched = max(reached, _whole_end(store, files) if skips_damage else dispatched_end(store))
    if dispatched == 0:
        file = next((file for file in reversed(files) if first_record(file) is not None), files[0])
        return _follow_whole(files, file.base)
    return max(dispatched, _follow_whole(files, dispatched))


def dispatched_end(store: str) -> int:
    """The highest end that any consume queue points to, or 0."""
    return max(map(queue_end, queue_files(store)), default=0)


def _whole_end(store: str, files: list[LogFile]) -> int:
    """The highest end of a whole record among those that the last units of the queues point to, or 0."""
    newest = [place for queue in queue_files(store) for place in _last_places(queue)]
    for physical_offset, size_bytes in sorted(newest, reverse=True):
        for file in files:
            if file.base <= physical_offset < file.base + file.size_bytes:
                limit = min(physical_offset + size_bytes, file.base + file.size_bytes)
                place = Range(file.path, file.base, physical_offset, limit, limit, is_aligned=True)
                item = next(iter(scan(place, check_crc=True, ends_at_break=True)), None)
                if isinstance(item, Records) and int(item.size[0]) == size_bytes:
                    return limit
    return 0


def _last_places(queue: QueueFiles) -> list[tuple[int, int]]:
    """Where the last units of a queue point to, and the sizes that they state."""
    end = _end_of_queue(queue)
    physical_offset, size, _ = read_places(queue, max(0, end - _UNITS_TO_BELIEVE), end)
    return list(zip(physical_offset.tolist(), size.tolist(), strict=True))


def first_record(file: LogFile) -> Records | None:
    """The header of the file's first record, None when the file does not begin with one."""
    limit = file.base + file.size_bytes
    part = Range(file.path, file.base, file.base, file.base + 1, limit, is_aligned=True)
    item = next(iter(scan(part, check_crc=False, ends_at_break=True)), None)
    return item if isinstance(item, Records) else None


def _is_blank(file: LogFile) -> bool:
    """Whether the file holds nothing but filler: RocketMQ leaves such a file behind a message too large for one."""
    with open(file.path, "rb") as opened:
        return opened.read(8)[4:] == BLANK_MAGIC.to_bytes(4, "big", signed=True)


def _follow_whole(files: list[LogFile], position: int) -> int:
    """Where the chain of whole records that passes `position` ends; a file's filler leads to the next file."""
    for file in files:
        end = file.base + file.size_bytes
        if end <= position:
            continue
        if position < file.base:
            if _is_blank(file):
                continue
            if first_record(file) is None:
                return position
            position = file.base
        rest = Range(file.path, file.base, position, end, end, is_aligned=True)
        for item in scan(rest, check_crc=True, ends_at_break=True):
            if isinstance(item, BadStretch):
                return item.start
            position = file.base + int(item.position[-1] + item.size[-1])
    return position


def _is_unwritten(files: list[LogFile], position: int) -> bool:
    """Whether nothing stands where a chain of records ends, as at the end of a live log."""
    for file in files:
        if position < file.base + file.size_bytes:
            with open(file.path, "rb") as opened:
                opened.seek(max(0, position - file.base))
                head = opened.read(8)
            if head[4:] != BLANK_MAGIC.to_bytes(4, "big", signed=True):
                return not any(head)
    return True


def plan_ranges(store: str, start: int, stop: int, *, range_bytes: int = RANGE_BYTES) -> list[Range]:
    """Cut the log between two physical offsets, both the beginning of a record, into ranges of about equal size.

    Together they cover all of it: what no file holds is a range of its own.
    """
    ranges: list[Range] = []
    folder, reached = _log_folder(store), start
    for file in log_files(store):
        low, high = max(start, file.base), min(stop, file.base + file.size_bytes)
        if low >= high:
            continue
        if reached < low:
            ranges.append(_missing(folder, reached, low))
        reached = high
        count = max(1, round((high - low) / range_bytes))
        cuts = [low + (high - low) * index // count for index in range(count)] + [high]
        ranges.extend(
            Range(file.path, file.base, cuts[index], cuts[index + 1], limit=high, is_aligned=index == 0)
            for index in range(count)
        )
    if reached < stop:
        ranges.append(_missing(folder, reached, stop))
    return ranges


def _missing(folder: str, start: int, stop: int) -> Range:
    return Range(folder, start, start, stop, stop, is_aligned=True, is_missing=True)


def record_at_or_after(store: str, position: int, end: int) -> int:
    """The first record that begins at or after a physical offset, or `end`."""
    for file in log_files(store):
        stop = min(end, file.base + file.size_bytes)
        low = max(position, file.base)
        if low >= stop:
            continue
        if low == file.base:
            return low
        part = Range(file.path, file.base, low, stop, stop, is_aligned=False)
        item = next(iter(scan(part, check_crc=False, block_rows=1)), None)
        if isinstance(item, Records):
            return file.base + int(item.position[0])
    return end
