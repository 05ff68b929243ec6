"""A wall clock that is set, and a broker that is stopped or killed, in any order: each delay is as long as was asked.

The expected times come from a model of the world and not from the broker: the time that truly passes, a wall clock
beside it that is set now and then, and processes on one machine that live for a while. Each kind is due when as much
time has passed as was asked for, or at the first start after that. Starts of the machine, where only the wall clock can
say how long it was down, are in tests/store/test_clock_lives.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from broker.test_clock_jumps import DAY_MS, HOUR_MS, START_MS, JumpBench
from contrailmq.store.base.clock import ManualClock

SECOND_MS: Final = 1000
SIZES_MS: Final = [sign * size for size in (800, SECOND_MS, HOUR_MS, 30 * DAY_MS) for sign in (1, -1)]

# kind -> (how long it waits, by how much more at most)
ASKED_MS: Final = {
    "level 1": (1_000, 100),
    "level 3": (10_000, 100),
    "retry": (10_000, 100),
    "timer by seconds": (12_000, 1_000),
    "timer by milliseconds": (12_345, 1_000),
    "timer by time": (15_678, 1_000),
    "check": (6_000, 6_100),  # rounds come every 6 s, from the start on
    "immune check": (20_000, 6_100),
}
PROPERTIES: Final = {
    "level 1": {"DELAY": "1"},
    "level 3": {"DELAY": "3"},
    "timer by seconds": {"TIMER_DELAY_SEC": "12"},
    "timer by milliseconds": {"TIMER_DELAY_MS": "12345"},
    "check": {"TRAN_MSG": "true", "PGROUP": "pg"},
    "immune check": {"TRAN_MSG": "true", "PGROUP": "pg", "CHECK_IMMUNITY_TIME_IN_SECONDS": "20"},
}


class Machine:
    """A store, the processes that open it one after the other, and when each message was sent and seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(START_MS)
        self.bench = JumpBench(path, clock=self.clock)
        self.true_ms = 0
        self.started_ms = 0
        self.sent_ms: dict[str, int] = {}
        self.seen_ms: dict[str, int] = {}

    def jump(self, size_ms: int) -> None:
        self.clock.set_wall(self.clock.now_ms() + size_ms)

    def send(self, kind: str) -> None:
        self.sent_ms[kind] = self.true_ms
        if kind == "retry":
            poison = self.bench.send_kind("poison", {})
            self.bench.send_back(int(poison.ext["msgId"][-16:], 16))
        elif kind == "timer by time":
            self.bench.send_kind(kind, {"TIMER_DELIVER_MS": str(self.clock.now_ms() + 15_678)})
        else:
            self.bench.send_kind(kind, PROPERTIES[kind])

    def send_all(self) -> None:
        for kind in ASKED_MS:
            self.send(kind)

    def live(self, milliseconds: int) -> None:
        """Time passes and the services are ticked: a tenth of a second later, at each second, and where a message is
        due, the millisecond before included."""
        begin_ms, end_ms = self.true_ms, self.true_ms + milliseconds
        due = [(sent_ms + ASKED_MS[kind][0], ASKED_MS[kind][1]) for kind, sent_ms in self.sent_ms.items()]
        moments = {begin_ms + 100, end_ms, *range(begin_ms // 1000 * 1000, end_ms, 1000)}
        moments |= {moment for due_ms, late_ms in due for moment in (due_ms - 1, due_ms, due_ms + late_ms)}
        for moment in sorted(moment for moment in moments if begin_ms < moment <= end_ms):
            self.be_down(moment - self.true_ms)
            self.tick()

    def tick(self) -> None:
        self.bench.pass_ms(0)
        for kind in self.sent_ms:
            if kind not in self.seen_ms and self._is_seen(kind):
                self.seen_ms[kind] = self.true_ms

    def _is_seen(self, kind: str) -> bool:
        if kind in ("check", "immune check"):
            return kind in self.bench.arrived_ms
        topic = "%RETRY%g" if kind == "retry" else kind.replace(" ", "_")
        return self.bench.store.max_offset(topic, 0) > 0

    def stop(self) -> None:
        bench = self.bench
        for service in (bench.transactions, bench.delay):
            service.stop()
        bench.saver.save_all_now()
        bench.close()

    def kill(self) -> None:
        bench = self.bench
        bench.delay.crash()
        bench.timers.crash()
        bench.store.abandon()
        bench.loop.close()
        bench._worker.shutdown()

    def be_down(self, milliseconds: int) -> None:
        self.true_ms += milliseconds
        self.clock.advance(milliseconds)

    def start(self) -> None:
        self.bench = JumpBench(self.path, clock=self.clock)
        self.started_ms = self.true_ms
        self.tick()

    def wrong(self) -> dict[str, tuple[int, int | None]]:
        """Kind -> (asked, waited), of those that came too early, too late or not at all."""
        found: dict[str, tuple[int, int | None]] = {}
        for kind, sent_ms in self.sent_ms.items():
            asked_ms, late_ms = ASKED_MS[kind]
            seen_ms = self.seen_ms.get(kind)
            if (
                seen_ms is None
                or not sent_ms + asked_ms <= seen_ms <= max(sent_ms + asked_ms, self.started_ms) + late_ms
            ):
                found[kind] = (asked_ms, None if seen_ms is None else seen_ms - sent_ms)
        return found


# Each is given the machine, the size of the jump, and how the process ends.
Sequence = Callable[[Machine, int, Callable[[], None]], None]


def _restart(machine: Machine, end: Callable[[], None], *, jump_ms: int = 0) -> None:
    end()
    machine.be_down(1000)
    machine.jump(jump_ms)
    machine.be_down(1000)
    machine.start()


def before_the_send(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.live(300)
    machine.jump(jump_ms)
    machine.live(300)
    machine.send_all()
    machine.live(2000)
    _restart(machine, end)


def before_the_send_and_not_noticed(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.live(300)
    machine.jump(jump_ms)
    machine.send_all()
    machine.live(2000)
    _restart(machine, end)


def between_send_and_end(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.send_all()
    machine.live(1000)
    machine.jump(jump_ms)
    machine.live(1000)
    _restart(machine, end)


def just_before_the_end(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.send_all()
    machine.live(2000)
    machine.jump(jump_ms)
    _restart(machine, end)


def before_the_send_and_the_end_follows(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.live(2000)
    machine.jump(jump_ms)
    machine.send_all()
    _restart(machine, end)


def while_it_is_down(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.send_all()
    machine.live(2000)
    _restart(machine, end, jump_ms=jump_ms)


def just_after_the_start(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.send_all()
    machine.live(2000)
    _restart(machine, end)
    machine.jump(jump_ms)


def there_and_back_around_the_restart(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.send_all()
    machine.live(500)
    machine.jump(jump_ms)
    machine.live(500)
    _restart(machine, end)
    machine.live(500)
    machine.jump(-jump_ms)


def and_two_restarts(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    machine.send_all()
    machine.live(200)
    machine.jump(jump_ms)
    machine.live(300)
    _restart(machine, end)
    machine.live(300)
    _restart(machine, machine.kill, jump_ms=jump_ms)


def after_what_is_immune_was_put_back(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    """A round puts it back before the jump, and another one after it: its copy is stored by another clock."""
    machine.send_all()
    machine.live(7000)
    machine.jump(jump_ms)
    machine.live(6500)
    _restart(machine, end)


def in_small_steps(machine: Machine, jump_ms: int, end: Callable[[], None]) -> None:
    """Ten steps, each with a tenth of a second after it: those of 80 ms are noticed when they have added up."""
    machine.send_all()
    for _ in range(10):
        machine.jump(jump_ms // 10)
        machine.live(100)
    _restart(machine, end)


OFTEN: Final = [(800, "kill"), (-HOUR_MS, "kill"), (30 * DAY_MS, "stop")]
SELDOM: Final = [case for case in itertools.product(SIZES_MS, ("stop", "kill")) if case not in OFTEN]


@pytest.mark.parametrize(
    ("jump_ms", "ends"), [*OFTEN, *(pytest.param(*case, marks=pytest.mark.long) for case in SELDOM)]
)
@pytest.mark.parametrize(
    "when",
    [
        before_the_send,
        before_the_send_and_not_noticed,
        between_send_and_end,
        just_before_the_end,
        before_the_send_and_the_end_follows,
        while_it_is_down,
        just_after_the_start,
        there_and_back_around_the_restart,
        and_two_restarts,
        after_what_is_immune_was_put_back,
        in_small_steps,
    ],
)
def test_every_kind_waits_as_long_as_was_asked_across_a_jump_and_a_restart(
    tmp_path: Path, when: Sequence, jump_ms: int, ends: str
) -> None:
    machine = Machine(tmp_path)
    when(machine, jump_ms, machine.stop if ends == "stop" else machine.kill)
    machine.live(36_000 - machine.true_ms)
    assert machine.wrong() == {}
    machine.stop()


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_without_a_jump_a_restart_changes_no_delay(tmp_path: Path, ends: str) -> None:
    machine = Machine(tmp_path)
    between_send_and_end(machine, 0, machine.stop if ends == "stop" else machine.kill)
    machine.live(36_000 - machine.true_ms)
    assert machine.wrong() == {}
    machine.stop()
