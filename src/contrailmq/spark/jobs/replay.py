"""`replay` and `redrive`: stored messages sent again.

**replay** sends an archive or part of a log to a topic, each queue in order, at a bounded rate. A message's origin goes
into properties (`REPLAY_TOPIC`, `REPLAY_QUEUE_ID`, `REPLAY_OFFSET`, `REPLAY_TIME_MS`). It keeps its de-duplication key
or gets one made of its place, so that replaying twice gives the same keys.

**redrive** sends dead letters (`%DLQ%group`) back to their topic with the key `redrive-<message id>`. It sends a letter
only once, even if the queue holds two copies, and skips one whose key the broker's index already finds in the topic.

One task has a queue from first to last message, so order is kept. The rate is shared evenly among tasks. A task that
Spark repeats sends its messages again with the same keys.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.sync_admin import Admin
from contrailmq.client.errors import NoRouteError
from contrailmq.message import (
    RESERVED_PROPERTIES,
    ContrailError,
    Message,
    MessageError,
    MessageQueue,
    Property,
    dlq_topic,
)
from contrailmq.message.names import check_topic
from contrailmq.spark.access import job_access
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.decoding.decode import QueueKey, Selection
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.queue_units import all_queues
from contrailmq.spark.decoding.store_files import confirmed_end, find_stores, log_files
from contrailmq.spark.jobs.archive_rows import archived_tables, archived_topics
from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.runtime.engine import Engine, LocalEngine, Progress
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sinks.sending import Sender, SinkSettings, make_message
from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings
from contrailmq.spark.sources.topic_pulls import read_range

Row = dict[str, Any]
_STEP_S: Final = 0.05  # the pace is kept by pauses of this length
_MADE_UP_S: Final = 1.0  # of a broker or source that was slow
_NOTES_MAX: Final = 5  # about skipped messages, per task


class UnsendableError(ContrailError):
    """A stored message that no client may send, such as one without a body."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How many messages were found, sent (none in a dry run) and skipped, and what the user should know."""

    found: int
    sent: int
    skipped: int
    notes: tuple[str, ...] = ()


class Pace:
    """Lets through at most `per_second` messages a second; 0 means no limit.

    A sender gathers messages, which would then arrive many at once: what was let through is sent (by `send`) before
    every pause, and every step where nothing needs to pause. A pause lasts a step at least, so that batches are not
    too small. Messages that were late are made up for, those of a second at most.
    """

    def __init__(
        self,
        per_second: float,
        send: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second, self._send, self._clock, self._sleep = per_second, send, clock, sleep
        self._due_s = self._sent_s = clock()

    def wait(self) -> None:
        """Return when the next message may go."""
        if not self._per_second:
            return
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s - _MADE_UP_S) + 1 / self._per_second
        is_early = self._due_s > now_s
        if is_early or now_s - self._sent_s >= _STEP_S:
            self._send()
            if is_early:
                self._sleep(max(self._due_s - self._clock(), _STEP_S))
            self._sent_s = self._clock()


class Share(NamedTuple):
    """One of several tasks' queues: those whose number, counted on from the topic's hash, leaves this remainder."""

    number: int = 0
    of: int = 1

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of this share's queues, in their order."""
        if self.of == 1:
            return rows
        topics = rows.column("topic").dictionary_encode()
        hashes = np.array([zlib.crc32(name.encode()) for name in topics.dictionary.to_pylist()], dtype=np.int64)
        queues = rows.column("queueId").to_numpy().astype(np.int64)
        if not len(queues):
            return rows
        return rows.filter(pa.array((hashes[topics.indices.to_numpy()] + queues) % self.of == self.number))


class _Replay(NamedTuple):
    """The work of one task."""

    source: str
    selection: Selection
    settings: SinkSettings
    per_second: float
    share: Share
    skip_unsendable: bool
    dry_run: bool


