"""What the fault tests went through, at the end of the output: rounds, points, sites, acknowledgements."""

from __future__ import annotations

from pathlib import Path

import pytest

FAULT_TESTS = {"test_kill.py", "test_power_cut.py", "test_processes.py", "test_store_faults.py"}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [
        (report.nodeid.partition("::")[2], line)
        for report in terminalreporter.getreports("passed")
        if Path(report.location[0]).name in FAULT_TESTS
        for line in report.capstdout.splitlines()
    ]
    if passed:
        terminalreporter.section("faults that the store went through")
    for name, line in passed:
        terminalreporter.line(f"{name}: {line}")
