"""Clusters of ours in this process, for the clients' end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrailmq.testing import LocalCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Shared by tests that use topics and groups of their own and leave the servers alone."""
    with LocalCluster() as made:
        yield made


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    """For tests that stop servers."""
    with LocalCluster() as made:
        yield made
