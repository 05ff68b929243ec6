"""Fixtures of the interop tests. Without Java, Maven or the jars every test is skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apache
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apache.Apache]:
    """Apache RocketMQ with our Java programs compiled against it."""
    try:
        jars = apache.find_jars()
    except apache.Missing as missing:
        pytest.skip(str(missing))
    golden = Path(__file__).resolve().parents[1] / "golden" / "java"
    sources = [*sorted(apache.SOURCES.glob("*.java")), golden / "StoreDump.java", golden / "StoreTimer.java"]
    runner = apache.Apache(jars, tmp_path_factory.mktemp("apache"), sources)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def rocketmq_4(tmp_path_factory: pytest.TempPathFactory) -> apache.Apache:
    """The NameServer and the broker of the last release of Apache RocketMQ 4."""
    try:
        jars = apache.find_jars("4.9.7")
    except apache.Missing as missing:
        pytest.skip(str(missing))
    return apache.Apache(jars, tmp_path_factory.mktemp("apache-4"))
