"""Positions of a slave whose log was cut (--resync): none stays beyond the end of its queue.

Other messages come to stand where the cut ones stood. A position that had passed the cut ones would pass over them
too, at the slave and, when it is asked how far it has come, at its master.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.harness import Bench

OFFSETS, LEVELS = "consumerOffset.json", "delayOffset.json"


def cut_slave(path: Path) -> Bench:
    """As the server starts it after a cut."""
    slave = Bench(path, broker_role="SLAVE")
    slave.node.is_log_cut = True
    slave.node.load()
    return slave


def cut_store(path: Path) -> Path:
    """A store with three messages and two that wait; its tables are of a longer log. Returns where they are."""
    bench = Bench(path)
    for _ in range(3):
        assert bench.send("T").code == 0
    for _ in range(2):
        assert bench.send("T", properties={"DELAY": "3"}).code == 0
    bench.run(bench.saver.save("topics.json"))
    config = bench.node.config_path
    bench.close()
    offsets = {"T@g": {"0": 10}, "T@behind": {"0": 2}, "T@here": {"0": 9}}
    (config / OFFSETS).write_text(json.dumps({"offsetTable": offsets, "committedHere": {"T@here": {"0": 9}}}))
    (config / LEVELS).write_text(json.dumps({"offsetTable": {"3": 7, "4": 5}}))
    return config


@pytest.mark.parametrize("saved", [False, True], ids=["at once", "after the queue has grown"])
def test_offsets_of_a_slave_go_back_to_the_end_of_a_queue_that_was_cut(tmp_path: Path, saved: bool) -> None:
    config = cut_store(tmp_path)
    slave = cut_slave(tmp_path)
    if saved:  # what a start has set back, the next one finds so, however long the queue is by then
        slave.close()
        longer = Bench(tmp_path)
        for _ in range(8):
            assert longer.send("T").code == 0
        longer.close()
        slave = Bench(tmp_path, broker_role="SLAVE")
    table = slave.node.offsets
    assert [table.query(group, "T", 0) for group in ("g", "behind", "here")] == [3, 2, 3]
    assert table.changes == {("T@here", 0): 3}  # what the master is told of, when it is back
    assert json.loads((config / OFFSETS).read_text())["offsetTable"]["T@g"] == {"0": 3}
    slave.close()


def test_delay_levels_of_a_slave_go_back_to_the_end_of_a_queue_that_was_cut(tmp_path: Path) -> None:
    config = cut_store(tmp_path)
    slave = cut_slave(tmp_path)
    slave.delay.start()
    assert slave.delay.offsets == {3: 2, 4: 0}
    assert json.loads((config / LEVELS).read_text())["offsetTable"] == {"3": 2, "4": 0}
    assert json.loads(slave.ask(45).body)["offsetTable"] == {"3": 2, "4": 0}  # what a returning master hears
    slave.delay.crash()
    slave.close()
