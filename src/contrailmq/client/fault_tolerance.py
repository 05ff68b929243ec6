"""Which brokers a producer avoids after slow or failed sends (RocketMQ's `sendLatencyFaultEnable`).

Each try is recorded with its latency; a ladder turns latency into a time during which the broker is avoided. A broker
that failed counts as if it had been slow by a fixed amount. Avoided is not forbidden: when every broker is avoided, a
reachable one is used, and in the end any.

The ladder has the figures of RocketMQ's 5.x clients; those of 4.x punish far longer.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LatencyLadder:
    """`avoid_ms[i]` applies from a latency of `latency_ms[i]` on."""

    latency_ms: tuple[int, ...]
    avoid_ms: tuple[int, ...]
    failure_latency_ms: int  # what a failed try counts as

    def avoidance_ms(self, latency_ms: float) -> int:
        step = bisect.bisect_right(self.latency_ms, latency_ms) - 1
        return self.avoid_ms[step] if step >= 0 else 0


LADDER_5X: Final = LatencyLadder(
    latency_ms=(50, 100, 550, 1800, 3000, 5000, 15000),
    avoid_ms=(0, 0, 2000, 5000, 6000, 10000, 30000),
    failure_latency_ms=10_000,
)


@dataclass(slots=True)
class _BrokerHealth:
    available_at_s: float = 0.0
    is_reachable: bool = True


class FaultTolerance:
    """Memory of the brokers' recent behaviour. Owned by one producer, used on its loop only."""

    def __init__(self, clock_s: Callable[[], float], *, ladder: LatencyLadder = LADDER_5X) -> None:
        self._clock_s = clock_s
        self._ladder = ladder
        self._health: dict[str, _BrokerHealth] = {}

    def record_success(self, broker_name: str, latency_s: float) -> None:
        self._record(broker_name, latency_s * 1000, is_reachable=True)

    def record_failure(self, broker_name: str, *, is_reachable: bool) -> None:
        """A failed try: counts as a fixed, long latency whatever it took."""
        self._record(broker_name, self._ladder.failure_latency_ms, is_reachable=is_reachable)

    def is_available(self, broker_name: str) -> bool:
        health = self._health.get(broker_name)
        return health is None or self._clock_s() >= health.available_at_s

    def is_reachable(self, broker_name: str) -> bool:
        health = self._health.get(broker_name)
        return health is None or health.is_reachable

    def _record(self, broker_name: str, latency_ms: float, *, is_reachable: bool) -> None:
        health = self._health.setdefault(broker_name, _BrokerHealth())
        available_at_s = self._clock_s() + self._ladder.avoidance_ms(latency_ms) / 1000
        health.available_at_s = max(health.available_at_s, available_at_s)  # 5.x never moves it backwards
        health.is_reachable = is_reachable
