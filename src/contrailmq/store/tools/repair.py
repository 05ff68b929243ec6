"""Moves damaged ranges of the log aside. For `contrailmq store repair`.

The whole log is walked, with checksums. Damaged are: bytes between two whole records that are not a record; the rest
of a file without its BLANK, if another file follows; a damaged end of the last file, if the store was closed cleanly
and its queues name records there; and a record that contradicts its queue (lost_places.py). Recovery handles torn ends.

1. Every range is copied to ROOT/damaged/ (set_aside.py), with what the queues say was there.
2. Placeholders (placeholder.py) take its place in the log, so no record moves and the walk goes through.
3. The queue units that pointed into it become pre-blank. Batch queues keep theirs: reads pass over a placeholder.

Each step is synced before the next. After a kill run repair again: it finds the rest of a range and leftover units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message.codec import Kind
from contrailmq.message.record import RecordView, read_store_time
from contrailmq.store.base.clock import Clock, SystemClock
from contrailmq.store.base.errors import CorruptStoreError, StoreLockedError
from contrailmq.store.base.store_lock import StoreLock, finish_interrupted
from contrailmq.store.config import StoreConfig
from contrailmq.store.files import Files
from contrailmq.store.queues.light_queues import LIGHT_PREFIX
from contrailmq.store.queues.placeholder import (
    PLACEHOLDER_BYTES_MIN,
    LostMessage,
    is_placeholder,
    may_be_emptied,
    placeholders,
)
from contrailmq.store.queues.queue_unit import PRE_BLANK, UNIT_BYTES
from contrailmq.store.recovery.log_walk import next_record, walk
from contrailmq.store.tools.lost_places import Claims, UnitPlace, mislabelled, named_by_headers, units_in
from contrailmq.store.tools.read_only import ReadOnlyLogFile, StoreView, require_store
from contrailmq.store.tools.set_aside import set_aside
from contrailmq.store.tools.verify import Progress

_UNKNOWN_OFFSET: Final = -1
_LOG_PROBLEM: Final = "commit log: "  # how a view begins those of its problems that are about the log


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [begin, end) of the log that are not records, and what the queues say was there."""

    begin: int
    end: int
    reason: str
    lost: tuple[LostMessage, ...] = ()
    saved_as: str = ""  # the file that has the bytes now; empty for a dry run
    store_time_ms: int = 0  # of the record before it, or else of the one after it


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was found, and unless it was a dry run, repaired."""

    path: str
    is_dry_run: bool
    ranges: tuple[DamagedRange, ...]
    units_emptied: int  # queue units that pointed at what is gone
    log_end: str = ""  # why the log ends where it does, when opening the store will cut something there
    was_clean_exit: bool = True
    unmended: tuple[str, ...] = ()  # what no repair can put right: files that are missing

    @property
    def damaged_bytes(self) -> int:
        return sum(one.end - one.begin for one in self.ranges)

    @property
    def messages_lost(self) -> int:
        """As the queues count them; light queues name messages of other queues once more."""
        return sum(lost.messages for one in self.ranges for lost in one.lost if not _is_light(lost))


def repair_store(
    config: StoreConfig,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    on_progress: Progress | None = None,
) -> RepairReport:
    """Move what is damaged aside. Takes the store's lock: StoreLockedError while somebody has it open."""
    files = files or Files()
    require_store(config, files)
    lock = StoreLock(files, config.lock_path)
    lock.acquire()
    try:
        finish_interrupted(config.path, files)
        with StoreView(config) as view:
            found = _look(view, on_progress)
            time_ms = (clock or SystemClock()).now_ms()
            ranges = tuple(_set_aside(view, one, files, time_ms) for one in found.ranges)
            for one in found.ranges:
                _fill(view, one, files)
            _empty_units(found.units, files)
            return _report(view, found, ranges, is_dry_run=False)
    finally:
        lock.release()


def find_damage(config: StoreConfig, *, on_progress: Progress | None = None) -> RepairReport:
    """What `repair_store` would do. Changes no byte; StoreLockedError while somebody has the store open."""
    with StoreView(config) as view:
        if view.owner_pid:
            raise StoreLockedError(config.path, owner_pid=view.owner_pid if view.owner_pid > 0 else None)
        found = _look(view, on_progress)
        return _report(view, found, found.ranges, is_dry_run=True)


def _report(view: StoreView, found: _Found, ranges: tuple[DamagedRange, ...], *, is_dry_run: bool) -> RepairReport:
    return RepairReport(
        str(view.config.path),
        is_dry_run,
        ranges,
        len(found.units),
        found.log_end,
        not view.files.exists(view.config.abort_path),  # the view takes a store that we hold for one in use
        tuple(text.removeprefix(_LOG_PROBLEM) for text in view.problems if text.startswith(_LOG_PROBLEM)),
    )


