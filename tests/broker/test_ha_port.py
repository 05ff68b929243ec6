"""The HA port of a running broker: who is let in, who counts, and what a SYNC_MASTER's clients are told."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.harness import send_fields
from broker.test_slave_end_to_end import broker
from contrailmq.broker.cluster.replication import GroupMembers
from contrailmq.broker.config import BrokerConfig, BrokerConfigError
from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.wire.admin_bodies import HaRuntimeInfo
from contrailmq.wire.admin_requests import RegisterBroker
from contrailmq.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfigWrapper, decode_body, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient
from ha_slaves import Slave
from waiting_for import until_async

pytestmark = pytest.mark.servers


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def register(client: RemotingClient, namesrv: str, broker_id: int, address: str) -> str:
    """A slave of broker b, which is nobody; the HA address that it is told."""
    header = RegisterBroker(
        broker_name="b",
        broker_addr=address,
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:1",
        broker_id=broker_id,
        enable_acting_master=False,
        compressed=False,
    )
    wrapper = TopicConfigWrapper(data_version=DataVersion(), topic_config_table={})
    body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    answer = await client.invoke(namesrv, RequestCode.REGISTER_BROKER, header, body)
    assert answer.code == 0, answer.remark
    return answer.ext["haServerAddr"]


class Group:
    """A master with its NameServer, and slaves that are registered by hand."""

    def __init__(self, namesrv: NameServer | None, master: BrokerServer, client: RemotingClient) -> None:
        self.namesrv, self.master, self.client = namesrv, master, client

    async def register(self, broker_id: int, address: str) -> str:
        """A slave of the group; the HA address that it is told."""
        assert self.namesrv is not None
        return await register(self.client, self.namesrv.address, broker_id, address)

    async def connect(self) -> Slave:
        assert self.master.replication is not None
        return Slave(*await asyncio.open_connection("127.0.0.1", self.master.replication.port))

    def sending(self, body: bytes, *, timeout_s: float = 10) -> asyncio.Task[Command]:
        return asyncio.create_task(
            self.client.invoke(self.master.address, RequestCode.SEND_MESSAGE_V2, send_fields("T"), body, timeout_s)
        )

    async def status(self) -> HaRuntimeInfo:
        answer = await self.client.invoke(self.master.address, RequestCode.GET_BROKER_HA_STATUS)
        return decode_body(answer.body, HaRuntimeInfo)


@asynccontextmanager
async def group(path: Path, *, with_namesrv: bool = True, **settings: str) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        namesrv = None
        if with_namesrv:
            namesrv = NameServer(
                NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(path / "home"))
            )
            await namesrv.start()
            stack.push_async_callback(namesrv.stop)
        master = broker(path / "store", namesrv.address if namesrv else "", **settings)
        await master.start()
        stack.push_async_callback(master.stop)
        client = RemotingClient()
        stack.push_async_callback(client.close)
        yield Group(namesrv, master, client)


def test_a_stranger_is_closed_and_a_registered_slave_is_let_in_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master asks the NameServer again when it does not know a host: a slave connects right after registering."""

    async def work() -> None:
        async with group(tmp_path) as made:
            stranger = (await made.connect()).report(0)
            assert await stranger.is_closed()
            assert "no slave of b is registered at 127.0.0.1 (known: none)" in caplog.text
            assert "haAllowList" in caplog.text
            ha_address = await made.register(1, "127.0.0.1:12345")
            assert ha_address == f"127.0.0.1:{made.master.replication.port}"
            slave = (await made.connect()).report(0)
            assert (await made.sending(b"x")).code == 0
            offset, body = await slave.block()
            assert offset == 0
            slave.report(len(body))
            await until_async(lambda: made.master.replication.server.acknowledged.furthest == len(body))
            status = await made.status()
            (info,) = status.ha_connection_info
            assert (info.slave_ack_offset, info.diff, info.in_sync) == (len(body), 0, True)
            assert info.transfer_from_where == len(body)
            assert (status.in_sync_slave_nums, status.master) == (1, True)
            assert status.master_commit_log_max_offset == len(body)
            for one in (stranger, slave):
                one.close()

    run(work())


