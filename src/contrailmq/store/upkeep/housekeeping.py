"""What a store does once a second, beside the put path: write queues out, sync them, move the checkpoint, sample.

Every second: queues that gathered units are written (no sync), filled index files are flushed, the checkpoint is
written if it changed, statistics are sampled, and other tasks run (cleaning). Every 60 seconds, and at close: all
queues are synced, then ledger and checkpoint note it, in that order. Every 60 seconds some of what was too much for
the start is compared with its checksums, and missing checksums are taken.

A full disk or a descriptor limit stops nothing here: the units stay in memory and the next round tries again, after the
other tasks had their turn (cleaning may make room). A failed sync is final, as everywhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from contrailmq._faults import LastingFault
from contrailmq.store.base.clock import Clock
from contrailmq.store.base.waking import Wake
from contrailmq.store.config import START_BOUNDS, StartBounds, StoreConfig
from contrailmq.store.files import Files, SyncError
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.recovery.checkpoint import Checkpoint
from contrailmq.store.recovery.queue_ledger import take_ledger, write_ledger

_log = logging.getLogger(__name__)


class Housekeeping:
    """Owns one thread. `tick` is one round, for tests and for callers that drive the store themselves."""

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        clock: Clock,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: Checkpoint,
        log_files: MappedFileQueue,
        on_sync_failure: Callable[[str], None],
        bounds: StartBounds = START_BOUNDS,
    ) -> None:
        self._config = config
        self._files = files
        self._clock = clock
        self._faults: dict[Callable[[], None], LastingFault] = {}
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._log_files = log_files
        self._on_sync_failure = on_sync_failure
        self._bounds = bounds
        self._last_thorough_ms = clock.monotonic_ms()
        self._asked = self._served = 0  # how often to persist soon, and how many of these were served
        self._early_tasks: list[Callable[[], None]] = []
        self._tasks: list[Callable[[], None]] = []
        self._stopping = self._stands_down = False
        self._wake = Wake()
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()
        self.error: str | None = None  # why the newest round could not finish, if it could not

    def add_task(self, task: Callable[[], None], *, early: bool = False) -> None:
        """Run this in every round, after the writing or (`early`) before it, whatever became of the others."""
        (self._early_tasks if early else self._tasks).append(task)

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="contrailmq-housekeeping", daemon=True)
        self._thread.start()

    def stand_down(self) -> None:
        """Write, sync and clean nothing any more: the files belong to others. Early tasks go on."""
        self._stands_down = True

    def stop(self) -> None:
        if self._thread is not None:
            self._stopping = True
            self._wake.set()
            self._thread.join()
            self._thread = None

    def tick(self) -> None:
        """One round; its first error is kept in `error`, all are reported, a failed sync also to the store."""
        with self._turn:
            steps = () if self._stands_down else (self._write_out, *self._tasks)
            errors = [self._try(step) for step in (*self._early_tasks, *steps)]
            self.error = next((error for error in errors if error is not None), None)

    def _try(self, work: Callable[[], None]) -> str | None:
        try:
            work()
        except OSError as exc:
            error = f"housekeeping of {self._config.path}: {exc}"
            self._fault_of(work).goes_on(exc)
            if isinstance(exc, SyncError):
                self._on_sync_failure(error)
            return error
        except Exception as exc:  # noqa: BLE001  without its thread a store cleans nothing and forgets how far it came
            error = f"housekeeping of {self._config.path}: {exc!r}"
            self._fault_of(work).goes_on(repr(exc), error=exc)
            return error
        self._fault_of(work).is_over()
        return None

    def _fault_of(self, work: Callable[[], None]) -> LastingFault:
        fault = self._faults.get(work)
        if fault is None:
            fault = self._faults[work] = LastingFault(_log, f"housekeeping of {self._config.path}")
        return fault

    def persist_in_turn(self) -> None:
        """Persist now; trouble is treated as in a round."""
        self.in_turn(self.persist)

    def in_turn(self, work: Callable[[], None]) -> None:
        """Do this between two rounds; trouble is treated as in one."""
        with self._turn:
            self.error = self._try(work)

    def persist_soon(self) -> None:
        """Have the thread persist at once: the caller may not wait for a disk."""
        self._asked += 1
        self._wake.set()

    def persist(self) -> None:
        """Sync queues and full index files, then note that in the ledger and the checkpoint."""
        mark = self._queues.flush()
        if self._index is not None:
            self._index.flush_sealed()
            self._index.take_checksums()
        ledger = take_ledger(
            self._queues,
            self._index,
            mark,
            self._log_files.files,
            boot_id=self._files.boot_id(),
            checksum_bytes_max=self._bounds.queue_bytes,
        )
        write_ledger(self._config.path, ledger, self._files)
        if mark.store_time_ms > 0:
            self._checkpoint.logics_msg_time_ms = mark.store_time_ms
            self._checkpoint.logics_physical_offset = max(0, mark.physical_offset)
        self._checkpoint.flush()

    def _write_out(self) -> None:
        now_ms = self._clock.monotonic_ms()
        asked = self._asked  # later requests are served in the next round
        is_due = now_ms >= self._last_thorough_ms + self._config.flush_consume_queue_thorough_interval
        if is_due or asked > self._served:
            self._queues.settle(self._bounds.queue_bytes)
            if self._index is not None:
                self._index.settle()
            self.persist()
            self._served, self._last_thorough_ms = asked, now_ms
        else:
            self._queues.write_pending()
            self._queues.batches.write_pending()
            if self._index is not None:
                self._index.flush_sealed()
            self._checkpoint.flush()

    def _run(self) -> None:
        interval_s = self._config.flush_interval_consume_queue / 1000
        while True:
            self._wake.wait(interval_s)
            if self._stopping:
                return
            self.tick()
