"""What a read leaves out, in one line for people: `contrailmq.spark.explain` shows it below Spark's own plan.

Spark gives a Python source no place in `.explain()`: its scan is described as "(Python)", whatever its options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contrailmq.spark.columns import COLUMNS, View
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings
from contrailmq.spark.decoding.unit_scan import bytes_along_units

if TYPE_CHECKING:  # the planner of a `commitlog` stream needs no client
    from contrailmq.client.blocking.raw import QueueReader
    from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings

_MB = 1_000_000


def pruned_log(stores: Sequence[str], parts: Sequence[LogPart], settings: LogSettings, log_bytes: int) -> str:
    """Such as `commitlog /data/store: 12 MB of 2,400 MB; tags a along the queues; 2 of 17 columns`."""
    choice = settings.selection
    bytes_read = sum(_bytes_of(part) for part in parts if part.places is None)
    places = sum(len(part.places) for part in parts if part.places is not None)
    read = [f"{bytes_read / _MB:,.1f} MB of {log_bytes / _MB:,.1f} MB"]
    if any(part.places is not None for part in parts):
        read.append(f"{places:,} places by the index")
    way = "along the queues" if any(part.wanted is not None for part in parts) else "by reading the log"
    named = [
        f"{name} {', '.join(map(str, sorted(values)))}"
        for name, values in (("topics", choice.topics), ("tags", choice.tags), ("queueId", choice.queue_ids))
        if values is not None
    ]
    told = [f"{' and '.join(named)} {way}"] if named else []
    if choice.keys is not None:
        told.append(f"keys {', '.join(sorted(choice.keys))}")
    if choice.begin_ms > 0 or choice.end_ms < 2**63 - 1:
        told.append(f"stored from {choice.begin_ms}" + (f" to {choice.end_ms}" if choice.end_ms < 2**63 - 1 else ""))
    return f"commitlog {', '.join(stores)}: " + "; ".join([" and ".join(read), *told, _columns(settings.view)])


def _bytes_of(part: LogPart) -> int:
    if part.wanted is None or part.range.is_missing:
        return part.range.stop - part.range.start
    return bytes_along_units(part.range, part.store, part.wanted)


def pruned_topics(source: QueueReader, settings: TopicSettings, ranges: Sequence[QueueRange]) -> str:
    """Such as `rocketmq Orders: 1 of 4 queues, 300 of 1,200 messages; tags a at the broker; 2 of 17 columns`."""
    from contrailmq.spark.sources.topic_plan import TopicSettings, find_queues

    topics = sorted({part.queue.topic for part in ranges})
    names = source.topics() if settings.pattern is not None else []
    unpruned = TopicSettings(
        settings.namesrv, topics=settings.topics, pattern=settings.pattern, assigned=settings.assigned
    )
    queues = find_queues(source, unpruned, names)
    held = sum(source.max_offset(queue) - source.min_offset(queue) for queue in queues)
    read = sum(part.stop - part.start for part in ranges)
    told = [f"{len({part.queue for part in ranges})} of {len(queues)} queues, {read:,} of {held:,} messages"]
    if settings.expression_type != "TAG":
        told.append(f"{settings.subscription} at the broker")
    if settings.tags is not None:
        is_here = (
            settings.expression_type != "TAG" or settings.subscription == "*" or any(p.has_no_tags for p in ranges)
        )
        told.append(f"tags {', '.join(sorted(settings.tags))} {'in the tasks' if is_here else 'at the broker'}")
    elif settings.expression_type == "TAG" and settings.subscription != "*":
        told.append(f"tags {settings.subscription} at the broker")
    if settings.keys is not None:
        told.append(f"keys {', '.join(sorted(settings.keys))} in the tasks")
    return f"rocketmq {', '.join(topics)}: " + "; ".join([*told, _columns(settings.view)])


def _columns(view: View) -> str:
    return f"{len(view.columns)} of {len(COLUMNS)} columns"
