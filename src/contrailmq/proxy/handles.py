"""Receipt handles: what a consumer shows to acknowledge a message.

A handle is nine values joined by a space, which is POP's own text with the log offset after it:

    start offset, pop time ms, invisible ms, revive queue, retry mark, broker, queue, queue offset, log offset

One of a lite topic has that as a tenth: queue and offset are those of its light queue, which nothing else names.
Clients pass it through. It says all that a broker must be asked with, so any proxy can serve any handle.

Its time is the broker's, and so is the clock by which it expires: a proxy whose own clock differs would refuse handles
that count, or renew too late. The pops that it passes on tell it the difference (`client/consuming/pop_clock.py`).
Until a broker has answered one with messages, its clock counts as ours.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final, NamedTuple

from contrailmq.client.consuming.pop_clock import PopClock
from contrailmq.message import RETRY_PREFIX
from contrailmq.message.properties import natural_number
from contrailmq.proxy.clock import now_ms
from contrailmq.proxy.statuses import Code, Refused

PARTS_MIN: Final = 8
NO_OFFSET: Final = -1
ORDERLY_QUEUE: Final = 999  # of a FIFO group: its handles do not end with the invisible time


class Handle(NamedTuple):
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    retry_mark: str  # 0 the topic itself, 1 and 2 its retry topic in the old and the new spelling
    broker: str
    queue_id: int
    queue_offset: int
    log_offset: int = NO_OFFSET
    lite_topic: str = ""

    @property
    def text(self) -> str:
        return " ".join(map(str, self if self.lite_topic else self[:-1]))

    @property
    def extra_info(self) -> str:
        """What brokers want: without the log offset."""
        return " ".join(map(str, self[:PARTS_MIN]))

    @property
    def visible_ms(self) -> int:
        return self.pop_time_ms + self.invisible_ms

    def stored_topic(self, topic: str, group: str) -> str:
        """The topic that holds the message: its own, or a retry topic of the group."""
        if self.retry_mark == "0":
            return topic
        return f"{RETRY_PREFIX}{group}{'+' if self.retry_mark == '2' else '_'}{topic}"


def parse_handle(text: str) -> Handle:
    """Refused unless it is a handle."""
    parts = text.split(" ")
    if len(parts) < PARTS_MIN:
        raise _invalid(text, f"it has {len(parts)} parts, {PARTS_MIN} are needed")
    numbers = [natural_number(parts[index]) for index in (0, 1, 2, 3, 6, 7)]
    log_offset = natural_number(parts[PARTS_MIN]) if len(parts) > PARTS_MIN else NO_OFFSET
    lite_topic = parts[PARTS_MIN + 1] if len(parts) > PARTS_MIN + 1 else ""
    if None in numbers or parts[4] not in ("0", "1", "2") or not parts[5]:
        raise _invalid(text, "its parts are not numbers, a retry mark and a broker")
    start, popped, invisible, revive, queue, offset = (number or 0 for number in numbers)
    return Handle(
        start,
        popped,
        invisible,
        revive,
        parts[4],
        parts[5],
        queue,
        offset,
        NO_OFFSET if log_offset is None else log_offset,
        lite_topic,
    )


def check_live(handle: Handle, at_ms: int) -> None:
    """Refused when its invisible time is over at its broker: the message may be with another consumer by now."""
    if handle.revive_queue != ORDERLY_QUEUE and handle.visible_ms <= at_ms:
        late_ms = at_ms - handle.visible_ms
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE,
            f"the handle expired {late_ms} ms ago: the message may be delivered again; acknowledge within the "
            "invisible time, or prolong it",
        )


class BrokerClocks:
    """By the broker's name. Owner: `consuming.Consuming`, on its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clocks: defaultdict[str, PopClock] = defaultdict(PopClock)
        self._ahead_s: dict[str, float] = {}  # of the loop's time

    def popped(self, broker: str, pop_time_ms: int, *, sent_s: float, received_s: float) -> None:
        """A pop brought messages; the times are the loop's."""
        popped_s = self._clocks[broker].popped_at(pop_time_ms, sent_s=sent_s, received_s=received_s)
        self._ahead_s[broker] = pop_time_ms / 1000 - popped_s

    def now_ms(self, broker: str) -> int:
        """By the broker's clock, a little later rather than earlier."""
        ahead_s = self._ahead_s.get(broker)
        return now_ms() if ahead_s is None else int((self._loop.time() + ahead_s) * 1000)


def _invalid(text: str, reason: str) -> Refused:
    return Refused(Code.INVALID_RECEIPT_HANDLE, f"the receipt handle {text[:80]!r} cannot be read: {reason}")
