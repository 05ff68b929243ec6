"""Files of the log: positions, the page rule, readers and deletion, allocation ahead, the write buffer pool."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, no_space

from contrailmq.store import Files, ManualClock, StoreConfig
from contrailmq.store.base.errors import StoreFullError, StoreIOError
from contrailmq.store.files import MADV_RANDOM, MADV_WILLNEED, PAGE_BYTES
from contrailmq.store.log.allocation import Allocator, NoWriteBufferError
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.log.write_buffer_pool import WriteBufferPool

SIZE = 8 * PAGE_BYTES


def make_file(directory: Path, base: int = 0, files: Files | None = None) -> MappedFile:
    files = files or Files()
    path = directory / f"{base:020d}"
    descriptor = files.open(path, create=True)
    files.truncate(descriptor, SIZE)
    return MappedFile(files, path, SIZE, descriptor=descriptor)


def make_queue(directory: Path, count: int = 0) -> MappedFileQueue:
    queue = MappedFileQueue(Files(), ManualClock(), (directory,), SIZE)
    for number in range(count):
        file = make_file(directory, number * SIZE)
        file.set_positions(SIZE)
        queue.add(file)
    return queue


Make = Callable[..., Allocator]


@pytest.fixture
def make_allocator(tmp_path: Path) -> Make:
    made: list[Allocator] = []

    def make(files: Files | None = None, pool: WriteBufferPool | None = None, **settings: object) -> Allocator:
        files = files or Files()
        config = StoreConfig(tmp_path, mapped_file_size_commit_log=SIZE, **settings).resolved(files)
        log_files = MappedFileQueue(files, ManualClock(), config.commit_log_paths, SIZE)
        log_files.load()
        allocator = Allocator(files, config, log_files, pool, on_sync_failure=lambda _: None)
        allocator.start()
        made.append(allocator)
        return allocator

    yield make  # type: ignore[misc]
    for allocator in made:
        allocator.stop()


# --- one file


@pytest.mark.parametrize(
    ("wrote", "flushed", "pages", "is_due"),
    [
        (100, 0, 0, True),
        (100, 100, 0, False),
        (4 * PAGE_BYTES - 1, 0, 4, False),
        (4 * PAGE_BYTES, 0, 4, True),
        (4 * PAGE_BYTES, PAGE_BYTES - 1, 4, True),  # whole pages between both ends, not the difference in bytes
        (5 * PAGE_BYTES - 1, PAGE_BYTES, 4, False),
        (SIZE, SIZE - 1, 4, True),  # a full file is always due
        (SIZE, SIZE, 4, False),
    ],
)
def test_a_flush_is_due_by_the_page_rule(wrote: int, flushed: int, pages: int, is_due: bool, tmp_path: Path) -> None:
    file = make_file(tmp_path)
    file.wrote, file.flushed = wrote, flushed
    assert file.flush(pages) == (wrote if is_due else flushed)
    file.close()


def write(file: MappedFile, data: bytes) -> None:
    file.target[file.wrote : file.wrote + len(data)] = data
    file.wrote += len(data)


def test_a_file_is_not_unmapped_under_a_reader_and_goes_when_the_reader_is_done(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    write(file, b"abc")
    view = file.select(0, 3)
    assert view is not None
    assert not file.destroy(0, force_after_ms=1000)
    assert file.select(0, 3) is None  # no new readers
    assert bytes(view) == b"abc"
    assert file.path.exists()
    view.release()
    assert file.destroy(1, force_after_ms=1000)
    assert not file.path.exists()


def test_after_the_interval_the_name_goes_and_the_reader_still_reads(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    write(file, b"abc")
    view = file.select(0, 3)
    assert view is not None
    assert not file.destroy(0, force_after_ms=1000)
    assert file.destroy(1000, force_after_ms=1000)
    assert not file.path.exists()
    assert bytes(view) == b"abc"


def test_a_held_descriptor_is_not_closed(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    assert file.hold()
    assert not file.destroy(0, force_after_ms=1000)
    os.fstat(file.descriptor)
    assert not file.hold()
    file.release()
    assert file.destroy(0, force_after_ms=1000)


def test_only_written_bytes_can_be_selected(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    write(file, b"abc")
    assert file.select(0, 4) is None
    assert file.select(-1, 2) is None
    assert file.pread(1, 2) == b"bc"
    assert file.pread(1, 3) is None
    rest = file.select(1, 2)
    assert rest == b"bc"
    rest.release()
    file.close()


def test_cutting_leaves_no_record_behind_the_cut(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    write(file, b"\xff" * 100)
    file.cut(40)
    assert file.mapping[30:60] == b"\xff" * 10 + bytes(8) + b"\xff" * 12
    assert (file.wrote, file.flushed) == (40, 40)
    file.close()


# --- the row of files


def test_the_file_of_an_offset_is_found_also_after_the_first_files_are_gone(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 4)
    assert [file.base if (file := queue.find(n * SIZE + 5)) else None for n in range(5)] == [
        0, SIZE, 2 * SIZE, 3 * SIZE, None,
    ]  # fmt: skip
    assert queue.delete_expired(reserved_ms=0, force_after_ms=0, count_max=2, at_once=True) == [
        tmp_path / f"{0:020d}", tmp_path / f"{SIZE:020d}",
    ]  # fmt: skip
    assert queue.min_offset == 2 * SIZE
    assert queue.find(5) is None
    assert (found := queue.find(3 * SIZE)) is not None
    assert found.base == 3 * SIZE
    queue.close()


def test_the_last_file_is_never_deleted(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 2)
    assert len(queue.delete_expired(reserved_ms=0, force_after_ms=0, count_max=9, at_once=True)) == 1
    assert queue.delete_expired(reserved_ms=0, force_after_ms=0, count_max=9, at_once=True) == []
    queue.close()


def test_a_file_is_deleted_when_its_time_is_up_by_the_file_systems_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    queue = MappedFileQueue(Files(), clock, (tmp_path,), SIZE)
    for number in range(3):
        queue.add(make_file(tmp_path, number * SIZE))
        at_s = clock.now_ms() / 1000 + number * 3600
        os.utime(tmp_path / f"{number * SIZE:020d}", (at_s, at_s))
    hour_ms = 3_600_000
    clock.advance(hour_ms - 1)
    assert queue.delete_expired(reserved_ms=hour_ms, force_after_ms=0, count_max=9) == []
    clock.advance(1)
    assert len(queue.delete_expired(reserved_ms=hour_ms, force_after_ms=0, count_max=9)) == 1
    assert [file.base for file in queue.files] == [SIZE, 2 * SIZE]
    queue.close()


def test_a_file_in_use_stops_the_deletion_and_a_second_round_takes_it_up(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 3)
    view = queue.files[0].select(0, 10)
    assert view is not None
    assert queue.delete_expired(reserved_ms=0, force_after_ms=10**9, count_max=9, at_once=True) == []
    assert queue.min_offset == SIZE  # a file that is going does not count
    assert not queue.retry_first(force_after_ms=10**9)
    view.release()
    assert queue.retry_first(force_after_ms=10**9)
    assert len(queue.files) == 2
    assert not queue.retry_first(force_after_ms=10**9)
    queue.close()


def test_truncating_drops_later_files_and_cuts_the_one_that_holds_the_offset(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 4)
    assert queue.truncate_dirty_files(SIZE + 100) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}", f"{SIZE:020d}"]
    assert (queue.max_offset, queue.flushed_where) == (SIZE + 100, SIZE + 100)
    queue.close()


def test_one_flush_goes_over_file_borders(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 3)
    queue.files[2].set_positions(0)
    write(queue.files[2], b"abc")
    for file in queue.files:
        file.flushed = 0
    assert queue.flush(0)
    assert queue.flushed_where == 2 * SIZE + 3
    assert not queue.flush(0)
    queue.close()


def test_several_directories_take_turns(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path, store_path_commit_log=f"{tmp_path}/b,{tmp_path}/a")
    queue = MappedFileQueue(Files(), ManualClock(), config.commit_log_paths, SIZE)
    assert [queue.path_of(n * SIZE).parent.name for n in range(3)] == ["a", "b", "a"]
    assert queue.path_of(0, lambda path: path.name == "b").parent.name == "b"


# --- allocation


@pytest.mark.parametrize("settings", [{}, {"flush_disk_type": "SYNC_FLUSH"}, {"warm_maped_file_enable": True}])
def test_a_new_file_has_all_its_blocks_and_the_next_one_is_made_ahead(
    settings: dict[str, object], tmp_path: Path, make_allocator: Make
) -> None:
    allocator = make_allocator(**settings)
    first = allocator.take(0)
    assert os.stat(first.path).st_blocks * 512 >= SIZE
    assert bytes(first.mapping[:]) == bytes(SIZE)
    second = allocator.take(SIZE)
    assert second.base == SIZE
    allocator.stop()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2  # the third was made and removed again
    first.close()
    second.close()


def test_a_full_disk_is_told_with_numbers_and_the_next_try_succeeds(tmp_path: Path, make_allocator: Make) -> None:
    files = FaultyFiles(tmp_path)
    files.free_bytes = 77
    files.fault = lambda operation, _path, count: no_space() if operation == "allocate" and count == 1 else None
    allocator = make_allocator(files)
    with pytest.raises(StoreFullError) as caught:
        allocator.take(0)
    assert (caught.value.free_bytes, caught.value.needed_bytes) == (77, SIZE)
    assert list((tmp_path / "commitlog").iterdir()) == []
    allocator.take(0).close()


def test_another_error_names_path_and_errno(tmp_path: Path, make_allocator: Make) -> None:
    files = FaultyFiles(tmp_path)
    error = OSError(errno.EMFILE, "Too many open files")
    files.fault = lambda operation, _path, count: error if operation == "create" and count == 1 else None
    with pytest.raises(StoreIOError, match=r"0{20}.*Too many open files \(errno 24\)"):
        make_allocator(files).take(0)


def test_an_empty_pool_means_no_buffer_or_a_refusal_as_configured(tmp_path: Path, make_allocator: Make) -> None:
    pool = WriteBufferPool(Files(), buffer_count=1, buffer_bytes=SIZE)
    allocator = make_allocator(pool=pool, transient_store_pool_enable=True)
    first, second = allocator.take(0), allocator.take(SIZE)
    assert first.write_buffer is not None
    assert second.write_buffer is None  # written through its mapping, and readable as it is written
    write(second, b"abc")
    assert second.read_position == 3
    refusing = make_allocator(pool=pool, transient_store_pool_enable=True, fast_fail_if_no_buffer_in_store_pool=True)
    with pytest.raises(NoWriteBufferError, match="transientStorePoolSize"):
        refusing.take(4 * SIZE)
    first.close()
    second.close()


def test_a_buffered_file_shows_what_was_committed_and_gives_its_buffer_back_when_full(tmp_path: Path) -> None:
    pool = WriteBufferPool(Files(), buffer_count=1, buffer_bytes=SIZE)
    path = tmp_path / f"{0:020d}"
    files = Files()
    descriptor = files.open(path, create=True)
    files.truncate(descriptor, SIZE)
    file = MappedFile(files, path, SIZE, descriptor=descriptor, write_buffer=pool.borrow())
    write(file, b"abc")
    assert file.select(0, 3) is None
    assert not file.commit(4)
    assert file.commit(0)
    view = file.select(0, 3)
    assert view == b"abc"
    view.release()
    assert file.detach_write_buffer() is None
    write(file, bytes(SIZE - 3))
    assert file.commit(4)
    buffer = file.detach_write_buffer()
    assert buffer is not None
    pool.give_back(buffer)
    assert pool.free_count == 1
    assert file.read_position == SIZE
    file.close()


@pytest.mark.parametrize("buffers", [1, 2])
def test_nothing_behind_a_write_buffer_that_is_not_committed_is_readable(
    buffers: int, tmp_path: Path, make_allocator: Make
) -> None:
    """Else its records are dispatched when the log rolls over, and a consumer who cannot read them goes past them."""
    pool = WriteBufferPool(Files(), buffer_count=buffers, buffer_bytes=SIZE)
    allocator = make_allocator(pool=pool, transient_store_pool_enable=True)
    queue = MappedFileQueue(Files(), ManualClock(), (tmp_path,), SIZE)
    first, second = allocator.take(0), allocator.take(SIZE)
    assert (second.write_buffer is None) == (buffers == 1)
    queue.add(first)
    write(first, b"abc")
    queue.commit(0)
    write(first, bytes(SIZE - 3))
    queue.add(second)
    write(second, b"defg")
    assert queue.max_offset == 3
    assert queue.wrote_offset == SIZE + 4
    queue.commit(0)
    assert queue.max_offset == SIZE + 4
    first.detach_write_buffer()
    assert queue.max_offset == SIZE + 4
    queue.close()


class Warming(Files):
    """Notes what a new file is told; `can_prefault` and `can_lock` are the kernel's abilities."""

    def __init__(self, *, can_prefault: bool = True, can_lock: bool = True) -> None:
        super().__init__()
        self.can_prefault, self.can_lock = can_prefault, can_lock
        self.calls: list[tuple[object, ...]] = []

    def prefault(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        self.calls.append(("prefault", start, size_bytes))
        return self.can_prefault and super().prefault(mapping, start, size_bytes)

    def sync_map(self, mapping: mmap.mmap, start: int, size_bytes: int) -> None:
        self.calls.append(("sync", start, size_bytes))
        super().sync_map(mapping, start, size_bytes)

    def lock_memory(self, mapping: mmap.mmap) -> None:
        self.calls.append(("lock",))
        if not self.can_lock:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def unlock_memory(self, mapping: mmap.mmap) -> None:
        """It was not locked."""

    def advise(self, mapping: mmap.mmap, advice: int, start: int = 0, size_bytes: int | None = None) -> None:
        self.calls.append(("advise", advice))
        super().advise(mapping, advice, start, size_bytes)


def stopped_after(allocator: Allocator, base: int) -> MappedFile:
    file = allocator.take(base)
    allocator.stop()
    return file


@pytest.mark.parametrize("can_prefault", [True, False])
def test_a_warmed_file_is_touched_synced_by_steps_locked_and_advised(can_prefault: bool, make_allocator: Make) -> None:
    files = Warming(can_prefault=can_prefault)
    pages = SIZE // PAGE_BYTES
    step = pages // 2 * PAGE_BYTES
    settings = {"warm_maped_file_enable": True, "flush_least_pages_when_warm_maped_file": pages // 2}
    file = stopped_after(make_allocator(files, flush_disk_type="SYNC_FLUSH", **settings), 0)
    own = files.calls[: files.calls.index(("advise", MADV_WILLNEED)) + 1]
    starts = range(0, SIZE, step)
    expected = [call for start in starts for call in (("prefault", start, step), ("sync", start, step))]
    assert own == [*expected, ("lock",), ("advise", MADV_WILLNEED)]
    assert files.is_resident(file.mapping, 0, SIZE)
    assert bytes(file.mapping[:]) == bytes(SIZE)
    assert file.is_locked_in_memory
    file.close()


def test_a_file_that_cannot_be_locked_is_used_with_a_warning(
    make_allocator: Make, caplog: pytest.LogCaptureFixture
) -> None:
    file = stopped_after(make_allocator(Warming(can_lock=False), warm_maped_file_enable=True), 0)
    assert not file.is_locked_in_memory
    write(file, b"works")
    (told, *_) = [record for record in caplog.records if "not locked in memory" in record.getMessage()]
    assert told.levelname == "WARNING"
    assert str(file.path) in told.getMessage()
    file.close()


@pytest.mark.parametrize(("reads_ahead", "advised"), [(True, []), (False, [("advise", MADV_RANDOM)])])
def test_without_read_ahead_the_kernel_is_told_so(
    reads_ahead: bool, advised: list[tuple[object, ...]], make_allocator: Make
) -> None:
    files = Warming()
    allocator = make_allocator(files, data_read_ahead_enable=reads_ahead)
    file = allocator.take(0)
    assert files.calls[:1] == advised
    allocator.stop()
    file.close()


def test_a_put_that_rolls_the_log_waits_for_no_file_that_was_made_ahead(make_allocator: Make) -> None:
    """Whatever making a file takes: this disk makes the first two and then no more."""

    class Stalled(Files):
        made, go_on = 0, threading.Event()

        def allocate(self, descriptor: int, size_bytes: int, position: int = 0) -> None:
            self.made += 1
            if self.made > 2:
                assert self.go_on.wait(120)
            super().allocate(descriptor, size_bytes, position)

    files = Stalled()
    allocator = make_allocator(files)
    first = allocator.take(0)
    with allocator._changed:
        assert allocator._changed.wait_for(lambda: SIZE in allocator._ready, 30)
    second = allocator.take(SIZE)  # the third is being made, and does not end
    assert second.base == SIZE
    files.go_on.set()
    allocator.stop()
    first.close()
    second.close()