def replay(
    source: str,
    topic: str | None,
    namesrv: str,
    engine: Engine | None = None,
    *,
    selection: Selection | None = None,
    options: Mapping[str, str] | None = None,
    per_second: float = 0.0,
    skip_unsendable: bool = False,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> ReplayResult:
    """Send the messages of an archive or store to `topic` (None: each to the topic it came from).

    A message that no client may send (an empty body, properties too long with those of its origin) raises
    `UnsendableError`; `skip_unsendable` skips and counts it and notes the first few. Offsets for
    queues that the source does not hold are refused, topics that it does not hold are noted. `options` are the
    source's own for keys and TLS: `{"rocketmq.accessKey": ..., "rocketmq.secretKey": ...}`.
    """
    _check_rate(per_second)
    if topic is not None:
        check_topic(topic)
    runs_on = LocalEngine(1) if engine is None else engine
    access, away_timeout_s = job_access(options)
    settings = SinkSettings(namesrv, access, topic=topic, group="contrailmq_replay", away_timeout_s=away_timeout_s)
    chosen = Selection() if selection is None else selection
    Manifest(source).check_commits()  # an archive without its manifest is not a store either
    notes = _check_selection(source, chosen)
    count = runs_on.tasks_at_once
    work = [
        _Replay(source, chosen, settings, per_second / count, Share(number, count), skip_unsendable, dry_run)
        for number in range(count)
    ]
    return _sum(list(runs_on.run(_replay_share, work, on_progress)), notes)


def _sum(results: list[ReplayResult], notes: tuple[str, ...] = ()) -> ReplayResult:
    return ReplayResult(
        sum(r.found for r in results),
        sum(r.sent for r in results),
        sum(r.skipped for r in results),
        notes + tuple(note for r in results for note in r.notes),
    )


def _check_rate(per_second: float) -> None:
    if not per_second >= 0:
        raise OptionError(f"the rate is {per_second:g} messages a second: give more than 0, or 0 for no limit")


class _Held(NamedTuple):
    """What a source holds: topics, and queues where they are known without reading messages."""

    topics: frozenset[str]
    queues: frozenset[QueueKey] | None


def _held(source: str) -> _Held | None:
    """By the manifest of an archive, by the consume queues of stores; None where a store has none."""
    manifest = Manifest(source)
    if manifest.head().version:
        return _Held(archived_topics(source), None)
    found = [all_queues(store) for store in find_stores(source)]
    if not all(found):
        return None
    queues = frozenset().union(*found)
    return _Held(frozenset(topic for topic, _ in queues), queues)


def _check_selection(source: str, selection: Selection) -> tuple[str, ...]:
    """Refuse bounds of queues that are not replayed: a mistyped name would replay all of the one that was meant.

    Gives a note of the topics that were named and are not there.
    """
    sides = {
        "starting offset": selection.starting_offsets,
        "ending offset": selection.ending_offsets,
        "starting time": selection.starting_times_ms,
        "ending time": selection.ending_times_ms,
    }
    held = _held(source) if selection.topics is not None or selection.has_queue_bounds else None
    for side, bounds in sides.items():
        for (topic, queue_id), bound in bounds.items():
            wrong = f"the {side} of {topic}/{queue_id} is {bound}"
            if bound < 0:
                raise OptionError(f"{wrong}: the least is 0")
            if selection.topics is not None and topic not in selection.topics:
                raise OptionError(f"{wrong}, but {topic} is not among the topics: correct it")
            if held is not None and topic not in held.topics:
                raise OptionError(f"{wrong}, but {source} does not hold {topic}: correct it")
            if held is not None and held.queues is not None and (topic, queue_id) not in held.queues:
                ids = sorted(number for name, number in held.queues if name == topic)
                raise OptionError(f"{wrong}, but {source} holds its queues {ids}: correct it")
    missing = [] if held is None or selection.topics is None else sorted(selection.topics - held.topics)
    return (f"{source} holds nothing of {', '.join(missing)}: check the names",) if missing else ()


def _replay_share(work: _Replay) -> ReplayResult:
    """Send the messages of one share's queues."""
    rows = stored_rows(work.source, work.selection, work.share)
    if work.dry_run:
        return ReplayResult(sum(1 for _ in rows), 0, 0)
    settings = work.settings
    found = skipped = 0
    notes: list[str] = []
    queues: dict[str, list[MessageQueue]] = {}
    with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
        sender = Sender(client, settings)
        pace = Pace(work.per_second, sender.flush)
        try:
            for row in rows:
                pace.wait()
                found += 1
                target = settings.topic or row["topic"]
                try:
                    message = replayed(row, settings)
                    if target not in queues:
                        queues[target] = _by_turns(client.publish_queues(target))
                    sender.add_to(queues[target][row["queueId"] % len(queues[target])], message)
                except MessageError as exc:
                    error = (
                        f"{row['topic']}/{row['queueId']} at offset {row['queueOffset']} cannot be sent again: {exc}"
                    )
                    if not work.skip_unsendable:
                        raise UnsendableError(f"{error}; pass over it with --skip-unsendable") from exc
                    skipped += 1
                    notes += [f"{error}; skipped"] if skipped <= _NOTES_MAX else []
            sender.flush()
        finally:
            sender.close()
    return ReplayResult(found, found - skipped, skipped, tuple(notes))


def _by_turns(queues: list[MessageQueue]) -> list[MessageQueue]:
    """A topic's queues in the order in which source queues are given to them: all brokers' first ones, and so on.

    Where the topic lives on one broker, a message keeps its queue id. The store's host would tell queues of several
    brokers apart, but a broker's address may change within a queue, and its order would be lost.
    """
    return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))


