"""The store's only source of time.

Store times are milliseconds since 1970 (they go to disk); waits and intervals use the monotonic reading, so that a step
of the wall clock never starves or floods a service. Tests pass a `ManualClock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start; never goes back."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until told: for tests, ours and our users'."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = start_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        assert milliseconds >= 0
        self._wall_ms += milliseconds
        self._monotonic_ms += milliseconds

    def set_wall(self, now_ms: int) -> None:
        """Step the wall clock alone, as an operator or NTP may."""
        self._wall_ms = now_ms
