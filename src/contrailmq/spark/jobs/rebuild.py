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

The store must not run: its lock file is held from the first read to the swap.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from contrailmq.message import ContrailError
from contrailmq.spark.dispatched import DELAY_LEVELS, Dispatcher
from contrailmq.spark.engine import Engine, Progress
from contrailmq.spark.jobs.index_files import ENTRY, IndexShape, write_index
from contrailmq.spark.log_plan import LogPart, LogSettings, plan_parts, read_records
from contrailmq.spark.queue_units import UNIT_BYTES, queue_files
from contrailmq.spark.records import stable_order
from contrailmq.spark.store_files import confirmed_end, log_files

_QUEUE_FILE_BYTES: Final = 6_000_000  # RocketMQ's default: 300,000 units
_DISK_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_PRE_BLANK: Final = np.array([(0, 2147483647, 0)], dtype=_DISK_UNIT).tobytes()
assert _DISK_UNIT.itemsize == UNIT_BYTES


class RebuildError(ContrailError):
    """Queues or index could not be rebuilt; the store is as it was."""


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


class _ReadWork(NamedTuple):
    part: LogPart
    settings: LogSettings
    fragment: str
    levels: str


class _ReadDone(NamedTuple):
    runs: list[Run]
    entries: int


class _WriteWork(NamedTuple):
    runs: list[list[Run]]  # of several queues, each in log order
    root: str
    file_bytes: int


class _IndexWork(NamedTuple):
    folder: str
    fragments: list[str]
    shape: IndexShape


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
    with ExitStack() as held:
        held.enter_context(_held(store))
        if not dry_run:
            _clear_up(store)
        file_bytes = queue_file_bytes or _file_bytes_of(store)
        shape = index_shape or _shape_of(store)
        folder = held.enter_context(tempfile.TemporaryDirectory(dir=store, prefix="rebuild-"))
        files = log_files(store)
        if not files:
            raise RebuildError(f"the commit log of {store} is empty: there is nothing to build queues from")
        first, end = files[0].base, confirmed_end(store)
        parts = plan_parts(store, first, end, settings)
        work = [_ReadWork(part, settings, f"{folder}/{number:08d}", levels) for number, part in enumerate(parts)]
        done = list(engine.run(_read_part, work, on_progress))
        by_queue: dict[tuple[str, int], list[Run]] = {}
        for piece in done:
            for run in piece.runs:
                by_queue.setdefault((run.topic, run.queue_id), []).append(run)
        queues = f"{folder}/consumequeue"
        os.mkdir(queues)
        index = _IndexWork(f"{folder}/index", [f"{item.fragment}.index" for item in work], shape)
        # The index comes first: it is the longest piece of work, and others fill the time beside it.
        writes: list[_WriteWork | _IndexWork] = [index, *_grouped(by_queue, queues, file_bytes)]
        index_files, *gaps_closed = engine.run(_write, writes)
        gaps = sum(gaps_closed)
        old = () if dry_run else _swap(store, folder)
    units = sum(run.units for runs in by_queue.values() for run in runs)
    entries = sum(piece.entries for piece in done)
    return RebuildResult(len(by_queue), units, entries, index_files, end - first, gaps, old)


def _read_part(work: _ReadWork) -> _ReadDone:
    """Units of one range into a fragment file, grouped by queue; index entries beside it."""
    dispatcher = Dispatcher(work.levels)
    pieces: dict[tuple[str, int], list[tuple[np.ndarray, np.ndarray]]] = {}
    entry_count = 0
    with open(f"{work.fragment}.index", "wb") as index:
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
    with open(work.fragment, "wb") as fragment:
        for (topic, queue_id), parts in pieces.items():
            offsets = np.concatenate([part[0] for part in parts])
            position = fragment.tell()
            # Never joined by NumPy first: concatenate turns big-endian fields into native ones.
            fragment.writelines(part[1].tobytes() for part in parts)
            cuts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
            runs.extend(
                Run(topic, queue_id, int(offsets[a]), b - a, work.fragment, position + a * UNIT_BYTES)
                for a, b in itertools.pairwise(cuts)
            )
    return _ReadDone(runs, entry_count)


