"""At least once, with brokers killed at random while messages flow."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, StoredMessage
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster

IN_FLIGHT = 64


async def produce(
    namesrv: str, topic: str, count: int, acknowledged: set[int], marks: dict[int, asyncio.Event]
) -> None:
    """Send every number until it is acknowledged; a number whose answer was lost is sent again."""
    numbers = iter(range(count))

    async def work(producer: aio.Producer) -> None:
        for number in numbers:
            while number not in acknowledged:
                try:
                    await producer.send(Message(topic, b"%d" % number, keys=[str(number)]))
                except ContrailError:
                    await asyncio.sleep(0.05)
                else:
                    acknowledged.add(number)
                    if len(acknowledged) in marks:
                        marks[len(acknowledged)].set()

    async with aio.Producer("chaos", namesrv=namesrv, send_timeout_s=2.0) as producer:
        await asyncio.gather(*(work(producer) for _ in range(IN_FLIGHT)))


async def consume(namesrv: str, topic: str, seen: dict[int, int], complete: asyncio.Event, count: int) -> None:
    """Consumers that live for a while and are replaced, until every number was seen."""

    async def handle(messages: list[StoredMessage]) -> None:
        for message in messages:
            seen[int(message.body)] = seen.get(int(message.body), 0) + 1
        if len(seen) >= count:
            complete.set()

    while not complete.is_set():
        async with aio.PushConsumer(
            "chaos", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, pull_retry_delay_s=0.1
        ) as consumer:
            consumer.subscribe(topic)
            consumer.listen(handle)
            try:
                await asyncio.wait_for(complete.wait(), random.uniform(2, 6))
            except TimeoutError:
                continue


async def run_chaos(cluster: LocalCluster, count: int, kills: int, seed: int) -> tuple[set[int], dict[int, int]]:
    random_ = random.Random(seed)
    topic = f"Chaos_{os.getpid()}_{seed}"
    acknowledged: set[int] = set()
    seen: dict[int, int] = {}
    complete = asyncio.Event()
    marks = {mark: asyncio.Event() for mark in sorted(random_.sample(range(1, count), kills))}
    producing = asyncio.create_task(produce(cluster.namesrv, topic, count, acknowledged, marks))
    consuming = asyncio.create_task(consume(cluster.namesrv, topic, seen, complete, count))
    for mark in marks.values():
        await mark.wait()
        await asyncio.to_thread(cluster.kill_broker, 0)
        await asyncio.to_thread(cluster.restart_broker, 0)
    await producing
    await consuming
    return acknowledged, seen


@pytest.mark.parametrize(
    ("count", "kills"), [(2_000, 2), pytest.param(100_000, 10, marks=pytest.mark.long)], ids=["quick", "full"]
)
def test_what_was_acknowledged_is_delivered_although_brokers_are_killed(count: int, kills: int) -> None:
    seed = 20_261
    began_s = time.monotonic()
    with LocalCluster(processes=True) as cluster:
        acknowledged, seen = asyncio.run(run_chaos(cluster, count, kills, seed))
    missing = acknowledged - seen.keys()
    assert not missing, f"seed {seed}: {len(missing)} acknowledged messages never came, e.g. {sorted(missing)[:5]}"
    repeated = sum(times - 1 for times in seen.values())
    # A kill may repeat what was in flight and what was consumed since the last stored offset (5 s), never more.
    print(f"{count} messages, {kills} kills, {repeated} repeated, {time.monotonic() - began_s:.1f} s")
    assert repeated <= count * 4
