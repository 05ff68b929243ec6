"""Sockets of simulated processes: the calls of `socket.socket`, over `network.py`.

asyncio's own transports, and blocking clients too, run on these unchanged. A socket belongs to the node that made it.
Whoever waits for one (a selector, or a thread in a blocking call) registers with `watchers` and is told of changes.
"""

from __future__ import annotations

import errno
import os
import socket as real
import termios
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from simulation.network import Address, Stream
from simulation.nodes import Node
from simulation.threads import Clockwork
from simulation.world import SECOND_NS, SimulationError, World

WILDCARDS: Final = ("0.0.0.0", "::", "")
DONT_WAIT, PEEK = int(real.MSG_DONTWAIT), int(real.MSG_PEEK)  # enums are slow


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def unread_in(world: World, ioctl: Callable[..., Any]) -> Callable[..., Any]:
    """fcntl.ioctl that knows of a simulated socket how many bytes wait in it (FIONREAD), and nothing else of one."""

    def simulated(descriptor: int, request: int, argument: Any = 0, mutate: bool = True) -> Any:
        running = world.running
        if running is None or request != termios.FIONREAD:
            return ioctl(descriptor, request, argument, mutate)
        stream = running.node.sockets[descriptor].stream
        argument[0] = len(stream.inbox) if stream is not None else 0
        return 0

    return simulated


