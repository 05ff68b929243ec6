"""What a kill repeats of the timers, and when their journal must not be believed."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections import Counter
from pathlib import Path

import pytest

from contrailmq.message import SystemTopic
from contrailmq.store.base.errors import StoreIOError
from contrailmq.store.timer import TimerCheckpoint, encode_checkpoint
from contrailmq.store.timer.delivered import Delivered
from store.timer.test_timer_milliseconds import TICK_MS, go_to, mark, send_at, started_again
from store.timer.test_timer_store import START_MS, Bench, FilesWithoutSync


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, timer_flush_interval_ms=86_400_000)  # the checkpoint says nothing: the journal alone counts


def journal_files(bench: Bench) -> list[Path]:
    return sorted((bench.host.config.path / "config").glob("timers.journal.*"))


def deliver(bench: Bench) -> None:
    """All of a slot, and half of the next one."""
    send_at(bench, 100, 300, 500, 1200, 1400, 1600)
    for millisecond in (0, 350, 1000, 1450):
        go_to(bench, millisecond)
    assert bench.host.bodies() == ["100", "300", "500", "1200", "1400"]


def test_a_kill_in_the_middle_of_a_slot_repeats_nothing_of_it_nor_of_those_before(bench: Bench) -> None:
    deliver(bench)
    bench.crash()
    go_to(bench, 2500)
    assert bench.host.bodies() == ["100", "300", "500", "1200", "1400", "1600"]
    assert bench.timer.recount(1000)
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_kills_before_and_after_a_flush_repeat_nothing(bench: Bench) -> None:
    """The place inside of a slot is in no checkpoint: what was done of it before the flush is known, too."""
    send_at(bench, 100, 300, 500, 700, 900)
    for millisecond in (0, 150, 350, 550, 750):
        go_to(bench, millisecond)
        bench.crash()
        bench.timer.flush(bench.clock.now_ms())
        bench.tick()
        bench.crash()
    go_to(bench, 2000)
    assert bench.host.bodies() == ["100", "300", "500", "700", "900"]


def test_a_slot_that_grew_while_it_was_delivered_loses_and_repeats_nothing(bench: Bench) -> None:
    """What came last was done before what had waited longer: the done ones are no beginning of the chain."""
    send_at(bench, 600, 900)
    go_to(bench, 200)
    send_at(bench, 300, 950, 250)
    go_to(bench, 400)
    assert bench.host.bodies() == ["250", "300"]
    bench.crash()
    send_at(bench, 420)
    go_to(bench, 650)
    bench.crash()
    go_to(bench, 2000)
    assert bench.host.bodies() == ["250", "300", "420", "600", "900", "950"]


def test_a_recalled_message_stays_recalled_after_a_kill_in_its_slot(bench: Bench) -> None:
    send_at(bench, 100, 300, 500)
    mark(bench, 500)
    for millisecond in (0, 350):
        go_to(bench, millisecond)
    bench.crash()
    go_to(bench, 2000)
    assert bench.host.bodies() == ["100", "300"]


def test_what_came_too_late_for_the_wheel_is_not_taken_in_twice(bench: Bench) -> None:
    """Its slot had been delivered: it never was on the wheel, so no unit says that it was taken in."""
    bench.host.send(b"first", TIMER_DELAY_MS="1500")
    bench.run(3000)
    bench.host.send(b"late", TIMER_DELAY_MS="1500")
    bench.clock.advance(5000)
    bench.tick()
    assert bench.host.bodies() == ["first", "late"]
    for _ in range(3):
        bench.crash()
        bench.run(3000)
    assert bench.host.bodies() == ["first", "late"]


def test_a_message_that_rolled_is_on_its_way_once_after_a_kill(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_flush_interval_ms=86_400_000, timer_roll_window_slot=6)
    bench.host.send(b"rolls", TIMER_DELAY_MS="11500")
    bench.run(8000)
    assert len(bench.host.messages(SystemTopic.TIMER)) == 2
    bench.crash()
    bench.run(10_000)
    assert len(bench.host.messages(SystemTopic.TIMER)) == 2
    assert bench.host.bodies() == ["rolls"]


def test_a_stop_leaves_an_empty_journal(bench: Bench) -> None:
    deliver(bench)
    started_again(bench)
    assert [path.stat().st_size for path in journal_files(bench)] == [0, 0]
    go_to(bench, 2500)
    assert bench.host.bodies() == ["100", "300", "500", "1200", "1400", "1600"]


def test_a_torn_entry_repeats_only_what_it_spoke_of(bench: Bench) -> None:
    send_at(bench, 100, 300, 500)
    for millisecond in (0, 150, 350):
        go_to(bench, millisecond)
    bench.timer.crash()
    written = max(journal_files(bench), key=lambda path: path.stat().st_size)
    written.write_bytes(written.read_bytes()[:-3])
    bench.timer = bench.opened()
    go_to(bench, 1500)
    assert bench.host.bodies() == ["100", "300", "300", "500"]


def test_copies_that_a_power_failure_took_are_delivered_again(bench: Bench) -> None:
    """The kernel had written the journal and not the end of the log."""
    send_at(bench, 100, 300, 500)
    go_to(bench, 0)
    bench.timer.flush(bench.clock.now_ms())
    go_to(bench, 150)
    bench.host.flush(bench.host.log_max_offset)
    go_to(bench, 350)
    assert bench.host.bodies() == ["100", "300"]
    bench.timer.crash()
    bench.host.lose_power()
    assert bench.host.bodies() == ["100"]
    bench.timer = bench.opened()
    go_to(bench, 1500)
    assert bench.host.bodies() == ["100", "300", "500"]


def test_units_that_a_power_failure_took_are_taken_in_again(bench: Bench) -> None:
    """The log and the journal were written, the timer log was not."""
    send_at(bench, 100)
    go_to(bench, 0)
    bench.timer.flush(bench.clock.now_ms())
    kept = bench.timer.log.end
    send_at(bench, 300, 1500)
    go_to(bench, 350)
    assert bench.host.bodies() == ["100", "300"]
    bench.timer.crash()
    (file,) = (bench.host.config.path / "timerlog").iterdir()
    file.write_bytes(file.read_bytes()[:kept].ljust(file.stat().st_size, b"\0"))
    bench.timer = bench.opened()
    go_to(bench, 2500)
    counts = Counter(bench.host.bodies())
    assert set(counts) == {"100", "300", "1500"}
    assert counts["100"] == counts["1500"] == 1


def test_the_journal_of_another_store_is_not_believed(bench: Bench, tmp_path: Path) -> None:
    deliver(bench)
    bench.timer.crash()
    (tmp_path / "other").mkdir()
    other = Bench(tmp_path / "other", timer_flush_interval_ms=86_400_000)
    other.clock.set_wall(bench.clock.now_ms() - 4000)
    for number in range(20):
        other.host.send(b"own%d" % number, TIMER_DELAY_MS="2500")
    other.tick()
    other.timer.crash()
    for path in journal_files(bench):
        shutil.copy(path, other.host.config.path / "config" / path.name)
    other.timer = other.opened()
    other.run(6000)
    assert other.host.bodies() == [f"own{number}" for number in range(20)]


def test_a_checkpoint_that_another_program_wrote_later_counts(bench: Bench) -> None:
    """Apache opened the store, took in and delivered more, and its checkpoint is further than our journal."""
    deliver(bench)
    bench.timer.crash()
    last = bench.timer.checkpoint
    later = last._replace(read_time_ms=TICK_MS + 3000, version_counter=last.version_counter + 5)
    (bench.host.config.path / "config" / "timercheck").write_bytes(encode_checkpoint(later))
    bench.timer = bench.opened()
    assert bench.timer.read_time_ms == TICK_MS + 3000
    go_to(bench, 5000)
    assert bench.host.bodies() == ["100", "300", "500", "1200", "1400"]  # it has delivered 1600, we were told


@pytest.mark.parametrize(
    ("version", "log_end", "is_taken"), [(7, 520, True), (8, 520, True), (6, 520, False), (7, 521, False)]
)
def test_the_journal_advances_a_checkpoint_that_is_not_newer_and_whose_units_are_there(
    version: int, log_end: int, is_taken: bool
) -> None:
    checkpoint = TimerCheckpoint(1000, 104, 2, 3, version_counter=7)
    advanced = Delivered(5000, 10, log_end, version, 5000).advance(checkpoint, log_end=520)
    wanted = TimerCheckpoint(5000, 520, 10, 10, version_counter=7)
    assert advanced == (wanted if is_taken else checkpoint)


def test_a_slave_takes_nothing_from_the_journal_of_the_master_that_it_was(bench: Bench) -> None:
    deliver(bench)
    bench.host.config = bench.host.config.replaced(broker_role="SLAVE")
    bench.crash()
    assert not bench.recovered.is_journaled
    assert [path.stat().st_size for path in journal_files(bench)] == [0, 0]


def test_a_kill_between_wheel_and_checkpoint_loses_no_timer_that_came_after_the_clock_was_set_back(
    bench: Bench,
) -> None:
    """Its slot is on the wheel's file already, before a read time that was saved when the clock was ahead."""
    bench.host.send(b"ahead", TIMER_DELAY_MS="3000")
    bench.run(6000)
    bench.timer.flush(bench.clock.now_ms())
    bench.clock.set_wall(START_MS - 10_000)
    bench.host.send(b"back", TIMER_DELAY_MS="2000")
    bench.timer.tick(bench.clock.now_ms())
    plan = bench.timer.begin_flush(bench.clock.now_ms())
    bench.timer.log.sync(plan.log_files)
    bench.timer.wheel.write_slots(plan.slots)
    bench.crash()
    bench.run(4000)
    assert bench.host.bodies() == ["ahead", "back"]


