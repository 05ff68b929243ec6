"""Reading topics through brokers: which queues, from where to where, in what ranges.

Plain functions over plain values, as in log_plan.py: planning takes anything that answers like a `QueueReader`. Ranges
are half-open in queue offsets; topic_pulls.py reads one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.errors import BrokerNotFoundError, NoRouteError
from contrailmq.message import ContrailError, MessageQueue, SystemTopic, is_system_topic
from contrailmq.spark.access import Access
from contrailmq.spark.columns import OptionError, View
from contrailmq.spark.options import ANY_BROKER, EARLIEST, LATEST, OffsetsJson
from contrailmq.spark.runtime.patience import AWAY_TIMEOUT_MS
from contrailmq.wire.bodies import TopicConfig
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.fastjson import decode_body

Offsets = dict[MessageQueue, int]
PULL_COUNT: Final = 2048  # a broker answers with fewer when its own limits say so
BATCH_BYTES: Final = 4 * 1024 * 1024
_PULL_TIMEOUT_S: Final = 20.0


class DataLossError(ContrailError):
    """Messages that were to be read are no longer on the broker."""


class QueueSource(Protocol):
    """What planning asks a broker; `QueueReader` answers it."""

    def broker_names(self) -> list[str]: ...
    def queues(self, topic: str) -> list[MessageQueue]: ...
    def min_offset(self, queue: MessageQueue) -> int: ...
    def max_offset(self, queue: MessageQueue) -> int: ...
    def search_offset(self, queue: MessageQueue, time_ms: int) -> int: ...
    def consumer_offset(self, queue: MessageQueue, group: str | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what to read: a word, offsets per queue, or times per queue (`default_ms` for all others)."""

    word: str  # earliest, latest or group
    offsets: OffsetsJson = field(default_factory=dict)
    times_ms: OffsetsJson = field(default_factory=dict)
    default_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How to read topics."""

    namesrv: str
    access: Access = field(default_factory=Access)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[MessageQueue, ...] = ()
    starting: Bound = Bound("earliest")
    ending: Bound = Bound("latest")
    no_match_is_error: bool = True  # a starting time later than every message
    group: str | None = None
    with_system_topics: bool = False
    fail_on_data_loss: bool = True
    subscription: str = "*"
    expression_type: str = "TAG"
    tags: frozenset[str] | None = None  # these three as in options.py
    keys: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    view: View = field(default_factory=View)
    decompress: bool = True
    pull_count: int = PULL_COUNT
    batch_bytes: int = BATCH_BYTES
    pull_timeout_s: float = _PULL_TIMEOUT_S
    away_timeout_s: float = AWAY_TIMEOUT_MS / 1000


class QueueRange(NamedTuple):
    """Queue offsets `start` (included) to `stop` (not included) of one queue."""

    queue: MessageQueue
    start: int
    stop: int
    has_no_tags: bool = False  # its broker's queue does not tell the tags of its messages: all of them are pulled


def find_queues(
    source: QueueSource, settings: TopicSettings, names: Iterable[str], *, skip_missing: bool = False
) -> list[MessageQueue]:
    """The queues to read, sorted. `names` are all topics of the cluster, used for a pattern only.

    A named topic that does not exist is an error unless it is to be skipped; one that matched a pattern and was deleted
    since its name was listed is left out.
    """
    if settings.assigned:
        return _with_ids(_assigned(source, settings.assigned, skip_missing=skip_missing), settings)
    topics: Iterable[str] = settings.topics
    if settings.pattern is not None:
        skip_missing = True
        try:
            matcher = re.compile(settings.pattern)
        except re.error as exc:
            raise OptionError(f"option subscribePattern is {settings.pattern!r}, no regular expression: {exc}") from exc
        topics = [
            name
            for name in names
            if matcher.fullmatch(name) and (settings.with_system_topics or not is_system_topic(name))
        ]
    found: set[MessageQueue] = set()
    for topic in topics:
        try:
            found.update(source.queues(topic))
        except NoRouteError:
            if not skip_missing:
                raise
    return _with_ids(sorted(found), settings)


def _with_ids(queues: list[MessageQueue], settings: TopicSettings) -> list[MessageQueue]:
    """Those of the queues that the option queueId names. An id that none of them has is a mistake."""
    if settings.queue_ids is None:
        return queues
    ids = sorted({queue.queue_id for queue in queues})
    missing = sorted(settings.queue_ids.difference(ids))
    if missing and ids:
        raise OptionError(
            f"option queueId names {missing[0]}, which no topic to be read has: there are "
            + ", ".join(map(str, ids[:20]))
        )
    return [queue for queue in queues if queue.queue_id in settings.queue_ids]


def without_tags(source: QueueReader, ranges: list[QueueRange], settings: TopicSettings) -> list[QueueRange]:
    """The same ranges; those are marked whose broker cannot choose by tags, for a read that has tags.

    A queue of batches knows one tag for each batch, and a queue of messages that wait has delivery times instead.
    """
    if settings.tags is None:
        return ranges
    queues = {(part.queue.topic, part.queue.broker_name): part.queue for part in ranges}
    marked = {name for name, queue in queues.items() if _has_no_tags(source, queue)}
    return [part._replace(has_no_tags=(part.queue.topic, part.queue.broker_name) in marked) for part in ranges]


def _has_no_tags(source: QueueReader, queue: MessageQueue) -> bool:
    if queue.topic == SystemTopic.SCHEDULE:
        return True
    answer = source.answer(source.post(queue, RequestCode.GET_TOPIC_CONFIG, {"topic": queue.topic}))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return False  # a broker before 5.0 has no batch queues
    if answer.code != ResponseCode.SUCCESS:
        return True
    return decode_body(answer.body, TopicConfig).attributes.get("queue.type") == "BatchCQ"


def _assigned(source: QueueSource, queues: tuple[MessageQueue, ...], *, skip_missing: bool) -> list[MessageQueue]:
    """Queues that were named one by one, as far as they exist."""
    known: set[MessageQueue] = set()
    for topic in {queue.topic for queue in queues}:
        try:
            known.update(source.queues(topic))
        except NoRouteError:
            if not skip_missing:
                raise
    missing = sorted(set(queues) - known)
    if missing and not skip_missing:
        raise OptionError(
            f"option assign names {queue_name(missing[0])}, which is not there: there are "
            + ", ".join(queue_name(queue) for queue in sorted(known) if queue.topic == missing[0].topic)
        )
    return sorted(set(queues) & known)


def check_brokers(source: QueueSource, settings: TopicSettings) -> None:
    """Have brokers waited for that are named by options and not registered: their queues are not there yet."""
    trees = [settings.starting.offsets, settings.starting.times_ms, settings.ending.offsets, settings.ending.times_ms]
    named = {queue.broker_name for queue in settings.assigned}
    if settings.fail_on_data_loss:
        named |= {broker for tree in trees for brokers in tree.values() for broker in brokers if broker != ANY_BROKER}
    away = sorted(named.difference(source.broker_names())) if named else []
    if away:
        raise BrokerNotFoundError(away[0])


def check_named(queues: Iterable[MessageQueue], bound: Bound, side: str) -> None:
    """Refuse offsets and times for queues that are not read: a mistyped name would mean the default for its queue."""
    known = {(queue.topic, broker, queue.queue_id) for queue in queues for broker in (queue.broker_name, ANY_BROKER)}
    for option, tree in ((f"{side}Offsets", bound.offsets), (f"{side}OffsetsByTimestamp", bound.times_ms)):
        for topic, brokers in tree.items():
            for broker, queue_ids in brokers.items():
                missing = sorted(number for number in queue_ids if (topic, broker, number) not in known)
                if missing:
                    named = queue_name(MessageQueue(topic, broker or "any broker", missing[0]))
                    raise OptionError(
                        f"option {option} names {named}, which is not among the queues to read: correct it, or set "
                        "failOnDataLoss=false if the queue is gone"
                    )


def starting_offsets(source: QueueSource, queues: list[MessageQueue], settings: TopicSettings) -> Offsets:
    """Where a new read begins, per queue."""
    if settings.fail_on_data_loss:
        check_named(queues, settings.starting, "starting")
    found: Offsets = {}
    for queue in queues:
        offset = _bound_offset(source, queue, settings.starting, settings)
        time_ms = _given(settings.starting.times_ms, queue, settings.starting.default_ms)
        if settings.no_match_is_error and time_ms is not None and offset >= source.max_offset(queue):
            raise OptionError(
                f"{queue_name(queue)} has no message stored at or after {time_ms}: choose an earlier time, or set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        found[queue] = offset
    return found


def check_starts(source: QueueSource, begins: Offsets, settings: TopicSettings) -> None:
    """Refuse offsets past the end of their queue: a batch would find nothing there and say nothing."""
    if not settings.fail_on_data_loss or not (settings.starting.offsets or settings.starting.word == "group"):
        return
    for queue, offset in begins.items():
        end = source.max_offset(queue)
        if offset > end:
            raise DataLossError(
                f"{queue_name(queue)} is to be read from {offset}, but ends at {end}: the topic was created again or "
                "the offset is wrong; set failOnDataLoss=false to read nothing of it"
            )


def ending_offsets(source: QueueSource, queues: list[MessageQueue], settings: TopicSettings) -> Offsets:
    """Where a batch read ends, per queue."""
    if settings.fail_on_data_loss:
        check_named(queues, settings.ending, "ending")
    return {queue: _bound_offset(source, queue, settings.ending, settings) for queue in queues}


def _bound_offset(source: QueueSource, queue: MessageQueue, bound: Bound, settings: TopicSettings) -> int:
    time_ms = _given(bound.times_ms, queue, bound.default_ms)
    if time_ms is not None:
        return source.search_offset(queue, time_ms)
    offset = _given(bound.offsets, queue, None)
    if offset is None and bound.word == "group":
        stored = source.consumer_offset(queue, settings.group)
        offset = stored if stored >= 0 else EARLIEST  # a group that never read the queue begins at its beginning
    if offset is None:
        offset = EARLIEST if bound.word == "earliest" else LATEST
    if offset == EARLIEST:
        return source.min_offset(queue)
    return source.max_offset(queue) if offset == LATEST else offset


def _given(tree: OffsetsJson, queue: MessageQueue, default: int | None) -> int | None:
    brokers = tree.get(queue.topic, {})
    queues = brokers.get(queue.broker_name, brokers.get(ANY_BROKER, {}))
    return queues.get(queue.queue_id, default)


def share_limit(begins: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], limit: int) -> Offsets:
    """Ends such that at most about `limit` messages lie before them: in proportion to backlog, at least one each."""
    backlog = {queue: end - begins.get(queue, 0) for queue, end in ends.items()}
    total = sum(backlog.values())
    if total <= limit:
        return dict(ends)
    return {
        queue: begins.get(queue, 0) + (max(1, size * limit // total) if size > 0 else max(0, size))
        for queue, size in backlog.items()
    }


def plan_queue_ranges(
    begins: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], *, partitions_min: int, records_max: int
) -> list[QueueRange]:
    """Ranges of queues that have something, cut so that there are at least so many and none is longer than allowed."""
    sizes = {queue: ends[queue] - begins[queue] for queue in ends if ends[queue] > begins[queue]}
    total = sum(sizes.values())
    ranges: list[QueueRange] = []
    for queue, size in sorted(sizes.items()):
        pieces = -(-partitions_min * size // total) if partitions_min > len(sizes) else 1
        if records_max:
            pieces = max(pieces, -(-size // records_max))
        pieces = min(pieces, size)
        cuts = [begins[queue] + size * index // pieces for index in range(pieces + 1)]
        ranges.extend(QueueRange(queue, low, high) for low, high in itertools.pairwise(cuts))
    return ranges


def publish_offsets(client: QueueReader, offsets: Mapping[MessageQueue, int]) -> None:
    """Set the offsets of the client's group. A broker knows a group after its first pull, so an unknown one pulls."""
    for queue, offset in offsets.items():
        try:
            client.update_consumer_offset(queue, offset)
        except ResponseError as exc:
            if exc.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            client.pull(queue, offset, max_count=1)
            client.update_consumer_offset(queue, offset)


def queue_name(queue: MessageQueue) -> str:
    """A queue as messages to people name it."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
