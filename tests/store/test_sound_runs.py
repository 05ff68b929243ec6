"""What is known to be sound, held against a plain set of offsets."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.store.queues.sound_runs import RUNS_MAX, Runs, before, covers, with_run
from how_many import examples

END = 40
offsets = st.integers(0, END)
steps = st.lists(st.tuples(st.booleans(), offsets, st.integers(1, 9)), max_size=30)


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(steps)
def test_runs_know_exactly_what_was_added_and_not_taken_away(steps: list[tuple[bool, int, int]]) -> None:
    runs: Runs = ()
    sound: set[int] = set()
    for is_added, offset, count in steps:
        if is_added:
            runs = with_run(runs, offset, offset + count)
            sound |= set(range(offset, offset + count))
        else:
            runs = before(runs, offset)
            sound = {number for number in sound if number < offset}
        assert list(runs) == sorted(set(runs))
        assert len(runs) % 2 == 0
        for begin in range(END):
            for end in (begin + 1, begin + 4):
                assert covers(runs, begin, end) == (set(range(begin, end)) <= sound)


def test_a_reader_that_goes_through_a_queue_leaves_one_run() -> None:
    runs: Runs = ()
    for offset in range(0, 1_000_000, 32):
        runs = with_run(runs, offset, offset + 32)
    assert runs == (0, 1_000_000)


def test_reads_here_and_there_take_bounded_memory_and_forget_the_lowest_offsets() -> None:
    runs: Runs = ()
    first = 2**40
    for number in range(1_000):
        runs = with_run(runs, first + 10 * number, first + 10 * number + 5)
    assert len(runs) == 2 * RUNS_MAX
    assert runs[-2:] == (first + 9_990, first + 9_995)
    assert covers(runs, runs[0], runs[1])
    assert not covers(runs, first, first + 1)
    assert sys.getsizeof(runs) + sum(map(sys.getsizeof, runs)) <= 5_200
