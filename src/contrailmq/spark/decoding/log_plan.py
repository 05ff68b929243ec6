"""Reading a store's files as batches: the plan (on the driver) and the work of one part (anywhere).

Both are plain functions over plain values, for Spark tasks, process pools and tests alike. A part is a byte range of
one log file. It is walked record by record or, when topics are given, along the units of the consume queues
(unit_scan.py). Both ways give the same rows in the same parts, so a repeated batch of a stream is the same batch.

Bytes that no file holds are a part too, and damage. Only bytes before the log's first file may have been cleaned away
since the plan began, which is loss. A host that cannot read a part's file names itself and the host that planned it.
A file that is missing from an existing directory was deleted meanwhile: that is loss, and may be allowed.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from contrailmq.spark.columns import View
from contrailmq.spark.decoding.decode import Decoder, Selection
from contrailmq.spark.decoding.queue_units import queue_folders
from contrailmq.spark.decoding.records import Records
from contrailmq.spark.decoding.scan import BLOCK_BYTES, BadStretch, CorruptLogError, Range, scan
from contrailmq.spark.decoding.store_files import (
    RANGE_BYTES,
    StoreFilesError,
    first_record,
    log_files,
    plan_ranges,
)
from contrailmq.spark.decoding.unit_scan import scan_along_units

_QUEUES_MAX: Final = 100  # of a store that is read along its queues: each task looks into all of them
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
        """Whether a file that was deleted after planning is skipped."""
        return not self.fail_on_data_loss


@dataclass(frozen=True, slots=True)
class LogPart:
    """The work of one task: a range of the log, along the queues of `store` for `topics` if these are given."""

    range: Range
    store: str = ""
    topics: frozenset[str] | None = None
    planned_on: str = field(default_factory=socket.gethostname, compare=False)


def plan_parts(store: str, start: int, stop: int, settings: LogSettings) -> list[LogPart]:
    """Parts that together hold every selected record between two physical offsets, in log order."""
    ranges = plan_ranges(store, start, stop, range_bytes=settings.range_bytes)
    if settings.may_be_gone and ranges and ranges[0].is_missing and len(ranges) > 1:
        _log.warning("%s: %d to %d was deleted before it was read", ranges[0].path, ranges[0].start, ranges[0].stop)
        del ranges[0]
    ranges = _within_time(store, ranges, settings.selection)
    along = settings.selection.topics if _goes_along_queues(store, settings) else None
    return [LogPart(part, store, along) for part in ranges]


def _goes_along_queues(store: str, settings: LogSettings) -> bool:
    if settings.plan != "auto" or settings.selection.topics is None or settings.selection.restore_real_topic:
        return settings.plan == "queue"
    return sum(1 for _ in itertools.islice(queue_folders(store), _QUEUES_MAX + 1)) <= _QUEUES_MAX


def _within_time(store: str, ranges: list[Range], selection: Selection) -> list[Range]:
    """Ranges of files that can hold records of the wanted store times.

    Store times grow along a log unless somebody sets the broker's clock back; files within ten minutes of the border
    are read anyway, and their rows looked at one by one.
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
        begun = [base for base in bases if base <= part.base] if part.is_missing else []
        begins_ms = times[begun[-1]] if begun else times.get(part.base)
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
    try:
        if part.topics is None or part.range.is_missing:
            yield from scan(part.range, check_crc=check_crc, block_bytes=block_bytes)
        else:
            yield from scan_along_units(
                part.range, part.store, part.topics, check_crc=check_crc, block_bytes=block_bytes
            )
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
                "it was deleted meanwhile; run again, or set failOnDataLoss=false to go on without it"
                if is_deleted
                else f"every executor needs the store under the same path, and {folder} is "
                + ("there but may not be read" if os.path.isdir(folder) else "not there on this host")
            )
        ) from exc
