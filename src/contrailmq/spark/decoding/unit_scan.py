"""Walking a range of the log along consume-queue units: some of the records, without a look at the others.

The queues are only a shortcut: the result is that of a walk over the whole range. The units of *all* queues together
cover the log end to end, one for each record, so those of other topics say what can be skipped. Where they leave a gap
(a queue that lags, lost files, records that never get a unit, the filler at a file's end), or contradict each other or
their records, the log itself is walked. Units of another time than is wanted are not followed (unit_places.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from typing import Final

import numpy as np

from contrailmq.message import SystemTopic, tags_code
from contrailmq.message.codec import MAGIC_V1, MAGIC_V2
from contrailmq.message.record import RECORD_BYTES_MIN
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.queue_units import QueueFiles, queue_files, read_places, read_units, units_between
from contrailmq.spark.decoding.records import Bytes, Records, gather
from contrailmq.spark.decoding.scan import BLOCK_ROWS, BadStretch, Range, scan
from contrailmq.spark.decoding.unit_places import FAR_MS, Places, are_as_told, of_time
from contrailmq.store.queues.consume_queue_ext import EXT_ADDRESS_MAX

_GAPS_MAX: Final = 64  # in one range; each is a scan of its own


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records units are followed to: what a selection says of topics, queues and tags."""

    selection: Selection

    def units_of(self, queue: QueueFiles, start: int, stop: int) -> Places:
        """The units of a queue that point between two places. Only a unit says that a record has not one of the tags:
        the message that it is of is never looked at, as with a consumer of tags."""
        choice, between = self.selection, units_between(queue, start, stop)
        codes = self._codes(queue.topic)
        if codes is None:
            physical_offset, size, queue_offset = read_places(queue, *between)
            is_wanted = np.ones(len(size), dtype=np.bool_)
        else:
            units = read_units(queue, *between)
            physical_offset, size, queue_offset = (units[name] for name in ("physical_offset", "size", "queue_offset"))
            is_wanted = np.isin(units["tags_code"], codes) | (units["tags_code"] <= EXT_ADDRESS_MAX)
        is_wanted &= choice.wants_topic(queue.topic)
        is_wanted &= choice.queue_ids is None or queue.queue_id in choice.queue_ids
        key = (queue.topic, queue.queue_id)
        is_wanted &= queue_offset >= choice.starting_offsets.get(key, 0)
        is_wanted &= queue_offset < choice.ending_offsets.get(key, 2**63 - 1)
        return Places(physical_offset, size, queue_offset, np.full(len(size), queue.queue_id), is_wanted)

    def times_of(self, queue: QueueFiles) -> tuple[int, int]:
        """From when to before when messages of a queue are wanted, in store time."""
        choice, key = self.selection, (queue.topic, queue.queue_id)
        begin_ms = max(choice.begin_ms, choice.starting_times_ms.get(key, 0))
        return begin_ms, min(choice.end_ms, choice.ending_times_ms.get(key, FAR_MS))

    def _codes(self, topic: str) -> list[int] | None:
        """Tags codes that units of the topic must have; None for any."""
        tags = self.selection.tags
        # A unit of a message that waits holds its delivery time. Of bytes that are no text Java may make another hash.
        if tags is None or topic == SystemTopic.SCHEDULE or any("\ufffd" in tag for tag in tags):
            return None
        return sorted(map(tags_code, tags))


def scan_along_units(
    part: Range, store: str, wanted: Wanted, *, check_crc: bool, block_bytes: int
) -> Iterator[Records | BadStretch]:
    """Records of the wanted units that begin in the range, and whatever is where no unit points."""
    places = _places_in(part, store, wanted)
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


def _places_in(part: Range, store: str, wanted: Wanted) -> Places | None:
    """What the units of all queues say of a range; None where they say nothing, or something impossible."""
    try:
        found = list(_units_in(part, store, wanted))
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


def _units_in(part: Range, store: str, wanted: Wanted) -> Iterator[Places]:
    """What the units of each queue say of a range. Those of another time than is wanted are not wanted."""
    data: Bytes | None = None
    for queue in queue_files(store):
        told, (begin_ms, end_ms) = wanted.units_of(queue, part.start, part.stop), wanted.times_of(queue)
        if (begin_ms > 0 or end_ms < FAR_MS) and told.is_wanted.any():
            data = _mapped(part) if data is None else data
            told = of_time(data, part, told, begin_ms=begin_ms, end_ms=end_ms)
        yield told


def _mapped(part: Range) -> Bytes:
    """The file of a range."""
    with open(part.path, "rb") as file:
        return np.frombuffer(mmap(file.fileno(), 0, access=ACCESS_READ), dtype=np.uint8)


def bytes_along_units(part: Range, store: str, wanted: Wanted) -> int:
    """How many bytes of a range `scan_along_units` looks at."""
    places = _places_in(part, store, wanted)
    if places is None or len(_stretches(places)) > _GAPS_MAX:
        return part.stop - part.start
    gaps = part.stop - part.start - int(places.size.sum())
    return max(0, gaps) + int(places.size[places.is_wanted].sum())


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
    data = _mapped(part)
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


def _as_told(data: Bytes, part: Range, told: Places, *, check_crc: bool) -> Records | None:
    """The records that units point to, None unless each is whole and just as its unit says."""
    if int(told.ends[-1]) - part.base > len(data):
        return None
    records = gather(data, told.physical_offset - part.base)
    if not are_as_told(records, told).all() or (check_crc and _is_bad(records)):
        return None
    return records


def scan_places(
    part: Range, places: tuple[int, ...], *, check_crc: bool, block_bytes: int
) -> Iterator[Records | BadStretch]:
    """The records at some places of a range; all of its records if there is none at one of the places."""
    if not places:
        return
    data = _mapped(part)[: part.limit - part.base]
    for first in range(0, len(places), BLOCK_ROWS):
        place = np.array(places[first : first + BLOCK_ROWS], dtype=np.int64)
        records = (
            gather(data, place - part.base) if int(place[-1]) + RECORD_BYTES_MIN <= part.base + len(data) else None
        )
        if records is None or not _are_records(records, part.base) or (check_crc and _is_bad(records)):
            rest = replace(
                part, start=part.start if first == 0 else int(place[0]), is_aligned=part.is_aligned or first > 0
            )
            yield from scan(rest, check_crc=check_crc, block_bytes=block_bytes)
            return
        yield from _in_blocks(records, block_bytes)


def _are_records(records: Records, base: int) -> bool:
    is_record = records.sound & ((records.magic == MAGIC_V1) | (records.magic == MAGIC_V2))
    return bool((is_record & (records.physical_offset == records.position + base)).all())


def _is_bad(records: Records) -> bool:
    return bool((records.bad_bodies() | records.bad_records()).any())


def _in_blocks(records: Records, block_bytes: int) -> Iterator[Records]:
    """Records in blocks of about so many bytes."""
    row = 0
    while row < len(records):
        count = int(np.searchsorted(np.cumsum(records.size[row:]), block_bytes)) + 1
        yield records.select(slice(row, row + count))
        row += count
