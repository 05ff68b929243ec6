"""Hosts, links between them, and streams of bytes: what the kernel and the wires do.

A link is one direction between two hosts. It has a delay, drawn anew for each segment within its bounds, a speed, and
may be cut: segments then wait, as TCP sends them again, until it is mended. So cutting one of the two links is a
one-way partition. A stream is one end of a connection; bytes arrive in order and whole, in segments that are split
and joined as the seed has it. A receiver that does not read stops its sender, whose `send` then takes no more.

A host that is down answers nothing. Peers of connections that it had learn of it by their own timeouts, or by a reset
when it is up again and gets a segment of a connection that it does not know (half-open connections).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from simulation.world import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS, World

if TYPE_CHECKING:
    from simulation.sockets import Socket

SEND_BUFFER_BYTES: Final = 256 * 1024
RECEIVE_BUFFER_BYTES: Final = 256 * 1024
SEGMENT_BYTES_MAX: Final = 64 * 1024
SPLIT_ODDS: Final = 8  # one write in so many is cut in two at a place drawn from the seed
CONNECT_NS_MAX: Final = 127 * SECOND_NS  # Linux gives up after six retries of a SYN
RESEND_NS_MAX: Final = SECOND_NS  # how long after a link was mended TCP may need to notice
UNHEARD_NS_MAX: Final = 924 * SECOND_NS  # Linux's tcp_retries2: data that nobody acknowledges
FIRST_EPHEMERAL_PORT: Final = 40_000

Address = tuple[str, int]


class Link:
    """One direction between two hosts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.delay_ns_min, self.delay_ns_max = 50 * MICROSECOND_NS, 2 * MILLISECOND_NS
        self.bytes_per_second = 125_000_000
        self.is_cut = False
        self._mended_ns = 0

    def cut(self) -> None:
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False

    def delay_ns(self, size_bytes: int = 0) -> int:
        drawn = int(self._world.random.random() * (self.delay_ns_max - self.delay_ns_min))
        return self.delay_ns_min + drawn + size_bytes * SECOND_NS // self.bytes_per_second