def replayed(row: Row, settings: SinkSettings) -> Message:
    """A stored message to send again: its origin as properties, and its own de-duplication key or one of its place."""
    properties = {name: value for name, value in row["properties"] if name not in RESERVED_PROPERTIES}
    time_ms = round(row["storeTimestamp"].timestamp() * 1000)
    properties.update(
        REPLAY_TOPIC=row["topic"],
        REPLAY_QUEUE_ID=str(row["queueId"]),
        REPLAY_OFFSET=str(row["queueOffset"]),
        REPLAY_TIME_MS=str(time_ms),
    )
    again = {name: row[name] for name in ("topic", "body", "tags", "keys", "flag")}
    # With the time: a queue of a topic that was made again has the same offsets once more.
    place = f"replay-{row['topic']}-{row['storeHost']}-{row['queueId']}-{row['queueOffset']}-{time_ms}"
    return make_message({**again, "properties": properties}, settings, place)


def stored_rows(source: str, selection: Selection, share: Share | None = None) -> Iterator[Row]:
    """Rows of an archive (a directory with a manifest) or of stores, each queue in the order of its log."""
    mine = Share() if share is None else share
    if Manifest(source).head().version:
        yield from _archived_rows(source, selection, mine)
        return
    settings = LogSettings(selection=selection)
    for store in find_stores(source):
        files = log_files(store)
        for part in plan_parts(store, files[0].base if files else 0, confirmed_end(store), settings):
            for batch in read_part(part, settings):
                yield from mine.keep(batch).to_pylist()


def _archived_rows(source: str, selection: Selection, share: Share) -> Iterator[Row]:
    for table in archived_tables(source, selection):
        for batch in table.select(list(COLUMNS)).combine_chunks().to_batches():
            yield from share.keep(batch).to_pylist()


class _Redrive(NamedTuple):
    """One dead-letter queue, as it is now."""

    part: QueueRange
    settings: SinkSettings
    tags: frozenset[str] | None
    properties: Mapping[str, str]
    matches: Callable[[Row], bool] | None
    per_second: float
    dry_run: bool

    def wants(self, row: Row) -> bool:
        if self.tags is not None and row["tags"] not in self.tags:
            return False
        if not self.properties.items() <= dict(row["properties"]).items():
            return False
        return self.matches is None or self.matches(row)


