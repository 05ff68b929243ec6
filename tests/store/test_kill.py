"""SIGKILL of a writing process, again and again in one directory: acknowledged messages stay, none comes from nowhere.

A kill keeps the page cache, so asynchronous flush loses nothing either; with the write buffer pool what was not
committed goes, and only a suffix of it. That no acknowledgement precedes its sync is another test (test_store_faults).
Ordinary queues, batch queues (an inner batch is there as a whole or not at all) and light queues obey the same rules.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from kill_writer import MODES, QUEUES, key_of, opened, planned

from contrailmq.message import StoredMessage
from contrailmq.store import MessageStore, StoreView, verify_store

ROUNDS = 50 if os.environ.get("CONTRAILMQ_LONG") else 5
WRITER = Path(__file__).with_name("kill_writer.py")


class Acknowledged(NamedTuple):
    """What a writer said: queue offsets by number, and how many of the puts were in the file before it was killed."""

    offsets: list[int]
    committed: int


def write_until_killed(path: Path, mode: str, round_number: int, count: int) -> Acknowledged:
    """Start a writer, kill it after `count` acknowledgements (a kill may let a few more through) and one commit."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    writer = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), mode, str(round_number)], stdout=subprocess.PIPE, env=environment
    )
    assert writer.stdout is not None
    with writer:
        lines = [writer.stdout.readline() for _ in range(count + 1)]
        while lines[-1].endswith(b" 0\n"):  # nothing is committed yet
            lines.append(writer.stdout.readline())
        writer.kill()
        lines += writer.stdout.read().splitlines(keepends=True)
    assert lines[0] == b"ready\n", lines[:3]
    told = [line.split() for line in lines[1:] if line.endswith(b"\n")]
    assert [int(number) for number, _, _ in told] == list(range(len(told)))
    return Acknowledged([int(queue_offset) for _, queue_offset, _ in told], int(told[-1][2]))


def read_from(store: MessageStore, topic: str, queue_id: int, offset: int) -> list[StoredMessage]:
    """Every message of a queue from an offset on, which has to begin there and go on without a gap."""
    found: list[StoredMessage] = []
    end = store.max_offset(topic, queue_id)
    while offset + len(found) < end:
        page = list(store.get(topic, queue_id, offset + len(found)))
        assert page, (topic, queue_id, offset + len(found), end)
        found += page
    if topic.startswith("%LMQ%"):
        return found  # a record has the offsets of its own queue
    assert [message.queue_offset for message in found] == list(range(offset, end))
    return found


Told = list[tuple[int, bytes]]  # (round, body) by queue offset


class Directory:
    """What the directory of all rounds must hold, queue by queue."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.stored: dict[tuple[str, int], Told] = {key: [] for key in QUEUES}
        self.light: dict[str, Told] = {"%LMQ%all": [], "%LMQ%some": []}

    def check_round(self, store: MessageStore, round_number: int, acknowledged: Acknowledged) -> None:
        """Take up what a round has left: a prefix of what was put, whole, in order, with everything acknowledged, or
        in the pool's case committed."""
        parts: dict[int, list[bytes]] = {}  # by number, in queue order
        offsets: dict[int, int] = {}  # of the first part
        for (topic, queue_id), before in self.stored.items():
            for message in read_from(store, topic, queue_id, len(before)):
                number = int(message.body.split(b" ", 1)[0])
                offsets.setdefault(number, len(before))
                before.append((round_number, message.body))
                parts.setdefault(number, []).append(message.body)
                assert (planned(self.mode, round_number, number).topic, message.queue_id) == (topic, queue_id)
                hits = [hit.physical_offset for hit in store.query(topic, key_of(round_number, number))]
                assert hits == [message.physical_offset]
        count = len(parts)
        assert sorted(parts) == list(range(count))  # no hole, no phantom
        for number, bodies in parts.items():
            assert bodies == planned(self.mode, round_number, number).bodies
        told = acknowledged.offsets
        assert count >= (acknowledged.committed if self.mode == "pool" else len(told))
        assert [offsets[number] for number in range(min(count, len(told)))] == told[:count]
        self._check_light(store, round_number, count)

    def _check_light(self, store: MessageStore, round_number: int, count: int) -> None:
        for name, before in self.light.items():
            for number in range(count):
                plan = planned(self.mode, round_number, number)
                if name in plan.light:
                    before.append((round_number, plan.bodies[0]))
            assert [message.body for message in read_from(store, name, 0, 0)] == [body for _, body in before]


@pytest.mark.parametrize("mode", list(MODES))
def test_a_killed_writer_loses_nothing_that_it_acknowledged(mode: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("CONTRAILMQ_SEED", "4"))
    rng = random.Random(seed)
    print(f"seed {seed}, {ROUNDS} rounds, mode {mode}: CONTRAILMQ_SEED={seed} replays this")
    directory = Directory(mode)
    for round_number in range(ROUNDS):
        acknowledged = write_until_killed(tmp_path, mode, round_number, rng.randint(1, 250))
        store = opened(tmp_path, "light" if mode == "light" else "async")
        try:
            assert not store.recovery.was_clean_exit
            directory.check_round(store, round_number, acknowledged)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} round {round_number}: {store.recovery}") from error
        finally:
            store.close()
    assert any(directory.stored["Batch", 0])
    assert mode != "light" or any(directory.light["%LMQ%some"])
    with StoreView(store.config) as view:
        assert verify_store(view).findings == []


def queue_bytes(path: Path) -> dict[str, bytes]:
    """Of all queue files; a file that was made and not written yet has nothing to say."""
    files = [file for name in ("consumequeue", "batchconsumequeue") for file in (path / name).rglob("*")]
    found = {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}
    return {name: data for name, data in found.items() if any(data)}


@pytest.mark.parametrize("mode", ["async", "light"])
def test_after_a_kill_queues_and_index_equal_a_rebuild(mode: str, tmp_path: Path) -> None:
    """Open a copy whose queues and index were deleted: queues have the same bytes, keys the same messages."""
    write_until_killed(tmp_path / "store", mode, 0, 300)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    for name in ("consumequeue", "batchconsumequeue", "index", "checkpoint", "queues.ledger"):
        target = tmp_path / "copy" / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    one, other = opened(tmp_path / "store", mode), opened(tmp_path / "copy", mode)
    try:
        assert one.queues() == other.queues()
        assert one.queues().keys() >= set(QUEUES)  # the kill came late enough for this test to say something
        for number in range(0, 300, 7):
            topic, key = planned(mode, 0, number).topic, key_of(0, number)
            first, second = one.query(topic, key), other.query(topic, key)
            assert [m.physical_offset for m in first] == [m.physical_offset for m in second]
            assert len(first) == 1
    finally:
        one.close()
        other.close()
    assert queue_bytes(tmp_path / "store") == queue_bytes(tmp_path / "copy")
