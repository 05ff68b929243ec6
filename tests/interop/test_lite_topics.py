"""Lite topics with the official Java client, which has them since 5.1: before our brokers and proxies and Apache's.

Each of the four pairs must give the same answers. Apache's side is the measure: what differs there is said in
docs/pop.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import apache
import pytest
from apache import Apache, Program, facts
from grpc_programs import SOURCES

from contrailmq import Admin
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from free_ports import free_port

pytestmark = pytest.mark.program("Java client (gRPC)", "5.2.0")

VERSION = "5.2.0"
PARENT = "LiteParent"
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
GROUPS = {
    "LiteFlow": {},
    "LiteExclusive": {"+lite.sub.model": "Exclusive"},
    "LiteQuota": {"+lite.sub.client.quota": "2"},
    "LiteOffsetsmin": {},
    "LiteOffsetstwo": {},
    "LiteOffsetsmax": {},
}
PAIRS = ("our proxy, our broker", "our proxy, Apache's broker", "Apache's proxy, our broker", "Apache's both")
RUN_S = 400


@pytest.fixture(scope="module", params=[pytest.param(name, id=name) for name in PAIRS])
def told(request: pytest.FixtureRequest, rocketmq: Apache) -> Iterator[str]:
    """What the client's program printed."""
    whose: str = request.param
    with ExitStack() as stack:
        if "our broker" in whose:
            cluster = stack.enter_context(LocalCluster(config=LIGHT | {"brokerClusterName": "DefaultCluster"}))
            namesrv = cluster.namesrv
        else:
            namesrv, _ = stack.enter_context(rocketmq.cluster(**LIGHT))
        with Admin(namesrv=namesrv, request_timeout_s=60.0) as admin:
            admin.create_topic(PARENT, queues=4, attributes={"message.type": "LITE"})
            for name, attributes in GROUPS.items():
                bound = {"+lite.bind.topic": PARENT} | attributes
                admin.create_group(SubscriptionGroupConfig(group_name=name, attributes=bound))
        port = free_port()
        if whose.startswith("our"):
            command = [sys.executable, "-m", "contrailmq", "proxy", "-n", namesrv, "--port", str(port)]
            log = rocketmq.work / f"lite-proxy-{port}.log"
            proxy = Program(command, port=port, log=log, env=os.environ, ready=lambda text: "ready proxy" in text)
        else:
            proxy = rocketmq.proxy(namesrv, port)
        stack.enter_context(proxy)
        done = subprocess.run([*_program(), f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=RUN_S)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        yield done.stdout


@pytest.fixture
def is_ours(request: pytest.FixtureRequest) -> bool:
    return "our broker" in request.node.callspec.params["told"]


def _program() -> list[str]:
    try:
        jars = apache.fetch_jars(f"rocketmq-client-java-{VERSION}", [("rocketmq-client-java", VERSION)])
    except apache.Missing as missing:
        pytest.skip(f"rocketmq-client-java {VERSION}: {missing}")
    folder = apache.KEPT / f"lite-java-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    source = SOURCES / "java" / "LiteClient.java"
    subprocess.run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={folder}"]
    return ["java", *options, "-cp", f"{jars}/*:{folder}", "LiteClient"]


def test_every_message_of_its_lite_topics_arrives_in_order_and_again_in_place_after_a_failure(
    told: str, is_ours: bool
) -> None:
    """Apache's brokers say no attempts of a batch where some came before and others did not."""
    flow = facts(told, "flow")
    assert facts(told, "missing") == []
    one = [(fact[1], fact[2]) for fact in flow if fact[0] == "one"]
    assert [fact for fact in one if fact[0].startswith("one-")] == [(f"one-{number}", "1") for number in range(10)]
    assert [fact[1] for fact in one if fact[0] == "fails"] in ([["1", "2"]] if is_ours else [["1", "2"], ["1", "1"]])
    assert [fact[1] for fact in flow if fact[0] == "two"] == [f"two-{number}" for number in range(5)]
    assert {fact[3] for fact in flow} == {PARENT}
    assert facts(told, "sets") == [["true", "2"]]


def test_an_exclusive_group_takes_a_lite_topic_away_from_its_first_consumer(told: str) -> None:
    assert facts(told, "evicted") == [["true"]]
    assert facts(told, "exclusive") == [["second"]]


def test_the_quota_of_a_group_holds(told: str) -> None:
    assert facts(told, "quota") == [["LiteSubscriptionQuotaExceededException"]]


def test_where_a_new_group_begins(told: str) -> None:
    assert [fact[1] for fact in facts(told, "from-min")][:4] == ["old-0", "old-1", "old-2", "old-3"]
    assert [fact[1] for fact in facts(told, "from-two")][:2] == ["old-2", "old-3"]
    assert [fact[1] for fact in facts(told, "from-max")] == ["new"]
