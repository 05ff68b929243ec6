"""An executor for tests on a fake clock."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any


class AtOnce(Executor):
    """A worker that has done everything when it is asked."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001 - as a worker does
            future.set_exception(exc)
        return future
