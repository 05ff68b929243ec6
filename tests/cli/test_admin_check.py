"""`contrailmq admin check`: each thing that can be wrong is made wrong, and found, with remedy and exit code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from admin_command import run
from typer.testing import CliRunner

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
    aio,
)
from contrailmq.cli import app
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from free_ports import free_port
from proxy.calling import Caller, message, topic
from proxy.test_in_broker import broker_with_grpc, make_topic
from proxy.test_members import entry, ids, opened, settings, wants
from waiting_for import until, until_async

pytestmark = pytest.mark.servers
Findings = list[dict[str, str]]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


def check(cluster: LocalCluster | str, *arguments: str) -> tuple[int, Findings]:
    """Exit code and findings, of a cluster or of the NameServer's address."""
    namesrv = cluster if isinstance(cluster, str) else cluster.namesrv
    result = CliRunner().invoke(app, ["admin", "check", *arguments, "--json", "--namesrv", namesrv])
    assert result.exit_code in (0, 3, 4), result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["status"] == {0: "ok", 3: "warning", 4: "critical"}[result.exit_code]
    return result.exit_code, answer["findings"]


def check_until(cluster: LocalCluster, wanted: Callable[[Findings], bool], *arguments: str) -> tuple[int, Findings]:
    """A cluster learns things a moment later."""
    told: tuple[int, Findings] = (0, [])

    def is_told() -> bool:
        nonlocal told
        told = check(cluster, *arguments)
        return wanted(told[1])

    until(is_told, "the findings that are wanted", seen=lambda: told)
    return told


def of(findings: Findings, about: str) -> Findings:
    return [finding for finding in findings if finding["about"] == about]


def consume(namesrv: str, group: str, *, leave: int) -> None:
    """Take what there is in T and commit all but the last `leave`."""
    with LitePullConsumer(group, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.subscribe("T")
        assert consumer.poll(timeout=120.0)
        consumer.commit()
    with Admin(namesrv=namesrv) as admin:
        for queue in admin.queues("T"):
            admin.set_offset(group, queue, max(admin.max_offset(queue) - leave, 0))


def test_a_healthy_cluster_is_said_to_be_so(cluster: LocalCluster) -> None:
    with Producer("P", namesrv=cluster.namesrv) as producer:
        producer.send(Message("T", b"x"))
    consume(cluster.namesrv, "G", leave=0)
    assert check(cluster) == (0, [])
    assert run(cluster, "check") == "nothing is wrong (1 broker, 1 group)\n"


def test_a_group_that_nobody_consumes_for_is_a_warning_with_its_number(cluster: LocalCluster) -> None:
    with Producer("P", namesrv=cluster.namesrv) as producer:
        queue = producer.send(Message("T", b"x")).queue
        consume(cluster.namesrv, "G", leave=0)
        for _ in range(5):
            producer.send(Message("T", b"x"), queue=queue)
    code, (finding,) = check(cluster)
    assert code == 3
    assert (finding["about"], finding["where"]) == ("lag", "G")
    assert finding["text"] == "nobody consumes, and the backlog is 5 messages"
    assert "contrailmq admin group delete G" in finding["remedy"]
    text = run(cluster, "check", code=3)
    assert text.startswith("warning: lag: G: nobody consumes, and the backlog is 5 messages\n    start its consumers")
    assert text.endswith("1 finding (1 broker, 1 group)\n")


def test_a_consumer_over_grpc_is_somebody_who_consumes_and_is_compared_with_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            broker_with_grpc(tmp_path, free_port()) as serving,
            grpc.aio.insecure_channel(serving.address) as channel,
        ):
            namesrv = serving.member.server.config.namesrv_addresses[0]
            await make_topic(serving, "T", "NORMAL")
            streams = [await opened(Caller(channel, f"over-grpc@{n}"), settings(entry("T"), group="G")) for n in (1, 2)]
            await until_async(lambda: len(ids(serving, "G")) == 2)
            assert (await Caller(channel).call("SendMessage", messages=[message("T")])).status.code == Code.OK
            async with aio.Admin(namesrv=namesrv) as admin:
                for queue in await admin.queues("T"):
                    await admin.set_offset("G", queue, 0)
            assert await asyncio.to_thread(check, namesrv) == (0, [])
            await streams[1].write(settings(entry("T", "paid"), group="G"))
            await until_async(lambda: wants(serving, "T", "G") == "paid")
            _, [finding] = await asyncio.to_thread(check, namesrv)
            assert (finding["about"], finding["where"]) == ("subscriptions", "G")
            for number, stream in enumerate(streams, 1):
                await Caller(channel, f"over-grpc@{number}").call("NotifyClientTermination", group=topic("G"))
                stream.cancel()
            await until_async(lambda: not ids(serving, "G"))
            _, [finding] = await asyncio.to_thread(check, namesrv)
            assert finding["text"] == "nobody consumes, and the backlog is 1 message"

    asyncio.run(asyncio.wait_for(main(), 240))


