"""Waiting for another thread in a way that an interrupt leaves nothing locked.

A signal handler that raises (Ctrl-C) may do so between any two steps of Python, and `threading.Event` and
`threading.Condition` are Python: in the middle of `Event.set` it leaves the event's own lock taken, and the next
put waits for ever. A plain lock is taken and released by single calls in C. These two classes are built from it.
"""

from __future__ import annotations

import threading
from typing import Final

_FOR_EVER: Final = -1.0  # what a lock takes for no limit


class Wake:
    """What one thread waits for and any thread may ask for. Asking before it waits counts; asking twice counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End the wait, or the next one. Never blocks."""
        try:
            self._lock.release()
        except RuntimeError:  # it was asked for already
            return

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until `set`, or the time is up (False). The next wait needs a `set` of its own."""
        return self._lock.acquire(timeout=_FOR_EVER if timeout_s is None else max(0.0, timeout_s))


class Sleepers:
    """Threads that wait for one thing to be over. `enter` and `wake_all` under a lock of the caller's."""

    def __init__(self) -> None:
        self._wakes: list[Wake] = []

    def enter(self) -> Wake:
        """What to wait for after the caller's lock was given back."""
        wake = Wake()
        self._wakes.append(wake)
        return wake

    def wake_all(self) -> None:
        """An interrupt may end this: done again it wakes who is left."""
        for wake in self._wakes:
            wake.set()
        self._wakes.clear()
