"""What a connection owes its peer before it may end.

A server that stops drains its connections. What had reached this machine by then (read, or unread in the socket) is
served; what comes later is answered with SYSTEM_BUSY. The server waits briefly for the rest of a half-read request.
A peer that closed its side still gets the answers to its requests, and nothing else.
"""

from __future__ import annotations

import array
import asyncio
import sys

if sys.platform != "win32":  # not when they are needed: a server that stops may have no descriptor left to import with
    import fcntl
    import termios

__all__ = ["Drain", "unread_bytes"]


class Drain:
    """Owner: its connection, from the moment that the server stops or the peer has sent its end."""

    __slots__ = ("has_eof", "is_patient", "is_refusing", "is_stopping", "owed_bytes")

    def __init__(self) -> None:
        self.is_stopping = False  # we want it to end
        self.has_eof = False  # the peer has sent its end
        self.owed_bytes = 0  # unread in the socket when we began to stop
        self.is_patient = False  # what is half read is waited for
        self.is_refusing = False  # all that was owed is read: what comes now is new

    def stop(self, owed_bytes: int) -> None:
        self.is_stopping = self.is_patient = True
        self.owed_bytes = owed_bytes

    def note_read(self, size_bytes: int, left_bytes: int) -> None:
        """So much was read, and so much is left in the socket. What is read after the owed bytes is new."""
        self.is_refusing = self.owed_bytes <= 0
        if not self.is_refusing:
            self.owed_bytes = min(self.owed_bytes - size_bytes, left_bytes)  # TLS has fewer here than on the socket

    def may_end(self, held_bytes: int, transport: asyncio.Transport) -> bool:
        """Whether nothing is owed to a peer all of whose requests are answered; `held_bytes` are of one half read."""
        if self.owed_bytes > 0:
            return False
        return self.has_eof or not self.is_patient or not (held_bytes or unread_bytes(transport))


def unread_bytes(transport: asyncio.Transport) -> int:
    """What the kernel has received for this connection and nobody has read. Servers only, which Windows has none of."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return count[0]
