"""`contrailmq admin migrate plan`: what of a cluster carries over, by the tables that a start of ours goes by."""

from __future__ import annotations

import pytest
from admin_command import run, run_json

from contrailmq.broker.foreign_settings import PROMISES
from contrailmq.cli.admin.migrating import BrokerFacts, Urgency, examine
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import TopicConfig, TopicConfigWrapper, TopicQueueMapping

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
        (broker(topics=topics(message_type="LITE")), Urgency.BLOCKS, "Odd: gRPC's lite topics are not served"),
        (
            broker(
                topics=TopicConfigWrapper(topic_queue_mapping_info_map={"Mapped": TopicQueueMapping(topic="Mapped")})
            ),
            Urgency.BLOCKS,
            "Mapped: queues that are mapped over brokers are not served",
        ),
        (broker(timerReadBehind="7"), Urgency.FIRST, "the timer wheel is 7 behind"),
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


def test_a_cluster_of_ours_carries_over(contrailmq_cluster: LocalCluster) -> None:
    plan = run_json(contrailmq_cluster, "migrate", "plan")
    assert (plan["status"], plan["brokers"]) == ("kept", 1)
    assert {found["about"] for found in plan["findings"]} == {"version", "topics", "groups"}
    assert "1 broker looked at: carries over" in run(contrailmq_cluster, "migrate", "plan")
