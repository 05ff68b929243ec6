"""Connections that come and go, in whatever state, leave nothing behind: no object, no memory, no descriptor.

`make test` opens 4,000 on each loop, `make test-long` 100,000.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from contrailmq.wire.frame import encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.transport import Connection, RemotingServer, new_event_loop

AT_ONCE = 50
WARM_UP = 10 * AT_ONCE
CONNECTIONS = 100_000 if os.environ.get("CONTRAILMQ_LONG") else 2000
GROWTH_BYTES_MAX = 256 * 1024  # 128 bytes for each of 2,000 connections would be found
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER 0: ports do not stay in TIME_WAIT

REQUEST = encode_request(105, {"topic": "T"}, b"body", opaque=1)
# Nothing; a length; half a frame; a request and half of the next; a lie; a whole request that is held for ever.
LAST_WORDS = (b"", REQUEST[:3], REQUEST[:40], REQUEST + REQUEST[:9], b"\xff" * 8, encode_request(34, {}, opaque=2))


class Door:
    """Counts who came in and who left, and tells when enough did."""

    def __init__(self) -> None:
        self.entered = self.left = 0
        self._changed = asyncio.Event()

    def enter(self, _connection: Connection) -> None:
        self.entered += 1
        self._changed.set()

    def leave(self, _connection: Connection) -> None:
        self.left += 1
        self._changed.set()

    async def wait(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self._changed.clear()
            await self._changed.wait()


def sockets_at(port: int) -> int:
    """Descriptors of this process that are bound or connected to a port. Other tests' threads may open others."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    if sock.family in (socket.AF_INET, socket.AF_INET6):
                        count += port in (sock.getsockname()[1], _peer_port(sock))
    return count


def _peer_port(sock: socket.socket) -> int:
    try:
        return int(sock.getpeername()[1])
    except OSError:
        return 0  # it listens, or was reset


def serve(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        if command.code == 105:
            connection.reply(encode_response(command, body=bytes(1000)))
        # the others wait for an answer that never comes


async def come_and_go(server: RemotingServer, door: Door, count: int) -> None:
    target = door.left
    for _ in range(count // AT_ONCE):
        target += AT_ONCE
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(AT_ONCE)]
        await door.wait(lambda wanted=target: door.entered >= wanted)  # type: ignore[misc]
        for number, sock in enumerate(sockets):
            sock.send(LAST_WORDS[number % len(LAST_WORDS)])
        await asyncio.sleep(0)  # some are read before they end, some are not
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.close()
        await door.wait(lambda wanted=target: door.left >= wanted)  # type: ignore[misc]


def connection_count() -> int:
    gc.collect()
    return sum(isinstance(thing, Connection) for thing in gc.get_objects())


@pytest.mark.parametrize("new_loop", [new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_connections_that_come_and_go_leave_nothing_behind(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="contrailmq.wire")  # pytest keeps what is logged, which is memory too

    async def main() -> None:
        door = Door()
        server = RemotingServer(serve, host="127.0.0.1", on_connect=door.enter, on_disconnect=door.leave)
        await server.start()
        before, listening = connection_count(), sockets_at(server.port)
        tracemalloc.start()
        try:
            await come_and_go(server, door, WARM_UP)
            gc.collect()
            used_bytes = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            await come_and_go(server, door, CONNECTIONS)
            gc.collect()
            now_bytes, peak_bytes = tracemalloc.get_traced_memory()  # before the count, which lists every object
            assert connection_count() <= before  # other tests' connections may end meanwhile
        finally:
            tracemalloc.stop()
        assert now_bytes - used_bytes < GROWTH_BYTES_MAX
        assert peak_bytes - used_bytes < 16 * GROWTH_BYTES_MAX  # at any time, with AT_ONCE connections open
        assert door.left == door.entered == WARM_UP + CONNECTIONS
        assert not server.connections
        assert sockets_at(server.port) == listening
        await server.close(drain_seconds=0.0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), 60 + CONNECTIONS / 50))
