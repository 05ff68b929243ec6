"""Ctrl-C at random moments of some work, again and again."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Final

# Python drops what a handler raises while an object is cleared away, in the callback of a weak reference for example,
# and the objects of the tests before are cleared away here too. Then the signal comes once more.
AGAIN_S: Final = 10.0


def interrupted(work: Callable[[], object], *, rounds: int, longest_s: float, seed: int) -> Iterator[None]:
    """Repeat `work` until a signal's handler raises in it, `rounds` times; gives control after each."""
    source = random.Random(seed)
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(rounds):
            try:
                signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-6, longest_s), AGAIN_S)
                while True:
                    work()
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
