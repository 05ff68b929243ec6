"""The store's only source of time.

Store times are milliseconds since 1970 (they go to disk); waits and intervals use the monotonic reading, so that a step
of the wall clock never starves or floods a service. What a step does to store times and delays is in store_clock.py.
Tests pass a `ManualClock`.
"""

from __future__ import annotations

import itertools
import time
from typing import Final, Protocol

from contrailmq.store.files import Files

# Goes on while the machine is suspended; -1 where the system has no such clock.
_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", -1)
_READINGS: Final = 3


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start; never goes back. A suspended machine does not count it."""

    def slept_ms(self) -> int:
        """For how long the machine was suspended, from the same start."""

    def boot_id(self) -> str:
        """Names that start: two processes with the same one can compare `monotonic_ms() + slept_ms()`. Empty: never."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def slept_ms(self) -> int:
        if _BOOT_TIME < 0:
            return 0
        # A process that is stopped between two readings would take the pause for a sleep: the closest pair counts.
        pairs = []
        for _ in range(_READINGS):
            before_ns = time.monotonic_ns()
            boot_ns = time.clock_gettime_ns(_BOOT_TIME)
            pairs.append((time.monotonic_ns() - before_ns, boot_ns - before_ns))
        return min(pairs)[1] // 1_000_000

    def boot_id(self) -> str:
        files = Files()
        boot_id = files.boot_id()
        return f"{boot_id} {files.time_namespace()}" if boot_id and _BOOT_TIME >= 0 else ""


_machines = itertools.count(1)


class ManualClock:
    """A clock that stops until it is moved: for tests, ours and our users'. Each is a machine of its own."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = start_ms
        self._monotonic_ms = 0
        self._slept_ms = 0
        self._boot_id = f"manual {next(_machines)}"

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        assert milliseconds >= 0
        self._wall_ms += milliseconds
        self._monotonic_ms += milliseconds

    def slept_ms(self) -> int:
        return self._slept_ms

    def suspend(self, milliseconds: int) -> None:
        """Let time pass as on a machine that sleeps: the monotonic clock stands still."""
        self._wall_ms += milliseconds
        self._slept_ms += milliseconds

    def boot_id(self) -> str:
        return self._boot_id

    def reboot(self) -> None:
        """Start the machine again, in no time: only the wall clock goes on."""
        self._monotonic_ms = self._slept_ms = 0
        self._boot_id = f"manual {next(_machines)}"

    def set_wall(self, now_ms: int) -> None:
        """Step the wall clock alone, as an operator or NTP may."""
        self._wall_ms = now_ms
