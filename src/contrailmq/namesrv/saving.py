"""Saves a table that changes while it is being saved: one write at a time, shared by all requests before it began.

However many requests change the table during a write, the next one saves them all: a flood of changes costs as many
writes as the disk has time for, and nobody waits for more than two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Saving"]


class Saving:
    """The writes of one file. `begin` is called on the loop when one begins; what it returns runs in a thread."""

    def __init__(self, begin: Callable[[], Callable[[], None]]) -> None:
        self._begin = begin
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None  # has not begun
        self.writes: set[asyncio.Task[None]] = set()

    @property
    def has_next(self) -> bool:
        """Whether a write is asked for that has not begun."""
        return self._next is not None

    async def saved(self) -> None:
        """Returns when a write that began after this call has ended, with its error if it had one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._write())
            self.writes.add(self._next)
            self._next.add_done_callback(self.writes.discard)
        await asyncio.shield(self._next)

    def cancel_next(self) -> None:
        """The write that has not begun never will; one that has cannot be called back."""
        if self._next is not None:
            self._next.cancel()

    async def _write(self) -> None:
        async with self._lock:
            self._next = None  # what changes from here on is for the write after this one
            await asyncio.to_thread(self._begin())
