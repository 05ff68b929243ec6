"""Every answer of a read, what limits one, and what a put and the statistics say of the time it took."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from contrailmq.message import Message
from contrailmq.store import Files, GetStatus, ManualClock, MessageStore, PutStatus, StoreConfig
from contrailmq.store.base.stats import StoreStats
from contrailmq.store.files import Mapped

LOG_BYTES = 16 * 1024
WAIT_S = 120.0


def config_at(path: Path, **settings: Any) -> StoreConfig:
    sizes = {
        "mapped_file_size_commit_log": LOG_BYTES,
        "mapped_file_size_consume_queue": 2_000,
        "max_hash_slot_num": 10,
        "max_index_num": 1_000,
    }
    return StoreConfig(path, **(sizes | settings))


# --- reading


class Everything:
    """A filter that lets all pass."""

    def match_unit(self, tags_code: int, ext: object) -> bool:
        return True

    def match_record(self, record: memoryview) -> bool:
        return True


def test_a_message_whose_file_is_gone_is_being_removed_and_the_reader_moves_on(tmp_path: Path) -> None:
    """Between the log's cleaning and the queues' correction units point at nothing."""
    with MessageStore(config_at(tmp_path)) as store:
        for _ in range(30):
            store.put(Message("T", bytes(1_000)))
        assert store._log_files.delete_expired(reserved_ms=0, force_after_ms=0, count_max=1, at_once=True)
        gone = store.get("T", 0, 0, 5)
        assert (gone.status, len(gone), gone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 0, 5)
        offset = gone.next_offset
        while not (found := store.get("T", 0, offset, 5)):
            assert found.next_offset > offset
            offset = found.next_offset
        assert found[0].physical_offset == LOG_BYTES
        filtered = store.get("T", 0, 0, 5, filter=Everything())  # looks further at once
        assert (len(filtered), filtered[0].physical_offset) == (5, LOG_BYTES)


def test_a_queue_that_never_had_a_message_and_one_whose_file_vanished_say_so(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store._queues.find_or_create("Empty", 0)
        empty = store.get("Empty", 0, 7)
        assert (empty.status, empty.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        for _ in range(5):
            store.put(Message("T", b"x"))
        store.dispatch()
        store._queues.flush()
        (tmp_path / "consumequeue/T/0" / f"{0:020d}").write_bytes(b"")
        null = store.get("T", 0, 2)
        assert (null.status, null.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 100)  # where the next file begins


@pytest.mark.parametrize(("checks", "following"), [(False, 99), (True, 0)])
def test_a_slave_corrects_offsets_only_when_told_to(checks: bool, following: int, tmp_path: Path) -> None:
    settings = config_at(tmp_path, broker_role="SLAVE", offset_check_in_slave=checks)
    with MessageStore(settings) as store:
        assert store.get("T", 0, 99).next_offset == following


@pytest.mark.parametrize(
    ("in_memory_percent", "limits", "given"),
    [
        (40, {"max_transfer_count_on_message_in_disk": 3}, 20),
        (0, {"max_transfer_count_on_message_in_disk": 3}, 3),
        (0, {"max_transfer_bytes_on_message_in_disk": 5_000}, 4),
        (0, {}, 8),  # RocketMQ's count for what is on the disk
    ],
)
def test_what_is_on_the_disk_is_given_in_smaller_portions(
    in_memory_percent: int, limits: dict[str, int], given: int, tmp_path: Path
) -> None:
    """Within so much of the memory's size from the end a message counts as in memory; with 0 % nothing does."""
    settings = config_at(tmp_path, access_message_in_memory_max_ratio=in_memory_percent, **limits)
    with MessageStore(settings) as store:
        for _ in range(40):
            put = store.put(Message("T", bytes(1_000)))
        assert 1_000 < put.size_bytes < 5_000 // 4
        answer = store.get_slices("T", 0, 0, 20)
        assert (len(answer.slices), answer.suggest_slave) == (given, in_memory_percent == 0)
        answer.release()


# --- putting


