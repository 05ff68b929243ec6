"""The wires between the members of a local cluster, which a test can cut and join again.

Members find each other through the NameServer. Each member has a port of its own here for that, behind which the
answers of the NameServer name relays in place of the ports of other members:

    member i --- its way to the NameServer (addresses exchanged in the answers) --- NameServer
    member i --- relay ---------------------------------------------------------- a port of member j: ordinary, or HA

So all that i sends to j goes through a relay of that pair, plain or TLS, and cutting it separates these two alone:
clients are told the true addresses, and every member reaches the NameServer.

A cut is what a pulled cable is to TCP. No byte passes in either direction and nobody is told: connections stay open
and silent, new ones are made and get no answer. When the cable is back, what was on its way arrives, unless a side has
given up by then; the other side learns of that only now.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Final

import msgspec

from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import JSON
from contrailmq.wire.transport import split_address

HOST: Final = "127.0.0.1"
ORDINARY, HA = 0, 1  # the ports of a member
READ_BYTES: Final = 1 << 18
_PREFIX: Final = struct.Struct(">iI")  # of a frame (wire/frame.py): length, serialize type and header length


class Relay:
    """A port that leads to another one. Owner: whoever made it, on one loop."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, target_tls: ssl.SSLContext | None = None) -> None:
        """`tls` is spoken by those who dial, `target_tls` to the target. Without, bytes pass as they are."""
        self._tls, self._target_tls = tls, target_tls
        self._listening = socket.create_server((HOST, 0))
        self._joined = asyncio.Event()
        self._joined.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"
        self.target = ""  # host:port that new connections lead to

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listening, limit=READ_BYTES, ssl=self._tls)

    async def close(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        self.reset()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self._joined.clear()

    def join(self) -> None:
        """Let pass what waits, and what comes."""
        self._joined.set()

    def reset(self) -> None:
        """End every connection, on both sides."""
        for task in self._connections:
            task.cancel()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what the dialling side sends, until it is gone."""
        await self._carry(reader, writer)

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what the target sends, until it is gone."""
        await self._carry(reader, writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._joined.wait()
            writer.write(data)
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        ends = [writer]
        try:
            await self._joined.wait()
            host, port = split_address(self.target)
            there, far = await asyncio.open_connection(host, port, limit=READ_BYTES, ssl=self._target_tls)
            ends.append(far)
            await _until_one_ends(self.forward(reader, far), self.back(there, writer))
            await self._joined.wait()  # an end does not get through a cut either
        except OSError:
            pass  # nobody is there: who dialled sees the connection end
        except asyncio.CancelledError:
            for end in ends:
                end.transport.abort()
        finally:
            self._connections.discard(task)
            for end in ends:
                end.close()  # when what was written has left


async def _until_one_ends(*ways: Coroutine[object, object, None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Fields(msgspec.Struct, rename="camel"):
    broker_addr: str = ""
    ha_server_addr: str = ""


class _Header(msgspec.Struct, rename="camel"):
    """What is read of the header of a member's request."""

    code: int
    ext_fields: _Fields | None = None


class NameServerWay(Relay):
    """A member's way to the NameServer. Owner: Links.

    `registered` hears the two addresses that the member registers, of its ordinary port and its HA port. `exchanged`
    gives what the NameServer says with the addresses that this member is to dial.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None,
        target_tls: ssl.SSLContext | None,
        registered: Callable[[str, str], None],
        exchanged: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        super().__init__(tls=tls, target_tls=target_tls)
        self._registered, self._exchanged = registered, exchanged

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while frame := await _read_frame(reader):
            header = msgspec.json.decode(frame[0], type=_Header)
            if header.code == RequestCode.REGISTER_BROKER and header.ext_fields is not None:
                self._registered(header.ext_fields.broker_addr, header.ext_fields.ha_server_addr)
            await _write_frame(writer, *frame)

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while frame := await _read_frame(reader):
            header, body = frame
            await _write_frame(writer, await self._exchanged(header), await self._exchanged(body))


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """Header and body of the next one; None at the end."""
    try:
        length, word = _PREFIX.unpack(await reader.readexactly(_PREFIX.size))
        assert word >> 24 == JSON, "brokers of ours talk to a NameServer in JSON, where addresses are plain text"
        return await reader.readexactly(word), await reader.readexactly(length - 4 - word)
    except asyncio.IncompleteReadError:
        return None


async def _write_frame(writer: asyncio.StreamWriter, header: bytes, body: bytes) -> None:
    writer.write(_PREFIX.pack(4 + len(header) + len(body), JSON << 24 | len(header)) + header + body)
    await writer.drain()


class Links:
    """Every wire between members, which have numbers from 0 on. Owner: LocalCluster, on its loop."""

    def __init__(self, namesrv: str, *, tls: ssl.SSLContext | None, namesrv_tls: ssl.SSLContext | None) -> None:
        """Members speak `tls` to a NameServer, and we speak `namesrv_tls` to it in their place; None: plain."""
        self._namesrv, self._tls, self._namesrv_tls = namesrv, tls, namesrv_tls
        self._ways: list[NameServerWay] = []
        self._ports: dict[int, tuple[str, str]] = {}  # of a member: ORDINARY, HA
        self._relays: dict[tuple[int, int, int], Relay] = {}  # by who dials, whom, and ORDINARY or HA
        self._cuts: set[frozenset[int]] = set()

    async def namesrv_for(self, member: int) -> str:
        """The address at which this member finds the NameServer."""

        def registered(ordinary: str, ha: str) -> None:
            self._ports[member] = (ordinary, ha)
            for (_, dialled, which), relay in self._relays.items():
                if dialled == member:
                    relay.target = ha if which == HA else ordinary

        async def exchanged(text: bytes) -> bytes:
            return await self._exchanged(member, text)

        way = NameServerWay(tls=self._tls, target_tls=self._namesrv_tls, registered=registered, exchanged=exchanged)
        way.target = self._namesrv
        self._ways.append(way)
        await way.start()
        return way.address

    def cut(self, one: int, other: int) -> None:
        """Let nothing pass between two members. What was cut before stays so."""
        self._cuts.add(frozenset((one, other)))
        for relay in self._between(one, other):
            relay.cut()

    def join(self) -> None:
        """Undo every cut."""
        self._cuts.clear()
        for relay in self._relays.values():
            relay.join()

    def reset(self, one: int, other: int) -> None:
        """End every connection between two members."""
        for relay in self._between(one, other):
            relay.reset()

    async def close(self) -> None:
        await asyncio.gather(*(relay.close() for relay in (*self._ways, *self._relays.values())))

    def _between(self, one: int, other: int) -> Iterable[Relay]:
        return [relay for (dialler, dialled, _), relay in self._relays.items() if {dialler, dialled} == {one, other}]

    async def _exchanged(self, dialler: int, text: bytes) -> bytes:
        for dialled, ports in list(self._ports.items()):
            for which, port in enumerate(ports if dialled != dialler else ()):
                address = port.encode()
                if address and address in text:
                    relay = await self._relay(dialler, dialled, which)
                    text = re.sub(rb"(?<![\w.])%b(?!\d)" % re.escape(address), relay.address.encode(), text)
        return text

    async def _relay(self, dialler: int, dialled: int, which: int) -> Relay:
        relay = self._relays.get((dialler, dialled, which))
        if relay is None:
            relay = self._relays[dialler, dialled, which] = Relay()
            relay.target = self._ports[dialled][which]
            if frozenset((dialler, dialled)) in self._cuts:
                relay.cut()
            await relay.start()
        return relay
