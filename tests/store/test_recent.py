"""What one group has just read is there for the next one, and never for longer than it is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import GetStatus, MessageStore, StoreConfig
from contrailmq.store.base.status import GetResult
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.reading.recent import BATCH_BYTES_MAX, PROBE, RecentBatches

COUNT = 8 * PROBE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(
        tmp_path,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 4 * COUNT,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    with MessageStore(config) as opened:
        opened.put_many([Message("T", b"message %d" % number) for number in range(COUNT)])
        yield opened


def read(store: MessageStore, offset: int, max_count: int = 4, *, topic: str = "T") -> GetResult:
    found = store.get_slices_warm(topic, 0, offset, max_count)
    assert found is not None
    return found


def bytes_of(found: GetResult) -> bytes:
    return b"".join(found.slices)


def is_kept(found: GetResult) -> bool:
    """A kept batch is a copy; all else are slices of the mapped log."""
    return isinstance(found.slices[0].obj, bytes)


def share(store: MessageStore, *, topic: str = "T") -> None:
    """Two groups read the queue: from here on its reads are kept."""
    for _ in range(2):
        for offset in range(PROBE):
            read(store, offset, topic=topic)
    assert is_kept(read(store, PROBE - 1, topic=topic))


def test_a_queue_with_one_group_keeps_one_batch_in_sixteen(store: MessageStore) -> None:
    kept = [is_kept(read(store, offset)) for offset in range(COUNT - 4)]
    assert kept.count(True) == (COUNT - 4) // PROBE


def test_the_second_group_gets_what_the_first_one_got_without_a_look_at_the_queue(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(store)
    first = read(store, 40)
    monkeypatch.setattr(ConsumeQueue, "read_units", lambda *_: pytest.fail("the queue was read again"))
    second = read(store, 40)
    assert bytes_of(second) == bytes_of(first)
    for name in ("status", "next_offset", "min_offset", "max_offset", "size_bytes", "count", "suggest_slave"):
        assert getattr(second, name) == getattr(first, name), name
    assert (second.status, second.count, second.next_offset) == (GetStatus.FOUND, 4, 44)


def test_a_kept_read_has_the_bytes_of_a_plain_one(store: MessageStore) -> None:
    share(store)
    for offset in range(COUNT - 1):
        plain = store.get_slices("T", 0, offset, 4)
        assert [bytes_of(read(store, offset)) for _ in range(2)] == [bytes_of(plain)] * 2


def test_a_batch_that_ended_with_its_queue_is_read_again_when_more_has_arrived(store: MessageStore) -> None:
    share(store)
    for _ in range(2):
        assert read(store, COUNT - 2).count == 2
    store.put(Message("T", b"one more"))
    found = read(store, COUNT - 2)
    assert (found.count, found.next_offset, found.max_offset) == (3, COUNT + 1, COUNT + 1)
    assert b"one more" in bytes_of(found)


def test_a_read_of_another_size_gets_its_own_answer(store: MessageStore) -> None:
    share(store)
    assert [read(store, 40, count).count for count in (4, 7, 4, 2)] == [4, 7, 4, 2]


def test_a_deleted_topic_of_the_same_name_starts_anew(store: MessageStore) -> None:
    share(store)
    read(store, 0)
    store.delete_topics(["T"])
    store.put_many([Message("T", b"young %d" % number) for number in range(COUNT)])
    found = read(store, 0)
    assert b"young 0" in bytes_of(found)
    assert b"message 0" not in bytes_of(found)


def test_the_oldest_batches_make_room(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    small = RecentBatches(bytes_max=3 * read(store, 0).size_bytes)
    monkeypatch.setattr(store._reader, "_recent", small)
    share(store)
    for offset in range(40, 60):
        read(store, offset)
        assert 0 < small.size_bytes <= small.bytes_max
    sizes = [len(batch.body) for batch in small._batches.values()]
    assert sum(sizes) == small.size_bytes


def test_a_large_read_is_not_kept(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, max_transfer_bytes_on_message_in_memory=1 << 20)) as store:
        store.put_many([Message("T", bytes(1000)) for _ in range(4 * PROBE)])
        for offset in range(4 * PROBE - 1):
            read(store, offset)
        assert is_kept(read(store, PROBE - 1))
        store.put_many([Message("Large", bytes(BATCH_BYTES_MAX // 2)) for _ in range(4 * PROBE)])
        for offset in range(4 * PROBE - 2):
            assert not is_kept(read(store, offset, 2, topic="Large"))
