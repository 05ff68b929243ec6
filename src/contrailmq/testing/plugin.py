"""The pytest fixture: `def test_x(contrailmq_cluster): ...` gets a running cluster of its own test session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from contrailmq.testing.cluster import LocalCluster


@pytest.fixture(scope="session")
def contrailmq_cluster() -> Iterator[LocalCluster]:
    """One NameServer and one broker for the whole session. Use topics and groups of your own in each test."""
    from contrailmq.testing.cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster
