"""Waiting for what others do: by condition with a bound, or on a clock that the test moves; never by a fixed sleep."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from contrailmq import StoredMessage


class Inbox:
    """A listener that remembers what it got and lets tests wait for it."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self._changed = threading.Condition()

    def __call__(self, messages: Sequence[StoredMessage]) -> None:
        with self._changed:
            self.messages += messages
            self._changed.notify_all()

    @property
    def bodies(self) -> list[bytes]:
        with self._changed:
            return [message.body for message in self.messages]

    def wait_for(self, count: int, timeout_s: float = 20.0) -> list[StoredMessage]:
        """The messages, once there are `count`; what is there, when they do not come."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.messages) >= count, timeout_s)
            return list(self.messages)


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    """Whether the condition came true in time; it is looked at often."""
    tick = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        tick.wait(0.01)
    return True


class MovedLoop(asyncio.SelectorEventLoop):
    """Sockets work as ever; timers wait for the test to move the clock."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        return self.now_s
