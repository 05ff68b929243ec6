"""The pulls of one range of a queue, and the batches that are made of what they bring.

`read_range` is the same wherever it runs. Nothing is ever read past the end of a range, whatever else a pull brings.

**Loss.** A broker deletes old messages. A range whose beginning is gone, or a queue that jumps inside a range although
nothing was filtered, raises `DataLossError` unless the caller accepts it (`failOnDataLoss=false`); then reading goes on
at what is left. A broker that is away has lost nothing: reads wait for it (patience.py), and then raise an error
for every caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from contrailmq.client.blocking.raw import PostedPull, QueueReader, RawPull
from contrailmq.client.blocking.raw_connection import Landing
from contrailmq.client.errors import NoRouteError
from contrailmq.client.results import PullStatus
from contrailmq.message import MessageQueue
from contrailmq.spark.decoding.decode import Decoder, Selection, unwrapped
from contrailmq.spark.decoding.records import Int, Records, gather
from contrailmq.spark.decoding.scan import follow
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.sources.topic_plan import DataLossError, QueueRange, TopicSettings, queue_name
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ResponseError


def read_range(part: QueueRange, settings: TopicSettings, reader: QueueReader) -> Iterator[pa.RecordBatch]:
    """Batches with the messages of a range, in queue order. While one is decoded, the next pull is on its way."""
    landed, pulled = _Landed(part, settings), None
    for pulled in _pull_range(part, settings, reader, landed.landing):
        if len(landed.landing.kept) >= settings.batch_bytes:
            yield from landed.decoded(pulled)
    if pulled is not None:
        yield from landed.decoded(pulled)


class _Landed:
    """What pulls of a range brought, until it is decoded."""

    def __init__(self, part: QueueRange, settings: TopicSettings) -> None:
        self.landing = Landing()
        self._part = part
        self._begin = part.start  # of what was not decoded yet
        self._refuses_gaps = settings.fail_on_data_loss and not _is_filtered(part, settings)
        self._decoder = Decoder(settings.view, _selection(settings), decompress_bodies=settings.decompress)

    def decoded(self, last: RawPull) -> Iterator[pa.RecordBatch]:
        """The batch, if there is one, of all pulls up to the last one: each offset of the range once, and in order."""
        data, part = self.landing.kept, self._part
        if not data:
            return
        records = unwrapped(split_records(data, queue_name(part.queue)))
        offsets = records.queue_offset
        before = np.maximum.accumulate(np.concatenate([[self._begin - 1], offsets[:-1]]))
        is_new = (offsets > before) & (offsets < part.stop)
        if not is_new.all():
            records = records.select(is_new)
            offsets = records.queue_offset
        end = min(last.next_offset, part.stop)
        if self._refuses_gaps:
            self._check_gaps(offsets, end, last)
        self._begin = max([end, *(offsets[-1:] + 1).tolist()])
        batch = self._decoder.decode(records, part.queue.broker_name)
        self.landing.clear()
        if batch.num_rows:
            yield batch

    def _check_gaps(self, offsets: Int, end: int, last: RawPull) -> None:
        expected = np.arange(self._begin, end)
        if not np.array_equal(offsets[: len(expected)], expected):
            first = int(np.setdiff1d(expected, offsets)[0])
            behind = offsets[offsets > first]
            raise _loss(self._part.queue, first, int(behind[0]) if len(behind) else end, last)


def _selection(settings: TopicSettings) -> Selection:
    tags = settings.tags
    if tags is None and settings.expression_type == "TAG" and settings.subscription.strip() not in ("*", ""):
        # A broker compares hashes of tags; two tags may share one, so the text is compared again here.
        tags = frozenset(tag.strip() for tag in settings.subscription.split("||"))
    return Selection(with_system_topics=True, tags=tags, keys=settings.keys)


def _subscription(part: QueueRange, settings: TopicSettings) -> str:
    """What the broker is asked for."""
    is_for_all = part.has_no_tags and settings.expression_type == "TAG"
    return "*" if is_for_all else settings.subscription.strip() or "*"


def _is_filtered(part: QueueRange, settings: TopicSettings) -> bool:
    return _subscription(part, settings) != "*" or settings.expression_type != "TAG"


def split_records(data: bytes | memoryview, source: str) -> Records:
    """The records that stand one after the other in the answers to pulls. `source` names the queue for people."""
    octets = np.frombuffer(data, dtype=np.uint8)
    positions, end = follow(octets)
    if end == len(data):
        records = gather(octets, positions)
        if records.sound.all():
            return records
        end = int(positions[np.argmin(records.sound)])
    raise DataLossError(
        f"{source}: pulled records of {len(data)} bytes are damaged at byte {end}: read again; if it stays so, run "
        "`contrailmq store verify` on the broker's store"
    )


def _pull_range(part: QueueRange, settings: TopicSettings, reader: QueueReader, landing: Landing) -> Iterator[RawPull]:
    """Keep the records of a range in the landing; each pull that brought some."""
    pulls = _Pulls(part, settings, reader, landing)
    offset, is_filtered = part.start, _is_filtered(part, settings)
    pulls.post(offset)
    try:
        while (pulled := pulls.answer(offset)) is not None:
            if pulled.status is PullStatus.FOUND:
                if pulled.next_offset <= offset or not pulled.body:
                    raise DataLossError(
                        f"{queue_name(part.queue)}: asked for {offset}, the broker gives {len(pulled.body)} bytes and "
                        f"{pulled.next_offset} as the next offset: read again, and look into the broker's log"
                    )
                landing.keep()
                offset = pulled.next_offset
            elif pulled.status is PullStatus.NO_MATCHED_MESSAGE and is_filtered and pulled.next_offset > offset:
                offset = pulled.next_offset
            else:
                offset = _after_nothing(pulled, part, offset, settings)
            pulls.post(offset)
            if pulled.status is PullStatus.FOUND:
                yield pulled
    finally:
        pulls.abandon()


class _Pulls:
    """Pulls of one range, of which at most one is on its way."""

    def __init__(self, part: QueueRange, settings: TopicSettings, reader: QueueReader, landing: Landing) -> None:
        self._part, self._settings, self._reader, self._landing = part, settings, reader, landing
        self._posted: PostedPull | None = None
        self._patience = Patience(reader, settings.away_timeout_s)

    def post(self, offset: int) -> None:
        """Ask for what begins there, unless the range ends there."""
        if offset < self._part.stop:
            self._posted = self._patience.call(lambda: self._ask(offset))

    def answer(self, offset: int) -> RawPull | None:
        """What was asked for; None when that was nothing, or the topic was deleted meanwhile and that is allowed."""
        tries = iter([self._posted])
        if self._posted is None:
            return None

        def pulled() -> RawPull | None:
            posted = next(tries, None) or self._ask(offset)  # again, when the broker went away with the first
            self._posted = None
            with self._losing(offset):
                return None if posted is None else self._reader.pull_answer(posted)

        return self._patience.call(pulled)

    def _ask(self, offset: int) -> PostedPull | None:
        with self._losing(offset):
            return self._reader.post_pull(
                self._part.queue,
                offset,
                max_count=min(self._settings.pull_count, self._part.stop - offset),
                max_bytes=self._settings.batch_bytes,
                subscription=_subscription(self._part, self._settings),
                expression_type=self._settings.expression_type,
                landing=self._landing,
            )

    def abandon(self) -> None:
        if self._posted is not None:
            self._reader.abandon(self._posted)

    @contextlib.contextmanager
    def _losing(self, offset: int) -> Iterator[None]:
        """Say what is lost when the topic was deleted."""
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


def _after_nothing(pulled: RawPull, part: QueueRange, offset: int, settings: TopicSettings) -> int:
    """Where to go on when a pull inside the range brought nothing: the messages there are gone."""
    following = part.stop if pulled.next_offset <= offset else min(pulled.next_offset, part.stop)
    if settings.fail_on_data_loss:
        raise _loss(part.queue, offset, following, pulled)
    return following


def _loss(queue: MessageQueue, start: int, stop: int, pulled: RawPull) -> DataLossError:
    return DataLossError(
        f"{queue_name(queue)}: offsets {start} to {stop} are not on the broker any more (it has {pulled.min_offset} to "
        f"{pulled.max_offset}): they expired, were lost or the topic was created again; set failOnDataLoss=false to go "
        "on without them"
    )
