"""Which parts of a log can hold records of some store times, from looks at a few records.

Store times grow along a log. Our broker makes sure of it; of RocketMQ's somebody may set the clock back. So a search
that trusts them would lose rows, and one that does not would read everything. This one takes looks at records along the
log, all records where a range is small. Between two looks:

- Where every record was looked at, its times are known.
- If the second time is less than the first, the clock was set back there: anything may be between them.
- What cannot be read, a file that is missing for instance, lies between the looks before and after it, give or take
  10 minutes.
- Else times lie between the two, give or take four times what the stretches around take (1 s to 10 minutes). A clock
  that is set back and passes its old time again, all of it between two looks, does so within the time that this stretch
  of the log took to write.

First there is a look at the start of each range; ranges that are left get up to 64 looks each, and are cut at them.
Records that are read are looked at one by one, so this decides only what is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from contrailmq.spark.decoding.records import Int, Records
from contrailmq.spark.decoding.scan import Range, scan
from contrailmq.spark.decoding.store_files import first_item

_SLACK_LEAST_MS: Final = 1_000
_SLACK_MOST_MS: Final = 600_000
_AROUND: Final = 4  # stretches to both sides whose length says how fast the log was written, and the factor
WALKED_BYTES: Final = 65_536  # of a range in which every record is looked at: that takes as long as a few looks
LOOKS_MAX: Final = 64  # at one range
_LOOKS_IN_ALL: Final = 4_096  # 0.1 ms each
_FAR: Final = 2**62


class Stretch(NamedTuple):
    """From a record to the next one that was looked at, of one range. `time_ms` is the first record's, None if none."""

    start: int
    stop: int
    time_ms: int | None
    is_single: bool  # there is no other record between the two


def within_times(ranges: Sequence[Range], begin_ms: int, end_ms: int) -> list[Range]:
    """The same ranges, each cut to what can hold records stored from `begin_ms` to before `end_ms`.

    A range that can hold none is left with nothing between its start and its stop, at its start.
    """
    looks = [_look(part, 1) for part in ranges]
    left = [number for number, kept in enumerate(_kept(looks, begin_ms, end_ms)) if any(kept)]
    count = min(LOOKS_MAX, max(1, _LOOKS_IN_ALL // max(1, len(left))))
    for number in left:
        if count > 1 and not looks[number][0].is_single:
            looks[number] = _look(ranges[number], count)
    found = []
    for part, stretches, kept in zip(ranges, looks, _kept(looks, begin_ms, end_ms), strict=True):
        chosen = [stretch for stretch, is_kept in zip(stretches, kept, strict=True) if is_kept]
        if not chosen:
            found.append(replace(part, stop=part.start))
            continue
        start = chosen[0].start
        is_aligned = part.is_aligned if start == part.start else True
        found.append(replace(part, start=start, stop=chosen[-1].stop, is_aligned=is_aligned))
    return found


def _look(part: Range, count: int) -> list[Stretch]:
    """Looks at a range from its start on; its first stretch begins where it begins, its last ends where it ends."""
    if part.is_missing:
        return [Stretch(part.start, part.stop, None, False)]
    if part.stop - part.start <= WALKED_BYTES:
        return _walk(part)
    found: dict[int, int] = {}
    is_first_found = False
    for number in range(count):
        place = part.start + (part.stop - part.start) * number // count
        is_aligned = part.is_aligned and number == 0
        item = first_item(replace(part, start=place, is_aligned=is_aligned), check_crc=False)
        if isinstance(item, Records):
            found[part.base + int(item.position[0])] = int(item.store_time_ms[0])
            is_first_found |= number == 0
    if not found:
        return [Stretch(part.start, part.stop, None, False)]
    starts = sorted(found)
    bounds = [*starts, part.stop]
    stretches = [Stretch(begin, stop, found[begin], False) for begin, stop in pairwise(bounds)]
    if not is_first_found:
        return [Stretch(part.start, starts[0], None, False), *stretches]
    return [stretches[0]._replace(start=part.start), *stretches[1:]]


def _walk(part: Range) -> list[Stretch]:
    """Every record of a range. If something is broken in it, nothing is known of the whole."""
    places: list[int] = []
    times: list[int] = []
    try:
        for item in scan(part, check_crc=False):
            if not isinstance(item, Records):
                return [Stretch(part.start, part.stop, None, False)]
            places += (item.position + part.base).tolist()
            times += item.store_time_ms.tolist()
    except FileNotFoundError:  # a running broker deleted it: reading says what that means
        return [Stretch(part.start, part.stop, None, False)]
    if not places:
        return [Stretch(part.start, part.stop, None, False)]
    bounds = [part.start, *places[1:], part.stop]
    return [Stretch(*bounds_of, time_ms, True) for bounds_of, time_ms in zip(pairwise(bounds), times, strict=True)]


def _kept(looks: Sequence[Sequence[Stretch]], begin_ms: int, end_ms: int) -> list[list[bool]]:
    """Which stretches can hold records of the times."""
    flat = [stretch for stretches in looks for stretch in stretches]
    seen = np.array([0 if stretch.time_ms is None else stretch.time_ms for stretch in flat], dtype=np.int64)
    is_known = np.array([stretch.time_ms is not None for stretch in flat], dtype=np.bool_)
    known, following = _around_gaps(seen, is_known)
    is_single = np.array([stretch.is_single for stretch in flat], dtype=np.bool_)
    is_between = is_known & np.append(is_known[1:], True)
    taken = np.where(is_between, np.clip(np.abs(following - known), 0, _SLACK_MOST_MS), 0)
    taken[-1:] = 0  # of the last one nobody knows
    slack = np.clip(_AROUND * _largest_around(taken), _SLACK_LEAST_MS, _SLACK_MOST_MS)
    slack = np.where(is_between, slack, _SLACK_MOST_MS)
    low, high = known - slack, following + slack
    is_unsure = following < known
    low, high = np.where(is_unsure, -_FAR, low), np.where(is_unsure, _FAR, high)
    low, high = np.where(is_single, known, low), np.where(is_single, known, high)
    is_kept = iter(((high >= begin_ms) & (low < end_ms)).tolist())
    return [[next(is_kept) for _ in stretches] for stretches in looks]


def _around_gaps(seen: Int, is_known: npt.NDArray[np.bool_]) -> tuple[Int, Int]:
    """The last time that was seen up to each stretch, and the first one after it, beyond what cannot be read."""
    count = len(seen)
    places = np.arange(count)
    before = np.maximum.accumulate(np.where(is_known, places, -1)) if count else places
    behind = np.minimum.accumulate(np.where(is_known, places, count)[::-1])[::-1] if count else places
    known = np.where(before >= 0, seen[before], -_FAR)
    times = np.append(seen, _FAR)
    return known, times[np.append(behind[1:], count)]


def _largest_around(values: Int) -> Int:
    """The largest of each value and the four to both sides of it."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, _AROUND), 2 * _AROUND + 1)
    largest: Int = windows.max(axis=1)
    return largest
