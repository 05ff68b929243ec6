"""`contrailmq admin` while a master is away, and how slaves stand."""

from __future__ import annotations

from typing import Any

from admin_command import run, run_json

from contrailmq import Admin, ConsumeFromWhere, Message, Producer, PushConsumer, SendStatus, StoredMessage
from contrailmq.message import create_unique_id
from contrailmq.testing import LocalCluster
from waiting_for import until


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


def lose_master(cluster: LocalCluster) -> None:
    """Until the NameServer has forgotten it too."""
    cluster.wait_until_replicated()
    until(lambda: "Orders" in cluster.broker(cluster.slave_index()).node.topics, "the topic at the slave")
    cluster.kill_broker(0)
    with Admin(namesrv=cluster.namesrv) as admin:
        until(lambda: 0 not in admin.cluster().broker_addr_table["broker-0"].broker_addrs, "no master in the list")


def test_what_the_slave_has_is_read_from_it_while_the_master_is_away() -> None:
    """Tables were empty with exit code 0, and a message that the slave has was said not to be there."""
    with LocalCluster(slaves=1) as cluster:
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            sent = [producer.send(Message("Orders", b"%d" % number, keys=["k"])) for number in range(5)]
        asked = [
            ("message", "by-key", "Orders", "k"),
            ("message", "by-time", "Orders", "--since", "-1h"),
            ("message", "get", "Orders", sent[0].message_id),
            ("message", "get", "Orders", sent[0].offset_message_id),
            ("topic", "status", "Orders"),
        ]
        before = [run_json(cluster, *command) for command in asked]
        assert len(before[0]) == len(before[1]) == 5
        assert before[2] == before[3]
        tail = run(cluster, "message", "tail", "Orders")
        run(cluster, "group", "create", "billing")
        until(lambda: "billing" in cluster.broker(cluster.slave_index()).node.groups, "the group at the slave")
        lose_master(cluster)
        assert [run_json(cluster, *command) for command in asked] == before
        note = f"note: broker-0 has no master now, and its slave {cluster.broker_addresses[cluster.slave_index()]}"
        for command in asked:
            assert note in run(cluster, *command), command
        assert note in run(cluster, "group", "list")
        assert tail in run(cluster, "message", "tail", "Orders")
        assert "has no message" in run(cluster, "message", "get", "Orders", create_unique_id(), code=1)
        for command in (("producers",), ("export",), ("group", "reset", "billing", "Orders", "--to", "earliest")):
            assert "broker 'broker-0' has no master address in the route: it is down" in run(cluster, *command, code=1)


def test_a_message_that_only_the_broker_that_is_away_can_have_is_not_said_to_be_missing() -> None:
    """By its place, at an address that nobody answers; the slave has no message there."""
    with LocalCluster(slaves=1) as cluster:
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            place = producer.send(Message("Orders", b"x")).offset_message_id
        beyond = place[:-16] + f"{1 << 30:016X}"
        assert "has no message" in run(cluster, "message", "get", "Orders", beyond, code=1)
        address = cluster.broker_addresses[0]
        lose_master(cluster)
        printed = run(cluster, "message", "get", "Orders", beyond, code=1)
        assert f"error: cannot connect to {address}" in printed
        assert "has no message" not in printed


def status(cluster: LocalCluster, *address: str) -> dict[str, Any]:
    """Of the only slave. (A connection that was just lost may be in the table beside it, without an id.)"""
    rows = run_json(cluster, "ha", "status", *address)
    (row,) = [row for row in rows if address or row["id"] == 1]
    assert isinstance(row, dict)
    return row


def test_a_slave_that_is_not_connected_is_not_said_to_be_in_step() -> None:
    """`lag_s` was 0 then, as it had been before, and a slave's address gave an empty table."""
    config = {"haSendHeartbeatInterval": "100", "haHousekeepingInterval": "1500"}
    with LocalCluster(slaves=1, config=config) as cluster:
        slave = cluster.slave_index()
        of_slave = cluster.broker_addresses[slave]

        def is_said(expected: dict[str, object], *address: str) -> bool:
            row = status(cluster, *address)
            return {name: row[name] for name in expected} == expected

        with Producer("shop", namesrv=cluster.namesrv) as producer:
            producer.send(Message("Orders", b"both"))
            cluster.wait_until_replicated()
            at_slave = cluster.broker(slave).store.log_max_offset
            in_step = {"connected": True, "acknowledged": at_slave, "lag_bytes": 0, "lag_s": 0.0}
            until(lambda: is_said(in_step | {"in_sync": True}), "in step, as the master says")
            until(lambda: is_said(in_step | {"slave": of_slave}, of_slave), "in step, as the slave says")
            assert status(cluster, of_slave)["master"] == status(cluster)["master"]
            assert status(cluster)["master"].startswith("127.0.0.1:")
            cluster.partition(0, slave)
            until(lambda: is_said({"connected": False}), "the master misses it")
            until(lambda: is_said({"connected": False}, of_slave), "it misses the master")
            producer.send(Message("Orders", b"the master's alone"))
        behind = cluster.broker(0).store.log_max_offset - at_slave
        assert behind > 0
        cut_off = {"connected": False, "acknowledged": at_slave, "lag_s": None}
        assert is_said(cut_off | {"lag_bytes": behind, "in_sync": False, "silent_s": None}), status(cluster)
        assert is_said(cut_off | {"lag_bytes": None}, of_slave), "it lacked nothing then, and knows no more"
        for printed in (run(cluster, "ha", "status"), run(cluster, "ha", "status", of_slave)):
            assert "not connected" in printed
            assert " - " in printed
        cluster.kill_broker(0)
        until(lambda: is_said(cut_off | {"lag_bytes": None}), "nobody knows the master's end")
        cluster.restart_broker(slave)
        until(lambda: is_said({"connected": False, "lag_bytes": None}, of_slave), "a slave that heard of no master")
