"""The ladder of 5.x, and what an avoided broker is."""

from __future__ import annotations

import pytest

from contrailmq.client.fault_tolerance import LADDER_5X, FaultTolerance


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("latency_ms", "avoid_ms"),
    [(49, 0), (50, 0), (550, 2000), (1799, 2000), (1800, 5000), (10000, 10000), (15000, 30000)],
)
def test_the_5x_ladder(latency_ms: int, avoid_ms: int) -> None:
    assert LADDER_5X.avoidance_ms(latency_ms) == avoid_ms


def test_a_slow_broker_is_avoided_until_its_time_is_over() -> None:
    clock = Clock()
    faults = FaultTolerance(clock)
    faults.record_success("a", 0.6)
    assert not faults.is_available("a")
    assert faults.is_available("b")
    clock.now_s += 2.0
    assert faults.is_available("a")


def test_a_failure_counts_as_ten_seconds_and_a_later_success_does_not_shorten_it() -> None:
    clock = Clock()
    faults = FaultTolerance(clock)
    faults.record_failure("a", is_reachable=False)
    faults.record_success("a", 0.001)
    assert not faults.is_available("a")
    assert faults.is_reachable("a")
    clock.now_s += 10.0
    assert faults.is_available("a")


def test_an_unreachable_broker_stays_so_until_it_answers() -> None:
    faults = FaultTolerance(Clock())
    faults.record_failure("a", is_reachable=False)
    assert not faults.is_reachable("a")
    faults.record_success("a", 0.001)
    assert faults.is_reachable("a")
