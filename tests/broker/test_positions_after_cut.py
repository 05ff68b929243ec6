"""Positions of a broker whose log was cut (--resync, `store truncate`): none stays beyond the end of its queue.

Other messages come to stand where the cut ones stood. A position that had passed the cut ones would pass over them
too, at the slave and, when it is asked how far it has come, at its master.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.harness import Bench
from contrailmq.cli.store import app
from contrailmq.message import SystemTopic
from contrailmq.store import Files, MessageStore, StoreConfig
from contrailmq.store.recovery.truncation import DONE, NAME, decide_truncation

OFFSETS, LEVELS = "consumerOffset.json", "delayOffset.json"
HALF_GROUP = "CID_RMQ_SYS_TRANS"

Cut = Callable[[Path, int], None]


def longer_store(path: Path) -> int:
    """A store of three messages, two that wait and a half message, and then as many again; its tables are of the
    whole log, or beyond it. Where the first half of the log ends."""
    bench = Bench(path)
    ends = []
    for _ in range(2):
        for _ in range(3):
            assert bench.send("T").code == 0
        for _ in range(2):
            assert bench.send("T", properties={"DELAY": "3"}).code == 0
        assert bench.send("T", properties={"TRAN_MSG": "true", "PGROUP": "g"}, f=4).code == 0
        ends.append(bench.store.log_max_offset)
    bench.node.dispatch_now()
    assert bench.store.max_offset("T", 0) == 6
    assert bench.store.max_offset(SystemTopic.HALF, 0) == 2
    bench.run(bench.saver.save("topics.json"))
    config = bench.node.config_path
    bench.close()
    half_key = f"{SystemTopic.HALF}@{HALF_GROUP}"
    offsets = {"T@g": {"0": 6}, "T@behind": {"0": 2}, "T@here": {"0": 5}, half_key: {"0": 2}}
    (config / OFFSETS).write_text(json.dumps({"offsetTable": offsets, "committedHere": {"T@here": {"0": 5}}}))
    (config / LEVELS).write_text(json.dumps({"offsetTable": {"3": 4, "4": 5}}))
    return ends[0]


def by_hand(path: Path, at: int) -> None:
    done = CliRunner().invoke(app, ["truncate", str(path / "store"), "--at", str(at), "--yes"])
    assert done.exit_code == 0, done.output


def decided_and_killed(path: Path, at: int) -> None:
    """As a --resync that was killed before it had done what it decided."""
    decide_truncation(path / "store", Files(), at)


def looked_at_since(path: Path, at: int) -> None:
    """Somebody opens the store who has no positions, before a broker does."""
    by_hand(path, at)
    with MessageStore(StoreConfig(path / "store")) as store:
        assert store.log_max_offset == at


CUTS = [by_hand, decided_and_killed, looked_at_since]


def started(path: Path, role: str = "SLAVE") -> Bench:
    """As the server starts it."""
    bench = Bench(path, broker_role=role)
    for service in bench.services:
        service.start()
    bench.node.positions_loaded()
    return bench


def crash(bench: Bench) -> None:
    bench.delay.crash()
    bench.close()


def of_groups(bench: Bench) -> list[int | None]:
    return [bench.node.offsets.query(group, "T", 0) for group in ("g", "behind", "here")]


@pytest.mark.parametrize("cut", CUTS)
def test_every_position_of_a_slave_goes_back_to_the_end_of_a_queue_that_was_cut(tmp_path: Path, cut: Cut) -> None:
    cut(tmp_path, longer_store(tmp_path))
    config = tmp_path / "store" / "config"
    slave = started(tmp_path)
    assert of_groups(slave) == [3, 2, 3]
    assert slave.node.offsets.query(HALF_GROUP, SystemTopic.HALF, 0) == 1  # the next half message is asked about
    assert slave.node.offsets.changes == {("T@here", 0): 3}  # what the master is told of, when it is back
    assert json.loads((config / OFFSETS).read_text())["offsetTable"]["T@g"] == {"0": 3}
    assert slave.delay.offsets == {3: 2, 4: 0}
    assert json.loads((config / LEVELS).read_text())["offsetTable"] == {"3": 2, "4": 0}
    assert json.loads(slave.ask(45).body)["offsetTable"] == {"3": 2, "4": 0}  # what a returning master hears
    assert not (tmp_path / "store" / NAME).exists()
    assert not (tmp_path / "store" / DONE).exists()
    crash(slave)


def test_what_was_set_back_is_found_so_when_the_queues_have_grown(tmp_path: Path) -> None:
    by_hand(tmp_path, longer_store(tmp_path))
    crash(started(tmp_path))
    longer = Bench(tmp_path)
    for _ in range(8):
        assert longer.send("T").code == 0
    longer.close()
    slave = started(tmp_path)
    assert of_groups(slave) == [3, 2, 3]
    crash(slave)


@pytest.mark.parametrize("name", [OFFSETS, LEVELS])
def test_positions_that_could_not_be_saved_are_set_back_by_the_next_start(tmp_path: Path, name: str) -> None:
    by_hand(tmp_path, longer_store(tmp_path))
    in_the_way = tmp_path / "store" / "config" / f"{name}.tmp"
    in_the_way.mkdir()  # where the new file is written: as a disk that refuses
    crash(started(tmp_path))
    assert (tmp_path / "store" / DONE).exists()
    in_the_way.rmdir()
    slave = started(tmp_path)
    assert of_groups(slave) == [3, 2, 3]
    assert slave.delay.offsets == {3: 2, 4: 0}
    assert not (tmp_path / "store" / DONE).exists()
    crash(slave)


def test_a_master_whose_log_was_cut_by_hand_is_set_back_on_the_disk_too(tmp_path: Path) -> None:
    """A kill before its next save would leave delay levels that have passed what comes to stand there."""
    by_hand(tmp_path, longer_store(tmp_path))
    master = started(tmp_path, role="ASYNC_MASTER")
    saved = json.loads((tmp_path / "store" / "config" / LEVELS).read_text())["offsetTable"]
    assert (saved["3"], saved["4"]) == (2, 0)
    assert of_groups(master) == [3, 2, 3]
    assert not (tmp_path / "store" / DONE).exists()
    crash(master)


def test_a_slave_that_nobody_cut_keeps_positions_that_are_ahead_of_its_log(tmp_path: Path) -> None:
    longer_store(tmp_path)
    slave = started(tmp_path)
    assert slave.delay.offsets == {3: 4, 4: 5}
    crash(slave)
