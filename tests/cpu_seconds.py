"""CPU seconds of each test file, with all that its tests start: `-p cpu_seconds` prints the dearest at the end.

On a shared machine durations say little, CPU seconds do. Of a test the whole tree of processes counts, a JVM that is
still up included; what ended without its parent waiting for it is lost. Each process of pytest-xdist sends its sums to
the one that prints them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 40
_seconds: Counter[str] = Counter()


def _used_s(process_id: int) -> float:
    """Of a process, of what it has waited for, and of what runs below it."""
    total, waiting = 0, [process_id]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        try:
            total += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
            for children in folder.glob("task/*/children"):
                waiting += map(int, children.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return total / TICKS


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before_s = _used_s(os.getpid())
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        _seconds[item.nodeid.partition("::")[0]] += max(0.0, _used_s(os.getpid()) - before_s)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = dict(_seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    _seconds.update(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"{sum(_seconds.values()):.0f} CPU seconds")
    for name, used_s in _seconds.most_common(SHOWN):
        terminalreporter.line(f"{used_s:8.1f}  {name}")