def test_a_sync_master_answers_when_its_slave_has_the_message(tmp_path: Path) -> None:
    settings = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "flushDiskType": "SYNC_FLUSH",
        "slaveTimeout": "600",
    }

    async def work() -> None:
        async with group(tmp_path, **settings) as made:
            await made.register(1, "127.0.0.1:12345")
            slave = (await made.connect()).report(0)
            await until_async(lambda: made.master.replication.server.acknowledged.furthest == 0)
            sending = made.sending(b"x")
            offset, body = await slave.block()
            while not made.master.store.durable_offset >= len(body):  # noqa: ASYNC110 - a thread of the store
                await asyncio.sleep(0.001)
            assert not sending.done()
            slave.report(offset + len(body))
            assert (await sending).code == 0
            late = await made.sending(b"y")  # reported by nobody
            assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert "1 of 2 copies (inSyncReplicas=2) were there within slaveTimeout=600 ms" in (late.remark or "")
            slave.close()

    run(work())


def test_two_slaves_on_one_host_count_as_two_and_two_connections_of_one_do_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path) as made:
            server = made.master.replication.server
            assert (await made.sending(b"x")).code == 0
            end = made.master.store.log_max_offset
            await made.register(1, "127.0.0.1:12345")
            one, again = (await made.connect()).report(end), (await made.connect()).report(end)
            await until_async(
                lambda: len(server.status()) == 2 and all(slave.acknowledged == end for slave in server.status())
            )
            assert server.acknowledged.count(end) == 1
            await made.register(2, "127.0.0.1:12346")
            await made.master.replication.members.ask()
            assert server.acknowledged.count(end) == 2
            for slave in (one, again):
                slave.close()

    run(work())


def test_a_slave_serves_no_slaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with group(tmp_path, brokerRole="SLAVE", brokerId="1", with_namesrv=False) as made:
            chained = (await made.connect()).report(0)
            assert await chained.is_closed()
            assert "b with brokerId 1, is a slave itself" in caplog.text
            chained.close()

    run(work())


def test_without_a_namesrv_this_machine_is_let_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, with_namesrv=False) as made:
            slave = (await made.connect()).report(0)
            await until_async(lambda: made.master.replication.server.acknowledged.furthest == 0)
            assert "is not of this machine" in await made.master.replication.members.admit("10.1.2.3")
            slave.close()

    run(work())


def test_a_sync_master_that_waits_for_nobody_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def work() -> None:
        async with group(tmp_path, with_namesrv=False, brokerRole="SYNC_MASTER") as made:
            assert (await made.sending(b"x")).code == 0

    run(work())
    assert len([r for r in caplog.records if "Set inSyncReplicas=2 to wait for one slave" in r.getMessage()]) == 1


def test_a_stop_hands_the_rest_to_slaves_first(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, with_namesrv=False) as made:
            slave = (await made.connect()).report(0)
            await until_async(lambda: made.master.replication.server.acknowledged.furthest == 0)
            assert (await made.sending(b"x")).code == 0
            end = made.master.store.log_max_offset
            stopping = asyncio.create_task(made.master.stop())
            assert len(await slave.log_until(0, end)) == end
            await stopping
            slave.close()

    run(work())


# --- members, without sockets


class Told:
    """A NameServer that says what a test wants."""

    def __init__(self, made: Group) -> None:
        self.members = GroupMembers(made.master.node, made.client)
        self.slaves: Counter[str] | None = Counter()
        self.members._registered = self._registered  # type: ignore[method-assign]

    async def _registered(self, _namesrv: str) -> Counter[str] | None:
        return self.slaves


def test_a_connected_slave_counts_on_when_the_namesrv_has_forgotten_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path) as made:
            told = Told(made)
            told.slaves = Counter({"10.0.0.7": 1, "10.0.0.8": 2})
            await told.members.ask()
            told.members.connected = lambda: {"10.0.0.8"}
            told.slaves = Counter()
            await told.members.ask()
            assert [told.members.slaves_at(host) for host in ("10.0.0.7", "10.0.0.8")] == [0, 2]
            told.members.connected = set
            told.slaves = None  # no answer: nothing new
            await told.members.ask()
            assert told.members.slaves_at("10.0.0.8") == 2
            told.slaves = Counter()
            await told.members.ask()
            assert told.members.slaves_at("10.0.0.8") == 0

    run(work())


def test_the_allow_list_lets_in_addresses_and_networks(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, haAllowList="10.0.0.7, 10.1.0.0/16;fd00::/8, 127.0.0.1") as made:
            members = Told(made).members
            for host in ("10.0.0.7", "10.1.255.1", "fd00::5", "127.0.0.1"):
                assert await members.admit(host) == "", host
            assert await members.admit("10.0.0.8")
            assert members.slaves_at("10.1.2.3") == 1
            assert members.slaves_at("127.0.0.1") == 0, "a copy on this machine is no second copy"

    run(work())


def test_an_allow_list_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BrokerConfigError, match="haAllowList='10.0.0.300': addresses or networks"):
        BrokerConfig.from_properties({"haAllowList": "10.0.0.300"})
