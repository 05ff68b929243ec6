"""Disks: real small files, and what of them a power cut leaves.

A disk is a directory. Beside the files, which hold what programs wrote (the page cache), it keeps for each inode what
the last sync covered, and for each directory the names that its last sync covered. `cut_power` builds from the two what
is left: of every page written since the last sync the dice say whether it reached the platter, torn within a page or
not; a directory has its synced names, or those of the moment. So pages reach the disk in any order, as on real ones.

Writes through a mapping are no calls, so nothing is recorded when bytes are written, only when they are synced: the
pages of the file, or of the range of an msync, are copied. Log files in a simulation are small, and of large sparse
ones (the timer wheel) only the pages that hold data are looked at, and so that is cheap.

Syncs take virtual time. A disk may stall (no sync returns meanwhile), fail syncs, be full, or lie.

A trap stops a process within a step of its files: before or after a write, a sync, a rename (`Disk.trap`). The process
stands still from there, until somebody ends it.

`SimulatedFiles` is the store's door (`contrailmq.store.files`). Tables and settings are saved through plain Python
files and `os.fsync`, which `patches.py` leads here as well.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from contrailmq.store.base import store_lock
from contrailmq.store.files import DiskUsage, Files, SyncError
from simulation.threads import PREEMPTION_NS_MAX, PREEMPTION_ODDS
from simulation.world import MICROSECOND_NS, MILLISECOND_NS, World

if TYPE_CHECKING:
    from simulation.network import Host

DIRECTORY: Final = -1  # in place of an inode
PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
TERABYTE: Final = 1 << 40
_ZEROS: Final = bytes(PAGE_BYTES)


class Loss(Enum):
    """What a cut does to bytes that no sync has covered."""

    DICE = "any page may be lost"
    TORN = "any sector may be lost"
    EVERYTHING = "all of them are lost"


class Content:
    """What a file holds: its size, and those of its pages that are not a hole."""

    __slots__ = ("pages", "size_bytes")

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self.pages: dict[int, bytes] = {}  # by position

    def page(self, start: int) -> bytes:
        return self.pages.get(start, _ZEROS)

    def write_to(self, path: Path) -> None:
        with open(path, "wb") as file:
            file.truncate(self.size_bytes)
            for start, page in self.pages.items():
                file.seek(start)
                file.write(page[: self.size_bytes - start])

    def put(self, start: int, data: bytes) -> None:
        """Data for whole pages, the last of which may be short."""
        self.size_bytes = max(self.size_bytes, start + len(data))
        for at in range(0, len(data), PAGE_BYTES):
            page = data[at : at + PAGE_BYTES]
            old = self.pages.get(start + at, _ZEROS) if len(page) < PAGE_BYTES else b""
            self.pages[start + at] = page + old[len(page) :]


class Disk:
    """The disk of one host."""

    def __init__(self, world: World, host: Host, path: Path) -> None:
        self.world, self.host, self.path = world, host, path.resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        self.sync_ns_min, self.sync_ns_max = 50 * MICROSECOND_NS, 3 * MILLISECOND_NS
        self.loss = Loss.DICE
        self.fails_syncs = False
        self.fails_reads = False
        self.lies = False  # the store's syncs do nothing, and say that they did
        self.stalled_until_ns = 0
        self.free_bytes = TERABYTE
        self.syncs = 0
        self.trap: Callable[[Path], bool] | None = None  # asked at each step, with the file's path: stop here?
        self.written_ms: dict[int, int] = {}  # inode -> when it was written, by the node's clock
        self._contents: dict[int, Content] = {}  # inode -> what is durable of it
        self._names: dict[Path, dict[str, int]] = {}  # directory -> its durable names
        self.opened: set[int] = set()  # descriptors of processes, those that were killed included
        self._kept: dict[int, int] = {}  # inode -> a descriptor, so that its number is not given to another file

    # --- syncs

    def sync(self, descriptor: int) -> None:
        """fsync of a file: what it held when the sync began is durable when it returns."""
        number = os.fstat(descriptor).st_ino
        self._keep(number, descriptor)
        self.written(number)
        content = _content_of(self._kept[number])  # the given one may be for writing only
        self.step(descriptor)
        self._take_time()
        self._contents[number] = content
        self.step(descriptor)

    def sync_range(self, number: int, view: memoryview, start: int) -> None:
        """msync of a part: the pages of [start, start + len(view)) become durable."""
        data = bytes(view)
        self._take_time()
        self._contents.setdefault(number, Content()).put(start, data)

    def sync_directory(self, path: Path) -> None:
        names = _names_of(path)
        self.step(path)
        self._take_time()
        self._names[path] = names
        self.step(path)

    def sync_everything(self) -> None:
        """syncfs."""
        contents, names = {}, {}
        for directory, _, files in os.walk(self.path):
            names[Path(directory)] = _names_of(Path(directory))
            for file in files:
                with _opened(Path(directory) / file) as descriptor:
                    number = os.fstat(descriptor).st_ino
                    self._keep(number, descriptor)
                    contents[number] = _content_of(descriptor)
        self._take_time()
        self._contents.update(contents)
        self._names.update(names)

    def created(self, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        self._keep(number, descriptor)
        self._contents[number] = Content()

    def written(self, number: int) -> None:
        """A file was written. No real time may tell: how much of it passes is no part of a seed."""
        self.written_ms[number] = self.now_ms()

    def now_ms(self) -> int:
        running = self.world.running
        return 0 if running is None else running.node.clock.wall_ns() // MILLISECOND_NS

    def step(self, file: int | Path) -> None:
        """A process is about to do something with a file or directory, or has just done it. It may be stopped here."""
        running = self.world.running
        if self.trap is None or running is None or self.world.is_over:
            return
        path = Path(os.readlink(f"/proc/self/fd/{file}")) if isinstance(file, int) else file
        if path.is_relative_to(self.path) and self.trap(path.relative_to(self.path)):
            self.trap = None
            running.node.is_paused = True
            self.world.park()

    def _take_time(self) -> None:
        """The waiting of a sync, and what may come of it."""
        world = self.world
        self.syncs += 1
        if world.running is not None and not world.is_over:
            waits_ns = world.random.randint(self.sync_ns_min, self.sync_ns_max)
            world.park(max(waits_ns, self.stalled_until_ns - world.now_ns))
        if self.fails_syncs:
            raise SyncError(errno.EIO, "a simulated disk: Input/output error")

    # --- what happens to it

    def stall(self, seconds: float) -> None:
        """No sync returns for so long."""
        self.world.note(f"stall {self.host.name}")
        self.stalled_until_ns = self.world.now_ns + round(seconds * 1e9)

    def make_room(self) -> None:
        self.free_bytes = TERABYTE

    def wipe(self) -> None:
        """The operator puts an empty disk in its place; nobody may have a file open."""
        self.world.note(f"wipe {self.host.name}")
        shutil.rmtree(self.path)
        self.path.mkdir()
        self._forget()

    def durable(self, path: Path, begin: int, end: int) -> bytes:
        """The part of a file that a power cut leaves whatever the dice say; empty when it would leave no such file."""
        if path.name not in self._names.get(path.parent, {}):
            return b""
        content = self._contents.get(os.stat(path).st_ino, Content())
        first = begin - begin % PAGE_BYTES
        pages = b"".join(content.page(start) for start in range(first, end, PAGE_BYTES))
        return pages[begin - first : min(end, content.size_bytes) - first]

    def read_again(self) -> None:
        self.fails_reads = False

    def flip(self, path: Path, position: int, mask: int) -> None:
        """Turn bits of a byte, in the file and on the platter."""
        self.world.note(f"flip {path.name} {position}")
        with _opened(path, os.O_RDWR) as descriptor:
            number, byte = os.fstat(descriptor).st_ino, os.pread(descriptor, 1, position)[0]
            os.pwrite(descriptor, bytes([byte ^ mask]), position)
        durable = self._contents.get(number)
        start = position - position % PAGE_BYTES
        if durable is not None and start in durable.pages and durable.pages[start][position - start] == byte:
            page = bytearray(durable.pages[start])
            page[position - start] ^= mask
            durable.pages[start] = bytes(page)

    def owner_died(self) -> None:
        """Locks of a process go with it."""
        for path in [path for path in store_lock._open_here if path.is_relative_to(self.path)]:
            store_lock._open_here.discard(path)

    def cut_power(self) -> None:
        """Replace the files by what a power cut leaves of them."""
        fresh = self.path.with_name(self.path.name + ".after")
        fresh.mkdir()
        self._build(self.path, fresh)
        shutil.rmtree(self.path)
        fresh.rename(self.path)
        self._forget()
        for directory, _, files in os.walk(self.path):  # what is there now was on the platter
            self._names[Path(directory)] = _names_of(Path(directory))
            for file in files:
                with _opened(Path(directory) / file) as descriptor:
                    number = os.fstat(descriptor).st_ino
                    self._keep(number, descriptor)
                    self._contents[number] = _content_of(descriptor)

    def close(self) -> None:
        """The world is over: nobody closes what a killed process had open."""
        self._forget()
        while self.opened:
            with contextlib.suppress(OSError):
                os.close(self.opened.pop())

    def digest(self) -> str:
        """A hash of every file, with its name."""
        found = hashlib.blake2b(digest_size=16)
        for path in sorted(self.path.rglob("*")):
            found.update(str(path.relative_to(self.path)).encode() + b"\0")
            if path.is_file():
                with _opened(path) as descriptor:
                    content = _content_of(descriptor)
                found.update(str(content.size_bytes).encode())
                for start, page in content.pages.items():
                    if page != _ZEROS:
                        found.update(str(start).encode() + page)
        return found.hexdigest()

    def _forget(self) -> None:
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._kept.clear()
        self._contents.clear()
        self._names.clear()

    def _build(self, directory: Path, target: Path) -> None:
        chance = self.world.random
        durable, newest = self._names.get(directory, {}), _names_of(directory)
        names = durable if self.loss is Loss.EVERYTHING or chance.random() < 0.5 else newest
        for name, number in sorted(names.items()):
            if number == DIRECTORY:
                (target / name).mkdir()
                self._build(directory / name, target / name)
            else:
                self._left_of(number, directory / name).write_to(target / name)
                self.written_ms[os.stat(target / name).st_ino] = self.written_ms.get(number, 0)

    def _left_of(self, number: int, path: Path) -> Content:
        durable = self._contents.get(number, Content())
        if self.loss is Loss.EVERYTHING:
            return durable
        kept = self._kept.get(number)
        if kept is not None:
            newest = _content_of(kept)
        else:
            with _opened(path) as descriptor:
                newest = _content_of(descriptor)
        chance = self.world.random
        unit = PAGE_BYTES if self.loss is Loss.DICE else SECTOR_BYTES
        left = Content(newest.size_bytes if chance.random() < 0.5 else durable.size_bytes)
        bias = chance.random()
        for start in sorted(durable.pages.keys() | newest.pages.keys()):
            old, new = durable.page(start), newest.page(start)
            if old == new:
                left.pages[start] = old
                continue
            page = bytearray(old)
            for at in range(0, PAGE_BYTES, unit):
                if old[at : at + unit] != new[at : at + unit] and chance.random() < bias:
                    page[at : at + unit] = new[at : at + unit]
            left.pages[start] = bytes(page)
        left.pages = {start: page for start, page in left.pages.items() if start < left.size_bytes}
        return left

    def _keep(self, number: int, descriptor: int) -> None:
        if number not in self._kept:
            self._kept[number] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)


class SimulatedFiles(Files):
    """The store's file layer on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk
        self._inodes: dict[int, int] = {}  # id(mapping) -> inode

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        self._maybe_preempt()
        is_new = create and not os.path.exists(path)
        descriptor = super().open(path, writable=writable, create=create)
        self._disk.opened.add(descriptor)
        if is_new:
            self._disk.created(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._disk.opened.discard(descriptor)
        super().close(descriptor)

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        self._maybe_preempt()
        self._check_reads()
        return super().pread(descriptor, size_bytes, position)

    def preadv(self, descriptor: int, buffers: Sequence[bytearray | memoryview], position: int) -> int:
        self._maybe_preempt()
        self._check_reads()
        return super().preadv(descriptor, buffers, position)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._maybe_preempt()
        super().truncate(descriptor, size_bytes)
        self._disk.written(os.fstat(descriptor).st_ino)
        self._disk.step(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe_preempt()
        self._disk.step(Path(source))
        super().rename(source, target)
        self._disk.step(Path(target))

    def unlink(self, path: Path | str) -> None:
        self._maybe_preempt()
        self._disk.step(Path(path))
        super().unlink(path)
        self._disk.step(Path(path))

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._maybe_preempt()
        self._check_room(len(data) if position + len(data) > os.fstat(descriptor).st_size else 0)
        self._disk.step(descriptor)
        super().pwrite(descriptor, data, position)
        self._disk.written(os.fstat(descriptor).st_ino)
        self._disk.step(descriptor)

    def allocate(self, descriptor: int, size_bytes: int, position: int = 0) -> None:
        self._check_room(position + size_bytes - os.fstat(descriptor).st_size)
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, position + size_bytes))  # tmpfs would make pages
        self._disk.written(os.fstat(descriptor).st_ino)

    def map(self, descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
        self._maybe_preempt()
        mapping = super().map(descriptor, size_bytes, writable=writable)
        self._inodes[id(mapping)] = os.fstat(descriptor).st_ino
        return mapping

    def sync(self, descriptor: int) -> None:
        if self._disk.lies:
            return
        self._disk.sync(descriptor)

    def start_writing(self, descriptor: int) -> None:
        return

    def sync_map(self, mapping: mmap.mmap, start: int, size_bytes: int) -> None:
        if self._disk.lies:
            return
        base = start - start % mmap.PAGESIZE
        number = self._inodes[id(mapping)]
        self._disk.sync_range(number, memoryview(mapping)[base : start + size_bytes], base)
        self._disk.written(number)

    def sync_directory(self, path: Path) -> None:
        self._disk.sync_directory(Path(path).resolve())

    def sync_filesystem(self, path: Path) -> bool:
        self._disk.sync_everything()
        return True

    def prefault(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        return True

    def is_resident(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        return True

    def release_pages(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        return True

    def lock_memory(self, mapping: mmap.mmap) -> None:
        return

    def unlock_memory(self, mapping: mmap.mmap) -> None:
        return

    def mtime_ms(self, path: Path) -> int:
        return self._disk.written_ms.get(os.stat(path).st_ino, 0) or self._disk.now_ms()

    def disk_usage(self, path: Path) -> DiskUsage:
        free = self._disk.free_bytes
        return DiskUsage(2 * TERABYTE, 2 * TERABYTE - free, free)

    def lock_file(self, descriptor: int) -> int:
        return 0  # a second process on the same directory is not simulated

    def lock_owner(self, descriptor: int) -> int:
        return 0

    def boot_id(self) -> str:
        return f"{self._disk.host.name}-{self._disk.host.boot}"

    def time_namespace(self) -> str:
        return ""

    def raise_descriptor_limit(self) -> int:
        return 65_536

    def _maybe_preempt(self) -> None:
        """Other threads of the same process may run before a call goes to the kernel."""
        world = self._disk.world
        fiber = world.running
        if fiber is None or not fiber.node.is_preemptive or world.is_over or world.is_resting:
            return
        if world.is_drawn(PREEMPTION_ODDS):
            world.pass_turn(int(world.random.random() * PREEMPTION_NS_MAX))

    def _check_reads(self) -> None:
        if self._disk.fails_reads:
            raise OSError(errno.EIO, "Input/output error of a simulated disk")

    def _check_room(self, more_bytes: int) -> None:
        if more_bytes > self._disk.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on a simulated disk")


def fsync_in(world: World, real_fsync: Callable[[int], None]) -> Callable[[int], None]:
    """`os.fsync` for whoever writes tables and settings: of a file, or of a directory."""

    def fsync(descriptor: int) -> None:
        running = world.running
        disk = running.node.disk if running is not None else None
        if disk is None:
            real_fsync(descriptor)
            return
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            disk.sync_directory(path)
        else:
            disk.sync(descriptor)

    return fsync


def _names_of(path: Path) -> dict[str, int]:
    try:
        with os.scandir(path) as entries:
            return {entry.name: DIRECTORY if entry.is_dir() else entry.inode() for entry in entries}
    except FileNotFoundError:
        return {}


def _content_of(descriptor: int) -> Content:
    """The pages of a file that hold data, and its size."""
    content = Content(os.fstat(descriptor).st_size)
    pages, end = content.pages, 0
    while end < content.size_bytes:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            break
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        data = os.pread(descriptor, end - begin, begin)
        for at in range(0, len(data), PAGE_BYTES):
            pages[begin + at] = data[at : at + PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
    return content


@contextlib.contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
