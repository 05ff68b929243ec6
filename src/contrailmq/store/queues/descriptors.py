"""Open queue files, few at a time: a broker may have 20,000 consume queues and 1,024 descriptors.

Queue files are not mapped. A `pread` of 32 units costs about 1 us, needs one descriptor where a mapping needs two, and
sees a file that was cut short as a short read, not as a SIGBUS. The cache owns its descriptors: reads and writes hold
its lock, so none is closed during a call. A sync may take long, so it uses its own descriptor and holds no lock.

The kernel gives the lowest free number, so a descriptor's number tells how many the process uses. Connections stop at
`limit - STORE_DESCRIPTORS`. The cache stops growing at `limit - LOG_DESCRIPTORS`: it shrinks by one file each time it
meets that number and grows again after some opens that did not. The rest is for log files, index files and tables.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from contrailmq.store.files import Files

NO_CEILING: Final = 2**31 - 1
CAPACITY_MIN: Final = 64
CAPACITY_MAX: Final = 16_384
RESERVED_DESCRIPTORS: Final = 512  # sockets, log files, index files: what the rest of the process may need at once
LOG_DESCRIPTORS: Final = 64  # two for a log file, one for an index file, some for timers and tables that are saved
STORE_DESCRIPTORS: Final = LOG_DESCRIPTORS + CAPACITY_MIN  # what connections leave to a store
FEW: Final = 16  # queue files that stay open however scarce descriptors are
_QUIET: Final = 16  # opens that met no want of descriptors, until one more file may stay open


def capacity_for(descriptor_limit: int) -> int:
    """How many queue files to keep open under a limit: what is left beside the rest, at most half of it."""
    return max(CAPACITY_MIN, min(CAPACITY_MAX, descriptor_limit // 2, descriptor_limit - RESERVED_DESCRIPTORS))


def ceiling_for(descriptor_limit: int) -> int:
    """The descriptor number from which on the cache shrinks. Of a low limit a quarter is kept free."""
    return descriptor_limit - min(LOG_DESCRIPTORS, descriptor_limit // 4)


class DescriptorCache:
    """Least recently used descriptors, keyed by directory and file base."""

    def __init__(self, files: Files, capacity: int, ceiling: int = NO_CEILING) -> None:
        assert capacity > 0
        self._files = files
        self._capacity = capacity
        self._ceiling = ceiling
        self._allowed = capacity  # how many files stay open as things are
        self._quiet = 0
        self._open: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._lock = threading.Lock()
        self._new_entries: set[Path] = set()  # directories with names that no sync has covered

    def __len__(self) -> int:
        return len(self._open)

    def pread(self, directory: str, base: int, size_bytes: int, position: int) -> bytes:
        with self._lock:
            return self._files.pread(self._descriptor(directory, base), size_bytes, position)

    def peek(self, directory: str, base: int, size_bytes: int) -> tuple[int, bytes]:
        """How long a file is, and how it begins."""
        with self._lock:
            descriptor = self._descriptor(directory, base)
            return self._files.size(descriptor), self._files.pread(descriptor, size_bytes, 0)

    def pwrite(self, directory: str, base: int, data: bytes | bytearray | memoryview, position: int) -> None:
        with self._lock:
            self._files.pwrite(self._descriptor(directory, base), data, position)

    def create(self, directory: str, base: int, size_bytes: int) -> None:
        """A sparse file of full size that reads as zeros, also when an older one of that name was there.

        Its directory is made, too. The names are durable when `take_new_entries` were synced.
        """
        with self._lock:
            self._close(directory, base)
            path = Path(directory)
            self._new_entries.update(self._files.make_directory(path, durable=False), (path,))
            descriptor = self._files.open(f"{directory}/{file_name(base)}", create=True)
            self._files.truncate(descriptor, 0)
            self._files.truncate(descriptor, size_bytes)
            self._keep(directory, base, descriptor)

    def zero_from(self, directory: str, base: int, position: int, size_bytes: int) -> None:
        """Everything from `position` on becomes a hole; the length stays."""
        with self._lock:
            descriptor = self._descriptor(directory, base)
            self._files.truncate(descriptor, position)
            self._files.truncate(descriptor, size_bytes)

    def sync_all(self, directory: str, unsynced: set[int]) -> None:
        """Sync files of one queue. Their bases leave the set, whose owner may add to it meanwhile; one that failed,
        and those after it, stay."""
        for base in sorted(unsynced):
            unsynced.discard(base)  # before the sync: a write that comes during it adds it again
            try:
                self._sync(directory, base)
            except FileNotFoundError:
                continue  # cleaned away meanwhile
            except OSError:
                unsynced.add(base)
                raise

    def _sync(self, directory: str, base: int) -> None:
        descriptor = self._files.open(f"{directory}/{file_name(base)}")
        try:
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def take_new_entries(self) -> set[Path]:
        """The directories that got names since the last call. Whoever takes them syncs them, or gives them back."""
        with self._lock:
            taken, self._new_entries = self._new_entries, set()
            return taken

    def give_back_new_entries(self, directories: set[Path]) -> None:
        with self._lock:
            self._new_entries |= directories

    def unlink(self, directory: str, base: int) -> None:
        with self._lock:
            self._close(directory, base)
            self._files.unlink(f"{directory}/{file_name(base)}")

    def forget(self, directory: str) -> None:
        """Close what is open below one queue's directory."""
        with self._lock:
            for key in [key for key in self._open if key[0] == directory]:
                self._files.close(self._open.pop(key))

    def close(self) -> None:
        with self._lock:
            while self._open:
                _, descriptor = self._open.popitem()
                self._files.close(descriptor)

    def _descriptor(self, directory: str, base: int) -> int:
        key = (directory, base)
        descriptor = self._open.get(key)
        if descriptor is not None:
            self._open.move_to_end(key)
            return descriptor
        descriptor = self._files.open(f"{directory}/{file_name(base)}")
        self._keep(directory, base, descriptor)
        return descriptor

    def _keep(self, directory: str, base: int, descriptor: int) -> None:
        if descriptor >= self._ceiling:
            self._allowed, self._quiet = max(min(FEW, self._capacity), len(self._open) - 1), 0
        elif self._allowed < self._capacity:
            self._quiet += 1
            self._allowed += self._quiet % _QUIET == 0
        while len(self._open) >= self._allowed:
            _, oldest = self._open.popitem(last=False)
            self._files.close(oldest)
        self._open[directory, base] = descriptor

    def _close(self, directory: str, base: int) -> None:
        descriptor = self._open.pop((directory, base), None)
        if descriptor is not None:
            self._files.close(descriptor)


def file_name(base: int) -> str:
    """RocketMQ's name of the file that starts at this address: twenty digits."""
    return f"{base:020d}"


def file_base(name: str) -> int | None:
    """The address in a file name, or None when it is not one of ours."""
    return int(name) if len(name) == 20 and name.isascii() and name.isdigit() else None
