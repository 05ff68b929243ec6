"""How fast this machine is at this moment, and what a call costs on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from contrailmq.cli.bench_clients import interpreter


def machine(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """CPU model, cores and Python. Where the system does not tell the model, its architecture."""
    try:
        lines = cpu_info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []  # not Linux
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = next(filter(None, models), "") or platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores, {interpreter()}"


def loop_ns() -> float:
    """CPU time of one turn of an empty loop: how fast this interpreter is on this machine at this moment."""
    best = float("inf")
    for _ in range(10):
        start = time.thread_time_ns()
        for _ in range(100_000):
            pass
        best = min(best, (time.thread_time_ns() - start) / 100_000)
    return round(best, 1)


def best_cpu_us(action: Callable[[], object], times: int, rounds: int) -> float:
    """CPU time of one call, in the best of some rounds: on a shared machine only a short one can be undisturbed."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time_ns()
        for _ in range(times):
            action()
        best = min(best, (time.process_time_ns() - begin) / times / 1e3)
    return best
