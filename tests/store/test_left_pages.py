"""What the log has left behind does not count as this process's memory, and is still there."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from contrailmq.message import Message
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.upkeep.left_pages import SWEEP_MS, LeftPages

MIB = 1 << 20


class Recording(Files):
    """Counts what it was told to release."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[tuple[int, int]] = []

    def release_pages(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        self.released.append((start, start + size_bytes))
        return super().release_pages(mapping, start, size_bytes)


def resident_bytes(path: Path) -> int:
    """Of the mappings of one file, as the kernel counts them for this process."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def log_of(store: MessageStore) -> MappedFileQueue:
    return store._log_files


def filled(path: Path, files: Files) -> MessageStore:
    """Eleven MiB in three files of four."""
    config = StoreConfig(
        path, mapped_file_size_commit_log=4 * MIB, max_hash_slot_num=100, max_index_num=400, prefault_bytes=0
    )
    store = MessageStore(config, files=files).open()
    store.put_many([Message("T", number.to_bytes(2, "big") + bytes(9_998)) for number in range(1_150)])
    store.flush(store.log_max_offset)
    return store


def test_durable_pages_well_behind_the_end_are_released_and_read_as_before(tmp_path: Path) -> None:
    files, clock = Recording(), ManualClock()
    store = filled(tmp_path, files)
    first, second, third = (file.path for file in log_of(store).files)
    assert resident_bytes(first) > 3 * MIB
    LeftPages(files, clock, log_of(store), kept_bytes=5 * MIB).tick()
    assert resident_bytes(first) == 0
    assert resident_bytes(second) < 3 * MIB
    assert resident_bytes(third) > 2 * MIB
    assert files.is_resident(log_of(store).files[0].mapping, 0, 4 * MIB), "the page cache still has them"
    bodies = [message.body[:2] for start in range(0, 1_150, 10) for message in store.get("T", 0, start, 10)]
    assert bodies == [number.to_bytes(2, "big") for number in range(1_150)]
    store.close()


def test_what_a_sync_has_not_covered_is_kept(tmp_path: Path) -> None:
    files = Recording()
    store = filled(tmp_path, files)
    log_of(store).flushed_where = 2 * MIB + 5
    LeftPages(files, ManualClock(), log_of(store), kept_bytes=0).tick()
    assert files.released == [(0, 2 * MIB)]
    store.abandon()


def test_each_range_is_released_once_and_all_of_them_again_every_minute(tmp_path: Path) -> None:
    files, clock = Recording(), ManualClock()
    store = filled(tmp_path, files)
    left = LeftPages(files, clock, log_of(store), kept_bytes=5 * MIB)
    left.tick()
    assert files.released == [(0, 4 * MIB), (0, 2 * MIB)]
    left.tick()
    store.put_many([Message("T", bytes(10_000)) for _ in range(50)])
    store.flush(store.log_max_offset)
    assert len(files.released) == 2
    clock.advance(SWEEP_MS)
    left.tick()
    assert files.released[2:] == [(0, 4 * MIB), (0, 2 * MIB)]
    store.close()


def test_dirty_pages_that_are_released_keep_their_bytes(tmp_path: Path) -> None:
    files = Files()
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, MIB)
    mapping = files.map(descriptor, MIB, writable=True)
    mapping[:] = b"x" * MIB
    assert files.release_pages(mapping, 5, MIB - 5)
    assert resident_bytes(tmp_path / "file") == mmap.PAGESIZE, "the page that is only partly meant stays"
    assert mapping[:] == b"x" * MIB == (tmp_path / "file").read_bytes()
    files.unmap(mapping)
    os.close(descriptor)
