"""Apache's Java clients and mqadmin, unchanged, against our NameServer and broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from apache import Apache, facts

from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Java client (remoting)", "5.5.0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config={"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}) as running:
        yield running


def bodies(output: str) -> list[str]:
    return [fact[5] for fact in facts(output, "got")]


def test_the_producer_and_a_concurrent_consumer_with_a_tag(rocketmq: Apache, cluster: LocalCluster) -> None:
    sent = facts(rocketmq.client("produce", cluster.namesrv, "JavaPlain", "20"), "sent")
    assert [fact[0] for fact in sent] == ["SEND_OK"] * 20
    got = rocketmq.client("consume", cluster.namesrv, "java_even", "JavaPlain", "even", "10", "concurrent")
    assert facts(got, "done") == [["true", "0"]]
    assert sorted(bodies(got)) == sorted(f"body-{i}" for i in range(0, 20, 2))
    ids = {fact[5]: (fact[1], fact[2], fact[3]) for fact in sent}  # body -> queue, offset, message id
    for queue, offset, _, _, message_id, body, *_ in facts(got, "got"):
        assert ids[body] == (queue, offset, message_id)


def test_a_batch_arrives_message_by_message(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("batch", cluster.namesrv, "JavaBatch", "10")
    got = rocketmq.client("consume", cluster.namesrv, "java_batch", "JavaBatch", "*", "10", "concurrent")
    assert sorted(bodies(got)) == sorted(f"body-{i}" for i in range(10))


def test_an_sql_subscription_selects_by_property(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("produce", cluster.namesrv, "JavaSql", "12")
    sql = "sql:number >= 3 AND number < 7 OR TAGS = 'odd' AND number > 9"
    got = rocketmq.client("consume", cluster.namesrv, "java_sql", "JavaSql", sql, "5", "concurrent")
    assert sorted(bodies(got)) == sorted(f"body-{i}" for i in (3, 4, 5, 6, 11))


def test_an_orderly_consumer_sees_each_queue_in_order(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("ordered", cluster.namesrv, "JavaOrder", "40")
    got = rocketmq.client("consume", cluster.namesrv, "java_order", "JavaOrder", "*", "40", "orderly")
    by_queue: dict[str, list[int]] = {}
    for queue, _, _, _, _, body, *_ in facts(got, "got"):
        by_queue.setdefault(queue, []).append(int(body.removeprefix("body-")))
    assert sorted(len(numbers) for numbers in by_queue.values()) == [20, 20]
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())


def test_a_failed_message_comes_back_once_with_its_count(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("produce", cluster.namesrv, "JavaRetry", "3")
    got = rocketmq.client("consume", cluster.namesrv, "java_retry", "JavaRetry", "*", "3", "retry")
    assert facts(got, "done") == [["true", "3"]]
    assert sorted((fact[5], fact[2]) for fact in facts(got, "got")) == [(f"body-{i}", "1") for i in range(3)]


def test_lite_pull_gets_everything(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("produce", cluster.namesrv, "JavaLite", "15")
    got = rocketmq.client("litepull", cluster.namesrv, "java_lite", "JavaLite", "15")
    assert sorted(bodies(got)) == sorted(f"body-{i}" for i in range(15))


def test_delayed_messages_arrive_after_their_time(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("delayed", cluster.namesrv, "JavaDelay")
    got = rocketmq.client("consume", cluster.namesrv, "java_delay", "JavaDelay", "*", "3", "concurrent")
    waited = {fact[5]: int(fact[7]) - int(fact[6]) for fact in facts(got, "got")}  # store time - born time
    assert sorted(waited) == ["body-1", "body-2", "body-3"]
    assert waited["body-1"] >= 1000
    assert waited["body-2"] >= 2000  # the wheel rounds a time down to its precision of one second
    assert waited["body-3"] >= 1000


def test_transactions_commit_roll_back_and_are_asked_about(rocketmq: Apache, cluster: LocalCluster) -> None:
    told = rocketmq.client("transactions", cluster.namesrv, "JavaTx")
    assert facts(told, "all-checked") == [["true"]]
    assert {fact[0] for fact in facts(told, "checked")} == {"2", "3"}
    got = rocketmq.client("consume", cluster.namesrv, "java_tx", "JavaTx", "*", "2", "concurrent")
    assert sorted(bodies(got)) == ["body-0", "body-2"]


MQADMIN = [
    (["clusterList"], "DefaultCluster"),
    (["topicList"], "JavaAdmin"),
    (["topicRoute", "-t", "JavaAdmin"], '"brokerName"'),
    (["topicStatus", "-t", "JavaAdmin"], "#Max Offset"),
    (["updateTopic", "-c", "DefaultCluster", "-t", "JavaMade", "-r", "3", "-w", "3"], "success"),
    (["updateSubGroup", "-c", "DefaultCluster", "-g", "java_made_group"], "success"),
    (["queryMsgByKey", "-t", "JavaAdmin", "-k", "key-3"], "#Message ID"),
    (["consumerProgress", "-g", "java_admin"], "#Diff"),
    (["printMsg", "-t", "JavaAdmin"], "body-3"),
    (["updateKvConfig", "-s", "NS", "-k", "K", "-v", "V"], "success"),
    (["statsAll"], "JavaAdmin"),
    (["deleteTopic", "-c", "DefaultCluster", "-t", "JavaMade"], "success"),
]


@pytest.mark.program("mqadmin", "5.5.0")
def test_mqadmin_everyday_commands(rocketmq: Apache, cluster: LocalCluster) -> None:
    rocketmq.client("produce", cluster.namesrv, "JavaAdmin", "8")
    rocketmq.client("consume", cluster.namesrv, "java_admin", "JavaAdmin", "*", "8", "concurrent")
    broker = cluster.broker_addresses[0]
    commands = [
        *MQADMIN,
        (["brokerStatus", "-b", broker], "putTps"),
        (["getBrokerConfig", "-b", broker], "flushDiskType"),
    ]
    outputs = [rocketmq.mqadmin(*command, namesrv=cluster.namesrv) for command, _ in commands]
    failed = {
        " ".join(command): output[-1500:]
        for (command, wanted), output in zip(commands, outputs, strict=True)
        if wanted not in output or "Exception" in output
    }
    assert not failed
