"""`contrailmq admin` while a master is away, and how slaves stand."""

from __future__ import annotations

import time
from collections.abc import Callable

from admin_command import run, run_json

from contrailmq import Admin, ConsumeFromWhere, Message, Producer, PushConsumer, SendStatus, StoredMessage
from contrailmq.testing import LocalCluster

WAIT_S = 60.0  # a bound for a machine that is busy, not a duration


def until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.02)


def consumed(cluster: LocalCluster, index: int) -> int:
    return sum(cluster.broker(index).node.offsets.queues("billing", "Orders").values())


def test_progress_is_the_slaves_answer_while_the_master_is_away() -> None:
    with LocalCluster(slaves=1) as cluster:
        got: list[bytes] = []

        def handle(messages: list[StoredMessage]) -> None:
            got.extend(message.body for message in messages)

        with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(10):
                assert producer.send(Message("Orders", b"%d" % number)).status is SendStatus.OK
            consumer = PushConsumer("billing", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
            consumer.subscribe("Orders")
            consumer.listen(handle)
            with consumer:
                until(lambda: len(set(got)) == 10, "all messages")
            producer.send(Message("Orders", b"unread"))
        slave = cluster.slave_index()
        cluster.wait_until_replicated()
        until(lambda: consumed(cluster, slave) == consumed(cluster, 0) == 10, "the offsets at the slave")
        until(lambda: "billing" in Admin(namesrv=cluster.namesrv).groups(), "the group")
        asked = ("group", "progress", "billing", "--topic", "Orders")
        before = run_json(cluster, *asked)
        assert sum(row["lag"] for row in before) == 1
        cluster.kill_broker(0)

        def is_forgotten() -> bool:
            with Admin(namesrv=cluster.namesrv) as admin:
                return 0 not in admin.cluster().broker_addr_table["broker-0"].broker_addrs

        until(is_forgotten, "the NameServer forgets the master")
        assert run_json(cluster, *asked) == before
        assert "lag: 1" in run(cluster, "group", "progress", "billing")
        assert "broker 'broker-0' has no master address" in run(cluster, "group", "create", "other", code=1)
        cluster.stop_broker(slave)
        until(
            lambda: "no broker is registered at the NameServer: start one" in run(cluster, *asked, code=1),
            "nobody to ask",
        )
