"""Reading a store's files as batches: the plan (on the driver) and the work of one part (anywhere).

Both are plain functions over plain values, for Spark tasks, process pools and tests alike. A part is a byte range of
one log file. It is walked record by record, or along the units of the consume queues (unit_scan.py) when topics, tags
or queues are given, or only places are read that the index names for keys (key_places.py). All ways give the same rows
in the same parts, so a repeated batch of a stream is the same batch. Times cut ranges shorter (record_times.py).

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
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from contrailmq.spark.columns import OptionError, View
from contrailmq.spark.decoding.decode import Decoder, Selection
from contrailmq.spark.decoding.key_places import KeyPlaces, find_key_places, why_no_index
from contrailmq.spark.decoding.queue_units import queue_folders
from contrailmq.spark.decoding.record_times import within_times
from contrailmq.spark.decoding.records import Records
from contrailmq.spark.decoding.scan import BLOCK_BYTES, BadStretch, CorruptLogError, Range, scan
from contrailmq.spark.decoding.store_files import (
    RANGE_BYTES,
    StoreFilesError,
    plan_ranges,
)
from contrailmq.spark.decoding.unit_scan import Wanted, scan_along_units, scan_places

_QUEUES_MAX: Final = 100  # of a store that is read along its queues: each task looks into all of them
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
    plan: str = "auto"  # auto, log, queue or index
    broker_name: str | None = None
    batch_bytes: int = BLOCK_BYTES
    fail_on_data_loss: bool = True

    @property
    def may_be_gone(self) -> bool:
        """Whether a file that was deleted after planning is skipped."""
        return not self.fail_on_data_loss


@dataclass(frozen=True, slots=True)
class LogPart:
    """The work of one task: a range of the log, or only the records at `places` of it, or those of wanted units."""

    range: Range
    store: str = ""
    wanted: Wanted | None = None  # given: along the store's queues
    places: tuple[int, ...] | None = None
    planned_on: str = field(default_factory=socket.gethostname, compare=False)

    @property
    def is_empty(self) -> bool:
        return self.places == ()


def plan_parts(store: str, start: int, stop: int, settings: LogSettings, *, keeps_empty: bool = False) -> list[LogPart]:
    """Parts that together hold every selected record between two physical offsets, in log order.

    How the log is cut depends on the log alone. Which parts are empty may change while a broker works on its index, so
    a stream keeps them: a repeated batch then has the same partitions.
    """
    ranges = plan_ranges(store, start, stop, range_bytes=settings.range_bytes)
    if settings.may_be_gone and ranges and ranges[0].is_missing and len(ranges) > 1:
        _log.warning("%s: %d to %d was deleted before it was read", ranges[0].path, ranges[0].start, ranges[0].stop)
        del ranges[0]
    choice = settings.selection
    if choice.begin_ms > 0 or choice.end_ms < 2**63 - 1:
        ranges = within_times(ranges, choice.begin_ms, choice.end_ms)
    keys = _key_places(store, settings, is_quiet=keeps_empty)
    wanted = Wanted(choice) if _goes_along_queues(store, settings) else None
    if keys is not None and not keeps_empty:
        ranges = [piece for part in ranges for piece in _cut(part, keys)]
    parts = [LogPart(part, store, wanted, _places(part, keys)) for part in ranges]
    return parts if keeps_empty else [part for part in parts if not part.is_empty]


def _cut(part: Range, keys: KeyPlaces) -> Iterator[Range]:
    """A range in pieces that the index speaks for or not, as a whole. It begins and ends at records."""
    borders = {place for stretch in keys.covered for place in stretch if part.start < place < part.stop}
    for start, stop in itertools.pairwise([part.start, *sorted(borders), part.stop]):
        yield replace(part, start=start, stop=stop, is_aligned=part.is_aligned or start > part.start)


def _places(part: Range, keys: KeyPlaces | None) -> tuple[int, ...] | None:
    if part.start >= part.stop:
        return ()
    if keys is None or part.is_missing or not keys.covers(part.start, part.stop):
        return None
    return keys.between(part.start, part.stop)


def _key_places(store: str, settings: LogSettings, *, is_quiet: bool) -> KeyPlaces | None:
    """What the index says of the wanted keys; None if the log is to be read for them."""
    choice = settings.selection
    if choice.keys is None or settings.plan not in ("auto", "index"):
        return None
    if choice.topics is None:
        reason = "no topics are named, and the index knows a key only together with its topic"
    elif choice.with_system_topics or choice.restore_real_topic:
        reason = "the index lacks some of the messages that includeSystemTopics and restoreRealTopic show"
    else:
        reason = why_no_index(store, choice.topics, choice.keys)
    if not reason:
        return find_key_places(store, choice.topics or (), choice.keys)
    if settings.plan == "index":
        raise OptionError(f"option plan is index, which does not do for {store}: {reason}; leave plan out")
    if not is_quiet:
        _log.warning("%s: the keys are sought by reading its log: %s", store, reason)
    return None


def _goes_along_queues(store: str, settings: LogSettings) -> bool:
    choice = settings.selection
    if settings.plan not in ("auto", "index"):
        return settings.plan == "queue"
    if choice.restore_real_topic or (choice.topics is None and choice.tags is None and choice.queue_ids is None):
        return False
    return sum(1 for _ in itertools.islice(queue_folders(store), _QUEUES_MAX + 1)) <= _QUEUES_MAX


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
        if part.places is not None:
            yield from scan_places(part.range, part.places, check_crc=check_crc, block_bytes=block_bytes)
        elif part.wanted is None or part.range.is_missing:
            yield from scan(part.range, check_crc=check_crc, block_bytes=block_bytes)
        else:
            yield from scan_along_units(
                part.range, part.store, part.wanted, check_crc=check_crc, block_bytes=block_bytes
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
