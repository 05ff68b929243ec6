"""The harness itself: Apache's client, NameServer and broker talk to each other before ours takes part."""

from __future__ import annotations

import pytest
from apache import Apache, facts

pytestmark = pytest.mark.program("Java client (remoting)", "5.5.0")


def test_apaches_own_producer_and_consumer_work_here(rocketmq: Apache) -> None:
    with rocketmq.cluster() as (namesrv, _):
        sent = rocketmq.client("produce", namesrv, "HarnessTopic", "4")
        assert [fact[0] for fact in facts(sent, "sent")] == ["SEND_OK"] * 4
        got = rocketmq.client("consume", namesrv, "harness_group", "HarnessTopic", "even", "2", "concurrent")
        assert sorted(fact[5] for fact in facts(got, "got")) == ["body-0", "body-2"]
