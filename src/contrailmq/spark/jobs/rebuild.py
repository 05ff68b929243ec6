"""`rebuild`: consume queues and index of a store from its commit log, in parallel, beside the old ones, then swapped.

1. Each range of the log is read once. Units go to a fragment file grouped by queue, index entries beside them.
2. Each queue is built from its fragments by the rules of `store rebuild` (store/recovery/reconcile.py), byte for byte
   as a broker writes it, so every message keeps its queue offset. An empty queue keeps its count.
3. The result is read back: every unit must match its record, and nothing else may be in the files. Then the new files
   replace the old ones, which stay under another name until the caller removes them.

Spark may run a task twice at once, so each attempt writes under random names. Every new file and folder is synced
before the swap, and the changed names before anything old is removed. The store's lock file is held throughout.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.message.record import RECORD_BYTES_MIN
from contrailmq.spark.decoding.dispatched import Dispatcher
from contrailmq.spark.decoding.due_units import DueUnits, batch_topics, due_units, pre_blank
from contrailmq.spark.decoding.index_shape import IndexShape
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_records
from contrailmq.spark.decoding.queue_units import UNIT_BYTES, queue_files, queue_max
from contrailmq.spark.decoding.records import Int, Mask, stable_order
from contrailmq.spark.decoding.store_files import confirmed_end, delay_levels, log_files
from contrailmq.spark.jobs import swap
from contrailmq.spark.jobs.index_files import ENTRY, write_durably, write_index
from contrailmq.spark.jobs.manifest import sync_folder
from contrailmq.spark.jobs.swap import RebuildError
from contrailmq.spark.runtime.engine import Engine, Progress
from contrailmq.store.queues.light_queues import LIGHT_PREFIX

_QUEUE_FILE_BYTES: Final = 6_000_000  # RocketMQ's default: 300,000 units
_DISK_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_FAR: Final = 2**62  # after the end of every log
_BLANKS_AT_ONCE: Final = 50_000  # empty units: 1 MB
assert _DISK_UNIT.itemsize == UNIT_BYTES


class Run(NamedTuple):
    """Units of one queue with consecutive queue offsets, at a place in a fragment file; those that are lost are empty.

    The first record begins at `log_begin`, the last one ends at `log_end`.
    """

    topic: str
    queue_id: int
    first: int
    units: int
    fragment: str
    position: int
    log_begin: int
    log_end: int
    is_lost: bool


class _Placed(NamedTuple):
    """A run without its first units, which others have the offsets of, and how many offsets before it nobody has."""

    run: Run
    repeated: int
    gap: int


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
    batches: frozenset[str]  # topics whose queues are of another kind


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
    units: int = 0
    gaps: int = 0  # in queue offsets, filled with empty units


def rebuild(
    store: str,
    engine: Engine,
    *,
    levels: str | None = None,
    queue_file_bytes: int | None = None,
    index_shape: IndexShape | None = None,
    dry_run: bool = False,
    range_bytes: int = LogSettings().range_bytes,
    on_progress: Progress | None = None,
) -> RebuildResult:
    """Rebuild consume queues and index of the store at `store` from its log.

    `levels` is the broker's messageDelayLevel, by default what it left in the store (config/store.properties).
    """
    levels = levels or delay_levels(store)
    settings = LogSettings(check_crc=False, range_bytes=range_bytes)
    with swap.held(store):
        if not dry_run:
            swap.clear_up(store)
        _refuse_light_queues(store)
        file_bytes = queue_file_bytes or _file_bytes_of(store)
        shape = index_shape or _shape_of(store)
        files = log_files(store)
        if not files:
            raise RebuildError(f"the commit log of {store} is empty: there is nothing to build queues from")
        first, end = files[0].base, confirmed_end(store)
        parts = plan_parts(store, first, end, settings)
        replaced: tuple[str, ...] = ()
        with swap.scratch(store) as folder:
            batches = batch_topics(store)
            reads = [_ReadWork(part, settings, folder, levels, batches) for part in parts]
            done = list(engine.run(_read_part, reads, on_progress))
            by_queue: dict[tuple[str, int], list[Run]] = {}
            for piece in done:
                for run in piece.runs:
                    by_queue.setdefault((run.topic, run.queue_id), []).append(run)
            for kept in _counting_on(store):
                by_queue.setdefault((kept.topic, kept.queue_id), [kept])
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
    units, gaps = sum(written.units for written in queues), sum(written.gaps for written in queues)
    return RebuildResult(len(by_queue), units, entries, index.index_files, end - first, gaps, old)


def _read_part(work: _ReadWork) -> _ReadDone:
    """Units of one range into a fragment file, grouped by queue; index entries into another."""
    name = os.path.join(work.folder, secrets.token_hex(8))
    units_path, entries_path = f"{name}.units", f"{name}.entries"
    dispatcher = Dispatcher(work.levels)
    pieces: dict[tuple[str, int], list[_Piece]] = {}
    entry_count = 0
    with open(entries_path, "xb") as index:
        for records in read_records(work.part, work.settings):
            units, entries = dispatcher.dispatch(records)
            packed = np.empty(len(entries.key_hash), dtype=ENTRY)
            packed["key_hash"], packed["physical_offset"] = entries.key_hash, entries.physical_offset
            packed["store_time_ms"] = entries.store_time_ms
            index.write(packed.tobytes())
            entry_count += len(packed)
            for key, piece in _pieces(due_units(records, units, work.batches)):
                pieces.setdefault(key, []).append(piece)
    with open(units_path, "xb") as fragment:
        runs = [run for queue, parts in pieces.items() for run in _write_runs(queue, parts, fragment)]
    return _ReadDone(runs, _Entries(entries_path, entry_count))


class _Piece(NamedTuple):
    """Units of one queue in one block."""

    offsets: Int
    rows: npt.NDArray[np.void]  # as on disk
    is_lost: Mask


def _pieces(due: DueUnits) -> Iterator[tuple[tuple[str, int], _Piece]]:
    units = due.units
    rows = np.empty(len(units.queue), dtype=_DISK_UNIT)
    rows["physical_offset"], rows["size"], rows["tags_code"] = units.physical_offset, units.size, units.tags_code
    order = stable_order(units.queue)
    bounds = np.searchsorted(units.queue[order], np.arange(len(units.queues) + 1))
    for number, key in enumerate(units.queues):
        own = order[bounds[number] : bounds[number + 1]]
        if len(own):
            yield key, _Piece(units.queue_offset[own], rows[own], due.is_lost[own])


def _write_runs(queue: tuple[str, int], pieces: list[_Piece], fragment: BinaryIO) -> Iterator[Run]:
    """The units of a queue at the end of a fragment file, and the runs that they are."""
    offsets, is_lost = (np.concatenate([piece[at] for piece in pieces]) for at in (0, 2))
    begins = np.concatenate([piece.rows["physical_offset"] for piece in pieces])
    ends = begins + np.concatenate([piece.rows["size"] for piece in pieces])
    position = fragment.tell()
    # Never joined by NumPy first: concatenate turns big-endian fields into native ones.
    fragment.writelines(piece.rows.tobytes() for piece in pieces)
    is_cut = (np.diff(offsets) != 1) | (is_lost[1:] != is_lost[:-1])
    cuts = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(offsets)]
    for first, stop in itertools.pairwise(cuts):
        place = position + first * UNIT_BYTES
        between = (int(begins[first]), int(ends[stop - 1]))
        yield Run(*queue, int(offsets[first]), stop - first, fragment.name, place, *between, bool(is_lost[first]))


def _counting_on(store: str) -> Iterator[Run]:
    """For each queue that has units: an empty one before the offset that is next. It counts where the log has none."""
    for queue in queue_files(store):
        following = queue_max(queue)
        if following > 0:
            yield Run(queue.topic, queue.queue_id, following - 1, 1, "", 0, _FAR, _FAR, True)


def _refuse_light_queues(store: str) -> None:
    light = next((queue.topic for queue in queue_files(store) if queue.topic.startswith(LIGHT_PREFIX)), None)
    if light is not None:
        raise RebuildError(
            f"{store} has light queues ({light}), which this job does not make: run `contrailmq store rebuild`; "
            "nothing was replaced"
        )


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
    gaps = units = 0
    for runs in work.runs:
        folder = Path(own, runs[0].topic, str(runs[0].queue_id))
        folder.mkdir(parents=True)
        gaps += _write_queue(runs, folder, work.file_bytes)
        _read_back(runs, folder, work.file_bytes)
        units += sum(run.units - repeated for run, repeated, _ in _placed(runs) if not run.is_lost)
    return _Written(own, units=units, gaps=gaps)


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


def _placed(runs: list[Run]) -> list[_Placed]:
    """Where runs stand in their queue, by the rules of store/recovery/reconcile.py: an offset that comes again is the
    first record's, but one of zero begins a topic that was made again; an offset before which not so many records fit
    into the log is none (ConsumeQueue.may_hold)."""
    placed: list[_Placed] = []
    following = log_end = 0
    for run in runs:
        if run.first == 0 and following and not run.is_lost:
            placed.clear()
            following = log_end = 0
        repeated = max(0, following - run.first)
        gap = max(0, run.first - following)
        if repeated < run.units and gap * RECORD_BYTES_MIN <= run.log_begin - log_end:
            placed.append(_Placed(run, repeated, gap))
            following, log_end = run.first + run.units, run.log_end
    return placed


def _queue_bytes(runs: list[Run], file_bytes: int) -> Iterator[bytes]:
    """What a queue's files hold from the first byte of the first one, piece by piece, without the filler at the end."""
    for number, (run, repeated, gap) in enumerate(_placed(runs)):
        blanks = gap if number else run.first * UNIT_BYTES % file_bytes // UNIT_BYTES
        for begin in range(0, blanks, _BLANKS_AT_ONCE):
            yield pre_blank(min(_BLANKS_AT_ONCE, blanks - begin))
        yield _run_bytes(run, repeated)


