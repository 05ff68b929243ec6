"""Accepting connections of one address: plain, or TLS and plain on one port.

With TLS on, the first byte of a connection is looked at before the protocol sees it (`tls` says what it tells). We
accept ourselves because the loop's server does not do three things: look at that byte, log when accepting fails
(usually for lack of descriptors), and at the end take in what the kernel has already accepted.

Connections beyond what the limit of open files leaves (`connection_ceiling`) are closed as soon as they are accepted:
new clients learn it at once, existing connections go on, and the rest of the process keeps the files that it needs.
The log says when that begins and when it is over, with a number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from contrailmq._faults import LastingFault
from contrailmq.message.addresses import check_host_form
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.tls import ServerTls, TlsMode

__all__ = ["Accepted", "Listener", "bind", "check_host"]

_log = logging.getLogger(__name__)

NO_LIMIT: Final = 2**31 - 1
OWN_DESCRIPTORS: Final = 32  # of a server without a store: its tables, the connections that it opens itself

BACKLOG: Final = 1024  # as Java's servers
AT_ONCE: Final = 16  # connections accepted before the others have their turn: 2 to 5 ms, until they are set up
TLS_FIRST_BYTE: Final = b"\x16"  # ContentType.handshake
_FIRST_BYTE_SECONDS: Final = 10.0  # with TLS on, a connection that has not said a byte by then is closed
_LAST_HANDSHAKE_SECONDS: Final = 2.0  # for those under way when we stop: some round trips
_ACCEPT_PAUSE_SECONDS: Final = 1.0  # after accepting failed; as asyncio's servers
_FREE_AGAIN: Final = 16  # connections fewer: else each one that ends and begins would be two lines in the log
_NO_SUCH_ADDRESS: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for each address of the host, all on one port. OSError when one cannot be had.

    No host means all addresses of all families that this machine has. A name of several addresses may have some that
    this machine has not (`localhost` where IPv6 is switched off): one is enough.
    """
    if host:
        check_host(host)
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return listen_on(sorted({(info[0], info[4]) for info in infos}), port, host)


Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


def listen_on(addresses: list[Address], port: int, host: str) -> list[socket.socket]:
    """`bind` for a host whose addresses are known."""
    with contextlib.ExitStack() as bound:
        sockets: list[socket.socket] = []
        for number, (family, (address, _port, *scope)) in enumerate(addresses, 1):
            try:
                listening = socket.create_server((address, port, *scope), family=family, backlog=BACKLOG)
            except OSError as exc:
                if exc.errno in _NO_SUCH_ADDRESS and (sockets or number < len(addresses)):
                    if host:
                        _log.warning("%s is also %s, which this machine cannot listen on: %s", host, address, exc)
                    continue
                raise
            sockets.append(bound.enter_context(listening))
            port = int(listening.getsockname()[1])
        bound.pop_all()
    return sockets


def check_host(host: str) -> None:
    """OSError when no resolver can be asked for the host; Python's own would raise a UnicodeError."""
    try:
        check_host_form(host)
    except ValueError as exc:
        raise OSError(errno.EINVAL, str(exc)) from exc


class Accepted(Protocol):
    """What is made for a peer: an asyncio protocol that says when it has ended."""

    on_close: list[Callable[[Any], None]]


