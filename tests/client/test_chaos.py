"""At least once, with brokers killed at random while messages flow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, StoredMessage
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster
from waiting_for import until

from .waiting import Inbox

IN_FLIGHT = 64
WINDOW_S = 1.0
AHEAD = 500


class Refused(Exception):
    """What the listener says of a message that it wants again."""


def failures_wanted(number: int) -> int:
    """How often the listener refuses a number before it takes it: most never, some once, a few twice."""
    return 2 if number % 500 == 0 else 1 if number % 50 == 0 else 0


class Seen:
    """What consumers were given: how often each number was taken or refused, and when (what a kill may repeat).

    `room` keeps producers at most AHEAD numbers before the consumers, so that a kill finds both at work.
    """

    def __init__(self, count: int, marks: Iterable[int]) -> None:
        self.taken: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.overcounted: list[tuple[int, int, int]] = []
        self.at_s: list[float] = []
        self.complete = asyncio.Event()
        self.room = asyncio.Semaphore(AHEAD)
        self.marks = {mark: asyncio.Event() for mark in sorted(marks)}
        self._count = count

    async def handle(self, messages: list[StoredMessage]) -> None:
        (message,) = messages
        number, refused = int(message.body), self.refused[int(message.body)]
        self.at_s.append(time.monotonic())
        if message.reconsume_times > refused:
            self.overcounted.append((number, message.reconsume_times, refused))
        if refused < failures_wanted(number):
            self.refused[number] += 1
            raise Refused(number)
        self.taken[number] += 1
        if self.taken[number] == 1:
            self.room.release()
            if len(self.taken) in self.marks:
                self.marks[len(self.taken)].set()
            if len(self.taken) >= self._count:
                self.complete.set()

    def between(self, since_s: float, until_s: float) -> int:
        return sum(since_s <= at_s <= until_s for at_s in self.at_s)

    @property
    def repeated(self) -> int:
        return self.taken.total() - len(self.taken)


async def produce(namesrv: str, topic: str, count: int, acknowledged: set[int], seen: Seen) -> None:
    """Send every number until it is acknowledged; a number whose answer was lost is sent again."""
    numbers = iter(range(count))

    async def work(producer: aio.Producer) -> None:
        for number in numbers:
            await seen.room.acquire()
            while number not in acknowledged:
                try:
                    await producer.send(Message(topic, b"%d" % number, keys=[str(number)]))
                except ContrailError:
                    await asyncio.sleep(0.05)
                else:
                    acknowledged.add(number)

    async with aio.Producer("chaos", namesrv=namesrv, send_timeout_s=2.0) as producer:
        await asyncio.gather(*(work(producer) for _ in range(IN_FLIGHT)))


async def consume(namesrv: str, topic: str, seen: Seen, random_: random.Random) -> None:
    """Consumers that live for a while and are replaced, until every number was seen."""
    while not seen.complete.is_set():
        async with aio.PushConsumer(
            "chaos", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, pull_retry_delay_s=0.1
        ) as consumer:
            consumer.subscribe(topic)
            consumer.listen(seen.handle)
            try:
                await asyncio.wait_for(seen.complete.wait(), random_.uniform(0.5, 3))
            except TimeoutError:
                continue


Outage = tuple[float, float]


async def run_chaos(cluster: LocalCluster, count: int, kills: int, seed: int) -> tuple[set[int], Seen, list[Outage]]:
    random_ = random.Random(seed)
    topic = f"Chaos_{os.getpid()}_{seed}"
    acknowledged: set[int] = set()
    seen = Seen(count, random_.sample(range(1, count - AHEAD), kills))
    outages: list[Outage] = []
    producing = asyncio.create_task(produce(cluster.namesrv, topic, count, acknowledged, seen))
    consuming = asyncio.create_task(consume(cluster.namesrv, topic, seen, random_))
    for number, mark in enumerate(seen.marks.values()):
        await mark.wait()
        began_s = time.monotonic()
        await asyncio.to_thread(cluster.kill_broker, 0)
        if number % 2:
            await asyncio.to_thread(cluster.restart_name_server)
        await asyncio.to_thread(cluster.restart_broker, 0)
        outages.append((began_s, time.monotonic()))
    await producing
    await consuming
    return acknowledged, seen, outages


@pytest.mark.parametrize(
    ("count", "kills"), [(4_000, 3), pytest.param(100_000, 10, marks=pytest.mark.long)], ids=["quick", "full"]
)
def test_what_was_acknowledged_is_delivered_and_a_kill_repeats_only_its_window(count: int, kills: int) -> None:
    """Brokers are killed, the NameServer restarts, consumers come and go, and one message in fifty is refused.

    A kill may repeat the sends whose answers it swallowed, and what was consumed while it was down or less than
    WINDOW_S before: offsets are saved more often than that. A refusal counts once: no message ever says that it failed
    more often than its listeners refused it.
    """
    seed = 20_261
    began_s = time.monotonic()

    async def bounded(cluster: LocalCluster) -> tuple[set[int], Seen, list[Outage]]:
        async with asyncio.timeout(60 + count / 50):  # a hang is a failure
            return await run_chaos(cluster, count, kills, seed)

    with LocalCluster(processes=True, config={"messageDelayLevel": "1s 1s 1s 1s 1s 1s"}) as cluster:
        acknowledged, seen, outages = asyncio.run(bounded(cluster))
    missing = acknowledged - seen.taken.keys()
    window = sum(IN_FLIGHT + seen.between(since_s - WINDOW_S, until_s) for since_s, until_s in outages)
    print(
        f"{len(acknowledged)} acknowledged, {kills} kills, {len(missing)} lost, {seen.repeated} repeated of {window} "
        f"in the windows, {seen.refused.total()} refusals, {time.monotonic() - began_s:.1f} s"
    )
    assert not missing, f"seed {seed}: {len(missing)} acknowledged messages never came, e.g. {sorted(missing)[:5]}"
    assert seen.repeated <= window
    assert seen.overcounted == [], "(number, its count, refusals)"
    assert all(seen.refused[number] == failures_wanted(number) for number in range(count))


def test_what_a_consumer_stored_is_saved_soon_so_that_a_kill_repeats_nothing() -> None:
    """flushConsumerOffsetInterval is the longest pause between saves, not the usual one."""
    with LocalCluster(config={"flushConsumerOffsetInterval": 600_000}) as cluster:
        options = {"namesrv": cluster.namesrv, "from_where": ConsumeFromWhere.FIRST_OFFSET}
        first, second = Inbox(), Inbox()
        with Producer("saved", namesrv=cluster.namesrv) as producer:
            producer.send_batch([Message("Saved", b"%d" % number) for number in range(100)])
            with listening("saved", first, options):
                first.wait_for(100)
            saved = cluster.store_path / "broker-0" / "config" / "consumerOffset.json"
            until(lambda: saved.exists() and committed_in(saved.read_text()) == 100)
            cluster.kill_broker()
            cluster.restart_broker()
            producer.send(Message("Saved", b"after"))
            with listening("saved", second, options):
                second.wait_for(1)
        assert second.bodies == [b"after"]


def committed_in(text: str) -> int:
    """How many messages of the topic Saved the offsets of its group cover, as the file has them."""
    found = re.search(r'"Saved@saved":\{([^}]*)\}', text)
    return sum(int(queue.partition(":")[2]) for queue in found[1].split(",")) if found else 0


@contextlib.contextmanager
def listening(group: str, inbox: Inbox, options: dict[str, Any]) -> Iterator[None]:
    consumer = PushConsumer(group, **options)
    consumer.subscribe("Saved")
    consumer.listen(inbox)
    with consumer:
        yield
