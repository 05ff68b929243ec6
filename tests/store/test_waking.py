"""What is asked for is not lost, whoever comes first; and an interrupt leaves no lock behind."""

from __future__ import annotations

import random
import signal
import threading

from contrailmq.store.waking import Sleepers, Wake


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
    waiting.join(30)
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
    source, wake, interrupts = random.Random(5), Wake(), 0
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-6, 2e-4))
                while True:
                    wake.set()
                    wake.wait(0)
            except KeyboardInterrupt:
                interrupts += 1
            other = threading.Thread(target=wake.set, daemon=True)
            other.start()
            other.join(30)
            assert not other.is_alive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupts == 2000
