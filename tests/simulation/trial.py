"""One seed: a cluster, clients, faults for some virtual minutes, then peace, and a verdict.

    python -m simulation.trial [--seeds N] [--first SEED] [--minutes M]       (make simulate SEEDS=N)

Faults and their times are drawn from the seed. Under ASYNC_FLUSH a power cut may lose acknowledged messages by its own
promise, so there brokers are killed instead. A seed that fails is printed with its faults, and replays.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from contrailmq import aio
from contrailmq.message import ContrailError, Message
from simulation.checker import unfinished, unsafe
from simulation.cluster import Cluster
from simulation.history import Delivery, History, Place
from simulation.nodes import Node

TOPIC: Final = "Orders"
PEACE_S: Final = 180.0  # how long all that was acknowledged may take to arrive when faults are over
FAULTS: Final = ("kill", "cut", "stop", "pause", "part", "one-way", "reset", "stall", "jump")


@dataclass
class Verdict:
    """Of one seed. `problems` are sentences; none: it passed."""

    seed: int
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    trace: str = ""
    stores: dict[str, str] = field(default_factory=dict)  # broker -> digest
    virtual_s: float = 0.0


class Trial:
    """The members of one seed, and what happens to them."""

    def __init__(self, seed: int, *, brokers: int = 1, producers: int = 2, consumers: int = 1) -> None:
        self.seed, self._chance = seed, random.Random(f"faults of {seed}")
        self._brokers = [f"b{number}" for number in range(brokers)]
        self._producers, self._consumers = producers, consumers
        self._flush = "SYNC_FLUSH" if self._chance.random() < 0.7 else "ASYNC_FLUSH"
        self._is_sending = True
        self.verdict = Verdict(seed)
        self.history = self.verdict.history

    def run(self, minutes: float, *, faults: tuple[str, ...] = FAULTS) -> Verdict:
        with Cluster(self.seed, flush=self._flush) as cluster:
            self.join(cluster)
            world = cluster.world
            end_s = world.now_s + minutes * 60
            while faults and world.now_s < end_s:
                world.run_for(self._chance.uniform(2.0, 40.0))
                self._strike(self._chance.choice(faults))
            world.run_for(max(0.0, end_s - world.now_s))
            self._is_sending = False
            world.run_for(10)  # what is under way ends
            world.run_until(lambda: not self.history.undelivered(), within_s=PEACE_S)
            self._judge()
        return self.verdict

    def join(self, cluster: Cluster) -> None:
        """Start all members in a cluster."""
        self._cluster = cluster
        cluster.start_name_server()
        for name in self._brokers:
            cluster.start_broker(name)
        for number in range(self._producers):
            cluster.start_client(f"p{number}", self._produce)
        for number in range(self._consumers):
            cluster.start_client(f"c{number}", self._consume)

    def _judge(self) -> None:
        verdict, cluster = self.verdict, self._cluster
        verdict.problems = unsafe(self.history) + unfinished(self.history)
        for node in cluster.world.nodes.values():
            verdict.problems += [f"{node.name}: {complaint}" for complaint in node.complaints]
            verdict.problems += [f"{node.name}: thread {name}: {error!r}" for name, error in node.failed_threads]
            if node.error is not None:
                verdict.problems.append(f"{node.name} ended: {node.error!r}")
        verdict.trace, verdict.virtual_s = cluster.world.trace, cluster.world.now_s
        verdict.stores = {name: cluster.digest(name) for name in self._brokers}

    # --- clients

    async def _produce(self, node: Node) -> None:
        chance = random.Random(f"{node.name} of {self.seed}")
        number = 0
        async with aio.Producer("producers", namesrv=self._cluster.namesrv) as producer:
            while self._is_sending:
                number += 1
                body = f"{node.name} {number} ".encode() + b"." * chance.choice((0, 10, 200, 3000))
                properties = {"number": str(number), "from": node.name}
                self.history.sent[body] = properties
                try:
                    result = await producer.send(Message(TOPIC, body, properties=properties))
                    place = Place(result.queue.broker_name, result.queue.queue_id, result.queue_offset)
                    self.history.acknowledged[body] = place
                except ContrailError as exc:
                    self.history.refused[body] = str(exc)
                await asyncio.sleep(chance.expovariate(2.0))
            await asyncio.Event().wait()

    async def _consume(self, node: Node) -> None:
        async def hear(messages: list[Any]) -> None:
            for one in messages:
                place = Place(one.broker_name, one.queue_id, one.queue_offset)
                self.history.deliveries.append(Delivery(node.world.now_s, one.body, dict(one.properties), place))

        consumer = aio.PushConsumer("consumers", namesrv=self._cluster.namesrv)
        consumer.subscribe(TOPIC)
        consumer.listen(hear)
        await consumer.start()
        await asyncio.Event().wait()

    # --- faults

    def _strike(self, kind: str) -> None:
        """One fault, and its end."""
        cluster, chance = self._cluster, self._chance
        name = chance.choice(self._brokers)
        lasts_s = chance.choice((0.01, 0.5, 3.0, 20.0))
        if kind == "cut" and self._flush == "ASYNC_FLUSH":
            kind = "kill"
        self.verdict.faults.append(f"{cluster.world.now_s:.3f} {kind} {name} {lasts_s:g} s")
        broker, world = cluster.node(name), cluster.world
        others = [host for host in cluster.network.hosts.values() if host is not broker.host]
        other = chance.choice(others)
        if kind in ("kill", "cut", "stop"):
            {"kill": broker.kill, "cut": broker.cut_power, "stop": lambda: cluster.stop(name)}[kind]()
            world.run_for(lasts_s)
            cluster.start_broker(name)
        elif kind == "pause":
            broker.pause()
            world.run_for(lasts_s)
            broker.resume()
        elif kind == "part":
            cluster.network.part(broker.host, other)
            world.run_for(lasts_s)
            cluster.network.join(broker.host, other)
        elif kind == "one-way":
            link = chance.choice(cluster.network.links(broker.host, other))
            link.cut()
            world.run_for(lasts_s)
            link.mend()
        elif kind == "reset":
            cluster.network.reset_connections(broker.host, other)
        elif kind == "stall":
            cluster.disk(name).stall(min(lasts_s, 3.0))
        elif kind == "jump":
            broker.clock.jump(chance.choice((-30.0, -0.2, 0.2, 30.0)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate clusters under faults, one for each seed.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0, help="virtual minutes of each")
    options = parser.parse_args()
    injected: Counter[str] = Counter()
    failed, virtual_s = [], 0.0
    began_s, cpu_s = time.monotonic(), time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        verdict = Trial(seed).run(options.minutes)
        injected.update(fault.split()[1] for fault in verdict.faults)
        virtual_s += verdict.virtual_s
        counts = f"{len(verdict.history.acknowledged)} acknowledged, {len(verdict.history.refused)} refused"
        print(f"seed {seed}: {len(verdict.faults)} faults, {counts}, {len(verdict.problems)} problems", flush=True)
        if verdict.problems:
            failed.append(seed)
            print("\n".join(["  faults:", *verdict.faults, "  problems:", *verdict.problems[:10]]), flush=True)
    cpu_s = time.process_time() - cpu_s
    print(f"{options.seeds} seeds, {len(failed)} failed {failed}; faults: {dict(sorted(injected.items()))}")
    print(
        f"{virtual_s:.0f} virtual s in {time.monotonic() - began_s:.0f} s ({cpu_s:.0f} s CPU): {virtual_s / cpu_s:.0f}x"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
