"""Two connections of one process, joined without a socket: a client of a server that runs on the same loop.

What one end writes, the other end reads in the next turn of the loop, all of it at once. No bytes pass through the
kernel, and frames stay frames: each end is an ordinary `Connection`, with its limits, its answers and its close.

An end that reads no more keeps what is written to it. The writer is told to pause above the high water mark, as it is
by a socket, so nothing grows without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, cast

from contrailmq.wire.connection import Connection

__all__ = ["join"]

_HIGH_BYTES: Final = 64 * 1024  # asyncio's own mark; a connection sets another


def join(client: Connection, server: Connection, *, client_at: tuple[str, int], server_at: tuple[str, int]) -> None:
    """Open both. Each end sees the other's address as its peer's."""
    near, far = _End(client, server_at), _End(server, client_at)
    near.other, far.other = far, near
    for end in (far, near):
        end.protocol.connection_made(cast(asyncio.Transport, end))


class _End:
    """What a connection writes to. Owner: the loop of both."""

    other: _End

    def __init__(self, protocol: Connection, peer: tuple[str, int]) -> None:
        self.protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._arrived: list[bytes | memoryview] = []  # written by the other end, and not handed over yet
        self._arrived_bytes = 0
        self._is_due = False
        self._is_reading = True
        self._has_paused_other = False
        self._high_bytes = _HIGH_BYTES
        self._is_closing = self._is_lost = False
        self._has_eof = self._is_eof_told = False  # the other end writes nothing more

    # --- called by our connection

    def write(self, data: bytes) -> None:
        self.writelines((data,))

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        if not (self._is_closing or self._is_lost):
            self.other.take(parts, self._high_bytes)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.other.take_eof()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """What was written is still handed over."""
        if not self._is_closing:
            self._is_closing = True
            self.other.take_eof()
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self.other.drop()
            self._loop.call_soon(self._lose)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._schedule()

    def get_write_buffer_size(self) -> int:
        return self.other._arrived_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        self._high_bytes = high

    def get_extra_info(self, name: str) -> object:
        return self._peer if name == "peername" else None

    # --- called by the other end

    def take(self, parts: Iterable[bytes | memoryview], high_bytes: int) -> None:
        for part in parts:
            self._arrived.append(part)
            self._arrived_bytes += len(part)
        if self._arrived_bytes > high_bytes and not self._has_paused_other:
            self._has_paused_other = True
            self.other.protocol.pause_writing()
        self._schedule()

    def take_eof(self) -> None:
        self._has_eof = True
        self._schedule()

    def drop(self) -> None:
        """The other end was cut: what it wrote is lost."""
        self._arrived.clear()
        self._arrived_bytes = 0
        self._is_closing = True
        self._loop.call_soon(self._lose)

    # --- in a turn of the loop

    def _schedule(self) -> None:
        if not self._is_due and not self._is_lost:
            self._is_due = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_due = False
        if self._is_lost or not self._is_reading:
            return
        if self._arrived:
            data = b"".join(self._arrived)
            self._arrived.clear()
            self._arrived_bytes = 0
            if self._has_paused_other:
                self._has_paused_other = False
                if not self.other._is_lost:
                    self.other.protocol.resume_writing()
            self.protocol.data_received(data)
            # What is written meanwhile schedules itself. To look again each time took 2 of a request's 6 turns.
            if self._has_eof:
                self._schedule()
        elif self._has_eof and not self._is_eof_told:
            self._is_eof_told = True
            if not self.protocol.eof_received():
                self.close()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._arrived.clear()
            self._arrived_bytes = 0
            self.protocol.connection_lost(None)
