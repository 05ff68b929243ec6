"""How much is mapped and locked: told by the door that maps, so nothing is left out, and given back."""

from __future__ import annotations

import gc
import mmap
import os
import resource
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import Files, MessageStore, StoreConfig
from contrailmq.store.files import Mapped
from contrailmq.store.index.index_file import index_file_bytes

LOG_BYTES = 64 << 10
SLOTS, UNITS = 10, 1_000
WAIT_S = 120.0


def config_at(path: Path, **settings: object) -> StoreConfig:
    return StoreConfig(
        path, mapped_file_size_commit_log=LOG_BYTES, max_hash_slot_num=SLOTS, max_index_num=UNITS, **settings
    )


def fill_file(store: MessageStore) -> None:
    """Put until the log takes its next file, and wait for the one that is then made ahead."""
    count = len(store._log_files.files)
    while len(store._log_files.files) == count:
        store.put(Message("T", bytes(5_000)))
    wait_for_next_file(store)


def wait_for_next_file(store: MessageStore) -> None:
    last = store._log_files.last
    assert last is not None
    allocator = store._allocator
    with allocator._changed:
        assert allocator._changed.wait_for(lambda: last.end in allocator._ready, WAIT_S)


def totals(store: MessageStore) -> Mapped:
    """Of an open store they are also in its runtime info; a closed one has none."""
    told = Mapped(store.stats.mapped_files, store.stats.mapped_bytes)
    if store.writable:
        shown = store.runtime_info()
        assert (shown["totalMappedFiles"], shown["totalMappedVirtualMemory"]) == tuple(map(str, told))
    return told


def kernels_count(directory: Path) -> Mapped:
    """The same two figures as the kernel knows them for this process."""
    sizes = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f" {directory}/" in line:
            begin, _, end = line.split()[0].partition("-")
            sizes.append(int(end, 16) - int(begin, 16))
    return Mapped(len(sizes), sum(sizes))


def test_a_roll_maps_one_file_more_and_its_size_as_the_kernel_counts_them(tmp_path: Path) -> None:
    store = MessageStore(config_at(tmp_path, message_index_enable=False))
    assert totals(store) == (0, 0)
    with store:
        store.put(Message("T", b"first"))
        wait_for_next_file(store)
        assert totals(store) == kernels_count(tmp_path) == (2, 2 * LOG_BYTES)  # in use, and made ahead
        fill_file(store)
        assert totals(store) == kernels_count(tmp_path) == (3, 3 * LOG_BYTES)
    assert totals(store) == kernels_count(tmp_path) == (0, 0)


def test_the_index_counts_too(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store.put(Message("T", b"first", keys="k"))
        store.dispatch()
        wait_for_next_file(store)
        assert totals(store) == (3, 2 * LOG_BYTES + index_file_bytes(SLOTS, UNITS))
    assert totals(store) == (0, 0)


def test_a_cleaned_file_no_longer_counts_but_one_that_is_still_read_does(tmp_path: Path) -> None:
    """The reader's file loses its name at once (the interval is 0) and stays mapped until the reader lets go."""
    settings = {"message_index_enable": False, "destroy_maped_file_interval_forcibly": 0}
    with MessageStore(config_at(tmp_path, **settings)) as store:
        for _ in range(4):
            fill_file(store)
        assert totals(store).files == 5
        second = store._log_files.files[1].base
        read = store.get_slices("T", 0, 0, 1)
        assert store._log_files.delete_expired(reserved_ms=0, force_after_ms=0, count_max=1, at_once=True)
        assert store._log_files.min_offset == second
        assert totals(store) == kernels_count(tmp_path) == (5, 5 * LOG_BYTES)
        read.release()
        assert totals(store) == kernels_count(tmp_path) == (4, 4 * LOG_BYTES)
        assert store._log_files.delete_expired(reserved_ms=0, force_after_ms=0, count_max=1, at_once=True)
        assert totals(store) == (3, 3 * LOG_BYTES)


def test_a_store_that_is_closed_under_a_reader_keeps_no_descriptor(tmp_path: Path) -> None:
    """The mapping is the reader's until it lets go; CPython's duplicate of the descriptor goes with it."""
    store = MessageStore(config_at(tmp_path, message_index_enable=False)).open()
    store.put(Message("T", b"body"))
    read = store.get_slices("T", 0, 0, 1)
    store.close()
    assert totals(store) == (1, LOG_BYTES)
    read.release()
    assert totals(store) == (0, 0)
    assert not [name for name in open_files() if name.startswith(str(tmp_path))]


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # of the listing itself
            continue
    return found


class Locking(Files):
    """Keeps what is locked, by the mapping's identity; locks nothing, so any limit will do."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: list[mmap.mmap] = []

    def lock_memory(self, mapping: mmap.mmap) -> None:
        self.locked.append(mapping)

    def unlock_memory(self, mapping: mmap.mmap) -> None:
        self.locked.remove(mapping)


def test_what_the_log_leaves_behind_is_unlocked(tmp_path: Path) -> None:
    """The file in use and the one made ahead stay locked."""
    files = Locking()
    with MessageStore(config_at(tmp_path, warm_maped_file_enable=True), files=files) as store:
        for _ in range(3):
            fill_file(store)
            following = store._allocator._ready.values()
            last = store._log_files.last
            assert last is not None
            finish_tasks(store)
            assert files.locked == [last.mapping, *(file.mapping for file in following)]


def finish_tasks(store: MessageStore) -> None:
    """The worker does one thing after the other: when it comes to this it has done all before."""
    allocator = store._allocator
    done: list[None] = []
    with allocator._changed:
        allocator._tasks.put(lambda: _note(store, done))
        assert allocator._changed.wait_for(lambda: done, WAIT_S)


def _note(store: MessageStore, done: list[None]) -> None:
    with store._allocator._changed:
        done.append(None)
        store._allocator._changed.notify_all()


def locked_bytes() -> int:
    """Of the whole process, without what earlier tests left to the collector."""
    gc.collect()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
    return int(line.split()[1]) * 1024


def locked_bytes_of_files(directory: Path) -> int:
    """Of the mapped files below a directory: what other stores of this process lock or let go does not count."""
    total, below = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):  # the head of a mapping: addresses, rights, ..., path
            below = bool(rest) and rest[-1].startswith(f"{directory}/")
        elif first == "Locked:" and below:
            total += int(rest[0]) * 1024
    return total


def test_the_kernel_has_no_more_locked_than_the_file_in_use_and_the_next(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit != resource.RLIM_INFINITY and limit < locked_bytes() + 4 * LOG_BYTES:
        pytest.skip(f"a process may lock {limit} bytes here, the test needs {4 * LOG_BYTES}")
    with MessageStore(config_at(tmp_path, warm_maped_file_enable=True)) as store:
        for _ in range(3):
            fill_file(store)
        finish_tasks(store)
        assert locked_bytes_of_files(tmp_path) == 2 * LOG_BYTES
    assert locked_bytes_of_files(tmp_path) == 0


def test_buffers_of_the_pool_are_locked_with_the_store_and_go_with_it(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit != resource.RLIM_INFINITY and limit < locked_bytes() + 3 * LOG_BYTES:
        pytest.skip(f"a process may lock {limit} bytes here, the test needs {3 * LOG_BYTES}")
    before = locked_bytes()
    settings = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
    with MessageStore(config_at(tmp_path, **settings)) as store:
        store.put(Message("T", b"body"))
        assert locked_bytes() - before == 3 * LOG_BYTES
    del store
    assert locked_bytes() == before
