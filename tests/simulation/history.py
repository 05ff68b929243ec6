"""What clients saw and what was done to the cluster, in the order of virtual time.

Bodies are unique, so a body names a message. A send has one of three fates: acknowledged at a place, refused (the
broker or the client said no, and the message may be stored all the same, as in any such system), or still under way.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

PLAIN: Final = "Plain"  # single messages and batches
ORDERED: Final = "Ordered"  # by key, filtered by tag
LATER: Final = "Later"  # levels and timers
DEALS: Final = "Deals"  # transactions
BUNDLED: Final = "Bundled"  # a topic of batches (queue.type=BatchCQ): each is one record of the log
PASSING: Final = "Passing"  # topics that are made and deleted; the rest of the name is a number
TOPICS: Final = (PLAIN, ORDERED, LATER, DEALS, BUNDLED)

WORKERS, KEEPERS, READERS = "workers", "keepers", "readers"  # concurrent push, orderly push, lite pull
POPPERS, LINERS = "poppers", "liners"  # POP: message by message, and FIFO
POP_TRIES_MAX: Final = 2  # retryMaxTimes of the poppers: the next failure makes a dead letter
ORDERED_TAG: Final = "even"  # what the keepers ask for
# group -> topic -> the tag that it asks for, or None for all of it
SUBSCRIBED: Final[dict[str, dict[str, str | None]]] = {
    WORKERS: {PLAIN: None, LATER: None, DEALS: None, BUNDLED: None},
    KEEPERS: {ORDERED: ORDERED_TAG},
    READERS: dict.fromkeys(TOPICS),
}
POPPED: Final[dict[str, dict[str, str | None]]] = {POPPERS: {PLAIN: None, DEALS: None}, LINERS: {ORDERED: None}}
# Which clients are members of a group: a shorter plan may be without some of them.
MEMBERS: Final = {WORKERS: {"c0", "c1"}, KEEPERS: {"c1"}, READERS: {"c2"}, POPPERS: {"c0", "c2"}, LINERS: {"c0", "c2"}}


class Kind(Enum):
    SINGLE = "single"
    BATCH = "batch"
    ORDERED = "ordered by key"
    LEVEL = "delayed by a level"
    TIMER = "with a timer"
    HALF = "transactional"

    @property
    def has_place(self) -> bool:
        """Whether an acknowledgement names the place where consumers will find it."""
        return self in (Kind.SINGLE, Kind.BATCH, Kind.ORDERED)


class Queue(NamedTuple):
    topic: str
    broker: str
    queue_id: int


class Place(NamedTuple):
    queue: Queue
    offset: int


class Sent(NamedTuple):
    topic: str
    kind: Kind
    properties: dict[str, str]  # that must arrive; tags and keys are among them
    at_s: float  # when the call began, so before it was stored
    delay_s: float = 0.0
    line: tuple[str, ...] = ()  # sender and key of an ordered message
    is_poison: bool = False  # the workers fail on it each time
    flag: int = 0


class Acknowledged(NamedTuple):
    place: Place
    physical_offset: int
    at_s: float


class Delivery(NamedTuple):
    """A listener is done with a message, or a poll has returned it."""

    at_s: float
    group: str
    member: str  # a life of a consumer
    body: bytes
    properties: dict[str, str]
    place: Place | None  # None: it came from the retry topic
    topic: str  # as the consumer was told
    flag: int
    attempt: int = 0  # how often it had failed before, as the consumer was told
    is_success: bool = True


@dataclass(slots=True)
class Popped:
    """One delivery."""

    group: str
    body: bytes
    broker: str
    place: Place | None  # None: from the retry topic
    asked_s: float
    at_s: float
    pop_time_ms: int  # the broker's
    attempt: int  # 0 for the first
    until_s: float  # it is invisible to others at least until then
    tried_s: float | None = None  # an acknowledgement was sent, which may have taken effect
    confirmed_s: float | None = None  # it was confirmed in time


@dataclass(slots=True)
class Pops:
    """Of one trial."""

    deliveries: list[Popped] = field(default_factory=list)
    dead: set[bytes] = field(default_factory=set)  # found among the dead letters of the poppers, in the end
    confirmed: int = 0  # acknowledgements
    tried: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))  # group -> bodies

    def acknowledging(self, one: Popped, at_s: float) -> None:
        """An acknowledgement of it is sent."""
        one.tried_s = at_s if one.tried_s is None else one.tried_s
        self.tried[one.group].add(one.body)

    @property
    def exhausted(self) -> dict[bytes, float]:
        """What failed on its last attempt, and when it is due as a dead letter."""
        last = [one for one in self.deliveries if one.group == POPPERS and one.attempt >= POP_TRIES_MAX]
        return {one.body: one.until_s for one in last if one.tried_s is None}


class Cut(NamedTuple):
    """A power cut of a broker under ASYNC_FLUSH: it may take the end of its log.

    `ends` says where each of its queues ended before, `asked` which offset each group asked for last. A message that is
    stored afterwards at an offset that a group has passed is not seen by that group: its consumers are further on.
    """

    at_s: float
    ends: Mapping[Queue, int] = MappingProxyType({})
    asked: Mapping[tuple[str, Queue], int] = MappingProxyType({})
    takes_acknowledged: bool = True  # False: a slave that has all that was acknowledged is the master now


class MovedBack(NamedTuple):
    """An operator has set a group, whose members its brokers know, back to the beginning of a topic."""

    group: str
    topic: str
    at_s: float  # when the operator began


@dataclass
class History:
    """Filled by `workload.py` and `trial.py`; read by `checker.py`."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    acknowledged: dict[bytes, Acknowledged] = field(default_factory=dict)
    ids: dict[bytes, str] = field(default_factory=dict)  # those that producers were told
    by_broker: Counter[str] = field(default_factory=Counter)  # acknowledgements
    recalls: Counter[str] = field(default_factory=Counter)  # by broker: those that were acknowledged
    refused: dict[bytes, str] = field(default_factory=dict)
    decided: dict[bytes, bool] = field(default_factory=dict)  # half message -> committed; as a database would have it
    deliveries: list[Delivery] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)  # topics that somebody may have deleted
    first_again: set[bytes] = field(default_factory=set)  # each is the first of such a topic that was made again
    is_switched: bool = False  # a slave took its master's place, perhaps before it heard of a deletion
    flipped: set[tuple[str, int]] = field(default_factory=set)  # (broker, physical offset) of records that were damaged
    survivors: set[bytes] = field(default_factory=set)  # they stand at their place, whatever power cuts took
    forgetful_cuts: dict[str, list[Cut]] = field(default_factory=lambda: defaultdict(list))  # ASYNC_FLUSH: by broker
    heard: dict[tuple[str, Queue], set[int]] = field(default_factory=lambda: defaultdict(set))  # (group, queue)
    succeeded: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))  # group -> bodies
    failed_s: dict[bytes, float] = field(default_factory=dict)  # when the workers first failed on it
    exhausted: set[bytes] = field(default_factory=set)  # the workers failed on the last try: it is to be a dead letter
    by_queue: dict[Queue, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))  # acknowledged ones
    places: dict[bytes, set[Place]] = field(default_factory=lambda: defaultdict(set))  # where it was given or found
    newest_offset: dict[str, int] = field(default_factory=dict)  # broker -> place in the log of the last acknowledged
    pops: Pops = field(default_factory=Pops)
    keeps_journals: bool = True  # nothing was done that takes a FIFO group back: its journals are not synced
    is_calm: bool = False  # nothing was done to the cluster
    stops_cleanly: bool = False  # brokers were stopped, if at all, and neither their disks nor their clocks touched
    is_timely: bool = True  # no clock was touched
    subscribed: Mapping[str, Mapping[str, str | None]] = field(default_factory=lambda: SUBSCRIBED)  # of this trial
    may_escape: bool = False  # what waits may be handed to another broker, by a slave that stands in for its master
    resets: int = 0
    moved_back: list[MovedBack] = field(default_factory=list)
    to_recall: set[bytes] = field(default_factory=set)  # a recall was asked for, which may have taken effect
    recalled: dict[bytes, float] = field(default_factory=dict)  # it was acknowledged, when

    def acknowledge(self, body: bytes, place: Place, physical_offset: int, at_s: float) -> None:
        self.acknowledged[body] = Acknowledged(place, physical_offset, at_s)
        self.by_broker[place.queue.broker] += 1
        self.newest_offset[place.queue.broker] = physical_offset
        if self.sent[body].kind.has_place:
            self.by_queue[place.queue][place.offset] = body

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        if delivery.place is not None:
            self.places[delivery.body].add(delivery.place)
        is_retried_in_place = delivery.group == KEEPERS and not delivery.is_success
        if delivery.place is not None and not is_retried_in_place:
            self.heard[delivery.group, delivery.place.queue].add(delivery.place.offset)
        if delivery.is_success:
            self.succeeded[delivery.group].add(delivery.body)
        elif delivery.group == WORKERS:
            self.failed_s.setdefault(delivery.body, delivery.at_s)

    def is_excused(self, body: bytes) -> bool:
        """Whether an acknowledged message may be missing: damaged, recalled, deleted with its topic, or taken
        by a power cut under ASYNC_FLUSH."""
        acknowledged, sent = self.acknowledged[body], self.sent[body]
        if (
            sent.topic in self.deleted
            or body in self.to_recall
            or (acknowledged.place.queue.broker, acknowledged.physical_offset) in self.flipped
        ):
            return True
        if body in self.survivors:
            return False
        holders = [acknowledged.place.queue.broker]
        if self.may_escape and not sent.kind.has_place:
            holders = list(self.forgetful_cuts)
        cuts = [cut for broker in holders for cut in self.forgetful_cuts.get(broker, ())]
        return any(cut.takes_acknowledged and cut.at_s >= acknowledged.at_s for cut in cuts)

    def is_passed_over(self, body: bytes, group: str) -> bool:
        """Whether a group may miss a message because it stands where the group has read what a power cut took."""
        acknowledged = self.acknowledged[body]
        places = {acknowledged.place} if self.sent[body].kind.has_place else self.places[body]
        return bool(places) and all(self._has_passed(group, place, acknowledged.at_s) for place in places)

    def _has_passed(self, group: str, place: Place, stored_s: float) -> bool:
        queue, offset = place
        for cut in self.forgetful_cuts.get(queue.broker, ()):
            end = cut.ends.get(queue, 0)
            if cut.at_s >= stored_s or offset >= end:
                continue
            if cut.asked.get((group, queue), 0) > offset:
                return True
            for one in self.deliveries:  # what was on its way to a consumer when the power went
                is_of_it = one.group == group and one.place is not None and one.place.queue == queue
                if is_of_it and offset <= one.place.offset < end and self.sent[one.body].at_s < cut.at_s:  # type: ignore[union-attr]
                    return True
        return False

    def digest(self) -> str:
        """A hash of everything that clients saw."""
        sends = list(self.sent.items()), list(self.acknowledged.items()), self.refused
        seen = *sends, self.decided, self.recalled, self.deliveries, self.pops.deliveries
        return hashlib.blake2b(repr(seen).encode(), digest_size=16).hexdigest()
