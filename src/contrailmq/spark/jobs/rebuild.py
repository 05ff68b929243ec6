"""`rebuild`: consume queues and index of a store from its commit log, in parallel, beside the old ones, then swapped.

1. Every range of the log is read once, by any engine: units go to a fragment file grouped by queue, index entries
   beside them. No shuffle: queues are independent, and fragments are already in log order.
2. Every queue is put together from its runs, byte for byte as a broker writes it: files of one fixed size, sparse, a
   head that starts late filled as RocketMQ fills it. The index is laid out file by file, hash chains computed on
   columns, while the queues are written.
3. What was written is read back. Every run must stand, byte for byte, at the place that the queue offsets of its
   records give, and nothing else may stand in the files: so each record of step 1 has its unit, and each unit its
   record. Only then the new files take the place of the old ones, which stay beside under another name until the caller
   removes them.

A task may run twice, even at the same time: Spark repeats one that it thinks lost or slow, while the first may go on.
So every attempt writes under random names, which its result tells, and what others wrote is lost with the folder.

Power may go at any time: each new file and folder is synced before the swap, and the names that the swap changed before
anything old may be removed.

The store must not run: its lock file is held from the first read to the swap.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.spark.dispatched import Dispatcher
from contrailmq.spark.engine import Engine, Progress
from contrailmq.spark.jobs import swap
from contrailmq.spark.jobs.index_files import ENTRY, IndexShape, write_durably, write_index
from contrailmq.spark.jobs.manifest import sync_folder
from contrailmq.spark.jobs.swap import RebuildError
from contrailmq.spark.log_plan import LogPart, LogSettings, plan_parts, read_records
from contrailmq.spark.queue_units import UNIT_BYTES, queue_files
from contrailmq.spark.records import stable_order
from contrailmq.spark.store_files import confirmed_end, log_files
from contrailmq.store.delay_levels import DELAY_LEVELS

_QUEUE_FILE_BYTES: Final = 6_000_000  # RocketMQ's default: 300,000 units
_DISK_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_PRE_BLANK: Final = np.array([(0, 2147483647, 0)], dtype=_DISK_UNIT).tobytes()
assert _DISK_UNIT.itemsize == UNIT_BYTES


class Run(NamedTuple):
    """Units of one queue with consecutive queue offsets, at a place in a fragment file."""

    topic: str
    queue_id: int
    first: int
    units: int
    fragment: str
    position: int


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """What was rebuilt. `old` are directories that were replaced and still exist."""

    queues: int
    units: int
    index_entries: int
    index_files: int
    log_bytes: int
    gaps: int
    old: tuple[str, ...]


class _Entries(NamedTuple):
    """A fragment file of index entries, and how many it must hold."""

    fragment: str
    number: int


class _ReadWork(NamedTuple):
    part: LogPart
    settings: LogSettings
    folder: str
    levels: str


class _ReadDone(NamedTuple):
    runs: list[Run]
    entries: _Entries


class _QueueWork(NamedTuple):
    runs: list[list[Run]]  # of several queues, each in log order
    folder: str
    file_bytes: int


class _IndexWork(NamedTuple):
    entries: list[_Entries]
    folder: str
    shape: IndexShape


class _Written(NamedTuple):
    """What one attempt wrote into a folder of its own: index files, or queues as `topic/queue id`."""

    folder: str
    index_files: int = 0
    index_entries: int = 0
    gaps: int = 0  # in queue offsets, closed up


def rebuild(
    store: str,
    engine: Engine,
    *,
    levels: str = DELAY_LEVELS,
    queue_file_bytes: int | None = None,
    index_shape: IndexShape | None = None,
    dry_run: bool = False,
    range_bytes: int = LogSettings().range_bytes,
    on_progress: Progress | None = None,
) -> RebuildResult:
    """Rebuild consume queues and index of the store at `store` from its log."""
    settings = LogSettings(check_crc=False, range_bytes=range_bytes)
    with swap.held(store):
        if not dry_run:
            swap.clear_up(store)
        file_bytes = queue_file_bytes or _file_bytes_of(store)
        shape = index_shape or _shape_of(store)
        files = log_files(store)
        if not files:
            raise RebuildError(f"the commit log of {store} is empty: there is nothing to build queues from")
        first, end = files[0].base, confirmed_end(store)
        parts = plan_parts(store, first, end, settings)
        replaced: tuple[str, ...] = ()
        with swap.scratch(store) as folder:
            reads = [_ReadWork(part, settings, folder, levels) for part in parts]
            done = list(engine.run(_read_part, reads, on_progress))
            by_queue: dict[tuple[str, int], list[Run]] = {}
            for piece in done:
                for run in piece.runs:
                    by_queue.setdefault((run.topic, run.queue_id), []).append(run)
            # The index comes first: it is the longest piece of work, and others fill the time beside it.
            index_work = _IndexWork([piece.entries for piece in done], folder, shape)
            queue_work = _grouped(by_queue, folder, file_bytes)
            writes: list[_QueueWork | _IndexWork] = [index_work, *queue_work]
            index, *queues = engine.run(_write, writes)
            entries = sum(piece.entries.number for piece in done)
            if index.index_entries != entries:
                raise RebuildError(
                    f"the new index has {index.index_entries} entries where the log gives {entries}: disk or program "
                    "are at fault; nothing was replaced"
                )
            if not dry_run:
                _gather(folder, index, zip(queue_work, queues, strict=True))
                replaced = swap.swap(store, folder)
        old = () if dry_run else swap.hand_over(store, replaced)
    units = sum(run.units for runs in by_queue.values() for run in runs)
    gaps = sum(written.gaps for written in queues)
    return RebuildResult(len(by_queue), units, entries, index.index_files, end - first, gaps, old)


def _read_part(work: _ReadWork) -> _ReadDone:
    """Units of one range into a fragment file, grouped by queue; index entries into another."""
    name = os.path.join(work.folder, secrets.token_hex(8))
    units_path, entries_path = f"{name}.units", f"{name}.entries"
    dispatcher = Dispatcher(work.levels)
    pieces: dict[tuple[str, int], list[tuple[np.ndarray, np.ndarray]]] = {}
    entry_count = 0
    with open(entries_path, "xb") as index:
        for records in read_records(work.part, work.settings):
            units, entries = dispatcher.dispatch(records)
            packed = np.empty(len(entries.key_hash), dtype=ENTRY)
            packed["key_hash"], packed["physical_offset"] = entries.key_hash, entries.physical_offset
            packed["store_time_ms"] = entries.store_time_ms
            index.write(packed.tobytes())
            entry_count += len(packed)
            rows = np.empty(len(units.queue), dtype=_DISK_UNIT)
            rows["physical_offset"], rows["size"], rows["tags_code"] = (
                units.physical_offset,
                units.size,
                units.tags_code,
            )
            order = stable_order(units.queue)
            bounds = np.searchsorted(units.queue[order], np.arange(len(units.queues) + 1))
            for number, key in enumerate(units.queues):
                chosen = order[bounds[number] : bounds[number + 1]]
                pieces.setdefault(key, []).append((units.queue_offset[chosen], rows[chosen]))
    runs: list[Run] = []
    with open(units_path, "xb") as fragment:
        for (topic, queue_id), parts in pieces.items():
            offsets = np.concatenate([part[0] for part in parts])
            position = fragment.tell()
            # Never joined by NumPy first: concatenate turns big-endian fields into native ones.
            fragment.writelines(part[1].tobytes() for part in parts)
            cuts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
            runs.extend(
                Run(topic, queue_id, int(offsets[a]), b - a, units_path, position + a * UNIT_BYTES)
                for a, b in itertools.pairwise(cuts)
            )
    return _ReadDone(runs, _Entries(entries_path, entry_count))


def _grouped(by_queue: dict[tuple[str, int], list[Run]], folder: str, file_bytes: int) -> list[_QueueWork]:
    """Queues dealt to a few pieces of work of about the same number of units."""
    piles: list[list[list[Run]]] = [[] for _ in range(min(16, max(1, len(by_queue))))]
    weights = [0] * len(piles)
    for runs in sorted(by_queue.values(), key=lambda runs: -sum(run.units for run in runs)):
        lightest = weights.index(min(weights))
        piles[lightest].append(runs)
        weights[lightest] += sum(run.units for run in runs)
    return [_QueueWork(pile, folder, file_bytes) for pile in piles if pile]


def _write(work: _QueueWork | _IndexWork) -> _Written:
    """The index, or queues, which are read back."""
    own = os.path.join(work.folder, secrets.token_hex(8))
    os.mkdir(own)
    if isinstance(work, _IndexWork):
        files, count = write_index(own, map(_read_entries, work.entries), work.shape)
        return _Written(own, index_files=files, index_entries=count)
    gaps = 0
    for runs in work.runs:
        folder = Path(own, runs[0].topic, str(runs[0].queue_id))
        folder.mkdir(parents=True)
        closed = _write_queue(runs, folder, work.file_bytes)
        _read_back(runs, folder, work.file_bytes, has_gaps=closed > 0)
        gaps += closed
    return _Written(own, gaps=gaps)


def _gather(folder: str, index: _Written, queues: Iterable[tuple[_QueueWork, _Written]]) -> None:
    """Move what the tasks wrote together, as it is to stand in the store: `folder/index`, `folder/consumequeue`."""
    os.rename(index.folder, os.path.join(folder, "index"))
    root = Path(folder, "consumequeue")
    root.mkdir()
    for work, written in queues:
        for runs in work.runs:
            topic, queue_id = runs[0].topic, str(runs[0].queue_id)
            Path(root, topic).mkdir(exist_ok=True)
            os.rename(Path(written.folder, topic, queue_id), Path(root, topic, queue_id))
    for made in (*root.iterdir(), root, Path(folder)):
        sync_folder(made)


def _kept(runs: list[Run]) -> Iterator[tuple[Run, int]]:
    """Runs with how many of their first units to leave out, by RocketMQ's rules (ConsumeQueue.putMessagePositionInfo):
    repeats are dropped, a gap closes up."""
    current = runs[0].first
    for run in runs:
        repeated = max(0, current - run.first)
        if repeated < run.units:
            yield run, repeated
            current += run.units - repeated


def _gaps(runs: list[Run]) -> int:
    found, current = 0, runs[0].first
    for run, repeated in _kept(runs):
        found += run.first > current
        current += run.units - repeated
    return found


def _queue_bytes(runs: list[Run], file_bytes: int) -> Iterator[bytes]:
    """What a queue's files hold from the first byte of the first one, piece by piece, without the filler at the end."""
    yield _PRE_BLANK * (runs[0].first * UNIT_BYTES % file_bytes // UNIT_BYTES)
    for run, repeated in _kept(runs):
        yield _run_bytes(run, repeated)


def _run_bytes(run: Run, repeated: int) -> bytes:
    return _fragment_bytes(run.fragment, run.position + repeated * UNIT_BYTES, (run.units - repeated) * UNIT_BYTES)


def _read_entries(entries: _Entries) -> npt.NDArray[np.void]:
    return np.frombuffer(_fragment_bytes(entries.fragment, 0, entries.number * ENTRY.itemsize), dtype=ENTRY)


def _fragment_bytes(path: str, position: int, size_bytes: int) -> bytes:
    """What a task wrote there, all of it: what is too short would be units or entries lost without a word."""
    with open(path, "rb") as fragment:
        fragment.seek(position)
        data = fragment.read(size_bytes)
    if len(data) != size_bytes:
        raise RebuildError(
            f"{path} was cut short: {len(data)} bytes found at {position}, {size_bytes} expected; nothing was "
            "replaced: see that nothing else touches the store's directory and that its disk is sound, then run again"
        )
    return data


def _base(runs: list[Run], file_bytes: int) -> int:
    first_byte = runs[0].first * UNIT_BYTES
    return first_byte - first_byte % file_bytes


def _write_queue(runs: list[Run], folder: Path, file_bytes: int) -> int:
    """One queue into files of one size; gives the number of gaps that were closed up."""
    base, data, held = _base(runs, file_bytes), list[bytes](), 0
    for piece in _queue_bytes(runs, file_bytes):
        data.append(piece)
        held += len(piece)
        if held >= file_bytes:
            joined = b"".join(data)
            whole = len(joined) - len(joined) % file_bytes
            for at in range(0, whole, file_bytes):
                write_durably(folder / f"{base:020d}", [joined[at : at + file_bytes]], file_bytes)
                base += file_bytes
            data, held = [joined[whole:]], len(joined) - whole
    if held:
        write_durably(folder / f"{base:020d}", data, file_bytes)
    sync_folder(folder)
    return _gaps(runs)


def _read_back(runs: list[Run], folder: Path, file_bytes: int, *, has_gaps: bool) -> None:
    """Compare a queue's files with its runs, each at the place of its queue offsets (behind a closed gap: in order)."""
    paths = sorted(folder.iterdir())
    written = b"".join(path.read_bytes() for path in paths)
    base = int(paths[0].name)
    at = runs[0].first * UNIT_BYTES - base
    is_right = len(written) == len(paths) * file_bytes and written[:at] == _PRE_BLANK * (at // UNIT_BYTES)
    for run, repeated in _kept(runs):
        expected = _run_bytes(run, repeated)
        if not has_gaps:
            at = (run.first + repeated) * UNIT_BYTES - base
        is_right = is_right and written[at : at + len(expected)] == expected
        at += len(expected)
    # Compared, not stripped: the empty end of a queue's last file, 6 MB by default, took a 15th of a rebuild of 370 MB.
    if not is_right or written[at:] != bytes(len(written) - at):
        raise RebuildError(
            f"{folder.parent.name}/{folder.name} was read back otherwise than its records say: disk or program are "
            "at fault; nothing was replaced"
        )


def _shape_of(store: str) -> IndexShape:
    shape = IndexShape.of_store(store)
    if shape is None:
        raise RebuildError(
            f"the index files of {store} do not tell how many slots they have (maxHashSlotNum): move its directory "
            f"index away, and one of the usual {IndexShape().slots:,} slots is made"
        )
    return shape


def remove_old(result: RebuildResult) -> None:
    """Delete the directories that a rebuild replaced."""
    swap.remove(result.old)


def _file_bytes_of(store: str) -> int:
    for queue in queue_files(store):
        for path in queue.paths:
            size = os.stat(path).st_size
            if size and size % UNIT_BYTES == 0:
                return size
    return _QUEUE_FILE_BYTES
