"""Waiting for what others bring about: by condition, with a bound that only a failure meets; never by a fixed sleep.

A test must not say how fast a busy machine is: processes stand still for seconds there. So the bound is generous.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0
LOOK_S = 0.01  # how long to rest between two looks


def until(
    fact: Callable[[], object],
    what: str = "what the test waits for",
    *,
    seen: Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    """Return once the fact is true; `seen` tells what there was instead."""
    deadline_s = time.monotonic() + limit_s
    while not fact():
        assert time.monotonic() < deadline_s, _failure(what, seen, limit_s)
        time.sleep(LOOK_S)


async def until_async(
    fact: Callable[[], object],
    what: str = "what the test waits for",
    *,
    seen: Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
    look_s: float = LOOK_S,
) -> None:
    """The same among the tasks of a loop. With `look_s=0` it looks in each pass of the loop."""
    deadline_s = time.monotonic() + limit_s
    while not fact():
        assert time.monotonic() < deadline_s, _failure(what, seen, limit_s)
        await asyncio.sleep(look_s)


def _failure(what: str, seen: Callable[[], object] | None, limit_s: float) -> str:
    instead = "" if seen is None else f"; last seen: {seen()}"
    return f"not within {limit_s:g} s: {what}{instead}"