class Listener:
    """Accepts on one listening socket, from its making to `close`."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], Accepted],
        tls: ServerTls | None,
        *,
        reserve: int = OWN_DESCRIPTORS,
        refusing: Callable[[], Accepted] | None = None,
    ) -> None:
        """`reserve` is how many descriptors connections leave to the rest of the process. `refusing` makes connections
        for plain peers where TLS is enforced; without it they are closed."""
        self._listening, self._factory, self._reserve, self._refusing = listening, factory, reserve, refusing
        self._tls = tls if tls is not None and tls.mode is not TlsMode.DISABLED else None
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}  # accepted, first byte not seen
        self._entering: set[asyncio.Task[None]] = set()  # on their way to the protocol, through a handshake or not
        self._resuming: asyncio.TimerHandle | None = None  # accepting failed and goes on then
        self._fault = LastingFault(_log, "accepting failed")
        self._count = 0  # connections that were accepted here and have not ended
        self._count_max = 0  # how many there were when descriptors became scarce
        self._refused = 0  # connections, since then
        self.refused = 0  # connections, at all
        self._scarce = LastingFault(_log, "descriptors are scarce")
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    async def close(self, within_s: float) -> None:
        """Stop listening. A peer that has connected by now gets in, unless TLS is on and it has sent nothing yet."""
        if self._resuming is None:
            self._accept(BACKLOG + 1)  # what the kernel has accepted
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for sock in list(self._silent):
            self._peek(sock)
            if sock in self._silent:
                self._drop(sock)
        if self._entering:
            await asyncio.wait(self._entering, timeout=min(within_s, _LAST_HANDSHAKE_SECONDS))
        for task in self._entering:
            task.cancel()

    def _accept(self, count_max: int = AT_ONCE) -> None:
        ceiling = connection_ceiling(self._reserve)
        for _ in range(count_max):
            try:
                sock, _peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._pause(exc)
                return
            self._fault.is_over("it goes on")
            if not self._has_room(sock.fileno(), ceiling):
                sock.close()
                continue
            self._count += 1
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                self._enter(sock, None, self._factory)
            else:
                self._silent[sock] = self._loop.call_later(_FIRST_BYTE_SECONDS, self._drop, sock)
                self._loop.add_reader(sock, self._peek, sock)

    def _has_room(self, descriptor: int, ceiling: int) -> bool:
        """Whether a connection with this descriptor may stay.

        Once there were too many, their number decides: a file that was closed leaves a low descriptor, which says
        nothing about the others.
        """
        if self._refused and self._count <= self._count_max - _FREE_AGAIN:
            self._scarce.is_over(f"connections are taken again: {self._refused} were refused")
            self._refused = 0
        if descriptor < ceiling and not (self._refused and self._count >= self._count_max):
            return True
        if not self._refused:
            self._count_max = self._count
        self._refused += 1
        self.refused += 1
        self._scarce.goes_on(
            f"no connections beyond these {self._count_max}: {ceiling} of {ceiling + self._reserve} are in use, the "
            "rest is for files; new ones are closed at once; raise the limit on open files (ulimit -n, LimitNOFILE)"
        )
        return False

    def _made(self, factory: Callable[[], Accepted]) -> Accepted:
        connection = factory()
        connection.on_close.append(self._left)
        return connection

    def _left(self, connection: Accepted | None = None) -> None:
        self._count -= 1

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a while: the loop would call again at once, without success."""
        remedy = f"trying every {_ACCEPT_PAUSE_SECONDS:g} s; raise the limit on open files if it is reached"
        self._fault.goes_on(f"{error}; {remedy}")
        self._loop.remove_reader(self._listening)
        self._resuming = self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listening, self._accept)

    def _peek(self, sock: socket.socket) -> None:
        assert self._tls is not None
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        is_tls = first == TLS_FIRST_BYTE
        is_refused = not is_tls and self._tls.mode is TlsMode.ENFORCING
        factory = self._refusing if is_refused else self._factory
        if not first or factory is None:
            self._drop(sock)
            return
        self._loop.remove_reader(sock)
        self._silent.pop(sock).cancel()
        self._enter(sock, self._tls.context if is_tls else None, factory)

    def _enter(self, sock: socket.socket, context: ssl.SSLContext | None, factory: Callable[[], Accepted]) -> None:
        task = self._loop.create_task(self._hand_over(sock, context, factory))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _hand_over(
        self, sock: socket.socket, context: ssl.SSLContext | None, factory: Callable[[], Accepted]
    ) -> None:
        timeout = _FIRST_BYTE_SECONDS if context is not None else None
        peer = _peer_text(sock) if context is not None else ""
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, self._made(factory)), sock, ssl=context, ssl_handshake_timeout=timeout
            )
        except (OSError, ssl.SSLError) as exc:
            reason = str(exc) or "the peer hung up; does it trust the CA of this server's certificate?"
            peer_warnings.warn("TLS handshake failed", f"{peer}: {reason}")
            sock.close()
            self._left()

    def _drop(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        self._silent.pop(sock).cancel()
        sock.close()
        self._left()


def _peer_text(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # it is gone
        return "a peer"
    return f"{host}:{port}"


def raise_limit() -> None:
    """Lift the soft limit of open files to the hard one, where there is such a thing and we may."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, OSError, ValueError):  # Windows has no limit, macOS a hard one that cannot be set
        return


def connection_ceiling(reserve: int) -> int:
    """The first descriptor number that no connection may have. A reserve takes at most half of the limit.

    The kernel gives a new descriptor the lowest number that is free. So the number of a connection that was just
    accepted says how many descriptors are in use, whoever uses them, and nobody has to count: what is left belongs to
    those who must not fail, a store's files above all.
    """
    try:
        import resource
    except ImportError:
        return NO_LIMIT
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NO_LIMIT if limit == resource.RLIM_INFINITY else limit - min(reserve, limit // 2)
