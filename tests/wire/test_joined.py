"""Two connections of one process without a socket behave as two with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from contrailmq.wire.connection import Connection
from contrailmq.wire.errors import ConnectError, ConnectionClosedError
from contrailmq.wire.frame import encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient, RemotingServer
from wire.peers import turns_until

HERE = "10.0.0.9:10911"  # nobody listens there: whoever dials it out fails


@asynccontextmanager
async def pair(
    handler: Callable[[Connection, list[Command]], None],
) -> AsyncIterator[tuple[RemotingClient, RemotingServer]]:
    server, client = RemotingServer(handler, host="127.0.0.1"), RemotingClient(connect_timeout_s=0.2)
    await server.start()
    client.serve_here(HERE, lambda connection: server.join(connection, HERE))
    try:
        yield client, server
    finally:
        await client.close()
        await server.close(0.1)


def echo(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        connection.reply_parts(
            [
                encode_response(command, 0, None, bytes(len(command.body)))[: -len(command.body)],
                memoryview(command.body),
            ],
            len(command.body),
        )


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(main())


def test_requests_are_answered_and_each_end_sees_the_other_s_address() -> None:
    async def work() -> None:
        async with pair(echo) as (client, server):
            bodies = [b"x" * size for size in (1, 1000, 300_000)]
            answers = await asyncio.gather(*(client.invoke(HERE, 105, {"topic": "T"}, body) for body in bodies))
            assert [answer.body for answer in answers] == bodies
            [inside] = server.connections
            assert (inside.address, (await client.connect(HERE)).address) == ("10.0.0.9:0", HERE)

    run(work())


def test_a_server_asks_its_client() -> None:
    async def work() -> None:
        async with pair(echo) as (client, server):
            client.register(307, lambda connection, command: encode_response(command, 0, {"jstack": "fine"}))
            await client.invoke(HERE, 105, {"topic": "T"}, b"x")
            [inside] = server.connections
            assert (await inside.invoke(307)).ext == {"jstack": "fine"}

    run(work())


def test_a_server_that_stops_answers_what_it_owes_and_the_client_is_told() -> None:
    async def work() -> None:
        kept: list[tuple[Connection, Command]] = []
        async with pair(lambda connection, commands: kept.extend((connection, one) for one in commands)) as two:
            client, server = two
            asked = asyncio.ensure_future(client.invoke(HERE, 105, {"topic": "T"}))
            await turns_until(lambda: bool(kept))
            closing = asyncio.ensure_future(server.close(5.0))
            await asyncio.sleep(0)
            connection, command = kept.pop()
            connection.reply(encode_response(command, 0))
            assert (await asked).code == 0
            await closing
            assert not server.connections
            with pytest.raises(ConnectError, match="stops"):
                await client.invoke(HERE, 105, {"topic": "T"})

    run(work())


@pytest.mark.parametrize("end", ["client", "server"])
def test_a_cut_ends_both_sides_and_a_client_joins_again(end: str) -> None:
    async def work() -> None:
        async with pair(lambda connection, commands: None) as (client, server):
            asked = asyncio.ensure_future(client.invoke(HERE, 105, {"topic": "T"}))
            await turns_until(lambda: any(connection.in_flight for connection in server.connections))
            [inside], outside = server.connections, await client.connect(HERE)
            (outside if end == "client" else inside).abort("the test cuts it")
            with pytest.raises(ConnectionClosedError):
                await asked
            assert not server.connections
            assert (await client.connect(HERE)).is_open

    run(work())


def test_who_reads_no_more_makes_the_writer_pause_and_gets_everything_later() -> None:
    async def work() -> None:
        async with pair(echo) as (client, server):
            await client.invoke(HERE, 105, {"topic": "T"}, b"x")
            [inside], outside = server.connections, await client.connect(HERE)
            transport = inside._transport
            assert transport is not None
            transport.pause_reading()
            frame = encode_request(105, {"topic": "T"}, bytes(1 << 18), opaque=1, is_oneway=True)
            for _ in range(5):
                outside.oneway(105, {"topic": "T"}, bytes(1 << 18))
                await asyncio.sleep(0)
            assert not outside.is_writable
            assert outside._transport is not None
            assert outside._transport.get_write_buffer_size() >= 5 * len(frame) - 100
            transport.resume_reading()
            await outside.writable()
            assert outside._transport.get_write_buffer_size() == 0

    run(work())
