"""Makes the next commit-log file before it is needed.

A worker makes file N+1 while file N is being written, so a roll-over costs a put only the switch. It creates the file,
sets its length, reserves real blocks (`posix_fallocate`, so a full disk is an error here and not a SIGBUS in a put),
optionally writes it once (`pre_write_commit_log`, which makes syncs 2-3 times faster), syncs file and directory, and
maps it. The length is set first, in one step: a crash leaves an empty last file or one of zeros, and recovery (also
Apache's) takes both for unwritten. The worker also faults pages in ahead of the write position, up to `prefault_bytes`.
Not under SYNC_FLUSH: such a page is dirty, and the next sync would write megabytes of zeros for one record.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrailmq.store.base.errors import StoreError, StoreFullError, StoreIOError
from contrailmq.store.base.waking import Wake
from contrailmq.store.config import StoreConfig
from contrailmq.store.files import MADV_RANDOM, MADV_WILLNEED, PAGE_BYTES, Files, SyncError
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.log.write_buffer_pool import WriteBufferPool

_log = logging.getLogger(__name__)

TAKE_TIMEOUT_S: Final = 5.0  # RocketMQ's AllocateMappedFileService waits as long
_PRE_WRITE_CHUNK: Final = bytes(1 << 20)
PRE_WRITE_PAUSE_RATIO: Final = 3  # a quarter of the disk's time: a 1 GiB file is ready long before the log needs it


class NoWriteBufferError(StoreError):
    """The write buffer pool is empty and fastFailIfNoBufferInStorePool refuses to wait for it."""

    retriable = True

    def __init__(self, path: Path, *, buffer_count: int) -> None:
        super().__init__(
            f"{path}: all {buffer_count} write buffers are in use: raise transientStorePoolSize or slow down"
        )


class Allocator:
    """Owns one worker thread. `take` may be called by one thread at a time (under the put lock)."""

    def __init__(
        self,
        files: Files,
        config: StoreConfig,
        log_files: MappedFileQueue,
        pool: WriteBufferPool | None,
        *,
        on_sync_failure: Callable[[str], None],
    ) -> None:
        self._files = files
        self._config = config
        self._log_files = log_files
        self._pool = pool
        self._on_sync_failure = on_sync_failure
        self._is_awaited = False  # a put needs the file that is being made
        self._hurry = Wake()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the three below; plain in each `with`, for interrupts (waking.py)
        self._changed = threading.Condition(self._lock)
        self._asked: set[int] = set()
        self._ready: dict[int, MappedFile] = {}
        self._failed: dict[int, StoreError] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="contrailmq-allocate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the worker and remove the files that were made but not used."""
        if self._thread is not None:
            self._hasten()
            self._tasks.put(None)
            self._thread.join()
            self._thread = None
        for file in self._ready.values():
            self._discard(file)
        self._ready.clear()

    def prepare(self, base: int) -> None:
        """Have the file of this base made, unless that was asked before."""
        with self._lock:
            if base in self._asked or base in self._ready:
                return
            self._asked.add(base)
            self._failed.pop(base, None)
        self._tasks.put(lambda: self._prepare(base))

    def take(self, base: int) -> MappedFile:
        """The file of this base, waiting for it at most 5 s; the one after it is prepared in the meantime.

        Raises StoreFullError or StoreIOError. A failure is not remembered: the next call tries again, so the store
        goes on by itself when there is space.
        """
        with self._lock:
            if base in self._failed:
                del self._failed[base]
        self.prepare(base)
        self._hasten()
        with self._lock:
            self._changed.wait_for(lambda: base in self._ready or base in self._failed, TAKE_TIMEOUT_S)
            file = self._ready.pop(base, None)
            failure = self._failed.pop(base, None)
        self._is_awaited = False
        if file is None:
            path = self._log_files.path_of(base)
            timeout = OSError(errno.ETIMEDOUT, f"the next file was not ready within {TAKE_TIMEOUT_S:.0f} s")
            raise failure or StoreIOError("allocate", path, timeout)
        self.prepare(file.end)
        return file

    def _hasten(self) -> None:
        self._is_awaited = True
        self._hurry.set()

    def prefault_ahead(self, file: MappedFile, position: int) -> int:
        """Have pages after `position` faulted in by the worker; the position at which to call again."""
        window = 0 if self._config.is_sync_flush or file.write_buffer is not None else self._config.prefault_bytes
        if window < PAGE_BYTES:
            return file.size_bytes
        self._tasks.put(lambda: self._prefault(file, position, window))
        return position + window // 2

    # --- in the worker

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _prepare(self, base: int) -> None:
        path = self._log_files.path_of(base, self._is_usable)
        file: MappedFile | None = None
        failure: StoreError | None = None
        try:
            self._drop_others(base)
            file = self._make(path)
        except OSError as exc:
            failure = self.explained(path, exc)
            if isinstance(exc, SyncError):
                self._on_sync_failure(str(failure))
        except StoreError as exc:
            failure = exc
        with self._lock:
            self._asked.discard(base)
            if file is not None:
                self._ready[base] = file
            elif failure is not None:
                self._failed[base] = failure
            self._changed.notify_all()

    def _drop_others(self, base: int) -> None:
        """A slave that began empty goes on with its master's newest file: the one made for offset 0 goes, on the disk
        too, before there is another. A kill in between would leave it as a part of the log, with a gap behind it."""
        for other in [file for file in self._ready.values() if file.base != base]:
            other.destroy(0, force_after_ms=0)
            self._files.sync_directory(other.path.parent)
            with self._lock:
                del self._ready[other.base]
            self._give_back(other)

    def _make(self, path: Path) -> MappedFile:
        if self._pool is not None and self._config.fast_fail_if_no_buffer_in_store_pool and not self._pool.free_count:
            raise NoWriteBufferError(path, buffer_count=self._config.transient_store_pool_size)
        size_bytes = self._config.mapped_file_size_commit_log
        descriptor = self._files.open(path, create=True)
        try:
            self._files.truncate(descriptor, 0)  # a leftover of an earlier failure must not show through
            self._files.truncate(descriptor, size_bytes)
            self._files.allocate(descriptor, size_bytes)
            if self._config.pre_writes_commit_log:
                self._pre_write(descriptor, size_bytes)
            self._files.sync(descriptor)
            self._files.sync_directory(path.parent)
            buffer = self._pool.borrow() if self._pool is not None else None
            file = MappedFile(
                self._files, path, size_bytes, descriptor=descriptor, is_allocated=True, write_buffer=buffer
            )
        except OSError:
            self._files.close(descriptor)
            self._files.unlink(path)
            raise
        self._tune(file)
        return file

    def _pre_write(self, descriptor: int, size_bytes: int) -> None:
        """Write the file once; in steps with pauses, because puts sync on the same disk, unless one of them waits."""
        for position in range(0, size_bytes, len(_PRE_WRITE_CHUNK)):
            started = time.monotonic()
            self._files.pwrite(descriptor, memoryview(_PRE_WRITE_CHUNK)[: size_bytes - position], position)
            self._files.sync(descriptor)
            if not self._is_awaited:
                self._hurry.wait((time.monotonic() - started) * PRE_WRITE_PAUSE_RATIO)

    def _tune(self, file: MappedFile) -> None:
        if not self._config.data_read_ahead_enable:
            self._files.advise(file.mapping, MADV_RANDOM)
        if not self._config.warm_maped_file_enable or file.write_buffer is not None:
            return
        step = max(1, self._config.flush_least_pages_when_warm_maped_file) * PAGE_BYTES
        for start in range(0, file.size_bytes, step):
            size_bytes = min(step, file.size_bytes - start)
            if not self._files.prefault(file.mapping, start, size_bytes):
                for position in range(start, start + size_bytes, PAGE_BYTES):
                    file.mapping[position] = 0
            if self._config.is_sync_flush:
                self._files.sync_map(file.mapping, start, size_bytes)
        try:
            self._files.lock_memory(file.mapping)
            file.is_locked_in_memory = True
        except OSError as exc:
            _log.warning("%s is not locked in memory: %s (raise the memlock limit or turn warm-up off)", file.path, exc)
        self._files.advise(file.mapping, MADV_WILLNEED)

    def unlock(self, file: MappedFile) -> None:
        """munlock a file that the log has left."""
        if file.is_locked_in_memory:
            file.is_locked_in_memory = False
            self._tasks.put(lambda: self._unlock(file))

    def _unlock(self, file: MappedFile) -> None:
        if file.hold():
            try:
                self._files.unlock_memory(file.mapping)
            except OSError as exc:
                _log.warning("%s stays locked in memory: %s", file.path, exc)
            finally:
                file.release()

    def _prefault(self, file: MappedFile, position: int, window: int) -> None:
        if file.hold():
            try:
                self._files.prefault(file.mapping, position, min(window, file.size_bytes - position))
            finally:
                file.release()

    def _is_usable(self, directory: Path) -> bool:
        frozen = {part.strip() for part in self._config.read_only_commit_log_store_paths.split(",")}
        if str(directory) in frozen:
            return False
        forced_ratio = self._config.disk_space_clean_forcibly_ratio / 100
        return len(self._log_files.directories) == 1 or self._files.disk_usage(directory).used_ratio <= forced_ratio

    def explained(self, path: Path, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = self._files.disk_usage(path.parent).free_bytes
            return StoreFullError(path, free_bytes=free, needed_bytes=self._config.mapped_file_size_commit_log)
        return StoreIOError("allocate", path, error)

    def _discard(self, file: MappedFile) -> None:
        """Remove a file that was made but not used. If that fails it is an empty last file, which recovery removes."""
        self._give_back(file)
        try:
            file.destroy(0, force_after_ms=0)
            self._files.sync_directory(file.path.parent)
        except OSError as exc:
            _log.warning("%s: an unused log file stays: %s", file.path, exc)

    def _give_back(self, file: MappedFile) -> None:
        if file.write_buffer is not None and self._pool is not None:
            self._pool.give_back(file.write_buffer)
