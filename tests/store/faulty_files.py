"""The file layer's faulty twin: fails, stalls and fills up on request, and remembers enough to simulate power cuts.

`FaultyFiles` works on real files and keeps a journal of everything that matters for durability. From the journal,
`Journal.image(at, ...)` builds the directory that a power cut at any event could have left:

* a file holds what its last sync covered; every page (or sector) written later is there or not, as the dice fall, which
  includes pages that reach the disk in another order than they were written;
* names are those of the directory's last sync, plus a prefix of the changes after it (metadata is journalled in order).

Writes through a mapping are no calls, so each event also takes the content of all mapped files.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from contrailmq.store.files import DiskUsage, Files, SyncError


class Loss(enum.Enum):
    """What a cut does to bytes that no sync has covered."""

    EVERYTHING = 0  # all of them are lost
    PAGES = 4096  # any 4 KiB page may be lost
    SECTORS = 512  # any 512 bytes may be lost: torn pages
    NOTHING = -1  # as a killed process leaves them


@dataclass(slots=True)
class _Inode:
    versions: list[tuple[int, bytes]] = field(default_factory=list)  # (event, content)
    synced: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _Directory:
    changes: list[tuple[int, str, int | None]] = field(default_factory=list)  # (event, name, inode or None: removed)
    synced: list[int] = field(default_factory=list)  # events


class Journal:
    """What happened to the files below one root, event by event."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.event = 0
        self.inodes: dict[int, _Inode] = {}
        self.directories: dict[Path, _Directory] = {}

    def image(self, at: int, target: Path, rng: random.Random, loss: Loss) -> None:
        """Build in `target` what a cut right after event `at` leaves."""
        for directory, history in self.directories.items():
            names = self._names(history, at, rng, loss)
            if not names and loss is not Loss.NOTHING and not any(event <= at for event in history.synced):
                continue
            place = target / directory.relative_to(self.root)
            place.mkdir(parents=True, exist_ok=True)
            for name, number in names.items():
                (place / name).write_bytes(self._content(self.inodes[number], at, rng, loss))

    def _names(self, history: _Directory, at: int, rng: random.Random, loss: Loss) -> dict[str, int]:
        durable = max((event for event in history.synced if event <= at), default=0)
        changes = [change for change in history.changes if change[0] <= at]
        certain = sum(change[0] <= durable for change in changes)
        kept = certain if loss is Loss.EVERYTHING else rng.randint(certain, len(changes))
        if loss is Loss.NOTHING:
            kept = len(changes)
        names: dict[str, int] = {}
        for _, name, number in changes[:kept]:
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number
        return names

    def _content(self, inode: _Inode, at: int, rng: random.Random, loss: Loss) -> bytes:
        durable = next((data for event, data in reversed(inode.synced) if event <= at), b"")
        newest = next((data for event, data in reversed(inode.versions) if event <= at), b"")
        if loss is Loss.NOTHING:
            return newest
        if loss is Loss.EVERYTHING:
            return durable
        unit = loss.value
        size = len(newest) if rng.random() < 0.5 else min(len(durable), len(newest)) or len(durable)
        old = durable.ljust(size, b"\0")[:size]
        new = newest.ljust(size, b"\0")[:size]
        bias = rng.random()
        parts = [(new if rng.random() < bias else old)[start : start + unit] for start in range(0, size, unit)]
        return b"".join(parts)


