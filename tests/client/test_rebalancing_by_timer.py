"""Without a word from the broker, members of a group find each other by their timers alone.

The broker is real, and told not to notify this group. The members' loop has a clock that the test moves, so that the
timer's twenty seconds pass at once; the long set watches the same on the real clock.
"""

from __future__ import annotations

import asyncio
import time

import pytest

import contrailmq.aio as aio
from contrailmq import Admin, PushConsumer
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from waiting_for import until

from .names import fresh_name
from .waiting import Inbox, MovedLoop, everybody_rests

QUEUES = 8
BY_TIMER_S = 25.0
STEP_S = 0.5


@pytest.fixture
def name(cluster: LocalCluster) -> str:
    """A topic with eight queues, and a group of the same name whose members the broker does not notify."""
    made = fresh_name("ByTimer")
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(made, queues=QUEUES)
        admin.create_group(SubscriptionGroupConfig(group_name=made, notify_consumer_ids_changed_enable=False))
    return made


def is_settled(members: list[aio.PushConsumer] | list[PushConsumer]) -> bool:
    """Every queue has one owner, and no member has more than its share."""
    owned = [queue for consumer in members for queue in consumer.queues]
    return len(owned) == len(set(owned)) == QUEUES and all(len(m.queues) == QUEUES // len(members) for m in members)


async def seconds_until_settled(loop: MovedLoop, members: list[aio.PushConsumer]) -> float:
    began_s = loop.now_s
    await everybody_rests()
    while not is_settled(members) and loop.now_s - began_s < 2 * BY_TIMER_S:
        loop.now_s += STEP_S
        await everybody_rests()
    return loop.now_s - began_s


def test_one_to_eight_to_one_members_settle_by_timer_within_25_seconds(cluster: LocalCluster, name: str) -> None:
    async def started() -> aio.PushConsumer:
        consumer = aio.PushConsumer(name, namesrv=cluster.namesrv)
        consumer.subscribe(name)
        consumer.listen(Inbox())
        await consumer.start()
        return consumer

    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        members = [await started()]
        await seconds_until_settled(loop, members)
        members += [await started() for _ in range(QUEUES - 1)]
        await everybody_rests()
        assert not is_settled(members)  # the first still has all: nobody told it
        grown_s = await seconds_until_settled(loop, members)
        leaving = asyncio.gather(*(member.shutdown() for member in members[1:]))
        while not leaving.done():
            await everybody_rests()
            loop.now_s += 0.01
        assert not is_settled(members[:1])
        shrunk_s = await seconds_until_settled(loop, members[:1])
        await members[0].shutdown()
        return grown_s, shrunk_s

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        grown_s, shrunk_s = runner.run(run())
    assert 0.0 < grown_s <= BY_TIMER_S
    assert 0.0 < shrunk_s <= BY_TIMER_S


@pytest.mark.long
def test_the_same_on_the_real_clock(cluster: LocalCluster, name: str) -> None:
    def started() -> PushConsumer:
        consumer = PushConsumer(name, namesrv=cluster.namesrv)
        consumer.subscribe(name)
        consumer.listen(Inbox())
        consumer.start()
        return consumer

    def seconds_to_settle() -> float:
        began_s = time.monotonic()
        until(lambda: is_settled(members))
        return time.monotonic() - began_s

    members = [started()]
    seconds_to_settle()
    members += [started() for _ in range(QUEUES - 1)]
    grown_s = seconds_to_settle()
    while len(members) > 1:
        members.pop().shutdown()
    shrunk_s = seconds_to_settle()
    members.pop().shutdown()
    print(f"by timer, real clock: 1 to 8 settled in {grown_s:.1f} s, 8 to 1 in {shrunk_s:.1f} s")
    assert max(grown_s, shrunk_s) <= BY_TIMER_S
