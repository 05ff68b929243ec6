"""Store time and steady time under a wall clock that is set."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, Loss

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.clock import ManualClock, SystemClock
from contrailmq.store.base.store_clock import StoreClock
from contrailmq.store.files import DiskUsage, Files
from contrailmq.store.message_store import Drive

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SMALL = {"mapped_file_size_commit_log": 64 * 1024, "max_hash_slot_num": 50, "max_index_num": 500}


class Scene:
    """A log that grows by one with each record."""

    def __init__(self, *, last_store_time_ms: int = 0, end: int = 0) -> None:
        self.clock = ManualClock(START_MS)
        self.end = end
        self.store_clock = StoreClock(self.clock)
        self.store_clock.opened(threading.Lock(), lambda: self.end, last_store_time_ms=last_store_time_ms)

    def put(self) -> tuple[int, int]:
        """(offset, store time) of one more record."""
        self.end += 1
        return self.end - 1, self.store_clock.now_ms()

    def jump(self, size_ms: int) -> None:
        self.clock.set_wall(self.clock.now_ms() + size_ms)
        self.store_clock.look()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 30 * DAY_MS, -30 * DAY_MS, 100, -100])
def test_a_record_tells_when_it_was_stored_on_either_side_of_a_jump(jump_ms: int) -> None:
    scene = Scene()
    before = scene.put()
    scene.clock.advance(10_000)
    scene.jump(jump_ms)
    after = scene.put()
    scene.clock.advance(10_001)
    later = scene.put()
    assert [scene.store_clock.stored_ms(*record) - START_MS for record in (before, after)] in (
        [0, 10_000],
        [0, 10_001],  # at half the pace a millisecond more
    )
    assert 20_001 <= scene.store_clock.stored_ms(*later) - START_MS <= 20_002
    assert scene.store_clock.steady_ms() == START_MS + 20_001
    assert scene.store_clock.wall_ms() == scene.clock.now_ms()
    assert [scene.store_clock.ahead_ms(record[0]) for record in (before, after, later)] == [0, jump_ms, jump_ms]


def test_after_a_jump_back_store_times_go_at_half_their_pace_until_the_wall_clock_has_caught_up() -> None:
    scene = Scene()
    scene.put()
    scene.jump(-HOUR_MS)
    times = []
    for _ in range(5):
        scene.clock.advance(HOUR_MS // 2)
        scene.store_clock.look()
        times.append(scene.put()[1] - START_MS)
    wall = [-HOUR_MS // 2, 0, HOUR_MS // 2, HOUR_MS, HOUR_MS * 3 // 2]
    assert times == [HOUR_MS // 4, HOUR_MS // 2, HOUR_MS * 3 // 4, HOUR_MS, HOUR_MS * 3 // 2]
    assert times[3:] == wall[3:]


def test_a_jump_that_nobody_has_noticed_yet_changes_no_time() -> None:
    scene = Scene()
    scene.clock.set_wall(START_MS + DAY_MS)
    record = scene.put()
    assert record[1] == START_MS
    scene.store_clock.look()
    assert scene.store_clock.stored_ms(*record) == START_MS
    assert scene.put()[1] == START_MS + DAY_MS


def test_a_step_below_a_tenth_of_a_second_is_not_followed() -> None:
    scene = Scene()
    scene.jump(99)
    assert scene.put()[1] == START_MS
    scene.jump(1)
    assert scene.put()[1] == START_MS + 100


def test_an_earlier_process_is_taken_at_its_word() -> None:
    scene = Scene(last_store_time_ms=START_MS - 5000, end=7)
    assert scene.store_clock.opened_at == 7
    assert scene.store_clock.stored_ms(3, START_MS - 9000) == START_MS - 9000
    scene.jump(HOUR_MS)
    assert scene.store_clock.stored_ms(3, START_MS - 9000) == START_MS - 9000
    assert scene.store_clock.ahead_ms(3) == 0


def test_a_log_from_the_future_goes_on_from_its_last_record_and_tells_when_new_ones_were_stored() -> None:
    scene = Scene(last_store_time_ms=START_MS + HOUR_MS, end=7)
    first = scene.put()
    scene.clock.advance(1000)
    second = scene.put()
    assert [first[1], second[1]] == [START_MS + HOUR_MS, START_MS + HOUR_MS + 500]
    assert [scene.store_clock.stored_ms(*record) for record in (first, second)] == [START_MS + 1, START_MS + 1001]


def test_a_machine_that_sleeps_lets_delays_go_on_and_is_no_jump(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    before = scene.put()
    scene.clock.suspend(8 * HOUR_MS)
    scene.store_clock.look()
    scene.clock.advance(1000)
    after = scene.put()
    assert [scene.store_clock.stored_ms(*record) - START_MS for record in (before, after)] == [0, 8 * HOUR_MS + 1000]
    assert scene.store_clock.steady_ms() == scene.clock.now_ms()
    assert scene.store_clock.aheads_ms == [0]
    assert caplog.text == ""


def test_a_process_that_was_stopped_between_two_readings_sees_no_jump(caplog: pytest.LogCaptureFixture) -> None:
    class Stopped:
        """Stands still for 5 s after each reading of the wall clock, as often as told."""

        def __init__(self) -> None:
            self.stops = 0
            self._clock = ManualClock(START_MS)
            self.monotonic_ms, self.slept_ms = self._clock.monotonic_ms, self._clock.slept_ms
            self.boot_id = self._clock.boot_id

        def now_ms(self) -> int:
            now_ms = self._clock.now_ms()
            if self.stops:
                self.stops -= 1
                self._clock.advance(5000)
            return now_ms

    clock = Stopped()
    store_clock = StoreClock(clock)
    store_clock.opened(threading.Lock(), lambda: 0, last_store_time_ms=0)
    for clock.stops in (1, 2, 3, 100):
        store_clock.look()
    assert store_clock.aheads_ms == [0]
    assert caplog.text == ""


def test_any_row_of_jumps_keeps_store_times_in_order_and_tells_when_each_record_was_stored() -> None:
    source = random.Random(4)
    for _ in range(50):
        scene = Scene(last_store_time_ms=START_MS + source.choice((-DAY_MS, 0, DAY_MS)), end=source.choice((0, 9)))
        records: list[tuple[tuple[int, int], int]] = []
        for _ in range(100):
            scene.clock.advance(source.randrange(5000))
            if source.random() < 0.2:
                scene.jump(source.choice((-1, 1)) * source.randrange(10 ** source.randrange(1, 10)))
            if source.random() < 0.7:
                records.append((scene.put(), START_MS + scene.clock.monotonic_ms()))
        times = [record[1] for record, _ in records]
        assert times == sorted(times)
        late = [scene.store_clock.stored_ms(*record) - true_ms for record, true_ms in records]
        assert all(0 <= late_ms <= 1 for late_ms in late), late


def test_the_system_clock_costs_no_jump() -> None:
    store_clock = StoreClock(SystemClock())
    store_clock.opened(threading.Lock(), lambda: 0, last_store_time_ms=0)
    for _ in range(1000):
        store_clock.look()
    assert store_clock.aheads_ms == [0]


# ------------------------------------------------------------------------------------------------------- old files


@pytest.mark.parametrize("reading", range(6))
def test_a_pause_between_two_readings_is_no_sleep(monkeypatch: pytest.MonkeyPatch, reading: int) -> None:
    """A process may be stopped at any place. Taken for a sleep, the pause would put store times ahead of the clock."""
    clock, paused_ns, readings = SystemClock(), 0, 0

    def delayed(read: Callable[..., int]) -> Callable[..., int]:
        def reading_with_pause(*which: int) -> int:
            nonlocal paused_ns, readings
            value = read(*which) + paused_ns
            paused_ns += 1_000_000_000 if readings == reading else 0
            readings += 1
            return value

        return reading_with_pause

    expected_ms = clock.slept_ms()
    monkeypatch.setattr(time, "monotonic_ns", delayed(time.monotonic_ns))
    monkeypatch.setattr(time, "clock_gettime_ns", delayed(time.clock_gettime_ns))
    slept_ms = clock.slept_ms()
    monkeypatch.undo()
    assert readings > reading, "the pause was in a reading"
    assert abs(slept_ms - expected_ms) <= 1


class FullDisk(Files):
    """Used above the ratio at which files go whatever their age, and below that at which puts are refused."""

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100, 86, 14)


def opened(path: Path, clock: ManualClock, files: Files | None = None) -> MessageStore:
    config = StoreConfig(path, mapped_file_size_commit_log=4096, delete_when=";".join(f"{h:02d}" for h in range(24)))
    return MessageStore(config, clock=clock, files=files, drive=Drive.LOOP).open()


def dated(store: MessageStore, clock: ManualClock, *, hours: int) -> int:
    """Make all log files so old; how many there are."""
    files = sorted((store.config.path / "commitlog").iterdir())
    moment_s = clock.now_ms() / 1000 - hours * 3600
    for file in files:
        os.utime(file, (moment_s, moment_s))
    return len(files)


def log_files(store: MessageStore) -> int:
    return len(store._log_files.files)


def filled(path: Path, files: Files | None = None) -> tuple[MessageStore, ManualClock]:
    clock = ManualClock(START_MS)
    store = opened(path, clock, files)
    for number in range(40):
        store.append("T", 0, b"x" * 500, b"", tags_code=0, keys=None, unique_key=f"K{number}")
    store.dispatch()
    return store, clock


@pytest.mark.parametrize("days", [2, 30])
@pytest.mark.parametrize("by", ["timetable", "operator"])
def test_a_jump_forward_deletes_no_file_within_the_hour_and_the_wall_clock_counts_after_it(
    tmp_path: Path, days: int, by: str
) -> None:
    """The files are 71 hours old and stay for 72: the jump alone makes them expire."""
    store, clock = filled(tmp_path)
    dated(store, clock, hours=71)
    count = log_files(store)
    clock.set_wall(clock.now_ms() + days * DAY_MS)
    store.store_clock.look()
    for _ in range(59):
        clock.advance(60_000)
        if by == "operator":
            store.delete_expired_files_now()
        store.tick()
        assert log_files(store) == count
    clock.advance(60_000)
    store.tick()
    assert log_files(store) < count
    store.close()


def test_what_was_old_before_the_jump_goes_at_its_time(tmp_path: Path) -> None:
    store, clock = filled(tmp_path)
    dated(store, clock, hours=73)
    clock.set_wall(clock.now_ms() + 30 * DAY_MS)
    store.store_clock.look()
    clock.advance(60_000)
    store.tick()
    assert log_files(store) == 1
    store.close()


def test_a_start_that_finds_the_newest_record_a_month_old_deletes_nothing_for_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A long stop, or a clock that was set while nobody looked: nobody can tell."""
    store, clock = filled(tmp_path)
    dated(store, clock, hours=0)
    store.close()
    clock = ManualClock(START_MS + 30 * DAY_MS)
    caplog.set_level(logging.WARNING)
    store = opened(tmp_path, clock)
    count = log_files(store)
    assert "for an hour no file is deleted that is old by this difference alone" in caplog.text
    for _ in range(59):
        clock.advance(60_000)
        store.tick()
        assert log_files(store) == count
    clock.advance(60_000)
    store.tick()
    assert log_files(store) < count
    store.close()