def test_while_a_put_holds_the_lock_for_too_long_others_are_refused_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    with MessageStore(config_at(tmp_path), clock=clock) as store:
        store.put(Message("T", b"first"))
        with store._log.lock:  # as a put does whose page fault takes long
            store._log.lock_since_ms = clock.now_ms()
            clock.advance(1_001)
            refused = store.put(Message("T", b"second"))
        assert refused.status is PutStatus.OS_PAGE_CACHE_BUSY
        assert "1001 ms" in refused.reason
        assert "1000" in refused.reason
        store._log.lock_since_ms = 0
        assert store.put(Message("T", b"third")).queue_offset == 1


class SlowDisk(Files):
    """A record takes 7 ms to write, 50 to sync and 30 to read, for the thread that puts and gets."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.is_slow = False

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        super().pwrite(descriptor, data, position)
        if self._is_slow_for(descriptor):
            self.clock.advance(7)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        if self._is_slow_for(descriptor):
            self.clock.advance(50)

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        if self._is_slow_for(descriptor):
            self.clock.advance(30)
        return super().pread(descriptor, size_bytes, position)

    def _is_slow_for(self, descriptor: int) -> bool:
        is_ours = threading.current_thread() is threading.main_thread()  # not the one that makes the next file
        return self.is_slow and is_ours and "commitlog" in os.readlink(f"/proc/self/fd/{descriptor}")


def test_a_result_says_how_long_the_append_took_and_statistics_how_long_all_of_it(tmp_path: Path) -> None:
    files = SlowDisk(clock := ManualClock())
    sync = {"flush_disk_type": "SYNC_FLUSH", "flush_interval_commit_log": 600_000, "pre_write_commit_log": "off"}
    settings = config_at(tmp_path, **sync)
    with MessageStore(settings, files=files, clock=clock) as store:
        assert store.put(Message("T", b"quick")).append_ms == 0
        files.is_slow = True
        assert store.put(Message("T", b"slow")).append_ms == 7
        assert {result.append_ms for result in store.put_many([Message("T", b"x")] * 3)} == {7}  # one write
        cold = store.get_slices_cold("T", 0, 0, 1)
        cold.release()
        files.is_slow = False
        stats, info = store.stats, store.runtime_info()
        assert (stats.put_time_max_ms, stats.get_time_max_ms) == (57, 30)
        assert (info["putMessageEntireTimeMax"], info["getMessageEntireTimeMax"]) == ("57", "30")
        assert "[<=0ms]:1 [0~10ms]:0 [10~50ms]:0 [50~100ms]:2" in info["putMessageDistributeTime"]


def test_put_times_fall_into_rocketmqs_buckets_and_percentiles() -> None:
    stats = StoreStats(0, lambda: Mapped(0, 0))
    for elapsed_ms in [0] * 900 + [9] * 90 + [10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 10_000]:
        stats.note_put_time(elapsed_ms)
    assert stats.put_time_counts == [900, 90, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1]
    assert stats.put_time_percentile_ms(0.5) == 0
    assert 7.5 < stats.put_time_percentile_ms(0.99) < 10.8  # within a fifth
    assert 3_300 < stats.put_time_percentile_ms(0.999) < 4_800
    assert stats.put_time_percentile_ms(1.0) <= stats.put_time_max_ms * 1.2
    assert stats.put_time_max_ms == 10_000


def test_put_times_are_those_of_the_last_one_to_two_minutes() -> None:
    stats = StoreStats(0, lambda: Mapped(0, 0))
    stats.note_puts(3, 700)
    assert 0.58 < stats.put_time_percentile_ms(0.99) < 0.84
    stats.sample(59_000)
    stats.note_puts(2, 15_000)
    stats.sample(61_000)
    stats.note_puts(1, 0)
    assert list(stats.recent_put_times().items())[:3] == [("<=0ms", 4), ("0~10ms", 0), ("10~50ms", 2)]
    stats.sample(122_000)
    assert sum(stats.recent_put_times().values()) == 1
    stats.sample(183_000)
    assert (sum(stats.recent_put_times().values()), stats.put_time_percentile_ms(0.99)) == (0, 0.0)
    assert stats.put_time_max_ms == 15


# --- beside cleaning


class StalledRemoval(Files):
    """Holds up whoever removes a log file."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def unlink(self, path: Path | str) -> None:
        if "commitlog" in str(path):
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        super().unlink(path)


