"""What may be committed is never past a message that is still inside."""

from __future__ import annotations

import random

from client.messages import received
from contrailmq.client.consuming.process_queue import ProcessQueue


def filled(*offsets: int) -> ProcessQueue:
    queue = ProcessQueue()
    queue.put([received(offset) for offset in offsets])
    return queue


def test_the_lowest_message_inside_is_what_may_be_committed() -> None:
    queue = filled(5, 6, 7)
    assert queue.remove([received(6)]) == 5
    assert queue.remove([received(5)]) == 7
    assert queue.remove([received(7)]) == 8


def test_removing_from_an_empty_cache_commits_nothing() -> None:
    assert ProcessQueue().remove([received(1)]) == -1


def test_gaps_left_by_filters_do_not_hold_the_commit_back() -> None:
    queue = filled(10, 20)
    assert queue.remove([received(10)]) == 20
    assert queue.remove([received(20)]) == 21


def test_an_offset_that_is_inside_already_is_left_alone() -> None:
    queue = filled(1, 2)
    queue.put([received(2), received(3)])
    assert queue.count == 3
    assert queue.size_bytes == 3 * len(b"body")


def test_count_bytes_and_span_follow_what_is_inside() -> None:
    queue = filled(1, 5, 9)
    assert (queue.count, queue.size_bytes, queue.span, queue.offset_range) == (3, 12, 8, (1, 9))
    queue.remove([received(1)])
    assert (queue.count, queue.size_bytes, queue.span) == (2, 8, 4)
    queue.clear()
    assert (queue.count, queue.size_bytes, queue.span, queue.offset_range) == (0, 0, 0, (0, 0))


def test_any_order_of_completion_commits_only_whole_prefixes() -> None:
    """Random orders: after each step the commit offset is the smallest one that is not done."""
    random_ = random.Random(7)
    for _ in range(50):
        offsets = list(range(40))
        queue = filled(*offsets)
        done: set[int] = set()
        for offset in random_.sample(offsets, len(offsets)):
            committed = queue.remove([received(offset)])
            done.add(offset)
            assert committed == next((o for o in offsets if o not in done), 40)


def test_taken_messages_go_back_to_the_front_in_order() -> None:
    queue = filled(1, 2, 3, 4)
    assert [m.queue_offset for m in queue.take(2)] == [1, 2]
    queue.put_back()
    assert [m.queue_offset for m in queue.take(3)] == [1, 2, 3]


def test_commit_of_taken_messages_is_one_past_the_last() -> None:
    queue = filled(1, 2, 3)
    queue.take(2)
    assert queue.commit() == 3
    assert queue.commit() == -1
    assert (queue.count, queue.size_bytes) == (1, 4)


def test_some_of_the_taken_messages_can_go_back() -> None:
    queue = filled(1, 2, 3)
    taken = queue.take(3)
    queue.put_back(taken[1:])
    assert queue.commit() == 2
    assert [m.queue_offset for m in queue.take(5)] == [2, 3]


def test_a_lock_is_trusted_for_half_a_minute_and_a_pull_for_two() -> None:
    queue = ProcessQueue(now_s=100.0)
    assert not queue.is_lock_expired(130.0)
    assert queue.is_lock_expired(130.1)
    assert not queue.is_pull_expired(220.0)
    assert queue.is_pull_expired(220.1)
