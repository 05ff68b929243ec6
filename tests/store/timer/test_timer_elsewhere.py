"""Timers of a slave that stands in for its master: delivered elsewhere, and what the master makes of it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from contrailmq.message import StoredMessage
from contrailmq.store.timer import TimerCheckpoint, TimerStore
from contrailmq.store.timer.admission import rolled_slot_time_ms
from store.timer.test_timer_milliseconds import TICK_MS, go_to, mark, send_at
from store.timer.test_timer_store import START_MS, Bench, FilesWithoutSync


class Other:
    """Another broker, which takes so many messages and no more."""

    def __init__(self) -> None:
        self.room = 0
        self.taken: list[tuple[str, int]] = []  # bodies, and when they are due there
        self._places: set[int] = set()

    def hand_over(self, messages: Sequence[tuple[StoredMessage, int]]) -> int:
        for index, (message, deliver_ms) in enumerate(messages):
            if message.physical_offset not in self._places:
                if not self.room:
                    return index
                self.room -= 1
                self._places.add(message.physical_offset)
                self.taken.append((message.body.decode(), deliver_ms))
        return len(messages)

    @property
    def bodies(self) -> list[str]:
        return [body for body, _ in self.taken]


class Slave(Bench):
    """A slave that acts from its first opening on."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.other: Other | None = Other()
        super().__init__(path, broker_role="SLAVE", timer_flush_interval_ms=86_400_000, **settings)

    def opened(self) -> TimerStore:
        timer = self.made(FilesWithoutSync())
        self.recovered = timer.open(self.clock.now_ms(), elsewhere=self.other, may_deliver=True)
        return timer


@pytest.fixture
def slave(tmp_path: Path) -> Slave:
    return Slave(tmp_path)


def test_what_is_due_waits_for_the_other_broker_and_goes_there_once(slave: Slave) -> None:
    assert slave.other is not None
    send_at(slave, 100, 300, 500, 1200)
    mark(slave, 300)
    go_to(slave, 0)
    go_to(slave, 2500)
    assert slave.other.bodies == []
    assert slave.timer.is_in_slot
    for room in (1, 0, 5):
        slave.other.room = room
        slave.tick()
    assert slave.other.bodies == ["100", "500", "1200"]
    assert slave.host.bodies() == [], "a slave's log takes nothing"
    assert slave.timer.metrics.counts == {"Orders": 0}
    assert slave.timer.stats.recalled == 1


def test_a_kill_repeats_nothing_that_the_other_broker_has(slave: Slave) -> None:
    assert slave.other is not None
    send_at(slave, 100, 300, 500, 1200)
    go_to(slave, 0)
    slave.other.room = 2
    go_to(slave, 1050)
    assert slave.other.bodies == ["100", "300"]
    taken, slave.other = slave.other.taken, Other()  # one that knows nothing of what came before
    slave.other.room = 10
    slave.crash()
    go_to(slave, 3000)
    assert [body for body, _ in taken] + slave.other.bodies == ["100", "300", "500", "1200"]


@pytest.mark.parametrize("wait_ms", [60_000, 60_001, 60_500])
def test_one_that_comes_too_late_for_its_slot_and_one_that_rolls_go_there_too(wait_ms: int, tmp_path: Path) -> None:
    slave = Slave(tmp_path, timer_roll_window_slot=20)
    assert slave.other is not None
    slave.other.room = 10
    out_ms = START_MS + wait_ms
    slave.host.send(b"far", TIMER_DELIVER_MS=str(out_ms))
    slave.host.send(b"late", TIMER_DELIVER_MS=str(START_MS + 1000))
    slave.jump(5000)
    slave.run(25_000)
    (late, due_ms), (far, there_ms) = slave.other.taken
    assert (late, due_ms) == ("late", 0)
    assert far == "far"
    assert out_ms <= there_ms < out_ms + 1000, "it waits there to the end of its tick"


def test_a_slave_that_ends_its_part_finishes_its_slot_and_begins_no_other(slave: Slave) -> None:
    assert slave.other is not None
    send_at(slave, 100, 900, 1200)
    slave.other.room = 10
    go_to(slave, 0)
    go_to(slave, 200)
    slave.timer.is_ending = True
    assert slave.timer.is_in_slot
    go_to(slave, 1500)
    go_to(slave, 2500)
    assert slave.other.bodies == ["100", "900"]
    assert not slave.timer.is_in_slot
    slave.timer.close(slave.clock.now_ms())
    checkpoint = slave.timer.saved_checkpoint
    assert (checkpoint.read_time_ms, checkpoint.queue_offset) == (TICK_MS + 1000, 3)


