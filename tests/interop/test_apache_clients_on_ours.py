"""Apache's own Java clients and mqadmin against our NameServer and broker, unchanged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from apache import Apache, facts

from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Java client (remoting)", "5.5.0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config={"brokerClusterName": "DefaultCluster"}) as made:
        yield made


def bodies(output: str) -> list[str]:
    return sorted(fact[5] for fact in facts(output, "got"))


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_javas_producer_and_push_consumer(rocketmq: Apache, cluster: LocalCluster, mode: str) -> None:
    topic = f"Java_{mode}"
    sent = rocketmq.client("produce", cluster.namesrv, topic, "20")
    assert [fact[0] for fact in facts(sent, "sent")] == ["SEND_OK"] * 20
    got = rocketmq.client("consume", cluster.namesrv, f"java_{mode}", topic, "*", "20", mode)
    assert bodies(got) == sorted(f"body-{n}" for n in range(20))


def test_javas_tag_filter_batches_and_lite_pull(rocketmq: Apache, cluster: LocalCluster) -> None:
    sent = rocketmq.client("batch", cluster.namesrv, "Java_batch", "8")
    assert {fact[0] for fact in facts(sent, "sent")} == {"SEND_OK"}
    even = rocketmq.client("consume", cluster.namesrv, "java_even", "Java_batch", "even", "4", "concurrent")
    assert bodies(even) == ["body-0", "body-2", "body-4", "body-6"]
    pulled = rocketmq.client("litepull", cluster.namesrv, "java_lite", "Java_batch", "8")
    assert facts(pulled, "done")[0][0] == "true"


COMMANDS = """clusterList
updateTopic -c DefaultCluster -t AdmT -r 4 -w 4 -a +message.type=NORMAL
sendMessage -t AdmT -p hello -k key1 -c TagA
topicStatus -t AdmT
queryMsgByKey -t AdmT -k key1
brokerStatus -b {broker}
updateSubGroup -c DefaultCluster -g AdmG
topicList
topicRoute -t AdmT
consumeMessage -t AdmT -g AdmG -c 1
resetOffsetByTime -g AdmG -t AdmT -s -1
consumerProgress -g AdmG
consumerProgress
getBrokerConfig -b {broker}
updateBrokerConfig -b {broker} -k traceOn -v false
statsAll
printMsg -t AdmT
brokerConsumeStats -b {broker}
cleanExpiredCQ
cleanUnusedTopic
deleteExpiredCommitLog
getConsumerConfig -g AdmG
queryCq -t AdmT -q 0 -i 0 -c 3
haStatus -b {broker}
updateTopicPerm -b {broker} -t AdmT -p 4
skipAccumulatedMessage -g AdmG -t AdmT
producer -b {broker}
deleteSubGroup -c DefaultCluster -g AdmG
deleteTopic -c DefaultCluster -t AdmT"""


@pytest.mark.program("mqadmin", "5.5.0")
def test_mqadmins_everyday_commands(rocketmq: Apache, cluster: LocalCluster) -> None:
    """Every command ends without an exception, and what it prints shows what the commands before it did."""
    commands = COMMANDS.format(broker=cluster.broker_addresses[0]).splitlines()
    lines = "".join(f"{command} -n {cluster.namesrv}\n" for command in commands)
    done = subprocess.run(
        rocketmq.java("AdminTour"),
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        env=rocketmq.environment(),
    )
    outputs = dict(zip(commands, done.stdout.split("<<< ")[1:], strict=True))
    failed = {command: output for command, output in outputs.items() if "Exception" in output}
    assert not failed, failed
    assert "SEND_OK" in outputs[commands[2]]
    assert "V5_3_3" in outputs["clusterList"]
    assert "AdmT" in outputs["topicList"]
    assert "key1" in outputs["queryMsgByKey -t AdmT -k key1"]
    assert "TagA" in outputs["printMsg -t AdmT"]
    assert "success" in outputs["deleteTopic -c DefaultCluster -t AdmT"]