class FaultyFiles(Files):
    """`fault(operation, path, count)` may return an error to raise; `count` is per operation and starts at 1."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.journal = Journal(root.resolve())
        self.counts: dict[str, int] = {}
        self.fault: Callable[[str, Path, int], OSError | None] = lambda *_: None
        self.free_bytes: int | None = None  # None: the true figure
        self.stall: threading.Event | None = None  # a sync waits for it
        self.stalled = threading.Event()
        self._guard = threading.RLock()
        self._paths: dict[int, Path] = {}  # descriptor -> path
        self._numbers: dict[Path, int] = {}  # path -> inode
        self._inode_of: dict[int, int] = {}  # descriptor -> inode
        self._mapped: dict[int, tuple[mmap.mmap, int]] = {}  # id(mapping) -> mapping, inode
        self.records = True

    # --- what is watched

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        path = Path(path)
        is_new = create and not path.exists()
        self._step("create" if is_new else "open", path)
        descriptor = super().open(path, writable=writable, create=create)
        with self._guard:
            resolved = path.resolve()
            if is_new or resolved not in self._numbers:
                self._adopt(resolved, is_new=is_new)
            self._paths[descriptor] = resolved
            self._inode_of[descriptor] = self._numbers[resolved]
        return descriptor

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._step("pwrite", self._path(descriptor))
        super().pwrite(descriptor, data, position)
        self._note_content(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._step("truncate", self._path(descriptor))
        super().truncate(descriptor, size_bytes)
        self._note_content(descriptor)

    def allocate(self, descriptor: int, size_bytes: int, position: int = 0) -> None:
        self._step("allocate", self._path(descriptor))
        super().allocate(descriptor, size_bytes, position)
        self._note_content(descriptor)

    def map(self, descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
        self._step("map", self._path(descriptor))
        mapping = super().map(descriptor, size_bytes, writable=writable)
        if writable and descriptor in self._inode_of:
            with self._guard:
                self._mapped[id(mapping)] = (mapping, self._inode_of[descriptor])
        return mapping

    def unmap(self, mapping: mmap.mmap) -> bool:
        with self._guard:
            self.note("unmap")
            done = super().unmap(mapping)
            if done:
                self._mapped.pop(id(mapping), None)
            return done

    def let_go(self, mapping: mmap.mmap) -> None:
        with self._guard:
            self.note("unmap")
            self._mapped.pop(id(mapping), None)

    def sync(self, descriptor: int) -> None:
        """What counts as durable is the content when the sync begins, as a real disk guarantees no more."""
        path = self._path(descriptor)
        with self._guard:
            self.note("sync")
            content = self._read(descriptor)
        self._wait_if_stalled()
        self._step("sync", path)
        super().sync(descriptor)
        with self._guard:
            self._mark_synced(self._inode_of[descriptor], content)

    def sync_map(self, mapping: mmap.mmap, start: int, size_bytes: int) -> None:
        _, number = self._mapped[id(mapping)]
        with self._guard:
            self.note("sync_map")
            content = bytes(mapping[:])
        self._wait_if_stalled()
        self._step("sync", Path(f"inode-{number}"))
        super().sync_map(mapping, start, size_bytes)
        with self._guard:
            inode = self.journal.inodes[number]
            before = inode.synced[-1][1] if inode.synced else b""
            before = before.ljust(len(content), b"\0")
            base = start - start % mmap.PAGESIZE
            end = min(len(content), start + size_bytes)
            self._mark_synced(number, before[:base] + content[base:end] + before[end:])

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory", path)
        super().sync_directory(path)
        with self._guard:
            self.note("sync_directory")
            self._directory(path.resolve()).synced.append(self.journal.event)

    def sync_filesystem(self, path: Path) -> bool:
        with self._guard:
            self.note("sync_filesystem")
            contents = {number: path.read_bytes() for path, number in self._numbers.items()}
            events = dict.fromkeys(self.journal.directories, self.journal.event)
        self._wait_if_stalled()
        self._step("sync_filesystem", path)
        done = super().sync_filesystem(path)
        with self._guard:
            for number, content in contents.items() if done else ():
                self._mark_synced(number, content)
            for directory, event in events.items() if done else ():
                self.journal.directories[directory].synced.append(event)
        return done

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)
        with self._guard:
            number = self._numbers.pop(source.resolve())
            self._numbers[target.resolve()] = number
            self.note("rename")
            for path, value in ((target, number), (source, None)):
                self._directory(path.resolve().parent).changes.append((self.journal.event, path.name, value))

    def unlink(self, path: Path | str) -> None:
        path = Path(path)
        self._step("unlink", path)
        super().unlink(path)
        with self._guard:
            self.note("unlink")
            self._numbers.pop(path.resolve(), None)
            self._directory(path.resolve().parent).changes.append((self.journal.event, path.name, None))

    def close(self, descriptor: int) -> None:
        with self._guard:  # first: once it is closed another thread's open may get the same number
            self._paths.pop(descriptor, None)
            self._inode_of.pop(descriptor, None)
        super().close(descriptor)

    def disk_usage(self, path: Path) -> DiskUsage:
        usage = super().disk_usage(path)
        return usage if self.free_bytes is None else usage._replace(free_bytes=self.free_bytes)

    def boot_id(self) -> str:
        """Whoever opens an image of the journal lives in another run of the machine."""
        return "before the power cut"

    # --- journal

    def note(self, _what: str) -> int:
        """An event: whatever is mapped is looked at. Returns its number; a test notes acknowledgements this way."""
        with self._guard:
            self.journal.event += 1
            if self.records:
                for mapping, number in self._mapped.values():
                    versions = self.journal.inodes[number].versions
                    content = bytes(mapping[:])
                    if not versions or versions[-1][1] != content:
                        versions.append((self.journal.event, content))
            return self.journal.event

    def _note_content(self, descriptor: int) -> None:
        if self.records:
            with self._guard:
                self.note("write")
                number = self._inode_of[descriptor]
                self.journal.inodes[number].versions.append((self.journal.event, self._read(descriptor)))

    def _mark_synced(self, number: int, content: bytes) -> None:
        if self.records:
            self.journal.event += 1
            self.journal.inodes[number].synced.append((self.journal.event, content))

    def _adopt(self, path: Path, *, is_new: bool) -> None:
        """A file seen for the first time: new, or there (and durable) before the run began."""
        number = len(self.journal.inodes) + 1
        self._numbers[path] = number
        inode = self.journal.inodes[number] = _Inode()
        self.note("create")
        if not is_new:
            content = path.read_bytes()
            inode.versions.append((0, content))
            inode.synced.append((0, content))
        event = self.journal.event if is_new else 0
        self._directory(path.parent).changes.append((event, path.name, number))

    def _directory(self, path: Path) -> _Directory:
        return self.journal.directories.setdefault(path, _Directory())

    def _read(self, descriptor: int) -> bytes:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    # --- faults

    def _path(self, descriptor: int) -> Path:
        return self._paths.get(descriptor, Path("unknown"))

    def _step(self, operation: str, path: Path) -> None:
        with self._guard:
            count = self.counts[operation] = self.counts.get(operation, 0) + 1
            error = self.fault(operation, path, count)
        if error is not None:
            if not isinstance(error, SyncError):  # as the real door does
                error.filename = error.filename or str(path)
            raise error

    def _wait_if_stalled(self) -> None:
        if self.stall is not None:
            self.stalled.set()
            self.stall.wait()


def sync_error() -> SyncError:
    return SyncError(errno.EIO, "fdatasync: Input/output error")


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")
