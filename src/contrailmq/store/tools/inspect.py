"""What is in a store directory: files, ranges, queues, counts, times, checkpoint. For `contrailmq store inspect`.

Quick on any size: queues and index are read in their ends and headers, and of the log only the last file with data is
walked, with checksums, to find where it ends. Use verify.py to check that it all fits together.
"""

from __future__ import annotations

from dataclasses import dataclass

from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import read_store_time
from contrailmq.store.recovery.checkpoint import CheckpointValues
from contrailmq.store.recovery.log_walk import Unheard, walk
from contrailmq.store.tools.read_only import StoreView


@dataclass(frozen=True, slots=True)
class QueueSummary:
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    files: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class IndexSummary:
    name: str
    entries: int
    begin_time_ms: int
    end_time_ms: int
    begin_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Offsets are physical; times are store times, 0 where there is no message."""

    path: str
    was_clean_exit: bool
    owner_pid: int  # who has it open: 0 for nobody, -1 for somebody whom the kernel does not name
    log_files: int
    log_file_bytes: int
    log_min_offset: int
    log_max_offset: int
    first_store_time_ms: int
    last_store_time_ms: int
    queues: tuple[QueueSummary, ...]
    batch_queues: tuple[QueueSummary, ...]
    index: tuple[IndexSummary, ...]
    checkpoint: CheckpointValues
    problems: tuple[str, ...]

    @property
    def topics(self) -> int:
        return len({queue.topic for queue in (*self.queues, *self.batch_queues)})

    @property
    def messages(self) -> int:
        return sum(queue.count for queue in (*self.queues, *self.batch_queues))


def inspect_store(view: StoreView) -> StoreSummary:
    """Look at everything; change and check nothing."""
    max_offset, last_time_ms = _log_end(view)
    queues = [
        QueueSummary(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, len(queue.bases))
        for queue in view.queues
    ]
    damaged = [f"queue {queue.topic}/{queue.queue_id}: {queue.reason}" for queue in view.damaged_queues]
    return StoreSummary(
        path=str(view.config.path),
        was_clean_exit=view.was_clean_exit,
        owner_pid=view.owner_pid,
        log_files=len(view.log_files),
        log_file_bytes=view.config.mapped_file_size_commit_log,
        log_min_offset=view.log_files[0].base if view.log_files else 0,
        log_max_offset=max_offset,
        first_store_time_ms=_first_time(view),
        last_store_time_ms=last_time_ms,
        queues=tuple(sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))),
        batch_queues=tuple(
            QueueSummary(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, 0)
            for queue in view.queues.batches
        ),
        index=tuple(
            IndexSummary(
                file.path.name, file.entries, file.begin_time_ms, file.end_time_ms, file.begin_offset, file.end_offset
            )
            for file in view.index_files
        ),
        checkpoint=view.checkpoint,
        problems=(*view.problems, *damaged),
    )


def _log_end(view: StoreView) -> tuple[int, int]:
    """(End of the log, store time of the last record), found in the last file that begins with a record."""
    for file in reversed(view.log_files):
        end = walk(file, Unheard(), check_body_crc=True)  # as recovery would: the end that it and verify give
        if end.records or end.verdict.kind is Kind.BLANK:
            return file.base + end.position, end.store_time_ms
    return (view.log_files[0].base, 0) if view.log_files else (0, 0)


def _first_time(view: StoreView) -> int:
    for file in view.log_files:
        if check_record(file.mapping, 0, physical_offset=file.base, check_body_crc=False).kind is Kind.WHOLE:
            return read_store_time(file.mapping, 0)
    return 0
