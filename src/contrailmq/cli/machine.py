"""On what a benchmark ran: a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def machine(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """CPU model, cores and Python. Where the system does not tell the model, its architecture."""
    try:
        lines = cpu_info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []  # not Linux
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = next(filter(None, models), "") or platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def loop_ns() -> float:
    """CPU time of one turn of an empty loop: how fast this interpreter is on this machine at this moment."""
    best = float("inf")
    for _ in range(10):
        start = time.thread_time_ns()
        for _ in range(100_000):
            pass
        best = min(best, (time.thread_time_ns() - start) / 100_000)
    return round(best, 1)
