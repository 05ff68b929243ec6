"""Reading a store's files as batches: the plan (on the driver) and the work of one part (anywhere).

Both are plain functions over plain values, so a Spark task, a process of a pool and a test call the same code. A part
is either a byte range of one log file, or runs of consume-queue units that point into one log file.

**From the queues** only when asked for topics, and only when the store was closed in order (no `abort` file): then
every unit is on disk. A running broker writes its queues a little later than the log and each at its own pace;
planning from them would lose rows. The log behind the newest unit is read as byte ranges in either case.

**Who sees what.** A part says which host planned it. A host that cannot read the part's file tells both names; a file
that is gone from a directory that is there was deleted meanwhile, which is loss and may be allowed.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from contrailmq.spark.columns import View
from contrailmq.spark.decode import Decoder, Selection
from contrailmq.spark.records import Records, gather
from contrailmq.spark.scan import BLOCK_BYTES, BLOCK_ROWS, BadStretch, CorruptLogError, Range, scan
from contrailmq.spark.store_files import (
    RANGE_BYTES,
    QueueFiles,
    StoreFilesError,
    first_record,
    first_units_at,
    joined,
    log_files,
    plan_ranges,
    queue_end,
    queue_files,
    read_places,
)

_CLOCK_STEP_MS: Final = 600_000
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How to read a store: which rows and columns, and what to do about damage."""

    view: View = field(default_factory=View)
    selection: Selection = field(default_factory=Selection)
    decompress: bool = True
    skip_corrupt: bool = False
    check_crc: bool = True
    range_bytes: int = RANGE_BYTES
    plan: str = "auto"  # auto, log or queue
    broker_name: str | None = None
    batch_bytes: int = BLOCK_BYTES
    fail_on_data_loss: bool = True

    @property
    def may_be_gone(self) -> bool:
        """Whether a file that was deleted after it was planned is passed over."""
        return not self.fail_on_data_loss


class UnitRun(NamedTuple):
    """Units of one queue, by queue offset: half-open."""

    queue: QueueFiles
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """The work of one task: `runs` of units that point into `range`, or the range itself when there are none."""

    range: Range
    runs: tuple[UnitRun, ...] = ()
    planned_on: str = field(default_factory=socket.gethostname, compare=False)


def plan_parts(store: str, start: int, stop: int, settings: LogSettings) -> list[LogPart]:
    """Parts that together hold every selected record between two physical offsets, in log order."""
    ranges = plan_ranges(store, start, stop, range_bytes=settings.range_bytes)
    ranges = _within_time(store, ranges, settings.selection)
    topics = settings.selection.topics
    use_queues = topics is not None and settings.plan != "log" and not settings.selection.restore_real_topic
    if use_queues and os.path.exists(os.path.join(store, "abort")):
        if settings.plan == "queue":
            raise StoreFilesError(
                f"{store} is open or was not closed in order (its file abort says so), so its queues may lack messages "
                "that the log holds: read it with plan=auto or plan=log"
            )
        use_queues = False
    if not use_queues:
        return [LogPart(part) for part in ranges]
    all_queues = queue_files(store)
    dispatched = max(map(queue_end, all_queues), default=0)
    from_queues = [part for part in ranges if part.stop <= dispatched]
    runs = _runs_of([queue for queue in all_queues if topics and queue.topic in topics], from_queues)
    parts = [LogPart(part, part_runs) for part, part_runs in zip(from_queues, runs, strict=True) if part_runs]
    return parts + [LogPart(part) for part in ranges if part.stop > dispatched]


def _runs_of(queues: list[QueueFiles], ranges: list[Range]) -> list[tuple[UnitRun, ...]]:
    """For each range the units that point into it."""
    runs: list[list[UnitRun]] = [[] for _ in ranges]
    for queue in queues:
        firsts = first_units_at(queue, [part.start for part in ranges])
        stops = first_units_at(queue, [part.stop for part in ranges])
        for found, first, stop in zip(runs, firsts, stops, strict=True):
            if first < stop:
                found.append(UnitRun(queue, first, stop))
    return [tuple(found) for found in runs]


def _within_time(store: str, ranges: list[Range], selection: Selection) -> list[Range]:
    """Ranges of files that can hold records of the wanted store times.

    Store times grow along a log unless somebody sets the broker's clock back; files within ten minutes of the border
    are read all the same, and their rows looked at one by one.
    """
    if selection.begin_ms <= 0 and selection.end_ms >= 2**63 - 1:
        return ranges
    times: dict[int, int] = {}
    for file in log_files(store):
        first = first_record(file)
        if first is not None:
            times[file.base] = int(first.store_time_ms[0])
    bases = sorted(times)
    kept = []
    for part in ranges:
        begins_ms = times.get(part.base)
        later = [base for base in bases if base > part.base]
        next_ms = times[later[0]] if later else None
        is_too_late = begins_ms is not None and begins_ms >= selection.end_ms + _CLOCK_STEP_MS
        is_too_early = next_ms is not None and next_ms < selection.begin_ms - _CLOCK_STEP_MS
        if not (is_too_late or is_too_early):
            kept.append(part)
    return kept


