"""What a trial of kills finds, and which rules that breaks.

A delivery carries the time at which the broker stored it, so its age at a kill is the broker's, not a client's. A
commit carries the moment when its answer was read, which is later than the moment when the broker had it: an age that
is measured from there is never too large, so what breaks a bound by it breaks it indeed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from broker.kill_load import (
    AT_A_PLACE,
    KINDS,
    LATER,
    ORDERED,
    TASKS,
    WORKERS,
    Diary,
    Place,
    body_of,
    by_request,
    delay_ms_of,
    kind_of,
    number_of,
    properties_of,
    value_of,
)
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.records import decode_messages
from contrailmq.message import MessageQueue, Property, StoredMessage, SystemTopic, dlq_topic, retry_topic
from contrailmq.store import MessageStore, StoreConfig

REPEATED_MS: Final = 200  # docs/crashes.md: how old may be what a kill repeats, and a commit that it takes
# How old may be what the pool takes. It commits every 200 ms, by a thread that is late where more processes run than
# there are processors; a pool that does not commit loses all of a life, which is longer.
POOL_MS: Final = 1000
STAMP_MS: Final = 100  # a store time may differ from the wall clock by a step that is not followed (store_clock.py)
NEVER_MS: Final = 2**62


class Kill(NamedTuple):
    decided_ms: int  # epoch, before the signal was sent
    done_ms: int  # epoch, when the process was gone
    decided_s: float  # monotonic


class Stored(NamedTuple):
    """One copy of a value."""

    topic: str
    place: Place
    store_time_ms: int
    is_whole: bool  # body and properties are those that were sent


@dataclass
class LostCommit:
    group: str
    queue_id: int
    age_ms: float
    note_age_ms: float  # of the journal's last entry at the kill


@dataclass
class Verdict:
    """Of one mode. `broken` holds sentences; none: all rules were kept."""

    mode: str
    kills: list[Kill] = field(default_factory=list)
    kills_while_starting: int = 0
    full_lives: int = 0  # in which something of each kind was acknowledged
    acknowledged: Counter[str] = field(default_factory=Counter)
    looked_at: int = 0  # places that were read after the restarts, and in the end
    unreachable: list[str] = field(default_factory=list)
    taken_by_pool: list[float] = field(default_factory=list)  # ages in ms: what the write buffer pool may lose
    repeats_ms: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # kind -> ages at their kills
    deliveries: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    lost_commits: list[LostCommit] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def break_rule(self, rule: str, examples: Iterable[object]) -> None:
        found = list(examples)
        if found:
            self.broken.append(f"{rule}: {len(found)}, such as {found[:3]}")


# --- what is there


def read_queue(reader: QueueReader, queue: MessageQueue, begin: int, end: int) -> Iterator[StoredMessage]:
    offset = begin
    while offset < end:
        pulled = reader.pull(queue, offset)
        assert pulled.next_offset > offset, f"{queue} stands still at {offset} of {end}: {pulled.status}"
        for message in decode_messages(bytes(pulled.body)):
            if message.queue_offset < end:
                yield message
        offset = pulled.next_offset


def copy_of(message: StoredMessage) -> tuple[str, Stored]:
    value = value_of(message.body)
    is_whole = message.body == body_of(value) and properties_of(value).items() <= message.properties.items()
    place = Place(message.queue_id, message.queue_offset)
    return value, Stored(message.topic, place, message.store_time_ms, is_whole)


class Sweep:
    """Every copy of every value in some topics, by pulls. Each call goes on where the last one ended."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._ends: dict[MessageQueue, int] = {}
        self.copies: dict[str, list[Stored]] = defaultdict(list)

    def read(self, topics: Iterable[str]) -> None:
        with QueueReader(namesrv=self._namesrv) as reader:
            for queue in (queue for topic in topics for queue in reader.queues(topic)):
                begin, end = self._ends.get(queue, 0), reader.max_offset(queue)
                for message in read_queue(reader, queue, begin, end):
                    value, stored = copy_of(message)
                    self.copies[value].append(stored)
                self._ends[queue] = end


