"""The clients' end-to-end tests once more, with Apache's NameServer and broker as the peer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from apache import Apache

from client.test_end_to_end import *  # noqa: F403 -- the same tests, other fixtures
from contrailmq import Admin
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker under our clients", "5.5.0")


@pytest.fixture(scope="module")
def cluster(rocketmq: Apache) -> Iterator[SimpleNamespace]:
    with rocketmq.cluster(autoCreateTopicEnable="true") as (namesrv, broker):
        # The port opens before the broker has told the NameServer of its topics.
        until(lambda: "TBW102" in Admin(namesrv=namesrv).topics())
        yield SimpleNamespace(namesrv=namesrv, broker_address=broker.address)
