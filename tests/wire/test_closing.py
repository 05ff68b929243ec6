"""A connection that is closed while its peer does not read comes to an end all the same."""

from __future__ import annotations

import asyncio
import socket

import pytest

from contrailmq.wire.connection import Connection, Limits
from contrailmq.wire.errors import RequestTimeoutError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient, RemotingServer

from .peers import WAIT_S, Holding, Run, connected, echo, request, turns_until

LARGE = bytes(4 * 1024 * 1024)  # a few of them are more than the sockets of both sides take
GARBAGE = b"\xff" * 8


def answer_large(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        connection.reply(encode_response(command, 0, None, LARGE))


def test_a_peer_that_breaks_the_protocol_and_does_not_read_is_cut(run: Run) -> None:
    """The loop would keep the connection and its answers for ever: the idle rule looks at open ones only."""

    async def main() -> None:
        ended = asyncio.Event()
        limits = Limits(stuck_s=0.01)
        server = RemotingServer(answer_large, host="127.0.0.1", limits=limits, on_disconnect=lambda _: ended.set())
        await server.start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
            peer.sendall(b"".join(request(number) for number in range(4)) + GARBAGE)
            await ended.wait()
        await server.close()

    run(main())


def test_a_closed_connection_is_kept_while_its_peer_reads_on(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        transport.unsent_bytes = 5
        connection.close()
        for left in (4, 3, 2):
            transport.unsent_bytes = left
            connection._end_stuck()  # what the timer calls
            assert not transport.is_aborted
        connection._end_stuck()
        assert transport.is_aborted

    run(main())


def test_a_half_closed_peer_that_does_not_read_its_last_answers_is_cut(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo, Limits(stuck_s=0.0))
        transport.unsent_bytes = 5
        assert connection.eof_received() is False  # the loop closes it then, and waits
        await turns_until(lambda: transport.is_aborted)

    run(main())


def test_a_client_closes_though_the_server_does_not_read(run: Run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as stuck:
            client = RemotingClient(limits=Limits(stuck_s=0.01))
            with pytest.raises(RequestTimeoutError):
                await client.invoke(f"127.0.0.1:{stuck.getsockname()[1]}", 10, None, 3 * LARGE, timeout_s=0.01)
            await client.close()

    run(main())


@pytest.mark.parametrize("last_words", [b"", request(4)], ids=["all answered", "one not even read"])
def test_a_server_that_stops_does_not_wait_for_a_peer_that_does_not_read(last_words: bytes, run: Run) -> None:
    """From one with so many unread answers nothing more is read either: what it says stays in the socket."""

    async def main() -> None:
        limits = Limits(stuck_s=0.01, linger_s=0.01)
        server = RemotingServer(answer_large, host="127.0.0.1", limits=limits)
        await server.start()
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
            peer.sendall(b"".join(request(number) for number in range(4)))
            await turns_until(lambda: any(not connection.is_writable for connection in server.connections))
            peer.sendall(last_words)
            async with asyncio.timeout(WAIT_S / 2):
                await server.close(drain_seconds=WAIT_S)
        assert not server.connections

    run(main())


def test_a_peer_that_reads_on_keeps_its_connection_while_a_server_stops(run: Run) -> None:
    async def main() -> None:
        holding = Holding()
        connection, transport = connected(holding, Limits(stuck_s=WAIT_S))
        connection.data_received(request(1) + request(2))
        transport.unsent_bytes = 5
        connection.drain()
        connection._watch_draining((6, 2))  # what the timer calls: it took a byte
        [(_, first), _second] = holding.held
        connection.reply(encode_response(first))
        connection._watch_draining((5, 2))  # it may have, for there is an answer more
        assert not transport.is_aborted
        connection._watch_draining((5, 1))
        assert transport.is_aborted

    run(main())
