"""`replay` and `redrive`: stored messages sent again.

**replay** sends an archive or a stretch of a store's log to a topic, each queue in its order, at most so many a second.
Where a message came from stays with it as properties (`REPLAY_TOPIC`, `REPLAY_QUEUE_ID`, `REPLAY_OFFSET`,
`REPLAY_TIME_MS`), and the de-duplication key is made of that place: replaying a stretch twice gives the same keys.

**redrive** sends dead letters (`%DLQ%group`) back to the topic they were meant for. Each carries the key
`redrive-<message id>`; a letter whose key the broker's index already finds in the topic is not sent again.

Both run in this process: order within a queue and a rate limit want one sender.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.client.raw import QueueReader
from contrailmq.client.sync_admin import Admin
from contrailmq.message import RESERVED_PROPERTIES, Property, dlq_topic
from contrailmq.spark.access import access_of
from contrailmq.spark.columns import OptionError
from contrailmq.spark.decode import Selection
from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.jobs.parquet_files import read_rows
from contrailmq.spark.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.sending import Sender, SinkSettings, make_message
from contrailmq.spark.store_files import confirmed_end, find_stores, log_files
from contrailmq.spark.topic_plan import QueueRange, TopicSettings, read_range

Row = dict[str, Any]
_STEP_S: Final = 0.05  # the pace is kept by pauses of this length


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How many messages were found and how many sent (none in a dry run)."""

    found: int
    sent: int
    skipped: int


