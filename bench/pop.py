"""`python -m bench pop`: POP and acknowledgement over remoting, ours beside Apache's, in turns in one run.

A topic is filled with messages of 1 KiB. Then 64 consumers on one connection (pop_load.c) each pop a batch, acknowledge
each message of it by a request of its own, and go on, for some seconds; every round has a group of its own, which
begins at the first message. Headers are JSON: the binary form has two bytes for a code, too few for POP's. The rate
counts acknowledged messages; p50 and p99 are those of a pop and of an acknowledgement. The CPU is that of the broker's
process, for one message popped and acknowledged.

Figures come out only if every answer was a success and no message was given twice.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Final

from bench import compare
from bench.mixed import Figures, Settings, both_brokers, build_load, by_turns, run_load
from contrailmq import aio
from contrailmq.message import Message

CONSUMERS: Final = 64
BODY_BYTES: Final = 1024
TOPIC: Final = "bench_pop"
SEND_BATCH: Final = 32
BATCHES: Final = (1, 16)
_SHOWN: Final = {
    "messages/s": "messages_per_s",
    "pop p50 us": "pop_p50_us",
    "pop p99 us": "pop_p99_us",
    "ack p50 us": "ack_p50_us",
    "ack p99 us": "ack_p99_us",
    "broker CPU us/message": "broker_cpu_us_per_message",
    "cores that the load generator used": "generator_cores",
}
_groups = itertools.count()


def measure_pop(settings: Settings, *, messages: int) -> dict[str, object]:
    """Name -> ours / the other's (ratio)."""
    figures: dict[str, object] = {"rounds": f"{settings.rounds}, in turns", "messages there": messages}
    with (
        tempfile.TemporaryDirectory(dir=settings.directory) as temporary,
        both_brokers(settings, Path(temporary)) as two,
    ):
        load = Path(temporary, "pop_load")
        build_load("pop_load", load)
        names = {system.name: asyncio.run(_fill(system, messages)) for system in two}
        brokers = {system.name: compare.listener(system.pids(), system.port) for system in two}

        def drive(system: compare.System, batch: int, seconds: float) -> Figures:
            target = ["127.0.0.1", str(system.port), TOPIC, f"bench_pop_{next(_groups)}", names[system.name]]
            shape = [str(CONSUMERS), str(batch), str(seconds), str(brokers[system.name])]
            return run_load(system.name, [str(load), *target, *shape])

        for batch in BATCHES:
            for system in two:
                drive(system, batch, settings.warm_seconds)
            taken = by_turns(two, settings.rounds, lambda system: drive(system, batch, settings.seconds))  # noqa: B023
            for name, key in _SHOWN.items():
                ours, theirs = (statistics.median(one[key] for one in taken[system.name]) for system in two)
                ratio = f" ({ours / theirs:.2f})" if theirs else ""
                figures[f"pop of {batch}: {name}"] = f"{ours:.4g} / {theirs:.4g}{ratio}"
    return figures


async def _fill(system: compare.System, messages: int) -> str:
    """The name of the broker that has them."""
    namesrv = f"127.0.0.1:{system.namesrv_port}"
    async with aio.Producer("bench", namesrv=namesrv, send_timeout_s=30.0) as producer:
        body = b"x" * BODY_BYTES
        first = await producer.send(Message(TOPIC, body))
        left = iter(range(-(-messages // SEND_BATCH)))

        async def work() -> None:
            for _ in left:
                await producer.send_batch([Message(TOPIC, body) for _ in range(SEND_BATCH)])

        await asyncio.gather(*(work() for _ in range(8)))
    return first.queue.broker_name
