"""What the proxy asks brokers about topics and groups: any master that answers will do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import grpc
import pytest

from contrailmq import Admin
from contrailmq.proxy import cluster as cluster_module
from contrailmq.proxy.cluster import FIFO, Group
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from contrailmq.wire.errors import RequestTimeoutError
from proxy.calling import Caller, proxy_of, topic

LIMIT_S: Final = 120
SOON_S: Final = 2.5  # less than the time limit of a request, 3 s
NAME, GROUP = "two", "orderly"


def orderly(name: str) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name, consume_message_orderly=True)


@pytest.fixture(scope="module")
def two() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, processes=True) as made:
        with Admin(namesrv=made.namesrv) as admin:
            admin.create_topic(NAME, queues=2, attributes={"message.type": "FIFO"})
            admin.create_group(orderly(GROUP))
        yield made


@contextmanager
def standing_still(cluster: LocalCluster, broker: int) -> Iterator[None]:
    process_id = cluster.broker_process_id(broker)
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


@contextmanager
def away(cluster: LocalCluster, broker: int) -> Iterator[None]:
    cluster.kill_broker(broker)
    try:
        yield
    finally:
        cluster.restart_broker(broker)


Trouble = Callable[[LocalCluster, int], AbstractContextManager[None]]


@pytest.mark.parametrize("broker", [0, 1])
@pytest.mark.parametrize("trouble", [standing_still, away])
def test_a_broker_that_does_not_answer_holds_up_no_question_that_another_can_answer(
    two: LocalCluster, trouble: Trouble, broker: int
) -> None:
    """One of the two is asked first."""

    async def main() -> None:
        async with proxy_of(two.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            caller, known = Caller(channel), server.service._cluster
            await known.route(NAME)  # as it was a moment ago
            with trouble(two, broker):
                async with asyncio.timeout(SOON_S):
                    answer = await caller.call("QueryAssignment", topic=topic(NAME), group=topic(GROUP))
                assert answer.status.code == Code.OK, answer
                assert {one.message_queue.id for one in answer.assignments} == {0, 1}  # each queue: it is orderly
                async with asyncio.timeout(SOON_S):
                    route = await caller.call("QueryRoute", topic=topic(NAME), endpoints=v2.Endpoints())
                assert [list(one.accept_message_types) for one in route.message_queues] == [[FIFO]] * 4

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_group_that_one_broker_knows_is_known(two: LocalCluster) -> None:
    names = ["known-0", "known-1"]
    with Admin(namesrv=two.namesrv) as admin:
        for name, broker in zip(names, ("broker-0", "broker-1"), strict=True):
            admin.create_group(orderly(name), broker=broker)

    async def main() -> list[bool]:
        async with proxy_of(two.namesrv) as server:
            assert server.service is not None
            cluster = server.service._cluster
            return [(await cluster.group(name, [NAME])).is_fifo for name in names]

    assert asyncio.run(asyncio.wait_for(main(), LIMIT_S)) == [True, True]


def test_a_group_is_not_taken_for_another_kind_when_no_broker_answers(
    two: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known of an orderly group goes on to count; of one that was never asked about nothing is assumed."""

    async def main() -> None:
        async with proxy_of(two.namesrv) as server:
            assert server.service is not None
            cluster = server.service._cluster
            assert (await cluster.group(GROUP, [NAME])).is_fifo
            monkeypatch.setattr(cluster_module, "REMEMBER_S", 0.0)
            monkeypatch.setattr(cluster, "route", cluster.instance.route)
            with standing_still(two, 0), standing_still(two, 1):
                assert (await cluster.group(GROUP, [NAME])).is_fifo
                with pytest.raises(RequestTimeoutError):
                    await cluster.group("never-asked", [NAME])

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_group_whose_topics_nobody_has_yet_has_the_usual_settings(two: LocalCluster) -> None:
    async def main() -> None:
        async with proxy_of(two.namesrv) as server:
            assert server.service is not None
            assert await server.service._cluster.group("early", ["not-there-yet"]) == Group("early")

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