def test_a_consumer_that_is_far_behind_is_a_warning(cluster: LocalCluster) -> None:
    with Producer("P", namesrv=cluster.namesrv) as producer:
        producer.send_batch([Message("T", b"x") for _ in range(5)])
    consume(cluster.namesrv, "G", leave=3)
    consumer = LitePullConsumer("G", namesrv=cluster.namesrv, auto_commit=False)
    with consumer, Admin(namesrv=cluster.namesrv) as admin:
        consumer.subscribe("T")
        while admin.consumers("G") is None:
            consumer.poll(timeout=0.1)
        assert check(cluster) == (0, [])
        code, (finding,) = check(cluster, "--lag-messages", "2")
        assert (code, finding["text"]) == (3, "the backlog is 3 messages of T, more than 2")
        code, (finding,) = check(cluster, "--lag-minutes", "0")
        assert finding["text"] == "the backlog is 3 messages of T, some of it older than 0 minutes"


def test_members_that_subscribe_differently_are_found(cluster: LocalCluster) -> None:
    with Producer("P", namesrv=cluster.namesrv) as producer:
        producer.send(Message("T", b"x", tags="a"))
    consumers = []
    for expression in ("a", "b"):
        consumer = PushConsumer("G", namesrv=cluster.namesrv, instance_name=f"of-{expression}")
        consumer.subscribe("T", expression)
        consumer.listen(lambda messages: None)
        consumer.start()
        consumers.append(consumer)
    try:
        code, findings = check_until(cluster, lambda found: bool(of(found, "subscriptions")))
    finally:
        for consumer in consumers:
            consumer.shutdown()
    (finding,) = of(findings, "subscriptions")
    assert code == 3
    assert finding["where"] == "G"
    assert "T a" in finding["text"]
    assert "T b" in finding["text"]


def test_transactions_that_stay_open_are_found(cluster: LocalCluster) -> None:
    with TransactionProducer(
        "TP",
        namesrv=cluster.namesrv,
        execute=lambda message, arg: TransactionState.UNKNOWN,
        check=lambda message: TransactionState.UNKNOWN,
    ) as producer:
        for _ in range(2):
            producer.send_in_transaction(Message("TX", b"x"), None)
    assert check(cluster) == (0, [])
    code, (finding,) = check(cluster, "--half-minutes", "0")
    assert code == 3
    assert finding["about"] == "transactions"
    assert finding["text"] == "2 transactions of TX open for up to 0 minutes"


def test_a_clock_that_differs_is_found(cluster: LocalCluster) -> None:
    """Two clocks are never read at the same moment."""
    code, (finding,) = check(cluster, "--clock-s", "0")
    assert (code, finding["about"]) == (3, "clock")
    assert "this machine's: delays, retention and searches go by it" in finding["text"]


def test_a_disk_beyond_the_settings_is_found() -> None:
    with LocalCluster(config={"diskMaxUsedSpaceRatio": "10", "cleanFileForciblyEnable": "false"}) as cluster:
        code, findings = check(cluster)
    (finding,) = of(findings, "disk")
    assert code in (3, 4)  # how full this machine's disk is decides
    assert "% full" in finding["text"]
    assert "fileReservedTime (72 h)" in finding["remedy"]


def test_a_slave_that_does_not_follow_and_a_master_that_is_gone_are_critical_and_come_first() -> None:
    with LocalCluster(slaves=1) as cluster:
        with Producer("P", namesrv=cluster.namesrv) as producer:
            producer.send(Message("T", b"x"))
        check_until(cluster, lambda found: not found)
        cluster.partition(0, 1)
        code, findings = check_until(cluster, lambda found: bool(of(found, "replication")), "--clock-s", "0")
        assert code == 4
        assert findings[0]["about"] == "replication"
        assert "its master" in findings[0]["text"]  # silent first, and then not connected any more
        assert [finding["about"] for finding in findings[1:]] == ["clock"] * (len(findings) - 1)
        cluster.heal()
        check_until(cluster, lambda found: not found)
        cluster.kill_broker(0)
        gone = "its master is gone, 1 slave left"  # until the NameServer knows, it only does not answer
        code, findings = check_until(cluster, lambda found: bool(found) and gone in found[0]["text"])
        assert (code, findings[0]["about"]) == (4, "broker")


def test_an_unreachable_name_server_is_an_error_and_not_a_finding() -> None:
    result = CliRunner().invoke(app, ["admin", "check", "--namesrv", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
