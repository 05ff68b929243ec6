"""Counting the wheel while it turns: how many timers of each topic wait, exactly.

The count takes many ticks, and timers come and go meanwhile. It looks at the wheel block by block, and takes each block
as it is at that moment. `note` adds later changes in counted blocks; other changes are seen
when their block is reached. So the final count is exact. A slot under
delivery still has the units of what was delivered: `begun` says what its delivery has changed so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from contrailmq.message import java_hash
from contrailmq.store.timer.log import TimerLog, TimerUnit
from contrailmq.store.timer.wheel import BLOCK_SLOTS, SPAN_SLOTS, TimerWheel

_UNITS: Final = 128  # of a chain that are read together
_SPAN_WORK: Final = 64  # an empty span takes as long as so many units


class Recount:
    """One count. Owner: TimerStore. `begun(slot_time_ms)`: topic -> change, nothing for a slot that was not begun."""

    def __init__(
        self,
        wheel: TimerWheel,
        timer_log: TimerLog,
        topics: Iterable[str],
        read_topic: Callable[[TimerUnit], str],
        begun: Callable[[int], Mapping[str, int]],
    ) -> None:
        self._wheel = wheel
        self._log = timer_log
        self._read_topic = read_topic
        self._begun = begun
        self._counts: Counter[str] = Counter()
        self._seen_slots = 0  # slots before this index were looked at
        names = list(topics)
        hashes = Counter(java_hash(topic) for topic in names)
        self._shared_hashes = {value for value, count in hashes.items() if count > 1}
        self._topics = {java_hash(topic): topic for topic in names}
        self._work = self._walk()

    @property
    def counts(self) -> dict[str, int]:
        """Topic -> timers that wait; complete when `step` has said True."""
        return {topic: count for topic, count in self._counts.items() if topic}

    def step(self, max_count: int) -> bool:
        """Work about as much as that many units take; True when all of the wheel was seen."""
        done = 0
        while done < max_count:
            work = next(self._work, None)
            if work is None:
                return True
            done += work
        return False

    def note(self, slot_time_ms: int, topic: str, change: int) -> None:
        """A slot has gained or lost timers."""
        if self._wheel.index(slot_time_ms) < self._seen_slots:
            self._counts[topic] += change

    def _walk(self) -> Iterator[int]:
        wheel = self._wheel
        for span in range(0, wheel.slots, SPAN_SLOTS):
            if wheel.is_span_empty(span):
                self._seen_slots = span + SPAN_SLOTS
                yield _SPAN_WORK
                continue
            for start in range(span, min(span + SPAN_SLOTS, wheel.slots), BLOCK_SLOTS):
                slots = wheel.block(start)
                self._seen_slots = start + BLOCK_SLOTS
                for slot in slots:
                    self._counts.update(self._begun(slot.time_ms))
                yield 1
                for slot in slots:
                    position = slot.last_position
                    self._log.write()
                    while position >= 0:
                        units, position = self._log.chain(position, slot.first_position, _UNITS)
                        for unit in units:
                            self._counts[self._topic_of(unit)] += -1 if unit.is_delete else 1
                            yield 1

    def _topic_of(self, unit: TimerUnit) -> str:
        if unit.topic_hash in self._shared_hashes:
            return self._read_topic(unit)
        topic = self._topics.get(unit.topic_hash)
        if topic is None:
            topic = self._topics[unit.topic_hash] = self._read_topic(unit)
        return topic
