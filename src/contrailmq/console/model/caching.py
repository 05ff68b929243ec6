"""A value that is asked for at most once at a time, and not again while it is young."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """Those who come while it is being asked for share the answer, or the error. Owned by one event loop."""

    def __init__(
        self, ask: Callable[[], Awaitable[T]], *, max_age_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._max_age_s = max_age_s
        self._clock = clock
        self._task: asyncio.Task[T] | None = None
        self._asked_at_s = 0.0

    async def get(self) -> T:
        task = self._task
        if task is None or (task.done() and self._is_stale(task)):
            task = self._task = asyncio.ensure_future(self._value())
        return await asyncio.shield(task)  # one page that is closed does not end the others' question

    def forget(self) -> None:
        """The next one who asks gets a new answer."""
        self._task = None

    async def _value(self) -> T:
        value = await self._ask()
        self._asked_at_s = self._clock()
        return value

    def _is_stale(self, task: asyncio.Task[T]) -> bool:
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock() - self._asked_at_s >= self._max_age_s
