"""For every test: which hot modules run, and which tests share a process.

`make test` runs one process more than there are cores (pytest-xdist). The tests of one file stay together, in one of
them, with the fixtures that they share, unless a test names a group of its own. The files that take longest begin
first, so that no core is left with one at the end. Nothing here needs two tests to be apart: each takes ports,
directories and names of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_java
from contrailmq._compiled import PURE, build

# Those that take longest, in that order.
LONGEST = (
    "spark/test_kills.py",
    "broker/test_crash_trial.py",
    "spark/test_archive.py",
    "simulation/test_trial.py",
    "spark/test_connect.py",
    "spark/test_ways_to_start.py",
    "spark/test_examples.py",
    "broker/test_replication_processes.py",
    "testing/test_damaged_pairs.py",
    "broker/test_replica_equals.py",
    "spark/test_deduplicated.py",
    "spark/test_archive_care.py",
    "store/test_flipped_bytes.py",
    "spark/test_pipeline_answers.py",
    "examples/test_demo.py",
    "spark/test_damaged_stores.py",
    "spark/test_commitlog_source.py",
    "spark/test_large_logs.py",
    "spark/test_away.py",
    "broker/test_clock_jumps.py",
    "interop/test_migration.py",
    "interop/test_grpc_clients.py",
    "interop/test_slave.py",
    "interop/test_python_retries_on_apache.py",
    "interop/test_python_clients_on_apache.py",
    "interop/test_later.py",
)
# Processes are killed at many places. They take minutes, and run once: on what was installed, not on plain sources too.
KILLS = (
    "broker/test_crash_trial.py",
    "broker/test_new_topic_kill.py",
    "broker/test_pop_reset_kills.py",
    "broker/test_repeats_after_kills.py",
    "broker/test_transaction_kill.py",
    "store/test_kill.py",
    "store/test_power_cut.py",
    "store/test_processes.py",
    "store/timer/test_timer_kill.py",
)
# Whole servers, with sockets and real time. They too run once.
SERVERS = (
    "broker/test_descriptors.py",
    "broker/test_hostile_peers.py",
    "broker/test_later_end_to_end.py",
    "broker/test_many_clients.py",
    "broker/test_promises.py",
    "broker/test_slave_end_to_end.py",
)
TESTS = Path(__file__).resolve().parent
EXPECT = "CONTRAILMQ_EXPECT"  # "compiled" or "plain", from make: then no run can be of the other kind unnoticed


def pytest_configure(config: pytest.Config) -> None:
    runs = "compiled" if build.compiled else "plain"
    if os.environ.get(EXPECT, runs) != runs:
        pytest.exit(f"{EXPECT}={os.environ[EXPECT]}, but the hot modules are {build}", returncode=4)
    if build.is_stale:
        os.environ[PURE] = "1"  # said once, here; what tests start need not say it again
    spark_java.for_our_sessions()
    config.addinivalue_line("markers", "program(name, version): what a test of tests/interop runs (interop_page.py)")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST)}
    names = {item.path: os.path.relpath(item.path, TESTS) for item in items}
    for item in items:
        if names[item.path] in KILLS:
            item.add_marker(pytest.mark.kills)
        if names[item.path] in SERVERS:
            item.add_marker(pytest.mark.servers)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(names[item.path]))
    if config.pluginmanager.hasplugin("xdist"):
        items.sort(key=lambda item: rank.get(names[item.path], len(rank)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.line(f"hot modules: {build}")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in this process sets its logging up; the tests after it must not find that."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
