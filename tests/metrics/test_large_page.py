"""The page of a broker with very many groups and topics: bounded, right in sum, and in turns of the loop."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

from broker.harness import Bench
from contrailmq.broker.metrics.figures import BrokerFigures
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.metrics.page import page
from how_many import IS_LONG
from metrics.scraping import samples, value, values

TOPICS = 2000
GROUPS = 500 if IS_LONG else 20
LIMIT = 5000
STRETCH_S = 0.5  # of CPU: turns are of 2 and 5 ms, on a busy machine a turn begins late but does no more


def figures_of(bench: Bench) -> BrokerFigures:
    return BrokerFigures(
        bench.node,
        bench.handlers,
        readers=bench._worker,
        transactions=bench.transactions,
        delay=bench.delay,
        timers=bench.timers,
    )


def test_2000_topics_and_500_groups_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"metricsOtelCardinalityLimit": str(LIMIT)})
    node = bench.node
    for number in range(TOPICS):
        node.topics.put(Topic(f"T{number}", read_queues=1, write_queues=1))
    for number in range(GROUPS):
        node.groups.put(Group(f"G{number}"))
        for topic in range(TOPICS):
            node.offsets.commit(f"G{number}", f"T{topic}", 0, 0)
    figures = figures_of(bench)
    gc.freeze()  # as a broker does after its start: a collection would look at a million tables
    stretches: list[float] = []

    async def others() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            stretches.append(time.thread_time() - began)

    async def scrape() -> str:
        task = asyncio.ensure_future(others())
        await figures.prepare()
        pieces = [piece async for piece in page(figures.table(), figures.common_labels(), LIMIT)]
        task.cancel()
        return b"".join(pieces).decode()

    began = time.thread_time()
    text = bench.run(scrape())
    took = time.thread_time() - began
    found = samples(text)
    print(f"{TOPICS * GROUPS} pairs: {took:.2f} s of CPU, {len(stretches)} turns, the longest {max(stretches):.4f} s")
    assert len(values(found, "rocketmq_consumer_lag_messages")) == LIMIT
    assert value(found, "contrailmq_lag_pairs_left_out") == TOPICS * GROUPS - LIMIT
    assert len(stretches) > 10
    assert max(stretches) < STRETCH_S
    gc.unfreeze()
    bench.close()
