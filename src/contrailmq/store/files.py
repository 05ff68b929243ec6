"""The one door to the operating system, so that tests can put a faulty twin in its place.

* Nothing here holds the interpreter lock while it waits for a disk. CPython 3.11's `mmap.flush` does (a 253 ms stall of
  all threads was seen), so ranges are synced with `msync` through ctypes and whole files with `os.fdatasync`, which on
  Linux also writes pages dirtied through a shared mapping.
* A new, renamed or removed name is durable only after `sync_directory`, which callers call, once for many names.
* A file that is written through a mapping is allocated first (`allocate`). On a sparse file a full disk would be a
  SIGBUS in the middle of a store; here it is ENOSPC.

Errors are OSError, or SyncError for a failed sync. Callers know the file and its purpose, and translate.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

PAGE_BYTES: Final = 4096  # RocketMQ's OS_PAGE_SIZE, a constant whatever the real page size

MADV_NORMAL: Final = mmap.MADV_NORMAL
MADV_RANDOM: Final = mmap.MADV_RANDOM
MADV_SEQUENTIAL: Final = mmap.MADV_SEQUENTIAL
MADV_WILLNEED: Final = mmap.MADV_WILLNEED
MADV_DONTNEED: Final = mmap.MADV_DONTNEED

_MS_SYNC: Final = 4
_SYNC_FILE_RANGE_WRITE: Final = 2
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14: fault pages in for writing, without writing them

# struct flock on 64-bit Linux: l_type:i16 l_whence:i16 pad l_start:i64 l_len:i64 l_pid:i32 pad
_FLOCK: Final = struct.Struct("hhxxxxqqixxxx")

_libc = ctypes.CDLL(None, use_errno=True)  # a CDLL call releases the interpreter lock
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.syncfs.argtypes = (ctypes.c_int,)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())


_SYNCFS_REPORTS_ERRORS: Final = _kernel_version() >= (5, 8)


class SyncError(OSError):
    """A sync failed. The kernel may have dropped the dirty pages and reports it once: nothing may be retried.

    Everything else that fails here is a plain OSError: nothing was written, the same call may succeed later.
    """


def _name_file(error: OSError, descriptor: int) -> None:
    """Have an error name its file, which calls on a descriptor leave out."""
    try:
        error.filename = error.filename or os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc here: it stays without
        return


class DiskUsage(NamedTuple):
    """Of one partition. `used_ratio` is RocketMQ's: used / (used + usable), in whole percent rounded up, as 0.0-1.0."""

    total_bytes: int
    used_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        reachable = self.used_bytes + self.free_bytes
        return -(-self.used_bytes * 100 // reachable) / 100 if reachable > 0 else -1.0


class Identity(NamedTuple):
    """Which file this is, and how many names it has: 0 when it was deleted and only descriptors keep it."""

    device: int
    inode: int
    links: int


class Mapped(NamedTuple):
    """What is mapped at this moment, whether someone still wants it or only a reader's view keeps it."""

    files: int
    bytes: int


class Files:
    """Thin and thread-safe; all offsets and sizes are bytes.

    Its state: it knows the mappings it made, and whether names are fenced off.
    """

    def __init__(self) -> None:
        # mapping -> bytes; weak, because a mapping may go with its last view
        self._made: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()
        self._made_guard = threading.Lock()
        self._fence = ""  # why names lead to files of others

    def fence(self, reason: str) -> None:
        """Open, make, rename and remove nothing by name from here on (OSError with this reason): what the names lead to
        is not ours any more. Descriptors and mappings go on."""
        self._fence = reason

    def _check_fence(self, path: Path | str) -> None:
        if self._fence:
            raise OSError(errno.ESTALE, self._fence, str(path))

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        """A descriptor. With `create`, makes the file when it is absent (and needs `sync_directory` to be durable)."""
        self._check_fence(path)
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` (fewer only at the end of the file)."""
        try:
            data = os.pread(descriptor, size_bytes, position)
        except OSError as exc:
            _name_file(exc, descriptor)
            raise
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes:
            more = os.pread(descriptor, size_bytes - got, position + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def preadv(self, descriptor: int, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        """Fill the buffers from `position`; the count of bytes read (short at the end of the file)."""
        return os.preadv(descriptor, buffers, position)

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """All of `data`, or an OSError."""
        try:
            written = os.pwrite(descriptor, data, position)
            if written == len(data):
                return
            view = memoryview(data).cast("B")
            while written < len(view):
                written += os.pwrite(descriptor, view[written:], position + written)
        except OSError as exc:
            _name_file(exc, descriptor)
            raise

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the length; growing leaves a hole that reads as zeros."""
        try:
            os.ftruncate(descriptor, size_bytes)
        except OSError as exc:
            _name_file(exc, descriptor)
            raise

    def allocate(self, descriptor: int, size_bytes: int, position: int = 0) -> None:
        """Reserve real blocks for [position, position + size): grows the file, reads as zeros, ENOSPC now not later."""
        try:
            os.posix_fallocate(descriptor, position, size_bytes)
        except OSError as exc:
            _name_file(exc, descriptor)
            raise

    def map(self, descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
        """Map [0, size) shared. On CPython 3.11 the mapping holds its own duplicate of the descriptor."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        try:
            mapping = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=protection)
        except OSError as exc:
            _name_file(exc, descriptor)
            raise
        with self._made_guard:
            self._made[mapping] = size_bytes
        return mapping

    def map_memory(self, size_bytes: int) -> mmap.mmap:
        """Pages without a file behind them; they exist from the first write to each. Not among `mapped`."""
        return mmap.mmap(-1, size_bytes)

    def mapped(self) -> Mapped:
        """How many files this door has mapped, and how many bytes."""
        with self._made_guard:
            sizes = [size_bytes for mapping, size_bytes in self._made.items() if not mapping.closed]
        return Mapped(len(sizes), sum(sizes))

    def unmap(self, mapping: mmap.mmap) -> bool:
        """True when unmapped; False while a reader still holds a view of it (it goes with the last view)."""
        try:
            mapping.close()
        except BufferError:
            return False
        return True

    def let_go(self, mapping: mmap.mmap) -> None:
        """Say that its owner drops a mapping that others may be reading now: it is unmapped with the last of them."""

    def sync(self, descriptor: int) -> None:
        """fdatasync: data, and the metadata needed to read it, of everything written to this file by any way."""
        try:
            os.fdatasync(descriptor)
        except OSError as exc:
            raise SyncError(exc.errno, f"fdatasync: {exc.strerror}") from exc

    def start_writing(self, descriptor: int) -> None:
        """Have the kernel begin to write what a later `sync` will wait for. A hint: it promises nothing, and what
        fails in it is the sync's to report."""
        _libc.sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def sync_map(self, mapping: mmap.mmap, start: int, size_bytes: int) -> None:
        """msync of the pages that hold [start, start + size) of a writable mapping."""
        base = start - start % mmap.PAGESIZE
        try:
            self._call_on_range(_libc.msync, mapping, base, start + size_bytes - base, _MS_SYNC)
        except OSError as exc:
            raise SyncError(exc.errno, f"msync: {exc.strerror}") from exc

    def advise(self, mapping: mmap.mmap, advice: int, start: int = 0, size_bytes: int | None = None) -> None:
        base = start - start % mmap.PAGESIZE
        length = (len(mapping) if size_bytes is None else start + size_bytes) - base
        mapping.madvise(advice, base, length)

    def prefault(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        """Fault pages in for writing, without the interpreter lock; False where the kernel cannot (before 5.14)."""
        base = start - start % mmap.PAGESIZE
        size = min(start + size_bytes, len(mapping)) - base
        try:
            self._call_on_range(_libc.madvise, mapping, base, size, _MADV_POPULATE_WRITE)
        except OSError:
            return False
        return True

    def release_pages(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        """Let go of the whole pages of [start, start + size) of a shared mapping, without the interpreter lock; False
        where they are locked. Nothing is lost, dirty or not: they stay in the page cache, and the next touch finds
        them there. They only cease to count as this process's memory."""
        base = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (start + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - base
        try:
            if size > 0:
                self._call_on_range(_libc.madvise, mapping, base, size, MADV_DONTNEED)
        except OSError:
            return False
        return True

    def is_resident(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        """Are all these pages in memory now, so that touching them waits for no disk? True where nobody can tell."""
        base = start - start % mmap.PAGESIZE
        size = min(start + size_bytes, len(mapping)) - base
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        try:
            self._call_on_range(_libc.mincore, mapping, base, size, pages)
        except OSError:
            return True
        return b"\0" not in pages.raw

    def lock_memory(self, mapping: mmap.mmap) -> None:
        """mlock; an OSError (limit reached) is for the caller to report, never fatal."""
        self._call_on_range(_libc.mlock, mapping, 0, len(mapping))

    def unlock_memory(self, mapping: mmap.mmap) -> None:
        self._call_on_range(_libc.munlock, mapping, 0, len(mapping))

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in this directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as exc:
            raise SyncError(exc.errno, f"fsync of directory {path}: {exc.strerror}") from exc
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._check_fence(target)
        os.replace(source, target)

    def unlink(self, path: Path | str) -> None:
        self._check_fence(path)
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        """Only if empty (OSError otherwise)."""
        self._check_fence(path)
        os.rmdir(path)

    def remove_directory_if_empty(self, path: Path) -> bool:
        """False when it is not, perhaps since just now, or not there."""
        try:
            self.remove_directory(path)
        except OSError as exc:
            if exc.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return False
            raise
        return True

    def sync_filesystem(self, path: Path) -> bool:
        """Make everything on the file system that holds `path` durable, names included, with one call.

        False where the kernel does not report errors this way (before Linux 5.8): sync file by file there.
        """
        if not _SYNCFS_REPORTS_ERRORS:
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise SyncError(number, f"syncfs of {path}: {os.strerror(number)}")
        finally:
            os.close(descriptor)
        return True

    def make_directory(self, path: Path, *, durable: bool = True) -> list[Path]:
        """With its parents; the directories that got a new entry. Each is synced on return, unless asked otherwise."""
        self._check_fence(path)
        missing = []
        current = path
        while not current.is_dir():
            missing.append(current)
            current = current.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            if durable:
                self.sync_directory(directory.parent)
        return [directory.parent for directory in missing]

    def list_directory(self, path: Path) -> list[Path]:
        """Entries in name order; empty when the directory does not exist."""
        try:
            return sorted(path.iterdir())
        except FileNotFoundError:
            return []

    def list_names(self, path: Path) -> list[tuple[str, bool]]:
        """(name, is it a directory) in name order, without a stat and a Path for each: there may be 20,000 queues."""
        try:
            with os.scandir(path) as entries:
                return sorted((entry.name, entry.is_dir()) for entry in entries)
        except FileNotFoundError:
            return []

    def list_text(self, path: str) -> list[str]:
        """Names in any order, and no more about them: half the time of the others for a directory with one entry."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def list_sizes(self, path: Path | str) -> list[tuple[str, int]]:
        """(name, bytes) of the files in a directory, in name order."""
        try:
            with os.scandir(path) as entries:
                return sorted((entry.name, entry.stat().st_size) for entry in entries if not entry.is_dir())
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_file(self, path: Path) -> bool:
        return path.is_file()

    def size(self, path: Path | int) -> int:
        """Of a file, by its name or by a descriptor (which is quicker)."""
        return os.stat(path).st_size

    def identity(self, path: Path | int) -> Identity | None:
        """Of a file, by its name or by a descriptor; None when the name leads nowhere."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Identity(status.st_dev, status.st_ino, status.st_nlink)

    def mtime_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def disk_usage(self, path: Path) -> DiskUsage:
        """Of the partition that holds `path` (or its nearest existing parent)."""
        while not path.exists() and path != path.parent:
            path = path.parent
        status = os.statvfs(path)
        total = status.f_blocks * status.f_frsize
        return DiskUsage(total, total - status.f_bfree * status.f_frsize, status.f_bavail * status.f_frsize)

    def lock_file(self, descriptor: int) -> int:
        """Try an exclusive POSIX record lock on byte 0, as Apache does: 0 when taken, else the owner's pid.

        Not flock: that would not exclude a running Apache broker. The lock vanishes when ANY descriptor of that file
        in this process is closed, so keep exactly one open. -1 stands for an owner that the kernel does not name.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except (BlockingIOError, PermissionError):
            return self.lock_owner(descriptor) or -1
        return 0

    def lock_owner(self, descriptor: int) -> int:
        """The pid of another process that holds that lock, 0 for none, -1 where the kernel does not name it."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
        if kind == fcntl.F_UNLCK:
            return 0
        return pid if pid > 0 else -1

    def boot_id(self) -> str:
        """Which run of the machine this is; empty where the kernel does not say. What an earlier process wrote in the
        same run is still in the page cache, synced or not."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def time_namespace(self) -> str:
        """Whose clocks this process reads: a container may have a start of its own. Empty where all share one."""
        try:
            return os.readlink("/proc/self/ns/time")
        except OSError:
            return ""

    def raise_descriptor_limit(self) -> int:
        """Lift the soft limit of open files to the hard one; the limit now in force."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard

    def _call_on_range(
        self, function: ctypes._NamedFuncPointer, mapping: mmap.mmap, start: int, size_bytes: int, *extra: object
    ) -> None:
        anchor = ctypes.c_char.from_buffer(mapping)  # pins the mapping: it cannot be closed under the call
        try:
            if function(ctypes.addressof(anchor) + start, size_bytes, *extra) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            del anchor