class Socket:
    """socket.socket. `watchers` are called whenever it may have become readable or writable."""

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        running = Clockwork.world.running
        if running is None or fileno is not None:
            raise SimulationError("a socket is made inside a node, and not of a descriptor")
        self.family = real.AF_INET if family == -1 else real.AddressFamily(family)
        self.type = real.SOCK_STREAM if type == -1 else real.SocketKind(type)
        self.proto = real.IPPROTO_TCP if proto in (-1, 0) and self.type == real.SOCK_STREAM else max(proto, 0)
        self.stream: Stream | None = None
        self.watchers: dict[Callable[[], None], None] = {}
        self._adopt(running.node)
        self._timeout_s: float | None = None
        self._local: Address | None = None
        self._backlog: deque[Stream] | None = None

    def _adopt(self, node: Node) -> None:
        self._node = node
        self._descriptor = node.free_descriptor()
        self._number = node.network.next_number()
        node.sockets[self._descriptor] = self

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return f"<simulated socket {self._descriptor} of {self._node.name}>"

    # --- what the kernel does

    def changed(self) -> None:
        for watcher in list(self.watchers):
            watcher()

    def queue(self, stream: Stream) -> bool:
        """A connection for this listening socket; False when it listens no longer."""
        if self._backlog is None:
            return False
        self._backlog.append(stream)
        self.changed()
        return True

    def process_died(self) -> None:
        self.close()

    @property
    def is_readable(self) -> bool:
        if self._backlog is not None:
            return bool(self._backlog)
        stream = self.stream
        return stream is not None and bool(stream.inbox or stream.is_ended or stream.error)

    @property
    def is_writable(self) -> bool:
        stream = self.stream
        if stream is None:
            return False
        return bool(stream.error or stream.is_forgotten) or (stream.peer is not None and stream.room > 0)

    # --- names and options

    def fileno(self) -> int:
        return self._descriptor

    def setblocking(self, flag: bool) -> None:
        self._timeout_s = None if flag else 0.0

    def settimeout(self, value: float | None) -> None:
        self._timeout_s = value

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def getblocking(self) -> bool:
        return self._timeout_s != 0.0

    def setsockopt(self, *_: object) -> None:
        return

    def getsockopt(self, level: int, option: int, size: int = 0) -> int:
        if option == real.SO_ERROR and self.stream is not None:
            number, self.stream.error = self.stream.error, 0
            return number
        return 0

    def getsockname(self) -> Address:
        if self.stream is not None:
            return self.stream.local
        return self._local or ("0.0.0.0", 0)

    def getpeername(self) -> Address:
        if self.stream is None or self.stream.peer is None or self.stream.is_forgotten:
            raise _error(errno.ENOTCONN)
        return self.stream.remote

    # --- listening

    def bind(self, address: Address) -> None:
        host, port = address[0], address[1]
        if host not in (*WILDCARDS, "127.0.0.1", self._node.host.address):
            raise _error(errno.EADDRNOTAVAIL)
        if port and port in self._node.host.listeners:
            raise _error(errno.EADDRINUSE)
        self._local = (host, port or self._node.host.free_port())

    def listen(self, backlog: int = 128) -> None:
        assert self._local is not None
        self._backlog = deque()
        self._node.host.listeners[self._local[1]] = self

    def accept(self) -> tuple[Socket, Address]:
        if self._backlog is None:
            raise _error(errno.EINVAL)
        self._wait_until(lambda: self._backlog is None or bool(self._backlog))
        stream = self._backlog.popleft()
        accepted = object.__new__(Socket)
        accepted.family, accepted.type, accepted.proto = self.family, self.type, self.proto
        accepted.watchers, accepted._timeout_s, accepted._backlog = {}, None, None
        accepted._local, accepted.stream, stream.owner = stream.local, stream, accepted
        accepted._adopt(self._node)
        return accepted, stream.remote

    # --- connecting

    def connect(self, address: Address) -> None:
        node = self._node
        target = self._resolve(address[0])
        if self.type == real.SOCK_DGRAM:  # only asks which of our addresses leads there
            self._local = (node.host.address, node.host.free_port())
            return
        if self.stream is None:
            local = (target if target == "127.0.0.1" else node.host.address, node.host.free_port())
            self.stream = Stream(node.network, node.host, local, (target, address[1]))
            self.stream.owner = self
            node.network.dial(self.stream)
        stream = self.stream
        if self._timeout_s == 0.0:
            raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
        self._wait_until(lambda: stream.peer is not None or stream.error != 0)
        self._raise_error(stream)

    def connect_ex(self, address: Address) -> int:
        try:
            self.connect(address)
        except OSError as exc:
            return exc.errno or errno.EIO
        return 0

    def _resolve(self, name: str) -> str:
        network = self._node.network
        address = network.names.get(name, name)
        return self._node.host.address if address in ("127.0.0.1", "localhost", *WILDCARDS) else address

    # --- bytes

    def recv(self, size: int, flags: int = 0) -> bytes:
        stream = self._connected()
        if flags & DONT_WAIT and not self.is_readable:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._wait_until(lambda: bool(stream.inbox or stream.is_ended or stream.error))
        self._raise_error(stream)
        if flags & PEEK:
            return bytes(stream.inbox[:size])
        return stream.take(size)

    def recv_into(self, buffer: bytearray | memoryview, nbytes: int = 0, flags: int = 0) -> int:
        data = self.recv(nbytes or len(buffer), flags)
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        stream = self._connected()
        if stream.is_shut or (stream.is_forgotten and not stream.error):
            raise _error(errno.EPIPE)
        self._wait_until(lambda: stream.room > 0 or bool(stream.error))
        self._raise_error(stream)
        view = memoryview(data).cast("B")[: stream.room]
        stream.write(bytes(view))
        return len(view)

    def sendmsg(self, buffers: Iterable[bytes | bytearray | memoryview]) -> int:
        return self.send(b"".join(buffers))

    def sendall(self, data: bytes | bytearray | memoryview, flags: int = 0) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    def shutdown(self, how: int) -> None:
        stream = self._connected()
        if stream.is_forgotten or stream.peer is None:
            raise _error(errno.ENOTCONN)
        if how in (real.SHUT_WR, real.SHUT_RDWR):
            stream.shut()

    # --- the end

    def close(self) -> None:
        if self._descriptor < 0:
            return
        node = self._node
        node.sockets.pop(self._descriptor, None)
        self._descriptor = -1
        if node.world.is_over:
            return
        if self._backlog is not None and self._local is not None:
            if node.host.listeners.get(self._local[1]) is self:
                del node.host.listeners[self._local[1]]
            waiting, self._backlog = self._backlog, None
            for stream in waiting:
                stream.reset_peer()
        if self.stream is not None:
            self.stream.owner = None
            self.stream.close()
        self.changed()

    def detach(self) -> int:
        raise SimulationError("a simulated socket has no descriptor to detach")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- leaves

    def _connected(self) -> Stream:
        if self._descriptor < 0:
            raise _error(errno.EBADF)
        if self.stream is None:
            raise _error(errno.ENOTCONN)
        return self.stream

    def _raise_error(self, stream: Stream) -> None:
        if stream.error:
            number, stream.error = stream.error, 0
            raise _error(number)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        if is_so():
            return
        if self._timeout_s == 0.0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        world, node = self._node.world, self._node
        fiber = world.running
        assert fiber is not None
        end_ns = None if self._timeout_s is None else node.clock.monotonic_ns() + round(self._timeout_s * SECOND_NS)

        def watch() -> None:
            world.wake(fiber)

        self.watchers[watch] = None
        try:
            while not is_so():
                left_ns = None if end_ns is None else end_ns - node.clock.monotonic_ns()
                if left_ns is not None and left_ns <= 0:
                    raise TimeoutError("timed out")
                world.park(None if left_ns is None else node.clock.world_ns(left_ns))
        finally:
            self.watchers.pop(watch, None)


def getaddrinfo(
    host: str | bytes | None, port: int | str | None, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
) -> list[tuple[int, int, int, str, Address]]:
    """The names and addresses of the simulated network, IPv4 only."""
    running = Clockwork.world.running
    assert running is not None, "names are looked up inside a node"
    network = running.node.network
    text = host.decode() if isinstance(host, bytes) else host
    if text is None or text in WILDCARDS:
        address = "0.0.0.0" if flags & real.AI_PASSIVE else "127.0.0.1"
    elif text == "localhost":
        address = "127.0.0.1"
    else:
        address = network.names.get(text, text)
        if address != "127.0.0.1" and not address.replace(".", "").isdigit():
            raise real.gaierror(real.EAI_NONAME, f"no host {text} in this world")
    kind = real.SocketKind(type) if type else real.SOCK_STREAM
    number = real.IPPROTO_TCP if kind == real.SOCK_STREAM else real.IPPROTO_UDP
    return [(real.AF_INET, kind, number, "", (address, int(port or 0)))]
