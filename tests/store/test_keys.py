"""The hashes under which records are entered into the index, and what is remembered of tags."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from java_hashes import java_string_hash

from contrailmq.message import encode_host
from contrailmq.message.batch import encode_batch
from contrailmq.store import ManualClock, MessageStore, StoreConfig
from contrailmq.store.queues.queue_state import TAG_LENGTH_MAX, TAGS_MAX, QueueState


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


PROPERTIES = b"UNIQ_KEY\x01u\x02KEYS\x01one two\x02TAGS\x01a\x02"


@pytest.mark.parametrize("is_indexed", [True, False])
def test_keys_are_hashed_where_there_is_an_index_and_only_there(is_indexed: bool, tmp_path: Path) -> None:
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=1 << 20, message_index_enable=is_indexed)
    hashes = [java_string_hash(text) for text in ("T#u", "T#one", "T#two", "T#T#a")] if is_indexed else []
    with MessageStore(config, clock=ManualClock()) as store:
        for host in ("127.0.0.1", "::1"):
            store.append(
                "T", 0, b"", PROPERTIES, tags_code=97, keys="one two", unique_key="u", tags="a",
                born_host=encode_host(host, 1),
            )  # fmt: skip
        store.append_batch("T", 0, encode_batch([(0, b"", PROPERTIES)]))
        store._log.append_many([("T", b"", PROPERTIES, 97, "one two", "u", "a", 0)], 0, born_time_ms=1, host=bytes(8))
        assert [fact[6] for fact in store._log.facts] == [hashes] * 4
        store.dispatch()
        assert [unit[2] for unit in store.read_units("T", 0, 0, 9)] == [java_string_hash("a")] * 4


V4, V6 = encode_host("1.2.3.4", 1), encode_host("::1", 1)


@pytest.mark.parametrize("host", [V4, V6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        (b"TAGS\x01a\x02", "a"),
        (b"x\x01y\x02TAGS\x01a", "a"),
        (b"TAGS\x01a\x02TAGS\x01b\x02", "b"),
        (b"TAGS\x01\x02TAGS\x01b\x02", "b"),
        (b"TAGS\x01b\x02TAGS\x01\x02", "b"),
        (b"MYTAGS\x01a\x02TAGS\x01b\x02", "b"),
        (b"MYTAGS\x01a\x02", ""),
        (b"x\x01y\x02", ""),
        (b"TAGS\x01\x00\x02", "\x00"),
    ],
)
@pytest.mark.parametrize("are_given", [True, False])
def test_a_record_is_indexed_under_the_tags_that_it_is_stored_with(
    are_given: bool, properties: bytes, tags: str, host: bytes, tmp_path: Path
) -> None:
    """Whoever gives a code alone has the tags looked up; a code of 0 says that there are none."""
    code = java_string_hash(tags) if tags else 97
    expected = [java_string_hash("T#T#" + tags)] if tags and (are_given or code) else []
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=64, max_index_num=256)
    with MessageStore(config, clock=ManualClock()) as store:
        given = tags if are_given else None
        store.append("T", 0, b"x", properties, tags_code=code, keys=None, unique_key=None, tags=given, born_host=host)
        assert [fact[6] for fact in store._log.facts] == [expected]
