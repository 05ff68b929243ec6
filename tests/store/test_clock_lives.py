"""The store clock over the lives of many processes, against a model of the world.

The model knows the time that truly passes, a wall clock that is set now and then, processes that are stopped or killed,
and machines that are started again:

    measure := the time that truly passes; across a start of the machine what the wall clock says has passed, and at the
               least what it was at the newest record

A record's age, which every delay is counted by, is what the measure has grown by since it was stored.
"""

from __future__ import annotations

import errno
import logging
import tempfile
import threading
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.clock import ManualClock, SystemClock
from contrailmq.store.base.clock_file import FILE_NAME, NOTE_NAME, ClockFile
from contrailmq.store.base.store_clock import StoreClock
from contrailmq.store.files import Files
from contrailmq.store.message_store import Drive
from how_many import examples

START_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
ROUNDED_MS: Final = 2  # of store times at half their pace, and of a reading
UNNOTICED_MS: Final = 100  # a step of less is not followed


class UnsyncedFiles(Files):
    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class World:
    """One store on one machine. `records` holds (offset, store time, the measure when it was stored)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: Files = UnsyncedFiles()
        self.clock = ManualClock(START_MS)
        self.records: list[tuple[int, int, int]] = []
        self.walls_ms: list[int] = []  # what the wall clock showed when each was stored, as far as it was noticed
        self.measure_ms = 0
        self.tolerance_ms = ROUNDED_MS
        self.start()

    def start(self, *, is_slave: bool = False) -> None:
        self.store_clock = StoreClock(self.clock, ClockFile(self.files, self.root), is_slave=is_slave)
        last_ms = self.records[-1][1] if self.records else 0
        self.store_clock.opened(threading.Lock(), lambda: len(self.records), last_store_time_ms=last_ms)

    def put(self) -> None:
        self.records.append((len(self.records), self.store_clock.now_ms(), self.measure_ms))
        self.walls_ms.append(self.store_clock.wall_ms())

    def pass_ms(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.measure_ms += milliseconds

    def jump(self, size_ms: int) -> None:
        self.clock.set_wall(self.clock.now_ms() + size_ms)

    def end(self, *, is_clean: bool) -> None:
        if is_clean:
            self.store_clock.closed()

    def be_started_again(self, milliseconds: int, jump_ms: int) -> None:
        """The machine, whose clock was looked at just before; the process is dead already."""
        self.clock.advance(milliseconds)
        self.jump(jump_ms)
        newest_ms = self.records[-1][2] if self.records else self.measure_ms
        self.measure_ms = max(self.measure_ms + milliseconds + jump_ms, newest_ms)
        self.tolerance_ms += UNNOTICED_MS
        self.clock.reboot()

    def ages_off_ms(self) -> list[int]:
        """By how much each record is older, or younger, than it should be."""
        now_ms = self.store_clock.steady_ms()
        return [
            now_ms - self.store_clock.stored_ms(offset, store_ms) - (self.measure_ms - stored_ms)
            for offset, store_ms, stored_ms in self.records
        ]

    def check(self) -> None:
        times = [store_ms for _, store_ms, _ in self.records]
        assert times == sorted(times)
        off_ms = self.ages_off_ms()
        assert all(abs(off) <= self.tolerance_ms for off in off_ms), off_ms
        clock = self.store_clock
        shown_ms = [clock.stored_ms(*record[:2]) + clock.ahead_ms(record[0]) for record in self.records]
        assert all(abs(a - b) <= ROUNDED_MS for a, b in zip(shown_ms, self.walls_ms, strict=True)), self.walls_ms


durations = st.sampled_from([1, 50, 99, 100, 777, 5000, HOUR_MS])
jumps = st.sampled_from(
    [sign * size for size in (1, 50, 99, 100, 800, 1000, 1001, HOUR_MS, 30 * DAY_MS) for sign in (1, -1)]
)
actions = st.one_of(
    st.tuples(st.just("pass"), durations),
    st.tuples(st.just("put")),
    st.tuples(st.just("jump"), jumps),
    st.tuples(st.just("look")),
    st.tuples(st.just("restart"), st.booleans(), durations, st.sampled_from([0, 0, 800, -800, HOUR_MS, -HOUR_MS])),
    st.tuples(st.just("reboot"), st.booleans(), durations, st.sampled_from([0, 0, 800, -800, HOUR_MS, -HOUR_MS])),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(actions, max_size=25))
def test_whatever_is_done_to_the_clock_a_record_is_as_old_as_the_time_that_has_passed_since(
    row: list[tuple[str, int, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        world.put()
        for name, *values in row:
            if name == "pass":
                world.pass_ms(values[0])
            elif name == "put":
                world.put()
            elif name == "jump":
                world.jump(values[0])
            elif name == "look":
                world.store_clock.look()
            elif name == "restart":
                world.end(is_clean=bool(values[0]))
                world.pass_ms(values[1])
                world.jump(values[2])
                world.start()
            else:
                world.store_clock.look()
                world.end(is_clean=bool(values[0]))
                world.be_started_again(values[1], values[2])
                world.start()
            world.check()


# --------------------------------------------------------------------------------------------- by the wall clock alone


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_clock_set_back_while_the_machine_was_down_makes_no_record_older_and_none_wait_for_the_jump(
    world: World,
) -> None:
    world.put()
    world.pass_ms(4000)
    world.put()
    world.be_started_again(10_000, -HOUR_MS)
    world.start()
    assert [world.store_clock.steady_ms() - world.store_clock.stored_ms(*record[:2]) for record in world.records] == [
        4000,
        0,
    ]
    assert world.store_clock.wall_ms() == world.clock.now_ms()


def test_what_another_program_has_stored_since_is_taken_at_its_word(world: World) -> None:
    world.put()
    world.end(is_clean=True)
    world.jump(-HOUR_MS)
    world.records.append((1, world.clock.now_ms(), 0))
    world.pass_ms(2000)
    world.start()
    assert world.ages_off_ms() == [0, 0]


@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "stopped"])
def test_a_slave_takes_its_masters_records_at_their_word_whatever_is_done_to_its_own_clock(
    world: World, is_clean: bool
) -> None:
    """Made the master it would otherwise take them for older, or younger, by what its own clock was off meanwhile."""

    def copy() -> None:
        world.records.append((len(world.records), START_MS + world.measure_ms, world.measure_ms))

    world.put()  # as a master
    world.jump(-HOUR_MS)
    world.store_clock.look()
    world.put()
    world.end(is_clean=is_clean)
    world.jump(HOUR_MS)
    for jump_ms in (HOUR_MS, -HOUR_MS):  # two lives as a slave, in each of which its clock is set and set right
        world.pass_ms(2000)
        world.start(is_slave=True)
        copy()
        for step_ms in (jump_ms, -jump_ms):
            world.jump(step_ms)
            world.store_clock.look()
            world.pass_ms(1000)
            copy()
        world.end(is_clean=is_clean)
    world.start()
    assert all(abs(off_ms) <= ROUNDED_MS for off_ms in world.ages_off_ms())
    assert [world.store_clock.ahead_ms(offset) for offset, _, _ in world.records] == [0, -HOUR_MS, *[0] * 6]


together = st.one_of(
    st.tuples(st.just("pass"), durations),
    st.tuples(st.just("put")),
    st.tuples(st.just("the master's clock"), jumps),
    st.tuples(st.just("the slave's clock"), jumps),
    st.tuples(st.just("follow"), st.sampled_from([0, 0, 40, 400])),
    st.tuples(st.just("restart of the master"), st.booleans()),
    st.tuples(st.just("restart of the slave"), st.booleans()),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(together, max_size=25), st.sampled_from([0, 30, -HOUR_MS, 7 * HOUR_MS]), durations)
def test_a_slave_that_is_made_the_master_knows_how_old_each_record_is_however_both_clocks_were_set(
    row: list[tuple[str, int]], apart_ms: int, away_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        master, slave = World(Path(one)), World(Path(other))
        slave.records = master.records
        slave.end(is_clean=False)
        slave.jump(apart_ms)
        slave.start(is_slave=True)
        error_ms = 0

        def follow(took_ms: int) -> None:
            nonlocal error_ms
            error_ms = max(error_ms, took_ms)
            clock = master.store_clock
            slave.store_clock.follow(clock.stretches, clock.steady_ms() + took_ms, error_ms=took_ms)

        follow(0)
        for action, *details in row:
            if action == "pass":
                for world in (master, slave):
                    world.pass_ms(int(details[0]))
            elif action == "put":
                master.put()
            elif action == "follow":
                follow(int(details[0]))
            elif action.startswith("restart"):
                world, is_slave = (master, False) if action.endswith("master") else (slave, True)
                world.end(is_clean=bool(details[0]))
                world.start(is_slave=is_slave)
                follow(0)
            else:
                world = master if action == "the master's clock" else slave
                world.jump(int(details[0]))
                world.store_clock.look()
                follow(0)  # before anything is stored
        slave.end(is_clean=False)
        slave.pass_ms(away_ms)
        slave.start()
        slave.tolerance_ms += UNNOTICED_MS + error_ms
        slave.walls_ms = master.walls_ms
        slave.check()


def test_a_slave_doubts_a_jump_forward_as_a_master_does(world: World) -> None:
    world.start(is_slave=True)
    world.records.append((0, START_MS, 0))
    world.jump(20 * HOUR_MS)
    world.store_clock.look()
    world.pass_ms(1000)
    world.start(is_slave=True)
    assert world.store_clock.doubted_ms() == 20 * HOUR_MS


@pytest.mark.parametrize("data", [b"", b"00000000{}", b"\xff" * 50, b'93afb1ed{"boot_id":"x"}'])
def test_without_a_file_that_can_be_read_the_records_are_taken_at_their_word(world: World, data: bytes) -> None:
    world.put()
    world.pass_ms(2000)
    world.jump(HOUR_MS)
    for name in (FILE_NAME, NOTE_NAME):
        (world.root / name).write_bytes(data)
    world.start()
    assert world.ages_off_ms() == [HOUR_MS]


@pytest.mark.parametrize("is_kept", [False, True], ids=["the older notes count", "the newer ones were kept"])
@pytest.mark.parametrize("data", [b"", b"00000000{}"])
def test_a_note_that_a_power_cut_tore_takes_no_older_with_it(world: World, data: bytes, is_kept: bool) -> None:
    """The clock was set twice, and the second note was torn. Nothing durable needed that one to be read."""
    world.jump(HOUR_MS)
    world.store_clock.look()
    world.put()
    world.store_clock.keep()
    world.jump(HOUR_MS)
    world.store_clock.look()
    if is_kept:
        world.put()
        world.store_clock.keep()
    world.jump(-2 * HOUR_MS)
    (world.root / NOTE_NAME).write_bytes(data)
    world.start()
    assert world.ages_off_ms() == [0] * len(world.records)


def test_a_machine_that_was_set_back_to_a_snapshot_does_not_count_backwards(world: World) -> None:
    """Its own clock says less than when the newest record was stored: the wall clock counts."""

    class Snapshot:
        """Of the same start of the machine, and less time has passed since."""

        def __init__(self, of: ManualClock, now_ms: int) -> None:
            clock = ManualClock(now_ms)
            self.now_ms, self.monotonic_ms, self.slept_ms = clock.now_ms, clock.monotonic_ms, clock.slept_ms
            self.boot_id = of.boot_id

    world.pass_ms(50_000)
    world.put()
    world.measure_ms += 3000
    clock = Snapshot(world.clock, world.clock.now_ms() + 3000)
    world.store_clock = StoreClock(clock, ClockFile(world.files, world.root))
    world.store_clock.opened(threading.Lock(), lambda: 1, last_store_time_ms=world.records[0][1])
    assert world.ages_off_ms() == [0]


def test_two_processes_of_one_machine_can_compare_their_clocks() -> None:
    first, second = SystemClock(), SystemClock()
    assert first.boot_id() == second.boot_id() != ""
    assert 0 <= second.monotonic_ms() + second.slept_ms() - first.monotonic_ms() - first.slept_ms() + 1 < 60_000


# ------------------------------------------------------------------------------------------------------------ the file


class FullDisk(UnsyncedFiles):
    is_full = False

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no room")
        super().pwrite(descriptor, data, position)


def test_a_jump_on_a_full_disk_is_noted_when_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    files = world.files = FullDisk()
    world.start()
    world.put()
    files.is_full = True
    world.jump(HOUR_MS)
    world.store_clock.look()
    assert "is not saved yet" in caplog.text
    world.put()
    files.is_full = False
    world.store_clock.keep()
    world.pass_ms(1000)
    world.start()
    world.check()


def test_a_store_on_a_full_disk_opens_and_says_what_a_restart_may_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    files = world.files = FullDisk()
    files.is_full = True
    world.start()
    world.put()
    assert "delays may be off by a jump" in caplog.text
    files.is_full = False
    world.store_clock.keep()
    world.jump(HOUR_MS)
    world.start()
    world.check()


def test_nothing_is_written_while_the_clock_is_not_set(world: World) -> None:
    before = (world.root / FILE_NAME).stat()
    for _ in range(20):
        world.pass_ms(1000)
        world.store_clock.look()
        world.store_clock.keep()
    after = (world.root / FILE_NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_closed_store_knows_that_nobody_has_written_since(tmp_path: Path) -> None:
    """The log's end is the same when it is opened again, so its records are still those of its stretches."""
    clock = ManualClock(START_MS)
    for _ in range(2):
        with MessageStore(StoreConfig(tmp_path), clock=clock, drive=Drive.LOOP) as store:
            offset = store.append("T", 0, b"x", b"", tags_code=0, keys=None, unique_key=None)
            stored_ms = store.store_clock.steady_ms()
            store.dispatch()
        clock.advance(500)
        clock.set_wall(clock.now_ms() + HOUR_MS)
    store = MessageStore(StoreConfig(tmp_path), clock=clock, drive=Drive.LOOP).open()
    age_ms = store.store_clock.steady_ms() - store.store_clock.stored_ms(offset.physical_offset, offset.store_time_ms)
    store.close()
    assert (age_ms, stored_ms) == (500, offset.store_time_ms)


def test_a_jump_while_nobody_looked_is_told_at_the_start(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.put()
    world.jump(-HOUR_MS)
    world.pass_ms(2000)
    world.start()
    assert "the wall clock was set back by 3600.000 s" in caplog.text


# ------------------------------------------------------------------------------------------------------------ old files


def test_the_hour_after_a_jump_forward_goes_on_in_the_next_process(world: World) -> None:
    world.put()
    world.jump(30 * DAY_MS)
    world.store_clock.look()
    world.put()
    world.pass_ms(600_000)
    world.start()
    assert world.store_clock.doubted_ms() == 30 * DAY_MS
    world.pass_ms(HOUR_MS - 600_000)
    assert world.store_clock.doubted_ms() == 0
