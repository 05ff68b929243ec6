"""Counters that operators and mqadmin read: puts and gets by topic, queue and group, and the broker's totals.

The hot path only adds to a counter. Rates come from samples: every 10 s, 10 min and hour the counter's value is noted,
and a rate is the difference between the newest and the oldest note of its window, as the reference computes it (code
315). Counters that nobody touched for two hours are dropped.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from contrailmq.message import Property, is_system_topic

_WINDOWS: Final = {"minute": (10_000, 7), "hour": (600_000, 7), "day": (3_600_000, 25)}  # period ms, notes kept
IDLE_MS: Final = 2 * 3_600_000
COUNTERS_MAX: Final = 100_000  # one per (name, key); a bound on hostile variety of names

# Kinds of messages, as RocketMQ's metrics name them.
KINDS: Final = ("normal", "fifo", "delay", "transaction")
NORMAL: Final = 0
FIFO: Final = 1
DELAY: Final = 2
TRANSACTION: Final = 3
_DELAYS: Final = (
    Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SECONDS, Property.TIMER_DELAY_MS,
    "__STARTDELIVERTIME",
)  # fmt: skip
SIZE_BOUNDS: Final = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)  # of rocketmq_message_size, in bytes
SMALL_BYTES: Final = 1024  # the first of them
FINISH_BOUNDS_S: Final = (5, 60, 600, 3600, 43_200, 86_400)  # of rocketmq_finish_message_latency
DELAY_BOUNDS_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)  # of rocketmq_delay_message_latency


def kind_of(properties: Mapping[str, str]) -> int:
    """What kind of message these properties make, by RocketMQ's order (BrokerMetricsManager.getMessageType)."""
    if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
        return TRANSACTION
    if Property.SHARDING_KEY in properties:
        return FIFO
    return DELAY if any(name in properties for name in _DELAYS) else NORMAL


class PutSeries:
    """What was put to one topic, of one kind: for ever, while `Counter`s are dropped when nobody uses them."""

    __slots__ = ("messages", "size_bytes", "size_counts", "size_sum")

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.size_counts = [0] * (len(SIZE_BOUNDS) + 1)  # of puts, by the size of their messages
        self.size_sum = 0


class GetSeries:
    """What one group got of one topic."""

    __slots__ = ("messages", "size_bytes")

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0


