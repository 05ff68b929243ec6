"""A cluster of ours, shared by tests that use topics and groups of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrailmq import Admin
from contrailmq.testing import LocalCluster

TYPES = {
    "lite": "LITE",
    "plain": "NORMAL",
    "ordered": "FIFO",
    "later": "DELAY",
    "decided": "TRANSACTION",
    "anything": "MIXED",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Has one topic of each type."""
    settings = {"recallMessageEnable": "true", "transactionTimeOut": "1000", "transactionCheckInterval": "500"}
    settings |= {"enableLmq": "true", "enableMultiDispatch": "true"}
    with LocalCluster(config=settings) as made:
        with Admin(namesrv=made.namesrv) as admin:
            for name, kind in TYPES.items():
                admin.create_topic(name, queues=8, attributes={"message.type": kind})
        yield made
