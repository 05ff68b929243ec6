"""What an HTTP/2 connection sends: streams with the windows of the peer, and one write for all that a turn brings.

Sending never waits. What the peer's windows or a full socket do not take is kept with its stream, which hears of it
when all is sent (`sent_all`). Streams that wait have their turns, one frame each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from contrailmq.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEAD,
    HEADERS,
    NO_ERROR,
    WINDOW_BEFORE,
    reset,
    window_update,
)
from contrailmq.wire.http2.hpack import Field

__all__ = ["STREAM_WINDOW", "WRITE_HIGH_BYTES", "Sender", "Stream"]

STREAM_WINDOW: Final = 64 * 1024  # that a stream may send before anybody has looked at its request
WRITE_HIGH_BYTES: Final = 256 * 1024  # that wait in the socket before more is held back


class Stream:
    """One request of a peer and its answer; what is not about windows belongs to the application's own class."""

    def __init__(self, connection: Sender, stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.send_window = connection.peer_stream_window
        self.receive_left = STREAM_WINDOW  # bytes that the peer may still send
        self.is_peer_done = False  # its side has ended
        self.is_done = False  # ours has, or the stream was reset
        self._waiting: deque[bytes] | None = None  # data that no window took yet
        self._first_at = 0  # what of the first is sent
        self._last: bytes | None = None  # the header block that ends it, behind that data

    # --- for the application to say what it does

    def opened(self, fields: list[Field], is_end: bool) -> None:
        """A request begins; `is_end`: and has no data."""
        raise AssertionError("the application's class says what is done")

    def received(self, data: bytes, start: int, end: int, is_end: bool) -> None:
        """The next of its data is `data[start:end]`."""
        raise AssertionError("the application's class says what is done")

    def lost(self, cause: str) -> None:
        """The peer has reset it, or its connection is gone: there is nobody to answer."""

    def sent_all(self) -> None:
        """What had to wait for the peer's windows is sent."""

    # --- for the application to use, until `is_done`

    @property
    def has_unsent(self) -> bool:
        return self._waiting is not None

    def grant(self, size_bytes: int) -> None:
        """Let the peer send so much more."""
        if size_bytes > 0 and not self.is_peer_done and not self.is_done:
            self.receive_left += size_bytes
            self.connection.write(window_update(self.id, size_bytes))

    def send_head(self, block: bytes) -> None:
        self.connection.write(HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, self.id) + block)

    def send(self, data: bytes) -> None:
        connection = self.connection
        size = len(data)
        if self._waiting is None and connection.takes(size) and size <= self.send_window:
            self.send_window -= size
            connection.send_window -= size
            connection.write(HEAD.pack(size << 8 | DATA, 0, self.id))
            connection.write(data)
            return
        if self._waiting is None:
            self._waiting = deque()
            connection.wait_to_send(self)
        self._waiting.append(data)
        connection.pump_soon()

    def finish(self, block: bytes) -> None:
        """End our side with these fields, behind all data."""
        if self._waiting is not None:
            self._last = block
            return
        self.connection.write(HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS | END_STREAM, self.id) + block)
        self.is_done = True
        if not self.is_peer_done:
            self.connection.write(reset(self.id, NO_ERROR))
        self.connection.forget(self)

    def abandon(self, code: int) -> None:
        """End it at once; data that waits is dropped."""
        if not self.is_done:
            self.is_done = True
            self._waiting = None
            self.connection.write(reset(self.id, code))
            self.connection.forget(self)

    def drop_unsent(self) -> None:
        """What waits is not sent any more: the fields that end it are next."""
        self._waiting = None

    # --- called by the connection

    def send_some(self, bytes_max: int) -> int:
        """Send of what waits, one frame at most; returns its bytes, 0 when the stream's own window is closed."""
        waiting = self._waiting
        if not waiting or self.send_window <= 0:
            return 0
        first, start = waiting[0], self._first_at
        size = min(len(first) - start, bytes_max, self.send_window, FRAME_BYTES_MAX)
        end = start + size
        self.send_window -= size
        self.connection.write(HEAD.pack(size << 8 | DATA, 0, self.id))
        self.connection.write(first if size == len(first) else first[start:end])
        if end < len(first):
            self._first_at = end
            return size
        self._first_at = 0
        waiting.popleft()
        if not waiting:
            self._waiting = None
        return size

    def all_sent(self) -> None:
        if self._last is not None:
            self.finish(self._last)
        else:
            self.sent_all()


class Sender:
    """The half of a connection that sends. Owner of its windows towards the peer, and of what has not left yet."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.send_window: int = WINDOW_BEFORE
        self.peer_stream_window: int = WINDOW_BEFORE
        self._to_send: dict[int, Stream] = {}  # streams whose data waits, though not for their own windows; next first
        self._is_pump_due = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False  # scheduled, or frames are being served, after which it is done
        self._is_write_paused = False

    def forget(self, stream: Stream) -> None:
        """It has ended on our side."""
        raise AssertionError("the connection knows its streams")

    def takes(self, size_bytes: int) -> bool:
        """Whether a frame of data may leave at once, as far as the connection is concerned."""
        return (
            size_bytes <= FRAME_BYTES_MAX
            and size_bytes <= self.send_window
            and not self._is_write_paused
            and self._out_bytes <= WRITE_HIGH_BYTES
        )

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._flush_later)

    def wait_to_send(self, stream: Stream) -> None:
        self._to_send[stream.id] = stream

    def pump_soon(self) -> None:
        """The socket may take more: windows are looked at in the next turn."""
        if not self._is_pump_due and not self._is_write_paused:
            self._is_pump_due = True
            self.loop.call_soon(self._pump_later)

    def _flush_later(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        """One write for everything that was gathered."""
        out, transport = self._out, self._transport
        if out:
            self._out, self._out_bytes = [], 0
            if transport is not None and not transport.is_closing():
                transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _pump_later(self) -> None:
        self._is_pump_due = False
        self._pump()

    def _pump(self) -> None:
        """Send of what waits, a frame of each stream in turn, until a window, the socket or all is at its end."""
        was_due, self._is_flush_due = self._is_flush_due, True
        to_send = self._to_send
        while to_send and self.takes(1):
            stream_id = next(iter(to_send))
            stream = to_send.pop(stream_id)
            sent = stream.send_some(self.send_window)
            self.send_window -= sent
            if not stream.has_unsent:
                stream.all_sent()
            elif sent:  # else its own window is closed: it comes again when that opens
                to_send[stream_id] = stream
        self._is_flush_due = was_due
        self._flush()
        if to_send and self.send_window > 0:
            self.pump_soon()
