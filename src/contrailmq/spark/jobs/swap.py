"""Rebuilt directories in the place of a store's old ones: its lock, a folder beside, the swap, what is left over.

The power may fail at any time, so changed names are synced before anything old is removed. A process may be killed at
any time: the next one sees from the names what was half done, and undoes or completes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from contrailmq.message import ContrailError
from contrailmq.spark.jobs.manifest import sync_folder
from contrailmq.spark.runtime.disk_errors import cause
from contrailmq.store.base.errors import StoreLockedError
from contrailmq.store.base.store_lock import StoreLock, owner_of
from contrailmq.store.files import Files

# Names in the store. Of replaced directories there are two kinds: those of a rebuild that is not done, which the next
# one puts back or removes, and those that were handed to a caller, which are the caller's.
_DIRECTORIES: Final = ("consumequeue", "index")
_SCRATCH: Final = "rebuild-"
_REPLACED: Final = ".replaced-by-rebuild-"
_KEPT: Final = ".before-rebuild-"


class RebuildError(ContrailError):
    """Queues or index could not be rebuilt; the store is as it was, unless the text says that new ones are in place."""


@contextmanager
def held(store: str) -> Iterator[None]:
    """The store's own lock: a broker that runs, in this process or another, refuses it, and cannot start meanwhile."""
    lock = StoreLock(Files(), Path(store, "lock"))
    try:
        try:
            lock.acquire()
        except StoreLockedError as exc:
            owner = f"process {exc.owner_pid}" if exc.owner_pid else "another process"
            if exc.owner_pid == os.getpid():
                owner = f"this process ({exc.owner_pid})"
            raise RebuildError(f"{store} is in use by a running broker or store of {owner}: stop it first") from exc
        yield
    finally:
        lock.release()


def scratch(store: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for what is being made. A task that still writes into it must not hide why the rebuild fails."""
    return tempfile.TemporaryDirectory(dir=store, prefix=_SCRATCH, ignore_cleanup_errors=True)


def is_in_use(store: str) -> bool:
    """Whether a process, this one or another, has the store open. Takes no lock, and writes nothing."""
    return owner_of(Files(), Path(store, "lock")) != 0


def swap(store: str, folder: str) -> tuple[str, ...]:
    """Put the new directories in place of the old, durably; gives the folders that hold the old ones."""
    replaced = []
    for name in _DIRECTORIES:
        target, new = os.path.join(store, name), os.path.join(folder, name)
        if os.path.exists(target):
            old = tempfile.mkdtemp(dir=store, prefix=f"{name}{_REPLACED}")
            os.rename(target, os.path.join(old, name))
            replaced.append(old)
        os.rename(new, target)
    _sync_names(store, [*replaced, folder, store], replaced)
    return tuple(replaced)


def hand_over(store: str, replaced: Iterable[str]) -> tuple[str, ...]:
    """Name what was replaced as what its caller may keep, and remove what killed rebuilds had replaced and not named.

    Only here, when the new files are in place for good, is what others left not needed for sure.
    """
    kept = [_KEPT.join(folder.rsplit(_REPLACED, 1)) for folder in replaced]
    for folder, name in zip(replaced, kept, strict=True):
        os.rename(folder, name)
    if kept:
        _sync_names(store, [store], kept)
    for directory in _DIRECTORIES:
        for left in Path(store).glob(f"{directory}{_REPLACED}*"):
            shutil.rmtree(left, ignore_errors=True)  # what cannot be removed now is tried again by the next
    return tuple(kept)


def _sync_names(store: str, folders: Iterable[str], old: Iterable[str]) -> None:
    """Make renames durable, once the new files are in place."""
    try:
        for folder in folders:
            sync_folder(Path(folder))
    except OSError as exc:
        raise RebuildError(
            f"{exc.filename} cannot be synced: {cause(exc)}; the new queues and index of {store} are in place, but may "
            f"not outlast a loss of power, so the old ones are kept ({', '.join(old) or 'there were none'}): "
            "check the disk, then rebuild again"
        ) from exc


def clear_up(store: str) -> None:
    """Undo what a killed rebuild left half done: files it was making, a directory taken away and not yet replaced."""
    for folder in Path(store).glob(f"{_SCRATCH}*"):
        shutil.rmtree(folder, ignore_errors=True)  # a task that nobody waits for may still write there
    for name in _DIRECTORIES:
        for mark in (_REPLACED, _KEPT):
            for old in Path(store).glob(f"{name}{mark}*/{name}"):
                if not Path(store, name).exists():
                    old.rename(Path(store, name))
                    old.parent.rmdir()


def remove(folders: Iterable[str]) -> None:
    """Delete directories that were handed over. If this is cut short, the next rebuild goes on with it."""
    condemned = []
    for folder in folders:
        condemned.append(os.path.join(os.path.dirname(folder), f"{_SCRATCH}{secrets.token_hex(8)}"))
        os.rename(folder, condemned[-1])
    for name in condemned:
        shutil.rmtree(name)
