"""Delay levels and the code that a consume queue keeps for a record.

A delayed message waits in the queue of its level, and its unit holds the delivery time where others hold the hash of
the tag (DispatchRequest.tagsCode as CommitLog.checkMessageAndReturnSize makes it).
"""

from __future__ import annotations

from typing import Final

from contrailmq.message import natural_number
from contrailmq.store.base.errors import StoreConfigError

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # RocketMQ's messageDelayLevel
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL_MS_MAX: Final = 36_525 * 86_400_000  # a hundred years: delivery times stay within 64 bits
_UNKNOWN_LEVEL_MS: Final = 1_000  # ScheduleMessageService.computeDeliverTimestamp, for a level that is not in the table


class DelayLevels:
    """messageDelayLevel, parsed: `delays_ms[level - 1]`."""

    def __init__(self, text: str) -> None:
        try:
            self.delays_ms: tuple[int, ...] = tuple(_delay_ms(part) for part in text.split(" "))
        except (ValueError, KeyError, IndexError) as exc:
            raise StoreConfigError(
                "messageDelayLevel", text, "levels like '1s 5m 2h 1d', one space between, none longer than 100 years"
            ) from exc

    def deliver_time_ms(self, level: int, store_time_ms: int) -> int:
        level = min(level, len(self.delays_ms))
        return store_time_ms + (self.delays_ms[level - 1] if level > 0 else _UNKNOWN_LEVEL_MS)

    def due_ms(self, level: str | None, store_time_ms: int) -> int | None:
        """When a message that waits is due, by its DELAY; None when that names no level."""
        number = natural_number(level or "") or 0
        return self.deliver_time_ms(number, store_time_ms) if number else None


def _delay_ms(text: str) -> int:
    count = natural_number(text[:-1])
    if count is None or count * _UNIT_MS[text[-1]] > _LEVEL_MS_MAX:
        raise ValueError(text)
    return count * _UNIT_MS[text[-1]]
