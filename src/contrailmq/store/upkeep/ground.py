"""Watches whether the store's open files are still the store's, or were deleted, replaced or cut short.

A process can go on writing to deleted files, and nobody will ever read that. So twice a second a thread asks whether
the lock file and the log file being written still have their names, and whether the names lead to these files. If not,
the store is notified once and the watch ends: nothing acknowledged since can be vouched for until it is opened again.

A log file that was cut short is more dangerous: touching its mapping past the new end kills the process (SIGBUS). It
gets its length back at once, with real blocks, and the store is told. The cut part reads as zeros, which is damage. All
log files are asked. A round costs four calls and one per log file, about 1 us each. Where a file system numbers names
and open files differently (some overlays), only link counts and missing names are looked at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrailmq._faults import LastingFault
from contrailmq.store.base.waking import Wake
from contrailmq.store.files import Files, Identity
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue

_log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 0.5  # a loss is noticed within a second, also when a round comes late


class GroundWatch:
    """Owns one thread. `on_lost` hears the cause, at most once; `tick` is one round, for tests."""

    def __init__(
        self, files: Files, log_files: MappedFileQueue, lock_path: Path, *, on_lost: Callable[[str], None]
    ) -> None:
        self._files = files
        self._log_files = log_files
        self._lock_path = lock_path
        self._on_lost = on_lost
        self._lock_descriptor = -1
        self._compares_numbers = True  # whether a name and its open file have the same number on this file system
        self._is_lost = self._stopping = False
        self._fault = LastingFault(_log, f"{lock_path}: nobody can say whether the store's files are still there")
        self._turn = threading.Lock()
        self._wake = Wake()
        self._thread: threading.Thread | None = None

    def start(self, lock_descriptor: int) -> None:
        self._lock_descriptor = lock_descriptor
        self._compares_numbers = self._files.identity(self._lock_path) == self._files.identity(lock_descriptor)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="contrailmq-ground", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stopping = True
            self._wake.set()
            self._thread.join()
            self._thread = None

    def tick(self) -> None:
        """Look once."""
        with self._turn:
            if self._is_lost:
                return
            try:
                cause = self._cause()
            except OSError as exc:  # not an answer: a file system that is away for a moment
                self._fault.goes_on(exc)
                return
            self._fault.is_over("they are")
            if cause:
                self._is_lost = True
                self._on_lost(cause)

    def _run(self) -> None:
        while not self._stopping and not self._is_lost:
            self._wake.wait(ROUND_SECONDS)
            if not self._stopping:
                self.tick()

    def _cause(self) -> str:
        cut = [text for file in self._log_files.files if (text := self._mend_length(file))]
        return self._lock_loss() or self._log_loss() or "; ".join(cut)

    def _lock_loss(self) -> str:
        return self._loss(self._lock_path, self._files.identity(self._lock_descriptor))

    def _log_loss(self) -> str:
        file = self._log_files.last
        if file is None or not file.hold():
            return ""
        try:
            loss = self._loss(file.path, self._files.identity(file.descriptor))
        finally:
            file.release()
        return loss if file.is_available else ""  # we are removing it ourselves

    def _loss(self, path: Path, ours: Identity | None) -> str:
        assert ours is not None  # of a descriptor
        if ours.links == 0:
            return f"{path} was deleted while the store was in use"
        named = self._files.identity(path)
        if named is None:
            return f"{path} is no longer there: it, or a directory above it, was moved while the store was in use"
        if self._compares_numbers and (named.device, named.inode) != (ours.device, ours.inode):
            return f"{path} was replaced by another file while the store was in use"
        return ""

    def _mend_length(self, file: MappedFile) -> str:
        if not file.hold():
            return ""
        try:
            found = self._files.size(file.descriptor)
            if found >= file.size_bytes:
                return ""
            self._files.allocate(file.descriptor, file.size_bytes)
        finally:
            file.release()
        return (
            f"{file.path} was cut from {file.size_bytes} to {found} bytes while the store was in use (it has its "
            f"length again, what followed offset {file.base + found} is lost)"
        )
