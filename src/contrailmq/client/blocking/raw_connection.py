"""One blocking connection to a broker or NameServer, without asyncio: for readers (`raw`) and plain sends (`direct`).

Requests may follow each other before the first is answered. A large body is received directly into its final
memory, which the caller may reuse for the next one (`Landing`).

Time limits are the kernel's where there is no TLS, so that a request and its answer are two system calls; one is set
again when it would be more than SLACK_S too long. With TLS, and on Windows, they are Python's.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from contrailmq.message import ContrailError
from contrailmq.wire.acl import AclCredentials
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, RemoteProtocolError, RequestTimeoutError
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command, ExtValue, to_ext
from contrailmq.wire.transport import dial_failure, split_address

RECEIVE_BYTES: Final = 64 * 1024  # of a frame that is longer, the rest is received where it is to lie
SLACK_S: Final = 0.05
_JOINED_BYTES_MAX: Final = 16 * 1024  # what is copied rather than sent by itself
_LIMIT_S_MAX: Final = 86_400.0 * 365  # infinity has no place in a timeval
_TIMEVAL: Final = struct.Struct("@ll")

Pieces = Sequence[bytes | memoryview]  # of one body; memoryviews of bytes


class Landing:
    """Memory in which bodies of answers are received, one after the other as long as they are kept.

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
        """Put the next body after the last one instead of over it."""
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
        self._is_limited_by_kernel = tls is None and os.name == "posix"
        self._limit_s = 0.0  # none is set
        host, port = split_address(address)
        try:
            plain = socket.create_connection((host, port), timeout=connect_timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=tls_server_name or host)
            if self._is_limited_by_kernel:
                plain.settimeout(None)
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
        self._send((head, *pieces), code, timeout_s)
        self._answers[self._opaque] = None
        if landing is not None:
            self._landings[self._opaque] = landing
        return self._opaque

    def exchange(self, frame_of: Callable[[int], bytes], code: int, timeout_s: float) -> Command:
        """The answer to a request that the caller encodes, given its opaque."""
        self._opaque += 1
        opaque = self._opaque
        self._send((frame_of(opaque),), code, timeout_s)
        self._answers[opaque] = None
        return self.answer(opaque, code, timeout_s=timeout_s)

    def answer(self, opaque: int, code: int, *, timeout_s: float = 3.0) -> Command:
        """The answer to a posted request; those of others that come first are kept for them."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while (found := self._answers[opaque]) is None:
                self._receive(deadline_s)
        except (OSError, RemoteProtocolError) as exc:
            raise self._failure(exc, code, timeout_s) from exc
        del self._answers[opaque]
        return found

    def is_answered(self, opaque: int) -> bool:
        """Whether `answer` would not wait: there is one, or the connection is lost."""
        if self._answers[opaque] is not None:
            return True
        try:
            if self._is_limited_by_kernel:
                self._take(socket.MSG_DONTWAIT)
            else:
                self._socket.settimeout(0)
                self._take()
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except (OSError, ContrailError):
            return True  # `answer` says what it is
        return self._answers[opaque] is not None

    def is_alive(self) -> bool:
        """Whether the peer has neither closed it nor said what nobody asked for. Not with TLS."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _failure(self, exc: OSError | RemoteProtocolError, code: int, timeout_s: float) -> ContrailError:
        """Close, for a late answer would be taken for the next one's, and say what was wrong."""
        self.close()
        if isinstance(exc, RemoteProtocolError):
            return RemoteProtocolError(f"{self.address}: {exc}; check that a RocketMQ server listens there")
        if isinstance(exc, TimeoutError | BlockingIOError):  # the latter is how the kernel's limits end
            return RequestTimeoutError(self.address, code, timeout_s)
        return ConnectionClosedError(self.address, exc.strerror or str(exc))

    def _limit(self, left_s: float) -> None:
        """Let a send or a receive take no longer."""
        if not self._is_limited_by_kernel:
            self._socket.settimeout(left_s)
            return
        left_s = min(left_s, _LIMIT_S_MAX)
        if not left_s <= self._limit_s <= left_s + SLACK_S:
            seconds, micros = divmod(max(1, round(left_s * 1_000_000)), 1_000_000)  # 0 would be no limit
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, micros))
            self._limit_s = left_s

    def _send(self, pieces: Pieces, code: int, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        try:
            self._limit(timeout_s)
            for piece in pieces:
                sent = self._socket.send(piece)
                while sent < len(piece):
                    if time.monotonic() >= deadline_s:
                        raise TimeoutError
                    sent += self._socket.send(memoryview(piece)[sent:])
        except OSError as exc:
            raise self._failure(exc, code, timeout_s) from exc

    def _receive(self, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._limit(left_s)
        self._take()

    def _take(self, flags: int = 0) -> None:
        """Receive once."""
        if self._parser.error is not None:
            raise self._parser.error  # it came after an answer
        large = self._large
        if large is not None:
            received = self._socket.recv_into(large.rest, len(large.rest), flags)
            self._check_open(received)
            large.rest = large.rest[received:]
            if not large.rest:
                self._large = None
                self._keep(large.command, large)
            return
        data = self._socket.recv(RECEIVE_BYTES, flags)
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
        """Keep a whole answer for its caller. There is only one: other answers belong to nobody."""
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
