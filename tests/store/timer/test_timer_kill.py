"""Real kills (SIGKILL) at every stage of a timer's way: 10 rounds each, 100 under CONTRAILMQ_LONG=1."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROUNDS = 100 if os.environ.get("CONTRAILMQ_LONG") else 10
SCRIPT = Path(__file__).with_name("killed_timers.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("stage", ["log append", "timer log", "wheel", "checkpoint", "dequeue", "delivery", "roll"])
def test_a_killed_process_loses_no_timer_is_never_early_and_repeats_once_per_kill(tmp_path: Path, stage: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), stage, str(ROUNDS), "7"],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    due_ms, arrived_before, flushed, stopped, kills, rolled = {}, [], [], [], 0, 0
    for line in (tmp_path / "diary").read_text().splitlines():
        kind, *rest = line.split()
        if kind == "sent":
            due_ms[rest[0]] = int(rest[1])
        elif kind == "round":
            arrived_before.append(int(rest[1]))
        elif kind == "flushed":
            flushed.append((int(rest[0]), int(rest[1])))
        elif kind == "stopped":
            stopped.append(int(rest[0]))
        elif kind == "rolled":
            rolled = int(rest[0])
        kills += kind == "killed"
    arrived = [line.split() for line in (tmp_path / "arrived").read_text().splitlines()]
    names = [name for name, _ in arrived]
    assert len(due_ms) >= ROUNDS
    assert len(arrived_before) == ROUNDS + 1
    assert flushed
    assert kills >= ROUNDS * 3 // 4  # in some rounds the step comes too seldom
    assert (rolled >= ROUNDS // 4) is (stage == "roll")
    # A message whose sender was killed before it heard of it may be there as well.
    assert set(due_ms) <= set(names)
    early = [(name, due_ms[name] - int(time_ms)) for name, time_ms in arrived if int(time_ms) < due_ms.get(name, 0)]
    assert early == []
    # One life delivers a message once: each kill repeats it at most once more.
    for start, end in itertools.pairwise([*arrived_before, len(names)]):
        assert [name for name, count in Counter(names[start:end]).items() if count > 1] == []
    if stage == "roll":
        return  # what a kill repeats may be a step on the way: the message then arrives once more, at its time
    # And only what was delivered after the last flush comes again, or before it in the same tick; after a stop nothing.
    for count, now_ms in flushed:
        repeated = set(names[:count]) & set(names[count:])
        assert {name for name in repeated if due_ms[name] <= now_ms // 1000 * 1000} == set()
    for count in stopped:
        assert set(names[:count]) & set(names[count:]) == set()
