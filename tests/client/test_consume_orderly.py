"""One queue in order: under the lock only, the same message again before any later one, each failure counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from contrailmq import MessageQueue, StoredMessage
from contrailmq.client.consuming.consume_orderly import LOCK_REFUSED_WAIT_S, OrderlyConsumption
from contrailmq.client.consuming.consume_watch import ConsumeWatch
from contrailmq.client.consuming.listener_pool import ListenerPool
from contrailmq.client.consuming.process_queue import LOCK_EXPIRES_AFTER_S, Assignment
from contrailmq.client.offset_store import OffsetTable
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.settings import PushConsumerOptions

from .messages import received
from .waiting import MovedLoop

QUEUE = MessageQueue("Orders", "broker-a", 0)


class Locks:
    """In place of `QueueLocks`: a broker that gives the lock to us or to somebody else."""

    def __init__(self) -> None:
        self.is_ours = True

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        return set(queues) if self.is_ours else set()


class DeadLetters:
    """In place of `SendBack`."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    async def send_to_retry_topic(self, message: ReceivedMessage) -> bool:
        self.offsets.append(message.queue_offset)
        return True


class OrderedQueue:
    """A queue whose listener refuses offset 0 as often as it is told to."""

    def __init__(self, *, refusals: int = 0, max_reconsume_times: int = -1) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        self._loop = loop
        self.seen: list[tuple[int, int]] = []  # offset, reconsume times
        self.table, self.locks, self.dead = OffsetTable(), Locks(), DeadLetters()
        self._left = refusals
        self.assignment = Assignment(QUEUE, 0, loop.time())
        self._pool = ListenerPool(self._listen, 1)
        self._orderly = OrderlyConsumption(
            PushConsumerOptions(
                namesrv="127.0.0.1:1", orderly=True, suspend_s=1.0, max_reconsume_times=max_reconsume_times
            ),
            self._pool,
            self.table,
            self.dead,  # type: ignore[arg-type]
            ConsumeWatch("group", None, None),
            self.locks,  # type: ignore[arg-type]
        )
        self._task = loop.create_task(self._orderly.run_queue(self.assignment))

    async def _listen(self, messages: list[StoredMessage]) -> None:
        (message,) = messages
        self.seen.append((message.queue_offset, message.reconsume_times))
        if message.queue_offset == 0 and self._left:
            self._left -= 1
            raise ValueError("refused")

    async def arrive(self, *offsets: int) -> None:
        self.assignment.cache.put(received(offset) for offset in offsets)
        self.assignment.arrived.set()
        await self.pass_time(0.0)

    async def pass_time(self, seconds: float) -> None:
        self._loop.now_s += seconds
        for _ in range(60):
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._pool.close(0.0)


@pytest.fixture
def runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=MovedLoop)


def test_nothing_is_consumed_while_somebody_else_has_the_lock(runner: asyncio.Runner) -> None:
    async def run() -> None:
        queue = OrderedQueue()
        queue.locks.is_ours = False
        await queue.arrive(0, 1)
        await queue.pass_time(LOCK_REFUSED_WAIT_S)
        assert queue.seen == []
        queue.locks.is_ours = True
        await queue.pass_time(LOCK_REFUSED_WAIT_S)
        assert queue.seen == [(0, 0), (1, 0)]
        assert queue.table.get(QUEUE) == 2
        await queue.close()

    with runner:
        runner.run(run())


def test_a_lock_that_was_not_renewed_is_not_trusted(runner: asyncio.Runner) -> None:
    """The broker gives it away after a minute; half of that is enough to doubt."""

    async def run() -> None:
        queue = OrderedQueue()
        await queue.arrive(0)
        assert queue.seen == [(0, 0)]
        queue.locks.is_ours = False
        await queue.pass_time(LOCK_EXPIRES_AFTER_S + 1)
        await queue.arrive(1)
        assert queue.seen == [(0, 0)]
        await queue.close()

    with runner:
        runner.run(run())


def test_a_refused_message_comes_again_before_any_later_one_and_counts_each_refusal_once(
    runner: asyncio.Runner,
) -> None:
    async def run() -> None:
        queue = OrderedQueue(refusals=2)
        await queue.arrive(0, 1)
        assert queue.seen == [(0, 0)]
        assert queue.table.get(QUEUE) is None
        for _ in range(2):
            await queue.pass_time(1.0)
        assert queue.seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert queue.table.get(QUEUE) == 2
        await queue.close()

    with runner:
        runner.run(run())


def test_after_its_last_retry_a_message_is_given_away_and_the_queue_goes_on(runner: asyncio.Runner) -> None:
    async def run() -> None:
        queue = OrderedQueue(refusals=9, max_reconsume_times=2)
        await queue.arrive(0, 1)
        for _ in range(3):
            await queue.pass_time(1.0)
        assert queue.seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert queue.dead.offsets == [0]
        assert queue.table.get(QUEUE) == 2
        await queue.close()

    with runner:
        runner.run(run())
