"""How much a peer may ask for that leads nowhere: pings, settings, resets and the like.

One such frame is cheap and allowed; a flood of them is an attack, and its connection ends. Each costs a part of an
allowance, which fills again with time and with every call that is opened.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PING_COST", "RESET_COST", "SETTINGS_COST", "Allowance"]

ALLOWANCE: Final = 20_000  # at most, and at first
REFILL_A_SECOND: Final = 2_000
REFILL_A_CALL: Final = 2
PING_COST: Final = 1  # also of frames that say nothing. Go's client sends a ping with every few answers
RESET_COST: Final = 4  # all 4,096 calls of a connection may be cancelled at once, then 500 a second
SETTINGS_COST: Final = 20  # each is looked at for every stream


class Allowance:
    """Owner: a connection."""

    __slots__ = ("_at_s", "left")

    def __init__(self, now_s: float) -> None:
        self.left: int = ALLOWANCE
        self._at_s: float = now_s

    def take(self, cost: int, now_s: float) -> bool:
        """Whether there was so much left."""
        refill = int((now_s - self._at_s) * REFILL_A_SECOND)
        if refill > 0:
            self._at_s = now_s
            self.left = min(self.left + refill, ALLOWANCE)
        self.left -= cost
        return self.left >= 0

    def called(self) -> None:
        if self.left < ALLOWANCE:
            self.left += REFILL_A_CALL
