"""The one background thread on whose event loop all blocking clients of a process run.

It starts with the first client and ends with the last, so a program that shut its clients down has no thread of ours
left. Any number of threads may call in. Two callers cannot: a forked child (the thread was not copied into it; clients
must be made after the fork) and the loop's own thread (it would wait for itself): both get an error that says so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Generic, TypeVar

from contrailmq.client.errors import ClientStateError
from contrailmq.wire.transport import new_event_loop

T = TypeVar("T")


class LoopThread:
    """Get it with `acquire`, leave it with `release`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.owners = 0
        self._gate = threading.RLock()  # a signal handler may shut a client down in the middle of a call
        self._is_ending = False
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="contrailmq-loop", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        global _shared
        with _lock:
            if _shared is None or _shared.pid != os.getpid():
                _shared = cls()
            _shared.owners += 1
            return _shared

    def release(self) -> None:
        """The last owner stops the thread and waits for its end."""
        global _shared
        with _lock:
            self.owners -= 1
            if self.owners > 0 or self.pid != os.getpid():
                return
            if _shared is self:
                _shared = None
        with self._gate:
            self._is_ending = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on it."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        """Start on the loop; the future may be waited for in any thread."""
        if os.getpid() != self.pid:
            work.close()
            raise ClientStateError(
                f"this client was made in process {self.pid} and is used in its fork {os.getpid()}: "
                "make clients after the fork"
            )
        with self._gate:
            self._check_not_ending(work)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run on the loop and wait here. Interrupting the wait cancels the work."""
        if threading.current_thread() is self._thread:
            work.close()
            self.check_not_here()
        if os.getpid() != self.pid:
            self.submit(work)  # raises
        call = _Call(work)
        with self._gate:  # what is begun before the end is ended by it; nothing is begun after it, and waited for
            self._check_not_ending(work)
            self._loop.call_soon_threadsafe(call.begin)
        try:
            call.ended.acquire()
        except BaseException:  # Ctrl-C: nobody waits any more, so the call ends on its loop
            self._loop.call_soon_threadsafe(call.cancel)
            raise
        assert call.task is not None
        try:
            return call.task.result()
        except asyncio.CancelledError:
            raise ClientStateError("the client was shut down while this call waited") from None

    def check_not_here(self) -> None:
        if threading.current_thread() is self._thread:
            raise ClientStateError(
                "a blocking call was made on the client's own loop, which would wait for itself: "
                "call it from a plain function listener, or use contrailmq.aio in coroutines"
            )

    def _check_not_ending(self, work: Coroutine[object, object, T]) -> None:
        if self._is_ending:
            work.close()
            raise ClientStateError("the client was shut down by another thread: make a new one")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


class _Call(Generic[T]):
    """One blocking call. A lock that the loop releases: `run_coroutine_threadsafe` costs half as much again."""

    __slots__ = ("_work", "ended", "task")

    def __init__(self, work: Coroutine[object, object, T]) -> None:
        self._work = work
        self.task: asyncio.Task[T] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def begin(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._work)
        self.task.add_done_callback(lambda _: self.ended.release())

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


_lock = threading.Lock()
_shared: LoopThread | None = None


def _after_fork() -> None:
    """A fork may have happened while another thread held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
