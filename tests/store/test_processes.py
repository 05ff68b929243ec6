"""What can only be seen from outside: system calls in their order, and a process with few descriptors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUEUES = 20_000 if os.environ.get("CONTRAILMQ_LONG") else 2_000
DESCRIPTORS = 1024 if os.environ.get("CONTRAILMQ_LONG") else 128
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


def test_many_queues_are_correct_under_a_hard_limit_of_descriptors(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "many_queues.py"), str(tmp_path), str(QUEUES), str(DESCRIPTORS)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    most = int(done.stdout)
    print(f"{QUEUES} queues, a limit of {DESCRIPTORS} descriptors, {most} in use at most")
    assert most < DESCRIPTORS


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_kernel_sees_a_sync_between_each_record_and_its_acknowledgement(tmp_path: Path) -> None:
    """kill_writer acknowledges on its standard output: in the trace, a write to 1 after each pwrite and fdatasync."""
    trace, store = tmp_path / "trace", tmp_path / "store"
    writer = subprocess.Popen(
        ["strace", "-f", "-qq", "-y", "-e", "trace=pwrite64,fdatasync,write", "-o", str(trace), sys.executable,
         str(HERE / "kill_writer.py"), str(store), "sync", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert writer.stdout is not None
    with writer:
        lines = [writer.stdout.readline() for _ in range(41)]
        writer.terminate()
    if lines[0] != b"ready\n":
        pytest.skip(f"strace may not trace here: {writer.returncode}")
    acknowledged = _acknowledged_after_sync(trace.read_text(errors="replace"))
    print(f"{acknowledged} acknowledgements, each after its fdatasync")
    assert acknowledged >= 40


def _acknowledged_after_sync(trace: str) -> int:
    """How many acknowledgements there are; each must follow a sync that began after the record was written."""
    count = 0
    written = synced = False
    syncing: dict[str, bool] = {}  # thread -> its sync began after the newest record was written
    for line in trace.splitlines():
        thread = line.split(" ", 1)[0]
        if re.search(r"pwrite64\(\d+<[^>]*/commitlog/", line) and '"\\0\\0\\0\\0' not in line:
            written, synced = True, False
        elif re.search(r"fdatasync\(\d+<[^>]*/commitlog/", line):
            syncing[thread] = written
            if line.endswith("= 0"):
                synced = synced or syncing.pop(thread)
        elif "fdatasync resumed" in line and line.endswith("= 0"):
            synced = synced or syncing.pop(thread, False)
        elif re.search(r"write\(1<[^>]*>, \"\d+ \d+ \d+\\n\"", line):
            assert written, f"an acknowledgement without a record: {line}"
            assert synced, f"acknowledged before its sync: {line}"
            count += 1
            written = synced = False
    return count
