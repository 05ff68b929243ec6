"""When a pull consumer's offsets are stored: on a clock that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import contrailmq.aio as aio
from contrailmq import Admin, ConsumeFromWhere, Message, MessageQueue, Producer
from contrailmq.testing import LocalCluster

from .names import fresh_name
from .waiting import MovedLoop, everybody_rests

COUNT = 3


@pytest.fixture
def queue(cluster: LocalCluster) -> MessageQueue:
    """The only queue of a topic, with some messages."""
    name = fresh_name("LiteOffsets")
    with Admin(namesrv=cluster.namesrv) as admin, Producer(name, namesrv=cluster.namesrv) as producer:
        admin.create_topic(name, queues=1)
        queues = {producer.send(Message(name, b"x")).queue for _ in range(COUNT)}
    return queues.pop()


def run(work: Callable[[MovedLoop], Awaitable[None]]) -> None:
    async def on_moved_clock() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        await work(loop)

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(on_moved_clock())


async def pass_seconds(loop: MovedLoop, seconds: int) -> None:
    for _ in range(seconds):
        loop.now_s += 1.0
        await everybody_rests()


async def poll_all(loop: MovedLoop, consumer: aio.LitePullConsumer) -> None:
    count = 0
    while count < COUNT:
        loop.now_s += 0.1
        await everybody_rests()
        count += len(await consumer.poll(0))


def consumer_of(cluster: LocalCluster, queue: MessageQueue, *, auto_commit: bool) -> aio.LitePullConsumer:
    return aio.LitePullConsumer(
        queue.topic, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=auto_commit
    )


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_what_was_polled_is_committed_within_seconds_of_the_next_poll(
    cluster: LocalCluster, queue: MessageQueue, way: str
) -> None:
    async def work(loop: MovedLoop) -> None:
        consumer = consumer_of(cluster, queue, auto_commit=True)
        if way == "subscribe":
            consumer.subscribe(queue.topic)
        else:
            await consumer.assign([queue])
        async with consumer:
            await poll_all(loop, consumer)
            assert await consumer.committed(queue) in (-1, 0)
            await pass_seconds(loop, 6)
            assert await consumer.poll(0) == []
            await pass_seconds(loop, 6)
            assert await consumer.committed(queue) == COUNT

    run(work)


def test_without_auto_commit_a_seek_moves_what_is_read_and_not_what_is_stored(
    cluster: LocalCluster, queue: MessageQueue
) -> None:
    async def work(loop: MovedLoop) -> None:
        consumer = consumer_of(cluster, queue, auto_commit=False)
        consumer.subscribe(queue.topic)
        async with consumer:
            await poll_all(loop, consumer)
            await consumer.commit()
            await consumer.seek_to_begin(queue)
            await pass_seconds(loop, 12)
            assert await consumer.committed(queue) == COUNT
            await poll_all(loop, consumer)
            await consumer.seek(queue, 1)
            await consumer.commit()
            assert await consumer.committed(queue) == 1
            await consumer.seek_to_begin(queue)
        with Admin(namesrv=cluster.namesrv) as admin:
            assert await asyncio.to_thread(admin.offset, queue.topic, queue) == 1

    run(work)
