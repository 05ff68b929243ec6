"""`contrailmq admin migrate plan`: what of a cluster carries over, by the tables that a start of ours goes by."""

from __future__ import annotations

import json
from typing import Any

import pytest
from admin_command import asked

from contrailmq.broker.foreign_settings import PROMISES
from contrailmq.cli.admin.migrating import BrokerFacts, Urgency, examine
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import TopicConfig, TopicConfigWrapper, TopicQueueMapping
from waiting_for import until

# What Apache 5.5.0's brokers answer when nothing is set, of what matters here.
PLAIN = {"storeType": "default", "configManagerVersion": "v1", "aclEnable": "false", "messageStorePlugIn": ""}


def broker(
    settings: dict[str, str] | None = None, topics: TopicConfigWrapper | None = None, **figures: str
) -> BrokerFacts:
    return BrokerFacts(
        "broker-a",
        0,
        "10.0.0.1:10911",
        settings=PLAIN | (settings or {}),
        figures={"brokerVersionDesc": "V5_5_0"} | figures,
        topics=topics or TopicConfigWrapper(),
    )


def topics(**attributes: str) -> TopicConfigWrapper:
    config = TopicConfig(
        topic_name="Odd", attributes={name.replace("_", "."): text for name, text in attributes.items()}
    )
    return TopicConfigWrapper(topic_config_table={"Odd": config, "Plain": TopicConfig(topic_name="Plain")})


@pytest.mark.parametrize(
    ("facts", "urgency", "text"),
    [
        (broker({"aclEnable": "true"}), Urgency.BLOCKS, "aclEnable=true: access control is not built yet"),
        (broker({"enableControllerMode": "true"}), Urgency.BLOCKS, "enableControllerMode=true: no controller elects"),
        (broker({"timerRocksDBEnable": "true"}), Urgency.BLOCKS, "timerRocksDBEnable=true: RocksDB is not used"),
        (broker({"storeType": "defaultRocksDB"}), Urgency.BLOCKS, "storeType=defaultRocksDB"),
        (
            broker({"messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore"}),
            Urgency.BLOCKS,
            "such as tiered storage, are not loaded",
        ),
        (broker(topics=topics(cleanup_policy="COMPACTION")), Urgency.BLOCKS, "Odd: they are kept whole"),
        (broker(topics=topics(message_type="LITE")), Urgency.KEPT, "2 topics, from config/topics.json"),
        (
            broker(
                topics=TopicConfigWrapper(topic_queue_mapping_info_map={"Mapped": TopicQueueMapping(topic="Mapped")})
            ),
            Urgency.BLOCKS,
            "Mapped: queues that are mapped over brokers are not served",
        ),
        (broker(timerReadBehind="7"), Urgency.FIRST, "the timer wheel is 7 s late"),
        (broker(timerOffsetBehind="1"), Urgency.FIRST, "not in the timer wheel yet: 1 message of its topic"),
        (broker(timerOffsetBehind="3000"), Urgency.FIRST, "not in the timer wheel yet: 3,000 messages"),
        (broker({"deleteWhen": "noon"}), Urgency.FIRST, "deleteWhen"),
        (broker(topics=topics(message_type="FIFO")), Urgency.KEPT, "2 topics, from config/topics.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_broker_says_decides_what_carries_over(facts: BrokerFacts, urgency: Urgency, text: str) -> None:
    findings = examine(facts)
    (found,) = [found for found in findings if text in found.text]
    assert found.urgency is urgency
    assert bool(found.remedy) == (urgency is not Urgency.KEPT)
    assert max(other.urgency for other in findings) is urgency


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.key)
def test_what_a_start_refuses_the_plan_names(promise: object) -> None:
    """One table says both: nothing that stops a start is missing from a plan."""
    key = getattr(promise, "key", "")
    value = "v2" if key == "configManagerVersion" else "plug.In" if key == "messageStorePlugIn" else "true"
    assert [found.text for found in examine(broker({key: value})) if found.text.startswith(f"{key}={value}: ")]


def test_a_broker_that_does_not_answer_is_said_and_not_guessed_about() -> None:
    (found,) = examine(BrokerFacts("broker-b", 1, "10.0.0.2:10911", faults=["cannot connect to 10.0.0.2:10911"]))
    assert found.urgency is Urgency.FIRST
    assert found.where == "broker-b (slave 1, 10.0.0.2:10911)"
    assert found.text == "not looked at: cannot connect to 10.0.0.2:10911"


def test_each_figure_of_the_timers_has_its_unit_and_its_own_remedy() -> None:
    """Seconds and messages are never one number, and what is 0 is not waited for."""
    late, behind = (found for found in examine(broker(timerReadBehind="7", timerOffsetBehind="2")) if found.remedy)
    assert "7 s" in late.text
    assert "timerReadBehind 0" in late.remedy
    assert "2 messages" in behind.text
    assert "timerOffsetBehind 0" in behind.remedy
    assert "timerReadBehind" not in behind.remedy


def test_a_cluster_of_ours_carries_over(contrailmq_cluster: LocalCluster) -> None:
    """Once its timers are in time: a process that stood still for a second says that they are late."""
    plan: dict[str, Any] = {}

    def carries_over() -> bool:
        plan.update(json.loads(asked(contrailmq_cluster, "migrate", "plan", "--json").stdout))
        return plan["status"] == "kept"

    until(carries_over, "the plan says that the cluster carries over", seen=lambda: plan)
    assert plan["brokers"] == 1
    assert {found["about"] for found in plan["findings"]} == {"version", "topics", "groups"}
    last_line = "1 broker looked at: carries over"
    until(lambda: last_line in asked(contrailmq_cluster, "migrate", "plan").stdout, "its text says so too")
