"""Patience with brokers and NameServers that are away: a restart delays a query and does not end it.

A server that does not answer is asked again with growing pauses until `brokerAwayTimeoutMs` is over. The time begins
with the first failure and ends with the first answer. Only these count as away: a connection that is refused, lost
or silent, a NameServer that knows no broker yet, a broker that is not registered, is busy or shuts down. Any other
answer, or a certificate that does not fit, is final.

Whatever is tried again must be safe to do twice: look-ups and pulls are, and a batch that was perhaps stored carries
keys by which repeats are known (sink.py).
"""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Callable
from typing import ClassVar, Final, Protocol, TypeVar

from contrailmq.client.errors import (
    ACCESS_BROKER_TIMEOUT,
    BROKER_NOT_EXIST,
    CONNECT_BROKER,
    NO_NAME_SERVER,
    BrokerNotFoundError,
    NoNameServerError,
    NoRouteError,
    error_code,
)
from contrailmq.message import ContrailError
from contrailmq.wire.codes import ResponseCode

AWAY_OPTION: Final = "brokerAwayTimeoutMs"
AWAY_TIMEOUT_MS: Final = 60_000
_PAUSE_S: Final = 0.1  # before the second try, at most; doubled each time
_PAUSE_MAX_S: Final = 2.0
# Errors for servers that do not answer, and answers of brokers that cannot serve now.
_AWAY: Final = frozenset({CONNECT_BROKER, ACCESS_BROKER_TIMEOUT, BROKER_NOT_EXIST, NO_NAME_SERVER})
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class BrokerAwayError(ContrailError):
    """A broker or a NameServer was away for longer than a query waits."""

    retriable = True


class Cluster(Protocol):
    """What patience asks of a client; `QueueReader` answers it."""

    def broker_names(self) -> list[str]: ...
    def forget_routes(self) -> None: ...


class Patience:
    """How long one caller has been waiting for one thing. Owned by that caller."""

    waits_in_process: ClassVar[int] = 0  # of all callers: what a task's figures are taken from

    def __init__(
        self,
        cluster: Cluster,
        limit_s: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._limit_s, self._sleep, self._clock = cluster, limit_s, sleep, clock
        self._since_s: float | None = None
        self._paused_s, self._tries = 0.0, 0

    def call(self, do: Callable[[], _Result]) -> _Result:
        """What `do` gives, in the end. Errors that do not say "away" pass as they are."""
        while True:
            try:
                found = do()
            except ContrailError as exc:
                self.wait(exc)
            else:
                self.answered()
                return found

    def answered(self) -> None:
        """The broker or NameServer is back."""
        if self._since_s is not None:
            _log.warning("back after %.1f s: going on", self._clock() - self._since_s)
        self._since_s, self._paused_s, self._tries = None, 0.0, 0

    def wait(self, exc: ContrailError) -> None:
        """Pause before the next try; raise the error itself if it does not say "away", or ours when time is over."""
        if not self.is_away(exc):
            raise exc
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
            _log.warning(
                "%s is away (%s); trying again for up to %g s (%s)", _who(exc), exc, self._limit_s, AWAY_OPTION
            )
        self._tries += 1
        Patience.waits_in_process += 1
        waited_s = max(now_s - self._since_s, self._paused_s)
        if waited_s >= self._limit_s:
            raise BrokerAwayError(
                f"{_who(exc)} was away for {waited_s:.1f} s and {self._tries} tries, and brokerAwayTimeoutMs is "
                f"{self._limit_s * 1000:.0f}: start it or check its address, or raise the option; at last: {exc}"
            ) from exc
        longest_s = min(_PAUSE_S * 2 ** min(self._tries - 1, 10), _PAUSE_MAX_S)
        pause_s = min(longest_s * random.uniform(0.5, 1.0), self._limit_s - waited_s)  # lest all tasks come at once
        self._paused_s += pause_s
        self._sleep(pause_s)
        self._cluster.forget_routes()  # it may come back elsewhere

    def is_away(self, exc: ContrailError) -> bool:
        """Whether an error says that somebody is away, and not that something is wrong."""
        if isinstance(exc, NoRouteError):
            # A NameServer that was restarted knows a topic only when its broker has registered again.
            return self._knows_no_broker()
        if isinstance(exc.__cause__, ssl.SSLError):
            return False
        return error_code(exc) in _AWAY or error_code(exc) in _BUSY

    def _knows_no_broker(self) -> bool:
        try:
            return not self._cluster.broker_names()
        except ContrailError as exc:
            return self.is_away(exc)


def _who(exc: ContrailError) -> str:
    if isinstance(exc, NoNameServerError):
        return "every NameServer"
    if isinstance(exc, NoRouteError):
        return "every broker"
    if isinstance(exc, BrokerNotFoundError):
        return f"broker {exc.broker_name}"
    return str(getattr(exc, "address", "") or "a broker")
