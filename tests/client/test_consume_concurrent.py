"""What becomes of messages that a concurrent listener refuses, with a broker that can or cannot take them back."""

from __future__ import annotations

import asyncio

import pytest

from contrailmq import MessageQueue, StoredMessage
from contrailmq.client.consuming.consume_concurrent import LOCAL_RETRY_S, ConcurrentConsumption
from contrailmq.client.consuming.consume_watch import ConsumeWatch
from contrailmq.client.consuming.listener_pool import ListenerPool
from contrailmq.client.consuming.process_queue import Assignment
from contrailmq.client.offset_store import OffsetTable
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.settings import PushConsumerOptions

from .messages import received
from .waiting import MovedLoop

QUEUE = MessageQueue("Orders", "broker-a", 0)


class HandedBack:
    """In place of `SendBack`: a broker that takes messages back, or is gone."""

    def __init__(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self.offsets: list[int] = []

    async def send_back(self, message: ReceivedMessage, *, topic: str, delay_level: int = 0) -> bool:
        assert topic == QUEUE.topic
        self.offsets.append(message.queue_offset)
        return self.is_up


class Consumption:
    """Three pulled messages; the listener refuses the one of offset 1 as often as it is told to."""

    def __init__(self, back: HandedBack, *, refusals: int) -> None:
        self.seen: list[tuple[int, int]] = []  # offset, reconsume times
        self.table = OffsetTable()
        self.assignment = Assignment(QUEUE, 0, 0.0)
        self._left = refusals
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool = ListenerPool(self._listen, 1)
        self._concurrent = ConcurrentConsumption(
            PushConsumerOptions(namesrv="127.0.0.1:1"),
            self._pool,
            self.table,
            back,  # type: ignore[arg-type]
            ConsumeWatch("group", None, None),
            self._spawn,
        )
        messages = [received(offset) for offset in range(3)]
        self.assignment.cache.put(messages)
        self._concurrent.submit(self.assignment, messages)

    async def _listen(self, messages: list[StoredMessage]) -> None:
        (message,) = messages
        self.seen.append((message.queue_offset, message.reconsume_times))
        if message.queue_offset == 1 and self._left:
            self._left -= 1
            raise ValueError("refused")

    def _spawn(self, work: object, name: str) -> asyncio.Task[None]:
        assert asyncio.iscoroutine(work)
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        return task

    async def rest(self) -> None:
        """Let everything happen that happens without time passing."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        loop.now_s += seconds
        await self.rest()

    async def close(self) -> None:
        await self._pool.close(0.0)
        await self._concurrent.close()


@pytest.fixture
def runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=MovedLoop)


def test_what_is_handed_back_leaves_the_cache_and_is_not_tried_here_again(runner: asyncio.Runner) -> None:
    async def run() -> None:
        back = HandedBack(is_up=True)
        consumption = Consumption(back, refusals=1)
        await consumption.rest()
        await consumption.pass_time(10 * LOCAL_RETRY_S)
        assert consumption.seen == [(0, 0), (1, 0), (2, 0)]
        assert back.offsets == [1]
        assert consumption.table.get(QUEUE) == 3
        await consumption.close()

    with runner:
        runner.run(run())


def test_what_cannot_be_handed_back_is_kept_uncommitted_and_tried_here_with_its_count(runner: asyncio.Runner) -> None:
    """The listener refuses twice while no broker can be reached: each refusal counts once."""

    async def run() -> None:
        back = HandedBack(is_up=False)
        consumption = Consumption(back, refusals=2)
        await consumption.rest()
        assert consumption.table.get(QUEUE) == 1  # a crash now repeats it
        assert consumption.assignment.cache.count == 1
        for _ in range(2):
            await consumption.pass_time(LOCAL_RETRY_S)
        assert [count for offset, count in consumption.seen if offset == 1] == [0, 1, 2]
        assert consumption.table.get(QUEUE) == 3
        assert consumption.assignment.cache.count == 0
        await consumption.close()

    with runner:
        runner.run(run())


def test_a_queue_that_went_to_another_member_is_not_tried_here(runner: asyncio.Runner) -> None:
    async def run() -> None:
        consumption = Consumption(HandedBack(is_up=False), refusals=1)
        await consumption.rest()
        consumption.assignment.cache.is_dropped = True
        await consumption.pass_time(LOCAL_RETRY_S)
        assert [offset for offset, _ in consumption.seen] == [0, 1, 2]
        assert consumption.table.get(QUEUE) == 1
        await consumption.close()

    with runner:
        runner.run(run())
