"""The smallest HTTP server that serves: GET of a few paths, for scrapers, probes and people with curl.

    request  := "GET" path "HTTP/1.0" or "HTTP/1.1", a head of at most HEAD_BYTES_MAX, no body
    answer   := status, Content-Type, the body, and the end of the connection

An answer whose size is known has Content-Length. One that is made in pieces is sent in chunks (1.1), so that a reader
can tell a whole page from one that was cut off; to a 1.0 reader it ends with the connection.

Bounds: CONNECTIONS_MAX at a time (more are answered 503), REQUEST_S for the head, SEND_S for a reader to take the next
piece, ANSWER_S for all of them. Whatever else a peer sends is answered 4xx where that is possible and ends its
connection, and nothing else.
There is no TLS and no login here: whoever listens beyond the loopback interface puts a proxy in front.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from contrailmq.wire.errors import ListenError
from contrailmq.wire.listener import bind

__all__ = ["HttpAnswer", "HttpServer"]

_log = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 8 * 1024  # what nginx and Apache's httpd take
CONNECTIONS_MAX: Final = 64  # a few scrapers, probes and browsers
REQUEST_S: Final = 10.0
SEND_S: Final = 30.0
ANSWER_S: Final = 60.0  # from the request to the last byte: who reads slowly must not hold up the next scraper
LINGER_S: Final = 1.0
LINGER_READS: Final = 16
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a path answers: a text, or pieces that are made while they are sent."""

    body: bytes | AsyncIterator[bytes]
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Serve = Callable[[], Awaitable[HttpAnswer]]


class _BadRequestError(Exception):
    """Internal: the peer did not send what is served here."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class HttpServer:
    """Serves `routes`: path -> function. `start` and `close` it on the loop that serves it."""

    def __init__(self, routes: Mapping[str, Serve], *, host: str, port: int) -> None:
        self._routes = dict(routes)
        self._host, self._port = host, port
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that is listened on; the real one when 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen. ListenError when the address cannot be bound."""
        try:
            sockets = await bind(self._host, self._port)
        except OSError as exc:
            raise ListenError(self.address, exc.strerror or str(exc)) from exc
        self._port = int(sockets[0].getsockname()[1])
        for listening in sockets:
            self._servers.append(await asyncio.start_server(self._connected, sock=listening, limit=HEAD_BYTES_MAX))

    async def close(self) -> None:
        """Stop listening and end what is under way."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_full = len(self._tasks) >= CONNECTIONS_MAX
        self._tasks.add(task)
        try:
            if is_full:
                raise _BadRequestError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"{CONNECTIONS_MAX} connections are open, the limit: come back later",
                )
            await self._serve(reader, writer)
        except _BadRequestError as exc:
            await _refuse(reader, writer, HttpAnswer(f"{exc}\n".encode(), exc.status))
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as exc:  # the peer is gone, silent or slow
            _log.debug("an HTTP connection ended: %r", exc)
            writer.transport.abort()
        except Exception:  # noqa: BLE001 - whatever a page raises ends this connection; the server goes on
            _log.exception("a page could not be made")
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_S):
            path, is_chunked = await _read_head(reader)
        serve = self._routes.get(path)
        if serve is None:
            raise _BadRequestError(HTTPStatus.NOT_FOUND, f"not found; there is {' '.join(sorted(self._routes))}")
        async with asyncio.timeout(ANSWER_S):
            answer = await serve()
            if isinstance(answer.body, bytes):
                await _send_whole(writer, answer)
            else:
                await _send_pieces(writer, answer, answer.body, is_chunked=is_chunked)


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """The path, without what follows a question mark, and whether the peer takes chunks."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _BadRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head is longer than {HEAD_BYTES_MAX} bytes"
        ) from None
    except asyncio.IncompleteReadError as exc:
        if not exc.partial:
            raise
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, "the head has no end") from None
    parts = head.partition(b"\r\n")[0].split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.0", b"HTTP/1.1") or not parts[1].startswith(b"/"):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST, "this is not an HTTP request: GET /path HTTP/1.1")
    method, target, version = parts
    if method != b"GET":
        raise _BadRequestError(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    return target.partition(b"?")[0].decode("latin-1"), version == b"HTTP/1.1"


def _head(answer: HttpAnswer, more: str) -> bytes:
    status = answer.status
    allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {answer.content_type}\r\nCache-Control: no-store\r\n"
        f"X-Content-Type-Options: nosniff\r\n{allow}{more}Connection: close\r\n\r\n"
    ).encode("latin-1")


async def _send_whole(writer: asyncio.StreamWriter, answer: HttpAnswer) -> None:
    assert isinstance(answer.body, bytes)
    writer.write(_head(answer, f"Content-Length: {len(answer.body)}\r\n") + answer.body)
    await _drained(writer)


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: HttpAnswer) -> None:
    """Answer and take in a little of what else the peer sends: a socket that is closed with unread bytes resets the
    connection, and the answer is lost with it."""
    with contextlib.suppress(OSError, TimeoutError):
        await _send_whole(writer, answer)
        writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            for _ in range(LINGER_READS):
                if not await reader.read(HEAD_BYTES_MAX):
                    break


async def _send_pieces(
    writer: asyncio.StreamWriter, answer: HttpAnswer, pieces: AsyncIterator[bytes], *, is_chunked: bool
) -> None:
    writer.write(_head(answer, "Transfer-Encoding: chunked\r\n" if is_chunked else ""))
    async for piece in pieces:
        if piece:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            await _drained(writer)
    if is_chunked:
        writer.write(b"0\r\n\r\n")
    await _drained(writer)


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Wait for a reader that is slow; one that does not read is left."""
    try:
        async with asyncio.timeout(SEND_S):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()
        raise
