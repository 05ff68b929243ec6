"""A connection of ours that echoes, and another implementation's client, joined in memory."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from contrailmq._compiled import build
from contrailmq.wire.http2.connection import Connection
from contrailmq.wire.http2.frames import PREFACE
from contrailmq.wire.http2.hpack import Field, indexed, literal
from contrailmq.wire.http2.sending import Stream

REQUEST: Final = [(":method", "POST"), (":scheme", "http"), (":path", "/echo"), (":authority", "here")]
HEAD: Final = indexed(8) + literal("x-kind", "echo")
END: Final = literal("x-end", "yes")

# What is compiled is tried through its own application, by tests/proxy.
PLAIN_ONLY: Final = pytest.mark.skipif(
    bool(build.compiled),
    reason="the connections of this file derive from modules that are compiled, which plain ones cannot: "
    "make test-plain runs it",
)


class Transport:
    """Keeps what is written. `is_full` is told to the protocol as a socket's buffer does."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.writes = 0
        self.is_closed = self.is_aborted = False
        self.is_reading = True

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)
        self.writes += 1

    def take(self) -> bytes:
        data, self.written = b"".join(self.written), []
        return data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.9", 4321) if name == "peername" else None


class Echo(Stream):
    """Answers with what it was sent: `parts` at a time, so that some of it waits."""

    def __init__(self, connection: EchoConnection, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self.owner = connection
        self.fields: list[Field] = []
        self.data = bytearray()
        self.cause = ""
        self.all_sent_count = 0

    def opened(self, fields: list[Field], is_end: bool) -> None:
        self.fields = fields
        self.owner.seen.append(self)
        if is_end:
            self.answer()

    def received(self, data: bytes, start: int, end: int, is_end: bool) -> None:
        self.data += data[start:end]
        if self.owner.is_answering:
            self.grant(end - start)
        if is_end:
            self.answer()

    def answer(self) -> None:
        if not self.owner.is_answering:
            return
        self.send_head(HEAD)
        step = self.owner.part_bytes
        for start in range(0, len(self.data), step):
            self.send(bytes(self.data[start : start + step]))
        self.finish(END)

    def lost(self, cause: str) -> None:
        self.cause = cause

    def sent_all(self) -> None:
        self.all_sent_count += 1


class EchoConnection(Connection):
    def __init__(self, *, part_bytes: int = 50_000, is_answering: bool = True, refusal: str = "") -> None:
        super().__init__(refusal=refusal)
        self.part_bytes, self.is_answering = part_bytes, is_answering
        self.seen: list[Echo] = []

    def new_stream(self, stream_id: int) -> Stream:
        return Echo(self, stream_id)


class Ends:
    """Both ends. `exchange` carries bytes until neither has any, in pieces of random sizes."""

    def __init__(self, *, seed: int = 0, window: int | None = None, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.connection = EchoConnection(**settings)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        if window is not None:
            values = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
            self.client.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.client.initiate_connection()
        self.answers: dict[int, bytearray] = {}
        self.heads: dict[int, list[tuple[str, str]]] = {}
        self.ends: dict[int, list[tuple[str, str]]] = {}
        self.resets: dict[int, int] = {}
        self.goaway: h2.events.ConnectionTerminated | None = None
        self.pongs = 0
        self.is_acknowledging = True

    async def exchange(self) -> None:
        for _ in range(3):
            moved = True
            while moved:
                sent = self.client.data_to_send()
                self.feed(sent)
                await asyncio.sleep(0)
                got = self.transport.take()
                moved = bool(sent or got)
                self.take_in(got)
            await asyncio.sleep(0)

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.transport.is_closed:
            size = self.random.choice((1, 2, 5, 9, 30, 1000, 16_384, 100_000))
            self.connection.data_received(data[at : at + size])
            at += size

    def take_in(self, data: bytes) -> None:
        for event in self.client.receive_data(data) if data else ():
            if isinstance(event, h2.events.ResponseReceived):
                self.heads[event.stream_id] = [(str(name), str(value)) for name, value in event.headers]
            elif isinstance(event, h2.events.DataReceived):
                self.answers.setdefault(event.stream_id, bytearray()).extend(event.data)
                if self.is_acknowledging and event.flow_controlled_length:
                    self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                self.ends[event.stream_id] = [(str(name), str(value)) for name, value in event.headers]
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = int(event.error_code)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goaway = event
            elif isinstance(event, h2.events.PingAckReceived):
                self.pongs += 1

    def open(self, *, end: bool = False, more: tuple[tuple[str, str], ...] = ()) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, [*REQUEST, *more], end_stream=end)
        return stream_id

    async def send(self, bodies: dict[int, bytes], *, padded: bool = False) -> None:
        """All of them, a piece of one after a piece of another, as the windows allow; then their ends."""
        left = {stream_id: memoryview(body) for stream_id, body in bodies.items()}
        while left:
            stream_id = self.random.choice(list(left))
            body = left[stream_id]
            if not body:
                self.client.end_stream(stream_id)
                del left[stream_id]
                continue
            padding = self.random.choice((None, 0, 1, 255)) if padded else None
            room = self.client.local_flow_control_window(stream_id) - (0 if padding is None else padding + 1)
            size = min(room, len(body), self.random.choice((1, 100, 5000, 16_000)))
            if size <= 0:
                await self.exchange()
                continue
            self.client.send_data(stream_id, bytes(body[:size]), pad_length=padding)
            left[stream_id] = body[size:]
        await self.exchange()


class Raw:
    """Our end, and frames written by hand."""

    def __init__(self, **settings: Any) -> None:
        self.connection = EchoConnection(**settings)
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def begin(self) -> Raw:
        self.feed(PREFACE + b"\0\0\0\4\0\0\0\0\0")
        self.transport.take()
        return self

    def feed(self, data: bytes) -> None:
        self.connection.data_received(data)

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """(kind, flags, stream, payload) of all that was written."""
        data, found = self.transport.take(), []
        while data:
            size = int.from_bytes(data[:3], "big")
            found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
            data = data[9 + size :]
        return found

    def said_goodbye(self) -> tuple[int, str]:
        """The error and text of a GOAWAY, which is the last frame; the connection is closed."""
        kind, _, _, payload = self.frames()[-1]
        assert kind == 7, kind
        assert self.transport.is_closed
        return int.from_bytes(payload[4:8], "big"), payload[8:].decode()
