"""What is not in memory is known before it is touched."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.message_store import Drive

MIB = 1 << 20


class Evicting(Files):
    """A kernel that has dropped what it is told to have dropped, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_dropped = False
        self.questions = 0

    def sync(self, descriptor: int) -> None:
        pass

    def is_resident(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        self.questions += 1
        return not self.is_dropped


def filled(path: Path, files: Files, clock: ManualClock) -> MessageStore:
    """A store that an earlier process wrote: five log files of one MiB."""
    config = StoreConfig(path, mapped_file_size_commit_log=MIB, max_hash_slot_num=100, max_index_num=400)
    with MessageStore(config, files=files, clock=clock) as store:
        store.put_many([Message("T", bytes(10_000)) for _ in range(420)])
    return MessageStore(config, files=files, clock=clock, drive=Drive.LOOP)


def test_what_this_process_wrote_is_warm_and_nobody_is_asked(tmp_path: Path) -> None:
    files = Evicting()
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=MIB, max_hash_slot_num=100, max_index_num=400)
    with MessageStore(config, files=files) as store:
        store.put_many([Message("T", bytes(10_000)) for _ in range(420)])
        files.is_dropped = True
        assert not store.is_cold("T", 0, 0)
    assert files.questions == 0


def test_an_evicted_range_is_cold_although_it_is_near_the_end_of_the_log(tmp_path: Path) -> None:
    files, clock = Evicting(), ManualClock()
    with filled(tmp_path, files, clock) as store:
        assert not store.is_cold("T", 0, 0)
        asked = files.questions
        files.is_dropped = True
        assert not store.is_cold("T", 0, 1)  # known from just now
        assert files.questions == asked
        clock.advance(1_000)
        assert store.is_cold("T", 0, 1)
        assert not store.is_cold("T", 0, 1, by_distance=True)
        files.is_dropped = False
        assert not store.is_cold("T", 0, 1)


def test_a_cold_read_gives_what_a_warm_one_gives(tmp_path: Path) -> None:
    with filled(tmp_path, Files(), ManualClock()) as store:
        warm = [bytes(view) for view in store.get_slices("T", 0, 5, 32).slices]
        assert len(warm) > 1
        assert [bytes(view) for view in store.get_slices_cold("T", 0, 5, 32).slices] == warm


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the kernel cannot be told to drop pages")
def test_the_kernel_says_what_it_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * MIB))
    files = Files()
    descriptor = os.open(path, os.O_RDWR)
    mapping = files.map(descriptor, 4 * MIB, writable=True)
    try:
        assert files.is_resident(mapping, 5, 2 * MIB)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if files.is_resident(mapping, 3 * MIB, 4096):
            pytest.skip("this file system keeps its pages whatever it is told")
        assert not files.is_resident(mapping, 5, 2 * MIB)
        os.pread(descriptor, 4 * MIB, 0)
        assert files.is_resident(mapping, 5, 2 * MIB)
    finally:
        files.unmap(mapping)
        os.close(descriptor)


def test_batches_that_are_not_in_memory_are_left_to_the_cold_read(tmp_path: Path) -> None:
    files, clock = Evicting(), ManualClock()
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=MIB, max_hash_slot_num=100, max_index_num=400)
    with MessageStore(config, files=files, clock=clock, batch_topics={"B"}) as store:
        for _ in range(40):
            store.put_inner_batch("B", [Message("B", bytes(10_000))] * 8)
    with MessageStore(config, files=files, clock=clock, drive=Drive.LOOP) as store:
        warm = store.get_slices_warm("B", 0, 16, 16)
        assert warm is not None
        assert (len(warm.slices), warm.next_offset) == (2, 32)
        files.is_dropped = True
        clock.advance(1_000)
        assert store.get_slices_warm("B", 0, 16, 16) is None
        cold = store.get_slices_cold("B", 0, 16, 16)
        assert [bytes(view) for view in cold.slices] == [bytes(view) for view in warm.slices]
        warm.release()
