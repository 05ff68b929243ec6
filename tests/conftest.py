"""For every test: which hot modules run, said at the end and the same in every process that a test starts."""

from __future__ import annotations

import os

import pytest

from contrailmq._compiled import PURE, build

EXPECT = "CONTRAILMQ_EXPECT"  # "compiled" or "plain", from make: then no run can be of the other kind unnoticed


def pytest_configure(config: pytest.Config) -> None:
    runs = "compiled" if build.compiled else "plain"
    if os.environ.get(EXPECT, runs) != runs:
        pytest.exit(f"{EXPECT}={os.environ[EXPECT]}, but the hot modules are {build}", returncode=4)
    if build.is_stale:
        os.environ[PURE] = "1"  # said once, here; what tests start need not say it again


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.line(f"hot modules: {build}")
