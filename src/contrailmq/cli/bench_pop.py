"""`contrailmq bench pop`: what the two consumers by POP cost, against a broker process that is started or given."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Final

from contrailmq import ConsumeFromWhere, Message, Producer, StoredMessage, aio
from contrailmq.cli.bench_clients import BATCH, Stopwatch, cluster_or, fresh_topic, surroundings

IN_FLIGHT: Final = 64
INVISIBLE_S: Final = 60.0
_numbers = itertools.count()


def measure_pop(namesrv: str | None, *, count: int, body_bytes: int) -> dict[str, object]:
    """A push consumer that pops, and 64 receives of a simple consumer in flight, each message acknowledged."""
    figures: dict[str, object] = {"messages": count, "body bytes": body_bytes} | surroundings()
    with cluster_or(namesrv) as address:
        topic = fresh_topic()
        with Producer("bench", namesrv=address) as producer:
            for _ in range(-(-count // BATCH)):
                producer.send_batch([Message(topic, b"x" * body_bytes) for _ in range(BATCH)])
        figures |= asyncio.run(_push(address, topic, count))
        figures |= asyncio.run(_receive(address, topic, count))
    return figures


async def _push(namesrv: str, topic: str, count: int) -> dict[str, object]:
    everything, watch, got = asyncio.Event(), Stopwatch(), 0

    async def handle(messages: list[StoredMessage]) -> None:
        nonlocal got
        if not got:
            watch.start()
        got += len(messages)
        if got >= count:
            everything.set()

    consumer = aio.PushConsumer(_group(), namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, pop=True)
    consumer.subscribe(topic)
    consumer.listen(handle)
    async with consumer:
        await everything.wait()
        return watch.figures("push with pop, async def", got)


async def _receive(namesrv: str, topic: str, count: int) -> dict[str, object]:
    done = 0
    async with aio.SimpleConsumer(_group(), namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.subscribe(topic)
        watch = Stopwatch()

        async def work() -> None:
            nonlocal done
            while done < count:
                messages = await consumer.receive(16, INVISIBLE_S, 1.0)
                done += len(messages)
                for message in messages:
                    await consumer.ack(message)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return watch.figures(f"simple: receive and ack, {IN_FLIGHT} in flight", done)


def _group() -> str:
    return f"bench_{os.getpid()}_{next(_numbers)}"
