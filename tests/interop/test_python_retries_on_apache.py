"""Retries, dead letters, delays and transactions of the clients, with Apache's broker as the peer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from apache import Apache

from client.test_retries import *  # noqa: F403 -- the same tests, other fixtures
from contrailmq import Admin
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker under our clients", "5.5.0")


@pytest.fixture(scope="module")
def quick(rocketmq: Apache) -> Iterator[SimpleNamespace]:
    with rocketmq.cluster(
        autoCreateTopicEnable="true",
        messageDelayLevel=" ".join(["1s"] * 18),
        recallMessageEnable="true",
        transactionTimeOut=1000,
        transactionCheckInterval=500,
    ) as (namesrv, broker):
        until(lambda: "TBW102" in Admin(namesrv=namesrv).topics())
        yield SimpleNamespace(namesrv=namesrv, broker_address=broker.address)