class FullDisk(FilesWithoutSync):
    is_full = True

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(descriptor, data, position)


@pytest.mark.parametrize("is_killed_again", [False, True])
def test_a_start_on_a_full_disk_opens_the_timers_and_repeats_nothing(bench: Bench, is_killed_again: bool) -> None:
    deliver(bench)
    bench.timer.crash()
    disk = FullDisk()
    bench.timer = bench.made(disk)
    bench.timer.open(bench.clock.now_ms())
    assert sum(path.stat().st_size for path in journal_files(bench)) > 0
    disk.is_full = False
    if is_killed_again:
        bench.crash()
    go_to(bench, 2500)
    assert bench.host.bodies() == ["100", "300", "500", "1200", "1400", "1600"]
    bench.timer.flush(bench.clock.now_ms())  # as a broker does within the second
    bench.crash()
    go_to(bench, 4000)
    assert len(bench.host.bodies()) == 6


class FullTimerLog(FilesWithoutSync):
    """Takes nothing more into the timer log while it is full."""

    is_full = False

    def __init__(self) -> None:
        super().__init__()
        self._of_timer_log: set[int] = set()

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        descriptor = super().open(path, writable=writable, create=create)
        if "timerlog" in Path(path).parts:
            self._of_timer_log.add(descriptor)
        else:
            self._of_timer_log.discard(descriptor)
        return descriptor

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full and descriptor in self._of_timer_log:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(descriptor, data, position)


def test_what_is_delivered_while_the_timer_log_takes_no_new_timers_is_noted_too(bench: Bench) -> None:
    """Else a kill would repeat all that was delivered since the disk was full, hours ago."""
    bench.timer.crash()
    disk = FullTimerLog()
    bench.timer = bench.made(disk)
    bench.timer.open(bench.clock.now_ms())
    send_at(bench, 100, 300, 500)
    go_to(bench, 0)
    disk.is_full = True
    send_at(bench, 1600)
    for millisecond in (150, 350, 550):
        with contextlib.suppress(StoreIOError):  # the service tells of it and goes on
            go_to(bench, millisecond)
    delivered = bench.host.bodies()
    assert delivered[:2] == ["100", "300"]
    bench.crash()
    go_to(bench, 2500)
    assert bench.host.bodies() == ["100", "300", "500", "1600"]
