"""`python -m bench pop`: POP and acknowledgement over remoting, ours beside Apache's, in turns in one run.

A topic is filled with messages of 1 KiB. Then 64 consumers on one connection each pop a batch, acknowledge each message
of it by a request of its own, and go on, for some seconds; every round has a group of its own, which begins at the
first message. The rate counts acknowledged messages; p50 and p99 are those of a pop and of an acknowledgement. The CPU
is the broker's, for one message popped and acknowledged.

The load is Python, on the same wire code as the clients: on two cores it takes more than half of the machine, so the
CPU per message is the figure that says most about the brokers.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import compare
from bench.apache_programs import cpu_seconds
from bench.mixed import NotDelivered, Settings, both_brokers, by_turns
from contrailmq import aio
from contrailmq.client.consuming import popping
from contrailmq.client.consuming.pop_clock import PopClock
from contrailmq.client.consuming.popping import PopRequest
from contrailmq.client.consuming.subscription import make_subscription
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import Message, MessageQueue

CONSUMERS: Final = 64
BODY_BYTES: Final = 1024
TOPIC: Final = "bench_pop"
SEND_BATCH: Final = 32
INVISIBLE_S: Final = 60.0
BATCHES: Final = (1, 16)
_groups = itertools.count()


class Shape(NamedTuple):
    """Messages of one pop, and for how long."""

    batch: int
    seconds: float


def measure_pop(settings: Settings, *, messages: int) -> dict[str, object]:
    """Name -> ours / the other's (ratio)."""
    figures: dict[str, object] = {"rounds": f"{settings.rounds}, in turns", "messages there": messages}
    with (
        tempfile.TemporaryDirectory(dir=settings.directory) as temporary,
        both_brokers(settings, Path(temporary)) as two,
    ):
        for system in two:
            asyncio.run(_fill(system, messages))
        for batch in BATCHES:
            shape = Shape(batch, settings.seconds)
            for system in two:
                _round(system, Shape(batch, settings.warm_seconds))
            taken = by_turns(two, settings.rounds, partial(_round, shape=shape))
            for name in ("messages/s", "pop p50 ms", "pop p99 ms", "ack p50 ms", "ack p99 ms", "broker CPU us/message"):
                ours, theirs = (statistics.median(one[name] for one in taken[system.name]) for system in two)
                ratio = f" ({ours / theirs:.2f})" if theirs else ""
                figures[f"pop of {batch}: {name}"] = f"{ours:.4g} / {theirs:.4g}{ratio}"
    return figures


async def _fill(system: compare.System, messages: int) -> None:
    async with aio.Producer("bench", namesrv=f"127.0.0.1:{system.namesrv_port}", send_timeout_s=30.0) as producer:
        body = b"x" * BODY_BYTES
        await producer.send(Message(TOPIC, body))
        left = iter(range(-(-messages // SEND_BATCH)))

        async def work() -> None:
            for _ in left:
                await producer.send_batch([Message(TOPIC, body) for _ in range(SEND_BATCH)])

        await asyncio.gather(*(work() for _ in range(8)))


def _round(system: compare.System, shape: Shape) -> dict[str, float]:
    cpu_s = _cpu_s(system)
    found = asyncio.run(_consume(system, shape))
    found["broker CPU us/message"] = (_cpu_s(system) - cpu_s) / max(found["count"], 1) * 1e6
    return found


def _cpu_s(system: compare.System) -> float:
    return float(sum(cpu_seconds(pid) for pid in system.pids()))


async def _consume(system: compare.System, shape: Shape) -> dict[str, float]:
    async with aio.SimpleConsumer("bench", namesrv=f"127.0.0.1:{system.namesrv_port}") as client:
        instance = client._running()
        (broker,) = (await instance.route(TOPIC)).brokers
        load = _Load(instance, MessageQueue(TOPIC, broker.name, popping.ANY_QUEUE), shape)
        began_s = time.perf_counter()
        await asyncio.gather(*(load.work() for _ in range(CONSUMERS)))
        took_s = time.perf_counter() - began_s
    if not load.count:
        raise NotDelivered(f"{system.name}: nothing was popped: more --messages are needed")
    return {"count": load.count, "messages/s": load.count / took_s, **load.times("pop"), **load.times("ack")}


class _Load:
    """64 consumers of one group."""

    def __init__(self, instance: ClientInstance, queue: MessageQueue, shape: Shape) -> None:
        self._instance, self._queue, self._shape = instance, queue, shape
        self._group = f"bench_pop_{next(_groups)}"
        self._clock = PopClock()
        self._until_s = time.perf_counter() + shape.seconds
        self._times: dict[str, list[float]] = {"pop": [], "ack": []}
        self.count = 0

    async def work(self) -> None:
        request = PopRequest(
            self._queue,
            make_subscription(TOPIC, "*", version=0),
            self._shape.batch,
            INVISIBLE_S,
            poll_s=0.0,
            timeout_s=30.0,
            is_from_first=True,
        )
        clock = time.perf_counter
        while clock() < self._until_s:
            began_s = clock()
            popped = await popping.pop(self._instance, self._group, request, self._clock)
            self._times["pop"].append(clock() - began_s)
            for message in popped.messages:
                began_s = clock()
                await popping.acknowledge(self._instance, self._group, message)
                self._times["ack"].append(clock() - began_s)
                self.count += 1

    def times(self, name: str) -> dict[str, float]:
        taken = sorted(self._times[name])
        return {
            f"{name} p50 ms": taken[len(taken) // 2] * 1000,
            f"{name} p99 ms": taken[len(taken) * 99 // 100] * 1000,
        }
