"""Waiting for what others bring about: by condition, with a bound that only a failure meets; never by a fixed sleep.

A test does not say how fast a busy machine is: processes stand still for seconds there. So the bound is generous.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

LIMIT_S = 180.0
LOOK_S = 0.01  # the rest between two looks


def until(
    fact: Callable[[], object],
    what: str = "",
    *,
    seen: Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    """Return once the fact is true. If it never is, `what` names it and `seen` tells what there was instead."""
    deadline_s = time.monotonic() + limit_s
    while not fact():
        assert time.monotonic() < deadline_s, _failure(fact, what, seen, limit_s)
        time.sleep(LOOK_S)


async def until_async(
    fact: Callable[[], object],
    what: str = "",
    *,
    seen: Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
    look_s: float = LOOK_S,
) -> None:
    """The same among the tasks of a loop. With `look_s=0` it looks in each pass of the loop."""
    deadline_s = time.monotonic() + limit_s
    while not fact():
        assert time.monotonic() < deadline_s, _failure(fact, what, seen, limit_s)
        await asyncio.sleep(look_s)


def _failure(fact: Callable[[], object], what: str, seen: Callable[[], object] | None, limit_s: float) -> str:
    instead = "" if seen is None else f"; last seen: {seen()}"
    return f"not within {limit_s:g} s: {what or _text_of(fact)}{instead}"


def _text_of(fact: Callable[[], object]) -> str:
    """A function's name, or the line with the lambda."""
    return inspect.getsource(fact).strip() if fact.__name__ == "<lambda>" else fact.__name__
