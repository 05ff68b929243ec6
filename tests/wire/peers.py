"""What tests of connections share: handlers, a transport without a socket, requests, and waiting without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from contrailmq.wire.connection import DEFAULT_LIMITS, Connection, Handler, Limits
from contrailmq.wire.frame import encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.ration import Ration
from waiting_for import until_async

WAIT_S = 120.0

Run = Callable[[Coroutine[None, None, None]], None]


def echo(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        if not command.is_oneway:
            connection.reply(encode_response(command, 0, command.ext, command.body))


class Counting:
    """A handler that notes what it was given, call by call, and lets `answer` do the rest."""

    def __init__(self, answer: Handler = echo) -> None:
        self._answer = answer
        self.calls: list[list[int]] = []

    def __call__(self, connection: Connection, commands: list[Command]) -> None:
        self.calls.append([command.opaque for command in commands])
        self._answer(connection, commands)

    @property
    def opaques(self) -> list[int]:
        """Of every request, in the order in which they were served."""
        return [opaque for call in self.calls for opaque in call]


class Holding:
    """A handler that answers nothing and keeps the requests with their connections."""

    def __init__(self) -> None:
        self.held: list[tuple[Connection, Command]] = []
        self.arrived = asyncio.Event()

    def __call__(self, connection: Connection, commands: list[Command]) -> None:
        self.held.extend((connection, command) for command in commands)
        self.arrived.set()


class CountingTransport:
    """Counts the writes that reach the socket."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent_bytes = 0
        self.is_reading = True
        self.is_aborted = False
        self.has_written_eof = False
        self._is_closing = False

    def write(self, data: bytes) -> None:
        assert not self.has_written_eof
        self.writes.append(bytes(data))

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_written_eof = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> object:
        return ("10.0.0.1", 4711) if name == "peername" else None


def connected(
    handler: Handler, limits: Limits = DEFAULT_LIMITS, *, ration: Ration | None = None
) -> tuple[Connection, CountingTransport]:
    connection, transport = Connection(handler, limits=limits, ration=ration), CountingTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def request(opaque: int, *, oneway: bool = False) -> bytes:
    return encode_request(105, {"topic": "T"}, opaque=opaque, is_oneway=oneway)


async def turns_until(holds: Callable[[], bool]) -> int:
    """How many turns of the loop it took: bounded in time, for a socket's other end may be late on a busy machine."""
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return holds()

    await until_async(look, "what turns of the loop bring about", look_s=0)
    return looks - 1
