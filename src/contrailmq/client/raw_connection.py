"""One blocking connection to a broker or NameServer, without asyncio.

Requests may follow each other before the first is answered. A large body is received straight into the memory where it
is to lie, which its asker may keep for the next one (`Landing`).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from contrailmq.message import ContrailError
from contrailmq.wire.acl import AclCredentials
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, RemoteProtocolError, RequestTimeoutError
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command, ExtValue, to_ext
from contrailmq.wire.transport import dial_failure, split_address

RECEIVE_BYTES: Final = 64 * 1024  # of a frame that is longer, the rest is received where it is to lie
_JOINED_BYTES_MAX: Final = 16 * 1024  # what is copied rather than sent by itself

Pieces = Sequence[bytes | memoryview]  # of one body; memoryviews of bytes


class Landing:
    """Memory in which bodies of answers are received, one behind the other as far as they are kept.

    A new megabyte for each costs as much as receiving it: the kernel hands it out page by page, filled with zeros.
    """

    def __init__(self) -> None:
        self._memory = bytearray()
        self._kept_bytes = 0
        self._body_at = 0
        self.body = memoryview(b"")  # of the last answer

    @property
    def kept(self) -> memoryview:
        """All bodies that were kept."""
        return memoryview(self._memory)[: self._kept_bytes]

    def keep(self) -> None:
        """Let the next body come behind the last one instead of over it."""
        body, self.body = self.body, memoryview(b"")
        if self._body_at != self._kept_bytes:  # it came before the last `clear`
            self.room(len(body))[:] = body
        self._kept_bytes += len(body)

    def clear(self) -> None:
        self._kept_bytes = 0

    def room(self, size_bytes: int) -> memoryview:
        """Where a body of this size is to lie."""
        end = self._kept_bytes + size_bytes
        if len(self._memory) < end:
            larger = bytearray(max(end, 2 * self._kept_bytes))
            larger[: self._kept_bytes] = self.kept
            self._memory = larger
        self._body_at = self._kept_bytes
        return memoryview(self._memory)[self._kept_bytes : end]


class _LargeBody:
    """A body that is being received."""

    def __init__(self, command: Command, begun: bytes, missing_bytes: int, landing: Landing | None) -> None:
        self.command = command
        self.whole = (landing or Landing()).room(len(begun) + missing_bytes)
        self.whole[: len(begun)] = begun
        self.rest = self.whole[len(begun) :]


class RawConnection:
    """One blocking connection: a request, then its answer; or several requests (`post`), then theirs (`answer`)."""

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_s: float = 3.0,
        tls: ssl.SSLContext | None = None,
        tls_server_name: str | None = None,
        credentials: AclCredentials | None = None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._parser = FrameParser()
        self._opaque = 0
        self._answers: dict[int, Command | None] = {}  # of requests that were posted; None: not come yet
        self._landings: dict[int, Landing] = {}
        self._large: _LargeBody | None = None
        host, port = split_address(address)
        try:
            plain = socket.create_connection((host, port), timeout=connect_timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=tls_server_name or host)
        except (OSError, ssl.SSLError) as exc:
            raise ConnectError(address, dial_failure(exc, is_tls=tls is not None)) from exc

    def invoke(
        self,
        code: RequestCode,
        ext: Mapping[str, ExtValue],
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        landing: Landing | None = None,
    ) -> Command:
        """The answer, whatever its code."""
        opaque = self.post(code, ext, body, timeout_s=timeout_s, landing=landing)
        return self.answer(opaque, code, timeout_s=timeout_s)

    def post(
        self,
        code: RequestCode,
        ext: Mapping[str, ExtValue],
        body: bytes | Pieces = b"",
        *,
        timeout_s: float = 3.0,
        landing: Landing | None = None,
    ) -> int:
        """Send a request; the number by which to ask for its answer. Pieces of a body are sent as they are.

        With a landing, the answer's body is received there, and the answer has none. Until it was asked for, nothing
        else is to land there.
        """
        fields = to_ext(ext)
        pieces: Pieces = [body] if isinstance(body, bytes) else body
        if self._credentials is not None:
            self._credentials(code, fields, b"".join(pieces))
        self._opaque += 1
        body_bytes = sum(map(len, pieces))
        head = encode_request(code, fields, opaque=self._opaque, body_bytes=body_bytes)
        if body_bytes <= _JOINED_BYTES_MAX:
            head, pieces = b"".join((head, *pieces)), ()
        with self._translated(code, timeout_s):
            self._socket.settimeout(timeout_s)
            for piece in (head, *pieces):
                self._socket.sendall(piece)
        self._answers[self._opaque] = None
        if landing is not None:
            self._landings[self._opaque] = landing
        return self._opaque

    def answer(self, opaque: int, code: RequestCode, *, timeout_s: float = 3.0) -> Command:
        """The answer to a posted request; those of others that come first are kept for them."""
        deadline_s = time.monotonic() + timeout_s
        with self._translated(code, timeout_s):
            while (found := self._answers[opaque]) is None:
                self._receive(deadline_s)
        del self._answers[opaque]
        return found

    def is_answered(self, opaque: int) -> bool:
        """Whether `answer` would not wait: there is one, or the connection is lost."""
        if self._answers[opaque] is not None:
            return True
        try:
            self._socket.settimeout(0)
            self._take()
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except (OSError, ContrailError):
            return True  # `answer` says what it is
        return self._answers[opaque] is not None

    @contextlib.contextmanager
    def _translated(self, code: RequestCode, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except TimeoutError as exc:
            self.close()  # a late answer would be taken for the next one's
            raise RequestTimeoutError(self.address, code, timeout_s) from exc
        except OSError as exc:
            self.close()
            raise ConnectionClosedError(self.address, exc.strerror or str(exc)) from exc
        except RemoteProtocolError as exc:
            self.close()
            raise RemoteProtocolError(f"{self.address}: {exc}; check that a RocketMQ server listens there") from exc

    def _receive(self, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        self._take()

    def _take(self) -> None:
        """Receive once."""
        if self._parser.error is not None:
            raise self._parser.error  # it came behind an answer
        large = self._large
        if large is not None:
            received = self._socket.recv_into(large.rest)
            self._check_open(received)
            large.rest = large.rest[received:]
            if not large.rest:
                self._large = None
                self._keep(large.command, large)
            return
        data = self._socket.recv(RECEIVE_BYTES)
        self._check_open(len(data))
        for command in self._parser.feed(data):
            self._keep(command, None)
        begun = self._parser.take_begun(RECEIVE_BYTES)
        if begun is not None:
            command = begun[0]
            self._large = _LargeBody(*begun, self._landings.get(command.opaque) if command.is_response else None)

    def _check_open(self, received: int) -> None:
        if not received:
            raise ConnectionClosedError(self.address, "the peer closed it")

    def _keep(self, command: Command, large: _LargeBody | None) -> None:
        """Keep an answer that came whole for whoever asked. There is one: what else comes belongs to nobody."""
        if not command.is_response or self._answers.get(command.opaque, command) is not None:
            return
        self._answers[command.opaque] = command
        landing = self._landings.pop(command.opaque, None)
        if landing is None:
            command.body = command.body if large is None else bytes(large.whole)
        elif large is not None:
            landing.body = large.whole
        else:
            landing.body = landing.room(len(command.body))
            landing.body[:] = command.body
            command.body = b""

    def close(self) -> None:
        self._socket.close()
