"""What the unfinished frames of all connections of a server may take together.

A frame of up to 16 MiB can only be served whole, so a few hundred peers that begin one and never end it would fill the
memory. So a frame above FREE_BYTES needs a share, of its announced size, of a common ration:

  - While there is enough, it gets its share at once. Otherwise the connection is not read, which its sender feels as a
    slow network. Next is who waited longest on the host with the least of the ration, so a hostile host delays itself.
  - While others wait, a frame with a share must come at RATE_BYTES_S after GRACE_S and be whole after PATIENCE_S, or it
    loses its connection, the oldest first. A slow honest sender is cut only when memory is short.

Bytes of frames without a share, a chunk per connection at most, are counted too. If they reach the size of the ration,
the oldest such connections are closed. So unfinished frames take at most `2 * bytes_max`, whatever peers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from contrailmq.wire.frame import FRAME_BYTES_MAX

FREE_BYTES: Final = 256 * 1024  # what one read may bring at once
PATIENCE_S: Final = 30.0  # 16 MiB at 4.5 Mbit/s
GRACE_S: Final = 3.0  # a lost packet or two
RATE_BYTES_S: Final = 128 * 1024  # 1 Mbit/s
CHECK_S: Final = 1.0  # how late a slow sender may be noticed


class Reader(Protocol):
    """A connection, as seen from here."""

    @property
    def host(self) -> str:
        """The peer's address, without its port."""

    def go_on(self) -> None:
        """The share is there: read the rest."""

    def cut(self, cause: str) -> None:
        """Close at once, and say why."""


@dataclass(slots=True)
class _Share:
    size_bytes: int
    held_bytes: int
    since_s: float

    def is_late(self, now_s: float) -> bool:
        age_s = now_s - self.since_s
        return age_s >= PATIENCE_S or self.held_bytes < (age_s - GRACE_S) * RATE_BYTES_S


class Ration:
    """One for each server; connections report what they hold. On the loop's thread only."""

    def __init__(self, bytes_max: int, *, clock: Callable[[], float] | None = None) -> None:
        self.bytes_max = max(bytes_max, FRAME_BYTES_MAX)  # else the largest frame would never have its share
        self.shared_bytes = 0
        self.loose_bytes = 0  # read, of frames without a share
        self._shares: dict[Reader, _Share] = {}  # oldest first
        self._shared_of: dict[str, int] = {}  # by host
        self._waiting: dict[str, dict[Reader, int]] = {}  # by host: what they ask for, first come first
        self._loose: dict[Reader, int] = {}  # oldest frame first
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def hold(self, reader: Reader, held_bytes: int, wanted_bytes: int, *, is_next: bool = False) -> bool:
        """`reader` holds so much of an unfinished frame of `wanted_bytes`; False: it must not read on before `go_on`.

        `is_next` says that this is not the frame of the last report, which is whole. A reader that may not be here at
        all is closed, and the answer is False.
        """
        if is_next:
            self.drop(reader)  # those who wait come before its next frame
        elif share := self._shares.get(reader):
            share.held_bytes = held_bytes
            return True
        self._count_loose(reader, held_bytes)
        if self.loose_bytes > self.bytes_max and self._end_loose(reader):
            return False
        if wanted_bytes <= FREE_BYTES:
            return True
        if reader not in self._shares:
            self._waiting.setdefault(reader.host, {})[reader] = wanted_bytes
            self._admit(reader)
            self._watch()
        return reader in self._shares

    def drop(self, reader: Reader) -> None:
        """`reader` holds nothing any more: its frame is whole, or the connection has ended."""
        self._leave_queue(reader)
        self._count_loose(reader, 0)
        if (share := self._shares.pop(reader, None)) is not None:
            self.shared_bytes -= share.size_bytes
            left_bytes = self._shared_of[reader.host] - share.size_bytes
            if left_bytes:
                self._shared_of[reader.host] = left_bytes
            else:
                del self._shared_of[reader.host]
        self._admit()

    def _leave_queue(self, reader: Reader) -> None:
        queue = self._waiting.get(reader.host)
        if queue is not None and queue.pop(reader, None) is not None and not queue:
            del self._waiting[reader.host]

    def _count_loose(self, reader: Reader, held_bytes: int) -> None:
        self.loose_bytes += held_bytes - self._loose.get(reader, 0)
        if held_bytes:
            self._loose[reader] = held_bytes
        else:
            self._loose.pop(reader, None)

    def _admit(self, asking: Reader | None = None) -> None:
        """Give shares to those who are next, and notify all but `asking`."""
        while self._waiting and self.shared_bytes + FREE_BYTES < self.bytes_max:
            host = min(self._waiting, key=lambda host: self._shared_of.get(host, 0))
            reader, size_bytes = next(iter(self._waiting[host].items()))
            if self.shared_bytes + size_bytes > self.bytes_max:
                return
            self.shared_bytes += size_bytes
            self._shared_of[host] = self._shared_of.get(host, 0) + size_bytes
            self._shares[reader] = _Share(size_bytes, self._loose.get(reader, 0), self._now_s())
            self._leave_queue(reader)
            self._count_loose(reader, 0)
            if reader is not asking:
                reader.go_on()

    def _end_loose(self, reader: Reader) -> bool:
        """Cut the oldest frames without a share until the others have room; whether `reader` is among them."""
        is_ended = False
        while self.loose_bytes > self.bytes_max:
            oldest = next(iter(self._loose))
            cause = (
                f"small and waiting unfinished frames of all connections hold {self.loose_bytes} bytes, the bound is "
                f"{self.bytes_max}, and this is the oldest: send faster, or later"
            )
            self.drop(oldest)
            oldest.cut(cause)
            is_ended = is_ended or oldest is reader
        return is_ended

    def _watch(self) -> None:
        """Look after a while at who keeps the others waiting."""
        if self._timer is None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        now_s = self._now_s()
        for reader, share in list(self._shares.items()):
            if self._waiting and share.is_late(now_s):
                cause = (
                    f"{share.held_bytes} of a frame's {share.size_bytes} bytes came in {now_s - share.since_s:.0f} s, "
                    f"and {self.waiting_count} others wait for their share of {self.bytes_max} bytes: send faster, or "
                    "less at once"
                )
                self.drop(reader)
                reader.cut(cause)
        self._watch()

    def _now_s(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()
