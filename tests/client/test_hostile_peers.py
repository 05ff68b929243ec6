"""Brokers and NameServers that answer nonsense, and applications whose own code raises: clients say so and go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, MessageQueue, StoredMessage, TransactionState
from contrailmq.client.errors import number
from contrailmq.client.rebalance import AverageStrategy
from contrailmq.client.transport.routes import TopicRoute, parse_route, publish_queues
from contrailmq.wire.bodies import ConsumerList, encode_body, encode_route
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from waiting_for import until_async

from .fake_peer import FakePeer, name_server, route_to, stored
from .messages import record

CLIENT_IP = "10.1.1.1"
CLIENT_ID = f"{CLIENT_IP}@hostile"


class GroupBroker:
    """Enough of a broker for one member of a group; `offset` is what it says about stored offsets."""

    def __init__(self, offset: dict[str, str]) -> None:
        self.offset = offset

    def __call__(self, request: Command) -> bytes | None:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return encode_response(request, body=encode_body(ConsumerList(consumer_id_list=[CLIENT_ID])))
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return encode_response(request, 0, self.offset)
        return None  # pulls wait


@pytest.mark.parametrize("offset", [{}, {"offset": "twelve"}])
def test_a_queue_whose_offset_is_garbled_is_taken_when_the_broker_has_mended(offset: dict[str, str]) -> None:
    async def work() -> None:
        script = GroupBroker(offset)
        async with (
            FakePeer(script) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
        ):
            consumer = aio.PushConsumer(
                "g", namesrv=namesrv.address, client_ip=CLIENT_IP, instance_name="hostile", rebalance_interval_s=0.05
            )
            consumer.subscribe("T")
            consumer.listen(lambda _: None)
            async with consumer:
                await broker.wait_for(RequestCode.QUERY_CONSUMER_OFFSET)
                script.offset = {"offset": "12"}
                async with asyncio.timeout(120):
                    await broker.wait_for(RequestCode.PULL_MESSAGE)
                assert broker.asked(RequestCode.PULL_MESSAGE)[0].ext["queueOffset"] == "12"

    asyncio.run(work())


class Fickle(AverageStrategy):
    """Raises, then answers what is no share, then is as good as the one it derives from."""

    name = "FICKLE"

    def __init__(self) -> None:
        self.calls = 0

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        self.calls += 1
        if self.calls == 1:
            raise ZeroDivisionError
        return super().allocate(client_id, queues, client_ids) if self.calls > 2 else ["T-0"]  # type: ignore[list-item]


def test_a_strategy_that_raises_does_not_end_the_rebalancing() -> None:
    strategy = Fickle()

    async def work() -> None:
        async with (
            FakePeer(GroupBroker({"offset": "0"})) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
        ):
            consumer = aio.PushConsumer(
                "g", namesrv=namesrv.address, client_ip=CLIENT_IP, instance_name="hostile", strategy=strategy
            )
            consumer.subscribe("T")
            consumer.listen(lambda _: None)
            async with consumer:
                async with asyncio.timeout(120):
                    await broker.wait_for(RequestCode.PULL_MESSAGE)
                assert [queue.topic for queue in consumer.queues] == ["T"]

    asyncio.run(work())
    assert strategy.calls > 2


@pytest.mark.parametrize("conf", ["a:x", "a:-1", "a:1;b:two"])
def test_an_order_configuration_that_is_none_is_the_peers_error(conf: str) -> None:
    route = replace(parse_route(encode_route(route_to(("a", "h:1")), is_standard=True)), order_conf=conf)
    assert isinstance(route, TopicRoute)
    with pytest.raises(RemoteProtocolError, match="order configuration of topic 'T'"):
        publish_queues("T", route)


def test_a_number_that_is_missing_or_garbled_names_its_field() -> None:
    assert number({"offset": "7"}, "offset") == 7
    for ext in ({}, {"offset": ""}, {"offset": "7.5"}):
        with pytest.raises(RemoteProtocolError, match="lack or garble offset") as caught:
            number(ext, "offset")
        assert caught.value.field == "offset"


def test_garbled_checks_and_cancelled_answers_do_not_end_the_answering() -> None:
    """Four workers answer: five checks that would each end one are followed by one that is in order."""

    async def check(message: StoredMessage) -> TransactionState:
        if message.body == b"cancelled":
            waited_for = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for
        return TransactionState.COMMIT

    async def work() -> None:
        async with (
            FakePeer(lambda request: None if request.is_oneway else stored(request)) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.TransactionProducer(
                "g", namesrv=namesrv.address, execute=lambda *_: TransactionState.COMMIT, check=check
            ) as producer,
        ):
            await producer.send(Message("T", b"x"))
            in_order = {"tranStateTableOffset": "1", "commitLogOffset": "2"}
            asked: list[tuple[dict[str, str], bytes]] = [({}, b"garbled")] * 5
            asked += [(in_order, b"cancelled")] * 5
            asked.append((in_order, b"fine"))
            for ext, body in asked:
                broker.tell(RequestCode.CHECK_TRANSACTION_STATE, ext, record(body=body, properties={"PGROUP": "g"}))
            await until_async(lambda: len(broker.asked(RequestCode.END_TRANSACTION)) >= 6)
            states = [request.ext["commitOrRollback"] for request in broker.asked(RequestCode.END_TRANSACTION)]
            assert sorted(states) == ["0"] * 5 + ["8"]

    asyncio.run(work())


def test_a_consumer_without_listener_answers_who_asks_it_to_consume() -> None:
    async def work() -> Command:
        async with (
            FakePeer(GroupBroker({"offset": "0"})) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
        ):
            pull = aio.LitePullConsumer("g", namesrv=namesrv.address, from_where=ConsumeFromWhere.FIRST_OFFSET)
            pull.subscribe("T")
            async with pull:
                await broker.wait_for(RequestCode.HEART_BEAT)
                return await broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, record())

    answer = asyncio.run(work())
    assert (answer.code, answer.remark) == (1, "a pull consumer has no listener to run")