class Host:
    """A machine: an address, ports, and the clock that its processes get."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network, self.name, self.address = network, name, address
        self.is_up = True
        self.boot = 1  # which run of the machine this is
        self.clock_offset_ns, self.clock_rate_ppm = 0, 1_000_000
        self.listeners: dict[int, Socket] = {}
        self.streams: set[Stream] = set()
        self._next_port = FIRST_EPHEMERAL_PORT

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def go_down(self) -> None:
        """Power is gone: no connection of it says goodbye."""
        self.is_up = False
        self.listeners.clear()
        for stream in self.streams:
            stream.is_forgotten = True
        self.streams.clear()

    def come_up(self) -> None:
        self.is_up = True
        self.boot += 1


class Stream:
    """One end of a connection: what arrived here, and what is on its way to the peer."""

    _numbers = 0

    def __init__(self, network: Network, host: Host, local: Address, remote: Address) -> None:
        self.network, self.host, self.local, self.remote = network, host, local, remote
        self.number = network.next_number()
        self.peer: Stream | None = None
        self.owner: Socket | None = None
        self.inbox = bytearray()
        self.is_ended = False  # the peer will send no more
        self.error = 0  # an errno that the next call raises
        self.is_closed = False  # nobody here reads or writes any more
        self.is_forgotten = False  # this end knows nothing of the connection any more
        self.is_shut = False  # no more is written here
        self._outbox: deque[bytes | None] = deque()  # None is the end
        self._unsent = 0
        self._is_moving = False
        self._stuck_since_ns = -1
        host.streams.add(self)

    def __hash__(self) -> int:
        return self.number

    @property
    def has_unsent(self) -> bool:
        return bool(self._outbox)

    @property
    def room(self) -> int:
        return SEND_BUFFER_BYTES - self._unsent

    def write(self, data: bytes) -> None:
        """At most `room` bytes."""
        if self.network.tap is not None:
            self.network.tap(self, data)
        chance = self.network.world.random
        if len(data) > 1 and self.network.world.is_drawn(SPLIT_ODDS):
            place = chance.randrange(1, len(data))
            pieces = [data[:place], data[place:]]
        else:
            pieces = [data]
        for piece in pieces:
            for start in range(0, len(piece), SEGMENT_BYTES_MAX):
                self._outbox.append(piece[start : start + SEGMENT_BYTES_MAX])
        self._unsent += len(data)
        self._move()

    def shut(self) -> None:
        """The end, after what was written."""
        if not self.is_shut:
            self.is_shut = True
            self._outbox.append(None)
            self._move()

    def close(self) -> None:
        """Nobody reads here any more. Unread bytes make it a reset, as on Linux."""
        self.is_closed = True
        if self.inbox:
            self.reset_peer()
        else:
            self.shut()

    def reset_peer(self) -> None:
        """Tell the peer that the connection is no more."""
        self.is_closed = self.is_forgotten = True
        self.host.streams.discard(self)
        self._outbox.clear()
        peer = self.peer
        if peer is not None and self.host.is_up:
            delay_ns = self.network.link(self.host, peer.host).delay_ns()
            self.network.world.after(delay_ns, self._reset_arrives, peer)

    def fail(self, number: int) -> None:
        """The connection is over for this end."""
        if self.is_forgotten:
            return
        self.error = self.error or number
        self.is_forgotten = self.is_ended = True
        self.inbox.clear()
        self._outbox.clear()
        self.host.streams.discard(self)
        self.network.world.note(f"{self.number} failed {errno.errorcode[number]}")
        self.tell()

    def take(self, size_bytes: int) -> bytes:
        data = bytes(self.inbox[:size_bytes])
        del self.inbox[:size_bytes]
        if data and self.peer is not None:
            self.peer._move()  # there is room again
        return data

    def tell(self) -> None:
        if self.owner is not None:
            self.owner.changed()

    def _reset_arrives(self, peer: Stream) -> None:
        if self.network.link(self.host, peer.host).is_cut:
            self.network.world.after(RESEND_NS_MAX, self._reset_arrives, peer)
        else:
            peer.fail(errno.ECONNRESET)

    def _move(self) -> None:
        """Send the next segment off, if there is one and none is on its way."""
        peer = self.peer
        if self._is_moving or not self._outbox or peer is None or self.is_forgotten:
            return
        if len(peer.inbox) >= RECEIVE_BUFFER_BYTES and self._outbox[0] is not None and not peer.is_closed:
            return
        self._is_moving = True
        size = len(self._outbox[0] or b"")
        self.network.world.after(self.network.link(self.host, peer.host).delay_ns(size), self._arrive)

    def _arrive(self) -> None:
        peer = self.peer
        assert peer is not None
        world = self.network.world
        if self.is_forgotten or not self._outbox:
            self._is_moving = False
            return
        if self.network.link(self.host, peer.host).is_cut or not peer.host.is_up:
            self._stuck_since_ns = world.now_ns if self._stuck_since_ns < 0 else self._stuck_since_ns
            if world.now_ns - self._stuck_since_ns > UNHEARD_NS_MAX:
                self.fail(errno.ETIMEDOUT)
            else:
                world.after(world.random.randrange(RESEND_NS_MAX // 4, RESEND_NS_MAX), self._arrive)
            return
        self._stuck_since_ns = -1
        self._is_moving = False
        segment = self._outbox.popleft()
        if peer.is_forgotten or (peer.is_closed and segment is not None):  # nobody there who knows of it
            self.fail(errno.ECONNRESET)
            return
        if segment is None:
            peer.is_ended = True
        else:
            peer.inbox += segment
            self._unsent -= len(segment)
        world.note(f"{self.number}>{peer.number} {-1 if segment is None else len(segment)}")
        if peer.is_closed and self.is_closed and not self._outbox:
            self.host.streams.discard(self)
            peer.host.streams.discard(peer)
        peer.tell()
        self.tell()
        self._move()


class Network:
    """All hosts and links of a world. Owner of the numbers that tell things apart."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}  # by address
        self.names: dict[str, str] = {}  # host name -> address
        self.tap: Callable[[Stream, bytes], None] | None = None  # sees what is written, before it leaves
        self._links: dict[tuple[str, str], Link] = {}
        self._numbers = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def add_host(self, name: str) -> Host:
        address = f"10.0.0.{len(self.hosts) + 1}"
        self.names[name] = address
        host = self.hosts[address] = Host(self, name, address)
        return host

    def link(self, source: Host, target: Host) -> Link:
        key = (source.address, target.address)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self.world)
            if source is target:
                found.delay_ns_min, found.delay_ns_max = 5 * MICROSECOND_NS, 20 * MICROSECOND_NS
        return found

    def links(self, one: Host, other: Host) -> tuple[Link, Link]:
        return self.link(one, other), self.link(other, one)

    def part(self, one: Host, other: Host) -> None:
        """Cut both directions."""
        self.world.note(f"part {one.name} {other.name}")
        for link in self.links(one, other):
            link.cut()

    def join(self, one: Host, other: Host) -> None:
        self.world.note(f"join {one.name} {other.name}")
        for link in self.links(one, other):
            link.mend()

    def reset_connections(self, one: Host, other: Host) -> int:
        """End every connection between two hosts, for both ends at once; how many."""
        ended = [stream for stream in sorted(one.streams, key=lambda s: s.number) if stream.peer is not None]
        ended = [stream for stream in ended if stream.peer is not None and stream.peer.host is other]
        for stream in ended:
            assert stream.peer is not None
            stream.peer.fail(errno.ECONNRESET)
            stream.fail(errno.ECONNRESET)
        return len(ended)

    def is_under_way(self, one: Host, other: Host, port: int) -> bool:
        """Whether something is on its way between two hosts on a connection to this port of either."""
        return any(
            stream.local[1] == port and stream.has_unsent and stream.peer is not None and stream.peer.host is target
            for host, target in ((one, other), (other, one))
            for stream in host.streams
        )

    # --- opening a connection

    def dial(self, stream: Stream) -> None:
        """Send a SYN. The stream gets a peer, or an error."""
        target = self.hosts.get(stream.remote[0])
        self.world.after(CONNECT_NS_MAX, self._give_up, stream)
        if target is not None:
            self.world.after(self.link(stream.host, target).delay_ns(), self._syn_arrives, stream, target)

    def _give_up(self, stream: Stream) -> None:
        if stream.peer is None:
            stream.fail(errno.ETIMEDOUT)

    def _syn_arrives(self, stream: Stream, target: Host) -> None:
        if stream.is_forgotten or stream.is_closed:
            return
        if self.link(stream.host, target).is_cut or not target.is_up:
            self.world.after(RESEND_NS_MAX, self._syn_arrives, stream, target)
            return
        listener = target.listeners.get(stream.remote[1])
        if listener is None:
            self.world.after(self.link(target, stream.host).delay_ns(), self._refused, stream, target)
            return
        peer = Stream(self, target, stream.remote, stream.local)
        peer.peer = stream
        self.world.after(self.link(target, stream.host).delay_ns(), self._accepted, stream, peer, listener)

    def _refused(self, stream: Stream, target: Host) -> None:
        if self.link(target, stream.host).is_cut:
            self.world.after(RESEND_NS_MAX, self._refused, stream, target)
        else:
            stream.fail(errno.ECONNREFUSED)

    def _accepted(self, stream: Stream, peer: Stream, listener: Socket) -> None:
        if self.link(peer.host, stream.host).is_cut:
            self.world.after(RESEND_NS_MAX, self._accepted, stream, peer, listener)
            return
        if stream.is_forgotten or stream.is_closed:
            return
        stream.peer = peer
        self.world.note(f"{stream.number} connects {peer.number}")
        stream.tell()
        if not listener.queue(peer):
            peer.reset_peer()
