"""Histories of a simple consumer on virtual time: a broker that is killed between the steps, or is not.

The model knows of each message when it becomes visible again, and whether its acknowledgement was confirmed in time.
Never does an acknowledged message come, nor one that is still invisible; a late acknowledgement is an error; and in the
end every message that was sent is acknowledged, after exactly as many deliveries as its count of attempts says.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contrailmq import aio
from contrailmq.client.errors import ReceiptExpiredError
from contrailmq.client.records import PoppedMessage
from contrailmq.client.results import ConsumeFromWhere
from contrailmq.message import ContrailError, Message
from contrailmq.message.model import StoredMessage
from how_many import examples
from simulation.cluster import Cluster
from simulation.nodes import Node

TOPICS = ("Orders", "Bills")
EARLY_S = 0.02  # a trip to the broker: it may count from a moment before the client knows
LATE_S = 2.0  # after its time a message is there, for who asks
DRAIN_S = 120.0
DRAIN_INVISIBLE_S = 10.0

steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("receive"), st.integers(1, 8), st.sampled_from((0.5, 2.0, 7.0))),
    st.tuples(st.just("ack"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("change"), st.integers(0, 20), st.sampled_from((0.0, 1.0, 5.0))),
    st.tuples(st.just("wait"), st.sampled_from((0.1, 1.0, 4.0)), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 1), st.just(0)),
)


@dataclass
class Known:
    """What the model knows of one message."""

    deliveries: int = 0
    visible_s: float = 0.0  # not before that may it come
    held: PoppedMessage | None = None
    is_acked: bool = False


@dataclass
class Play:
    cluster: Cluster
    sent: int = 0
    known: dict[bytes, Known] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)
    is_over: bool = False

    async def run(self, node: Node, history: list[tuple[str, float, float]]) -> None:
        namesrv = self.cluster.namesrv
        async with (
            aio.Producer("p", namesrv=namesrv, send_timeout_s=60.0) as producer,
            aio.SimpleConsumer(
                "g", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=-1
            ) as consumer,
        ):
            for topic in TOPICS:
                await self.send(producer, topic, 1)
                consumer.subscribe(topic)
            for what, a, b in history:
                if what == "send":
                    await self.send(producer, TOPICS[int(a)], int(b))
                elif what == "receive":
                    await self.receive(consumer, int(a), b)
                elif what == "wait":
                    await asyncio.sleep(a)
                elif what == "kill":
                    self.kills.append(int(a))
                elif body := self.chosen(int(a)):
                    await self.settle(consumer, self.known[body], what, b)
            await self.drain(consumer)
            end_s = asyncio.get_running_loop().time() + DRAIN_INVISIBLE_S + LATE_S
            while asyncio.get_running_loop().time() < end_s:  # what is acknowledged must not come now either
                await self.receive(consumer, 32, DRAIN_INVISIBLE_S)
        self.is_over = True

    def chosen(self, number: int) -> bytes | None:
        held = [body for body, known in self.known.items() if known.held is not None]
        return held[number % len(held)] if held else None

    async def send(self, producer: aio.Producer, topic: str, count: int) -> None:
        for _ in range(count):
            body = b"%d" % self.sent
            self.sent += 1
            self.known[body] = Known()
            await producer.send(Message(topic, body))

    async def receive(self, consumer: aio.SimpleConsumer, count: int, invisible_s: float, timeout: float = 1.0) -> None:
        loop = asyncio.get_running_loop()
        try:
            messages = await consumer.receive(count, invisible_s, timeout)
        except ContrailError as exc:
            assert getattr(exc, "retriable", False), exc
            return
        for message in messages:
            self.note(message, loop.time())

    def note(self, message: StoredMessage, now_s: float) -> None:
        assert isinstance(message, PoppedMessage)
        known = self.known[message.body]
        if known.is_acked:
            self.wrong.append(f"{message.body!r} came again after its acknowledgement was confirmed")
        if now_s < known.visible_s - EARLY_S:
            self.wrong.append(f"{message.body!r} came {known.visible_s - now_s:.3f} s before it was visible")
        if message.reconsume_times < known.deliveries:
            self.wrong.append(f"{message.body!r} is delivery {known.deliveries + 1}, told {message.reconsume_times}")
        if message.topic not in TOPICS:
            self.wrong.append(f"{message.body!r} is shown under {message.topic}")
        known.deliveries = message.reconsume_times + 1
        known.visible_s, known.held = message.visible_at_s, message

    async def settle(self, consumer: aio.SimpleConsumer, known: Known, what: str, seconds: float) -> None:
        loop, message = asyncio.get_running_loop(), known.held
        assert message is not None
        is_late = loop.time() >= message.visible_at_s
        try:
            if what == "ack":
                await consumer.ack(message)
                known.is_acked |= loop.time() < message.visible_at_s
                known.held = None
            else:
                await consumer.change_invisible_duration(message, seconds)
                known.visible_s = message.visible_at_s
        except ReceiptExpiredError as exc:
            if not is_late and loop.time() < message.visible_at_s - EARLY_S and known.visible_s != 0.0:
                self.wrong.append(f"{message.body!r} was refused in time: {exc}")
            known.held = None
            return
        except ContrailError:  # the broker is down: nobody knows whether it has it
            known.visible_s, known.held = 0.0, None
            return
        if is_late:
            self.wrong.append(f"a late {what} of {message.body!r} was taken")

    async def drain(self, consumer: aio.SimpleConsumer) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + DRAIN_S
        while loop.time() < end_s:
            left = [body for body, known in self.known.items() if not known.is_acked and not self.may_be_done(body)]
            for known in self.known.values():
                if known.held is not None and loop.time() < known.held.visible_at_s - 1.0:
                    await self.settle(consumer, known, "ack", 0)
            if not left:
                return
            await self.receive(consumer, 32, DRAIN_INVISIBLE_S)
        self.wrong.append(f"not delivered within {DRAIN_S} s: {left}")

    def may_be_done(self, body: bytes) -> bool:
        """An acknowledgement was sent and not answered: the broker may have it."""
        known = self.known[body]
        return known.deliveries > 0 and known.held is None and known.visible_s == 0.0


@given(history=st.lists(steps, min_size=5, max_size=40), seed=st.integers(0, 1000))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_acknowledged_in_time_never_comes_and_everything_else_comes_in_its_time(
    history: list[tuple[str, float, float]], seed: int
) -> None:
    with Cluster(seed, flush="ASYNC_FLUSH") as cluster:
        cluster.start_name_server()
        for name in ("b0", "b1"):
            cluster.start_broker(name)
        play = Play(cluster)
        client = cluster.start_client("client", lambda node: play.run(node, history))
        while not play.is_over and client.is_alive and client.error is None:
            assert cluster.world.run_until(lambda: bool(play.kills) or client.is_done, within_s=600.0), "it hangs"
            if play.kills:
                name = f"b{play.kills.pop(0)}"
                cluster.node(name).kill()
                cluster.start_broker(name)
        if client.error is not None:
            raise client.error
        assert play.is_over
        assert play.wrong == []
        for node in cluster.world.nodes.values():
            assert (node.complaints, node.failed_threads) == ([], []), node.name
