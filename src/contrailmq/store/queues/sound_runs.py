"""Which messages of a queue were found sound since the store was opened, so that no read has to check them again.

    runs := (begin end)*        ascending queue offsets; a run is [begin, end), and no two runs touch

Readers go through a queue in order, so most queues have one run or two, whatever the size of the log. A tuple is
replaced as a whole: reading it needs no lock. When two threads add at once, one run may be lost, and its
messages are checked once more. RUNS_MAX bounds the memory of a queue to 5.2 KB, if it is read here and there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

Runs = tuple[int, ...]

RUNS_MAX: Final = 64


def covers(runs: Runs, begin: int, end: int) -> bool:
    """Whether one run has all of [begin, end)."""
    place = bisect_right(runs, begin)
    return place % 2 == 1 and end <= runs[place]


def with_run(runs: Runs, begin: int, end: int) -> Runs:
    """With [begin, end) added; beyond RUNS_MAX the run of the lowest offsets goes."""
    assert begin < end
    low, high = bisect_left(runs, begin), bisect_right(runs, end)
    inner = ((begin,) if low % 2 == 0 else ()) + ((end,) if high % 2 == 0 else ())
    grown = runs[:low] + inner + runs[high:]
    return grown if len(grown) <= 2 * RUNS_MAX else grown[2:]


def before(runs: Runs, offset: int) -> Runs:
    """What lies below an offset."""
    place = bisect_left(runs, offset)
    return runs[:place] + ((offset,) if place % 2 == 1 else ())
