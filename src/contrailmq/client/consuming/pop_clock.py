"""When a pop happened, on this process's clock.

An answer carries the broker's time of the pop. A message becomes visible again by that, not by when its answer came: an
acknowledgement that is sent in between would be late, and brokers do not say so. The two clocks differ by something
that each answer bounds, because the pop happened between the request and the answer:

    pop time - received  <=  broker's clock - ours  <=  pop time - sent

The smallest upper bound is kept, which makes every estimate early rather than late. An answer that contradicts it says
that a clock was set, and counts alone from then on. An answer that was held (a long poll) bounds nothing worth keeping.
"""

from __future__ import annotations

from typing import Final

BOUND_S_MAX: Final = 1.0  # between request and answer, of one that is worth keeping
_ROUNDED_S: Final = 0.001  # brokers tell whole milliseconds


class PopClock:
    """Of one broker. Owner: one consumer, on its loop."""

    __slots__ = ("_ahead_s_max",)

    def __init__(self) -> None:
        self._ahead_s_max: float | None = None

    @property
    def is_known(self) -> bool:
        return self._ahead_s_max is not None

    def popped_at(self, pop_time_ms: int, *, sent_s: float, received_s: float) -> float:
        """The earliest moment at which the pop may have happened; when the answer came, if nothing better is known."""
        pop_time_s = pop_time_ms / 1000
        low_s, high_s = pop_time_s - received_s, pop_time_s + _ROUNDED_S - sent_s
        known = self._ahead_s_max
        if known is not None and low_s > known:
            known = self._ahead_s_max = None  # a clock was set
        if received_s - sent_s <= BOUND_S_MAX and (known is None or high_s < known):
            known = self._ahead_s_max = high_s
        if known is None:
            return received_s
        return max(sent_s, min(received_s, pop_time_s - known))
