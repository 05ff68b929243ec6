"""Ctrl-C at random moments of some work, again and again."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator


def interrupted(work: Callable[[], object], *, rounds: int, longest_s: float, seed: int) -> Iterator[None]:
    """Repeat `work` until a signal's handler raises in it, `rounds` times; gives control after each."""
    source = random.Random(seed)
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(rounds):
            try:
                signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-6, longest_s))
                while True:
                    work()
            except KeyboardInterrupt:
                yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