# --- looking


class _Found(NamedTuple):
    ranges: tuple[DamagedRange, ...]
    units: list[UnitPlace]
    log_end: str


class _Seen:
    """Sink of the walk: what the other records claim, and where placeholders of an earlier repair stand, as ranges."""

    def __init__(self, view: StoreView) -> None:
        self.claims = Claims(view)
        self.ranges: list[tuple[int, int]] = []
        self.known: list[LostMessage] = []

    def take(self, record: RecordView, /) -> None:
        if not is_placeholder(record.sys_flag):
            self.claims.take(record)
        else:
            physical_offset, queue_offset = record.physical_offset, record.queue_offset
            follows = self.ranges and self.ranges[-1][1] == physical_offset
            begin = self.ranges.pop()[0] if follows else physical_offset
            self.ranges.append((begin, record.end))
            if queue_offset >= 0:
                name, queue_id = record.topic_name, record.queue_id
                self.known.append(LostMessage(name, queue_id, queue_offset, physical_offset, record.size_bytes))


class _Tail(NamedTuple):
    """What follows the last record of a file."""

    file: ReadOnlyLogFile
    position: int
    kind: Kind
    reason: str
    store_time_ms: int  # of the last record before it, in this file or an earlier one


def _look(view: StoreView, on_progress: Progress | None) -> _Found:
    _check_sizes(view)
    sink = _Seen(view)
    ranges: list[DamagedRange] = []
    tails: list[_Tail] = []  # of files after which the log may or may not go on
    done = store_time_ms = 0
    for file in view.log_files:
        holes, tail, has_records = _look_into(file, sink, store_time_ms)
        store_time_ms = tail.store_time_ms
        if has_records:
            ranges += [_to_file_end(before) for before in tails if before.position < before.file.size_bytes]
            tails.clear()
        ranges += holes
        if tail.kind is not Kind.BLANK:
            tails.append(tail)
        done += file.size_bytes
        if on_progress is not None:
            on_progress(done, view.log_bytes)
    damaged_end = _damaged_end(view, tails)
    ranges += damaged_end
    log_end = ""
    if tails and tails[0].kind is not Kind.NOTHING and not damaged_end:
        log_end = f"at {tails[0].file.base + tails[0].position}: {tails[0].reason}"
    ranges += [
        DamagedRange(one.begin, one.end, one.reason, store_time_ms=one.store_time_ms)
        for one in mislabelled(view, sink.claims)
    ]
    ranges.sort(key=lambda one: one.begin)
    return _with_units(view, ranges, sink, log_end)


def _look_into(file: ReadOnlyLogFile, sink: _Seen, store_time_ms: int) -> tuple[list[DamagedRange], _Tail, bool]:
    """The holes of one file, what follows its last record, and whether it has a record or a BLANK."""
    holes: list[DamagedRange] = []
    end = walk(file, sink, check_body_crc=True)
    has_records = end.records > 0
    store_time_ms = end.store_time_ms or store_time_ms
    while end.verdict.kind is not Kind.BLANK:
        following = next_record(file, end.position, file.size_bytes)
        if following < 0:
            break
        begin, reason = end.position, end.verdict.reason
        end = walk(file, sink, position=following, check_body_crc=True)
        if not store_time_ms and end.records:
            store_time_ms = read_store_time(file.mapping, following)
        hole = DamagedRange(file.base + begin, file.base + following, reason, store_time_ms=store_time_ms)
        holes.append(hole)
        store_time_ms = end.store_time_ms or store_time_ms
    has_records = has_records or bool(holes) or end.verdict.kind is Kind.BLANK
    return holes, _Tail(file, end.position, end.verdict.kind, end.verdict.reason, store_time_ms), has_records


def _to_file_end(tail: _Tail) -> DamagedRange:
    """A file that another one follows ends in a BLANK: this one's is damaged."""
    begin = tail.file.base + tail.position
    reason = "zeros where records stood" if tail.kind is Kind.NOTHING else tail.reason
    return DamagedRange(begin, tail.file.end, reason, store_time_ms=tail.store_time_ms)


def _damaged_end(view: StoreView, tails: Sequence[_Tail]) -> list[DamagedRange]:
    """A store that was closed cleanly has no torn record at its end, nor zeros in the place of some; the queues say how
    far it was written."""
    if not tails or view.files.exists(view.config.abort_path):
        return []
    begin = tails[0].file.base + tails[0].position
    end = max((lost.end for lost, _ in units_in(view, begin, tails[-1].file.end)), default=begin)
    damaged = [_to_file_end(tail) for tail in tails if tail.file.base + tail.position < end]
    return [replace(one, end=min(one.end, end)) for one in damaged]