def read_part(part: LogPart, settings: LogSettings) -> Iterator[pa.RecordBatch]:
    """Batches of the part's selected rows in log order. Damage raises `CorruptLogError` unless it is to be skipped."""
    decoder = Decoder(settings.view, settings.selection, decompress_bodies=settings.decompress)
    for records in read_records(part, settings):
        batch = decoder.decode(records, settings.broker_name)
        if batch.num_rows:
            yield batch


def read_records(part: LogPart, settings: LogSettings) -> Iterator[Records]:
    """Blocks of whole records, before selection."""
    check_crc = settings.check_crc and settings.view.wants("body")
    for item in scan_part(
        part, check_crc=check_crc, block_bytes=settings.batch_bytes, may_be_gone=settings.may_be_gone
    ):
        if isinstance(item, Records):
            yield item
        elif settings.skip_corrupt:
            _log.warning("%s: skipped %d to %d: %s", item.path, item.start, item.stop, item.reason)
        else:
            raise CorruptLogError(item)


def scan_part(
    part: LogPart, *, check_crc: bool, block_bytes: int = BLOCK_BYTES, may_be_gone: bool = False
) -> Iterator[Records | BadStretch]:
    """Blocks and bad stretches of a part. A file that cannot be read raises with the hosts that saw it or not."""
    kind = _scan_units if part.runs else _scan_range
    try:
        yield from kind(part, check_crc=check_crc, block_bytes=block_bytes)
    except OSError as exc:
        path, folder = part.range.path, os.path.dirname(part.range.path)
        is_deleted = isinstance(exc, FileNotFoundError) and os.path.isdir(folder)
        if is_deleted and may_be_gone:
            _log.warning("%s was deleted before it was read", path)
            return
        raise StoreFilesError(
            f"host {socket.gethostname()} cannot read {exc.filename or path} ({exc.strerror}), which host "
            f"{part.planned_on} planned to read: "
            + (
                "it was deleted meanwhile; set failOnDataLoss=false to go on without it"
                if is_deleted
                else f"every executor needs the store under the same path, and {folder} is "
                + ("there but may not be read" if os.path.isdir(folder) else "not there on this host")
            )
        ) from exc


def _scan_range(part: LogPart, *, check_crc: bool, block_bytes: int) -> Iterator[Records | BadStretch]:
    return scan(part.range, check_crc=check_crc, block_bytes=block_bytes)


def _scan_units(part: LogPart, *, check_crc: bool, block_bytes: int) -> Iterator[Records | BadStretch]:
    """Records that units point to. A unit that points to anything but its record is damage of the store."""
    places = [read_places(run.queue, run.first, run.stop) for run in part.runs]
    queue_id = np.concatenate(
        [np.full(len(place[0]), run.queue.queue_id) for run, place in zip(part.runs, places, strict=True)]
    )
    physical_offset, size, queue_offset = joined(places)
    order = np.argsort(physical_offset, kind="stable")
    physical_offset, size = physical_offset[order], size[order]
    if len(size) and bool((physical_offset[1:] == (physical_offset + size)[:-1]).all()):
        # No other record lies between these: to walk the log from the first to the last costs less.
        begin, end = int(physical_offset[0]), int(physical_offset[-1] + size[-1])
        stretch = replace(part.range, start=begin, stop=end, limit=end, is_aligned=True)
        yield from scan(stretch, check_crc=check_crc, block_bytes=block_bytes)
        return
    queue_offset, queue_id = queue_offset[order], queue_id[order]
    with open(part.range.path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, dtype=np.uint8)
    row = 0
    while row < len(size):
        within = np.searchsorted(np.cumsum(size[row : row + BLOCK_ROWS]), block_bytes) + 1
        rows = slice(row, row + int(within))
        row = rows.stop
        records = gather(data, physical_offset[rows] - part.range.base)
        as_stated = (
            records.sound
            & (records.size == size[rows])
            & (records.physical_offset == physical_offset[rows])
            & (records.queue_offset == queue_offset[rows])
            & (records.queue_id == queue_id[rows])
        )
        if check_crc and as_stated.all():
            as_stated &= ~records.bad_bodies()
        for bad in np.flatnonzero(~as_stated).tolist():
            start = part.range.base + int(records.position[bad])
            reason = "a consume-queue unit that points to no such whole record"
            yield BadStretch(part.range.path, start, start + int(size[rows][bad]), reason)
        yield records if as_stated.all() else records.select(as_stated)
