"""How much of a broker the console's polling may take: one hundredth of a core.

A broker cannot have worked on a request for longer than the answer took. So after an answer that took t, the next
request that nobody clicked for waits 99 t. What a person asks for goes at once and is not counted: clicks are few.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

SHARE: Final = 0.01  # of a core
UNANSWERED_S: Final = 0.1  # what a request counts that failed: a broker that is away must not be left alone for minutes

_is_polling: ContextVar[bool] = ContextVar("is_polling", default=False)


@contextmanager
def polling() -> Iterator[None]:
    """Requests inside are the console's own wish: they wait for their turn."""
    token = _is_polling.set(True)
    try:
        yield
    finally:
        _is_polling.reset(token)


class Budget:
    """Per address: when the next poll may begin. Owned by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at_s: dict[str, float] = {}
        self.polled_s: dict[str, float] = {}  # by address: how long answers to polls took, in all

    async def turn(self, address: str) -> None:
        """Returns at once unless this is a poll and the broker has had its share."""
        while _is_polling.get() and (wait_s := self._free_at_s.get(address, 0.0) - self._clock()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)

    def spent(self, address: str, seconds: float, *, is_answered: bool) -> None:
        if not _is_polling.get():
            return
        counted_s = seconds if is_answered else min(seconds, UNANSWERED_S)
        self._free_at_s[address] = max(self._clock(), self._free_at_s.get(address, 0.0)) + counted_s * (1 / SHARE - 1)
        self.polled_s[address] = self.polled_s.get(address, 0.0) + counted_s
