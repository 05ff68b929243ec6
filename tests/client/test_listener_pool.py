"""Listener calls: in threads or on the loop, bounded, each settled once."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from contrailmq import ConsumeResult, StoredMessage
from contrailmq.client.consuming.listener_pool import Call, Listener, ListenerPool
from contrailmq.client.errors import ClientConfigError
from contrailmq.client.results import ConsumeOutcome

from .messages import received


async def run_all(listener: Listener, count: int, *, size: int = 4) -> list[Call]:
    pool = ListenerPool(listener, size)
    calls = await asyncio.gather(*(pool.run([received(n)], lambda: True) for n in range(count)))
    assert await pool.close(5.0)
    return calls


def plain(messages: list[StoredMessage]) -> None:
    """Succeeds by saying nothing."""


async def coroutine(messages: list[StoredMessage]) -> None:
    await asyncio.sleep(0)


def raising(messages: list[StoredMessage]) -> None:
    raise KeyError("broken")


async def raising_coroutine(messages: list[StoredMessage]) -> None:
    raise KeyError("broken")


async def cancelled(messages: list[StoredMessage]) -> None:
    """Waits for something that somebody else cancels."""
    waited_for = asyncio.get_running_loop().create_future()
    waited_for.cancel()
    await waited_for


async def cancelling_itself(messages: list[StoredMessage]) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def exiting_coroutine(messages: list[StoredMessage]) -> None:
    sys.exit("enough")


def explicit(messages: list[StoredMessage]) -> ConsumeOutcome:
    return ConsumeResult.SUCCESS.with_details(acknowledged=1, delay_level=5)


@pytest.mark.parametrize(
    ("listener", "result"),
    [
        (plain, ConsumeResult.SUCCESS),
        (coroutine, ConsumeResult.SUCCESS),
        (raising, ConsumeResult.RETRY),
        (raising_coroutine, ConsumeResult.RETRY),
        (lambda _: ConsumeResult.RETRY, ConsumeResult.RETRY),
        (lambda messages: coroutine(messages), ConsumeResult.SUCCESS),
        (explicit, ConsumeResult.SUCCESS),
        (cancelled, ConsumeResult.RETRY),
        (cancelling_itself, ConsumeResult.RETRY),
        (lambda messages: cancelled(messages), ConsumeResult.RETRY),
        (exiting_coroutine, ConsumeResult.RETRY),
        (lambda _: sys.exit("enough"), ConsumeResult.RETRY),
    ],
)
def test_nothing_is_success_and_an_exception_is_retry(listener: Listener, result: ConsumeResult) -> None:
    calls = asyncio.run(run_all(listener, 20))
    assert {call.outcome().result for call in calls} == {result}
    assert all(call.was_run for call in calls)


@pytest.mark.parametrize("answer", [True, False, 0, "SUCCESS", [ConsumeResult.SUCCESS]])
def test_an_answer_that_is_none_is_retry_and_the_reason_is_told(answer: object) -> None:
    (call,) = asyncio.run(run_all(lambda _: answer, 1))  # type: ignore[arg-type,return-value]
    assert call.outcome().result is ConsumeResult.RETRY
    assert repr(answer) in str(call.error)
    assert "ConsumeResult" in str(call.error)


def test_a_pool_that_gets_smaller_lets_running_calls_end() -> None:
    async def run() -> tuple[int, int]:
        release, begun = asyncio.Event(), 0

        async def listen(messages: list[StoredMessage]) -> None:
            nonlocal begun
            begun += 1
            await release.wait()

        pool = ListenerPool(listen, 3)
        calls = [asyncio.ensure_future(pool.run([received(n)], lambda: True)) for n in range(6)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pool.resize(1)
        release.set()
        ended = await asyncio.gather(*calls)
        release.clear()
        before = begun
        more = [asyncio.ensure_future(pool.run([received(n)], lambda: True)) for n in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        at_a_time = begun - before
        release.set()
        await asyncio.gather(*more)
        assert await pool.close(1.0)
        return len([call for call in ended if call.was_run and call.error is None]), at_a_time

    assert asyncio.run(asyncio.wait_for(run(), 120)) == (6, 1)


def test_a_loop_that_is_torn_down_ends_while_a_listener_runs() -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def listen(messages: list[StoredMessage]) -> None:
            begun.set()
            await asyncio.Event().wait()

        pool = ListenerPool(listen, 2)
        pool.submit(Call([received(0)]))
        await begun.wait()

    # Without `close`: asyncio cancels what is left and waits for it.
    ended = threading.Event()
    threading.Thread(target=lambda: (asyncio.run(run()), ended.set()), daemon=True).start()
    assert ended.wait(120)


def test_no_more_calls_run_at_a_time_than_the_pool_is_large() -> None:
    running = most = 0
    lock = threading.Lock()
    tick = threading.Event()

    def count(messages: list[StoredMessage]) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        tick.wait(0.002)
        with lock:
            running -= 1

    asyncio.run(run_all(count, 40, size=3))
    assert most == 3


def test_calls_that_are_no_longer_wanted_are_not_run() -> None:
    async def run() -> Call:
        pool = ListenerPool(plain, 1)
        call = await pool.run([received(0)], lambda: False)
        await pool.close(1.0)
        return call

    assert not asyncio.run(run()).was_run


def test_threads_start_when_needed_and_end_with_the_pool() -> None:
    async def run() -> None:
        before = set(threading.enumerate())
        pool = ListenerPool(plain, 50)
        await pool.run([received(0)], lambda: True)
        assert 1 <= len(listeners() - before) <= 2
        await pool.close(1.0)
        assert not listeners() - before

    def listeners() -> set[threading.Thread]:
        """Other tests' clusters have threads too, and those of another pool may be ending."""
        return {thread for thread in threading.enumerate() if thread.name.startswith("contrailmq-listener")}

    asyncio.run(run())


def test_closing_does_not_wait_for_ever_for_a_listener_that_hangs() -> None:
    release = threading.Event()

    async def run() -> bool:
        pool = ListenerPool(lambda _: release.wait(120) and None, 1)
        pool.submit(Call([received(0)]))
        return await pool.close(0.05)

    assert asyncio.run(run()) is False
    release.set()


def test_a_coroutine_listener_that_never_waits_lets_others_run() -> None:
    async def run() -> int:
        ticks = 0

        async def busy(messages: list[StoredMessage]) -> None:
            end = asyncio.get_running_loop().time() + 0.002
            while asyncio.get_running_loop().time() < end:
                pass

        async def clock() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        pool = ListenerPool(busy, 1)
        task = asyncio.create_task(clock())
        for n in range(20):
            pool.submit(Call([received(n)]))
        assert await pool.wait_idle(10.0)
        task.cancel()
        await pool.close(1.0)
        return ticks

    assert asyncio.run(run()) >= 5


def test_what_is_not_callable_is_refused() -> None:
    async def run() -> None:
        ListenerPool("handle", 1)  # type: ignore[arg-type]

    with pytest.raises(ClientConfigError, match="function of a list"):
        asyncio.run(run())
