"""Places on the wheel, for the messages that are taken in together.

Many of some hundred messages share topic, slot and distance. So a place is found once for all of them, and a slot that
grows is put onto the wheel once, when they are all in the timer log.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Final

from contrailmq.message import java_hash
from contrailmq.store.timer.wheel import Slot


class Without(enum.Enum):
    """What becomes of a message that has no place on the wheel."""

    NOTHING = 1  # gone, or delivered before
    DELIVERY = 2  # its slot has been delivered: it follows at once
    WAITING = 3  # it cannot be put on the wheel yet, and all after it wait with it


class GrowingSlot:
    """A slot of the wheel while units are chained into it."""

    __slots__ = ("first", "last", "magic", "time_ms", "timers")

    def __init__(self, slot: Slot) -> None:
        self.time_ms, self.first, self.last, self.timers, self.magic = slot


class Place:
    """Where messages of one kind go; `count` of them have."""

    __slots__ = ("count", "delay_ms", "hash", "magic", "slot", "topic", "write_time_ms")

    def __init__(self, slot: GrowingSlot, topic: str, magic: int, write_time_ms: int, delay_ms: int) -> None:
        self.slot = slot
        self.topic = topic
        self.magic = magic
        self.write_time_ms = write_time_ms
        self.delay_ms = delay_ms
        self.hash = _topic_hash(topic)
        self.count = 0


_topic_hash: Final = lru_cache(maxsize=4096)(java_hash)
