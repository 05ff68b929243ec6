"""Pulls whose messages are not in memory: read by worker threads, a few at a time for each connection.

A consumer far behind may have many such pulls under way at once. Each connection has `RUNNING_MAX` of them with the
workers; the others wait here in the order in which they came, so that one consumer never takes all the workers. What
waits belongs to requests in flight, of which a connection has a bounded number, and goes when the connection does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from contrailmq.wire.peer import Peer

RUNNING_MAX: Final = 4

T = TypeVar("T")


class ColdReads:
    """Owner: the loop, which calls `read` and on which `done` is called."""

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._of: dict[Peer, _Lane] = {}

    def read(self, connection: Peer, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> None:
        """Have a worker do `work`; `done` gets the future, unless the connection has gone meanwhile."""
        lane = self._of.get(connection)
        if lane is None:
            lane = self._of[connection] = _Lane()
        lane.waiting.append(lambda: self._start(connection, lane, work, done))
        self._advance(connection, lane)

    def waiting(self, connection: Peer) -> int:
        lane = self._of.get(connection)
        return len(lane.waiting) if lane is not None else 0

    def _start(
        self,
        connection: Peer,
        lane: _Lane,
        work: Callable[[], T],
        done: Callable[[asyncio.Future[T]], None],
    ) -> None:
        def finished(future: asyncio.Future[T]) -> None:
            lane.running -= 1
            self._advance(connection, lane)
            if not future.cancelled() and connection.is_open:
                done(future)

        lane.running += 1
        asyncio.get_running_loop().run_in_executor(self._workers, work).add_done_callback(finished)

    def _advance(self, connection: Peer, lane: _Lane) -> None:
        if not connection.is_open:
            lane.waiting.clear()
        while lane.waiting and lane.running < RUNNING_MAX:
            lane.waiting.popleft()()
        if not lane.running:
            self._of.pop(connection, None)


class _Lane:
    """The reads of one connection."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[Callable[[], None]] = deque()
