"""The small HTTP server: what it serves, what it refuses, and that a hostile peer ends its own connection only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from contrailmq.wire import http
from contrailmq.wire.errors import ListenError
from contrailmq.wire.http import HttpAnswer, HttpServer

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


async def hello() -> HttpAnswer:
    return HttpAnswer(b"hello\n")


async def in_pieces() -> HttpAnswer:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"", b"two"):
            yield piece

    return HttpAnswer(pieces(), content_type="text/x")


async def broken() -> HttpAnswer:
    raise ValueError("a mistake of ours")


def serve(talk: Callable[[HttpServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = HttpServer({"/hello": hello, "/pieces": in_pieces, "/broken": broken}, host="127.0.0.1", port=0)
        await server.start()
        try:
            await talk(server)
        finally:
            await server.close()

    asyncio.run(main())


async def say(server: HttpServer, data: bytes, *, ends: bool = False) -> bytes:
    """Everything that the server answers to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    if ends:
        writer.write_eof()
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_a_path_is_answered_with_its_length_and_the_end_of_the_connection() -> None:
    async def talk(server: HttpServer) -> None:
        head, _, body = (await say(server, GET % b"/hello?a=b")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n")
        assert b"\r\nContent-Length: 6\r\n" in head
        assert b"\r\nConnection: close" in head
        assert body == b"hello\n"

    serve(talk)


def test_pieces_come_as_chunks_and_to_an_old_reader_as_they_are() -> None:
    async def talk(server: HttpServer) -> None:
        head, _, body = (await say(server, GET % b"/pieces")).partition(b"\r\n\r\n")
        assert b"\r\nTransfer-Encoding: chunked\r\n" in head
        assert body == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"
        head, _, body = (await say(server, b"GET /pieces HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert body == b"one two"

    serve(talk)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (GET % b"/other", b"404"),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"DELETE /hello HTTP/1.1\r\n\r\n", b"405"),
        (b"GET hello HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /hello HTTP/2.0\r\n\r\n", b"400"),
        (b"GET  /hello HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"\0\xff\xfe\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /hello HTTP/1.1\r\nX: " + b"y" * http.HEAD_BYTES_MAX + b"\r\n\r\n", b"431"),
        (GET % b"/../etc/passwd", b"404"),
        (GET % b"/hello%00", b"404"),
    ],
)
def test_what_is_not_served_is_refused_with_its_status_and_others_go_on(data: bytes, status: bytes) -> None:
    async def talk(server: HttpServer) -> None:
        answer = await say(server, data)
        assert answer[:13].split(b" ")[1:2] == [status] or (status == b"431" and not answer)  # a reset may overtake it
        assert (await say(server, GET % b"/hello")).endswith(b"hello\n")

    serve(talk)


def test_a_head_without_an_end_is_refused_and_a_peer_that_says_nothing_is_no_error() -> None:
    async def talk(server: HttpServer) -> None:
        assert b" 400 " in await say(server, b"GET /hello HTT", ends=True)
        assert await say(server, b"", ends=True) == b""

    serve(talk)


def test_a_silent_peer_is_left_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.05)

    async def talk(server: HttpServer) -> None:
        assert await say(server, b"GET /hel") == b""

    serve(talk)


def test_a_page_that_is_never_done_is_ended_and_is_seen_to_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.2)

    async def endless() -> HttpAnswer:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begin"
            await asyncio.Event().wait()

        return HttpAnswer(pieces())

    async def talk(server: HttpServer) -> None:
        server._routes["/endless"] = endless
        answer = await say(server, GET % b"/endless")
        assert not answer.endswith(b"0\r\n\r\n")
        assert (await say(server, GET % b"/hello")).endswith(b"hello\n")

    serve(talk)


def test_a_page_that_fails_costs_its_own_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(server: HttpServer) -> None:
        assert await say(server, GET % b"/broken") == b""
        assert (await say(server, GET % b"/hello")).endswith(b"hello\n")

    serve(talk)
    assert "a page could not be made" in caplog.text


def test_connections_beyond_the_limit_are_told_so_and_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    async def talk(server: HttpServer) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        while True:  # until both were accepted
            answer = await say(server, GET % b"/hello")
            if b" 503 " in answer:
                break
        assert b"2 connections are open" in answer
        for _, writer in idle:
            writer.close()
        while b" 503 " in await say(server, GET % b"/hello"):
            pass

    serve(talk)


def test_a_taken_port_is_an_error_with_the_address() -> None:
    async def talk(server: HttpServer) -> None:
        other = HttpServer({}, host="127.0.0.1", port=server.port)
        with pytest.raises(ListenError, match=f"127.0.0.1:{server.port}"):
            await other.start()

    serve(talk)
