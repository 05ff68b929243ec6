"""Signals: the first one asks for a clean end, the second one does not wait for it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import contrailmq

ENDLESS_STOP = """
import asyncio
from contrailmq.cli.serving import run_until_stopped

async def serve(stopped):
    print("ready", flush=True)
    await stopped.wait()
    print("draining", flush=True)
    await asyncio.Event().wait()

run_until_stopped(serve)
"""


def test_a_second_signal_ends_a_stop_that_takes_too_long() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_STOP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        assert process.poll() is None, "the first signal lets it drain"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "second signal" in errors
    assert "the next start recovers" in errors


_FAULTS = """
import resource, sys
from contrailmq.cli.serving import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def hold():
    blocks = [bytes([1]) * 1_000_000 for _ in range(8)]
hold()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    hold()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_memory_of_large_requests_is_kept_for_the_next_ones() -> None:
    """Counted in page faults, of which 160 MB in pages that are new each time need 40,000."""

    def faults(how: str) -> int:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        environment["PYTHONPATH"] = str(Path(contrailmq.__file__).parents[1])
        command = [sys.executable, "-c", _FAULTS, how]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)

    assert faults("keep") < 1000 < faults("leave")


def test_settings_that_nobody_reads_to_their_end_are_no_error() -> None:
    """As with `contrailmq broker -p | head -1`, whose reader closes the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "contrailmq", "broker", "-p"]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert ended.stderr == ""