class Judge:
    """Compares a diary with what a broker has."""

    def __init__(self, diary: Diary, verdict: Verdict, *, pool_may_lose: Iterable[str]) -> None:
        self.diary = diary
        self.verdict = verdict
        self._pool_may_lose = frozenset(pool_may_lose)
        self._judged: dict[str, int] = dict.fromkeys(AT_A_PLACE, 0)
        self._before_kill: dict[str, int] = dict.fromkeys(AT_A_PLACE, 0)

    # --- after a restart

    def note_kill(self) -> None:
        """What is acknowledged now is for the next look. What comes later may be WAIT=false, and not durable yet: then
        nobody can read it before it is."""
        self._before_kill = {kind: len(self.diary.acknowledged[kind]) for kind in AT_A_PLACE}

    def look_after_restart(self, address: str) -> None:
        """Whether everything lies in its place that was acknowledged since the last look and before the kill."""
        by_queue: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for kind in AT_A_PLACE:
            told = self.diary.told(kind)[: self._before_kill[kind]]
            for value, acknowledged in told[self._judged[kind] :]:
                assert acknowledged.place is not None
                queue_id, offset = acknowledged.place
                by_queue[acknowledged.topic, queue_id][offset] = value
            self._judged[kind] = len(told)
        with QueueReader(address) as reader:
            for (topic, queue_id), values in by_queue.items():
                queue = MessageQueue(topic, "broker-0", queue_id)
                end = min(max(values) + 1, reader.max_offset(queue))
                found = {
                    message.queue_offset: copy_of(message) for message in read_queue(reader, queue, min(values), end)
                }
                self._compare(topic, values, found)

    def _compare(self, topic: str, values: dict[int, str], found: dict[int, tuple[str, Stored]]) -> None:
        for offset, value in values.items():
            self.verdict.looked_at += 1
            there, stored = found.get(offset, ("", None))
            if there != value or stored is None:
                self._miss(value, f"{value} is not at {offset} of {topic} but {there or 'nothing'}")
            elif not stored.is_whole:
                self.verdict.unreachable.append(f"{value} was changed")

    def _miss(self, value: str, text: str) -> None:
        """Something acknowledged is not there. Of what the pool may lose, the age counts."""
        age_ms = self._age_ms(value)
        if self._may_be_lost(value):
            self.verdict.taken_by_pool.append(age_ms)
        else:
            self.verdict.unreachable.append(text if age_ms is None else f"{text}; {age_ms:.0f} ms old at its kill")

    def _may_be_lost(self, value: str) -> bool:
        """Whether the pool may have held it when the broker was killed."""
        age_ms = self._age_ms(value)
        return kind_of(value) in self._pool_may_lose and age_ms is not None and age_ms <= POOL_MS

    def _age_ms(self, value: str) -> float | None:
        """At the first kill after it was sent, from when its answer was read; 0 when that was later than the kill. Of
        what its consumer handed back, the copy is what counts: it came to be then."""
        refused_s = self.diary.refused.get(value)
        if refused_s is None:
            later = [kill for kill in self.verdict.kills if kill.decided_ms >= self.diary.tried[value]]
            since_s = self.diary.acknowledged[kind_of(value)][value].answered_s
        else:
            later, since_s = [kill for kill in self.verdict.kills if kill.decided_s >= refused_s], refused_s
        return max((later[0].decided_s - since_s) * 1000, 0.0) if later else None

    def look_at_commits(self, address: str, kill: Kill, note_time_ms: float) -> None:
        """What groups committed and the broker does not know; before they commit anything more."""
        with QueueReader(address) as reader:
            for (group, queue_id), told in list(self.diary.commits.items()):
                found = reader.consumer_offset(MessageQueue("Walk", "broker-0", queue_id), group)
                if found > self.diary.commits_tried[group, queue_id]:
                    self.verdict.broken.append(f"{group} stands at {found}, which nobody committed")
                lost = [commit for commit in told if commit.offset > found]
                if lost:
                    age_ms = (kill.decided_s - lost[0].answered_s) * 1000
                    note_age_ms = kill.decided_ms - note_time_ms
                    self.verdict.lost_commits.append(LostCommit(group, queue_id, age_ms, note_age_ms))
                    del told[len(told) - len(lost) :]  # the group goes on from what it is told

    # --- in the end

    def awaited(self, copies: dict[str, list[Stored]]) -> set[str]:
        """What has not arrived yet and may still do so."""
        later = {value for kind in (*LATER, "unwaited") for value in self.diary.acknowledged[kind]} - copies.keys()
        tasks = self.diary.acknowledged["retry"].keys() - self.diary.consumed
        ordered = self.diary.acknowledged["ordered"].keys() - self.diary.consumed
        dead = {value for value in self.diary.acknowledged["doomed"] if not _is_in(copies, value, dlq_topic(WORKERS))}
        missing = later | tasks | ordered | dead
        return {value for value in missing if not self._may_be_lost(value)}

    def topics_of(self, values: Iterable[str]) -> set[str]:
        return {self.diary.acknowledged[kind_of(value)][value].topic for value in values}

    def conclude(self, copies: dict[str, list[Stored]], store_path: Path) -> None:
        """Judge everything, with what all topics hold in the end and, for retries, what the log holds."""
        verdict, diary = self.verdict, self.diary
        for kind in KINDS:
            verdict.acknowledged[kind] = len(diary.acknowledged[kind])
        verdict.commits = sum(map(len, diary.commits.values()))
        originals = {
            value: [stored for stored in found if not stored.topic.startswith("%")] for value, found in copies.items()
        }
        self._conclude_places(originals)
        self._conclude_later(originals)
        self._conclude_tasks(copies)
        self._conclude_retries(store_path)
        verdict.break_rule("unreachable", verdict.unreachable)
        verdict.break_rule("nobody sent it", originals.keys() - diary.tried.keys())
        verdict.break_rule("rolled back and visible", (value for value in originals if kind_of(value) == "rollback"))
        verdict.break_rule("out of order", diary.out_of_order)
        lost = [commit for commit in verdict.lost_commits if commit.age_ms > REPEATED_MS]
        silent = [kind for kind in KINDS if len(diary.acknowledged[kind]) < verdict.full_lives]
        verdict.break_rule("too little to judge: fewer messages acknowledged than lives, of kinds", silent)
        ways = Counter(group for (group, _), told in diary.commits.items() for _ in told)
        verdict.break_rule("too little to judge: no commits", [dict(ways)] if len(ways) < 2 else [])
        answered = [commit for commit in verdict.lost_commits if commit.group == by_request.__name__]
        verdict.break_rule("a commit that was answered as such was lost", answered)
        verdict.break_rule(f"a commit older than {REPEATED_MS} ms was lost", lost)

    def _conclude_places(self, originals: dict[str, list[Stored]]) -> None:
        for kind in AT_A_PLACE:
            for value, acknowledged in self.diary.acknowledged[kind].items():
                found = originals.get(value, [])
                self.verdict.looked_at += 1
                self.verdict.deliveries[kind] += len(found)
                if not found:
                    if not self._may_be_lost(value):  # else it was counted after the restart
                        self._miss(value, f"{value} is gone in the end")
                elif [(stored.topic, stored.place) for stored in found] != [(acknowledged.topic, acknowledged.place)]:
                    self.verdict.broken.append(f"{value} is to be at {acknowledged}, and lies at {found}")
        numbers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for value, found in originals.items():
            for stored in found:
                if stored.topic == ORDERED:
                    numbers[stored.place.queue_id].append((stored.place.queue_offset, number_of(value)))
        for places in numbers.values():
            in_order = [number for _, number in sorted(places)]
            self.verdict.break_rule("stored out of order", [in_order] if in_order != sorted(in_order) else [])

    def _conclude_later(self, originals: dict[str, list[Stored]]) -> None:
        verdict = self.verdict
        for kind in LATER:
            for value in self.diary.acknowledged[kind]:
                verdict.looked_at += 1
                if value not in originals:
                    self._miss(value, f"{value} never came")
        changed = [value for value, found in originals.items() if not all(stored.is_whole for stored in found)]
        verdict.break_rule("changed", changed)
        early = [
            (value, stored.store_time_ms - self.diary.tried[value], delay_ms_of(value))
            for value, found in originals.items()
            for stored in found
            if delay_ms_of(value) and stored.store_time_ms < self.diary.tried[value] + delay_ms_of(value) - STAMP_MS
        ]
        verdict.break_rule("early (value, came after ms, asked ms)", early)
        for kind in LATER:
            of_kind = {value: found for value, found in originals.items() if kind_of(value) == kind}
            verdict.deliveries[kind] = sum(map(len, of_kind.values()))
            for found in of_kind.values():
                self._note_repeats(kind, [stored.store_time_ms for stored in found], 1)
        verdict.break_rule("a transaction came twice", verdict.repeats_ms["commit"] + verdict.repeats_ms["unknown"])

    def _note_repeats(self, kind: str, times_ms: list[int], wanted: int) -> None:
        """Of more deliveries than wanted, the youngest at their kills are the repeated ones."""
        ages_ms = sorted(map(self._left_ms, times_ms))[: max(len(times_ms) - wanted, 0)]
        self.verdict.repeats_ms[kind] += ages_ms
        old = [age_ms for age_ms in ages_ms if age_ms > REPEATED_MS]
        self.verdict.break_rule(f"{kind} repeated more than {REPEATED_MS} ms after its delivery", old)

    def _left_ms(self, time_ms: int) -> int:
        """From a delivery to the next kill; 0 when that was under way."""
        decided_ms = min((kill.decided_ms for kill in self.verdict.kills if kill.done_ms >= time_ms), default=NEVER_MS)
        return max(decided_ms - time_ms, 0)

    def _conclude_tasks(self, copies: dict[str, list[Stored]]) -> None:
        dead = dlq_topic(WORKERS)
        for value in self.diary.acknowledged["retry"]:
            self.verdict.looked_at += 1
            if value not in self.diary.consumed:
                self._miss(value, f"{value} did not come back")
        for value in self.diary.acknowledged["doomed"]:
            self.verdict.looked_at += 1
            if not _is_in(copies, value, dead):
                self._miss(value, f"{value} is no dead letter")
        self.verdict.deliveries["dead letters"] = sum(
            stored.topic == dead for found in copies.values() for stored in found
        )
        twice = [
            value
            for value, found in copies.items()
            if kind_of(value) in ("retry", "doomed") and sum(stored.topic == TASKS for stored in found) > 1
        ]
        self.verdict.break_rule("a task lies twice in its topic", twice)

    def _conclude_retries(self, store_path: Path) -> None:
        """A retry waits on a level, once for each send-back that the broker took, and is delivered as often."""
        waited: Counter[object] = Counter()
        delivered: dict[object, list[int]] = defaultdict(list)
        with MessageStore(StoreConfig(store_path)) as store:
            for (topic, queue_id), (begin, end) in store.queues().items():
                if topic not in (SystemTopic.SCHEDULE, retry_topic(WORKERS)):
                    continue
                offset = begin
                while offset < end:
                    found = store.get(topic, queue_id, offset, 1000)
                    offset = found.next_offset
                    for message in found:
                        who = value_of(message.body), message.reconsume_times
                        if topic != SystemTopic.SCHEDULE:
                            delivered[who].append(message.store_time_ms)
                        elif message.properties[Property.REAL_TOPIC] == retry_topic(WORKERS):
                            waited[who] += 1
        self.verdict.deliveries["retry"] = sum(map(len, delivered.values()))
        for who, times_ms in delivered.items():
            self._note_repeats("retry", times_ms, waited[who])
        self.verdict.break_rule("a retry was not delivered", waited.keys() - delivered.keys())


