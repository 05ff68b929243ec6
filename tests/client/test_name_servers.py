"""One NameServer that hangs does not keep a client from the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from contrailmq.client.errors import NoNameServerError
from contrailmq.client.transport.name_servers import NameServers
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient, RemotingServer

WAIT_S = 120.0
CALL_S = 12.0  # half of it goes to the server that hangs


def acknowledge(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        connection.reply(encode_response(command))


@asynccontextmanager
async def one_hangs_and_one_answers() -> AsyncIterator[NameServers]:
    """The first that is asked takes connections, as the kernel does for a stopped process, and says nothing."""
    server = RemotingServer(acknowledge, host="127.0.0.1")
    await server.start()
    client = RemotingClient()
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        servers = NameServers(client, f"{server.address};127.0.0.1:{hanging.getsockname()[1]}")
        servers._current = servers.addresses.index(f"127.0.0.1:{hanging.getsockname()[1]}")
        yield servers
        await client.close()
    await server.close(0.0)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT_S))


def test_the_others_are_asked_within_the_time_of_the_call() -> None:
    async def main() -> None:
        async with one_hangs_and_one_answers() as servers, asyncio.timeout(CALL_S):
            assert (await servers.invoke(Code.GET_BROKER_CLUSTER_INFO, {}, timeout_s=CALL_S)).code == 0

    run(main())


def test_a_call_that_is_given_up_is_not_begun_again_with_the_server_that_hung() -> None:
    async def main() -> None:
        async with one_hangs_and_one_answers() as servers:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await servers.invoke(Code.GET_BROKER_CLUSTER_INFO, {}, timeout_s=WAIT_S)
            assert (await servers.invoke(Code.GET_BROKER_CLUSTER_INFO, {}, timeout_s=WAIT_S)).code == 0

    run(main())


def test_the_error_of_the_last_is_told_when_all_hang() -> None:
    async def main() -> None:
        client = RemotingClient()
        with socket.create_server(("127.0.0.1", 0)) as hanging:
            port = hanging.getsockname()[1]
            servers = NameServers(client, f"127.0.0.1:{port};localhost:{port}")
            with pytest.raises(NoNameServerError, match=r"last: no answer from .* within 0\.02 s"):
                await servers.invoke(Code.GET_BROKER_CLUSTER_INFO, {}, timeout_s=0.02)
        await client.close()

    run(main())
