"""A server that stops: what had arrived is answered, what is new is refused, and the end is a FIN, never a reset.

Peers are plain sockets that write before the server has its turn, so that bytes lie unread in the server's socket when
it is told to stop. Nothing sleeps: tests wait for events and for the end of streams.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from contrailmq.wire.connection import PARSED_COMMANDS_MAX, Connection, Limits
from contrailmq.wire.frame import FrameParser, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.tls import client_tls, server_tls
from contrailmq.wire.transport import RemotingServer

from .peers import WAIT_S, Counting, Holding, Run, connected, echo, request, turns_until

CERTS = Path(__file__).parent / "certs"
SERVER = {"tls.server.certPath": str(CERTS / "server.pem"), "tls.server.keyPath": str(CERTS / "server.key")}


async def accepted(server: RemotingServer) -> tuple[socket.socket, Connection]:
    """A blocking socket of ours and the server's side of it."""
    peer = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    await turns_until(lambda: bool(server.connections))
    [connection] = server.connections
    return peer, connection


def read_all(peer: socket.socket) -> list[Command]:
    """Until the server's end of stream; a reset is an OSError."""
    parser, answers = FrameParser(), []
    while data := peer.recv(65536):
        answers += parser.feed(data)
    return answers


def test_requests_that_lie_unread_in_the_socket_when_a_server_stops_are_answered(run: Run) -> None:
    async def main() -> None:
        counting = Counting()
        server = RemotingServer(counting, host="127.0.0.1")
        await server.start()
        peer, _connection = await accepted(server)
        peer.sendall(b"".join(request(n) for n in range(300)))  # the loop has not read a byte of it
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        answers = await asyncio.to_thread(read_all, peer)
        assert [(answer.opaque, answer.code) for answer in answers] == [(n, 0) for n in range(300)]
        assert counting.opaques == list(range(300))
        peer.close()
        await closing
        assert not server.connections

    run(main())


def test_of_a_burst_that_is_larger_than_the_socket_every_request_is_served_or_refused(
    run: Run,
) -> None:
    async def main() -> None:
        counting = Counting()
        limits = Limits(linger_s=WAIT_S)  # the burst may take longer than half a second
        server = RemotingServer(counting, host="127.0.0.1", limits=limits)
        await server.start()
        peer, _connection = await accepted(server)
        count = 20 * PARSED_COMMANDS_MAX
        burst = b"".join(request(n) for n in range(count))
        sending = asyncio.ensure_future(asyncio.to_thread(peer.sendall, burst))
        reading = asyncio.ensure_future(asyncio.to_thread(read_all, peer))
        await turns_until(lambda: bool(counting.calls))
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        await sending
        answers = await reading
        assert [answer.opaque for answer in answers] == list(range(count))
        served = [answer.opaque for answer in answers if answer.code == 0]
        assert served == counting.opaques == list(range(len(served)))  # first all that are served, then the refused
        assert {answer.code for answer in answers} <= {0, 2}
        peer.close()
        await closing

    run(main())


def test_a_request_that_comes_after_a_server_was_told_to_stop_is_refused_with_a_text(run: Run) -> None:
    async def main() -> None:
        holding = Holding()
        server = RemotingServer(holding, host="127.0.0.1")
        await server.start()
        peer, connection = await accepted(server)
        peer.sendall(request(1))
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        await holding.arrived.wait()
        peer.sendall(request(2) + request(3, oneway=True))
        [refused] = FrameParser().feed(await asyncio.to_thread(peer.recv, 65536))
        assert (refused.opaque, refused.code) == (2, 2)
        assert "stopping" in str(refused.remark)
        [(_, accepted_request)] = holding.held
        connection.reply(encode_response(accepted_request, 0, None, b"kept"))
        [kept] = await asyncio.to_thread(read_all, peer)
        assert (kept.opaque, kept.body) == (1, b"kept")
        assert len(holding.held) == 1
        peer.close()
        await closing

    run(main())


