"""A coroutine that begins at once, and is a task when it has to wait.

A call's handler runs to its first wait inside the read that brought the call: an asyncio.Task would begin in the next
turn of the loop, and most of its cost would be paid for nothing. To everything inside the coroutine this is the current
task, by asyncio's rules for tasks of others (`_enter_task` and `_leave_task` of its documentation): timeouts, shields,
gathers and locks work as ever.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

__all__ = ["CallTask"]

_CANCELLED_AT_ONCE: Final = "cancelled"


class CallTask:
    """`ended(result, error)` is called once. Owner: who started it, until then."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any],
        ended: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._loop, self._work, self._ended = loop, work, ended
        self._waits_for: asyncio.Future[Any] | None = None
        self._is_cancelled = False  # and does not know yet
        self._cancels = 0
        self._is_done = False

    def start(self) -> None:
        """Run to the first wait, or to the end."""
        self._step(None)

    def done(self) -> bool:
        return self._is_done

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def cancel(self, msg: object = None) -> bool:
        """CancelledError where it waits, in the next turn of the loop."""
        if self._is_done:
            return False
        self._cancels += 1
        waits_for = self._waits_for
        if waits_for is None or not waits_for.cancel(msg):
            self._is_cancelled = True
        return True

    def cancelling(self) -> int:
        return self._cancels

    def uncancel(self) -> int:
        if self._cancels:
            self._cancels -= 1
        return self._cancels

    def _step(self, error: BaseException | None) -> None:
        if self._is_cancelled:
            self._is_cancelled = False
            if not isinstance(error, asyncio.CancelledError):
                error = asyncio.CancelledError(_CANCELLED_AT_ONCE)
        self._waits_for = None
        result: Any = None
        failure: BaseException | None = None
        awaited: Any = None
        is_done = False
        loop = self._loop
        own = cast(Any, self)
        other = asyncio.current_task(loop)
        if other is not None:
            _leave_task(loop, other)
        _enter_task(loop, own)
        try:
            awaited = self._work.send(None) if error is None else self._work.throw(error)
        except StopIteration as stop:
            is_done, result = True, stop.value
        except BaseException as exc:  # noqa: BLE001 (handed to whoever waits for the end)
            is_done, failure = True, exc
        finally:
            _leave_task(loop, own)
            if other is not None:
                _enter_task(loop, other)
        if is_done:
            self._is_done = True
            self._ended(result, failure)
        else:
            self._wait(awaited)

    def _wait(self, awaited: Any) -> None:
        """For a future that the coroutine awaits, or for the next turn where it only gave way."""
        if awaited is None:
            self._loop.call_soon(self._step, None)
        elif getattr(awaited, "_asyncio_future_blocking", None):
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self._wake)
            self._waits_for = awaited
            if self._is_cancelled and awaited.cancel():
                self._is_cancelled = False
        else:
            self._loop.call_soon(self._step, RuntimeError(f"a call awaits {awaited!r}, which is no future"))

    def _wake(self, future: asyncio.Future[Any]) -> None:
        error: BaseException | None = None
        if future.cancelled():
            error = asyncio.CancelledError()
        else:
            error = future.exception()
        self._step(error)
