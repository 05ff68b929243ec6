"""Our consumers by POP with Apache's broker as the peer: simple, push and push in order, on one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from apache import Apache

import contrailmq.aio as aio
from client.waiting import ANSWER_S
from contrailmq import Admin, ConsumeFromWhere, Message, StoredMessage
from contrailmq.client.errors import ReceiptExpiredError
from contrailmq.client.records import PoppedMessage
from contrailmq.message import pop_retry_topic
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker under our clients", "5.5.0")

FIRST = ConsumeFromWhere.FIRST_OFFSET
LONG_S = 120.0


@pytest.fixture(scope="module")
def namesrv(rocketmq: Apache) -> Iterator[str]:
    with rocketmq.cluster(autoCreateTopicEnable="true") as (address, _):
        until(lambda: "TBW102" in Admin(namesrv=address).topics())
        yield address


async def send(namesrv: str, topic: str, *bodies: str, one_queue: bool = False) -> None:
    async with aio.Producer(f"{topic}_p", namesrv=namesrv) as producer:
        first, *rest = bodies
        result = await producer.send(Message(topic, first.encode(), tags="a"))
        for body in rest:
            await producer.send(Message(topic, body.encode(), tags="a"), queue=result.queue if one_queue else None)


async def receive(consumer: aio.SimpleConsumer, count: int, invisible_s: float = LONG_S) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while len(found) < count:
        batch = await consumer.receive(32, invisible_s, ANSWER_S)
        assert batch, f"{len(found)} of {count} came"
        found += batch
    return found


def test_a_simple_consumer_receives_acknowledges_keeps_longer_and_lets_go(namesrv: str) -> None:
    async def scene() -> None:
        await send(namesrv, "Simple", "0", "1", "2")
        await send(namesrv, "Other", "x")
        async with aio.SimpleConsumer("simple", namesrv=namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("Simple", "a")
            consumer.subscribe("Other")
            first = {message.body: message for message in await receive(consumer, 4)}
            assert first.keys() == {b"0", b"1", b"2", b"x"}
            for body in (b"0", b"x"):
                await consumer.ack(first[body])
            await consumer.change_invisible_duration(first[b"1"], 2 * LONG_S)
            await consumer.ack(first[b"1"])
            await consumer.change_invisible_duration(first[b"2"], 0.0)
            with pytest.raises(ReceiptExpiredError):
                await consumer.ack(first[b"2"])
            (again,) = await receive(consumer, 1)
            assert isinstance(again, PoppedMessage)
            assert (again.body, again.topic, again.reconsume_times) == (b"2", "Simple", 1)
            assert again.stored_topic == pop_retry_topic("simple", "Simple")
            await consumer.ack(again)
            assert await consumer.receive(32, LONG_S, 0.0) == []

    asyncio.run(scene())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_push_consumer_pops_and_settles_everything(namesrv: str, orderly: bool) -> None:
    async def scene() -> None:
        topic = group = f"Push{orderly}"
        seen: list[str] = []
        wanted = [f"{number}" for number in range(50)]
        await send(namesrv, topic, *wanted, one_queue=True)
        consumer = aio.PushConsumer(
            group, namesrv=namesrv, from_where=FIRST, pop=True, orderly=orderly, suspend_s=0.01, max_reconsume_times=1
        )
        consumer.subscribe(topic, "a")

        async def listen(messages: list[StoredMessage]) -> None:
            (message,) = messages
            seen.append(message.body.decode())
            if orderly and message.body == b"7" and message.reconsume_times == 0:
                raise ValueError("again")

        consumer.listen(listen)
        async with consumer:
            popping_done = lambda: consumer._popping is not None and not len(consumer._popping.holding)  # noqa: E731
            await asyncio.to_thread(until, lambda: len(set(seen)) == 50 and popping_done())
        if orderly:
            assert seen == [*wanted[:8], *wanted[7:]]
        else:
            assert sorted(seen, key=int) == wanted
        async with aio.SimpleConsumer(group, namesrv=namesrv, from_where=FIRST, orderly=orderly) as simple:
            simple.subscribe(topic)
            assert await simple.receive(32, LONG_S, 0.0) == []

    asyncio.run(scene())