def _is_in(copies: dict[str, list[Stored]], value: str, topic: str) -> bool:
    return any(stored.topic == topic for stored in copies.get(value, ()))


# --- the table

COLUMNS: Final = (
    *("mode", "kills", "at start", "acknowledged", "looked at", "unreachable", "by pool", "levels", "timers"),
    *("transactions", "retries", "commits lost", "broken"),
)


def table(verdicts: Iterable[Verdict]) -> str:
    """Repeats are told as number/deliveries, with the age of the oldest; commits as lost/answered, with theirs."""
    rows = [COLUMNS, *map(_row, verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(verdict: Verdict) -> tuple[str, ...]:
    pool = f"{len(verdict.taken_by_pool)} <{max(verdict.taken_by_pool):.0f} ms" if verdict.taken_by_pool else "0"
    ages_ms = [commit.age_ms for commit in verdict.lost_commits]
    commits = f"{len(ages_ms)}/{verdict.commits}" + (f" <{max(ages_ms):.0f} ms" if ages_ms else "")
    return (
        verdict.mode,
        str(len(verdict.kills)),
        str(verdict.kills_while_starting),
        str(verdict.acknowledged.total()),
        str(verdict.looked_at),
        str(len(verdict.unreachable)),
        pool,
        *(_repeats(verdict, *kinds) for kinds in (("level",), ("timer",), ("commit", "unknown"), ("retry",))),
        commits,
        str(len(verdict.broken)),
    )


def _repeats(verdict: Verdict, *kinds: str) -> str:
    ages_ms = [age_ms for kind in kinds for age_ms in verdict.repeats_ms[kind]]
    deliveries = sum(verdict.deliveries[kind] for kind in kinds)
    return f"{len(ages_ms)}/{deliveries}" + (f" <={max(ages_ms)} ms" if ages_ms else "")
