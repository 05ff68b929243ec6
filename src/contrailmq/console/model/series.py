"""An hour of samples in memory: one number every ten seconds. What must be kept for longer is Prometheus's to keep."""

from __future__ import annotations

from array import array
from typing import Final

SAMPLE_S: Final = 10
KEPT_MS: Final = 3_600_000


class Series:
    """Times (epoch milliseconds) and values, oldest first: 16 bytes a sample."""

    def __init__(self) -> None:
        self._times = array("q")
        self._values = array("d")

    def add(self, time_ms: int, value: float) -> None:
        """The newest sample is replaced until its period is over; what is older than an hour goes."""
        if self._times and time_ms < self._times[-1]:  # the clock was set back: what was drawn is no longer true
            self._times, self._values = array("q"), array("d")
        if len(self._times) > 1 and self._times[-1] - self._times[-2] < SAMPLE_S * 1000:
            self._times[-1], self._values[-1] = time_ms, value
        else:
            self._times.append(time_ms)
            self._values.append(value)
        old = 0
        while self._times[old] < time_ms - KEPT_MS:
            old += 1
        if old:
            del self._times[:old], self._values[:old]

    @property
    def last(self) -> float | None:
        return self._values[-1] if self._values else None

    def points(self) -> list[tuple[int, float]]:
        return list(zip(self._times, self._values, strict=True))

    def __len__(self) -> int:
        return len(self._times)
