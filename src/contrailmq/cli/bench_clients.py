"""What sending and receiving cost a client: messages a second and CPU per message, through a real broker.

Without `--namesrv` a broker is started as a process of its own, so the CPU counted here is the client's alone. The
first figure of each run is the time of a fixed piece of Python: machines, and busy moments of one machine, are
compared by dividing by it. What is not shown: networks (loopback), replication, disks (the broker flushes in the
background).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, LitePullConsumer, Message, Producer, StoredMessage
from contrailmq._compiled import build
from contrailmq.testing import LocalCluster
from contrailmq.wire.transport import new_event_loop

IN_FLIGHT: Final = 256
BATCH: Final = 32
_numbers = itertools.count()


class Stopwatch:
    """Wall and CPU time from `start` on."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def figures(self, name: str, count: int) -> dict[str, object]:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return {f"{name}, messages/s": round(count / wall_s), f"{name}, CPU us/message": round(cpu_s / count * 1e6, 1)}


@contextmanager
def cluster_or(namesrv: str | None) -> Iterator[str]:
    if namesrv:
        yield namesrv
        return
    with LocalCluster(processes=True) as cluster:
        yield cluster.namesrv


def measure_send(namesrv: str | None, *, count: int, body_bytes: int) -> dict[str, object]:
    """Many in flight on asyncio, alone and in batches; one by one and in batches from a thread that waits."""
    figures = _settings(count, body_bytes)
    with cluster_or(namesrv) as address:
        topic = fresh_topic()
        figures |= _on_new_loop(_send_in_flight(address, topic, count, body_bytes))
        with Producer("bench", namesrv=address) as producer:
            body = b"x" * body_bytes
            producer.send(Message(topic, body))
            watch, single = Stopwatch(), max(1, count // 5)
            for _ in range(single):
                producer.send(Message(topic, body))
            figures |= watch.figures("blocking send", single)
            watch.start()
            for _ in range(count // BATCH):
                producer.send_batch([Message(topic, body) for _ in range(BATCH)])
            figures |= watch.figures(f"send_batch of {BATCH}", count // BATCH * BATCH)
        figures |= _on_new_loop(_batches_in_flight(address, topic, count, body_bytes))
    return figures


def measure_pull(namesrv: str | None, *, count: int, body_bytes: int) -> dict[str, object]:
    """A push consumer with a trivial listener, `def` and `async def`; a lite pull consumer's poll."""
    figures = _settings(count, body_bytes)
    with cluster_or(namesrv) as address:
        topic = fresh_topic()
        with Producer("bench", namesrv=address) as producer:
            for _ in range(-(-count // BATCH)):
                producer.send_batch([Message(topic, b"x" * body_bytes) for _ in range(BATCH)])
        figures |= _on_new_loop(_push(address, topic, count, is_coroutine=False))
        figures |= _on_new_loop(_push(address, topic, count, is_coroutine=True))
        figures |= _poll(address, topic, count)
    return figures


async def _send_in_flight(namesrv: str, topic: str, count: int, body_bytes: int) -> dict[str, object]:
    body = b"x" * body_bytes
    async with aio.Producer("bench", namesrv=namesrv) as producer:
        await producer.send(Message(topic, body))

        async def work() -> None:
            for _ in range(count // IN_FLIGHT):
                await producer.send(Message(topic, body))

        watch = Stopwatch()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return watch.figures(f"aio send, {IN_FLIGHT} in flight", count // IN_FLIGHT * IN_FLIGHT)


async def _batches_in_flight(namesrv: str, topic: str, count: int, body_bytes: int) -> dict[str, object]:
    """As many messages in flight as above, in batches."""
    body, workers = b"x" * body_bytes, IN_FLIGHT // BATCH
    async with aio.Producer("bench", namesrv=namesrv) as producer:
        await producer.send(Message(topic, body))
        rounds = count // IN_FLIGHT

        async def work() -> None:
            for _ in range(rounds):
                await producer.send_batch([Message(topic, body) for _ in range(BATCH)])

        watch = Stopwatch()
        await asyncio.gather(*(work() for _ in range(workers)))
        return watch.figures(f"aio send_batch of {BATCH}, {IN_FLIGHT} messages in flight", rounds * IN_FLIGHT)


async def _push(namesrv: str, topic: str, count: int, *, is_coroutine: bool) -> dict[str, object]:
    loop, everything, watch = asyncio.get_running_loop(), asyncio.Event(), Stopwatch()
    got = 0

    def handle(messages: list[StoredMessage]) -> None:
        nonlocal got
        if not got:
            watch.start()
        got += len(messages)
        if got >= count:
            loop.call_soon_threadsafe(everything.set)

    async def handle_on_loop(messages: list[StoredMessage]) -> None:
        handle(messages)

    group = f"bench_{os.getpid()}_{next(_numbers)}"
    async with aio.PushConsumer(group, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.subscribe(topic)
        consumer.listen(handle_on_loop if is_coroutine else handle)
        await everything.wait()
        return watch.figures(f"push, {'async def' if is_coroutine else 'def'}", got)


def _poll(namesrv: str, topic: str, count: int) -> dict[str, object]:
    group = f"bench_{os.getpid()}_{next(_numbers)}"
    with LitePullConsumer(group, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.subscribe(topic)
        got, watch = len(consumer.poll(timeout=10.0)), Stopwatch()
        first = got
        while got < count:
            got += len(consumer.poll(timeout=10.0))
        return watch.figures("poll", max(1, got - first))


def _on_new_loop(work: object) -> dict[str, object]:
    assert asyncio.iscoroutine(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        figures: dict[str, object] = runner.run(work)
    return figures


def _settings(count: int, body_bytes: int) -> dict[str, object]:
    return surroundings() | {
        "baseline: a million additions, CPU ms": baseline_ms(),
        "messages": count,
        "body bytes": body_bytes,
    }


def baseline_ms() -> float:
    """The CPU time of a fixed piece of Python."""
    began_s, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return round((time.process_time() - began_s) * 1000, 1)


def fresh_topic() -> str:
    return f"Bench_{os.getpid()}_{next(_numbers)}"


def interpreter() -> str:
    """Python and its build, and whether the hot modules are compiled: each of the three is worth a third."""
    kind = "compiled" if build.compiled else "plain Python"
    return f"Python {platform.python_version()} ({platform.python_build()[1]}), hot modules {kind}"


def surroundings() -> dict[str, object]:
    """The head of a table of figures."""
    return {
        "machine": f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "python": interpreter(),
    }
