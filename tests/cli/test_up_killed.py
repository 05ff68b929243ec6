"""`kill -9` of `contrailmq up` leaves nothing behind: what it started ends by itself, and cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waiting_for import until

pytestmark = pytest.mark.servers

SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")


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
