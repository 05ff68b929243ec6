"""How a stream knows that a queue is still the one it read from: by the last message before its offset.

A topic that was deleted and created again counts from zero. Once it has grown past the offset of a checkpoint, a stream
would skip everything before that. So a checkpoint also holds a mark of the message before each offset: its store time,
born time and body checksum. Before reading on, the stream asks the broker for that message again:

- The same: it is the same queue.
- Another: the queue was created again, or another broker has its name. That is data loss.
- None: it expired, and the rule for messages that expired unread applies.

It costs two pulls of one message per queue that grew, and one per idle queue at start. Old checkpoints gain marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from contrailmq.client.blocking.raw import RawPull
from contrailmq.client.results import PullStatus
from contrailmq.message import MessageQueue
from contrailmq.spark.sources.topic_plan import Offsets, queue_name
from contrailmq.spark.sources.topic_pulls import split_records

Marks = dict[MessageQueue, str]


class PullSource(Protocol):
    """What marks ask a broker; `QueueReader` answers it."""

    def pull(self, queue: MessageQueue, offset: int, *, max_count: int) -> RawPull: ...


def mark_before(source: PullSource, queue: MessageQueue, offset: int) -> str | None:
    """The mark of the message before an offset; None if there is none, or none any more."""
    if offset <= 0:
        return None
    pulled = source.pull(queue, offset - 1, max_count=1)
    if pulled.status is not PullStatus.FOUND or not pulled.body:
        return None
    first = split_records(pulled.body, queue_name(queue)).select(slice(0, 1))
    if int(first.queue_offset[0]) > offset - 1:
        return None
    stored_ms, born_ms, crc = int(first.store_time_ms[0]), int(first.born_time_ms[0]), int(first.body_crc[0])
    return f"{stored_ms}-{born_ms}-{crc & 0xFFFFFFFF:08x}"


def made_anew(
    source: PullSource, offsets: Offsets, marks: Mapping[MessageQueue, str], queues: Iterable[MessageQueue]
) -> list[MessageQueue]:
    """Those of the queues whose message before the offset is another than it was."""
    found = []
    for queue in queues:
        mark = marks.get(queue)
        if mark is not None and mark_before(source, queue, offsets[queue]) not in (mark, None):
            found.append(queue)
    return sorted(found)


def marked(source: PullSource, offsets: Offsets, *, before: Offsets, marks: Mapping[MessageQueue, str]) -> Marks:
    """Marks for offsets. Where an offset is as it was `before`, so is its mark, if it had one."""
    found: Marks = {}
    for queue, offset in offsets.items():
        kept = marks.get(queue) if before.get(queue) == offset else None
        mark = mark_before(source, queue, offset) if kept is None else kept
        if mark is not None:
            found[queue] = mark
    return found
