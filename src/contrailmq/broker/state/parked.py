"""Answers that wait until their message is durable: synchronous flush releases them together.

Each parked answer waits for the log to be flushed up to the end of its record. Ends grow with time, so the queue is in
order and releasing is popping from the left. A sync that takes longer than `syncFlushTimeout` is answered
FLUSH_DISK_TIMEOUT: the message is stored and may become durable later. A sync that fails is final: nothing that waits
is acknowledged.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable


class Outcome(enum.Enum):
    DURABLE = enum.auto()
    TIMED_OUT = enum.auto()
    FAILED = enum.auto()


class ParkedAnswers:
    """Owner: the loop; the flush thread's news come in through call_soon_threadsafe."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, Callable[[Outcome], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, end_offset: int, deadline_ms: int, release: Callable[[Outcome], None]) -> None:
        """Call `release` once: when the log is durable up to `end_offset`, or cannot be, or not in time."""
        assert not self._waiting or self._waiting[-1][0] <= end_offset
        self._waiting.append((end_offset, deadline_ms, release))

    def advanced(self, durable_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable_offset:
            waiting.popleft()[2](Outcome.DURABLE)

    def expire(self, now_ms: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][1] <= now_ms:
            waiting.popleft()[2](Outcome.TIMED_OUT)

    def fail(self) -> None:
        while self._waiting:
            self._waiting.popleft()[2](Outcome.FAILED)