def test_a_master_delivers_what_its_slave_never_had_and_nothing_else(tmp_path: Path) -> None:
    """The slave had the first three messages and delivered up to the third second; of the rest one was recalled."""
    master = Bench(tmp_path, timer_flush_interval_ms=86_400_000)
    send_at(master, 100, 1200, 5000)
    master.tick()
    send_at(master, 300, 1400, 1600, 6000)
    mark(master, 1600)
    master.tick()
    master.timer.close(master.clock.now_ms())
    master.clock.set_wall(TICK_MS + 4000)
    master.timer = master.opened()
    master.timer.take_over(TimerCheckpoint(TICK_MS + 3000, queue_offset=3, master_queue_offset=3), TICK_MS + 4000)
    assert sorted(master.host.bodies()) == ["1400", "300"]
    master.crash()  # it is saved
    master.run(8000)
    assert sorted(master.host.bodies()) == ["1400", "300", "5000", "6000"]


def test_a_master_that_had_not_taken_in_its_timers_does_not_deliver_those_of_its_slave(tmp_path: Path) -> None:
    master = Bench(tmp_path, timer_flush_interval_ms=86_400_000)
    send_at(master, 100, 1200, 5000)
    send_at(master, 300)  # the slave has not got it
    master.clock.set_wall(TICK_MS + 4000)
    master.timer.take_over(TimerCheckpoint(TICK_MS + 3000, queue_offset=3, master_queue_offset=3), TICK_MS + 4000)
    master.crash()
    master.run(4000)
    assert sorted(master.host.bodies()) == ["300", "5000"]


def test_a_master_keeps_what_rolls_where_its_slave_may_have_it_in_a_later_slot(tmp_path: Path) -> None:
    """One was recalled. The slave took them in a second later than the master did: they were not to roll there, and
    wait in their last slot."""
    master = Bench(tmp_path, timer_roll_window_slot=3, timer_flush_interval_ms=86_400_000)
    go_to(master, 0)
    send_at(master, 3100, 3200)
    mark(master, 3200)
    master.tick()
    assert [slot.time_ms - TICK_MS for slot in master.timer.wheel.all_slots() if not slot.is_empty] == [2000]
    master.timer.close(master.clock.now_ms())
    master.clock.set_wall(TICK_MS + 4000)
    master.timer = master.opened()
    master.timer.take_over(TimerCheckpoint(TICK_MS + 3000, queue_offset=3, master_queue_offset=3), TICK_MS + 4000)
    master.crash()
    master.run(4000)
    assert master.host.bodies() == ["3100"]


@pytest.mark.parametrize("wait_ms", range(9_500, 14_500, 1000))
@pytest.mark.parametrize("before_ms", [0, 1000, 3000])
def test_a_slave_that_took_a_timer_in_later_keeps_it_when_it_is_made_the_master(
    before_ms: int, wait_ms: int, tmp_path: Path
) -> None:
    """The master dies before the slot in which it was to roll."""
    slot_ms = rolled_slot_time_ms(wait_ms // 1000 * 1000, 0, window_ms=9000, precision_ms=1000)
    promoted_ms = slot_ms - before_ms
    slave = Bench(tmp_path, broker_role="SLAVE", timer_roll_window_slot=9, timer_flush_interval_ms=86_400_000)
    slave.clock.set_wall(TICK_MS)
    send_at(slave, wait_ms)
    slave.timer.follow(TimerCheckpoint(TICK_MS, 0, 1, 1))
    go_to(slave, 1000)
    slave.clock.set_wall(TICK_MS + promoted_ms)
    slave.timer.follow(TimerCheckpoint(TICK_MS + promoted_ms, 0, 1, 1))
    slave.timer.close(slave.clock.now_ms())
    slave.host.config = slave.host.config.replaced(broker_role="ASYNC_MASTER")
    slave.timer = slave.opened()
    slave.run(16_000)
    assert slave.host.bodies() == [str(wait_ms)]


@pytest.mark.parametrize("slots", [3, 4, 5, 9, 100])
def test_what_is_taken_in_later_rolls_no_earlier_and_its_last_leg_is_long_enough(slots: int) -> None:
    window_ms, out_ms = slots * 1000, 10 * slots * 1000
    before_ms = 0
    for write_ms in range(0, out_ms - window_ms + 1, 1000):
        slot_ms = rolled_slot_time_ms(out_ms, write_ms, window_ms=window_ms, precision_ms=1000)
        assert max(before_ms, write_ms + 1000) <= slot_ms <= min(write_ms + window_ms, out_ms - slots // 3 * 1000)
        before_ms = slot_ms


def test_a_slave_that_is_behind_tells_a_master_nothing(tmp_path: Path) -> None:
    master = Bench(tmp_path)
    send_at(master, 100, 1200)
    for millisecond in (0, 1000, 2500):
        go_to(master, millisecond)
    before = master.timer.checkpoint
    master.timer.take_over(TimerCheckpoint(TICK_MS, queue_offset=1, master_queue_offset=1), TICK_MS + 2500)
    assert master.timer.checkpoint == before
    assert master.host.bodies() == ["100", "1200"]
