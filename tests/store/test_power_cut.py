"""A power cut at any moment of a recorded run: what SYNC_FLUSH acknowledged survives, ASYNC_FLUSH loses a suffix."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, Loss

from contrailmq.message import Message
from contrailmq.store import ManualClock, MessageStore, StoreConfig

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
        max_hash_slot_num=20,
        max_index_num=60,
        **SETTINGS[mode],
    )


class Run:
    """A recorded run: what was put, in order, and at which event each put was acknowledged."""

    def __init__(self, root: Path, mode: str, seed: int) -> None:
        rng = random.Random(seed)
        self.files = FaultyFiles(root)
        self.bodies: list[bytes] = []
        self.queues: list[int] = []
        self.acknowledged: list[int] = []
        clock = ManualClock()
        with MessageStore(settings_at(root, mode), files=self.files, clock=clock) as store:
            for number in range(150):
                body = bytes(rng.randrange(256) for _ in range(8)) * rng.randint(1, 120)
                queue_id = rng.randrange(3)
                self.bodies.append(body)
                self.queues.append(queue_id)
                put = store.put(Message("T", body, keys=f"k{number}", tags=f"t{number % 3}"), queue_id)
                assert put.reason == ""
                self.acknowledged.append(self.files.note("acknowledged"))
                clock.advance(rng.choice((0, 1, 700)))
                if rng.random() < 0.05:
                    clock.advance(61_000)
                    store.tick()
                if mode != "sync" and rng.random() < 0.1:
                    store.flush()
        self.events = self.files.journal.event


def recovered(path: Path, mode: str) -> tuple[list[tuple[int, bytes, str]], dict[int, list[bytes]]]:
    """What a store holds: by log order (queue, body, key), and queue by queue; every key query is checked.

    After a cut the index is entered again from its last flushed file on: each key and each tag must name each of its
    messages once, and no other.
    """
    with MessageStore(settings_at(path, mode)) as store:
        by_queue: dict[int, list[bytes]] = {}
        by_tag: dict[str, list[int]] = {}
        found: list[tuple[int, int, bytes, str]] = []
        for (topic, queue_id), (lowest, highest) in store.queues().items():
            offset = lowest
            while offset < highest:
                page = store.get(topic, queue_id, offset)
                for message in page:
                    assert message.queue_offset == offset
                    offset += 1
                    found.append((message.physical_offset, queue_id, message.body, message.keys[0]))
                    by_queue.setdefault(queue_id, []).append(message.body)
                    (hit,) = store.query(topic, message.keys[0])
                    assert hit.physical_offset == message.physical_offset
                    by_tag.setdefault(message.tags or "", []).append(message.physical_offset)
        found.sort()
        assert store._index is not None
        for tag, offsets in by_tag.items():
            newest_first = sorted(offsets, reverse=True)[:64]
            assert store._index.query("T", f"T#{tag}", 64, 0, 2**63 - 1) == newest_first
        return [entry[1:] for entry in found], by_queue


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
        found, _ = recovered(target, mode)
        context = f"seed {seed} point {point}: cut after event {at} of {run.events}, loss {loss}"
        wanted = [(run.queues[n], run.bodies[n], f"k{n}") for n in range(len(found))]
        assert found == wanted, context
        if mode == "sync" or (loss is Loss.NOTHING and mode == "async"):
            assert len(found) >= sum(event <= at for event in run.acknowledged), context
        assert recovered(target, mode)[0] == found, context  # opening again changes nothing
