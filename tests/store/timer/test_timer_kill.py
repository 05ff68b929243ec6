"""Real kills (SIGKILL) at every stage of a timer's way: 10 rounds each, 100 under CONTRAILMQ_LONG=1."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROUNDS = 100 if os.environ.get("CONTRAILMQ_LONG") else 10
SCRIPT = Path(__file__).with_name("killed_timers.py")
SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.mark.parametrize("stage", ["log append", "timer log", "wheel", "checkpoint", "delivery"])
def test_a_killed_process_loses_no_timer_is_never_early_and_repeats_once_per_kill(tmp_path: Path, stage: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), stage, str(ROUNDS), "7"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    due_ms = {}
    for line in (tmp_path / "diary").read_text().splitlines():
        kind, *rest = line.split()
        if kind == "sent":
            due_ms[rest[0]] = int(rest[1])
    arrived = [line.split() for line in (tmp_path / "arrived").read_text().splitlines()]
    counts = Counter(name for name, _ in arrived)
    assert len(due_ms) >= ROUNDS
    # A message whose sender was killed before it heard of it may be there as well.
    assert set(due_ms) <= set(counts)
    early = [(name, due_ms[name] - int(time_ms)) for name, time_ms in arrived if int(time_ms) < due_ms.get(name, 0)]
    assert early == []
    # One kill repeats at most what was delivered since the flush before it, so the copies of one message are few.
    assert max(counts.values()) <= ROUNDS + 1
    assert sum(counts.values()) - len(counts) <= ROUNDS * 12 * 2
