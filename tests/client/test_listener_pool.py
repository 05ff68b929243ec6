"""Listener calls: in threads or on the loop, bounded, each settled once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from contrailmq import ConsumeResult, StoredMessage
from contrailmq.client.errors import ClientConfigError
from contrailmq.client.listener_pool import Call, Listener, ListenerPool
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
    ],
)
def test_nothing_is_success_and_an_exception_is_retry(listener: Listener, result: ConsumeResult) -> None:
    calls = asyncio.run(run_all(listener, 20))
    assert {call.outcome().result for call in calls} == {result}
    assert all(call.was_run for call in calls)


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
        before = threading.active_count()
        pool = ListenerPool(plain, 50)
        await pool.run([received(0)], lambda: True)
        assert threading.active_count() <= before + 2
        await pool.close(1.0)

    asyncio.run(run())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("contrailmq-listener")]


def test_closing_does_not_wait_for_ever_for_a_listener_that_hangs() -> None:
    release = threading.Event()

    async def run() -> bool:
        pool = ListenerPool(lambda _: release.wait(10) and None, 1)
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