def _run_bytes(run: Run, repeated: int) -> bytes:
    if run.is_lost:
        return pre_blank(run.units - repeated)
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


def _write_queue(runs: list[Run], folder: Path, file_bytes: int) -> int:
    """One queue into files of one size; gives the number of gaps that were filled with empty units."""
    placed = _placed(runs)
    first_byte = placed[0].run.first * UNIT_BYTES if placed else 0
    base, data, held = first_byte - first_byte % file_bytes, list[bytes](), 0
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
    return sum(gap > 0 for _, _, gap in placed[1:])


def _read_back(runs: list[Run], folder: Path, file_bytes: int) -> None:
    """Compare a queue's files with its runs, each at the place of its queue offsets, and empty units between them."""
    paths = sorted(folder.iterdir())
    written = b"".join(path.read_bytes() for path in paths)
    base, at = int(paths[0].name) if paths else 0, 0
    is_right = len(written) == len(paths) * file_bytes
    for run, repeated, _ in _placed(runs):
        begin, expected = (run.first + repeated) * UNIT_BYTES - base, _run_bytes(run, repeated)
        is_right = is_right and written[at:begin] == pre_blank((begin - at) // UNIT_BYTES)
        is_right = is_right and written[begin : begin + len(expected)] == expected
        at = begin + len(expected)
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
            f"the index files of {store} do not say how many slots they have (maxHashSlotNum): move its directory "
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
