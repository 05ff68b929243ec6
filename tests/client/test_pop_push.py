"""The push consumer with `pop=True` against a broker of ours: what is consumed, put off, renewed and let go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, ConsumeResult, Message, MessageModel, Producer, PushConsumer, StoredMessage
from contrailmq.client.consuming import pop_consumption
from contrailmq.client.errors import ClientConfigError
from contrailmq.client.records import PoppedMessage
from contrailmq.testing import LocalCluster
from waiting_for import until_async

from .names import fresh_name
from .waiting import ANSWER_S, Inbox

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture
def name() -> str:
    return fresh_name("PopPush")


def consumer_of(cluster: LocalCluster, name: str, **settings: Any) -> aio.PushConsumer:
    made = aio.PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, pop=True, **settings)
    made.subscribe(name)
    return made


async def send(cluster: LocalCluster, topic: str, *bodies: str, one_queue: bool = False) -> None:
    async with aio.Producer(f"{topic}_p", namesrv=cluster.namesrv) as producer:
        first, *rest = bodies
        result = await producer.send(Message(topic, first.encode()))
        for body in rest:
            await producer.send(Message(topic, body.encode()), queue=result.queue if one_queue else None)


async def left_in(cluster: LocalCluster, name: str, *, timeout: float = 0.0) -> list[StoredMessage]:
    """What the group would be given now."""
    async with aio.SimpleConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as simple:
        simple.subscribe(name)
        return await simple.receive(32, 30.0, timeout)


def play(scene: Awaitable[None]) -> None:
    asyncio.run(scene)  # type: ignore[arg-type]


def test_every_message_is_consumed_and_acknowledged(cluster: LocalCluster, name: str) -> None:
    async def scene() -> None:
        inbox: list[bytes] = []
        wanted = [f"{number}" for number in range(100)]
        await send(cluster, name, *wanted)
        consumer = consumer_of(cluster, name)

        async def listen(messages: list[StoredMessage]) -> None:
            inbox.extend(message.body for message in messages)

        consumer.listen(listen)
        async with consumer:
            await until_async(lambda: len(inbox) == 100)
            assert [queue.queue_id for queue in consumer.queues] == [-1]
            assert consumer.running_info().properties["PROP_CONSUMEORDERLY"] == "false"
        assert sorted(inbox, key=int) == [body.encode() for body in wanted]
        assert await left_in(cluster, name) == []

    play(scene())


def test_two_members_share_one_topic_and_nothing_comes_twice(cluster: LocalCluster, name: str) -> None:
    async def scene() -> None:
        got: list[tuple[int, bytes]] = []
        consumers = []
        for number in range(2):

            async def listen(messages: list[StoredMessage], number: int = number) -> None:
                got.extend((number, message.body) for message in messages)

            consumer = consumer_of(cluster, name, pull_batch_size=1, pop_threshold=1)
            consumer.listen(listen)
            consumers.append(consumer)
        await send(cluster, name, "first")
        async with consumers[0], consumers[1]:
            await send(cluster, name, *(f"{number}" for number in range(60)))
            await until_async(lambda: len(got) == 61)
        assert len({body for _, body in got}) == 61

    play(scene())


def test_a_failed_message_is_put_off_and_one_that_failed_too_often_is_a_dead_letter(
    cluster: LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_consumption, "LATER_S", (0.1, 0.2))

    async def scene() -> None:
        attempts: list[int] = []
        await send(cluster, name, "a")
        consumer = consumer_of(cluster, name, max_reconsume_times=2)

        async def listen(messages: list[StoredMessage]) -> ConsumeResult:
            attempts.extend(message.reconsume_times for message in messages)
            assert messages[0].topic == name
            return ConsumeResult.RETRY

        consumer.listen(listen)
        async with consumer, aio.Admin(namesrv=cluster.namesrv) as admin:
            await until_async(lambda: len(attempts) == 3)
            await until_async(lambda: consumer._popping is not None and not len(consumer._popping.holding))
            letters = await admin.dead_letters(name)
        assert attempts == [0, 1, 2]
        assert [letter.body for letter in letters] == [b"a"]
        assert await left_in(cluster, name) == []

    play(scene())


def test_part_of_a_batch_may_be_acknowledged(cluster: LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_consumption, "LATER_S", (1.0,))

    async def scene() -> None:
        batches: list[list[bytes]] = []
        await send(cluster, name, "0", "1", "2", "3", one_queue=True)
        consumer = consumer_of(cluster, name, consume_batch_size=4)

        async def listen(messages: list[StoredMessage]) -> Any:
            batches.append([message.body for message in messages])
            return ConsumeResult.SUCCESS.with_details(acknowledged=len(messages) - 1)

        consumer.listen(listen)
        async with consumer:
            await until_async(lambda: sum(map(len, batches)) == 4)
            await until_async(lambda: consumer._popping is not None and not len(consumer._popping.holding))
        # The last of each batch was put off: it is in flight, and not acknowledged.
        async with aio.SimpleConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as simple:
            simple.subscribe(name)
            again = []
            while len(again) < len(batches):
                again += await simple.receive(32, 30.0, ANSWER_S)
        assert sorted(message.body for message in again) == sorted(batch[-1] for batch in batches)

    play(scene())


def test_a_slow_listener_keeps_its_message_and_one_that_hangs_does_not(cluster: LocalCluster, name: str) -> None:
    async def scene() -> None:
        seen: list[int] = []
        release = asyncio.Event()
        await send(cluster, name, "a")
        consumer = consumer_of(cluster, name, invisible_duration_s=4.0, consume_timeout_s=5.0, shutdown_wait_s=0.0)

        async def listen(messages: list[StoredMessage]) -> None:
            seen.append(messages[0].reconsume_times)
            if len(seen) == 1:
                await release.wait()

        consumer.listen(listen)
        began_s = asyncio.get_running_loop().time()
        async with consumer:
            await until_async(lambda: len(seen) == 2)  # it came again when renewing had ended
            assert asyncio.get_running_loop().time() - began_s > 5.0
            release.set()
        assert seen[0] == 0 < seen[1]
        assert await left_in(cluster, name) == []

    play(scene())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_shutdown_lets_others_have_at_once_what_no_listener_began(
    cluster: LocalCluster, name: str, orderly: bool
) -> None:
    async def scene() -> None:
        begun = asyncio.Event()
        release = asyncio.Event()
        await send(cluster, name, *(f"{number}" for number in range(8)), one_queue=True)
        consumer = consumer_of(cluster, name, consume_threads=1, orderly=orderly, invisible_duration_s=600.0)

        async def listen(messages: list[StoredMessage]) -> None:
            begun.set()
            await release.wait()

        consumer.listen(listen)
        await consumer.start()
        await begun.wait()
        ending = asyncio.create_task(consumer.shutdown())
        await until_async(lambda: consumer._pool is not None and consumer._pool._is_refusing)
        release.set()
        await ending
        again = []
        async with aio.SimpleConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, orderly=orderly) as simple:
            simple.subscribe(name)
            while len(again) < 7:
                batch = await simple.receive(32, 30.0, ANSWER_S)
                again += batch
        assert len({message.body for message in again}) == 7  # the eighth was consumed to its end
        assert all(message.reconsume_times == 0 for message in again) or orderly

    play(scene())


def test_a_held_pop_of_a_member_that_has_left_takes_nothing(cluster: LocalCluster, name: str) -> None:
    """Two members share a connection, so it stays open: the pop of the one that leaves is answered at its goodbye."""

    async def scene() -> None:
        await send(cluster, name, "first")
        other = aio.Producer(f"{name}_q", namesrv=cluster.namesrv, instance_name=name)
        got: list[bytes] = []

        async def listen(messages: list[StoredMessage]) -> None:
            got.extend(message.body for message in messages)

        consumer = consumer_of(cluster, name, instance_name=name)
        consumer.listen(listen)
        async with other:
            await other.queues(name)
            await consumer.start()
            await until_async(lambda: got)
            await consumer.shutdown()
            await send(cluster, name, "second")
            (after,) = await left_in(cluster, name, timeout=ANSWER_S)
            assert (after.body, after.reconsume_times) == (b"second", 0)
        assert got == [b"first"]

    play(scene())


def test_in_order_a_failed_message_comes_before_those_behind_it(cluster: LocalCluster, name: str) -> None:
    async def scene() -> None:
        seen: list[str] = []
        await send(cluster, name, *(f"{number}" for number in range(40)), one_queue=True)
        consumer = consumer_of(cluster, name, orderly=True, suspend_s=0.01, max_reconsume_times=3)

        async def listen(messages: list[StoredMessage]) -> None:
            (message,) = messages
            seen.append(message.body.decode())
            if message.body == b"7" and message.reconsume_times < 2:
                raise ValueError("not yet")
            if message.body == b"20":
                raise ValueError("never")

        consumer.listen(listen)
        async with consumer, aio.Admin(namesrv=cluster.namesrv) as admin:
            await until_async(lambda: "39" in seen)
            await until_async(lambda: consumer._popping is not None and not len(consumer._popping.holding))
            letters = await admin.dead_letters(name)
        expected = [f"{number}" for number in range(40)]
        expected[20:21] = ["20"] * 4
        expected[7:8] = ["7"] * 3
        assert seen == expected
        assert [letter.body for letter in letters] == [b"20"]

    play(scene())


def test_a_blocking_consumer_pops_and_listens_in_threads(cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    threads: set[str] = set()

    def listen(messages: list[StoredMessage]) -> None:
        threads.add(threading.current_thread().name)
        inbox(messages)

    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"a", tags="paid"))
        producer.send(Message(name, b"b", tags="open"))
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, pop=True) as consumer:
        consumer.subscribe(name, "paid")
        consumer.listen(listen)
        (message,) = inbox.wait_for(1)
        assert isinstance(message, PoppedMessage)
        assert message.body == b"a"
    assert all(thread.startswith("contrailmq-listener") for thread in threads)


def test_the_cache_is_bounded_by_the_threshold(cluster: LocalCluster, name: str) -> None:
    async def scene() -> None:
        release = asyncio.Event()
        await send(cluster, name, *(f"{number}" for number in range(30)), one_queue=True)
        consumer = consumer_of(cluster, name, pop_threshold=5, consume_threads=1)

        async def listen(messages: list[StoredMessage]) -> None:
            await release.wait()

        consumer.listen(listen)
        async with consumer:
            await until_async(lambda: consumer._popping is not None and len(consumer._popping.holding) == 5)
            popping = consumer._popping
            assert popping is not None
            assert list(popping.counts.values()) == [5]
            release.set()
            await until_async(lambda: not len(popping.holding))

    play(scene())


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ClientConfigError, match="BROADCASTING"):
        PushConsumer("g", pop=True, model=MessageModel.BROADCASTING)
    with pytest.raises(ClientConfigError, match="auto_commit"):
        PushConsumer("g", pop=True, auto_commit=False)
    with pytest.raises(ClientConfigError, match="TIMESTAMP"):
        PushConsumer("g", pop=True, from_where=ConsumeFromWhere.TIMESTAMP)


def test_a_restart_of_the_broker_loses_nothing_and_repeats_nothing_that_was_told(
    own_cluster: LocalCluster, name: str
) -> None:
    async def scene() -> None:
        got: list[bytes] = []
        await send(own_cluster, name, "before")
        consumer = consumer_of(own_cluster, name)

        async def listen(messages: list[StoredMessage]) -> None:
            got.extend(message.body for message in messages)

        consumer.listen(listen)
        async with consumer:
            await until_async(lambda: got)
            await until_async(lambda: consumer._popping is not None and not len(consumer._popping.holding))
            await asyncio.to_thread(own_cluster.restart_broker)
            await send(own_cluster, name, "after")
            await until_async(lambda: len(got) == 2)
        assert got == [b"before", b"after"]

    play(scene())
