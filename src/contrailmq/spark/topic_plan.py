"""Reading topics through brokers: which queues, from where to where, in what ranges, and the pulls of one range.

Plain functions over plain values, as in log_plan.py: planning takes anything that answers like a `QueueReader`, and one
range is read by `read_range` wherever it runs. Ranges are half-open in queue offsets; nothing is ever read past the end
of a range, whatever else a pull brings.

**Loss.** A broker deletes old messages. A range whose beginning is gone, or a queue that jumps inside a range although
nothing was filtered, raises `DataLossError` unless the caller accepts it (`failOnDataLoss=false`); then reading goes on
at what is left.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from contrailmq.client.errors import NoRouteError
from contrailmq.client.raw import PostedPull, QueueReader, RawPull
from contrailmq.client.raw_connection import Landing, RawConnection
from contrailmq.client.results import PullStatus
from contrailmq.message import ContrailError, MessageQueue, is_system_topic
from contrailmq.spark.access import Access
from contrailmq.spark.columns import OptionError, View
from contrailmq.spark.decode import Decoder, Selection, unwrapped
from contrailmq.spark.options import ANY_BROKER, EARLIEST, LATEST, OffsetsJson
from contrailmq.spark.records import Records, gather
from contrailmq.spark.scan import follow
from contrailmq.wire.bodies import TopicList
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
    view: View = field(default_factory=View)
    decompress: bool = True
    pull_count: int = PULL_COUNT
    batch_bytes: int = BATCH_BYTES
    pull_timeout_s: float = _PULL_TIMEOUT_S


class QueueRange(NamedTuple):
    """Queue offsets `start` (included) to `stop` (not included) of one queue."""

    queue: MessageQueue
    start: int
    stop: int


def find_queues(
    source: QueueSource, settings: TopicSettings, names: Iterable[str], *, skip_missing: bool = False
) -> list[MessageQueue]:
    """The queues to read, sorted. `names` are all topics of the cluster, used for a pattern only.

    A named topic that does not exist is an error unless it is to be skipped; one that matched a pattern and was deleted
    since its name was listed is left out.
    """
    if settings.assigned:
        return _assigned(source, settings.assigned, skip_missing=skip_missing)
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
    return sorted(found)


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
    """Refuse offsets behind the end of their queue: a batch would find nothing there and say nothing."""
    if not settings.fail_on_data_loss or not (settings.starting.offsets or settings.starting.word == "group"):
        return
    for queue, offset in begins.items():
        end = source.max_offset(queue)
        if offset > end:
            raise DataLossError(
                f"{queue_name(queue)} is to be read from {offset}, but ends at {end}: the topic was made anew or the "
                "offset is wrong; set failOnDataLoss=false to read nothing of it"
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


def read_range(part: QueueRange, settings: TopicSettings, reader: QueueReader) -> Iterator[pa.RecordBatch]:
    """Batches with the messages of a range, in queue order. While one is decoded, the next pull is on its way."""
    decoder = Decoder(settings.view, _selection(settings), decompress_bodies=settings.decompress)
    landing = Landing()
    for kept_bytes in _pull_range(part, settings, reader, landing):
        if kept_bytes >= settings.batch_bytes:
            batch = _decoded(decoder, landing.kept, part)
            landing.clear()
            if batch.num_rows:
                yield batch
    if landing.kept:
        batch = _decoded(decoder, landing.kept, part)
        if batch.num_rows:
            yield batch


def _selection(settings: TopicSettings) -> Selection:
    tags = None
    if settings.expression_type == "TAG" and settings.subscription.strip() not in ("*", ""):
        # A broker compares hashes of tags; two tags may share one, so the text is compared again here.
        tags = frozenset(tag.strip() for tag in settings.subscription.split("||"))
    return Selection(with_system_topics=True, tags=tags)


def _decoded(decoder: Decoder, data: bytes | memoryview, part: QueueRange) -> pa.RecordBatch:
    records = unwrapped(split_records(data))
    within = (records.queue_offset >= part.start) & (records.queue_offset < part.stop)
    return decoder.decode(records if within.all() else records.select(within), part.queue.broker_name)


def split_records(data: bytes | memoryview) -> Records:
    """The records that stand one after the other in the answers to pulls."""
    octets = np.frombuffer(data, dtype=np.uint8)
    positions, end = follow(octets)
    if end == len(data):
        records = gather(octets, positions)
        if records.sound.all():
            return records
        end = int(positions[np.argmin(records.sound)])
    raise DataLossError(f"pulled records of {len(data)} bytes are damaged at byte {end}: read again")


def _pull_range(part: QueueRange, settings: TopicSettings, reader: QueueReader, landing: Landing) -> Iterator[int]:
    """Keep the records of a range in the landing; after each pull that brought some, how many bytes it holds."""
    pulls = _Pulls(part, settings, reader, landing)
    is_filtered = settings.subscription.strip() not in ("*", "") or settings.expression_type != "TAG"
    offset = part.start
    pulls.post(offset)
    try:
        while (pulled := pulls.answer(offset)) is not None:
            if pulled.status is PullStatus.FOUND:
                if not is_filtered:
                    _check_first(pulled, part, offset, settings)
                if pulled.next_offset <= offset:
                    raise DataLossError(
                        f"{queue_name(part.queue)}: the broker answers {offset} with {pulled.next_offset}"
                    )
                landing.keep()
                offset = pulled.next_offset
            elif pulled.status is PullStatus.NO_MATCHED_MESSAGE and pulled.next_offset > offset:
                offset = pulled.next_offset
            else:
                offset = _after_nothing(pulled, part, offset, settings)
            pulls.post(offset)
            if pulled.status is PullStatus.FOUND:
                yield len(landing.kept)
    finally:
        pulls.abandon()


class _Pulls:
    """Pulls of one range, of which at most one is on its way."""

    def __init__(self, part: QueueRange, settings: TopicSettings, reader: QueueReader, landing: Landing) -> None:
        self._part, self._settings, self._reader, self._landing = part, settings, reader, landing
        self._posted: PostedPull | None = None

    def post(self, offset: int) -> None:
        """Ask for what begins there, unless the range ends there."""
        if offset >= self._part.stop:
            return
        with self._losing(offset):
            self._posted = self._reader.post_pull(
                self._part.queue,
                offset,
                max_count=min(self._settings.pull_count, self._part.stop - offset),
                max_bytes=self._settings.batch_bytes,
                subscription=self._settings.subscription or "*",
                expression_type=self._settings.expression_type,
                landing=self._landing,
            )

    def answer(self, offset: int) -> RawPull | None:
        """What was asked for; None when that was nothing, or the topic was deleted meanwhile and that is allowed."""
        posted, self._posted = self._posted, None
        if posted is not None:
            with self._losing(offset):
                return self._reader.pull_answer(posted)
        return None

    def abandon(self) -> None:
        if self._posted is not None:
            self._reader.abandon(self._posted)

    @contextlib.contextmanager
    def _losing(self, offset: int) -> Iterator[None]:
        try:
            yield
        except (NoRouteError, ResponseError) as exc:
            if isinstance(exc, ResponseError) and exc.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            if self._settings.fail_on_data_loss:
                raise DataLossError(
                    f"{queue_name(self._part.queue)} went away before offsets {offset} to {self._part.stop} were read "
                    f"({exc}); set failOnDataLoss=false to go on without them"
                ) from exc


def _check_first(pulled: RawPull, part: QueueRange, offset: int, settings: TopicSettings) -> None:
    first = int.from_bytes(pulled.body[20:28], "big", signed=True)  # the first record's queue offset
    if first > offset and settings.fail_on_data_loss:
        raise _loss(part.queue, offset, min(first, part.stop), pulled)


def _after_nothing(pulled: RawPull, part: QueueRange, offset: int, settings: TopicSettings) -> int:
    """Where to go on when a pull inside the range brought nothing: the messages there are gone."""
    following = part.stop if pulled.next_offset <= offset else min(pulled.next_offset, part.stop)
    if settings.fail_on_data_loss:
        raise _loss(part.queue, offset, following, pulled)
    return following


def _loss(queue: MessageQueue, start: int, stop: int, pulled: RawPull) -> DataLossError:
    return DataLossError(
        f"{queue_name(queue)}: offsets {start} to {stop} are not on the broker any more (it has {pulled.min_offset} to "
        f"{pulled.max_offset}): they expired or the topic was made anew; set failOnDataLoss=false to go on without them"
    )


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


def topic_names(namesrv: str, access: Access) -> list[str]:
    """Every topic that the first answering NameServer knows."""
    addresses = [part.strip() for part in re.split("[;,]", namesrv) if part.strip()]
    last: ContrailError | None = None
    for address in addresses:
        try:
            connection = RawConnection(address, tls=access.tls(), credentials=access.credentials())
            try:
                answer = connection.invoke(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, timeout_s=10.0)
            finally:
                connection.close()
            return sorted(decode_body(answer.body, TopicList).topic_list)
        except ContrailError as exc:
            last = exc
    raise OptionError(f"none of the NameServers {namesrv!r} listed its topics: {last}") from last