def test_bytes_that_come_after_our_end_do_not_reset_the_answers_before_it(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", limits=Limits(linger_s=WAIT_S))
        await server.start()
        peer, connection = await accepted(server)
        peer.sendall(request(1))
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        await turns_until(lambda: not connection.is_open)
        for number in range(100):  # a peer that does not look
            peer.sendall(request(number))
            await asyncio.sleep(0)
        answers = await asyncio.to_thread(read_all, peer)
        assert [answer.opaque for answer in answers] == [1]
        peer.close()
        await closing

    run(main())


def test_a_peer_that_does_not_close_is_closed_after_a_while(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", limits=Limits(linger_s=0.01))
        await server.start()
        peer, _connection = await accepted(server)
        await server.close(drain_seconds=WAIT_S)  # comes to its end though the peer does nothing
        assert not server.connections
        assert await asyncio.to_thread(read_all, peer) == []
        peer.close()

    run(main())


def test_a_request_that_is_half_read_when_a_server_stops_is_waited_for(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1")
        await server.start()
        peer, connection = await accepted(server)
        peer.sendall(request(1) + request(2)[:-1])
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        parser = FrameParser()
        [first] = parser.feed(await asyncio.to_thread(peer.recv, 65536))
        assert (first.opaque, connection.is_open) == (1, True)
        peer.sendall(request(2)[-1:])
        [second] = await asyncio.to_thread(read_all, peer)
        assert (second.opaque, second.code) == (2, 2)
        peer.close()
        await closing

    run(main())


def test_a_request_that_stays_half_read_is_waited_for_only_a_while(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", limits=Limits(linger_s=0.01))
        await server.start()
        peer, _connection = await accepted(server)
        peer.sendall(request(1) + request(2)[:-1])
        await server.close(drain_seconds=WAIT_S)
        assert [answer.opaque for answer in await asyncio.to_thread(read_all, peer)] == [1]
        peer.close()

    run(main())


def test_a_server_whose_drain_time_is_over_lets_go_of_peers_that_it_waits_for(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1")
        await server.start()
        peer, _connection = await accepted(server)
        await server.close(drain_seconds=0.0)
        await turns_until(lambda: not server.connections)
        peer.close()

    run(main())


def test_requests_over_tls_that_lie_unread_are_answered(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", tls=server_tls(SERVER))
        await server.start()
        context = client_tls({"tls.enable": "true"})
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        await turns_until(lambda: bool(server.connections))
        writer.write(b"".join(request(n) for n in range(300)))  # the server has its turn after `close`
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        answers = FrameParser().feed(await reader.read())
        assert [(answer.opaque, answer.code) for answer in answers] == [(n, 0) for n in range(300)]
        writer.close()
        await closing

    run(main())


def test_a_server_that_is_closed_twice_has_nothing_left_to_do(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1")
        await server.start()
        await server.close()
        await server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)

    run(main())
    assert not caplog.records


def test_a_drained_connection_serves_what_it_has_read(run: Run) -> None:
    async def main() -> None:
        counting = Counting()
        connection, transport = connected(counting)
        connection.data_received(b"".join(request(n) for n in range(2 * PARSED_COMMANDS_MAX)))
        connection.drain()
        await turns_until(lambda: len(counting.opaques) == 2 * PARSED_COMMANDS_MAX)
        await turns_until(lambda: transport.has_written_eof)
        assert connection.is_open is False
        assert not transport.is_closing()

    run(main())


def test_a_peer_that_breaks_the_protocol_while_a_server_stops_is_closed_like_any_other(run: Run) -> None:
    """With the last answer out, the connection has its end from the draining already."""

    async def main() -> None:
        for last_words in (b"\xff" * 8, request(1) + b"\xff" * 8):
            holding = Holding()
            connection, transport = connected(holding)
            connection.data_received(request(0))
            connection.drain()
            [(_, held)] = holding.held
            connection.reply(encode_response(held))  # leaves with what closes the connection
            connection.data_received(last_words)
            await asyncio.sleep(0)
            assert len(transport.writes) == 1
            assert not connection.is_open

    run(main())


def test_nothing_is_written_after_our_end(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        connection.drain()
        assert transport.has_written_eof
        connection.reply(b"an answer that nobody asked for")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.data_received(request(1))
        assert transport.writes == []
        connection.abort("the drain time is over")
        assert transport.is_aborted

    run(main())


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain port", "port with TLS"])
def test_who_waits_in_the_kernel_when_a_server_stops_is_served(has_tls: bool, run: Run) -> None:
    """The loop has no turn between their connecting and the stop, so that none is accepted by us before it."""

    async def main() -> None:
        counting = Counting()
        server = RemotingServer(counting, host="127.0.0.1", tls=server_tls(SERVER) if has_tls else None)
        await server.start()
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) for _ in range(5)]
        for number, peer in enumerate(peers):
            peer.sendall(request(number))
        closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
        answers = [await asyncio.to_thread(read_all, peer) for peer in peers]
        assert [[(answer.opaque, answer.code) for answer in of_one] for of_one in answers] == [
            [(number, 0)] for number in range(5)
        ]
        for peer in peers:
            peer.close()
        await closing
        assert not server.connections

    run(main())


def shaken(peer: socket.socket, secured: ssl.SSLObject, received: ssl.MemoryBIO, to_send: ssl.MemoryBIO) -> str | None:
    """Go on with a handshake over a blocking socket; the version of TLS that was agreed upon."""
    while True:
        try:
            secured.do_handshake()
        except ssl.SSLWantReadError:
            if data := to_send.read():
                peer.sendall(data)
            received.write(peer.recv(65536))
        else:
            peer.sendall(to_send.read())
            return secured.version()


def test_a_handshake_whose_beginning_waits_in_the_kernel_when_a_server_stops_comes_to_its_end(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", tls=server_tls(SERVER))
        await server.start()
        context = client_tls({"tls.enable": "true"})
        assert context is not None
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = context.wrap_bio(received, to_send, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            secured.do_handshake()
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
            peer.sendall(to_send.read())
            closing = asyncio.ensure_future(server.close(drain_seconds=WAIT_S))
            assert await asyncio.to_thread(shaken, peer, secured, received, to_send) == "TLSv1.3"
            assert await asyncio.to_thread(peer.recv, 65536) != b""  # its tickets, or its goodbye: no reset
        await closing
        assert not server.connections

    run(main())
