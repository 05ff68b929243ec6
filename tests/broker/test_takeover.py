"""A broker does not take the place of a live one: who is registered is asked for, and whether he answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contrailmq.broker.cluster import registration as registration_module
from contrailmq.broker.cluster.takeover import NameTakenError
from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.wire.bodies import ClusterInfo, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.transport import RemotingClient
from free_ports import free_port

MIB = 1 << 20


def broker(
    path: Path, *servers: NameServer | str, port: int = 0, role: str = "ASYNC_MASTER", **own: str
) -> BrokerServer:
    addresses = ";".join(server if isinstance(server, str) else server.address for server in servers)
    said = {"brokerName": "broker-a", "listenPort": str(port), "bindAddress": "127.0.0.1", "namesrvAddr": addresses}
    config, warnings = BrokerConfig.from_properties(said | {"enableFastListenPort": "false"} | own)
    assert not warnings
    small: dict[str, object] = {"mapped_file_size_commit_log": MIB, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return BrokerServer(config, StoreConfig(path, broker_role=role, **small))


@contextlib.asynccontextmanager
async def name_server(path: Path, port: int = 0) -> AsyncIterator[NameServer]:
    server = NameServer(NamesrvConfig(listen_port=port, bind_address="127.0.0.1", rocketmq_home=str(path)))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def running(server: BrokerServer) -> AsyncIterator[BrokerServer]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def registered(server: NameServer) -> dict[int, str]:
    """Id -> address of broker-a, as the NameServer tells everybody."""
    client = RemotingClient()
    answer = await client.invoke(server.address, RequestCode.GET_BROKER_CLUSTER_INFO)
    await client.close()
    data = decode_body(answer.body, ClusterInfo).broker_addr_table.get("broker-a")
    return dict(data.broker_addrs) if data is not None else {}


def test_a_live_broker_of_the_same_name_is_not_replaced_and_the_reason_is_told(tmp_path: Path) -> None:
    async def serve() -> None:
        async with name_server(tmp_path) as names, running(broker(tmp_path / "1", names)) as first:
            second = broker(tmp_path / "2", names)
            with pytest.raises(NameTakenError) as refused:
                await second.start()
            assert await registered(names) == {0: first.address}
            text = str(refused.value)
            for part in ("broker-a", "brokerId 0", first.address, names.address, "brokerName", "--takeover"):
                assert part in text

    asyncio.run(asyncio.wait_for(serve(), 120))
    with MessageStore(StoreConfig(tmp_path / "2", mapped_file_size_commit_log=MIB)) as store:  # it was let go of
        assert store.recovery.was_clean_exit


def test_takeover_replaces_it_and_the_replaced_one_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "contrailmq")

    async def serve() -> None:
        async with name_server(tmp_path) as names, running(broker(tmp_path / "1", names)) as first:
            async with running(broker(tmp_path / "2", names, takeover="true")) as second:
                assert await registered(names) == {0: second.address}
                assert await first.registration.register_all() == 0
                assert await registered(names) == {0: second.address}
                assert f"{second.address} is registered" in caplog.text
                assert await second.registration.register_all() == 1
            caplog.clear()
            assert await first.registration.register_all() == 1, "the other one is gone"
            assert await registered(names) == {0: first.address}
            assert any(f"registered at {first.address}, with " in line for line in caplog.messages)
            caplog.clear()
            assert await first.registration.register_all() == 1
            assert not [line for line in caplog.messages if "regist" in line], "nothing has changed"

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_dead_broker_is_replaced(tmp_path: Path) -> None:
    """Its NameServer still has it: as after the end of a machine, whose connections nobody closes."""

    async def serve() -> None:
        async with name_server(tmp_path) as names, running(broker(tmp_path / "1", names)) as first:
            gone = f"127.0.0.1:{free_port()}"
            own, first.node.address = first.node.address, gone
            await first.registration.register_all()
            first.node.address = own
            assert await registered(names) == {0: gone}
            async with running(broker(tmp_path / "2", names)) as second:
                assert await registered(names) == {0: second.address}

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_master_that_came_back_as_a_slave_does_not_keep_its_old_place(tmp_path: Path) -> None:
    """It lost power, so its NameServer still has it as the master; another one takes its place."""

    async def serve() -> None:
        async with (
            name_server(tmp_path) as names,
            running(broker(tmp_path / "1", names)) as first,
            running(broker(tmp_path / "2", names, role="SLAVE", brokerId="1")) as slave,
        ):
            own, first.node.address = first.node.address, slave.address
            await first.registration.register_all()
            first.node.address = own
            assert await registered(names) == {0: slave.address}, "as before its first registration as a slave"
            async with running(broker(tmp_path / "3", names)) as third:
                assert await slave.registration.register_all() == 1
                assert await registered(names) == {0: third.address, 1: slave.address}

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_broker_that_hangs_is_not_replaced(tmp_path: Path) -> None:
    """It takes connections and says nothing: it may go on at any time."""

    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as hanging:
            async with name_server(tmp_path) as names, running(broker(tmp_path / "1", names)) as first:
                own, first.node.address = first.node.address, f"127.0.0.1:{hanging.getsockname()[1]}"
                await first.registration.register_all()
                first.node.address = own
                with pytest.raises(NameTakenError, match=str(hanging.getsockname()[1])):
                    await broker(tmp_path / "2", names).start()

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_restart_under_another_name_of_the_same_machine_finds_itself_and_goes_on(tmp_path: Path) -> None:
    """brokerIP1 changed: the old address still leads here."""

    async def serve() -> None:
        async with name_server(tmp_path) as names, running(broker(tmp_path / "1", names)) as first:
            own, first.node.address = first.node.address, f"localhost:{first.port}"
            assert await first.registration.register_all() == 1
            assert await registered(names) == {0: f"localhost:{first.port}"}
            first.node.address = own
            assert await first.registration.register_all() == 1
            assert await registered(names) == {0: own}

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_restart_at_the_same_address_and_a_slave_are_no_conflict(tmp_path: Path) -> None:
    async def serve() -> None:
        async with name_server(tmp_path) as names:
            port = free_port()  # nobody takes it in between
            first = broker(tmp_path / "1", names, port=port)
            await first.start()
            await first.kill()  # nobody unregisters it
            async with (
                running(broker(tmp_path / "1", names, port=port)) as again,
                running(broker(tmp_path / "2", names, role="SLAVE", brokerId="1")) as slave,
            ):
                assert await registered(names) == {0: again.address, 1: slave.address}
                with pytest.raises(NameTakenError, match="brokerId 1"):
                    await broker(tmp_path / "3", names, role="SLAVE", brokerId="1").start()

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_name_server_that_goes_and_comes_between_two_rounds_is_told_of(tmp_path: Path) -> None:
    """The rounds are a minute apart here; the connection is looked at every second."""

    async def serve() -> None:
        log = logging.getLogger("contrailmq.broker")
        told: asyncio.Queue[str] = asyncio.Queue()
        listener = logging.Handler(logging.WARNING)
        listener.emit = lambda record: told.put_nowait(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(listener)
        try:
            async with contextlib.AsyncExitStack() as later:
                async with name_server(tmp_path) as names:
                    server = broker(tmp_path / "1", names, registerNameServerPeriod="60000")
                    await later.enter_async_context(running(server))
                text = await asyncio.wait_for(told.get(), 120)
                assert text.startswith(f"not registered with NameServer {names.address}: cannot connect")
        finally:
            log.removeHandler(listener)

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_one_name_server_that_knows_another_is_enough_and_nothing_is_registered_with_the_rest(tmp_path: Path) -> None:
    async def serve() -> None:
        async with (
            name_server(tmp_path / "n1") as empty,
            name_server(tmp_path / "n2") as knowing,
            running(broker(tmp_path / "1", knowing)),
        ):
            with pytest.raises(NameTakenError, match=knowing.address):
                await broker(tmp_path / "2", empty, knowing).start()
            assert await registered(empty) == {}

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_name_server_that_was_away_at_the_start_is_asked_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        registration_module, "RECONNECT_S", 3600.0
    )  # the second does not look before the first is there

    async def serve() -> None:
        port = free_port()  # nobody takes it while the NameServer is away
        async with name_server(tmp_path / "n1", port) as names:
            address = names.address
        second = broker(tmp_path / "2", address, registerNameServerPeriod="60000")
        async with (
            running(second),
            name_server(tmp_path / "n1", port) as names,
            running(broker(tmp_path / "1", names)) as first,
        ):
            assert await second.registration.register_all() == 0
            assert await registered(names) == {0: first.address}
        assert f"{first.address} is registered" in caplog.text

    asyncio.run(asyncio.wait_for(serve(), 120))
