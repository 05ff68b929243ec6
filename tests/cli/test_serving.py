"""Signals: the first one asks for a clean end, the second one does not wait for it."""

from __future__ import annotations

import signal
import subprocess
import sys

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
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "second signal" in errors
    assert "the next start recovers" in errors
