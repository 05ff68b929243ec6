"""Pulls that found nothing and wait: held by queue, woken by an arrival, a check or their timeout.

A held pull is a value with a `resume` callback; this table decides only *when*. On a wake-up the pull runs once more
from its original offset and whatever results is answered, so a wrong wake-up costs a round trip and a missed one costs
up to five seconds (`recheck`), never a message.

Cost: an arrival on a queue without held pulls is one dictionary look-up. Timeouts are kept in a heap, with dead entries
skipped when they surface, so nothing walks 10,000 held pulls every tick.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from typing import Final, Protocol

from contrailmq.broker.filters import SubscriptionFilter

HELD_MAX: Final = 100_000  # more than this many waiting pulls are answered at once; Java holds without a limit


class Connected(Protocol):
    @property
    def is_open(self) -> bool: ...


class HeldPull:
    """One waiting request."""

    __slots__ = ("connection", "deadline_ms", "filter", "is_done", "is_heavy", "key", "offset", "resume")

    def __init__(
        self,
        *,
        offset: int,
        deadline_ms: int,
        filter: SubscriptionFilter | None,
        connection: Connected,
        resume: Callable[[], None],
        is_heavy: bool = False,
    ) -> None:
        """`is_heavy`: the filter takes long, so any arrival wakes the pull, and resuming it does the matching."""
        self.offset = offset
        self.deadline_ms = deadline_ms
        self.filter = filter
        self.connection = connection
        self.resume = resume
        self.is_heavy = is_heavy
        self.is_done = False
        self.key = ("", 0)  # (topic, queue), set when it is held

    def awaits(self, queue_offset: int, tags_code: int, properties: bytes) -> bool:
        """Whether it waits before a message, and its filter lets that pass."""
        if self.offset > queue_offset:
            return False
        wanted = self.filter
        if wanted is None or self.is_heavy:
            return True
        return wanted.match_unit(tags_code) and wanted.match_properties(properties)


class HeldPulls:
    """Every waiting pull of the broker. Owner: the loop; time comes in as `now_ms`, monotonic."""

    __slots__ = ("_by_queue", "_count", "_deadlines", "_sequence", "held_max", "refused")

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self.held_max = held_max
        self.refused = 0  # how many found the table full
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._sequence = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def try_hold(self, topic: str, queue_id: int, pull: HeldPull) -> bool:
        """Keep the pull; False when the table is full, and the caller answers at once."""
        if self._count >= self.held_max:
            self.refused += 1
            return False
        pull.key = key = (topic, queue_id)
        held = self._by_queue.get(key)
        if held is None:
            self._by_queue[key] = [pull]
        else:
            held.append(pull)
        self._sequence += 1
        heapq.heappush(self._deadlines, (pull.deadline_ms, self._sequence, pull))
        self._count += 1
        return True

    @property
    def queues(self) -> Container[tuple[str, int]]:
        """The (topic, queue)s that something is held for; live."""
        return self._by_queue

    def arrived(self, topic: str, queue_id: int, *, queue_offset: int, tags_code: int, properties: bytes) -> None:
        """A message was dispatched to the queue: wake the pulls that wait before it and whose filter lets it pass."""
        key = (topic, queue_id)
        held = self._by_queue.get(key)
        if held is None:
            return
        self._wake(key, held, [pull for pull in held if pull.awaits(queue_offset, tags_code, properties)])

    def recheck(self, max_offset: Callable[[str, int], int]) -> None:
        """Wake pulls that have data now, whatever their filter, and forget those whose connection is gone."""
        for key, held in list(self._by_queue.items()):
            end = max_offset(*key)
            self._wake(key, held, [pull for pull in held if end > pull.offset or not pull.connection.is_open])

    def expire(self, now_ms: int) -> None:
        """Wake the pulls whose time is over; they answer that nothing was found."""
        due: list[HeldPull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            pull = heapq.heappop(self._deadlines)[2]
            if not pull.is_done:
                due.append(pull)
        if not due:
            return
        by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        for pull in due:
            by_queue.setdefault(pull.key, []).append(pull)
        for key, woken in by_queue.items():
            self._wake(key, self._by_queue[key], woken)

    def release_topic(self, topic: str) -> None:
        """Wake what waits for a topic that is gone: it answers so, instead of waiting for messages that never come."""
        for key, held in [entry for entry in self._by_queue.items() if entry[0][0] == topic]:
            self._wake(key, held, list(held))

    def release_all(self) -> None:
        """Wake everything: the broker is going away."""
        for key, held in list(self._by_queue.items()):
            self._wake(key, held, list(held))

    def _wake(self, key: tuple[str, int], held: list[HeldPull], woken: list[HeldPull]) -> None:
        if not woken:
            return
        for pull in woken:
            pull.is_done = True
        if len(woken) == len(held):
            del self._by_queue[key]
        else:
            self._by_queue[key] = [pull for pull in held if not pull.is_done]
        self._count -= len(woken)
        if len(self._deadlines) > 64 + 4 * self._count:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)
        for pull in woken:
            if pull.connection.is_open:
                pull.resume()
