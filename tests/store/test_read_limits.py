"""How much one read gives, and in how many slices: the three ways to read agree whatever the limits are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.status import GetResult

RUNS = (1, 3, 1, 1, 7, 20, 2)  # messages of queue 0 that are put at once; one of queue 1 follows each


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(
        tmp_path,
        mapped_file_size_commit_log=64 * 1024,
        max_transfer_count_on_message_in_memory=100,
        max_transfer_count_on_message_in_disk=100,
        max_transfer_bytes_on_message_in_memory=1 << 20,
        max_transfer_bytes_on_message_in_disk=1 << 20,
    )
    with MessageStore(config) as opened:
        yield opened


def put_in_runs(store: MessageStore, sizes: random.Random, *, times: int = 1) -> None:
    for run in RUNS * times:
        store.put_many([Message("T", bytes(sizes.randrange(1, 900))) for _ in range(run)])
        store.put(Message("T", b"between"), queue_id=1)


def told(found: GetResult | None) -> tuple[object, ...]:
    assert found is not None
    return (found.status, found.next_offset, found.count, found.size_bytes, b"".join(found.slices))


def test_records_that_follow_each_other_are_one_slice_of_a_warm_read(store: MessageStore) -> None:
    put_in_runs(store, random.Random(1))
    found = store.get_slices_warm("T", 0, 0, 100)
    assert found is not None
    one_by_one = [bytes(view) for view in store.get_slices("T", 0, 0, 100).slices]
    assert (found.count, len(one_by_one)) == (sum(RUNS), sum(RUNS))
    ends = [sum(RUNS[: number + 1]) for number in range(len(RUNS))]
    expected = [b"".join(one_by_one[end - run : end]) for run, end in zip(RUNS, ends, strict=True)]
    assert [bytes(view) for view in found.slices] == expected


def test_every_way_gives_as_many_as_count_and_bytes_allow_also_over_the_end_of_a_file(store: MessageStore) -> None:
    chosen = random.Random(2)
    put_in_runs(store, chosen, times=8)
    sizes = [len(view) for offset in range(0, 280, 70) for view in store.get_slices("T", 0, offset, 70).slices]
    assert len(sizes) == 280
    assert sum(sizes) > 128 * 1024  # three files
    for _ in range(500):
        offset, max_count, max_bytes = chosen.randrange(280), chosen.randrange(1, 101), chosen.randrange(100, 60_000)
        count = size_bytes = 0
        for size in sizes[offset : offset + max_count]:
            if count and size_bytes + size > max_bytes:
                break
            count, size_bytes = count + 1, size_bytes + size
        warm, plain, cold = (
            told(read("T", 0, offset, max_count, max_bytes=max_bytes))
            for read in (store.get_slices_warm, store.get_slices, store.get_slices_cold)
        )
        assert plain[1:4] == (offset + count, count, size_bytes)
        assert warm == plain == cold
