"""One blocking job at a time, on a worker thread, for a service that lives on the loop.

A service starts a job in one tick and looks in a later one whether it is done; what the job raised is raised there,
in the service's own tick, where the supervisor sees it. Tests pass an executor that runs at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future


class WorkerJob:
    """Owner: one service."""

    def __init__(self, worker: Executor) -> None:
        self._worker = worker
        self._running: Future[None] | None = None
        self._then: Callable[[], None] | None = None

    def start(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Run `work` on the worker; `then` is called by the `poll` that finds it done."""
        assert self._running is None
        self._running = self._worker.submit(work)
        self._then = then

    def poll(self) -> bool:
        """Whether a new job may be started. Raises what the last one raised."""
        if self._running is None:
            return True
        if not self._running.done():
            return False
        self._finish()
        return True

    def wait(self) -> None:
        """Until no job is running. Blocks: for the end of a service."""
        if self._running is not None:
            self._finish()

    def _finish(self) -> None:
        assert self._running is not None
        running, then = self._running, self._then
        self._running = self._then = None
        running.result()
        if then is not None:
            then()
