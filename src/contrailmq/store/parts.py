"""The parts of a store and how they fit together. Nothing here touches the disk.

append -> CommitLog -> MappedFileQueue <- Allocator (next file)
              |              ^
              | facts        +-- LogFlusher (sync), LogCommitter (write buffers)
              v
         Dispatcher -> ConsumeQueueTable, IndexService <- Housekeeping (write out, sync, checkpoint)
                              ^
                           Reader
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass

from contrailmq.store.base.clock import Clock
from contrailmq.store.base.stats import StoreStats
from contrailmq.store.base.store_clock import StoreClock
from contrailmq.store.config import StartBounds, StoreConfig
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.dispatch import Dispatcher
from contrailmq.store.files import Files
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.log.allocation import Allocator
from contrailmq.store.log.commit_log import CommitLog
from contrailmq.store.log.flush import LogCommitter, LogFlusher
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.log.residency import Residency
from contrailmq.store.log.write_buffer_pool import WriteBufferPool
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.reading.reader import Reader
from contrailmq.store.recovery.checkpoint import Checkpoint
from contrailmq.store.upkeep.housekeeping import Housekeeping
from contrailmq.store.upkeep.left_pages import LeftPages
from contrailmq.store.upkeep.retention import Retention

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """Owned by one MessageStore."""

    log_files: MappedFileQueue
    pool: WriteBufferPool | None
    committer: LogCommitter | None
    allocator: Allocator
    log: CommitLog
    flusher: LogFlusher
    checkpoint: Checkpoint
    queues: ConsumeQueueTable
    index: IndexService | None
    delay_levels: DelayLevels
    dispatcher: Dispatcher
    reader: Reader
    housekeeping: Housekeeping
    retention: Retention


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the parts report to their store, from the thread that notices it."""

    on_failure: Callable[[str], None]  # a sync failed
    on_commit: Callable[[], None]
    on_flushed: Callable[[int], None]
    on_disk_full: Callable[[str | None], None]
    on_standstill: Callable[[OSError | None], None]


def build_parts(
    config: StoreConfig,
    files: Files,
    clock: Clock,
    store_clock: StoreClock,
    stats: StoreStats,
    hooks: Hooks,
    *,
    dispatch_before_reads: Callable[[], None] | None,
    batch_topics: Container[str],
    bounds: StartBounds,
) -> Parts:
    """`config` is resolved."""
    on_failure = hooks.on_failure
    log_files = MappedFileQueue(files, clock, config.commit_log_paths, config.mapped_file_size_commit_log)
    checkpoint = Checkpoint(config.checkpoint_path, files)
    pool, committer = _write_buffers(config, files, clock, log_files, hooks.on_commit, on_failure)
    allocator = Allocator(files, config, log_files, pool, on_sync_failure=on_failure)
    log = CommitLog(config, store_clock, log_files, allocator)
    flusher = _flusher(config, clock, log_files, checkpoint, committer, store_clock, hooks)
    queues = _queues(config, files, batch_topics)
    log.is_batch_topic = queues.batches.holds
    index = _index(config, files, clock, checkpoint, bounds) if config.message_index_enable else None
    housekeeping = Housekeeping(config, files, clock, queues, index, checkpoint, log_files, on_failure, bounds)
    retention = Retention(
        config, files, clock, log_files, queues, index, store_clock.doubted_ms, on_disk_full=hooks.on_disk_full
    )
    housekeeping.add_task(lambda: _clean(retention))
    housekeeping.add_task(LeftPages(files, clock, log_files).tick)
    delay_levels = DelayLevels(config.message_delay_level)
    dispatcher = Dispatcher(
        log, queues, index, delay_levels, stats, on_sync_failure=on_failure, on_standstill=hooks.on_standstill
    )
    reader = Reader(
        config,
        log,
        queues,
        index,
        Residency(files, log, clock.monotonic_ms),
        stats,
        monotonic_ms=clock.monotonic_ms,
        dispatch=dispatch_before_reads,
    )
    return Parts(
        log_files=log_files,
        pool=pool,
        committer=committer,
        allocator=allocator,
        log=log,
        flusher=flusher,
        checkpoint=checkpoint,
        queues=queues,
        index=index,
        delay_levels=delay_levels,
        dispatcher=dispatcher,
        reader=reader,
        housekeeping=housekeeping,
        retention=retention,
    )


def _flusher(
    config: StoreConfig,
    clock: Clock,
    log_files: MappedFileQueue,
    checkpoint: Checkpoint,
    committer: LogCommitter | None,
    store_clock: StoreClock,
    hooks: Hooks,
) -> LogFlusher:
    def keep_clock() -> None:
        with suppress(OSError):  # housekeeping meets the same, tells it and tries again; no message waits for that
            store_clock.keep()

    flusher = LogFlusher(
        config,
        clock,
        log_files,
        before_sync=keep_clock,
        on_failure=hooks.on_failure,
        on_thorough=lambda store_time_ms: setattr(checkpoint, "physic_msg_time_ms", store_time_ms),
        committer=committer,
    )
    flusher.add_listener(hooks.on_flushed)
    return flusher


def _queues(config: StoreConfig, files: Files, batch_topics: Container[str]) -> ConsumeQueueTable:
    return ConsumeQueueTable(
        config.consume_queue_path,
        file_bytes=config.mapped_file_size_consume_queue,
        files=files,
        open_files_max=config.open_files_max,
        ext_file_bytes=config.mapped_file_size_consume_queue_ext if config.enable_consume_queue_ext else 0,
        with_light_queues=config.with_light_queues,
        batch_file_bytes=config.mapper_file_size_batch_consume_queue,
        batch_topics=batch_topics,
    )


def _clean(retention: Retention) -> None:
    report = retention.tick()
    if not report.is_empty:
        _log.info("cleaned: %s", report)


def _write_buffers(
    config: StoreConfig,
    files: Files,
    clock: Clock,
    log_files: MappedFileQueue,
    on_commit: Callable[[], None],
    on_failure: Callable[[str], None],
) -> tuple[WriteBufferPool | None, LogCommitter | None]:
    if not config.uses_write_buffer_pool:
        return None, None
    pool = WriteBufferPool(
        files,
        buffer_count=config.transient_store_pool_size,
        buffer_bytes=config.mapped_file_size_commit_log,
    )
    return pool, LogCommitter(config, clock, log_files, pool, on_commit=on_commit, on_failure=on_failure)


def _index(
    config: StoreConfig, files: Files, clock: Clock, checkpoint: Checkpoint, bounds: StartBounds
) -> IndexService:
    return IndexService(
        config.index_path,
        slots=config.max_hash_slot_num,
        units=config.max_index_num,
        files=files,
        clock=clock,
        query_count_max=config.max_msgs_num_batch,
        bounds=bounds,
        on_sealed=lambda end_time_ms: setattr(checkpoint, "index_msg_time_ms", end_time_ms),
    )