class Spread:
    """Values by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def note(self, value: int) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


class Rate(NamedTuple):
    """StatsSnapshot of the reference: sum in the window, per second, and per operation."""

    sum: int
    per_second: float
    per_operation: float

    def to_json(self) -> dict[str, float]:
        return {"avgpt": self.per_operation, "sum": self.sum, "tps": self.per_second}


class Counter:
    """A sum and a number of operations, with samples of both."""

    __slots__ = ("_samples", "idle_since_ms", "operations", "seen_operations", "value")

    def __init__(self) -> None:
        self.value = 0
        self.operations = 0
        self.seen_operations = -1
        self.idle_since_ms = 0
        self._samples: dict[str, deque[tuple[int, int, int]]] = {
            name: deque(maxlen=kept) for name, (_, kept) in _WINDOWS.items()
        }

    def add(self, amount: int) -> None:
        self.value += amount
        self.operations += 1

    def sample(self, now_ms: int) -> None:
        for name, (period_ms, _) in _WINDOWS.items():
            notes = self._samples[name]
            if not notes or now_ms - notes[-1][0] >= period_ms:
                notes.append((now_ms, self.value, self.operations))

    def rate(self, window: str) -> Rate:
        notes = self._samples[window]
        if len(notes) < 2:
            return Rate(0, 0.0, 0.0)
        (first_ms, first, first_operations), (last_ms, last, last_operations) = notes[0], notes[-1]
        total = last - first
        operations = last_operations - first_operations
        per_second = total * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0
        return Rate(total, per_second, total / operations if operations else 0.0)


class Total:
    """A broker-wide sum with its value at midnight and the averages of 10, 60 and 600 seconds."""

    __slots__ = ("_samples", "this_morning", "value", "yesterday_morning")

    def __init__(self) -> None:
        self.value = 0
        self.yesterday_morning = 0
        self.this_morning = 0
        self._samples: deque[tuple[int, int]] = deque(maxlen=61)

    def sample(self, now_ms: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= 10_000:
            self._samples.append((now_ms, self.value))

    def begin_day(self) -> None:
        self.yesterday_morning, self.this_morning = self.this_morning, self.value

    def averages(self) -> str:
        """`10s 60s 600s`, the form that mqadmin splits on blanks."""
        return " ".join(f"{self._average(notes):.6g}" for notes in (1, 6, 60))

    def _average(self, notes: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        first_ms, first = self._samples[max(-1 - notes, -len(self._samples))]
        last_ms, last = self._samples[-1]
        return (last - first) * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0


class Statistics:
    """Every counter of one broker. Owner: the loop."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], Counter] = {}
        self.put = Total()
        self.put_bytes = Total()
        self.put_by_people, self.get_by_people = Total(), Total()  # without topics of the system
        self._of_system = Total()  # what the others have, which nobody asks for
        self.get = Total()
        self.get_bytes = Total()
        self.get_found = Total()
        self.get_missed = Total()
        self.put_failed = 0
        self._day = -1
        self._put_by_topic: dict[str, tuple[Counter, Counter, Total, list[PutSeries | None]]] = {}
        self._get_by_group: dict[tuple[str, str], tuple[Counter, Counter, Total, GetSeries]] = {}
        # For metrics. Topics bound the first; of the second, what is beyond COUNTERS_MAX shares one series.
        self.puts: dict[tuple[str, int], PutSeries] = {}  # by topic and kind
        self.gets: dict[tuple[str, str], GetSeries] = {}  # by group and topic
        self.dead_letters: dict[tuple[str, str], int] = {}  # by group and topic
        self.commits: dict[str, int] = {}
        self.rollbacks: dict[str, int] = {}
        self.finish_times: dict[str, Spread] = {}  # seconds from a half message's birth to its commit
        self.delays: dict[str, Spread] = {}  # seconds that were asked for

    def counter(self, name: str, key: str) -> Counter:
        """The counter, made when new; callers on the hot path keep the object."""
        counter = self._counters.get((name, key))
        if counter is None:
            counter = Counter()
            if len(self._counters) < COUNTERS_MAX:
                self._counters[(name, key)] = counter
        return counter

    def find(self, name: str, key: str) -> Counter | None:
        return self._counters.get((name, key))

    def note_put(self, topic: str, messages: int, size_bytes: int, kind: int = NORMAL) -> None:
        """Hot path: two look-ups and eleven additions."""
        self.put.value += messages
        self.put_bytes.value += size_bytes
        known = self._put_by_topic.get(topic)
        if known is None:
            no_series: list[PutSeries | None] = [None] * len(KINDS)
            total = self._of_system if is_system_topic(topic) else self.put_by_people
            known = (self.counter("TOPIC_PUT_NUMS", topic), self.counter("TOPIC_PUT_SIZE", topic), total, no_series)
            self._put_by_topic[topic] = known
        numbers, sizes, total, by_kind = known
        total.value += messages
        numbers.value += messages
        numbers.operations += 1
        sizes.value += size_bytes
        sizes.operations += 1
        series = by_kind[kind]
        if series is None:
            series = by_kind[kind] = self.puts.setdefault((topic, kind), PutSeries())
        series.messages += messages
        series.size_bytes += size_bytes
        each_bytes = size_bytes if messages == 1 else size_bytes // messages
        series.size_counts[0 if each_bytes <= SMALL_BYTES else bisect.bisect_left(SIZE_BOUNDS, each_bytes)] += 1
        series.size_sum += each_bytes

    def note_get(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        self.get.value += messages
        self.get_bytes.value += size_bytes
        self.get_found.value += 1
        known = self._get_by_group.get((group, topic))
        if known is None:
            key = f"{topic}@{group}"
            known = (
                self.counter("GROUP_GET_NUMS", key),
                self.counter("GROUP_GET_SIZE", key),
                self._of_system if is_system_topic(topic) else self.get_by_people,
                self._new_gets(group, topic),
            )
            self._get_by_group[group, topic] = known
        numbers, sizes, total, series = known
        total.value += messages
        numbers.value += messages
        numbers.operations += 1
        sizes.value += size_bytes
        sizes.operations += 1
        series.messages += messages
        series.size_bytes += size_bytes

    def _new_gets(self, group: str, topic: str) -> GetSeries:
        key = (group, topic) if len(self.gets) < COUNTERS_MAX else ("", "")
        return self.gets.setdefault(key, GetSeries())

    def note_dead_letter(self, group: str, topic: str) -> None:
        key = (group, topic) if len(self.dead_letters) < COUNTERS_MAX else ("", "")
        self.dead_letters[key] = self.dead_letters.get(key, 0) + 1

    def note_commit(self, topic: str, messages: int = 1) -> None:
        self.commits[topic] = self.commits.get(topic, 0) + messages

    def note_rollback(self, topic: str) -> None:
        self.rollbacks[topic] = self.rollbacks.get(topic, 0) + 1

    def note_finish_time(self, topic: str, age_ms: int) -> None:
        spread = self.finish_times.get(topic)
        if spread is None:
            spread = self.finish_times[topic] = Spread(FINISH_BOUNDS_S)
        spread.note(max(age_ms, 0) // 1000)

    def note_delay(self, topic: str, delay_ms: int) -> None:
        spread = self.delays.get(topic)
        if spread is None:
            spread = self.delays[topic] = Spread(DELAY_BOUNDS_S)
        spread.note(max(delay_ms, 0) // 1000)

    def get_all_averages(self) -> str:
        """Pulls per second, found or not."""
        pairs = zip(self.get_found.averages().split(), self.get_missed.averages().split(), strict=True)
        return " ".join(f"{float(found) + float(missed):.6g}" for found, missed in pairs)

    def totals(self) -> tuple[Total, ...]:
        of_people = (self.put_by_people, self.get_by_people)
        return (self.put, self.put_bytes, self.get, self.get_bytes, self.get_found, self.get_missed, *of_people)

    def tick(self, now_ms: int, *, wall_ms: int) -> None:
        """Called every 10 s: takes the samples that are due, turns the day, drops idle counters.

        `now_ms` is monotonic: a clock that is set neither stops the samples nor drops what is in use.
        """
        for total in self.totals():
            total.sample(now_ms)
        day = wall_ms // 86_400_000
        if day != self._day:
            if self._day >= 0:
                for total in self.totals():
                    total.begin_day()
            self._day = day
        idle = []
        for key, counter in self._counters.items():
            counter.sample(now_ms)
            if counter.operations != counter.seen_operations:
                counter.seen_operations, counter.idle_since_ms = counter.operations, now_ms
            elif now_ms - counter.idle_since_ms > IDLE_MS:
                idle.append(key)
        for key in idle:
            del self._counters[key]
        if idle:
            self._forget_pairs()

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drop the counters of a deleted topic or group."""

        def is_gone(key: str) -> bool:
            parts = key.split("@")
            return (topic is not None and parts[0] == topic) or (group is not None and parts[-1] == group)

        for name, key in [entry for entry in self._counters if is_gone(entry[1])]:
            del self._counters[(name, key)]
        for place in [place for place in self.puts if place[0] == topic]:
            del self.puts[place]
        for pair in [pair for pair in self.gets if pair[0] == group or pair[1] == topic]:
            del self.gets[pair]
        for pair in [pair for pair in self.dead_letters if pair[0] == group or pair[1] == topic]:
            del self.dead_letters[pair]
        if topic is not None:
            for counts in (self.commits, self.rollbacks):
                counts.pop(topic, None)
            for spreads in (self.finish_times, self.delays):
                spreads.pop(topic, None)
        self._forget_pairs()

    def _forget_pairs(self) -> None:
        self._put_by_topic.clear()
        self._get_by_group.clear()
