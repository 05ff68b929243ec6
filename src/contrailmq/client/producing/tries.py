"""The tries of one send: how many there were, how much time is left, and how long to wait before the next one.

RocketMQ's `retryTimesWhenSendFailed` bounds the tries that reached a broker: each of them may have stored the message.
A try that reached no master (the connection was refused, no route, no master, no NameServer, or a slave answered)
stored nothing, so it may be repeated within `sendMsgTimeout`, which covers a broker that restarts. A pause comes before
a broker that was not reached, or that said "not now", is tried again. It doubles each time and is partly random, so
that a thousand producers do not come back at the same moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from contrailmq.client.errors import BrokerNotFoundError, NoNameServerError, NoRouteError, SendFailedError
from contrailmq.client.results import SendResult
from contrailmq.message import ContrailError
from contrailmq.wire.errors import ConnectError, ResponseError

FIRST_PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 0.5  # a broker that is back is found within half a second
ANSWER_S_MIN: Final = 0.1  # a try with less time than that would end in doubt whether the message is stored
_REACHED_NOBODY: Final = (ConnectError, NoRouteError, NoNameServerError, BrokerNotFoundError)


class Tries:
    """What one send has done so far. Owned by that send; `elapsed_s` is what a first try took elsewhere."""

    __slots__ = (
        "_clock_s",
        "_count",
        "_pause_s",
        "_start_s",
        "brokers",
        "last",
        "reached",
        "resting",
        "timeout_s",
        "topic",
        "unsafe",
    )

    def __init__(self, topic: str, clock_s: Callable[[], float], timeout_s: float, elapsed_s: float = 0.0) -> None:
        self.topic = topic
        self.timeout_s = timeout_s
        self.reached = 0  # tries that a master may have acted on
        self.brokers: list[str] = []
        self.resting: set[str] = set()  # brokers that are not tried again before a pause
        self.last: ContrailError | None = None
        self.unsafe: SendResult | None = None
        self._clock_s = clock_s
        self._start_s = clock_s() - elapsed_s
        self._count = 0
        self._pause_s = FIRST_PAUSE_S

    def left_s(self) -> float:
        return self.timeout_s - (self._clock_s() - self._start_s)

    @property
    def last_broker(self) -> str | None:
        return self.brokers[-1] if self.brokers else None

    def add_failed(self, broker_name: str | None, cause: ContrailError) -> None:
        """A try that failed; without a broker it was the search for a route."""
        self._count += 1
        self.last = cause
        if broker_name is None:
            return
        self.brokers.append(broker_name)
        has_reached = not isinstance(cause, _REACHED_NOBODY) and not _wants_master(cause)
        self.reached += has_reached
        if not has_reached or isinstance(cause, ResponseError):
            self.resting.add(broker_name)

    def add_unsafe(self, broker_name: str, result: SendResult) -> None:
        """A try whose message is stored, but not as safely as asked for; the last such result is better than none."""
        self.unsafe = result
        self._count += 1
        self.reached += 1
        self.brokers.append(broker_name)

    async def pause(self) -> None:
        """Before a new round; up to the end of the send's time where too little of it would be left."""
        left_s, wait_s = self.left_s(), self._pause_s * random.uniform(0.5, 1.0)
        if left_s - wait_s < ANSWER_S_MIN:
            wait_s = left_s
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        self.resting.clear()
        await asyncio.sleep(max(0.0, wait_s))

    def error(self) -> SendFailedError:
        elapsed_s = self._clock_s() - self._start_s
        return SendFailedError(
            self.topic, tries=self._count, elapsed_s=elapsed_s, brokers=self.brokers, cause=self.last
        )


def _wants_master(cause: ContrailError) -> bool:
    return isinstance(cause, ResponseError) and cause.wants_master
