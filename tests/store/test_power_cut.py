"""A power cut at any moment of a recorded run: what SYNC_FLUSH acknowledged survives, ASYNC_FLUSH loses a suffix, and
nothing that was flushed; the write buffer pool likewise, and nothing that was committed where the page cache stays.

Some of the puts go to a batch topic (queue.type=BatchCQ): single messages, and inner batches, which are there as a
whole or not at all.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import pytest
from faulty_files import FaultyFiles, Loss

from contrailmq.message import Message
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.base.status import PutResult

POINTS = 1000 if os.environ.get("CONTRAILMQ_LONG") else 100
MODES = ["sync", "async", "pool"]
SETTINGS: dict[str, dict[str, object]] = {
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "async": {},
    "pool": {"transient_store_pool_enable": True},
}


def settings_at(path: Path, mode: str) -> StoreConfig:
    return StoreConfig(
        path,
        mapped_file_size_commit_log=16 * 1024,
        mapped_file_size_consume_queue=1200,
        mapper_file_size_batch_consume_queue=46 * 8,
        max_hash_slot_num=20,
        max_index_num=60,
        **SETTINGS[mode],
    )


class Entry(NamedTuple):
    """One message, as it must be found: in this queue, with this key and body."""

    topic: str
    queue_id: int
    body: bytes
    key: str


class Run:
    """A recorded run: what was put, in order, and at which event each put was acknowledged."""

    def __init__(self, root: Path, mode: str, seed: int) -> None:
        rng = random.Random(seed)
        self.files = FaultyFiles(root)
        self.puts: list[list[Entry]] = []  # an inner batch is one put of several messages
        self.acknowledged: list[int] = []
        self.durable: list[tuple[int, int]] = [(0, 0)]  # (event, so many puts were flushed before it)
        self.written: list[tuple[int, int]] = [(0, 0)]  # (event, so many puts were in the file, synced or not)
        clock = ManualClock()
        ends: list[int] = []
        with opened(root, mode, self.files, clock) as store:
            for number in range(150):
                entries = planned(rng, number)
                self.puts.append(entries)
                result = put(store, entries, tags=f"t{number % 3}")
                assert result.reason == ""
                ends.append(result.physical_offset + result.size_bytes)
                self.acknowledged.append(self.files.note("acknowledged"))
                clock.advance(rng.choice((0, 1, 700)))
                if rng.random() < 0.05:
                    clock.advance(61_000)
                    store.tick()
                if mode != "sync" and rng.random() < 0.1:
                    store.flush()
                    assert store.durable_offset >= ends[-1]
                written, durable = (bisect_right(ends, end) for end in (store.confirm_offset, store.durable_offset))
                self.written.append((self.files.note("written"), written))
                self.durable.append((self.files.note("durable"), durable))
        self.events = self.files.journal.event

    def kept(self, mode: str, loss: Loss, at: int) -> int:
        """How many puts must survive a cut: what was acknowledged (sync), flushed, or, where nothing that was written
        gets lost, acknowledged (async) or committed from the write buffer (pool)."""
        durable = max(puts for event, puts in self.durable if event <= at)
        if mode == "sync" or (loss is Loss.NOTHING and mode == "async"):
            return sum(event <= at for event in self.acknowledged)
        return max(puts for event, puts in self.written if event <= at) if loss is Loss.NOTHING else durable

    def stored(self, put_count: int) -> list[Entry]:
        return [entry for entries in self.puts[:put_count] for entry in entries]


def opened(path: Path, mode: str, files: Files | None = None, clock: ManualClock | None = None) -> MessageStore:
    return MessageStore(settings_at(path, mode), files=files, clock=clock, batch_topics=frozenset({"Batch"}))


def planned(rng: random.Random, number: int) -> list[Entry]:
    topic, count = rng.choice((("T", 1), ("T", 1), ("T", 1), ("Batch", 1), ("Batch", rng.randint(2, 5))))
    queue_id = rng.randrange(3) if topic == "T" else rng.randrange(2)
    return [
        Entry(topic, queue_id, bytes(rng.randrange(256) for _ in range(8)) * rng.randint(1, 120 // count), f"k{number}")
        for _ in range(count)
    ]


def put(store: MessageStore, entries: list[Entry], *, tags: str) -> PutResult:
    topic, queue_id = entries[0].topic, entries[0].queue_id
    messages = [Message(topic, entry.body, keys=entry.key, tags=tags) for entry in entries]
    if len(messages) > 1:
        return store.put_inner_batch(topic, messages, queue_id)
    return store.put(messages[0], queue_id)


def recovered(path: Path, mode: str) -> list[Entry]:
    """What a store holds, in log order; every key query is checked.

    After a cut the index is entered again from its last flushed file on: each key and each tag must name each of its
    messages once, and no other.
    """
    with opened(path, mode) as store:
        by_tag: dict[tuple[str, str], set[int]] = {}
        found: list[tuple[int, int, Entry]] = []
        for (topic, queue_id), (lowest, highest) in store.queues().items():
            offset = lowest
            while offset < highest:
                page = store.get(topic, queue_id, offset)
                assert len(page), (topic, queue_id, offset, highest)
                for message in page:
                    assert message.queue_offset == offset
                    offset += 1
                    entry = Entry(topic, queue_id, message.body, message.keys[0])
                    found.append((message.physical_offset, message.queue_offset, entry))
                    (hit,) = store.query(topic, message.keys[0])
                    assert hit.physical_offset == message.physical_offset
                    by_tag.setdefault((topic, message.tags or ""), set()).add(message.physical_offset)
        found.sort()
        assert store._index is not None
        for (topic, tag), offsets in by_tag.items():
            newest_first = sorted(offsets, reverse=True)[:64]
            assert store._index.query(topic, f"T#{tag}", 64, 0, 2**63 - 1) == newest_first
        return [entry for _, _, entry in found]


@pytest.mark.parametrize("mode", MODES)
def test_after_a_power_cut_the_log_is_a_prefix_with_everything_acknowledged(mode: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("CONTRAILMQ_SEED", "20261115"))
    print(f"seed {seed}, {POINTS} points, mode {mode}: CONTRAILMQ_SEED={seed} replays this")
    (tmp_path / "run").mkdir()
    run = Run(tmp_path / "run", mode, seed)
    rng = random.Random(seed)
    losses = [Loss.EVERYTHING, Loss.PAGES, Loss.SECTORS, Loss.NOTHING]
    for point in range(POINTS // len(MODES) + 1):
        at, loss = rng.randint(1, run.events), losses[point % len(losses)]
        target = tmp_path / f"cut-{point}"
        target.mkdir()
        run.files.journal.image(at, target, rng, loss)
        found = recovered(target, mode)
        context = f"seed {seed} point {point}: cut after event {at} of {run.events}, loss {loss}"
        put_count = len({entry.key for entry in found})
        assert found == run.stored(put_count), context
        assert put_count >= run.kept(mode, loss, at), context
        assert recovered(target, mode) == found, context  # opening again changes nothing
