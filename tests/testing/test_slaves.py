"""Masters and slaves as users start them: what is acknowledged is on both, reading goes on, and comes back."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from contrailmq import Admin, ConsumeFromWhere, Message, Producer, PushConsumer, SendStatus, StoredMessage
from contrailmq.store import StoreConfig, StoreView, verify_store
from contrailmq.testing import LocalCluster
from waiting_for import until

SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}


def send(cluster: LocalCluster, bodies: list[bytes]) -> None:
    with Producer("producers", namesrv=cluster.namesrv) as producer:
        for body in bodies:
            assert producer.send(Message("Orders", body, keys=body.decode())).status is SendStatus.OK


def log_of(cluster: LocalCluster, name: str) -> bytes:
    files = sorted((cluster.store_path / name / "commitlog").glob("[0-9]*"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"order-%d" % number for number in range(begin, end)]


def test_what_is_acknowledged_is_on_both_and_is_read_from_the_slave_when_the_master_is_killed() -> None:
    with LocalCluster(slaves=1, config=SYNC) as cluster:
        send(cluster, numbered(0, 50))
        got: list[bytes] = []

        def handle(messages: list[StoredMessage]) -> None:
            got.extend(message.body for message in messages)

        consumer = PushConsumer("billing", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("Orders")
        consumer.listen(handle)
        with consumer:
            until(lambda: len(set(got)) == 50, "all of the master's")
        send(cluster, numbered(50, 100))
        cluster.wait_until_replicated()
        until(lambda: "Orders" in cluster.broker(cluster.slave_index()).node.topics, "the topic at the slave")
        until(lambda: slave_offsets(cluster) == 50, "the offsets at the slave")
        cluster.kill_broker(0)
        got.clear()
        again = PushConsumer("billing", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        again.subscribe("Orders")
        again.listen(handle)
        with again:
            until(lambda: set(numbered(50, 100)) <= set(got), "the rest from the slave")
        assert set(got) == set(numbered(50, 100)), "it went on where it was"
        until(lambda: slave_offsets(cluster) == 100, "commits at the slave")
        cluster.restart_broker(0)
        until(lambda: offsets_of(cluster, 0) == 100, "the offsets committed at the slave, at the master that is back")
        cluster.wait_until_replicated()
        assert log_of(cluster, "broker-0") == log_of(cluster, "broker-0-slave-1")


def offsets_of(cluster: LocalCluster, index: int) -> int:
    return sum(cluster.broker(index).node.offsets.queues("billing", "Orders").values())


def slave_offsets(cluster: LocalCluster) -> int:
    return offsets_of(cluster, cluster.slave_index())


@pytest.mark.parametrize("is_process", [False, True])
def test_a_killed_slave_catches_up_and_is_a_byte_copy(is_process: bool) -> None:
    with LocalCluster(slaves=2, processes=is_process) as cluster:
        send(cluster, numbered(0, 30))
        first, second = cluster.slave_index(slave=0), cluster.slave_index(slave=1)
        cluster.kill_broker(first)
        send(cluster, numbered(30, 60))
        cluster.wait_until_replicated()  # the other one
        cluster.kill_broker(second)
        send(cluster, numbered(60, 70))
        cluster.restart_broker(first)
        cluster.restart_broker(second)
        send(cluster, numbered(70, 80))
        cluster.wait_until_replicated()
        copies = {log_of(cluster, name) for name in ("broker-0", "broker-0-slave-1", "broker-0-slave-2")}
        assert len(copies) == 1
        assert copies.pop().count(b"order-") >= 80


def test_a_slave_of_each_broker_follows_its_own_master(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, slaves=1, store=tmp_path) as cluster:
        assert len(cluster.broker_addresses) == 4
        send(cluster, numbered(0, 40))
        cluster.wait_until_replicated()
        for name in ("broker-0", "broker-1"):
            assert log_of(cluster, name) == log_of(cluster, f"{name}-slave-1")
            assert log_of(cluster, name)
        assert cluster.slave_index(1) == 3


def test_a_slave_that_began_with_the_newest_file_is_whole_after_a_kill(tmp_path: Path) -> None:
    """The file made for offset 0 stayed beside it: a hole of two files, which neither a start nor repair mended."""
    with LocalCluster(slaves=1, processes=True, store=tmp_path, config={"mappedFileSizeCommitLog": 1 << 20}) as cluster:
        slave, root = cluster.slave_index(), tmp_path / "broker-0-slave-1"
        cluster.stop_broker(slave)
        shutil.rmtree(root)
        with Producer("producers", namesrv=cluster.namesrv) as producer:
            for number in range(25):  # bodies that no compression makes smaller
                body = random.Random(number).randbytes(100_000)
                assert producer.send(Message("Orders", body)).status is SendStatus.OK
        cluster.restart_broker(slave)
        cluster.wait_until_replicated()
        for _ in range(2):
            cluster.kill_broker(slave)
            assert sorted(path.name for path in (root / "commitlog").iterdir())[0] == f"{2 << 20:020d}"
            cluster.restart_broker(slave)
            send(cluster, [b"order-more"])
            cluster.wait_until_replicated()
        cluster.stop_broker(slave)
        with StoreView(StoreConfig(root, mapped_file_size_commit_log=1 << 20)) as view:
            assert verify_store(view).findings == []


def test_a_topic_that_was_deleted_and_made_again_is_read_from_the_slave_too() -> None:
    """Without a restart in between: the slave passed over as many of its messages as there had been before."""
    with LocalCluster(slaves=1, config={"autoCreateTopicEnable": "false"}) as cluster:
        slave = cluster.slave_index()
        with Admin(namesrv=cluster.namesrv) as admin:
            for life, count in enumerate((20, 5)):
                admin.create_topic("Orders", queues=1)
                send(cluster, [b"life-%d-%d" % (life, number) for number in range(count)])
                cluster.wait_until_replicated()
                until(lambda: "Orders" in cluster.broker(slave).node.topics, "the topic at the slave")
                if life == 0:
                    admin.delete_topic("Orders")
        expected = {b"life-1-%d" % number for number in range(5)}
        cluster.kill_broker(0)
        got: list[bytes] = []

        def handle(messages: list[StoredMessage]) -> None:
            got.extend(message.body for message in messages)

        consumer = PushConsumer("late", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("Orders")
        consumer.listen(handle)
        with consumer:
            until(lambda: set(got) >= expected, "all of the second life, from the slave")
        assert set(got) == expected
