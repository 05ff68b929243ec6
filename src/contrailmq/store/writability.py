"""Whether the store may be written: every reason against it, which are final, and how an append is answered.

A store takes no writes while it is closed, on a slave, after a failed sync or when its files were deleted, replaced or
cut (both final until it is opened again), while the disk is above the warning level, and while dispatch cannot go on
because a queue or index file finds no room. The first reason is reported: it is the cause of what follows.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrailmq.store.base.errors import StoreError, StoreFullError, StoreIOError, StoreLostError, StoreReadOnlyError
from contrailmq.store.base.status import AppendResult, PutResult, PutStatus
from contrailmq.store.config import StoreConfig
from contrailmq.store.files import PAGE_BYTES, Files
from contrailmq.store.index.index_file import index_file_bytes
from contrailmq.store.life import StoreLife
from contrailmq.store.log.commit_log import CommitLog

_log = logging.getLogger(__name__)

_CLOSED: Final = "closed"
_LOST: Final = "files lost"
_SYNC_FAILED: Final = "sync failed"
_SLAVE: Final = "slave"
_DISK_FULL: Final = "disk full"
_STANDSTILL: Final = "standstill of dispatch"


class Writability:
    """The refusals of one store. The log gets the first of them, and refuses every append with it."""

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        log: CommitLog,
        life: StoreLife,
        dispatched_offset: Callable[[], int],
    ) -> None:
        """`config` is resolved."""
        self._config = config
        self._files = files
        self._log = log
        self._life = life
        self._dispatched_offset = dispatched_offset
        self._refusals: dict[str, str] = {}
        self._failure = ""  # why nothing more may be written, until the store is opened again
        self._standstill: OSError | None = None  # why dispatch cannot go on
        self.lost_reason = ""  # why the files under the store are not its own any more

    @property
    def reason(self) -> str:
        """The first reason; empty when the store may be written."""
        return next(iter(self._refusals.values()), "")

    @property
    def standstill_reason(self) -> str:
        return self._refusals.get(_STANDSTILL, "")

    @property
    def is_final(self) -> bool:
        """Whether nothing may be written until the store is opened again."""
        return _SYNC_FAILED in self._refusals or _LOST in self._refusals

    def _refuse(self, kind: str, reason: str) -> None:
        self._refusals[kind] = reason
        self._tell_log()

    def _allow(self, kind: str) -> None:
        self._refusals.pop(kind, None)
        self._tell_log()

    def _tell_log(self) -> None:
        reason = self.reason
        self._log.refusal = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason) if reason else None

    def shut(self) -> None:
        self._refuse(_CLOSED, str(self._life.closed_error()))

    def opened(self) -> None:
        if self._config.is_slave:
            self._refuse(_SLAVE, "this broker is a slave: send to its master")
        self._allow(_CLOSED)

    def forked(self) -> None:
        """In a child nothing counts but that the store is the parent's."""
        self._refusals.clear()
        self.shut()

    def set_disk_full(self, reason: str | None) -> None:
        if reason is None:
            self._allow(_DISK_FULL)
        else:
            self._refuse(_DISK_FULL, reason)

    def stand_still(self, error: OSError | None) -> None:
        """Dispatch cannot go on, or (None) went on: puts are refused meanwhile, and reading goes on."""
        is_new, self._standstill = self._standstill is None, error
        if error is None:
            self._allow(_STANDSTILL)
            _log.info("store %s: dispatch went on, puts are taken again", self._config.path)
            return
        reason = (
            f"{self._explained(error)}; messages from offset {self._dispatched_offset()} on cannot be read, and no "
            "more are taken, until dispatch goes on (it is tried again by itself)"
        )
        self._refuse(_STANDSTILL, reason)
        if is_new:
            _log.error("store %s: dispatch stopped: %s", self._config.path, reason)

    def sync_failed(self, cause: str) -> None:
        """Final."""
        self._refuse(_SYNC_FAILED, str(StoreReadOnlyError(self._config.path, cause=cause)))
        self._failure = cause

    def lose(self, cause: str) -> None:
        """The files are not ours any more: final. Nothing is written by name, which may lead to another's store."""
        error = StoreLostError(self._config.path, cause=cause)
        self.lost_reason = str(error)
        self._failure = cause
        self._files.fence(self.lost_reason)
        self._refusals = {_LOST: self.lost_reason, **self._refusals}  # first: it is the reason of what follows
        self._refuse(_LOST, self.lost_reason)
        _log.error("%s", error)

    def check_not_lost(self) -> None:
        if self.lost_reason:
            raise StoreLostError(self._config.path, cause=self._failure)

    def check_replica(self) -> None:
        """Raises when a slave may not take its master's bytes: what nobody can read, or sync, must not pile up."""
        self._life.check_open()
        self.check_not_lost()
        if _SYNC_FAILED in self._refusals:
            raise StoreReadOnlyError(self._config.path, cause=self._failure)
        if (cause := self._standstill) is not None:
            raise self._explained(cause) from cause

    def raise_if_unusable(self, result: PutResult) -> None:
        """The error of an embedded put that was refused for what the store is, not for what the message is."""
        if result.status is PutStatus.CREATE_MAPPED_FILE_FAILED and self._log.last_error is not None:
            raise self._log.last_error
        if result.status is not PutStatus.SERVICE_NOT_AVAILABLE:
            return
        path = self._config.path
        self.check_not_lost()
        if _SYNC_FAILED in self._refusals:
            raise StoreReadOnlyError(path, cause=self._failure)
        if _CLOSED in self._refusals:
            raise self._life.closed_error()
        if _DISK_FULL in self._refusals:
            free, needed = self._files.disk_usage(path).free_bytes, self._config.mapped_file_size_commit_log
            raise StoreFullError(path, free_bytes=free, needed_bytes=needed, reason=self._refusals[_DISK_FULL])
        if (cause := self._standstill) is not None:
            raise self._explained(cause) from cause

    def _explained(self, error: OSError) -> StoreError:
        return explained("dispatching to queues and index of", error, self._config, self._files)


# An OSError as an error of the store: with the path, the numbers and the remedy.


def explained(operation: str, error: OSError, config: StoreConfig, files: Files) -> StoreError:
    """`config` is resolved; the error names the file, if it knows it."""
    path = Path(error.filename) if isinstance(error.filename, str) else config.path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free_bytes = files.disk_usage(path).free_bytes
        return StoreFullError(path, free_bytes=free_bytes, needed_bytes=_needed_bytes(path, config))
    return StoreIOError(operation, config.path, error)


def _needed_bytes(path: Path, config: StoreConfig) -> int:
    """What a new file takes where this one was to be."""
    directory = path.resolve().parent
    if directory == config.index_path.resolve():
        return index_file_bytes(config.max_hash_slot_num, config.max_index_num)
    if directory in [log_path.resolve() for log_path in config.commit_log_paths]:
        return config.mapped_file_size_commit_log
    if config.consume_queue_path.resolve() in directory.parents:
        return config.mapped_file_size_consume_queue
    if config.batch_queue_path.resolve() in directory.parents:
        return config.mapper_file_size_batch_consume_queue
    return PAGE_BYTES