def test_a_full_disk_takes_files_within_the_hour_too(tmp_path: Path) -> None:
    store, clock = filled(tmp_path, FullDisk())
    dated(store, clock, hours=1)
    clock.set_wall(clock.now_ms() + 30 * DAY_MS)
    store.store_clock.look()
    clock.advance(60_000)
    store.tick()
    assert log_files(store) == 1
    store.close()


# -------------------------------------------------------------------------------------------------- search by time


def test_a_search_by_time_finds_its_message_across_a_jump_back(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with MessageStore(StoreConfig(tmp_path), clock=clock) as store:
        times = []
        for number in range(40):
            if number == 20:
                clock.set_wall(clock.now_ms() - HOUR_MS)
                store.tick()
            times.append(store.put(Message("T", b"%d" % number, keys=["k"])).store_time_ms)
            clock.advance(2000)
        assert times == sorted(set(times))  # each its own: the search can tell them apart
        assert [store.offset_at("T", 0, time_ms) for time_ms in times] == list(range(40))
        found = store.query("T", "k", max_count=64, begin_ms=times[25], end_ms=times[30])
        assert sorted(int(message.body) for message in found) == list(range(25, 31))


def test_a_message_that_is_durable_has_its_time_durable_too(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The clock was set just before it came, and the power failed just after its flush: nobody had synced the note."""
    clock, files, after = ManualClock(), FaultyFiles(tmp_path), tmp_path_factory.mktemp("after")
    store = MessageStore(StoreConfig(tmp_path / "s", **SMALL), clock=clock, files=files).open()
    store.put(Message("T", b"before"))
    clock.set_wall(clock.now_ms() - HOUR_MS)
    store.store_clock.look()  # from here on store times go at half their pace
    store.store_clock.keep()
    clock.advance(600_000)
    clock.set_wall(clock.now_ms() + 2 * HOUR_MS)
    store.store_clock.look()
    put = store.put(Message("T", b"an hour later, as it seems"))
    steady_ms = store.store_clock.steady_ms()
    store.flush()
    files.journal.image(files.note("the power fails"), after, random.Random(1), Loss.EVERYTHING)
    store.abandon()
    clock.reboot()
    clock.set_wall(clock.now_ms() - HOUR_MS)
    with MessageStore(StoreConfig(after / "s", **SMALL), clock=clock) as store:
        again, (message,) = store.store_clock, store.get("T", 0, 1)
        assert again.ahead_ms(put.physical_offset) == HOUR_MS, "more than steady time, by the hour that it was too far"
        assert again.stored_ms(put.physical_offset, message.store_time_ms) == steady_ms
