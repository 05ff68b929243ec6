"""Instruments, their series, and how many of these there may be.

A name here is RocketMQ's bare one, which OTLP keeps. On a Prometheus page the unit is appended unless the name ends
with it, and a counter ends in `_total` (OpenTelemetry's rules, which RocketMQ's pages follow):

    rocketmq_consumer_lag_latency, milliseconds  ->  rocketmq_consumer_lag_latency_milliseconds
    rocketmq_messages_in_total, a counter        ->  rocketmq_messages_in_total

Series beyond `limit` (metricsOtelCardinalityLimit) become one more, with the label otel_metric_overflow="true" instead
of their own: sums of counts, the largest of times. So a page is bounded whatever names clients make up.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

OVERFLOW: Final = "otel_metric_overflow"
_SPELT: Final = {"ms": "milliseconds", "us": "microseconds"}
_TIMES: Final = frozenset({"ms", "us", "milliseconds", "seconds"})


class Kind(enum.Enum):
    """Prometheus' word for each is its value."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Distribution(NamedTuple):
    """What a histogram has seen: a count for each bound (up to it, beyond the one before) and one for the rest."""

    counts: Sequence[int]
    sum: float


Value = int | float | Distribution
Series = Iterable[tuple[tuple[str, ...], Value]]  # values of the instrument's labels, in their order, and the figure


class Instrument(NamedTuple):
    """What is measured."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, ...] = ()  # of a histogram, upper and inclusive
    setting: str = ""  # of RocketMQ's, which switches it off; "" : none does

    @property
    def scraped_name(self) -> str:
        unit = _SPELT.get(self.unit, self.unit)
        base = self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name
        if unit and not base.endswith(unit):
            base = f"{base}_{unit}"
        return f"{base}_total" if self.kind is Kind.COUNTER else base


class Measured(NamedTuple):
    """An instrument and what gives its series. The function may be left and gone on with while the tables that it
    looks at change: it iterates over copies."""

    instrument: Instrument
    series: Callable[[], Series]


def limited(measured: Measured, limit: int) -> Iterator[tuple[tuple[str, ...] | None, Value]]:
    """The first `limit` series, and what the others come to, with None for labels."""
    rest: Value | None = None
    takes_largest = measured.instrument.kind is Kind.GAUGE and measured.instrument.unit in _TIMES
    for number, (labels, value) in enumerate(measured.series()):
        if number < limit:
            yield labels, value
        elif rest is None:
            rest = value
        else:
            rest = _joined(rest, value, takes_largest=takes_largest)
    if rest is not None:
        yield None, rest


def _joined(one: Value, other: Value, *, takes_largest: bool) -> Value:
    if isinstance(one, Distribution):
        assert isinstance(other, Distribution)
        return Distribution([a + b for a, b in zip(one.counts, other.counts, strict=True)], one.sum + other.sum)
    assert not isinstance(other, Distribution)
    return max(one, other) if takes_largest else one + other
