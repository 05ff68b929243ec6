"""Rows of an archive as tables, chosen and in the order of their queues. For `replay` and `restore`.

That is the order of the log: if a topic was made again, queue offsets begin at 0 a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.jobs.manifest import ArchivedFile, Manifest
from contrailmq.spark.jobs.parquet_files import read_rows, topic_counts

_ROWS_AT_ONCE: Final = 200_000  # of small topics; a large one is read alone
_DAY_MS: Final = 86_400_000
_ORDER: Final = [(name, "ascending") for name in ("topic", "queueId", "brokerName", "physicalOffset", "queueOffset")]


def archived_topics(source: str) -> frozenset[str]:
    """The topics that an archive holds."""
    files = Manifest(source).load().files
    packed = {topic for file in files if not file.topic for topic in topic_counts(str(Path(source, file.path)))}
    return frozenset(packed | {file.topic for file in files if file.topic})


def archived_tables(source: str, selection: Selection) -> Iterator[pa.Table]:
    """The chosen rows: day by day, some topics at once, each queue in the order of its log."""
    by_day: dict[str, list[ArchivedFile]] = {}
    for file in Manifest(source).load().files:
        if _may_hold(file, selection):
            by_day.setdefault(file.date, []).append(file)
    for _, files in sorted(by_day.items()):
        for topics in _at_once(source, files, selection):
            wanted = [file for file in files if not file.topic or file.topic in topics]
            table = pa.concat_tables([read_rows(str(Path(source, f.path)), f.topic, topics) for f in wanted])
            table = table.filter(_chosen(table, selection))
            yield table.sort_by(_ORDER)


def _may_hold(file: ArchivedFile, selection: Selection) -> bool:
    """Whether a file may have chosen rows, by its topic and its day."""
    if selection.topics is not None and file.topic and file.topic not in selection.topics:
        return False
    begin_ms = round(datetime.fromisoformat(f"{file.date}T00:00:00+00:00").timestamp()) * 1000
    return begin_ms < selection.end_ms and begin_ms + _DAY_MS > selection.begin_ms


def _at_once(source: str, files: list[ArchivedFile], selection: Selection) -> Iterator[list[str]]:
    """The topics of a day's files, as many together as fit into memory."""
    rows: dict[str, int] = {}
    for file in files:
        counts = {file.topic: file.rows} if file.topic else topic_counts(str(Path(source, file.path)))
        for topic, count in counts.items():
            rows[topic] = rows.get(topic, 0) + count
    topics: list[str] = []
    held = 0
    for topic, count in sorted(rows.items()):
        if selection.topics is not None and topic not in selection.topics:
            continue
        if topics and held + count > _ROWS_AT_ONCE:
            yield topics
            topics, held = [], 0
        topics.append(topic)
        held += count
    if topics:
        yield topics


def _chosen(table: pa.Table, selection: Selection) -> pa.ChunkedArray:
    """Which archived rows a selection keeps; topics were chosen before."""
    time_ms = pc.divide(table["storeTimestamp"].cast(pa.int64()), 1000)
    kept = pc.and_(pc.greater_equal(time_ms, selection.begin_ms), pc.less(time_ms, selection.end_ms))
    if selection.tags is not None:
        kept = pc.and_(kept, pc.is_in(table["tags"], value_set=pa.array(sorted(selection.tags), pa.string())))
    for bounds, values, is_outside in (
        (selection.starting_offsets, table["queueOffset"], pc.less),
        (selection.ending_offsets, table["queueOffset"], pc.greater_equal),
        (selection.starting_times_ms, time_ms, pc.less),
        (selection.ending_times_ms, time_ms, pc.greater_equal),
    ):
        for (topic, queue_id), bound in bounds.items():
            is_queue = pc.and_(pc.equal(table["topic"], topic), pc.equal(table["queueId"], queue_id))
            kept = pc.and_(kept, pc.invert(pc.and_(is_queue, is_outside(values, bound))))
    return kept
