"""The door to the operating system, on the real one."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from contrailmq.store.files import DiskUsage, Files, SyncError


@pytest.fixture
def files() -> Files:
    return Files()


def test_pread_and_pwrite_do_all_or_end_at_the_end(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(tmp_path / "a", create=True)
    files.pwrite(descriptor, b"0123456789", 5)
    assert files.pread(descriptor, 100, 0) == bytes(5) + b"0123456789"
    assert files.pread(descriptor, 4, 100) == b""
    buffers = [bytearray(3), bytearray(20)]
    assert files.preadv(descriptor, buffers, 5) == 10
    assert bytes(buffers[0]) == b"012"
    files.close(descriptor)


def test_writing_that_was_started_ends_in_a_sync(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(tmp_path / "a", create=True)
    files.pwrite(descriptor, b"x" * 100_000, 0)
    files.start_writing(descriptor)
    files.sync(descriptor)
    files.close(descriptor)
    assert (tmp_path / "a").read_bytes() == b"x" * 100_000
    files.start_writing(descriptor)  # closed: a hint that fails is no error


def test_one_call_syncs_a_whole_file_system_or_says_that_it_cannot(files: Files, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    major, minor = map(int, os.uname().release.split(".")[:2])
    assert files.sync_filesystem(tmp_path) is ((major, minor) >= (5, 8))
    with pytest.raises(FileNotFoundError):
        files.sync_filesystem(tmp_path / "absent")


def test_new_directories_are_named_to_whoever_syncs_them(files: Files, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    assert sorted(files.make_directory(deep, durable=False)) == [tmp_path, tmp_path / "a"]
    assert files.make_directory(deep, durable=False) == []


def test_allocated_space_is_real_and_reads_as_zeros(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(tmp_path / "a", create=True)
    files.allocate(descriptor, 1 << 20)
    assert os.stat(tmp_path / "a").st_blocks * 512 >= 1 << 20
    assert files.pread(descriptor, 100, 1000) == bytes(100)
    files.close(descriptor)


def test_a_mapping_is_synced_by_range_advised_prefaulted_and_locked(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(tmp_path / "a", create=True)
    files.allocate(descriptor, 1 << 20)
    mapping = files.map(descriptor, 1 << 20, writable=True)
    mapping[5000:5003] = b"abc"
    files.sync_map(mapping, 5000, 3)
    files.advise(mapping, mmap.MADV_RANDOM)
    files.advise(mapping, mmap.MADV_WILLNEED, 4096, 4096)
    files.prefault(mapping, 100, 1 << 30)  # cut to the mapping; whether the kernel can is its affair
    assert files.pread(descriptor, 3, 5000) == b"abc"
    view = memoryview(mapping)
    assert not files.unmap(mapping)  # a reader is there
    view.release()
    assert files.unmap(mapping)
    files.close(descriptor)


def test_a_failed_sync_is_told_apart_from_other_errors(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(tmp_path / "a", create=True)
    files.close(descriptor)
    with pytest.raises(SyncError, match="fdatasync"):
        files.sync(descriptor)
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "none")


def test_directories_are_made_with_their_parents_and_listed_in_name_order(files: Files, tmp_path: Path) -> None:
    files.make_directory(tmp_path / "x" / "y")
    for name in ("b", "a", "c"):
        files.close(files.open(tmp_path / "x" / "y" / name, create=True))
    assert [path.name for path in files.list_directory(tmp_path / "x" / "y")] == ["a", "b", "c"]
    assert files.list_directory(tmp_path / "none") == []
    files.rename(tmp_path / "x" / "y" / "a", tmp_path / "x" / "y" / "d")
    assert not files.exists(tmp_path / "x" / "y" / "a")


@pytest.mark.parametrize(
    ("used", "free", "ratio"), [(0, 100, 0.0), (1, 999, 0.01), (50, 50, 0.5), (501, 499, 0.51), (0, 0, -1.0)]
)
def test_the_used_ratio_is_rocketmqs_rounded_up_to_whole_percent(used: int, free: int, ratio: float) -> None:
    assert DiskUsage(1000, used, free).used_ratio == ratio


def test_disk_usage_of_a_path_that_is_not_there_yet_is_its_parents(files: Files, tmp_path: Path) -> None:
    assert files.disk_usage(tmp_path / "a" / "b").total_bytes == files.disk_usage(tmp_path).total_bytes


def test_an_error_on_a_descriptor_names_its_file(tmp_path: Path) -> None:
    files = Files()
    descriptor = files.open(tmp_path, writable=False)  # of a directory, which nothing can be done with
    try:
        for call in (
            lambda: files.pread(descriptor, 1, 0),
            lambda: files.pwrite(descriptor, b"x", 0),
            lambda: files.truncate(descriptor, 1),
            lambda: files.allocate(descriptor, 1),
            lambda: files.map(descriptor, 4096, writable=False),
        ):
            with pytest.raises(OSError, match=str(tmp_path)):
                call()
    finally:
        files.close(descriptor)
