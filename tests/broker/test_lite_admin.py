"""What administrators ask of lite topics, as mqadmin 5.5 reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.harness import Link
from broker.lite_bench import PARENT, POP_LITE, LiteBench, bodies, given, queue_of
from contrailmq.wire.codes import ResponseCode

BROKER, PARENT_INFO, LITE_TOPIC, CLIENT, GROUP, DISPATCH = range(200074, 200080)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LiteBench]:
    made = LiteBench(tmp_path, expiration=30)
    made.subscribe("room1", "room2")
    made.put("room1", "a", "b", "c")
    made.put("room2", "d")
    yield made
    made.close()


def told(bench: LiteBench, code: int, **fields: object) -> Any:
    answer = bench.ask(code, {name: str(value) for name, value in fields.items()})
    assert answer.code == 0, answer.remark
    return json.loads(answer.body)


def test_a_broker_says_how_much_there_is(bench: LiteBench) -> None:
    bench.given(maxMsgNum=1)
    info = told(bench, BROKER)
    assert info == {
        "cqTableSize": 3,
        "currentLmqNum": 2,
        "eventMapSize": 1,
        "groupMeta": {PARENT: ["g"]},
        "liteSubscriptionCount": 2,
        "maxLmqNum": 20_000,
        "offsetTableSize": 2,
        "orderInfoCount": 1,
        "storeType": "default",
        "topicMeta": {PARENT: 30},
    }


def test_a_parent_says_its_lite_topics_and_groups(bench: LiteBench) -> None:
    info = told(bench, PARENT_INFO, topic=PARENT)
    assert info == {"groups": ["g"], "liteTopicCount": 2, "lmqNum": 2, "topic": PARENT, "ttl": 30}


def test_a_lite_topic_says_its_offsets_and_subscribers(bench: LiteBench) -> None:
    bench.bind("w", lite_sub_wildcard="true")
    bench.control("COMPLETE_ADD", client="c9", group="w")
    info = told(bench, LITE_TOPIC, parentTopic=PARENT, liteTopic="room1")
    assert (info["topicOffset"]["minOffset"], info["topicOffset"]["maxOffset"]) == (0, 3)
    assert info["topicOffset"]["lastUpdateTimestamp"] > 0
    assert info["subscriber"] == [{"clientId": "c1", "group": "g"}, {"clientId": "*", "group": "w"}]
    info = told(bench, LITE_TOPIC, parentTopic=PARENT, liteTopic="none")
    assert (info["topicOffset"]["maxOffset"], info["shardingToBroker"]) == (0, False)


def test_a_client_says_what_it_has(bench: LiteBench) -> None:
    bench.given()
    info = told(bench, CLIENT, parentTopic=PARENT, group="g", clientId="c1", maxCount=1)
    assert (info["liteTopicCount"], info["liteTopicSet"]) == (2, [queue_of("room1")])
    assert info["lastAccessTime"] == info["lastConsumeTime"] == bench.clock.now_ms()
    assert told(bench, CLIENT, parentTopic=PARENT, group="g", clientId="nobody")["liteTopicCount"] == -1


def test_a_group_says_how_far_behind_it_is(bench: LiteBench) -> None:
    bench.done(*bench.given(maxMsgNum=2))
    one = told(bench, GROUP, group="g", liteTopic="room1")
    assert (one["totalLagCount"], one["liteTopicOffsetWrapper"]["consumerOffset"]) == (1, 2)
    assert one["earliestUnconsumedTimestamp"] > 0
    assert told(bench, GROUP, group="g", liteTopic="none")["totalLagCount"] == -1
    bench.put("room1", "e")
    every = told(bench, GROUP, group="g", topK=1)
    assert (every["totalLagCount"], every["parentTopic"]) == (3, PARENT)
    assert [(lag["liteTopic"], lag["lagCount"]) for lag in every["lagCountTopK"]] == [("room1", 2)]
    assert len(every["lagTimestampTopK"]) == 1


def test_a_dispatch_wakes_who_waits_although_there_are_messages(bench: LiteBench) -> None:
    found = bench.given()
    link = Link(1)
    assert not bench.tell(POP_LITE, bench.lite_fields(pollTime=15_000), link=link)
    bench.node.commit_offset("g", queue_of("room1"), 0, 1)  # an operator's, which wakes nobody
    bench.lite._orders.drop((queue_of("room1"), "g", 0))
    assert not link.take()
    assert bench.ask(DISPATCH, {"group": "g", "clientId": "other"}).code == 0
    assert not link.take()
    assert bench.ask(DISPATCH, {"group": "g"}).code == 0
    assert bodies(given(link.take()[0])) == ["b", "c"]
    assert len(found) == 4


def test_what_does_not_fit_is_refused(bench: LiteBench) -> None:
    bench.bind("other")
    for code, fields, expected in (
        (PARENT_INFO, {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        (PARENT_INFO, {"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER),
        (LITE_TOPIC, {"parentTopic": "TBW102", "liteTopic": "a"}, ResponseCode.INVALID_PARAMETER),
        (
            CLIENT,
            {"parentTopic": PARENT, "group": "none", "clientId": "c"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        (GROUP, {"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (GROUP, {"group": "TOOLS_CONSUMER"}, ResponseCode.INVALID_PARAMETER),
        (DISPATCH, {"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ):
        assert bench.ask(code, fields).code == expected, (code, fields)