def _with_units(view: StoreView, ranges: list[DamagedRange], repaired: _Seen, log_end: str) -> _Found:
    """Add what the queues know. Units that point at placeholders are left of a repair that was interrupted."""
    units: list[UnitPlace] = []
    told: list[DamagedRange] = []
    for one in ranges:
        _check_room(view, one)
        found = list(units_in(view, one.begin, one.end))
        named = {lost.physical_offset for lost, _ in found}
        headers = named_by_headers(view, _file_of(view, one.begin), one.begin, one.end)
        found += [(lost, None) for lost in headers if lost.physical_offset not in named]
        found.sort(key=lambda pair: pair[0].physical_offset)
        told.append(replace(one, lost=tuple(lost for lost, _ in found)))
        units += [place for _, place in found if place is not None]
    for begin, end in repaired.ranges:
        units += [place for _, place in units_in(view, begin, end) if place is not None]
    for lost in repaired.known:
        queue = view.queues.get(lost.topic, lost.queue_id)
        stands = queue.read_units(lost.queue_offset, 1) if queue is not None else b""
        is_left = stands != PRE_BLANK and may_be_emptied(stands, lost.physical_offset, lost.size_bytes)
        if queue is not None and is_left:
            units.append(UnitPlace(queue, lost.queue_offset))
    return _Found(tuple(told), list(dict.fromkeys(units)), log_end)


def _check_sizes(view: StoreView) -> None:
    """Where a file ends is where its BLANK goes: nothing can be written into one that was cut short."""
    file_bytes = view.config.mapped_file_size_commit_log
    for file in view.log_files:
        if file.size_bytes != file_bytes:
            raise CorruptStoreError(
                file.path,
                f"it has {file.size_bytes} bytes, a log file {file_bytes}: restore it from a copy of the store, or "
                f"fill it with zeros (truncate -s {file_bytes} {file.path}) and repair again; nothing was changed",
            )


def _check_room(view: StoreView, one: DamagedRange) -> None:
    file = _file_of(view, one.begin)
    if one.end - one.begin < PLACEHOLDER_BYTES_MIN and one.end != file.end:
        raise CorruptStoreError(
            file.path,
            f"the damaged range from {one.begin} to {one.end} is smaller than a record ({PLACEHOLDER_BYTES_MIN} "
            "bytes), so nothing can take its place: restore the file from a copy of the store; nothing was changed",
        )


def _file_of(view: StoreView, physical_offset: int) -> ReadOnlyLogFile:
    return next(file for file in view.log_files if file.base <= physical_offset < file.end)


def _is_light(lost: LostMessage) -> bool:
    return lost.topic.startswith(LIGHT_PREFIX)


# --- changing


def _set_aside(view: StoreView, one: DamagedRange, files: Files, time_ms: int) -> DamagedRange:
    file = _file_of(view, one.begin)
    data = (file.mapping, one.begin - file.base, one.end - file.base)
    saved = set_aside(
        view.config.path, files, begin=one.begin, data=data, reason=one.reason, lost=one.lost, time_ms=time_ms
    )
    return replace(one, saved_as=str(saved))


def _fill(view: StoreView, one: DamagedRange, files: Files) -> None:
    """Write placeholders over a range."""
    file = _file_of(view, one.begin)
    batch_topics = {queue.topic for queue in view.queues.batches}
    known = [
        # Of a batch only the size counts: its unit must not find its own offset there.
        lost._replace(queue_offset=_UNKNOWN_OFFSET) if lost.topic in batch_topics else lost
        for lost in one.lost
        if not _is_light(lost)
    ]
    time_ms = max(1, one.store_time_ms)  # Apache takes a file whose first record has none for one never written
    position = one.begin - file.base
    descriptor = files.open(file.path)
    try:
        for record in placeholders(one.begin, one.end, known, store_time_ms=time_ms, ends_file=one.end == file.end):
            files.pwrite(descriptor, record, position)
            position += len(record)
        assert position == one.end - file.base
        files.sync(descriptor)
    finally:
        files.close(descriptor)


def _empty_units(units: Sequence[UnitPlace], files: Files) -> None:
    """Make units pre-blank, file by file."""
    by_file: dict[Path, list[int]] = {}
    for queue, queue_offset in units:
        address = queue_offset * UNIT_BYTES
        position = address % queue.file_bytes
        by_file.setdefault(queue.directory / f"{address - position:020d}", []).append(position)
    for path, positions in by_file.items():
        descriptor = files.open(path)
        try:
            for position in positions:
                files.pwrite(descriptor, PRE_BLANK, position)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
