"""What the unfinished frames of all connections of a server may take together.

Each connection may send a frame of 16 MiB, and a frame can only be served whole: a few hundred peers that begin one
and never end it would fill the memory, each within its own bounds. So a frame above FREE_BYTES needs a share of a
common ration, of the size that it announced:

  - while there is enough, it has its share at once and nobody notices;
  - else the connection is not read any further, which its sender feels as a slow network, until the frames before it
    are whole or gone; the order is that of asking;
  - a frame that has had its share for PATIENCE_S and is still not whole loses its connection, the oldest first and only
    while others wait: an honest sender over a slow line is cut when the server is short of memory, and never else.

What was read of frames that have no share (small ones, and the first chunk of those that wait) is counted too. It is a
chunk at most for each connection; where all of it comes to the size of the ration again, the connection that brought
the last chunk is closed. So `2 * bytes_max` bounds what unfinished frames take, whatever peers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from contrailmq.wire.frame import FRAME_BYTES_MAX

FREE_BYTES: Final = 256 * 1024  # what one read may bring at once
PATIENCE_S: Final = 30.0  # 16 MiB at 4.5 Mbit/s


class Reader(Protocol):
    """A connection, as seen from here."""

    def go_on(self) -> None:
        """The share is there: read the rest."""

    def cut(self, cause: str) -> None:
        """Close at once, and say why."""


class _Share(NamedTuple):
    size_bytes: int
    since_s: float


class Ration:
    """One for each server; connections report what they hold. On the loop's thread only."""

    def __init__(self, bytes_max: int, *, clock: Callable[[], float] | None = None) -> None:
        self.bytes_max = max(bytes_max, FRAME_BYTES_MAX)  # else the largest frame would never have its share
        self.shared_bytes = 0
        self.loose_bytes = 0  # read, of frames without a share
        self._shares: dict[Reader, _Share] = {}  # oldest first
        self._waiting: dict[Reader, int] = {}  # what they ask for, first come first
        self._loose: dict[Reader, int] = {}
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def hold(self, reader: Reader, held_bytes: int, wanted_bytes: int) -> bool:
        """`reader` holds so much of an unfinished frame of `wanted_bytes`; False: it must not read on before `go_on`.

        A reader that may not be here at all is closed, and the answer is False.
        """
        if reader in self._shares:
            if wanted_bytes == self._shares[reader].size_bytes and held_bytes:
                return True
            self._give_back(reader)
            self._admit()  # those who wait come before its next frame
        self._count_loose(reader, held_bytes)
        if self.loose_bytes > self.bytes_max:
            loose_bytes = self.loose_bytes
            self.drop(reader)
            reader.cut(
                f"small and waiting unfinished frames of all connections hold {loose_bytes} bytes, the bound is "
                f"{self.bytes_max}: send later"
            )
            return False
        if wanted_bytes <= FREE_BYTES:
            self._waiting.pop(reader, None)
            return True
        if not self._waiting and self._take(reader, wanted_bytes):
            return True
        self._waiting[reader] = wanted_bytes
        self._watch()
        return False

    def drop(self, reader: Reader) -> None:
        """`reader` holds nothing any more: its frame is whole, or the connection has ended."""
        self._waiting.pop(reader, None)
        self._count_loose(reader, 0)
        if reader in self._shares:
            self._give_back(reader)
        self._admit()

    def _take(self, reader: Reader, size_bytes: int) -> bool:
        if self.shared_bytes + size_bytes > self.bytes_max:
            return False
        self.shared_bytes += size_bytes
        self._shares[reader] = _Share(size_bytes, self._now_s())
        self._count_loose(reader, 0)
        return True

    def _give_back(self, reader: Reader) -> None:
        self.shared_bytes -= self._shares.pop(reader).size_bytes

    def _count_loose(self, reader: Reader, held_bytes: int) -> None:
        self.loose_bytes += held_bytes - self._loose.pop(reader, 0)
        if held_bytes:
            self._loose[reader] = held_bytes

    def _admit(self) -> None:
        while self._waiting:
            reader, size_bytes = next(iter(self._waiting.items()))
            if not self._take(reader, size_bytes):
                return
            del self._waiting[reader]
            reader.go_on()

    def _watch(self) -> None:
        """Look again when the oldest share has had its time."""
        if self._timer is None and self._shares:
            oldest_s = next(iter(self._shares.values())).since_s
            delay_s = max(0.0, oldest_s + PATIENCE_S - self._now_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._end_oldest)

    def _end_oldest(self) -> None:
        self._timer = None
        if not self._waiting or not self._shares:
            return
        reader, share = next(iter(self._shares.items()))
        age_s = self._now_s() - share.since_s
        if age_s >= PATIENCE_S:
            cause = (
                f"a frame of {share.size_bytes} bytes was not whole after {age_s:.0f} s, and {len(self._waiting)} "
                f"others wait for their share of {self.bytes_max} bytes: send faster, or less at once"
            )
            self.drop(reader)
            reader.cut(cause)
        if self._waiting:
            self._watch()

    def _now_s(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()
