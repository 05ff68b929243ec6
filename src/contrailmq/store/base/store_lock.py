"""Who owns a store directory, and whether its last owner left in order: the files `lock` and `abort`.

`lock` carries a POSIX record lock on its first byte, as Apache's does, so a running Apache broker and we exclude each
other. Such locks do not exclude a second store in the same process, and they vanish when any descriptor of the file in
this process is closed; so the directories open in this process are remembered here, and asked before `lock` is touched.

`abort` exists while a store is open for writing and holds the process id. Found at start, it means that the last exit
was not clean.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from contrailmq.store.base.errors import StoreLockedError
from contrailmq.store.files import Files

_LOCK_TEXT: Final = b"lock"
_guard = threading.Lock()
_open_here: Final[set[Path]] = set()


class StoreLock:
    """Exclusive ownership of one directory from `acquire` to `release`."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path.resolve()
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """Of the lock file while it is held. Do not close it."""
        return self._descriptor

    def acquire(self) -> None:
        """Raises StoreLockedError with the owner's pid."""
        with _guard:
            if self._path in _open_here:
                raise StoreLockedError(self._path.parent, owner_pid=os.getpid())
            descriptor = self._files.open(self._path, create=True)
            owner_pid = self._files.lock_file(descriptor)
            if owner_pid:
                self._files.close(descriptor)
                raise StoreLockedError(self._path.parent, owner_pid=owner_pid if owner_pid > 0 else None)
            _open_here.add(self._path)
        self._descriptor = descriptor
        if self._files.size(descriptor) < len(_LOCK_TEXT):
            self._files.pwrite(descriptor, _LOCK_TEXT, 0)
            self._files.sync(descriptor)

    def release(self) -> None:
        if self._descriptor >= 0:
            with _guard:
                _open_here.discard(self._path)
                self._files.close(self._descriptor)
            self._descriptor = -1


def owner_of(files: Files, path: Path) -> int:
    """The pid of the process that has a store open, by its lock file; 0 for nobody, -1 for one without a name here.

    Takes no lock. A store that is open in this process is not asked: closing a descriptor would drop its lock.
    """
    path = path.resolve()
    with _guard:
        if path in _open_here:
            return os.getpid()
        if not files.is_file(path):
            return 0
        descriptor = files.open(path, writable=False)
        try:
            return files.lock_owner(descriptor)
        finally:
            files.close(descriptor)


def _after_fork_in_child() -> None:
    """What is open here is open in the parent: a child that wants the directory learns that process's id."""
    global _guard
    _guard = threading.Lock()
    _open_here.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def write_abort_file(files: Files, path: Path) -> None:
    descriptor = files.open(path, create=True)
    try:
        files.truncate(descriptor, 0)
        files.pwrite(descriptor, str(os.getpid()).encode(), 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.sync_directory(path.parent)


def remove_abort_file(files: Files, path: Path) -> None:
    if files.exists(path):
        files.unlink(path)
        files.sync_directory(path.parent)


# Where a rebuild works (ROOT/rebuild.new/, ROOT/rebuild.old/), and what is done with what a killed one left there.
#
# The holder of the store's lock may call `finish_interrupted`: the next rebuild does, and so does opening the store.

NEW: Final = "rebuild.new"
OLD: Final = "rebuild.old"
PARTS: Final = ("consumequeue", "index", "batchconsumequeue")


def finish_interrupted(root: Path, files: Files) -> None:
    """Put back what was moved aside and not yet replaced; drop half-made files."""
    old = root / OLD
    for name in PARTS:
        if files.exists(old / name) and not files.exists(root / name):
            files.rename(old / name, root / name)
    for leftover in (root / NEW, old):
        if files.exists(leftover):
            remove_tree(leftover, files)


def remove_tree(path: Path, files: Files) -> None:
    for entry in files.list_directory(path):
        if files.is_file(entry):
            files.unlink(entry)
        else:
            remove_tree(entry, files)
    files.remove_directory(path)
