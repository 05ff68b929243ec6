"""Runs the user's listener: plain functions in threads, coroutine functions on the loop.

A call's way through threads costs a hop there and a hop back. Per message that would be 60 us and more
(`run_in_executor`), so calls go through one queue that the threads drain without asking the loop, and finished calls
come back in bunches: one wakeup of the loop for everything that finished since the last one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from contrailmq.client.errors import ClientConfigError, ClientError
from contrailmq.client.results import ConsumeOutcome, ConsumeResult
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import StoredMessage

LISTEN_WITHOUT_PAUSE_S: Final = 0.005  # a coroutine listener that never waits must let others run
SETTLE_CANCELLED_S: Final = 0.1  # a loop that is torn down does not live so long

Answer = ConsumeResult | ConsumeOutcome | None
Listener = Callable[[list[StoredMessage]], Answer | Awaitable[Answer]]


class Call:
    """One call of the listener. Subclasses say whether it is still wanted, and what happens when it is done."""

    __slots__ = ("answer", "error", "messages", "was_run")

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        self.messages = messages
        self.answer: Answer = None
        self.error: BaseException | None = None
        self.was_run = False

    def is_wanted(self) -> bool:
        """Asked right before the listener is called, where it is called."""
        return True

    def done(self) -> None:
        """Told afterwards, on the loop, also when it was not wanted."""

    def outcome(self) -> ConsumeOutcome:
        """What the listener said: nothing is success; an exception, or a value that is not an answer, is a retry."""
        if self.error is not None:
            return RETRY
        answer: object = self.answer  # what it is said to be, or anything: nobody checks user code
        if answer is None:
            return SUCCESS
        if isinstance(answer, ConsumeOutcome):
            return answer
        if isinstance(answer, ConsumeResult):
            return ConsumeOutcome(answer)
        # Neither True nor False may commit: they mean this to one reader and that to another.
        self.error = ClientError(
            f"the listener returned {answer!r}, which counts as RETRY: return None or a ConsumeResult"
        )
        return RETRY


SUCCESS: Final = ConsumeOutcome(ConsumeResult.SUCCESS)
RETRY: Final = ConsumeOutcome(ConsumeResult.RETRY)


def is_coroutine_listener(listener: Listener) -> bool:
    while isinstance(listener, functools.partial):
        listener = listener.func
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004


class ListenerPool:
    """Runs calls, `size` at a time at most. Made and used on the loop."""

    def __init__(self, listener: Listener, size: int) -> None:
        if not callable(listener):
            raise ClientConfigError(f"the listener is {listener!r}: it must be a function of a list of messages")
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._is_coroutine = is_coroutine_listener(listener)
        self._size = size
        self._running = 0
        self._is_refusing = False
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        # coroutine listeners
        self._waiting: deque[Call] = deque()
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        # function listeners
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._finished: deque[Call] = deque()
        self._is_wakeup_due = False
        self._threads: list[threading.Thread] = []
        self.resize(size)

    @property
    def size(self) -> int:
        return self._size

    def resize(self, size: int) -> None:
        """More or fewer listener calls at a time."""
        self._size = size
        if self._is_coroutine:
            while len(self._workers) < size:
                self._workers.append(self._loop.create_task(self._work(), name="contrailmq-listener"))
            self._arrived.set()  # surplus workers end when their call has ended
            return
        # Threads are started when there is work for them (see `submit`); surplus ones are asked to end.
        while len(self._threads) > size:
            self._threads.pop()
            self._calls.put(None)

    def submit(self, call: Call) -> None:
        self._running += 1
        self._idle.clear()
        if self._is_coroutine:
            self._waiting.append(call)
            self._arrived.set()
            return
        if len(self._threads) < min(self._size, self._running):
            name = f"contrailmq-listener-{len(self._threads)}"
            thread = threading.Thread(target=self._run_calls, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._calls.put(call)

    async def run(self, messages: Sequence[StoredMessage], is_wanted: Callable[[], bool]) -> Call:
        """Submit and wait."""
        call = _AwaitedCall(messages, is_wanted, self._loop.create_future())
        self.submit(call)
        await call.finished
        return call

    def refuse_new(self) -> None:
        """Calls that have not begun are not wanted any more: they end without running the listener."""
        self._is_refusing = True

    async def wait_idle(self, wait_s: float) -> bool:
        """Whether every call ended within the time."""
        return await set_within(self._idle, wait_s)

    async def close(self, wait_s: float) -> bool:
        """Wait for running calls, then stop. False when some were still running after `wait_s`."""
        is_idle = await self.wait_idle(wait_s)
        threads = self._threads
        await asyncio.gather(*self.abandon(), return_exceptions=True)
        if is_idle and threads:
            await asyncio.to_thread(_join_all, threads)
        return is_idle

    def abandon(self) -> list[asyncio.Task[None]]:
        """Stop without waiting: coroutine listeners are cancelled, threads end after the call that they are in.

        The tasks that were cancelled are returned. A listener that closes its own pool is not one of them: it ends.
        """
        self._is_refusing = self._is_closing = True
        here = asyncio.current_task()
        others = [worker for worker in self._workers if worker is not here]
        for worker in others:
            worker.cancel()
        for _ in self._threads:
            self._calls.put(None)
        self._workers, self._threads = [], []
        return others

    def _finish(self, call: Call) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        call.done()

    # Coroutine listeners.
    async def _work(self) -> None:
        loop, worker = self._loop, asyncio.current_task()
        assert worker is not None
        rested_s = loop.time()
        while True:
            while not self._waiting and len(self._workers) <= self._size:
                self._arrived.clear()
                await self._arrived.wait()
                rested_s = loop.time()
            if len(self._workers) > self._size:
                self._workers.remove(worker)
                return
            call = self._waiting.popleft()
            if not self._is_refusing and call.is_wanted():
                call.was_run = True
                try:
                    answer = self._listener(list(call.messages))
                    call.answer = await answer  # type: ignore[misc]  # `is_coroutine_listener` said so
                except asyncio.CancelledError as exc:
                    call.error = exc
                    if worker.cancelling():  # the worker itself
                        self._abandon(worker, call)
                        raise
                    # Else the listener's own: what it waited for was cancelled.
                except (Exception, SystemExit) as exc:  # noqa: BLE001 -- user code: any exception means "retry later"
                    call.error = exc
            self._finish(call)
            if self._is_closing:
                return
            if loop.time() - rested_s > LISTEN_WITHOUT_PAUSE_S:
                await asyncio.sleep(0)
                rested_s = loop.time()

    def _abandon(self, worker: asyncio.Task[None], call: Call) -> None:
        """A worker is cancelled by `close`, by a loop that is torn down, or by its listener, which is to be retried."""
        if not self._is_closing:
            self._workers.remove(worker)
            self._loop.call_later(SETTLE_CANCELLED_S, self._settle_cancelled, call)

    def _settle_cancelled(self, call: Call) -> None:
        if not self._is_closing:
            self.resize(self._size)  # another worker in the place of the one that is gone
        self._finish(call)

    # Function listeners, in their threads.
    def _run_calls(self) -> None:
        listener, finished = self._listener, self._finished
        while True:
            call = self._calls.get()
            if call is None:
                return
            if not self._is_refusing and call.is_wanted():
                call.was_run = True
                try:
                    answer = listener(list(call.messages))
                    if answer is not None and inspect.isawaitable(answer):  # the question alone costs a microsecond
                        answer = asyncio.run_coroutine_threadsafe(_await(answer), self._loop).result()
                    call.answer = answer
                except BaseException as exc:  # noqa: BLE001 -- user code: whatever it raises means "retry later"
                    call.error = exc
            finished.append(call)
            # The flag is cleared before the deque is emptied, so a call added now is seen by this wakeup or the next.
            if not self._is_wakeup_due:
                self._is_wakeup_due = True
                try:
                    self._loop.call_soon_threadsafe(self._take_finished)
                except RuntimeError:
                    return  # the loop is closed: this consumer was abandoned, not shut down

    def _take_finished(self) -> None:
        self._is_wakeup_due = False
        finished = self._finished
        while finished:
            self._finish(finished.popleft())


class _AwaitedCall(Call):
    __slots__ = ("_is_wanted", "finished")

    def __init__(
        self, messages: Sequence[StoredMessage], is_wanted: Callable[[], bool], finished: asyncio.Future[None]
    ) -> None:
        super().__init__(messages)
        self._is_wanted = is_wanted
        self.finished = finished

    def is_wanted(self) -> bool:
        return self._is_wanted()

    def done(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


async def _await(answer: Awaitable[Answer]) -> Answer:
    return await answer


def _join_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
