"""Walking a range of the log along consume-queue units: the records of some topics, without a look at the others.

The queues are only a shortcut: the result is that of a walk over the whole range. The units of *all* queues together
cover the log end to end, one for each record, so those of other topics say what can be skipped. Where they leave a gap
(a queue that lags, lost files, records that never get a unit, the filler at a file's end), or contradict each other or
their records, the log itself is walked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.spark.decoding.queue_units import queue_files, read_places, units_between
from contrailmq.spark.decoding.records import Int, Records, gather
from contrailmq.spark.decoding.scan import BLOCK_ROWS, BadStretch, Range, scan

_GAPS_MAX: Final = 64  # in one range; each is a scan of its own
Bool = npt.NDArray[np.bool_]


class Places(NamedTuple):
    """What units say of a range's records, in the order of the log."""

    physical_offset: Int
    size: Int
    queue_offset: Int
    queue_id: Int
    is_wanted: Bool

    def rows(self, chosen: slice | Int | Bool) -> Places:
        physical_offset, size, queue_offset, queue_id, is_wanted = self
        return Places(physical_offset[chosen], size[chosen], queue_offset[chosen], queue_id[chosen], is_wanted[chosen])

    @property
    def ends(self) -> Int:
        return self.physical_offset + self.size


def scan_along_units(
    part: Range, store: str, topics: frozenset[str], *, check_crc: bool, block_bytes: int
) -> Iterator[Records | BadStretch]:
    """Records of the topics that begin in the range, and whatever is where no unit points."""
    places = _places_in(part, store, topics)
    stretches = [] if places is None else _stretches(places)
    if places is None or len(stretches) > _GAPS_MAX:
        yield from scan(part, check_crc=check_crc, block_bytes=block_bytes)
        return
    reached, is_aligned = part.start, part.is_aligned
    for rows in stretches:
        told = places.rows(rows)
        begin = int(told.physical_offset[0])
        if reached < begin:
            gap = replace(part, start=reached, stop=begin, is_aligned=is_aligned)
            yield from scan(gap, check_crc=check_crc, block_bytes=block_bytes)
        yield from _scan_told(part, told, check_crc=check_crc, block_bytes=block_bytes)
        reached, is_aligned = int(told.ends[-1]), True
    if reached < part.stop:
        gap = replace(part, start=reached, is_aligned=is_aligned)
        yield from scan(gap, check_crc=check_crc, block_bytes=block_bytes)


def _places_in(part: Range, store: str, topics: frozenset[str]) -> Places | None:
    """What the units of all queues say of a range; None where they say nothing, or something impossible."""
    found: list[Places] = []
    try:
        for queue in queue_files(store):
            physical_offset, size, queue_offset = read_places(queue, *units_between(queue, part.start, part.stop))
            rows = len(size)
            is_wanted = np.full(rows, queue.topic in topics)
            found.append(Places(physical_offset, size, queue_offset, np.full(rows, queue.queue_id), is_wanted))
    except FileNotFoundError:  # a running broker deletes old files; the log still has everything
        return None
    places = Places(*(np.concatenate(columns) for columns in zip(*found, strict=True))) if found else None
    if places is None or not len(places.size):
        return None
    # Light queues have units of their own for records of other queues: one for each record, a wanted one if there is.
    places = places.rows(np.lexsort((~places.is_wanted, places.physical_offset)))
    places = places.rows(np.diff(places.physical_offset, prepend=-1) != 0)
    is_within = part.start <= places.physical_offset[0] and places.physical_offset[-1] < part.stop
    are_apart = bool((places.ends[:-1] <= places.physical_offset[1:]).all())
    return places if is_within and are_apart and places.ends[-1] <= part.limit else None


def _stretches(places: Places) -> list[slice]:
    """Rows whose records lie end to end."""
    breaks = (np.flatnonzero(places.ends[:-1] != places.physical_offset[1:]) + 1).tolist()
    bounds = [0, *breaks, len(places.size)]
    return [slice(first, stop) for first, stop in itertools.pairwise(bounds)]


def _scan_told(part: Range, told: Places, *, check_crc: bool, block_bytes: int) -> Iterator[Records | BadStretch]:
    """The wanted ones of records that lie end to end."""
    wanted = told.rows(told.is_wanted)
    if not len(wanted.size):
        return
    if bool((wanted.ends[:-1] == wanted.physical_offset[1:]).all()):
        # There is no other record between these: walking the log from first to last costs less.
        yield from _walk(part, wanted, check_crc=check_crc, block_bytes=block_bytes)
        return
    with open(part.path, "rb") as file:
        data = np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), dtype=np.uint8)
    row = 0
    while row < len(wanted.size):
        count = int(np.searchsorted(np.cumsum(wanted.size[row : row + BLOCK_ROWS]), block_bytes)) + 1
        block = wanted.rows(slice(row, row + count))
        row += count
        records = _as_told(data, part, block, check_crc=check_crc)
        if records is None:
            yield from _walk(part, block, check_crc=check_crc, block_bytes=block_bytes)
        else:
            yield records


def _walk(part: Range, told: Places, *, check_crc: bool, block_bytes: int) -> Iterator[Records | BadStretch]:
    """Everything from the first of these records to the last."""
    stretch = replace(part, start=int(told.physical_offset[0]), stop=int(told.ends[-1]), is_aligned=True)
    return scan(stretch, check_crc=check_crc, block_bytes=block_bytes)


def _as_told(data: npt.NDArray[np.uint8], part: Range, told: Places, *, check_crc: bool) -> Records | None:
    """The records that units point to, None unless each is whole and just as its unit says."""
    if int(told.ends[-1]) - part.base > len(data):
        return None
    records = gather(data, told.physical_offset - part.base)
    is_right = (
        records.sound
        & (records.size == told.size)
        & (records.physical_offset == told.physical_offset)
        & (records.queue_offset == told.queue_offset)
        & (records.queue_id == told.queue_id)
    )
    if not is_right.all() or (check_crc and (records.bad_bodies() | records.bad_records()).any()):
        return None
    return records