def test_cleaning_blocks_neither_puts_nor_reads(tmp_path: Path) -> None:
    files = StalledRemoval()
    clock = ManualClock(time.time_ns() // 1_000_000 + 3_600_000)  # an hour after the files were made
    with MessageStore(config_at(tmp_path, file_reserved_time=0), files=files, clock=clock) as store:
        for _ in range(40):
            store.put(Message("T", bytes(1_000)))
        first_kept = store._log_files.files[1].base
        clock.advance(60_000)  # cleaning begins a minute after the start
        store.delete_expired_files_now()
        cleaner = threading.Thread(target=store.tick)
        cleaner.start()
        try:
            assert files.begun.wait(WAIT_S)
            for number in range(40, 80):  # over the end of a file
                put = store.put(Message("T", bytes(1_000), keys=f"k{number}"))
                assert store.get("T", 0, put.queue_offset)[0].physical_offset == put.physical_offset
            assert [hit.queue_offset for hit in store.query("T", "k60")] == [60]
        finally:
            files.go_on.set()
            cleaner.join()
        assert store._log_files.min_offset >= first_kept


# --- opening


def test_what_recovery_cut_is_a_value_and_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MessageStore(config_at(tmp_path)).open()
    kept, lost = store.put(Message("T", b"kept")), store.put(Message("T", b"lost"))
    store.flush()
    store.abandon()
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[lost.physical_offset + 88] ^= 1  # the first byte of its body
    log.write_bytes(data)
    with MessageStore(config_at(tmp_path)) as store:
        report = store.recovery
        assert report.physical_offset_max == lost.physical_offset == kept.size_bytes
        assert report.cut_bytes == lost.size_bytes
        assert report.reason.startswith(f"at {lost.physical_offset}: ")
        assert "checksum" in report.reason
    (line,) = [
        record
        for record in caplog.records
        if record.levelname == "WARNING" and record.getMessage().startswith("recovered the store")
    ]
    assert report.reason in line.getMessage()
    assert (
        f"it was not closed cleanly (a crash or a kill); the log holds offsets 0 to {kept.size_bytes}; "
        in line.getMessage()
    )
    assert f"; {lost.size_bytes} bytes past the end cut (at {lost.physical_offset}: " in line.getMessage()
    assert re.search(r"; that took \d+\.\d s$", line.getMessage())


def test_ids_times_and_the_earliest_message_are_told(tmp_path: Path) -> None:
    clock = ManualClock()
    with MessageStore(config_at(tmp_path), clock=clock) as store:
        assert store.earliest_time() == store.earliest_time("T", 0) == -1
        begin_ms = clock.now_ms()
        for number in range(40):
            put = store.put(Message("T" if number else "First", bytes(1_000)))
            clock.advance(100)
        assert put.offset_message_id == f"7F00000100002A9F{put.physical_offset:016X}"  # 127.0.0.1, port 10911
        assert store.earliest_time() == begin_ms
        assert store.earliest_time("T", 0) == begin_ms + 100
        assert [store.store_time_at("T", 0, offset) for offset in (0, 7, 99)] == [begin_ms + 100, begin_ms + 800, -1]
        assert store._log_files.delete_expired(reserved_ms=0, force_after_ms=0, count_max=1, at_once=True)
        store._queues.correct_min_offsets(store._log_files.min_offset)
        first = store.lookup(LOG_BYTES)
        assert first is not None
        assert store.earliest_time() == store.earliest_time("T", 0) == first.store_time_ms > begin_ms + 100


@pytest.mark.parametrize("queue_id", [-1, 2**31])
def test_a_queue_id_that_no_record_can_hold_is_refused_by_name(queue_id: int, tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        for refused in (store.put(Message("T", b"x"), queue_id), store.put_many([Message("T", b"x")], queue_id)[0]):
            assert refused.status is PutStatus.MESSAGE_ILLEGAL
            assert f"queue id {queue_id} (0 to 2147483647 are allowed)" in refused.reason
        assert store.put(Message("T", b"x"), 2**31 - 1).status is PutStatus.PUT_OK
        refused = store.put(Message("T", b"x", flag=2**31))
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "flag, sysFlag and reconsumeTimes have 32 bits" in refused.reason