def redrive(
    group: str,
    namesrv: str,
    engine: Engine | None = None,
    *,
    tags: frozenset[str] | None = None,
    properties: Mapping[str, str] | None = None,
    matches: Callable[[Row], bool] | None = None,
    options: Mapping[str, str] | None = None,
    per_second: float = 0.0,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> ReplayResult:
    """Send a group's dead letters back to their topics: those with one of `tags`, with all `properties`, that match.

    Run one at a time for a group: two at once do not see what the other is about to send, and every letter may arrive
    twice. Both carry the same key, so consumers that drop repeats (`deduplicated`, `contrailmq.idempotent`) drop one.

    `matches` sees each row and may leave it where it is; it travels to the engine's tasks. `options` are the source's
    own for keys and TLS, as in `replay`.
    """
    _check_rate(per_second)
    access, away_timeout_s = job_access(options)
    settings = SinkSettings(namesrv, access, group="contrailmq_redrive", away_timeout_s=away_timeout_s)
    with access.open(namesrv, settings.group, settings.timeout_s) as client:
        try:
            parts = Patience(client, away_timeout_s).call(lambda: _ranges_of(client, dlq_topic(group)))
        except NoRouteError as exc:
            raise OptionError(
                f"group {group} has no dead letters: no broker of {namesrv} has {dlq_topic(group)}; check the group's "
                "name"
            ) from exc
    filled = [part for part in parts if part.stop > part.start]
    work = [
        _Redrive(part, settings, tags, properties or {}, matches, per_second / len(filled), dry_run) for part in filled
    ]
    runs_on = LocalEngine(1) if engine is None else engine
    return _sum(list(runs_on.run(_redrive_queue, work, on_progress)))


def _ranges_of(client: QueueReader, topic: str) -> list[QueueRange]:
    return [QueueRange(queue, client.min_offset(queue), client.max_offset(queue)) for queue in client.queues(topic)]


def _redrive_queue(work: _Redrive) -> ReplayResult:
    """Send the letters of one queue back, in their order."""
    settings, access = work.settings, work.settings.access
    found = sent = skipped = 0
    taken: set[str] = set()  # the index does not know yet what waits to be sent, or was sent just now
    with (
        access.open(settings.namesrv, settings.group, settings.timeout_s) as client,
        Admin(namesrv=settings.namesrv, tls=access.tls(), credentials=access.credentials()) as admin,
    ):
        sender, patience = Sender(client, settings), Patience(client, settings.away_timeout_s)
        pace = Pace(work.per_second, sender.flush)
        try:
            for row in _dead_letters(client, work.part, settings):
                if not work.wants(row):
                    continue
                found += 1
                again, key = redriven(row)
                if key in taken or patience.call(partial(admin.messages_by_key, again["topic"], key, max_count=1)):
                    skipped += 1
                elif not work.dry_run:
                    pace.wait()
                    sender.add(make_message(again, settings, key), again)
                    sent += 1
                taken.add(key)
            sender.flush()
        finally:
            sender.close()
    return ReplayResult(found, sent, skipped)


def redriven(row: Row) -> tuple[Row, str]:
    """A dead letter as a row to send, and the key by which the broker will find it."""
    stored = dict(row["properties"])
    topic = stored.get(Property.DLQ_ORIGIN_TOPIC) or stored.get(Property.RETRY_TOPIC)
    if topic is None:
        raise OptionError(f"dead letter {row['msgId']} does not say which topic it was for: send it by hand")
    key = f"redrive-{row['msgId']}"
    left_out = RESERVED_PROPERTIES | {DEDUP_PROPERTY}
    properties = {name: value for name, value in stored.items() if name not in left_out}
    properties["REDRIVEN_FROM"] = row["topic"]
    return {
        "topic": topic,
        "body": row["body"],
        "tags": row["tags"],
        "keys": f"{row['keys']} {key}" if row["keys"] else key,
        "properties": properties,
        "flag": row["flag"],
    }, key


def _dead_letters(client: QueueReader, part: QueueRange, sink: SinkSettings) -> Iterator[Row]:
    settings = TopicSettings(
        sink.namesrv, fail_on_data_loss=False, with_system_topics=True, away_timeout_s=sink.away_timeout_s
    )
    for batch in read_range(part, settings, client):
        yield from batch.to_pylist()