def _grouped(by_queue: dict[tuple[str, int], list[Run]], root: str, file_bytes: int) -> list[_WriteWork]:
    """Queues dealt to a few pieces of work of about the same number of units."""
    piles: list[list[list[Run]]] = [[] for _ in range(min(16, max(1, len(by_queue))))]
    weights = [0] * len(piles)
    for runs in sorted(by_queue.values(), key=lambda runs: -sum(run.units for run in runs)):
        lightest = weights.index(min(weights))
        piles[lightest].append(runs)
        weights[lightest] += sum(run.units for run in runs)
    return [_WriteWork(pile, root, file_bytes) for pile in piles if pile]


def _write(work: _WriteWork | _IndexWork) -> int:
    """The index: gives its files. Or queues, read back: gives the gaps in queue offsets that were closed up."""
    if isinstance(work, _IndexWork):
        return write_index(work.folder, work.fragments, work.shape)
    gaps = 0
    for runs in work.runs:
        folder = Path(work.root, runs[0].topic, str(runs[0].queue_id))
        folder.mkdir(parents=True)
        closed = _write_queue(runs, folder, work.file_bytes)
        _read_back(runs, folder, work.file_bytes, has_gaps=closed > 0)
        gaps += closed
    return gaps


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
    with open(run.fragment, "rb") as fragment:
        fragment.seek(run.position + repeated * UNIT_BYTES)
        return fragment.read((run.units - repeated) * UNIT_BYTES)


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
                (folder / f"{base:020d}").write_bytes(joined[at : at + file_bytes])
                base += file_bytes
            data, held = [joined[whole:]], len(joined) - whole
    if held:
        with open(folder / f"{base:020d}", "wb") as file:
            file.write(b"".join(data))
            file.truncate(file_bytes)
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


@contextmanager
def _held(store: str) -> Iterator[None]:
    """The store's own lock (a POSIX record lock on byte 0, as RocketMQ takes it): a running broker refuses it."""
    with open(os.path.join(store, "lock"), "a+b") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise RebuildError(f"{store} is in use by a running broker or store: stop it first") from None
        yield


def is_in_use(store: str) -> bool:
    """Whether another process holds the store. Not for a process that has it open: asking would let go of its lock."""
    if not os.path.exists(os.path.join(store, "lock")):
        return False
    try:
        with _held(store):
            return False
    except RebuildError:
        return True


def _swap(store: str, folder: str) -> tuple[str, ...]:
    """Put the new directories in place of the old; the old ones keep a name that says what they are."""
    replaced = []
    for name in ("consumequeue", "index"):
        target, new = os.path.join(store, name), os.path.join(folder, name)
        if os.path.exists(target):
            old = tempfile.mkdtemp(dir=store, prefix=f"{name}.before-rebuild-")
            os.rename(target, os.path.join(old, name))
            replaced.append(old)
        os.rename(new, target)
    return tuple(replaced)


def _shape_of(store: str) -> IndexShape:
    shape = IndexShape.of_store(store)
    if shape is None:
        raise RebuildError(
            f"the index files of {store} do not tell how many slots they have (maxHashSlotNum): move its directory "
            f"index away, and one of the usual {IndexShape().slots:,} slots is made"
        )
    return shape


def _clear_up(store: str) -> None:
    """Undo what a killed rebuild left half done: files it was making, a directory taken away and not yet replaced."""
    for folder in Path(store).glob("rebuild-*"):
        shutil.rmtree(folder)
    for name in ("consumequeue", "index"):
        for old in Path(store).glob(f"{name}.before-rebuild-*/{name}"):
            if not Path(store, name).exists():
                old.rename(Path(store, name))
                old.parent.rmdir()


def remove_old(result: RebuildResult) -> None:
    """Delete the directories that a rebuild replaced."""
    for folder in result.old:
        shutil.rmtree(folder)


def _file_bytes_of(store: str) -> int:
    for queue in queue_files(store):
        for path in queue.paths:
            size = os.stat(path).st_size
            if size and size % UNIT_BYTES == 0:
                return size
    return _QUEUE_FILE_BYTES