class Pace:
    """Lets through at most `per_second` messages a second; 0 means no limit."""

    def __init__(
        self,
        per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second, self._clock, self._sleep = per_second, clock, sleep
        self._began_s = clock()
        self._passed = 0

    def wait(self) -> None:
        """Return when the next message may go."""
        self._passed += 1
        if not self._per_second:
            return
        ahead_s = self._passed / self._per_second - (self._clock() - self._began_s)
        if ahead_s >= _STEP_S:
            self._sleep(ahead_s)


def replay(
    source: str,
    topic: str | None,
    namesrv: str,
    *,
    selection: Selection | None = None,
    options: Mapping[str, str] | None = None,
    per_second: float = 0.0,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ReplayResult:
    """Send the messages of an archive or store to `topic` (None: each to the topic it came from).

    `options` are the source's own for keys and TLS: `{"rocketmq.accessKey": ..., "rocketmq.secretKey": ...}`.
    """
    rows = stored_rows(source, Selection() if selection is None else selection)
    if dry_run:
        return ReplayResult(sum(1 for _ in rows), 0, 0)
    settings = SinkSettings(namesrv, access_of(options), topic=topic, group="contrailmq_replay")
    pace = Pace(per_second)
    count = 0
    with settings.access.open(namesrv, settings.group, settings.timeout_s) as client:
        sender = Sender(client, settings)
        try:
            for row in rows:
                pace.wait()
                target = topic or row["topic"]
                again = replayed(row, queue_count=len(client.publish_queues(target)))
                place = f"replay-{row['topic']}-{row['storeHost']}-{row['queueId']}-{row['queueOffset']}"
                sender.add(make_message(again, settings, place), again)
                count += 1
                if on_progress is not None and count % 1000 == 0:
                    on_progress(count, count)
            sender.flush()
        finally:
            sender.close()
    return ReplayResult(count, count, 0)


def replayed(row: Row, *, queue_count: int) -> Row:
    """A stored message as a row to send: same queue where the topic has it, its origin as properties."""
    properties = {name: value for name, value in row["properties"] if name not in RESERVED_PROPERTIES}
    properties.update(
        REPLAY_TOPIC=row["topic"],
        REPLAY_QUEUE_ID=str(row["queueId"]),
        REPLAY_OFFSET=str(row["queueOffset"]),
        REPLAY_TIME_MS=str(round(row["storeTimestamp"].timestamp() * 1000)),
    )
    return {
        "topic": row["topic"],
        "body": row["body"],
        "tags": row["tags"],
        "keys": row["keys"],
        "properties": properties,
        "flag": row["flag"],
        "queueId": row["queueId"] % queue_count,
    }


def stored_rows(source: str, selection: Selection) -> Iterator[Row]:
    """Rows of an archive (a directory with a manifest) or of stores, each queue in the order of its offsets."""
    if Manifest(source).head().version:
        yield from _archived_rows(source, selection)
        return
    settings = LogSettings(selection=selection)
    for store in find_stores(source):
        files = log_files(store)
        for part in plan_parts(store, files[0].base if files else 0, confirmed_end(store), settings):
            for batch in read_part(part, settings):
                yield from batch.to_pylist()


def _archived_rows(source: str, selection: Selection) -> Iterator[Row]:
    groups: dict[tuple[str, str], list[str]] = {}
    for file in Manifest(source).load().files:
        if selection.topics is None or file.topic in selection.topics:
            groups.setdefault((file.topic, file.date), []).append(str(Path(source, file.path)))
    for (topic, _), paths in sorted(groups.items()):
        table = pa.concat_tables([read_rows(path, topic) for path in paths])
        table = table.sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
        yield from table.filter(_within(table, topic, selection)).to_pylist()


def _within(table: pa.Table, topic: str, selection: Selection) -> pa.ChunkedArray:
    time_ms = pc.divide(table["storeTimestamp"].cast(pa.int64()), 1000)
    kept = pc.and_(pc.greater_equal(time_ms, selection.begin_ms), pc.less(time_ms, selection.end_ms))
    for bounds, is_outside in ((selection.starting_offsets, pc.less), (selection.ending_offsets, pc.greater_equal)):
        for (bound_topic, queue_id), offset in bounds.items():
            if bound_topic == topic:
                outside = pc.and_(pc.equal(table["queueId"], queue_id), is_outside(table["queueOffset"], offset))
                kept = pc.and_(kept, pc.invert(outside))
    return kept


def redrive(
    group: str,
    namesrv: str,
    *,
    tags: frozenset[str] | None = None,
    matches: Callable[[Row], bool] | None = None,
    options: Mapping[str, str] | None = None,
    per_second: float = 0.0,
    dry_run: bool = False,
) -> ReplayResult:
    """Send a group's dead letters back to their topics. `matches` sees each row and may leave it where it is.

    `options` are the source's own for keys and TLS, as in `replay`.
    """
    settings = SinkSettings(namesrv, access_of(options), group="contrailmq_redrive")
    pace = Pace(per_second)
    found = sent = skipped = 0
    access = settings.access
    with (
        access.open(namesrv, settings.group, settings.timeout_s) as client,
        Admin(namesrv=namesrv, tls=access.tls(), credentials=access.credentials()) as admin,
    ):
        sender = Sender(client, settings)
        try:
            for row in _dead_letters(client, group, namesrv):
                if (tags is not None and row["tags"] not in tags) or (matches is not None and not matches(row)):
                    continue
                found += 1
                again, key = redriven(row)
                if admin.messages_by_key(again["topic"], key, max_count=1):
                    skipped += 1
                elif not dry_run:
                    pace.wait()
                    sender.add(make_message(again, settings, key), again)
                    sent += 1
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
    properties = {name: value for name, value in stored.items() if name not in RESERVED_PROPERTIES}
    properties["REDRIVEN_FROM"] = row["topic"]
    return {
        "topic": topic,
        "body": row["body"],
        "tags": row["tags"],
        "keys": f"{row['keys']} {key}" if row["keys"] else key,
        "properties": properties,
        "flag": row["flag"],
    }, key


def _dead_letters(client: QueueReader, group: str, namesrv: str) -> Iterator[Row]:
    settings = TopicSettings(namesrv, fail_on_data_loss=False, with_system_topics=True)
    for queue in client.queues(dlq_topic(group)):
        part = QueueRange(queue, client.min_offset(queue), client.max_offset(queue))
        for batch in read_range(part, settings, client):
            yield from batch.to_pylist()
