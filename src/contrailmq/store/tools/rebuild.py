"""Rebuilds queues and index from the log. For `contrailmq store rebuild`.

The new files are made beside the old ones (ROOT/rebuild.new/), synced, and checked against the log with verify's own
walk. Only then do they get the old ones' names, by renames; the old ones move to ROOT/rebuild.old/ and are removed
last. A crash at any point leaves either the old or the new queues in place, and `rebuild` can simply be run again. The
log itself is never touched.

A queue whose messages are all gone from the log keeps its maximum: no offset is used twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import RecordView
from contrailmq.store.base.clock import Clock, SystemClock
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.base.store_lock import NEW, OLD, PARTS, StoreLock, finish_interrupted, remove_tree
from contrailmq.store.config import StoreConfig
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.files import Files
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.recovery.log_walk import Sink, walk
from contrailmq.store.recovery.queue_ledger import Ledger, take_ledger, write_ledger
from contrailmq.store.recovery.reconcile import BatchSink, Reconciler
from contrailmq.store.tools.read_only import ReadOnlyLogFile, StoreView, require_store
from contrailmq.store.tools.verify import Progress, verify_store


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was made."""

    path: str
    queues: int
    units: int
    index_files: int
    index_entries: int
    log_max_offset: int
    log_end: str = ""  # why the log ends there, when what follows is neither unwritten nor the end of a file


