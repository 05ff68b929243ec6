"""SIGKILL of a writing process, again and again in one directory: acknowledged messages stay, none comes from nowhere.

A kill keeps the page cache, so asynchronous flush loses nothing either; with the write buffer pool what was not
committed goes, and only a suffix of it. That no acknowledgement precedes its sync is another test (test_store_faults).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kill_writer import MODES, body_of, config_at

from contrailmq.store import MessageStore

ROUNDS = 50 if os.environ.get("CONTRAILMQ_LONG") else 5
WRITER = Path(__file__).with_name("kill_writer.py")


def write_until_killed(path: Path, mode: str, round_number: int, count: int) -> list[tuple[int, int, int]]:
    """Start a writer, kill it after `count` acknowledgements; all that it gave (a kill may let a few more through)."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    writer = subprocess.Popen(
        [sys.executable, str(WRITER), str(path), mode, str(round_number)], stdout=subprocess.PIPE, env=environment
    )
    assert writer.stdout is not None
    with writer:
        lines = [writer.stdout.readline() for _ in range(count + 1)]
        writer.kill()
        lines += writer.stdout.read().splitlines(keepends=True)
    assert lines[0] == b"ready\n", lines[:3]
    whole = [line for line in lines[1:] if line.endswith(b"\n")]
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in whole)]


@pytest.mark.parametrize("mode", list(MODES))
def test_a_killed_writer_loses_nothing_that_it_acknowledged(mode: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("CONTRAILMQ_SEED", "4"))
    rng = random.Random(seed)
    print(f"seed {seed}, {ROUNDS} rounds, mode {mode}: CONTRAILMQ_SEED={seed} replays this")
    stored: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}  # queue -> (round, number) by queue offset
    for round_number in range(ROUNDS):
        acknowledged = write_until_killed(tmp_path, mode, round_number, rng.randint(1, 250))
        with MessageStore(config_at(tmp_path, "async")) as store:
            context = f"seed {seed} round {round_number}: {store.recovery}"
            assert not store.recovery.was_clean_exit
            numbers: list[int] = []
            for queue_id, before in stored.items():
                for offset in range(len(before), store.max_offset("T", queue_id)):
                    (message,) = store.get("T", queue_id, offset, 1)
                    number = int(message.keys[0].removeprefix(f"r{round_number}-"))
                    assert message.body == body_of(round_number, number), context
                    assert number % 3 == queue_id, context
                    before.append((round_number, number))
                    numbers.append(number)
                    hits = [hit.physical_offset for hit in store.query("T", message.keys[0])]
                    assert hits == [message.physical_offset], context
            assert sorted(numbers) == list(range(len(numbers))), (
                context
            )  # a prefix of what was put: no hole, no phantom
            if mode != "pool":
                assert len(numbers) >= len(acknowledged), context
            for number, queue_id, queue_offset in acknowledged[: len(numbers)]:
                assert stored[queue_id][queue_offset] == (round_number, number), context


def test_after_a_kill_queues_and_index_equal_a_rebuild(tmp_path: Path) -> None:
    """Open a copy whose queues and index were deleted: everything is found at the same offsets."""
    write_until_killed(tmp_path / "store", "async", 0, 300)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    for name in ("consumequeue", "index", "checkpoint", "queues.ledger"):
        target = tmp_path / "copy" / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    first_config, second_config = config_at(tmp_path / "store", "async"), config_at(tmp_path / "copy", "async")
    with MessageStore(first_config) as one, MessageStore(second_config) as other:
        assert one.queues() == other.queues()
        for (topic, queue_id), (lowest, highest) in one.queues().items():
            units = one.read_units(topic, queue_id, lowest, highest)
            assert units == other.read_units(topic, queue_id, lowest, highest)
        stored = sum(highest for _, highest in one.queues().values())
        assert stored > 100  # the kill came late enough for this test to say something
        for number in range(0, 300, 7):
            first, second = one.query("T", f"r0-{number}"), other.query("T", f"r0-{number}")
            assert [m.physical_offset for m in first] == [m.physical_offset for m in second]
            assert len(first) == (number < stored)
