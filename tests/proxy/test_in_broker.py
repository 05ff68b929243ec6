"""gRPC in the broker's process: requests take no socket, and a fault of this part leaves the broker alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from contrailmq.cli.grpc_beside import GrpcBeside, grpc_port_of_up
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing.members import ThreadlessMember
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Fields
from contrailmq.wire.properties import SettingsError
from contrailmq.wire.transport import RemotingClient
from free_ports import free_port
from proxy.calling import Caller, message, topic
from proxy.test_consuming import acknowledge, gathered

CERTS = Path(__file__).parents[1] / "wire" / "certs"
SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}


class Serving(NamedTuple):
    member: ThreadlessMember
    address: str  # of gRPC, empty without


@contextlib.asynccontextmanager
async def broker_with_grpc(path: Path, port: int, **settings: str) -> AsyncIterator[Serving]:
    name_server = NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(path)))
    await name_server.start()
    properties = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "namesrvAddr": name_server.address,
        "grpcServerPort": str(port),
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "300",
        **settings,
    }
    member = ThreadlessMember(path / "store", properties, store_settings=SMALL)
    await member.start()
    beside = GrpcBeside(properties)
    try:
        yield Serving(member, await beside.start(member.server))
    finally:
        await beside.stop()
        await member.stop()
        await name_server.stop()


async def make_topic(serving: Serving, name: str, kind: str) -> None:
    client = RemotingClient()
    ext: Fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": f"+message.type={kind}",
    }  # fmt: skip
    answer = await client.invoke(serving.member.address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert answer.code == 0, answer.remark
    await client.close()


def test_messages_go_in_and_out_without_a_socket_to_the_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_with_grpc(tmp_path, free_port()) as serving:
            await make_topic(serving, "inside", "NORMAL")
            async with grpc.aio.insecure_channel(serving.address) as channel:
                caller = Caller(channel)
                sent = await caller.call("SendMessage", messages=[message("inside", b"x" * 2000)])
                assert sent.status.code == Code.OK, sent
                [got] = await gathered(caller, "inside", "insiders", 1)
                assert got.body == b"x" * 2000
                assert await acknowledge(caller, "inside", "insiders", got.system_properties.receipt_handle) == [20000]
                [server, *_] = serving.member.server._servers
                assert {connection.peer for connection in server.connections} == {("127.0.0.1", 0)}

    asyncio.run(asyncio.wait_for(main(), 120))


def test_the_broker_asks_a_producer_inside_about_its_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_with_grpc(tmp_path, free_port()) as serving:
            await make_topic(serving, "decided", "TRANSACTION")
            async with grpc.aio.insecure_channel(serving.address) as channel:
                caller = Caller(channel)
                stream = caller.telemetry()
                publishing = v2.Publishing(topics=[topic("decided")])
                await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=1, publishing=publishing)))
                await stream.read()
                half = message("decided", b"half", message_type=4)
                assert (await caller.call("SendMessage", messages=[half])).status.code == Code.OK
                asked = (await stream.read()).recover_orphaned_transaction_command
                assert asked.message.body == b"half"
                ended = await caller.call(
                    "EndTransaction",
                    topic=topic("decided"),
                    transaction_id=asked.transaction_id,
                    resolution=1,
                    source=2,
                )
                assert ended.status.code == Code.OK, ended

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_port_that_is_taken_costs_grpc_and_not_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            async with broker_with_grpc(tmp_path, port) as serving:
                assert serving.address == ""
                await make_topic(serving, "still-served", "NORMAL")
        [said] = [line for line in caplog.messages if line.startswith("gRPC is not served")]
        assert f"grpcServerPort={port}" in said

    asyncio.run(asyncio.wait_for(main(), 120))


def test_where_tls_is_enforced_the_port_takes_tls_only(tmp_path: Path) -> None:
    tls = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(CERTS / "server.pem"),
        "tls.server.keyPath": str(CERTS / "server.key"),
    }

    async def main() -> None:
        async with broker_with_grpc(tmp_path, free_port(), **tls) as serving:
            trust = grpc.ssl_channel_credentials((CERTS / "ca.pem").read_bytes())
            async with grpc.aio.secure_channel(
                serving.address, trust, (("grpc.ssl_target_name_override", "server"),)
            ) as channel:
                answer = await Caller(channel).call("QueryRoute", topic=topic("nowhere"))
                assert answer.status.code != Code.OK
            async with grpc.aio.insecure_channel(serving.address) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await Caller(channel).call("QueryRoute", topic=topic("nowhere"))

    asyncio.run(asyncio.wait_for(main(), 120))


def test_the_port_of_a_command_is_named_or_the_usual_one_if_that_is_free(caplog: pytest.LogCaptureFixture) -> None:
    def port(settings: dict[str, str], named: int | None, broker_port: int) -> str:
        return grpc_port_of_up(settings, named, broker_port=broker_port, brokers=2)["grpcServerPort"]

    assert port({}, None, 0) == "0", "free ports: nobody would find it"
    assert port({}, 9000, 0) == "9000"
    assert port({"grpcServerPort": "9001"}, None, 10911) == "9001"
    assert port({"grpcServerPort": "9001"}, 0, 10911) == "0"
    for wrong in ("many", "65535"):
        with pytest.raises(SettingsError, match=f"grpcServerPort={wrong}"):
            port({"grpcServerPort": wrong}, None, 10911)
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 8082)):
        assert port({}, None, 10911) == "0"
        assert "cannot be had" in caplog.text
