"""Pops and notifications that found nothing and wait.

They are kept by topic, group and the queue that they asked for (-1: all). A message that arrives wakes one waiter of
each group that wants it: of those that ask for all queues, and of those that ask for its queue. The woken request is
served once more from the beginning; if it still finds nothing it waits on. So a wrong wake-up costs some microseconds,
and a missed one a round of polling, never a message. A message of a group's retry topic wakes that group's waiters.

POP wakes the one whose time ends first, NOTIFICATION the one whose time ends last: it is the least likely to be gone.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import Final

from contrailmq.broker.filters import SubscriptionFilter
from contrailmq.message import pop_retry_topic, pop_retry_topic_v2
from contrailmq.wire.peer import Peer

ALL_QUEUES: Final = -1
EARLY_MS: Final = 50  # a waiter is answered this long before its time is over, so that the answer is there in time

Key = tuple[str, str, int]  # topic, group, queue or ALL_QUEUES


class Waiter:
    __slots__ = ("connection", "deadline_ms", "filter", "give_up", "is_done", "is_heavy", "key", "resume", "sequence")

    def __init__(
        self,
        key: Key,
        *,
        deadline_ms: int,
        connection: Peer,
        resume: Callable[[], None],
        give_up: Callable[[], None] | None = None,
        filter: SubscriptionFilter | None = None,
        is_heavy: bool = False,
    ) -> None:
        """`deadline_ms` is monotonic. `give_up` answers without looking again.

        `is_heavy`: the filter takes long, so any arrival wakes it.
        """
        self.key = key
        self.deadline_ms = deadline_ms
        self.connection = connection
        self.resume = resume
        self.give_up = give_up
        self.filter = filter
        self.is_heavy = is_heavy
        self.is_done = False
        self.sequence = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.deadline_ms, self.sequence

    def wants(self, tags_code: int, properties: bytes) -> bool:
        wanted = self.filter
        if wanted is None or self.is_heavy:
            return True
        return wanted.match_unit(tags_code) and wanted.match_properties(properties)


class Waiters:
    """Owner: the loop; time comes in as monotonic milliseconds."""

    def __init__(self, *, wakes_newest: bool) -> None:
        self._wakes_newest = wakes_newest
        self._by_key: dict[Key, list[Waiter]] = {}  # in the order in which their times end
        self._keys: dict[str, set[Key]] = {}  # topic that a message is stored in -> who waits for it
        self._by_time: list[tuple[int, int, Waiter]] = []
        self._sequence = 0
        self._count = 0
        self.total_max = 100_000
        self.key_max = 1024

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic: str) -> bool:
        return topic in self._keys

    def count(self, key: Key) -> int:
        return len(self._by_key.get(key, ()))

    def try_hold(self, waiter: Waiter) -> bool:
        """Keep it; False when too many wait already."""
        key = waiter.key
        held = self._by_key.get(key)
        if self._count >= self.total_max or (held is not None and len(held) > self.key_max):
            return False
        if held is None:
            held = self._by_key[key] = []
            for topic in _topics_of(key):
                self._keys.setdefault(topic, set()).add(key)
        self._sequence += 1
        waiter.sequence = self._sequence
        bisect.insort(held, waiter, key=lambda one: one.order)
        heapq.heappush(self._by_time, (waiter.deadline_ms, waiter.sequence, waiter))
        self._count += 1
        return True

    def arrived(self, topic: str, queue_id: int, *, tags_code: int, properties: bytes) -> None:
        """A message was stored there."""
        for key in sorted(self._keys.get(topic, ()), key=lambda key: key[2]):
            if key[0] != topic or key[2] in (ALL_QUEUES, queue_id):
                self.wake(key, lambda waiter: waiter.wants(tags_code, properties))

    def wake(self, key: Key, wants: Callable[[Waiter], bool] = lambda waiter: True) -> bool:
        """Wake one that is still connected and wants it; whether there was one."""
        while True:
            held = self._by_key.get(key, [])
            found = next((one for one in (reversed(held) if self._wakes_newest else held) if wants(one)), None)
            if found is None:
                return False
            self._remove(found)
            if found.connection.is_open:
                found.resume()
                return True

    def expire(self, now_ms: int) -> None:
        """Wake those whose time is over: they answer that nothing was found."""
        by_time = self._by_time
        while by_time and (by_time[0][2].is_done or by_time[0][0] <= now_ms):
            waiter = heapq.heappop(by_time)[2]
            if not waiter.is_done:
                self._remove(waiter)
                if waiter.connection.is_open:
                    waiter.resume()

    def release(self, *keys: Key) -> None:
        """Wake all of some keys, because their topic is gone; of all keys when the broker goes away."""
        for key in keys or tuple(self._by_key):
            for waiter in list(self._by_key.get(key, ())):
                self._remove(waiter)
                if waiter.connection.is_open:
                    waiter.resume()

    def left(self, group: str, connection: Peer) -> None:
        """A member of the group has said goodbye: it is given nothing any more that it would have to give back."""
        for key in [key for key in self._by_key if key[1] == group]:
            for waiter in [one for one in self._by_key[key] if one.connection is connection and one.give_up]:
                self._remove(waiter)
                if waiter.give_up is not None:
                    waiter.give_up()

    def forget_closed(self) -> None:
        """Let go of those whose connection is gone."""
        for held in list(self._by_key.values()):
            for waiter in [one for one in held if not one.connection.is_open]:
                self._remove(waiter)

    def awaited(self) -> list[Key]:
        return list(self._by_key)

    def _remove(self, waiter: Waiter) -> None:
        waiter.is_done = True
        held = self._by_key[waiter.key]
        held.remove(waiter)
        self._count -= 1
        if not held:
            del self._by_key[waiter.key]
            for topic in _topics_of(waiter.key):
                keys = self._keys[topic]
                keys.discard(waiter.key)
                if not keys:
                    del self._keys[topic]
        if len(self._by_time) > 64 + 4 * self._count:
            self._by_time = [entry for entry in self._by_time if not entry[2].is_done]
            heapq.heapify(self._by_time)


def _topics_of(key: Key) -> tuple[str, str, str]:
    """Where messages are stored that a waiter would get."""
    topic, group, _ = key
    return topic, pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic)
