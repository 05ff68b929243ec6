"""What is asked for is not lost, whoever comes first; and an interrupt leaves no lock behind."""

from __future__ import annotations

import threading

from interrupts import interrupted

from contrailmq.store.base.waking import Sleepers, Wake


def test_asking_before_the_wait_counts_once() -> None:
    wake = Wake()
    assert not wake.wait(0)
    wake.set()
    wake.set()
    assert wake.wait(0)
    assert not wake.wait(0)


def test_a_wait_ends_when_another_thread_asks() -> None:
    wake, answers = Wake(), list[bool]()
    waiting = threading.Thread(target=lambda: answers.append(wake.wait(60)))
    waiting.start()
    wake.set()
    waiting.join(120)
    assert answers == [True]


def test_all_who_entered_are_woken_and_those_who_come_later_are_not() -> None:
    sleepers = Sleepers()
    before = [sleepers.enter() for _ in range(3)]
    sleepers.wake_all()
    after = sleepers.enter()
    sleepers.wake_all()
    assert [wake.wait(0) for wake in (*before, after)] == [True] * 4
    assert not sleepers.enter().wait(0)


def test_an_interrupt_leaves_nothing_locked() -> None:
    """`threading.Event` in its place is left locked after some hundreds of these."""
    wake, interrupts = Wake(), 0

    def work() -> None:
        wake.set()
        wake.wait(0)

    for _ in interrupted(work, rounds=2000, longest_s=2e-4, seed=5):
        interrupts += 1
        other = threading.Thread(target=wake.set, daemon=True)
        other.start()
        other.join(120)
        assert not other.is_alive()
    assert interrupts == 2000
