"""What can go wrong in a store: one small tree.

The class says whose fault it is and what the caller may do; attributes carry the numbers; the text carries cause and
remedy. `retriable` means: the same call may succeed later without a restart. A put that is refused by a rule (too
large, store closed) is not an exception but a PutStatus, as in RocketMQ; the exceptions here are what an embedding
program gets from `open`, from a failed disk, or from a misuse.
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from contrailmq.message import ContrailError


class StoreError(ContrailError):
    """Root of everything the store raises."""

    retriable = False


class StoreConfigError(StoreError):
    """A setting is unusable; names the key, the value and what is allowed."""

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(f"store setting {key}={value!r}: {remedy}")
        self.key = key
        self.value = value


class StoreClosedError(StoreError):
    """The store is not open (not yet, or not any more)."""

    def __init__(self, path: Path, *, was_open: bool = False) -> None:
        remedy = "is not open: call open() or use it as a context manager"
        if was_open:
            remedy = "is not open, it was closed: make a new MessageStore to open it again"
        super().__init__(f"store {path} {remedy}")
        self.path = path


class StoreForkedError(StoreClosedError):
    """The store came into this process by a fork; it belongs to the parent, and nothing was read or written."""

    def __init__(self, path: Path, *, owner_pid: int) -> None:
        StoreError.__init__(
            self,
            f"store {path} was opened by process {owner_pid}, of which this is a forked child: what is written here "
            "would be lost. Hand messages to that process, or fork first and open a store in one process only",
        )
        self.path = path
        self.owner_pid = owner_pid


class StoreLockedError(StoreError):
    """Another process has this directory open as its store."""

    def __init__(self, path: Path, *, owner_pid: int | None) -> None:
        owner = f"process {owner_pid}" if owner_pid else "another process"
        super().__init__(f"store {path} is in use by {owner}: stop that one or choose another directory")
        self.path = path
        self.owner_pid = owner_pid


class StoreFullError(StoreError):
    """The disk under the store has too little room; nothing was written and the message was not acknowledged."""

    retriable = True

    def __init__(self, path: Path, *, free_bytes: int, needed_bytes: int, reason: str = "") -> None:
        free = f"{_mebibytes(free_bytes)} are free"
        super().__init__(
            f"{reason} ({free})"
            if reason
            else f"store {path} needs {_mebibytes(needed_bytes)} for the next file, {free}: "
            "free space or lower fileReservedTime"
        )
        self.path = path
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class StoreReadOnlyError(StoreError):
    """The store takes no more writes until it is opened again; reading goes on.

    Raised after a failed sync: the kernel may have dropped the dirty pages, so a later sync that succeeds proves
    nothing about the data (fsync reports an error once). Restarting runs recovery, which keeps what is really there.
    """

    def __init__(self, path: Path, *, cause: str) -> None:
        super().__init__(f"store {path} is read-only: {cause}; check the disk, then open the store again")
        self.path = path
        self.cause = cause


class StoreLostError(StoreReadOnlyError):
    """The store's files were deleted, replaced or cut short under it: it takes no writes until it is opened again.

    Reading goes on from what is mapped. Messages that were acknowledged within the last second may be lost.
    """

    def __init__(self, path: Path, *, cause: str) -> None:
        StoreError.__init__(
            self,
            f"store {path} is read-only: {cause}; what is sent now would be lost, and what was acknowledged within the "
            "last second may be. Stop this process, put the directory back (or restore a copy), then open the store "
            "again",
        )
        self.path = path
        self.cause = cause


class CorruptStoreError(StoreError):
    """Files of the store contradict each other or the format in a way that must not be repaired by guessing."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreIOError(StoreError):
    """The operating system refused a file operation; names operation, path and errno."""

    retriable = True

    def __init__(self, operation: str, path: Path, error: OSError) -> None:
        what = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename and str(error.filename) != str(path) else ""
        super().__init__(f"{operation} {path}: {what}{where} (errno {error.errno}){_remedy(error)}")
        self.operation = operation
        self.path = path
        self.errno = error.errno


def _remedy(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f": this process has {limit} files open, which is its limit; raise it (ulimit -n, LimitNOFILE), or take "
            "larger log files (mappedFileSizeCommitLog): one of them takes two"
        )
    if error.errno == errno.ENFILE:
        return ": so many files are open on this machine; raise fs.file-max"
    return ""


def _mebibytes(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    if size_bytes >= 1 << 20:
        return f"{size_bytes / (1 << 20):.1f} MiB"
    return f"{size_bytes} B"
