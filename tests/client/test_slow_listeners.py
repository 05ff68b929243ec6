"""Listeners that take minutes: their queue stays theirs, and nothing comes twice because of it."""

from __future__ import annotations

import asyncio

import pytest

import contrailmq.aio as aio
from contrailmq import Admin, ConsumeFromWhere, Message, Producer, StoredMessage
from contrailmq.client.consuming.process_queue import PULL_EXPIRES_AFTER_S
from contrailmq.testing import LocalCluster

from .names import fresh_name
from .waiting import MovedLoop, everybody_rests

COUNT = 5
STEP_S = 10.0


@pytest.fixture
def name(cluster: LocalCluster) -> str:
    """A topic of one queue with some messages."""
    made = fresh_name("Slow")
    with Admin(namesrv=cluster.namesrv) as admin, Producer(made, namesrv=cluster.namesrv) as producer:
        admin.create_topic(made, queues=1)
        for number in range(COUNT):
            producer.send(Message(made, b"%d" % number))
    return made


@pytest.mark.parametrize("why", ["the cache is full", "the consumer is suspended"])
def test_a_queue_that_waits_for_its_listener_is_not_taken_for_stuck(cluster: LocalCluster, name: str, why: str) -> None:
    bodies: list[bytes] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        begun, release, everything = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def listen(messages: list[StoredMessage]) -> None:
            bodies.extend(message.body for message in messages)
            begun.set()
            await release.wait()
            if len(bodies) == COUNT:
                everything.set()

        consumer = aio.PushConsumer(
            name,
            namesrv=cluster.namesrv,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            consume_threads=1,
            pull_threshold_count=1 if why == "the cache is full" else 1000,
        )
        consumer.subscribe(name)
        consumer.listen(listen)
        async with consumer:
            while not begun.is_set():
                loop.now_s += 0.1
                await everybody_rests()
            if why == "the consumer is suspended":
                consumer.suspend()
            end_s = loop.now_s + 2 * PULL_EXPIRES_AFTER_S
            while loop.now_s < end_s:
                loop.now_s += STEP_S
                await everybody_rests()
            release.set()
            await everything.wait()

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(work())
    assert bodies == [b"%d" % number for number in range(COUNT)]
    with Admin(namesrv=cluster.namesrv) as admin:
        assert [row.consumer_offset for row in admin.progress(name, name)] == [COUNT]
