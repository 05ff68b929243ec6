"""Background work that never disappears silently.

A `Service` has a name, an interval and `tick(now_ms)`; the supervisor calls it for ever, with the steady time of
store/base/store_clock.py. A tick that raises is logged
with the service's name and trace and tried again after a pause; one that fails ten times in a row stops the broker,
because a broker without its delay delivery or its offset saving is worse than none. Long-running coroutines are
watched in the same way. A store that takes no more writes is not such a failure: reading from it goes on, so what
would write to it stops, and that is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from contrailmq.store import StoreReadOnlyError

log = logging.getLogger("contrailmq.broker")

FAILURES_MAX: Final = 10
PAUSE_S: Final = 1.0
HEALTHY_S: Final = 60.0  # what ran this long before it failed starts counting again


class Service(Protocol):
    """Work that is due now and then. Runs on the loop and must not block it."""

    name: str
    interval_ms: int

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def tick(self, now_ms: int) -> None: ...


class Supervisor:
    """Owner: BrokerServer. `gave_up(name)` is called when a task cannot be kept alive."""

    def __init__(self, steady_ms: Callable[[], int], gave_up: Callable[[str], None]) -> None:
        self._steady_ms = steady_ms
        self._gave_up = gave_up
        self._services: list[Service] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, service: Service) -> None:
        """Start the service and call it from now on."""
        service.start()
        self._services.append(service)
        self.watch(service.name, lambda: self._ticks(service))

    def every(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        """Call a plain function at an interval."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                work()

        self.watch(name, repeat)

    def watch(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Keep a coroutine running."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep(name, work), name=name))

    async def abandon(self) -> None:
        """End the tasks and leave the services as they are, as a crash does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def stop(self) -> None:
        """End the tasks and stop every service; what one of them raised is raised after the last."""
        await self.abandon()
        with contextlib.ExitStack() as acts:
            for service in self._services:
                acts.callback(service.stop)
            self._services.clear()

    async def _ticks(self, service: Service) -> None:
        while True:
            await asyncio.sleep(service.interval_ms / 1000)
            service.tick(self._steady_ms())

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        stands_still = False
        loop = asyncio.get_running_loop()
        while failures < FAILURES_MAX:
            began = loop.time()
            try:
                await work()
                return
            except StoreReadOnlyError as exc:  # for good: a failed sync, or files that are gone
                if not stands_still:
                    log.error("background task %s has stopped until the next start: %s", name, exc)
                stands_still = True
            except Exception:  # whatever a service raises: it is logged and started again, or stops the broker
                if loop.time() - began > HEALTHY_S:
                    failures = 0
                failures += 1
                log.exception("background task %s failed (%d of %d times in a row)", name, failures, FAILURES_MAX)
            await asyncio.sleep(PAUSE_S)
        log.critical("background task %s cannot be kept alive: the broker stops", name)
        self._gave_up(name)
