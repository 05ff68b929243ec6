"""The hashes under which records are entered into the index, and what is remembered of tags."""

from __future__ import annotations

import threading

import pytest
from java_hashes import java_string_hash

from contrailmq.store.queue_state import TAG_LENGTH_MAX, TAGS_MAX, QueueState


def remembered(queues: list[QueueState]) -> int:
    return sum(len(queue.tag_hashes) + len(queue.tags_met) for queue in queues)


def test_all_queues_together_remember_so_many_tags_and_no_more() -> None:
    queues = [QueueState(f"T{number % 3}", number, 0) for number in range(30)]
    for number in range(TAGS_MAX + 500):
        queue, tags = queues[number % 30], f"tag {number}"
        assert queue.meet_tags(tags) == java_string_hash(f"{queue.topic}#T#{tags}")
        assert tags in queue.tag_hashes
        code, tag_hash = queue.meet_encoded_tags(tags.encode())
        assert (code, tag_hash) == (java_string_hash(tags), java_string_hash(f"{queue.topic}#T#{tags}"))
        assert tags.encode() in queue.tags_met
        assert number % 500 or remembered(queues) <= TAGS_MAX
    assert 0 < remembered(queues) <= TAGS_MAX


@pytest.mark.parametrize(("length", "kept"), [(TAG_LENGTH_MAX, 2), (TAG_LENGTH_MAX + 1, 0), (1_000, 0)])
def test_long_tags_are_hashed_and_not_remembered(length: int, kept: int) -> None:
    queue, tags = QueueState("T", 0, 0), "t" * length
    assert queue.meet_tags(tags) == queue.meet_encoded_tags(tags.encode())[1] == java_string_hash("T#T#" + tags)
    assert remembered([queue]) == kept


def test_tags_that_threads_meet_at_once_have_their_own_hashes_and_stay_bounded() -> None:
    queues = [QueueState(f"T{number}", 0, 0) for number in range(4)]
    wrong: list[str] = []

    def meet(begin: int) -> None:
        for number in range(begin, begin + TAGS_MAX):
            tags = f"{number}"
            queue = queues[number % 4]
            if queue.meet_encoded_tags(tags.encode()) != (java_string_hash(tags), queue.meet_tags(tags)):
                wrong.append(tags)

    threads = [threading.Thread(target=meet, args=(start * TAGS_MAX // 2,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < remembered(queues) < 1.1 * TAGS_MAX
