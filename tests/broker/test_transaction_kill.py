"""Real kills (SIGKILL) at every stage of a transaction: 10 rounds each, 100 under CONTRAILMQ_LONG=1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from broker.harness import ROUNDS
from broker.killed_transactions import COMMIT, STAGES, outcome

SCRIPT = Path(__file__).with_name("killed_transactions.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_broker_shows_once_what_was_committed_and_never_what_was_rolled_back(
    tmp_path: Path, stage: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), stage, str(ROUNDS), "5"],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    diary = [line.split() for line in (tmp_path / "diary").read_text().splitlines()]
    told = Counter(words[0] for words in diary)
    assert told["round"] == ROUNDS + 1
    assert told["killed"] >= ROUNDS * 3 // 4  # in some rounds the step comes too seldom
    visible = (tmp_path / "visible").read_text().split()
    halves = {words[1] for words in diary if words[0] == "half"}
    assert len(halves) >= ROUNDS
    assert {name for name in halves if outcome(name) == COMMIT} <= set(visible)
    assert [name for name in visible if outcome(name) != COMMIT] == []
    # Not even a kill between a commit and its op message: the log says what was committed.
    assert [name for name, copies in Counter(visible).items() if copies > 1] == []
    assert (tmp_path / "pending").read_text() == "{}"
