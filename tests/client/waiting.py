"""Waiting for what others do: by condition with a bound, or on a clock that the test moves; never by a fixed sleep."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from contrailmq import StoredMessage
from contrailmq.client.transport import instance
from contrailmq.wire.codes import RequestCode

ANSWER_S = 120.0  # of real time, for a broker on a busy machine: it only bounds a failure
QUIET_ROUNDS = 20  # of the loop, without a request on its way: nobody has anything left to do at this time


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

    def wait_for(self, count: int, timeout_s: float = ANSWER_S) -> list[StoredMessage]:
        """The messages, once there are `count`; what is there, when they do not come."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.messages) >= count, timeout_s)
            return list(self.messages)


class MovedLoop(asyncio.SelectorEventLoop):
    """Sockets work as ever; timers wait for the test to move the clock."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        return self.now_s


async def everybody_rests() -> None:
    """No request of any client is on its way, but for pulls that the broker holds."""
    quiet, deadline_s = 0, time.monotonic() + ANSWER_S
    while quiet < QUIET_ROUNDS:
        await asyncio.sleep(0)
        waiting = [
            entry.code
            for client in instance._instances.values()
            for connection in client.remoting._connections.values()
            for entry in connection._waiting.values()
            if entry.code not in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        ]
        assert time.monotonic() < deadline_s, f"not answered: {waiting}"
        quiet = 0 if waiting else quiet + 1
