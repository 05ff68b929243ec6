"""When bytes of the log become durable, and who waits for that.

The rule: under SYNC_FLUSH a put is acknowledged only after an fdatasync that began when its bytes were in the file has
returned without error. `LogFlusher.durable_offset` is that promise as a number.

One flush runs at a time. If it did not cover a waiting thread's offset, that thread leads the next flush, for
everything appended by then. So writers that arrive during a flush share the next one (group commit), and a lone writer
syncs in its own thread, which saves a thread hop. After a flush that released many writers, the leader waits for about
as many new requests, but no longer than the last flush took or than so many puts take: without that pause 64 writers
share a sync by twos and threes, with it by dozens. The broker's loop must not block: it calls `request`, and the flush
thread leads. The thread, per flushDiskType:
* SYNC_FLUSH: sleeps until requested, at most `flush_interval_commit_log`, then flushes everything.
* ASYNC_FLUSH: every `flush_interval_commit_log` (500 ms) flushes if 4 pages are due, and everything each 10 s.
Only thorough flushes move the checkpoint's physical time: a partial one does not say which store time it covered.

A failed sync is final, because the kernel may have dropped the pages: the flusher keeps the cause, refuses every wait,
reports -1 to the listeners, and the store turns read-only. With the write buffer pool a second thread copies buffers to
the files (`LogCommitter`); a sync flush commits first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from contrailmq.store.base.clock import Clock
from contrailmq.store.base.stats import Durations
from contrailmq.store.base.waking import Sleepers, Wake
from contrailmq.store.config import StoreConfig
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.log.write_buffer_pool import WriteBufferPool

_log = logging.getLogger(__name__)

SYNC_FAILED: Final = -1  # what listeners get instead of an offset
GATHER_MANY: Final = 8  # writers: for fewer the time of a flush is all that may be spent on waiting for them
GATHER_S_EACH: Final = 0.0002  # a put and a thread's switch: how long one released writer may need to come again
GATHER_S_MAX: Final = 0.01  # the longest a leader waits for writers that may put again


class FlushFailedError(Exception):
    """Internal: the log cannot be made durable any more. The store turns it into StoreReadOnlyError with the path."""


class Led(Enum):
    """What came of trying to lead a flush."""

    NOT = auto()  # another thread leads
    ON = auto()  # the durable offset grew
    IN_VAIN = auto()  # there was nothing to flush


class LogFlusher:
    """Owns `files.flushed_where`. `on_failure` is called once, with the cause, by the thread that met it; `before_sync`
    before each flush, for what must be durable before a record is."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        files: MappedFileQueue,
        *,
        on_failure: Callable[[str], None],
        on_thorough: Callable[[int], None],
        before_sync: Callable[[], None],
        committer: LogCommitter | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._files = files
        self._on_failure = on_failure
        self._on_thorough = on_thorough
        self._before_sync = before_sync
        self._committer = committer
        self._listeners: list[Callable[[int], None]] = []
        self._lock = threading.Lock()  # guards the six below
        self._is_flushing = False
        self._waiting = 0  # requests that no flush covers yet, not even the one that runs
        self._released = 0  # requests that the last flush covered
        self._flush_s = 0.0  # how long it took
        self._sleepers = Sleepers()  # until the flush that runs is over
        self._gathering = 0  # how many requests the leader waits for; 0 when it does not
        self._gathered = Wake()  # they have come
        self._wake = Wake()
        self._stopping = False
        self._worker: threading.Thread | None = None
        self._last_thorough_ms = clock.monotonic_ms()
        self.failure: str | None = None
        self.flush_count = 0
        self.flush_times = Durations()  # of flushes that moved the durable offset

    @property
    def durable_offset(self) -> int:
        """Everything before this offset is on the disk."""
        return self._files.flushed_where

    def add_listener(self, listener: Callable[[int], None]) -> None:
        """Called with the durable offset whenever it grew, by the thread that flushed; with -1 when a sync failed."""
        self._listeners.append(listener)

    def start(self) -> None:
        self._stopping = False
        self._worker = threading.Thread(target=self._run, name="contrailmq-flush", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End the thread. Flushing the rest is the caller's next step (`flush(0)`)."""
        if self._worker is not None:
            self._stopping = True
            self._wake.set()
            self._worker.join()
            self._worker = None

    def request(self) -> None:
        """Wake the thread: something waits to become durable. Never blocks."""
        self._wake.set()

    def wait(self, offset: int, timeout_s: float) -> bool:
        """Make the log durable up to `offset`, by this thread or another; False when the time was up first.

        A thread whose own sync stalls stays in it: the time limit is for those that wait behind it.
        """
        deadline = 0.0
        with self._lock:
            if self._files.flushed_where >= offset:
                return True
            self._waiting += 1
            if 0 < self._gathering <= self._waiting:
                self._gathered.set()
        while True:
            with self._lock:
                if self._files.flushed_where >= offset:
                    return True
                over = self._sleepers.enter() if self._is_flushing else None
                if over is None and self.failure is not None:
                    raise FlushFailedError(self.failure)
            if over is not None:
                now = time.monotonic()
                deadline = deadline or now + timeout_s
                if now >= deadline:
                    return False
                over.wait(deadline - now)
            elif self._lead(0, gathers=True) is Led.IN_VAIN:
                return self._files.flushed_where >= offset  # nothing was left to flush

    def flush(self, least_pages: int = 0) -> bool:
        """Flush now; True when the durable offset grew."""
        while True:
            with self._lock:
                over = self._sleepers.enter() if self._is_flushing else None
            if over is not None:
                over.wait()
                continue
            led = self._lead(least_pages, gathers=False)
            if led is not Led.NOT:
                return led is Led.ON

    def _lead(self, least_pages: int, *, gathers: bool) -> Led:
        """Run one flush, if none runs.

        An interrupt (Ctrl-C, a signal handler that raises) may end this at any point, and must leave no lock and no
        flag behind: hence the flag before the `try` ends, plain locks (waking.py), and the loop at the end.
        """
        leads, covered = False, 0
        try:
            with self._lock:
                if self._is_flushing:
                    return Led.NOT
                leads = self._is_flushing = True
                if gathers and self._waiting < self._released:
                    self._gathering, self._gathered = self._released, Wake()
            if self._gathering:
                by_count_s = self._released * GATHER_S_EACH if self._released >= GATHER_MANY else 0.0
                self._gathered.wait(min(max(self._flush_s, by_count_s), GATHER_S_MAX))
            with self._lock:  # what is asked for from here on was appended, perhaps, too late for this flush
                covered, self._waiting = self._waiting, 0
            started = time.monotonic()
            moved = self._flush_in_turn(least_pages)
            self._flush_s = time.monotonic() - started
            if moved:
                self.flush_times.note(int(self._flush_s * 1_000_000))
            return Led.ON if moved else Led.IN_VAIN
        finally:
            interrupt: BaseException | None = None
            while leads:
                try:
                    with self._lock:
                        self._released = covered
                        self._gathering = 0
                        self._is_flushing = False
                        self._sleepers.wake_all()
                        leads = False
                except BaseException as exc:  # noqa: BLE001  raised below
                    interrupt = exc
            if interrupt is not None:
                raise interrupt

    def _flush_in_turn(self, least_pages: int) -> bool:
        if self.failure is not None:
            raise FlushFailedError(self.failure)
        self._before_sync()
        try:
            if self._committer is not None:
                self._committer.commit(0)
            moved = self._files.flush(least_pages)
        except OSError as exc:
            raise FlushFailedError(self._fail(exc)) from exc
        if moved:
            self.flush_count += 1
            if least_pages == 0 and self._files.store_time_ms > 0:
                self._on_thorough(self._files.store_time_ms)
            self._tell(self._files.flushed_where)
        return moved

    def _fail(self, error: OSError) -> str:
        """Note the cause, once and for all, and tell everybody."""
        failure = self.failure = (
            f"syncing the commit log at offset {self._files.flushed_where} failed: "
            f"{error.strerror or error} (errno {error.errno})"
        )
        _log.critical("%s", failure)
        self._on_failure(failure)
        self._tell(SYNC_FAILED)
        return failure

    def _tell(self, offset: int) -> None:
        for listener in self._listeners:
            listener(offset)

    def _run(self) -> None:
        interval_s = self._config.flush_interval_commit_log / 1000
        while not self._stopping:
            self._wake.wait(interval_s)
            try:
                self.flush(self._pages_due())
            except FlushFailedError:
                return
            except Exception as exc:
                self._on_failure(f"the thread that flushes the commit log ended: {exc!r}")
                raise

    def _pages_due(self) -> int:
        if self._config.is_sync_flush:
            return 0
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._last_thorough_ms + self._config.flush_commit_log_thorough_interval:
            return self._config.flush_commit_log_least_pages
        self._last_thorough_ms = now_ms
        return 0


class LogCommitter:
    """Copies write buffers to their files; owns `files.committed_where`. `on_commit` runs in the committing thread."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        files: MappedFileQueue,
        pool: WriteBufferPool,
        *,
        on_commit: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._files = files
        self._pool = pool
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._turn = threading.Lock()
        self._wake = Wake()
        self._stopping = False
        self._worker: threading.Thread | None = None
        self._is_news = False  # a flush has committed, and `on_commit` does not know yet
        self._last_commit_ms = clock.monotonic_ms()

    def start(self) -> None:
        self._stopping = False
        self._worker = threading.Thread(target=self._run, name="contrailmq-commit", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        if self._worker is not None:
            self._stopping = True
            self._wake.set()
            self._worker.join()
            self._worker = None

    def request(self) -> None:
        self._wake.set()

    def commit(self, least_pages: int) -> bool:
        """As a flush does: copy what is due to the files (no sync), and have the committing thread say so."""
        moved = self._commit(least_pages)
        if moved:
            self._is_news = True
            self._wake.set()
        return moved

    def _commit(self, least_pages: int) -> bool:
        """True when something moved. OSError: nothing was lost, try again."""
        with self._turn:
            moved = self._files.commit(least_pages)
            for file in moved:
                buffer = file.detach_write_buffer()
                if buffer is not None:
                    self._pool.give_back(buffer)
            return bool(moved)

    def _run(self) -> None:
        interval_s = self._config.commit_interval_commit_log / 1000
        while not self._stopping:
            now_ms = self._clock.monotonic_ms()
            is_thorough = now_ms >= self._last_commit_ms + self._config.commit_commit_log_thorough_interval
            try:
                moved = self._commit(0 if is_thorough else self._config.commit_commit_log_least_pages)
            except OSError as exc:
                self._on_failure(f"writing the write buffer to the commit log failed: {exc}")
                return
            except Exception as exc:
                self._on_failure(f"the thread that commits write buffers ended: {exc!r}")
                raise
            if moved:
                self._last_commit_ms = self._clock.monotonic_ms()
            if moved or self._is_news:
                self._is_news = False
                self._on_commit()
            self._wake.wait(interval_s)
