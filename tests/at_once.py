"""Executors for tests on a fake clock."""

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


class Later(Executor):
    """A worker that does nothing until it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs
        future: Future[Any] = Future()
        self.jobs.append((future, fn, args))
        return future

    def run(self) -> None:
        """Everything that was asked for so far."""
        jobs, self.jobs = self.jobs, []
        for future, fn, args in jobs:
            future.set_result(fn(*args))