def rebuild_store(
    config: StoreConfig,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    on_progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild the queues and the index. Takes the store's lock: StoreLockedError while somebody has it open."""
    files = files or Files()
    lock = StoreLock(files, config.lock_path)
    require_store(config, files)
    lock.acquire()
    try:
        return _rebuild(config, files, clock or SystemClock(), on_progress)
    finally:
        lock.release()


def _rebuild(config: StoreConfig, files: Files, clock: Clock, on_progress: Progress | None) -> RebuildReport:
    root = config.path
    finish_interrupted(root, files)
    try:
        report, ledger = _make_beside(config, files, clock, on_progress)
    except BaseException:  # Ctrl-C, too: nothing is left of it
        finish_interrupted(root, files)
        raise
    _swap(root, files)
    write_ledger(root, ledger, files)
    remove_tree(root / OLD, files)
    return report


def _make_beside(
    config: StoreConfig, files: Files, clock: Clock, on_progress: Progress | None
) -> tuple[RebuildReport, Ledger]:
    """New queues and index in ROOT/rebuild.new/, checked."""
    new = config.path / NEW
    with StoreView(config) as view:
        config = view.config  # with every size known
        queues = ConsumeQueueTable(
            new / "consumequeue",
            file_bytes=config.mapped_file_size_consume_queue,
            files=files,
            with_light_queues=view.queues.with_light_queues,
            batch_file_bytes=config.mapper_file_size_batch_consume_queue,
            batch_topics={queue.topic for queue in view.queues.batches},
        )
        index = IndexService(
            new / "index",
            slots=config.max_hash_slot_num,
            units=config.max_index_num,
            files=files,
            clock=clock,
        )
        try:
            files.make_directory(queues.root)
            files.make_directory(index.root)
            if files.exists(config.batch_queue_path):
                files.make_directory(queues.batches.root)
            end = _fill(view, queues, index if config.message_index_enable else None, on_progress)
            _keep_maximums(view, queues)
            mark = queues.flush()
            index.flush()
            ledger = take_ledger(queues, index, mark, view.log_files)
            report = RebuildReport(
                path=str(config.path),
                queues=len(queues) + len(queues.batches),
                units=sum(queue.max_offset - queue.min_offset for queue in queues) + sum(map(len, queues.batches)),
                index_files=len(index.index_files),
                index_entries=index.entries,
                log_max_offset=end.offset,
                log_end=end.reason,
            )
        finally:
            queues.close()
            index.close()
    _check(config, new, on_progress)
    return report, ledger


class _Both:
    """Hands each record of a walk to two sinks."""

    def __init__(self, first: Sink, second: Sink) -> None:
        self._first = first
        self._second = second

    def take(self, record: RecordView, /) -> None:
        self._first.take(record)
        self._second.take(record)


class _StandingBatches:
    """Leaves out the inner batches of topics that have ordinary queues by now: with them they would become mixed."""

    def __init__(self, view: StoreView, sink: Sink) -> None:
        self._view = view
        self._sink = sink

    def take(self, record: RecordView, /) -> None:
        if not self._view.is_of_an_ended_batch_topic(record):
            self._sink.take(record)


class _LogEnd(NamedTuple):
    offset: int
    reason: str = ""


def _fill(
    view: StoreView, queues: ConsumeQueueTable, index: IndexService | None, on_progress: Progress | None
) -> _LogEnd:
    """Dispatch the whole log into empty queues and an empty index."""
    sink = _Both(
        Reconciler(queues, index, DelayLevels(view.config.message_delay_level), index_from=0),
        _StandingBatches(view, BatchSink(queues.batches, begin=0)),
    )
    done = 0
    end = _LogEnd(0)
    for number, file in enumerate(view.log_files):
        if number and file.base != end.offset:
            _refuse_hole(view.log_files[number - 1], end.offset, "the file that begins here is missing", file)
        walked = walk(file, sink, check_body_crc=True)
        done += file.size_bytes
        if on_progress is not None:
            on_progress(done // 2, view.log_bytes)  # the check walks it again
        verdict = walked.verdict
        if verdict.kind is not Kind.BLANK:
            offset = file.base + walked.position
            for later in view.log_files[number + 1 :]:
                begin = check_record(later.mapping, 0, physical_offset=later.base, check_body_crc=False)
                if begin.kind in (Kind.WHOLE, Kind.BLANK):
                    _refuse_hole(file, offset, verdict.reason, later)
            return _LogEnd(offset, "" if verdict.kind is Kind.NOTHING else verdict.reason)
        end = _LogEnd(file.end)
    return end


def _refuse_hole(file: ReadOnlyLogFile, offset: int, reason: str, later: ReadOnlyLogFile) -> NoReturn:
    raise CorruptStoreError(
        file.path,
        f"the log is damaged at offset {offset} ({reason}) and goes on at {later.base}: queues cannot be built across "
        "the hole. Restore the file from a copy of the store or from a slave, or have `contrailmq store repair` move "
        "the damaged part aside; nothing was changed",
    )


def _keep_maximums(view: StoreView, queues: ConsumeQueueTable) -> None:
    """Queues without a message in the log go on counting where they were."""
    for old in view.queues:
        if old.max_offset and queues.get(old.topic, old.queue_id) is None:
            queues.find_or_create(old.topic, old.queue_id).start_at(old.max_offset)
            queues.mark_dirty(queues.find_or_create(old.topic, old.queue_id))
    queues.batches.keep_maximums(view.queues.batches.entries())


def _check(config: StoreConfig, new: Path, on_progress: Progress | None) -> None:
    """Verify the new queues and index against the log, before they replace anything."""
    beside = StoreConfig(
        new,
        store_path_commit_log=",".join(str(path) for path in config.commit_log_paths),
        mapped_file_size_commit_log=config.mapped_file_size_commit_log,
        mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        mapper_file_size_batch_consume_queue=config.mapper_file_size_batch_consume_queue,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        message_index_enable=config.message_index_enable,
        message_delay_level=config.message_delay_level,
    )
    with StoreView(beside) as view:
        total = view.log_bytes

        def second_half(done: int, _total: int) -> None:
            if on_progress is not None:
                on_progress((total + done) // 2, total)

        report = verify_store(view, second_half)
    wrong = [finding for finding in report.findings if finding.part in ("queue", "index")]
    if wrong:
        part, where, offset, problem = wrong[0]
        place = f"{part} {where}".strip() + ("" if offset is None else f" at {offset}")
        raise CorruptStoreError(
            new, f"the rebuilt files do not agree with the log ({place}: {problem}): nothing was replaced"
        )


def _swap(root: Path, files: Files) -> None:
    old, new = root / OLD, root / NEW
    files.make_directory(old)
    for name in PARTS:
        if files.exists(root / name):
            files.rename(root / name, old / name)
        if files.exists(new / name):  # batch queues: only where there are some
            files.rename(new / name, root / name)
        files.sync_directory(root)
    files.remove_directory(new)
    files.sync_directory(root)
