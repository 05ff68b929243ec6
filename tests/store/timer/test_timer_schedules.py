"""Timers under every order of things: a random scheduler turns the wheel in small portions, with slow workers.

A seed decides what comes next: messages, recalls, time, a portion of a tick, a step of a flush, a worker that has
finished, a stop and a start, and, where the test allows them, steps of the clock and crashes. What must hold is checked
in the end, when all is quiet: nothing lost, nothing early, nothing recalled in time delivered, nothing repeated, but
once by each crash that took the journal of deliveries.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from at_once import Later
from contrailmq.store import Files, ManualClock
from contrailmq.store.timer import TimerStore, due, log
from contrailmq.store.timer.checkpoint import FlushPlan
from timer_host import MemoryHost

START_MS = 1_794_710_242_345
SEEDS = range(300) if os.environ.get("CONTRAILMQ_LONG") else range(12)


class FilesWithoutSync(Files):
    """These tests kill the process, not the machine: what was written is there."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Schedule:
    """One run of one seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(START_MS)
        self.host = MemoryHost(path, self.clock.now_ms, mapped_file_size_timer_log=10_400, timer_roll_window_slot=6)
        self.due_ms: dict[str, int] = {}
        self.rolling: set[str] = set()
        self.recalled: set[str] = set()
        self.crashes = 0
        self.lost_journals = 0
        self.latest_ms = START_MS  # that the clock ever showed
        self.seen = 0
        self.open()

    def open(self) -> None:
        self.workers = Later()
        self.timer = TimerStore(self.host, FilesWithoutSync(), self.workers, slots_total=3600)
        self.timer.open(self.clock.now_ms())
        self.plan: FlushPlan | None = None
        self.is_plan_run = False

    def send(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            name = f"m{len(self.due_ms)}"
            delay_ms = self.random.choice((300, 1000, 2000, 2500, 4000, 15_000)) + self.random.randrange(500)
            self.due_ms[name] = self.clock.now_ms() + delay_ms
            if delay_ms >= 15_000:
                self.rolling.add(name)
            self.host.send(name.encode(), TIMER_DELIVER_MS=str(self.due_ms[name]), UNIQ_KEY=f"K{name}")

    def recall(self) -> None:
        """Of a message that waits. What rolls is left out: see `TimerStore._may_wait`. A recall that comes too late is
        refused by the broker, and not made here."""
        gone = self.recalled.union(self.rolling, self.host.bodies())
        waiting = [name for name, due_ms in self.due_ms.items() if due_ms > self.clock.now_ms() and name not in gone]
        if waiting:
            name = self.random.choice(waiting)
            self.recalled.add(name)
            key = f"K{name}"
            self.host.send(b"0", TIMER_DELIVER_MS=str(self.due_ms[name]), UNIQ_KEY=key, TIMER_DEL_UNIQKEY=key)

    def advance(self) -> None:
        self.clock.advance(self.random.choice((0, 1, 40, 40, 300, 300, 1000, 2600)))

    def step_clock(self) -> None:
        self.clock.set_wall(self.clock.now_ms() + self.random.choice((-20_000, -2_500, -900, 900, 2_500)))

    def tick(self, max_count: int = 0) -> bool:
        self.latest_ms = max(self.latest_ms, self.clock.now_ms())
        has_more = self.timer.tick(self.clock.now_ms(), max_count or self.random.randrange(1, 7))
        arrived = self.host.bodies()[self.seen :]
        self.seen += len(arrived)
        assert [name for name in arrived if self.due_ms[name] > self.latest_ms] == [], "never early"
        return has_more

    def work(self) -> None:
        self.workers.run()

    def flush(self) -> None:
        """The next step of a flush."""
        if self.plan is None:
            self.plan, self.is_plan_run = self.timer.begin_flush(self.clock.now_ms()), False
        elif not self.is_plan_run:
            self.timer.run_flush(self.plan)
            self.is_plan_run = True
        else:
            self.timer.end_flush(self.plan)
            self.plan = None

    def crash(self) -> None:
        self.crashes += 1
        self.timer.crash()
        self.open()

    def lose_journal(self) -> None:
        """A power failure that came before the kernel wrote it. (The rest it has written.)"""
        self.lost_journals += 1
        self.timer.crash()
        for path in self.host.config.path.glob("config/timers.journal.*"):
            path.unlink()
        self.crash()

    def stop(self) -> None:
        """And start again. A flush that was begun is ended first."""
        while self.plan is not None:
            self.flush()
        self.timer.close(self.clock.now_ms())
        self.open()

    def crash_in_stop(self) -> None:
        """A crash after one of the steps of a stop: some of them leave what was put back half written."""
        while self.plan is not None:
            self.flush()
        timer = self.timer
        timer._put_back()
        done = self.random.randrange(5)
        if done == 0:
            written = len(timer.log._pending) // log.UNIT_BYTES * log.UNIT_BYTES
            del timer.log._pending[self.random.randrange(0, written + 1, log.UNIT_BYTES) :]
            timer.log.write()
        if done > 0:
            plan = timer.begin_flush(self.clock.now_ms())
        if done > 1:
            timer.wheel.write_slots(plan.slots)
        if done > 2:
            timer._checkpoint_file.write(plan.checkpoint)
        if done > 3:
            timer.log.cut(plan.cut_places)
        self.crash()

    def settle(self) -> None:
        """Time goes on until everything was due, and everything that was begun is ended."""
        end_ms = max(self.due_ms.values()) + 10_000
        while self.clock.now_ms() < end_ms:
            self.clock.advance(1_000)
            while self.tick(5) or self.workers.jobs:
                self.workers.run()
        self.timer.close(self.clock.now_ms())

    def run(self, steps: int, **weights: int) -> None:
        weights = {"send": 3, "recall": 1, "advance": 4, "tick": 12, "work": 4, "flush": 4, "stop": 1} | weights
        for name in self.random.choices(list(weights), list(weights.values()), k=steps):
            getattr(self, name)()
        self.settle()

    def check(self) -> None:
        counts = Counter(self.host.bodies())
        assert set(self.due_ms) - set(counts) == self.recalled
        assert self.recalled.isdisjoint(counts)
        assert max(counts.values(), default=0) <= 1 + self.lost_journals
        assert set(self.timer.metrics.counts.values()) <= {0} or self.crashes


@pytest.fixture(autouse=True)
def workers_read_all_but_the_newest_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is read without them takes several turns."""
    monkeypatch.setattr(log, "FRESH_BYTES", 12 * log.UNIT_BYTES)
    monkeypatch.setattr(due, "WALK", 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_each_timer_is_delivered_once_in_time_or_recalled(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    schedule.run(300)
    schedule.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_a_clock_that_is_set_loses_repeats_and_hastens_nothing(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    schedule.run(300, step_clock=1, recall=0)
    schedule.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_a_crash_between_two_ticks_repeats_nothing(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    schedule.run(300, crash=2, crash_in_stop=1)
    schedule.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_a_crash_after_the_clock_was_set_repeats_at_most_once(tmp_path: Path, seed: int) -> None:
    """The read time has gone back to slots that were delivered; that they are closed is known with the next flush."""
    schedule = Schedule(tmp_path, seed)
    schedule.run(300, crash=2, crash_in_stop=1, step_clock=1, recall=0)
    schedule.lost_journals = schedule.crashes
    schedule.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_each_crash_that_takes_the_journal_repeats_at_most_once(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    schedule.run(300, crash=1, lose_journal=1, crash_in_stop=1)
    schedule.check()
