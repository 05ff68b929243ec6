"""The simple consumer against a broker of ours, as a user writes it; its histories are in tests/simulation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, Producer, SimpleConsumer, SqlFilter, StoredMessage
from contrailmq.client.consuming.pop_clock import PopClock
from contrailmq.client.consuming.pop_sources import Source, Sources
from contrailmq.client.errors import ClientConfigError, ClientError, NoRouteError, ReceiptExpiredError
from contrailmq.client.records import PoppedMessage
from contrailmq.client.transport.routes import Broker, QueueGroup, TopicRoute
from contrailmq.testing import LocalCluster
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.pop_strings import PopHandle
from how_many import examples
from waiting_for import until_async

from .names import fresh_name

FIRST = ConsumeFromWhere.FIRST_OFFSET
LONG_S = 60.0  # an invisible time that no test outlives


@pytest.fixture
def name() -> str:
    return fresh_name("Simple")


class Scene:
    """A producer and a simple consumer of one topic."""

    def __init__(self, producer: aio.Producer, consumer: aio.SimpleConsumer, topic: str) -> None:
        self.producer, self.consumer, self.topic = producer, consumer, topic

    async def send(self, *bodies: str, topic: str = "", **more: object) -> None:
        for body in bodies:
            await self.producer.send(Message(topic or self.topic, body.encode(), **more))  # type: ignore[arg-type]

    async def receive(self, count: int, invisible_s: float = LONG_S, timeout: float = 30.0) -> list[StoredMessage]:
        """Until there are so many."""
        found: list[StoredMessage] = []
        while len(found) < count:
            batch = await self.consumer.receive(32, invisible_s, timeout)
            assert batch, f"{len(found)} of {count} came within {timeout} s"
            found += batch
        return found


def bodies(messages: list[StoredMessage]) -> set[str]:
    return {message.body.decode() for message in messages}


def play(
    cluster: LocalCluster, name: str, scene: Callable[[Scene], Awaitable[None]], expression: str | SqlFilter = "*"
) -> None:
    async def run() -> None:
        async with (
            aio.Producer(name, namesrv=cluster.namesrv) as producer,
            aio.SimpleConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer,
        ):
            consumer.subscribe(name, expression)
            await scene(Scene(producer, consumer, name))

    asyncio.run(run())


def test_what_is_acknowledged_is_done_and_the_rest_comes_again_under_its_topic(
    cluster: LocalCluster, name: str
) -> None:
    async def scene(of: Scene) -> None:
        await of.send("a", "b", "c", keys=["k"])
        first = {message.body: message for message in await of.receive(3)}
        assert first.keys() == {b"a", b"b", b"c"}
        for body in (b"a", b"c"):
            await of.consumer.ack(first[body])
        await of.consumer.change_invisible_duration(first[b"b"], 1.0)
        (again,) = await of.receive(1)
        assert (again.topic, again.body, again.reconsume_times, again.keys) == (name, b"b", 1, ["k"])
        await of.consumer.ack(again)
        await of.consumer.ack(again)  # twice is once
        assert await of.consumer.receive(timeout=0.0) == []

    play(cluster, name, scene)


def test_a_late_acknowledgement_is_an_error_that_says_how_late_it_is(cluster: LocalCluster, name: str) -> None:
    async def scene(of: Scene) -> None:
        await of.send("a")
        (first,) = await of.receive(1, invisible_s=0.2)
        (again,) = await of.receive(1)
        with pytest.raises(
            ReceiptExpiredError, match=r"became visible \d+\.\d{3} s ago: .*may be with another"
        ) as late:
            await of.consumer.ack(first)
        assert late.value.late_s is not None
        with pytest.raises(ReceiptExpiredError):
            await of.consumer.change_invisible_duration(first, 10.0)
        await of.consumer.ack(again)
        with pytest.raises(ReceiptExpiredError, match="no longer in flight under its handle"):
            await of.consumer.change_invisible_duration(again, 10.0)

    play(cluster, name, scene)


def test_a_message_is_kept_longer_and_let_go_under_new_handles(cluster: LocalCluster, name: str) -> None:
    async def scene(of: Scene) -> None:
        await of.send("a")
        (message,) = await of.receive(1, invisible_s=LONG_S / 2)
        assert isinstance(message, PoppedMessage)
        before = message.receipt_handle
        await of.consumer.change_invisible_duration(message, LONG_S)
        assert message.receipt_handle != before
        assert PopHandle.decode(message.receipt_handle).invisible_ms == 60_000
        assert await of.consumer.receive(timeout=0.0) == []
        began_s = time.monotonic()
        await of.consumer.change_invisible_duration(message, 0.0)
        (again,) = await of.receive(1)
        assert time.monotonic() - began_s < LONG_S / 2
        await of.consumer.ack(again)

    play(cluster, name, scene)


def test_several_topics_are_received_in_turn_and_a_waiting_call_hears_of_any(cluster: LocalCluster, name: str) -> None:
    async def scene(of: Scene) -> None:
        others = [f"{name}_{number}" for number in range(3)]
        for topic in others:
            await of.send("x", "y", topic=topic)
            of.consumer.subscribe(topic)
        await of.send("x", "y")
        seen: list[str] = []
        while len(seen) < 8:
            for message in await of.consumer.receive(1, LONG_S, 30.0):
                seen.append(message.topic)
                await of.consumer.ack(message)
        assert set(seen[:4]) == {name, *others}  # nobody twice before everybody once
        waiting = asyncio.create_task(of.consumer.receive(32, LONG_S, 60.0))
        sources = of.consumer._sources
        assert sources is not None
        await until_async(lambda: len(sources._silent) == 4)  # it was told by nobody that there is something
        await of.send("late", topic=others[1])
        (late,) = await waiting
        assert (late.topic, late.body) == (others[1], b"late")

    play(cluster, name, scene)


def test_tags_and_sql_filters_leave_out_what_is_not_wanted(cluster: LocalCluster, name: str) -> None:
    async def by_tags(of: Scene) -> None:
        await of.send("Aa", tags="Aa")
        await of.send("BB", tags="BB")  # the same hash in Java: the broker lets it through
        await of.send("end", tags="end")
        assert bodies(await of.receive(2)) == {"Aa", "end"}

    async def by_sql(of: Scene) -> None:
        of.consumer.subscribe(name, SqlFilter("amount > 10"))
        await of.send("low", properties={"amount": "5"})
        await of.send("high", properties={"amount": "50"})
        assert bodies(await of.receive(1)) == {"high"}

    play(cluster, name, by_tags, "Aa || end")
    name = fresh_name("Simple")
    play(cluster, name, by_sql)


def test_an_ordered_consumer_gets_the_next_of_a_queue_when_those_before_are_acknowledged(
    cluster: LocalCluster, name: str
) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"0"))
        queue = producer.queues(name)[0]
        for number in range(1, 5):
            producer.send(Message(name, b"%d" % number), queue=queue)
    with SimpleConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, orderly=True) as consumer:
        consumer.subscribe(name)
        got: list[bytes] = []
        while len(got) < 5:
            batch = consumer.receive(2, LONG_S, 30.0)
            if any(message.queue_id == queue.queue_id for message in batch):
                others = consumer.receive(2, LONG_S, 0.0)
                assert all(message.queue_id != queue.queue_id for message in others)
                batch += others
            got += [message.body for message in batch]
            for message in batch:
                consumer.ack(message)
        assert [body for body in got if body != b"0"] == [b"1", b"2", b"3", b"4"]


def test_a_blocking_consumer_does_the_same(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"a"))
    with SimpleConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
        consumer.subscribe(name)
        (message,) = consumer.receive(invisible_duration=LONG_S)
        consumer.change_invisible_duration(message, 0)
        (message,) = consumer.receive(invisible_duration=LONG_S)
        assert message.reconsume_times == 1
        consumer.ack(message)
        assert consumer.receive(timeout=0.0) == []


def test_misuse_is_told_before_anything_is_asked(cluster: LocalCluster, name: str) -> None:
    async def scene(of: Scene) -> None:
        for wrong in ((0, 30.0, 1.0), (33, 30.0, 1.0), (1, 0.0, 1.0), (1, 13 * 3600.0, 1.0), (1, 30.0, -1.0)):
            with pytest.raises(ClientConfigError, match="it must be from"):
                await of.consumer.receive(*wrong)
        await of.send("a")
        (message,) = await of.receive(1)
        with pytest.raises(ClientConfigError):
            await of.consumer.change_invisible_duration(message, -1.0)
        async with aio.LitePullConsumer(f"{name}_pull", namesrv=cluster.namesrv, from_where=FIRST) as pull:
            pull.subscribe(name)
            (pulled,) = await pull.poll(30.0)
        with pytest.raises(ClientError, match="has no receipt handle"):
            await of.consumer.ack(pulled)
        of.consumer.unsubscribe(name)
        with pytest.raises(ClientError, match="no subscription"):
            await of.consumer.receive()

    play(cluster, name, scene)
    with pytest.raises(ClientConfigError, match="TIMESTAMP"):
        SimpleConsumer(name, from_where=ConsumeFromWhere.TIMESTAMP)


def test_a_topic_that_does_not_exist_and_a_refusal_of_the_broker_are_errors(cluster: LocalCluster, name: str) -> None:
    async def nowhere(of: Scene) -> None:
        with pytest.raises(NoRouteError, match=name):
            await of.consumer.receive(timeout=3.0)

    async def refused(of: Scene) -> None:
        await of.send("a")
        with pytest.raises(ResponseError, match="an invisible time"):
            await of.consumer._receive(1, 10 * 24 * 3600.0, asyncio.get_running_loop().time() + 30)

    play(cluster, name, nowhere)
    play(cluster, name, refused)


def test_a_receive_survives_a_restart_of_its_broker(own_cluster: LocalCluster, name: str) -> None:
    async def scene(of: Scene) -> None:
        await of.send("a")
        (message,) = await of.receive(1)
        await of.consumer.ack(message)
        waiting = asyncio.create_task(of.consumer.receive(1, LONG_S, 120.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(own_cluster.restart_broker)
        await of.send("b")
        (after,) = await waiting
        assert after.body == b"b"

    play(own_cluster, name, scene)


# ----------------------------------------------------------------------------------------------------- without a broker


def route(*brokers: str) -> TopicRoute:
    groups = tuple(QueueGroup(broker, 2, 2, 6, 0) for broker in brokers)
    return TopicRoute(groups, tuple(Broker(broker, "c", {0: "h:1"}) for broker in brokers), "")


def test_every_topic_and_every_broker_has_its_turn() -> None:
    """Topics in turn first, then the brokers of each: one with many brokers takes nothing from one with few."""
    sources = Sources(lambda work, name: asyncio.get_running_loop().create_task(work, name=name))
    routes = {"A": route("b0", "b1", "b2"), "B": route("b0")}
    rounds = [sources.in_turn(routes) for _ in range(12)]
    assert all(sorted(each) == sorted(rounds[0]) and len(set(each)) == 4 for each in rounds)
    firsts = [each[0] for each in rounds]
    assert [source.topic for source in firsts] == ["A", "B"] * 6
    assert {broker: firsts.count(Source("A", broker)) for broker in ("b0", "b1", "b2")} == {"b0": 2, "b1": 2, "b2": 2}
    assert sources.in_turn({}) == []


@given(
    ahead_ms=st.integers(-(10**9), 10**12),
    trips=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 20_000), st.integers(0, 3000)), min_size=1),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_pop_is_never_taken_to_be_later_than_it_was_once_a_short_answer_told_the_clock(
    ahead_ms: int, trips: list[tuple[int, int, int]]
) -> None:
    """Each trip takes so long to the broker, is held there, and comes back; the answer has whole milliseconds."""
    clock, now_ms = PopClock(), 1000
    for there_ms, held_ms, back_ms in trips:
        sent_ms, popped_ms = now_ms, now_ms + there_ms + held_ms
        now_ms = popped_ms + back_ms
        told_ms = popped_ms + max(ahead_ms, 0)
        at_s = clock.popped_at(told_ms, sent_s=sent_ms / 1000, received_s=now_ms / 1000)
        assert sent_ms / 1000 <= at_s <= now_ms / 1000
        if clock.is_known:
            assert at_s <= popped_ms / 1000 + 1e-6
            if now_ms - sent_ms <= 1000:
                assert popped_ms / 1000 - at_s <= 1.001 + 1e-6


def test_a_clock_that_was_set_is_learned_anew() -> None:
    clock = PopClock()
    assert clock.popped_at(50_000, sent_s=10.0, received_s=10.1) == 10.0
    for step_ms in (3_600_000, -7_200_000):
        clock.popped_at(51_000 + step_ms, sent_s=11.0, received_s=11.1)
        assert clock.popped_at(52_050 + step_ms, sent_s=12.0, received_s=13.5) == pytest.approx(12.049, abs=0.003)
