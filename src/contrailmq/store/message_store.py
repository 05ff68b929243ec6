"""MessageStore: the store as a whole. RocketMQ's DefaultMessageStore, embedded or under a broker.

Two ways to drive it, and nothing in between:

* **Embedded** (`Drive.EMBEDDED`): `put` and `put_many` return when the message is durable as configured and readable;
  any number of threads may call them. Trouble with the disk is an exception, a refused message a status. Readable means
  that a read dispatches first what puts have left (store_reads.py); nothing is left when someone listens for arrivals.
  Later readable are, with the write buffer pool, messages that are not committed yet, and under SYNC_FLUSH messages
  that did not wait (WAIT=false) for the flush.
* **By a loop** (`Drive.LOOP`): `append` writes and returns, never waiting for a disk; the loop calls `dispatch` after a
  batch of appends, `request_flush` when someone waits for durability, and hears of it through `on_durable`.

Life: `open` takes the directory's lock, loads log, queues and index, recovers, and starts the worker threads (allocate,
flush, commit, housekeeping). `close` undoes that in reverse and removes the abort file only if everything reached the
disk. `abandon` drops everything as a crash would, for tests.

When the store takes no writes, `unwritable_reason` says why, and every append is refused with it: closed, a slave, a
failed sync or files that were deleted, replaced or cut under it (final until the store is opened again), a disk above
the warning level (until there is room), no room for a queue or index file (until dispatch goes on).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Container, Sequence
from types import TracebackType
from typing import Final, Self

from contrailmq.message import encode_host
from contrailmq.store.bounds import START_BOUNDS, StartBounds
from contrailmq.store.clock import Clock, SystemClock
from contrailmq.store.commit_log import LOCALHOST
from contrailmq.store.config import StoreConfig
from contrailmq.store.errors import StoreError, StoreFullError, StoreIOError, StoreLostError, StoreReadOnlyError
from contrailmq.store.files import Files
from contrailmq.store.flush import FlushFailedError
from contrailmq.store.ground import GroundWatch
from contrailmq.store.io_errors import explained
from contrailmq.store.life import while_open
from contrailmq.store.parts import build_parts
from contrailmq.store.putting import Putter
from contrailmq.store.queue_ledger import read_ledger
from contrailmq.store.rebuild_places import finish_interrupted
from contrailmq.store.recovery import RecoveryReport, load_index, recover
from contrailmq.store.stats import StoreStats
from contrailmq.store.status import (
    Append,
    AppendResult,
    Arrival,
    BatchResult,
    Copy,
    Put,
    PutInnerBatch,
    PutMany,
    PutResult,
    PutStatus,
)
from contrailmq.store.store_clock import StoreClock
from contrailmq.store.store_lock import StoreLock, remove_abort_file, write_abort_file
from contrailmq.store.store_reads import StoreReads

_log = logging.getLogger(__name__)

_CLOSED: Final = "closed"
_LOST: Final = "files lost"
_SYNC_FAILED: Final = "sync failed"
_SLAVE: Final = "slave"
_DISK_FULL: Final = "disk full"
_STANDSTILL: Final = "standstill of dispatch"


class Drive(enum.Enum):
    """Who dispatches what was appended."""

    EMBEDDED = "embedded"
    LOOP = "loop"


class MessageStore(StoreReads):
    """A store directory. Thread-safe; a context manager.

    with MessageStore(StoreConfig(path)) as store:
        put = store.put(Message("Orders", b"..."))
        for message in store.get("Orders", 0, put.queue_offset): ...
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        drive: Drive = Drive.EMBEDDED,
        batch_topics: Container[str] = frozenset(),
        bounds: StartBounds = START_BOUNDS,
    ) -> None:
        """`batch_topics` are those with queue.type=BatchCQ; it is asked anew each time."""
        self.config = config
        self.files = files or Files()
        self.clock = clock or SystemClock()
        super().__init__()
        self._drive = drive
        self._bounds = bounds
        self._refusals: dict[str, str] = {}
        self._failure = ""
        self.lost_reason = ""  # why the files under the store are not its own any more
        self._standstill: OSError | None = None  # why dispatch cannot go on
        self._commit_listeners: list[Callable[[], None]] = []
        try:
            config = self.config = config.resolved(self.files)
        except OSError as exc:
            raise StoreIOError("looking at the store", config.path, exc) from exc
        self.store_clock = StoreClock(self.clock)
        self.stats = StoreStats(self.store_clock.steady_ms(), self.files.mapped)
        parts = build_parts(
            config,
            self.files,
            self.clock,
            self.store_clock,
            self.stats,
            on_failure=self._fail,
            on_commit=self._on_commit,
            on_flushed=self._on_flushed,
            on_disk_full=self._set_disk_full,
            on_standstill=self._stand_still,
            dispatch_before_reads=self._catch_up if drive is Drive.EMBEDDED else None,
            batch_topics=batch_topics,
            bounds=bounds,
        )
        self._log_files, self._log, self._allocator = parts.log_files, parts.log, parts.allocator
        self._pool, self._committer, self._flusher = parts.pool, parts.committer, parts.flusher
        self._queues, self._index, self.checkpoint = parts.queues, parts.index, parts.checkpoint
        self._dispatcher, self._reader, self._housekeeping = parts.dispatcher, parts.reader, parts.housekeeping
        self._delay_levels, self._retention = parts.delay_levels, parts.retention
        self.new_queues = parts.queues.created  # who dispatches may look at it, and clears it
        self._lock = StoreLock(self.files, config.lock_path)
        self._ground = GroundWatch(self.files, self._log_files, config.lock_path, on_lost=self._lose)
        self._facts = self._log.facts
        self._putter = self._new_putter()
        self.put: Put = self._putter.put
        self.put_many: PutMany = self._putter.put_many
        self.put_inner_batch: PutInnerBatch = self._putter.put_inner_batch
        self.append: Append = self._log.append
        reader = parts.reader
        self.get_slices, self.get_slices_sound = reader.get, reader.get_sound
        self.get_slices_warm, self.get_slices_cold = reader.get_warm, reader.get_cold
        self.append_copies: Callable[[Sequence[Copy]], int] = self._log.append_copies
        self._shut()

    def _new_putter(self) -> Putter:
        return Putter(
            self.config,
            self.store_clock,
            self._log,
            self._flusher,
            self._committer,
            self._dispatcher,
            self.stats,
            store_host=_encoded_address(self.config.store_host_address),
            confirm_offset=lambda: self._confirmed_offset,
            on_refusal=self._raise_if_unusable,
        )

    # --- life

    def open(self) -> Self:
        """Lock, load, recover, start. StoreLockedError, CorruptStoreError, StoreIOError: it then holds nothing."""
        config = self.config
        if self._was_opened:
            raise StoreError(f"store {config.path} was opened before: make a new MessageStore to open it again")
        self._entered()
        if config.unused_keys:
            _log.info("settings of RocketMQ's without effect here: %s", ", ".join(config.unused_keys))
        try:
            self.files.make_directory(config.path)
            self._lock.acquire()
            finish_interrupted(config.path, self.files)
            self.recovery = self._recover()
            self._reader.residency.opened()
            self._start()
        except OSError as exc:
            self._undo_open()
            raise explained("opening the store", exc, config, self.files) from exc
        except BaseException:  # Ctrl-C in a long recovery, too: what was opened is closed, then whoever called decides
            self._undo_open()
            raise
        return self

    def _undo_open(self) -> None:
        self._stop_threads()
        self._drop()
        self._left()
        self._shut()

    def _recover(self) -> RecoveryReport:
        config = self.config
        was_clean_exit = not self.files.exists(config.abort_path)
        self._log_files.load()
        if not was_clean_exit:
            for file in self._log_files.files[-2:]:  # the disk works while we walk; the sync is below
                self.files.start_writing(file.descriptor)
        damaged = self._queues.load()
        checkpoint = self.checkpoint.load()
        ledger = read_ledger(config.path, self.files)
        index_damage: list[str] = []
        if self._index is not None:
            index_damage = load_index(
                self._index,
                checkpoint,
                ledger,
                self._log_files.files,
                was_clean_exit=was_clean_exit,
                boot_id=self.files.boot_id(),
            )
        report = recover(
            self._log_files,
            self._queues,
            self._index,
            checkpoint=checkpoint,
            ledger=ledger,
            was_clean_exit=was_clean_exit,
            delay_levels=self._delay_levels,
            damaged=damaged,
            index_damage=index_damage,
            boot_id=self.files.boot_id(),
            check_body_crc=config.check_crc_on_recover,
            check_record_crc=config.check_crc_on_recover and config.force_verify_prop_crc,
            bounds=self._bounds,
        )
        if not was_clean_exit or report.cut_bytes:
            # A killed process leaves pages that no sync has covered. From here on they count as durable: make it true.
            # And what recovery erased behind the end must not come back.
            for file in self._log_files.files:
                if file.end > report.walked_from:
                    self.files.sync(file.descriptor)
        return report

    def _start(self) -> None:
        self._dispatcher.mark = self._log_files.max_offset
        last_time_ms = self._log.last_time_ms = self.recovery.last_store_time_ms
        self.store_clock.opened(self._log.lock, lambda: self._log_files.wrote_offset, last_store_time_ms=last_time_ms)
        self._allocator.start()
        self._log.start_writing(self._queues.next_offsets())
        if self.config.is_slave:
            self._refuse(_SLAVE, "this broker is a slave: send to its master")
        if self._committer is not None:
            self._committer.start()
        self._flusher.start()
        self._housekeeping.add_task(self._sample, early=True)
        self._housekeeping.start()
        write_abort_file(self.files, self.config.abort_path)
        if not self.recovery.is_vouched_for:
            # Until the first flush a minute from now a kill would make the next start feed the index from the log.
            self._housekeeping.persist()
        self._ground.start(self._lock.descriptor)
        self._is_open = True
        self._reader.closed = None
        self._allow(_CLOSED)

    def _shut(self) -> None:
        """From here on nobody reads or writes."""
        self._is_open = False
        self._reader.closed = self._closed_error
        self._refuse(_CLOSED, str(self._closed_error()))

    def _forked(self) -> None:
        super()._forked()
        self._refusals.clear()
        self._shut()

    @property
    def _is_in_listener(self) -> bool:
        return super()._is_in_listener or self._dispatcher.is_dispatching_here

    def close(self) -> None:
        """Make everything durable and let go of the directory. Idempotent; trouble is logged, and recovered later.

        A listener cannot call it (StoreError). In a forked child it does nothing: the store is the parent's.
        """
        if not self._is_open:
            return
        self._check_not_in_listener("close")
        self._ground.tick()  # what took the place of our files must not get our last words
        self._shut()
        self._log.stop_writing()
        self._stop_threads()
        try:
            if not self._is_final and self._persist_all():
                remove_abort_file(self.files, self.config.abort_path)
        except (OSError, FlushFailedError) as exc:
            _log.error("store %s was not closed cleanly, the next start will recover it: %s", self.config.path, exc)
        finally:
            self._drop()
            self._left()

    def abandon(self) -> None:
        """Drop the store as a killed process would: nothing is flushed, the abort file stays. For tests."""
        if self._is_open:
            self._check_not_in_listener("abandon")
            self._shut()
            self._log.stop_writing()
            self._stop_threads()
            self._drop()
            self._left()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop_threads(self) -> None:
        self._ground.stop()
        self._housekeeping.stop()
        if self._committer is not None:
            self._committer.stop()
        self._flusher.stop()
        self._allocator.stop()

    def _persist_all(self) -> bool:
        """The last flush of log, queues, index and checkpoint; False when something was left undispatched."""
        while self._flusher.durable_offset < self._log_files.wrote_offset:
            if not self._flusher.flush(0):
                break
        self._dispatcher.dispatch(self._confirmed_offset)
        if self._index is not None:
            self._index.flush()
        self._housekeeping.persist()
        return self._dispatcher.mark >= self._log_files.max_offset

    def _drop(self) -> None:
        self._dispatcher.forget()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._log_files.close()
        if self._pool is not None:
            self._pool.close()
        self._lock.release()

    # --- may it be written?

    @property
    def writable(self) -> bool:
        return not self._refusals

    @property
    def unwritable_reason(self) -> str:
        return next(iter(self._refusals.values()), "")

    def _refuse(self, kind: str, reason: str) -> None:
        self._refusals[kind] = reason
        self._log.refusal = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self.unwritable_reason)

    def _allow(self, kind: str) -> None:
        self._refusals.pop(kind, None)
        reason = self.unwritable_reason
        self._log.refusal = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason) if reason else None

    def set_disk_full(self, reason: str | None) -> None:
        """Cleaning found the disk above the warning level (or, with None, below it again)."""
        self._check_not_closed()
        self._set_disk_full(reason)

    def _set_disk_full(self, reason: str | None) -> None:
        if reason is None:
            self._allow(_DISK_FULL)
        else:
            self._refuse(_DISK_FULL, reason)

    def _stand_still(self, error: OSError | None) -> None:
        """Dispatch cannot go on, or (None) went on: puts are refused meanwhile, and reading goes on."""
        is_new, self._standstill = self._standstill is None, error
        if error is None:
            self._allow(_STANDSTILL)
            _log.info("store %s: dispatch went on, puts are taken again", self.config.path)
            return
        cause = explained("dispatching to queues and index of", error, self.config, self.files)
        reason = (
            f"{cause}; messages behind offset {self._dispatcher.mark} cannot be read, and no more are taken, until "
            "dispatch goes on (it is tried again by itself)"
        )
        self._refuse(_STANDSTILL, reason)
        if is_new:
            _log.error("store %s: dispatch stopped: %s", self.config.path, reason)

    @property
    def standstill_reason(self) -> str:
        """Why dispatch cannot go on; empty when it can. A loop then calls `dispatch` again, once a second."""
        return self._refusals.get(_STANDSTILL, "")

    def _fail(self, cause: str) -> None:
        """A sync failed: final."""
        self._refuse(_SYNC_FAILED, str(StoreReadOnlyError(self.config.path, cause=cause)))
        self._failure = cause

    def _lose(self, cause: str) -> None:
        """The files are not ours any more: final. Nothing is written by name, which may lead to another's store."""
        error = StoreLostError(self.config.path, cause=cause)
        self.lost_reason = str(error)
        self._failure = cause
        self.files.fence(self.lost_reason)
        self._housekeeping.stand_down()
        self._refusals = {_LOST: self.lost_reason, **self._refusals}  # first: it is the reason of what follows
        self._refuse(_LOST, self.lost_reason)
        _log.error("%s", error)

    def _check_not_lost(self) -> None:
        if self.lost_reason:
            raise StoreLostError(self.config.path, cause=self._failure)

    @property
    def _is_final(self) -> bool:
        """Whether nothing may be written until the store is opened again."""
        return _SYNC_FAILED in self._refusals or _LOST in self._refusals

    def _raise_if_unusable(self, result: PutResult) -> None:
        if result.status is PutStatus.CREATE_MAPPED_FILE_FAILED and self._log.last_error is not None:
            raise self._log.last_error
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            self._check_not_lost()
            if _SYNC_FAILED in self._refusals:
                raise StoreReadOnlyError(self.config.path, cause=self._failure)
            if _CLOSED in self._refusals:
                raise self._closed_error()
            if _DISK_FULL in self._refusals:
                free, needed = (
                    self.files.disk_usage(self.config.path).free_bytes,
                    self.config.mapped_file_size_commit_log,
                )
                reason = self._refusals[_DISK_FULL]
                raise StoreFullError(self.config.path, free_bytes=free, needed_bytes=needed, reason=reason)
            if (cause := self._standstill) is not None:
                raise explained("dispatching to queues and index of", cause, self.config, self.files) from cause

    # --- by a loop: nothing here waits for a disk

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        *,
        sys_flag: int = 0,
        born_time_ms: int = 0,
        born_host: bytes = LOCALHOST,
        store_host: bytes = LOCALHOST,
        reconsume_times: int = 0,
    ) -> BatchResult:
        """A client's batch as one record for each part, in one file, all or nothing. Neither durable nor dispatched.

        Raises MessageError for one that is malformed (message/batch.py has its form).
        """
        return self._log.append_batch(
            topic,
            queue_id,
            batch,
            sys_flag=sys_flag,
            born_time_ms=born_time_ms,
            born_host=born_host,
            store_host=store_host,
            reconsume_times=reconsume_times,
        )

    @while_open
    def append_raw(self, offset: int, data: bytes | memoryview) -> bool:
        """A master's bytes, on a slave; False when they do not continue the log at exactly this offset."""
        self._check_not_lost()
        return self._log.append_raw(offset, data)

    @while_open
    def dispatch(self) -> int:
        """Bring queues and index up to the confirmed end of the log, and tell listeners; how many records."""
        return self._dispatcher.dispatch(self._confirmed_offset)

    @property
    @while_open
    def dispatched_offset(self) -> int:
        """Queues and index hold everything before this offset."""
        self._reader.catch_up()
        return self._dispatcher.mark

    @property
    @while_open
    def appended_offset(self) -> int:
        """The end of what was appended: the next record begins there, or in the next file."""
        return self._log_files.wrote_offset

    @property
    @while_open
    def durable_offset(self) -> int:
        return self._log_files.flushed_where

    @property
    def flush_count(self) -> int:
        """How many syncs of the log moved the durable offset."""
        return self._flusher.flush_count

    @while_open
    def request_flush(self) -> None:
        """Wake the flush thread (and the committer): someone waits for durability."""
        if self._committer is not None and not self.config.is_sync_flush:
            self._committer.request()
        else:
            self._flusher.request()

    @while_open
    def flush(self, offset: int | None = None) -> None:
        """Make the log durable up to an offset (all of it by default), in this thread. Raises StoreReadOnlyError."""
        self._check_not_lost()
        end = self._log_files.wrote_offset if offset is None else offset
        try:
            while not self._flusher.wait(end, self.config.sync_flush_timeout / 1000):
                _log.warning("the log is not durable up to %d yet: the disk is slow", end)
        except FlushFailedError as exc:
            raise StoreReadOnlyError(self.config.path, cause=str(exc)) from exc

    def on_durable(self, listener: Callable[[int], None]) -> None:
        """Called by the flushing thread with the durable offset when it grew, with -1 when a sync failed (final)."""
        self._check_not_closed()
        self._flusher.add_listener(self._guarded(listener))

    def on_committed(self, listener: Callable[[], None]) -> None:
        """Called by the committing thread when the write buffer pool made more of the log readable."""
        self._check_not_closed()
        self._commit_listeners.append(self._guarded(listener))

    def add_arrival_listener(
        self, listener: Callable[[Arrival], None], *, queues: Container[tuple[str, int]] | None = None
    ) -> None:
        """Called by whoever dispatches, after a message became readable.

        With `queues`, only for those (topic, queue) that are in it then. It is asked once for the messages of a queue
        that follow each other and became readable together: telling costs 0.7 us each.
        """
        self._check_not_closed()
        self._putter.lag_max = 0
        if queues is None:
            self._dispatcher.listeners.append(listener)
        else:
            self._dispatcher.watchers.append((queues, listener))

    def add_dispatcher(self, hook: Callable[[Arrival], bytes | None]) -> None:
        """Called for each record before its unit is written; the bytes that it gives, a filter's bit map, go into the
        unit's extension (enableConsumeQueueExt), where `MessageFilter.match_unit` finds them."""
        self._check_not_closed()
        self._putter.lag_max = 0
        self._dispatcher.hooks.append(hook)

    def _on_commit(self) -> None:
        if self._drive is Drive.EMBEDDED and len(self._facts) >= self._putter.lag_max:
            self._catch_up()
        for listener in self._commit_listeners:
            listener()

    def _on_flushed(self, offset: int) -> None:
        # Messages that nobody waited for (WAIT=false) become readable when a flush has covered them: tell who listens.
        if self._putter.lag_max == 0 and self._drive is Drive.EMBEDDED and offset >= 0:
            self._catch_up()

    # --- administration

    def set_batch_topics(self, topics: Container[str]) -> None:
        """Which topics have queue.type=BatchCQ; it is asked anew each time. One with ordinary queues keeps those."""
        self._check_not_closed()
        self._queues.batches.topics = topics

    @while_open
    def delete_topics(self, topics: Sequence[str]) -> int:
        """Destroy the queues of these topics; how many queues. Their messages stay in the log until it is cleaned.

        On return it is on the disk that they are gone: from the log alone a crash would bring them back. (A loop does
        not wait for that: the housekeeping thread sees to it at once.)
        """
        self._reader.catch_up()
        names = set(topics)
        self._dispatcher.leave_out(names)
        for state in self._log.states:
            if state.topic in names:
                self._log.forget_queue(state.topic, state.queue_id)
        doomed = [queue for queue in (*self._queues, *self._queues.batches) if queue.topic in names]
        for queue in doomed:
            self._queues.delete(queue.topic, queue.queue_id)
        if doomed and self._drive is Drive.EMBEDDED:
            self.flush()
            self._housekeeping.persist_in_turn()
        elif doomed:
            self.request_flush()
            self._housekeeping.persist_soon()
        return len(doomed)

    @while_open
    def clean_expired_queues(self) -> int:
        """Destroy queues whose newest message is gone from the log, system topics excepted; how many."""
        self._reader.catch_up()
        removed = self._retention.clean_expired_queues()
        for topic, queue_id in removed:
            self._log.forget_queue(topic, queue_id)
        return len(removed)

    @while_open
    def delete_expired_files_now(self) -> None:
        """Delete log files past their time at the next rounds of housekeeping, at whatever hour."""
        self._retention.delete_now()

    @while_open
    def tick(self) -> None:
        """One round of housekeeping, now, and a look at whether the files are still there."""
        self._ground.tick()
        self._housekeeping.tick()

    @while_open
    def runtime_info(self) -> dict[str, str]:
        """RocketMQ's run-time keys of a store."""
        self._count_puts()
        info = self.stats.runtime_info(self.store_clock.steady_ms())
        return info | {
            "commitLogDiskRatio": str(self.files.disk_usage(self.config.commit_log_paths[0]).used_ratio),
            "consumeQueueDiskRatio": str(self.files.disk_usage(self.config.consume_queue_path).used_ratio),
            "commitLogMinOffset": str(self._log_files.min_offset),
            "commitLogMaxOffset": str(self._log_files.max_offset),
            "damagedRecords": str(self._reader.damage.count),
        }

    def _sample(self) -> None:
        self._count_puts()
        self.stats.sample(self.store_clock.steady_ms())
        if self._drive is Drive.LOOP:
            return
        self.store_clock.look()  # a loop does that itself, not between a message and its put
        if self._facts or self._dispatcher.stuck_reason is not None:
            self._catch_up()

    def _count_puts(self) -> None:
        states = self._log.states
        self.stats.put_count = sum(state.put_count for state in states)
        self.stats.put_bytes = sum(state.put_bytes for state in states)


def _encoded_address(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]") or "127.0.0.1", int(port))
