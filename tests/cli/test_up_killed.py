"""`kill -9` of `contrailmq up` leaves nothing behind: what it started ends by itself, and cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers

WAIT_S = 120.0  # a bound for a machine that is busy, not a duration
SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")


def until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.02)


def children_of(parent: int) -> set[int]:
    return set(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_brokers_and_console_end_when_up_is_killed_and_the_stores_are_closed(tmp_path: Path) -> None:
    settings = [part for text in SMALL for part in ("--set", text)]
    flags = ("--store", str(tmp_path), "--brokers", "2", "--namesrv-port", "0", "--broker-port", "0", *settings)
    errors = (tmp_path / "errors").open("w")
    with (
        errors,
        subprocess.Popen(
            [sys.executable, "-m", "contrailmq", "up", "--console-port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        children = children_of(process.pid)
        try:
            assert len(children) == 3, "two brokers and the console"
            process.send_signal(signal.SIGKILL)
            process.wait()
            until(lambda: not any(map(is_alive, children)), "the end of what it started")
        finally:
            for child in filter(is_alive, children):
                os.kill(child, signal.SIGKILL)
    for name in ("broker-a", "broker-b"):
        assert not (tmp_path / name / "abort").exists(), "a broker that is left alone closes its store"
