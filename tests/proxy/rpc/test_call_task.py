"""A call's coroutine begins at once, and is the current task of all that it awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from contrailmq.proxy.rpc.call_task import CallTask
from contrailmq.wire.transport import new_event_loop


class Ended:
    def __init__(self) -> None:
        self.results: list[tuple[Any, BaseException | None]] = []
        self.event = asyncio.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.results.append((result, error))
        self.event.set()


def begun(work: Coroutine[Any, Any, Any]) -> tuple[CallTask, Ended]:
    ended = Ended()
    task = CallTask(asyncio.get_running_loop(), work, ended)
    task.start()
    return task, ended


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[None, None, None]], None]:
    def runner(main: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main, 60))

    return runner


Run = Callable[[Coroutine[None, None, None]], None]


def test_what_need_not_wait_ends_before_start_returns(run: Run) -> None:
    async def work() -> int:
        return 7

    async def main() -> None:
        task, ended = begun(work())
        assert ended.results == [(7, None)]
        assert task.done()
        assert not task.cancel()

    run(main())


def test_it_is_the_current_task_and_the_other_is_again_afterwards(run: Run) -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    async def main() -> None:
        outer = asyncio.current_task()
        task, ended = begun(work())
        assert asyncio.current_task() is outer
        await ended.event.wait()
        assert seen == [task, task]

    run(main())


def test_what_asyncio_offers_works_inside(run: Run) -> None:
    async def slow(result: int) -> int:
        await asyncio.sleep(0.001)
        return result

    async def work() -> list[object]:
        found: list[object] = [await asyncio.gather(slow(1), slow(2)), await asyncio.shield(slow(3))]
        found.append(await asyncio.wait_for(slow(4), 10))
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            found.append("timeout")
        async with asyncio.TaskGroup() as group:
            made = group.create_task(slow(5))
        lock = asyncio.Lock()
        async with lock:
            found.append(made.result())
        return found

    async def main() -> None:
        _, ended = begun(work())
        await ended.event.wait()
        assert ended.results == [([[1, 2], 3, 4, "timeout", 5], None)]

    run(main())


def test_an_exception_of_what_it_awaits_reaches_it_and_its_own_reaches_the_end(run: Run) -> None:
    async def work(future: asyncio.Future[None]) -> None:
        try:
            await future
        except ValueError as exc:
            raise KeyError(str(exc)) from None

    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        _, ended = begun(work(future))
        future.set_exception(ValueError("no"))
        await ended.event.wait()
        [(_, error)] = ended.results
        assert isinstance(error, KeyError)

    run(main())


@pytest.mark.parametrize("way", ["a future", "a turn", "a task"])
def test_it_is_cancelled_where_it_waits_and_may_clean_up(run: Run, way: str) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            if way == "a future":
                await asyncio.Event().wait()
            elif way == "a turn":
                await asyncio.sleep(0)
            else:
                await asyncio.create_task(asyncio.sleep(100))
        finally:
            await asyncio.sleep(0.001)
            cleaned.append(way)

    async def main() -> None:
        task, ended = begun(work())
        assert task.cancel()
        assert task.cancelling() == 1
        await ended.event.wait()
        assert isinstance(ended.results[0][1], asyncio.CancelledError)
        assert cleaned == [way]

    run(main())


def test_one_that_takes_its_cancellation_goes_on(run: Run) -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    async def main() -> None:
        task, ended = begun(work())
        task.cancel()
        await ended.event.wait()
        assert ended.results == [("done", None)]

    run(main())


def test_one_that_is_cancelled_while_it_runs_hears_it_at_its_next_wait(run: Run) -> None:
    async def main() -> None:
        reached: list[int] = []

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            reached.append(1)
            await asyncio.Event().wait()
            reached.append(2)

        _, ended = begun(work())
        await ended.event.wait()
        assert reached == [1]
        assert isinstance(ended.results[0][1], asyncio.CancelledError)

    run(main())


def test_what_is_no_future_is_said(run: Run) -> None:
    class Odd:
        def __await__(self) -> Any:
            yield 42

    async def main() -> None:
        async def work() -> None:
            await Odd()

        _, ended = begun(work())
        await ended.event.wait()
        assert "awaits 42" in str(ended.results[0][1])

    run(main())
