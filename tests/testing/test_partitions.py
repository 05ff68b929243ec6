"""`LocalCluster.partition` and `heal`: two members are cut off from each other, and nobody else is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from contrailmq import Message, Producer, SendStatus
from contrailmq.testing import LocalCluster
from contrailmq.testing.links import Relay
from contrailmq.testing.members import ClusterError
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.tls import client_tls
from contrailmq.wire.transport import RemotingClient
from testing.test_tls_cluster import ENFORCED, OF_CLIENT
from waiting_for import LIMIT_S, until

QUICK = {"haSendHeartbeatInterval": "100", "haHousekeepingInterval": "600"}
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "300"}


def send(cluster: LocalCluster, body: bytes) -> SendStatus:
    with Producer("producers", namesrv=cluster.namesrv) as producer:
        return producer.send(Message("Orders", body), timeout=30.0).status


def said(cluster: LocalCluster, index: int) -> dict[str, str]:
    async def ask() -> dict[str, str]:
        client = RemotingClient()
        answer = await client.invoke(cluster.broker_addresses[index], RequestCode.GET_BROKER_RUNTIME_INFO)
        await client.close()
        return decode_body(answer.body, KVTable).table

    return asyncio.run(ask())


def end(cluster: LocalCluster, index: int) -> int:
    return int(said(cluster, index)["commitLogMaxOffset"])


def is_following(cluster: LocalCluster, index: int) -> bool:
    return said(cluster, index)["haIsFollowing"] == "true"


@pytest.mark.parametrize("is_process", [False, True])
def test_a_slave_that_is_cut_off_stands_still_until_it_is_healed_and_the_other_goes_on(is_process: bool) -> None:
    with LocalCluster(slaves=2, processes=is_process, config=QUICK) as cluster:
        first, second = cluster.slave_index(slave=0), cluster.slave_index(slave=1)
        assert send(cluster, b"before") is SendStatus.OK
        cluster.wait_until_replicated()
        before = end(cluster, first)
        cluster.partition(0, first)
        assert send(cluster, b"meanwhile") is SendStatus.OK
        until(lambda: end(cluster, second) == end(cluster, 0) > before, "the other slave has it")
        assert end(cluster, first) == before
        until(lambda: not is_following(cluster, first), "a silent master is given up")
        assert is_following(cluster, second)
        cluster.restart_broker(first)  # it finds the NameServer, and no way to its master
        assert not is_following(cluster, first)
        assert end(cluster, first) == before
        cluster.heal()
        cluster.wait_until_replicated()
        assert end(cluster, first) == end(cluster, 0)


def test_a_short_partition_is_a_pause_and_no_connection_ends() -> None:
    with LocalCluster(slaves=1, config=SYNC) as cluster:
        slave = cluster.slave_index()
        until(lambda: send(cluster, b"before") is SendStatus.OK, "acknowledged")
        replication = cluster.broker(0).replication
        assert replication is not None
        (connected,) = replication.status()
        cluster.partition(slave, 0)  # the order does not matter
        assert send(cluster, b"late") is SendStatus.FLUSH_SLAVE_TIMEOUT
        cluster.heal()
        until(lambda: send(cluster, b"after") is SendStatus.OK, "acknowledged again")
        (after,) = replication.status()
        assert after.address == connected.address
        cluster.wait_until_replicated()
        assert end(cluster, slave) == end(cluster, 0)


def test_connections_that_are_reset_are_made_again() -> None:
    with LocalCluster(slaves=1, config=SYNC) as cluster:
        until(lambda: send(cluster, b"before") is SendStatus.OK, "acknowledged")
        replication = cluster.broker(0).replication
        assert replication is not None
        (connected,) = replication.status()
        cluster.reset_connections(0, cluster.slave_index())
        until(lambda: [one.address for one in replication.status()] not in ([], [connected.address]), "a new one")
        until(lambda: send(cluster, b"after") is SendStatus.OK, "acknowledged again")


def test_members_that_do_not_exist_and_clusters_without_slaves_are_refused() -> None:
    with LocalCluster(slaves=1) as cluster:
        told = "no broker 2: the cluster has 2, with the numbers 0 to 1, the slaves from 1 on"
        with pytest.raises(ClusterError, match=told):
            cluster.partition(0, 2)
        with pytest.raises(ClusterError, match=told):
            cluster.reset_connections(2, 0)
        with pytest.raises(ClusterError, match="cut off from itself"):
            cluster.partition(1, 1)
    with LocalCluster(brokers=2) as cluster:
        with pytest.raises(ClusterError, match="LocalCluster\\(slaves=N\\)"):
            cluster.partition(0, 1)
        cluster.heal()


def test_where_tls_is_enforced_members_are_cut_off_and_healed_as_well() -> None:
    with LocalCluster(slaves=1, config=ENFORCED | SYNC | QUICK | {"haTls": "true"}) as cluster:
        with Producer("producers", namesrv=cluster.namesrv, tls=client_tls(OF_CLIENT)) as producer:

            def status() -> SendStatus:
                return producer.send(Message("Orders", b"x"), timeout=30.0).status

            until(lambda: status() is SendStatus.OK, "acknowledged")
            cluster.partition(0, cluster.slave_index())
            assert status() is SendStatus.FLUSH_SLAVE_TIMEOUT
            cluster.heal()
            until(lambda: status() is SendStatus.OK, "acknowledged again")
        cluster.wait_until_replicated()


def test_a_cluster_with_links_leaves_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        folder = Path("/proc/self/fd")
        found = set()
        for entry in folder.iterdir():
            try:
                found.add(os.readlink(entry))
            except FileNotFoundError:  # that of the listing itself
                continue
        return {text for text in found if text.startswith("socket:") or str(tmp_path) in text}

    before = descriptors()
    with LocalCluster(slaves=1, store=tmp_path, config=QUICK) as cluster:
        assert send(cluster, b"x") is SendStatus.OK
        cluster.partition(0, cluster.slave_index())
        until(lambda: not is_following(cluster, cluster.slave_index()), "a silent master is given up")
    until(lambda: descriptors() <= before, "no descriptor is left over", seen=lambda: descriptors() - before)


# --- one relay


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data.upper())
    writer.close()


def test_nothing_passes_a_cut_relay_and_all_of_it_does_later() -> None:
    async def story() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        relay = Relay()
        relay.target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await relay.start()
        host, _, port = relay.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"one")
        assert await reader.read(100) == b"ONE"
        relay.cut()
        writer.write(b"two")
        late_reader, late_writer = await asyncio.open_connection(host, int(port))  # the kernel takes it
        late_writer.write(b"three")
        gone_reader, gone_writer = await asyncio.open_connection(host, int(port))
        gone_writer.write(b"four")
        gone_writer.close()
        answers = [asyncio.ensure_future(one.read(100)) for one in (reader, late_reader)]
        _, waiting = await asyncio.wait(answers, timeout=0.2)
        assert len(waiting) == 2
        relay.join()
        assert await asyncio.gather(*answers) == [b"TWO", b"THREE"]
        relay.reset()
        assert await reader.read(100) == b""
        for one in (writer, late_writer):
            one.close()
        await relay.close()
        server.close()
        del gone_reader
        async with asyncio.timeout(LIMIT_S):
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - tasks have no event
                await asyncio.sleep(0)

    asyncio.run(story())


def test_a_relay_to_nobody_ends_the_connection() -> None:
    async def story() -> None:
        relay = Relay()
        relay.target = "127.0.0.1:1"
        await relay.start()
        host, _, port = relay.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read(100) == b""
        writer.close()
        await relay.close()

    asyncio.run(story())
