"""Brokers, routes and NameServers that are away for a while: what sends wait for, and what consumers are told."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine

import pytest

import contrailmq.aio as aio
from contrailmq import LitePullConsumer, Message, MessageQueue, Producer, SendStatus, TransactionState
from contrailmq.client.errors import ClientStateError, NoNameServerError, NoRouteError, SendFailedError
from contrailmq.client.producing.selectors import by_hash
from contrailmq.client.producing.tries import PAUSE_S_MAX
from contrailmq.client.transport.instance import MISSING_ROUTE_WARN_S
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import TopicRouteData
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectError, ResponseError
from contrailmq.wire.refusals import MASTER_ASKS_SLAVES, slave_takes_no_messages
from free_ports import free_port

from .fake_peer import FakePeer, name_server, nothing_listens, refused, route_to, stored
from .names import fresh_name
from .waiting import MovedLoop

MESSAGE = Message("T", b"x")
QUEUE = MessageQueue("T", "a", 0)
LONG_S = 120.0
ALL_OF_IT_S = 3.0  # a send takes all of it; a process may stand still for most of it
TRIES_MAX = 20  # in that time: pauses of 25 to 50 ms, then twice as long, up to PAUSE_S_MAX
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def test_a_group_that_a_broker_refuses_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "clientGroupsMax=0" in record.getMessage()]

    caplog.set_level(logging.INFO, "contrailmq.client")
    with LocalCluster(config={"clientGroupsMax": "0"}) as cluster:
        with Producer("p", namesrv=cluster.namesrv) as producer:
            producer.send(MESSAGE)
        with LitePullConsumer(fresh_name("Refused"), namesrv=cluster.namesrv) as consumer:
            consumer.subscribe("T")
            while len([record for record in told() if record.name == "contrailmq.client"]) < 3:
                assert consumer.poll(timeout=0.1) == []
    levels = [record.levelno for record in told() if record.name == "contrailmq.client"]
    assert (levels[0], set(levels[1:])) == (logging.WARNING, {logging.INFO})


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def never_ending(address: str) -> aio.Producer:
    """Whoever waits for its time to be over waits longer than `run` does."""
    return aio.Producer("g", namesrv=address, send_timeout_s=3600.0, request_timeout_s=3600.0)


def in_transaction(address: str) -> aio.TransactionProducer:
    return aio.TransactionProducer(
        "g",
        namesrv=address,
        execute=lambda message, arg: TransactionState.COMMIT,
        check=lambda message: TransactionState.UNKNOWN,
    )


Send = Callable[[aio.TransactionProducer, float], Awaitable[object]]
WAITING: dict[str, Send] = {
    "send": lambda producer, timeout: producer.send(MESSAGE, timeout=timeout),
    "batch": lambda producer, timeout: producer.send_batch([MESSAGE, MESSAGE], timeout=timeout),
    "to a queue": lambda producer, timeout: producer.send(MESSAGE, queue=QUEUE, timeout=timeout),
    "batch to a queue": lambda producer, timeout: producer.send_batch([MESSAGE, MESSAGE], queue=QUEUE, timeout=timeout),
    "selector": lambda producer, timeout: producer.send(MESSAGE, selector=by_hash, arg="k", timeout=timeout),
    "transaction": lambda producer, timeout: producer.send_in_transaction(MESSAGE, timeout=timeout),
}


@pytest.mark.parametrize("send", WAITING.values(), ids=WAITING)
def test_a_broker_that_comes_back_in_time_gets_the_message(send: Send) -> None:
    """It listens again once the producer has asked for the route anew, which is after the first refused connection."""

    async def work() -> None:
        port = free_port()
        route = route_to(("a", f"127.0.0.1:{port}"))
        async with name_server(lambda _: route) as namesrv, in_transaction(namesrv.address) as producer:
            assert len(await producer.queues("T")) == 1
            namesrv.hang_up()
            sending = asyncio.ensure_future(send(producer, LONG_S))
            await namesrv.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            async with FakePeer(stored, port=port) as broker:
                assert getattr(await sending, "status") is SendStatus.OK  # noqa: B009 -- of either kind of result
                assert sum(len(broker.asked(code)) for code in SENDS) == 1

    run(work())


@pytest.mark.parametrize("send", WAITING.values(), ids=WAITING)
def test_a_broker_that_stays_away_takes_the_whole_time_and_the_error_says_tries_seconds_and_cause(send: Send) -> None:
    async def work() -> None:
        address = nothing_listens()
        async with (
            name_server(lambda _: route_to(("a", address))) as namesrv,
            in_transaction(namesrv.address) as producer,
        ):
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(SendFailedError, match=f"cannot connect to {address}") as caught:
                await send(producer, ALL_OF_IT_S)
            took_s = asyncio.get_running_loop().time() - began_s
        error = caught.value
        assert took_s >= ALL_OF_IT_S - 0.01  # to a chosen queue, the search for a route takes some of the time
        assert error.elapsed_s <= took_s
        assert 2 <= error.tries <= TRIES_MAX
        assert f"failed after {error.tries} tries in {error.elapsed_s:.3f} s (brokers a)" in str(error)
        assert error.code == 10001

    run(work())


@pytest.mark.parametrize("missing", ["route", "master", "name server"])
def test_a_route_that_comes_in_time_is_waited_for(missing: str) -> None:
    """Nothing knows the topic when the send begins; the second question is answered."""

    async def work() -> None:
        async with FakePeer(stored) as broker:
            known: list[TopicRouteData | None] = [None]
            if missing == "master":
                known = [route_to(("a", broker.address))]
                known[0].broker_datas[0].broker_addrs = {1: broker.address}  # type: ignore[union-attr]
            port = free_port()
            namesrv = name_server(lambda _: known[0], port=port)
            if missing != "name server":
                await namesrv.__aenter__()
            async with aio.Producer("g", namesrv=f"127.0.0.1:{port}") as producer:
                sending = producer.send_async(MESSAGE, timeout=LONG_S)
                if missing == "name server":
                    with pytest.raises(NoNameServerError):
                        await producer.queues("T")
                    known[0] = route_to(("a", broker.address))
                    await namesrv.__aenter__()
                else:
                    await namesrv.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC)
                    known[0] = route_to(("a", broker.address))
                assert (await sending).status is SendStatus.OK
            await namesrv.__aexit__()

    run(work())


def test_a_topic_that_stays_unknown_takes_the_whole_time_and_says_what_to_do() -> None:
    async def work() -> None:
        async with name_server(lambda _: None) as namesrv, aio.Producer("g", namesrv=namesrv.address) as producer:
            with pytest.raises(SendFailedError, match="no route for topic 'T'.*autoCreateTopicEnable") as caught:
                await producer.send(MESSAGE, timeout=ALL_OF_IT_S)
            assert isinstance(caught.value.__cause__, NoRouteError)
            assert caught.value.code == 10005
            assert caught.value.elapsed_s >= ALL_OF_IT_S - 0.01

    run(work())


def test_a_oneway_send_does_not_wait() -> None:
    async def work() -> None:
        address = nothing_listens()
        routes = {"T": route_to(("a", address))}
        async with name_server(routes.get) as namesrv, never_ending(namesrv.address) as producer:
            with pytest.raises(ConnectError):
                await producer.send_oneway(MESSAGE)
            with pytest.raises(NoRouteError):
                await producer.send_oneway(Message("Unknown", b"x"))

    run(work())


def test_tries_that_reached_a_broker_are_counted_and_those_that_reached_nobody_are_not() -> None:
    """The answers of b use up the tries, however often a refuses the connection in between."""

    async def work() -> None:
        async with FakePeer(refused(ResponseCode.SYSTEM_BUSY)) as busy:
            routes = route_to(("a", nothing_listens()), ("b", busy.address))
            async with name_server(lambda _: routes) as namesrv, aio.Producer("g", namesrv=namesrv.address) as producer:
                with pytest.raises(SendFailedError) as caught:
                    await producer.send(MESSAGE, timeout=LONG_S)
            assert len(busy.asked(RequestCode.SEND_MESSAGE_V2)) == 3
            assert caught.value.brokers.count("b") == 3
            assert caught.value.elapsed_s < LONG_S / 2

    run(work())


REFUSED_FOR_WANT_OF_A_MASTER = {
    "slave": (ResponseCode.SYSTEM_BUSY, slave_takes_no_messages("a", 1)),
    "master that has just returned": (ResponseCode.SERVICE_NOT_AVAILABLE, MASTER_ASKS_SLAVES),
}


@pytest.mark.parametrize("send", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("refusal", REFUSED_FOR_WANT_OF_A_MASTER.values(), ids=REFUSED_FOR_WANT_OF_A_MASTER)
def test_a_send_that_a_slave_refuses_goes_to_the_master_that_comes_in_time(
    send: Send, refusal: tuple[int, str]
) -> None:
    """The route has the slave in the master's place until it has refused, and the master when it is asked for anew."""

    async def work() -> None:
        async with FakePeer(refused(*refusal)) as slave, FakePeer(stored) as master:
            routes = [route_to(("a", slave.address))]
            async with (
                name_server(lambda topic: routes[-1] if topic == "T" else None) as namesrv,
                in_transaction(namesrv.address) as producer,
            ):
                assert len(await producer.queues("T")) == 1
                sending = asyncio.ensure_future(send(producer, LONG_S))
                await slave.wait_for_any(*SENDS)
                routes.append(route_to(("a", master.address)))
                assert getattr(await sending, "status") is SendStatus.OK  # noqa: B009 -- of either kind of result
                assert sum(len(master.asked(code)) for code in SENDS) == 1

    run(work())


@pytest.mark.parametrize("send", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("refusal", REFUSED_FOR_WANT_OF_A_MASTER.values(), ids=REFUSED_FOR_WANT_OF_A_MASTER)
def test_a_send_that_only_a_slave_answers_takes_the_whole_time_with_pauses_and_says_what_to_do(
    send: Send, refusal: tuple[int, str]
) -> None:
    async def work() -> None:
        code, remark = refusal
        async with (
            FakePeer(refused(code, remark)) as slave,
            name_server(lambda topic: route_to(("a", slave.address)) if topic == "T" else None) as namesrv,
            in_transaction(namesrv.address) as producer,
        ):
            await producer.queues("T")
            with pytest.raises(SendFailedError, match=re.escape(remark)) as caught:
                await send(producer, ALL_OF_IT_S)
            tries = sum(len(slave.asked(code)) for code in SENDS)
        error = caught.value
        assert error.code == code
        assert "no master took it in that time: start the master of a, or give the send more time" in str(error)
        assert ALL_OF_IT_S - 0.01 <= error.elapsed_s < LONG_S / 2
        assert 2 <= tries <= TRIES_MAX
        assert error.tries == tries

    run(work())


@pytest.mark.parametrize("send", [WAITING["to a queue"], WAITING["selector"]], ids=["to a queue", "selector"])
@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_refusal_that_says_nothing_of_a_slave_ends_a_send_to_a_chosen_queue_at_once(
    send: Send, code: ResponseCode
) -> None:
    async def work() -> None:
        async with (
            FakePeer(refused(code)) as busy,
            name_server(lambda _: route_to(("a", busy.address))) as namesrv,
            in_transaction(namesrv.address) as producer,
        ):
            with pytest.raises(ResponseError, match="scripted"):
                await send(producer, LONG_S)
            assert len(busy.asked(RequestCode.SEND_MESSAGE_V2)) == 1

    run(work())


def test_a_shutdown_ends_a_send_that_waits() -> None:
    async def work() -> None:
        async with name_server(lambda _: None) as namesrv:
            producer = aio.Producer("g", namesrv=namesrv.address)
            await producer.start()
            sending = producer.send_async(MESSAGE, timeout=600)
            await namesrv.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            await producer.shutdown()
            with pytest.raises((SendFailedError, ClientStateError)):
                await asyncio.wait_for(sending, 10 * PAUSE_S_MAX)

    run(work())


@pytest.mark.parametrize("is_batch", [False, True])
def test_blocking_sends_outlast_a_real_brokers_restart(is_batch: bool) -> None:
    """The short way fails first (`direct`); the broker is back on its port before the time is over."""
    name = fresh_name("Restart")
    with LocalCluster() as cluster, Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"the route is known then"))
        cluster.kill_broker()

        async def both() -> object:
            message = Message(name, b"x")
            call = (lambda: producer.send_batch([message], timeout=LONG_S)) if is_batch else (
                lambda: producer.send(message, timeout=LONG_S)
            )  # fmt: skip
            sending = asyncio.create_task(asyncio.to_thread(call))
            await asyncio.to_thread(cluster.restart_broker)
            return (await sending).status

        assert asyncio.run(both()) is SendStatus.OK


def test_a_subscription_to_a_topic_that_does_not_exist_is_warned_of_once_and_its_coming_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told(level: int) -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.levelno == level and record.name == "contrailmq.client" and "Misspelt" in record.getMessage()
        ]

    async def until(condition: Callable[[], object], until_s: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        while not condition() and loop.now_s < until_s:
            for _ in range(20):
                await asyncio.sleep(0)
            loop.now_s += 0.01

    async def work() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        known: list[TopicRouteData] = []
        async with FakePeer(stored) as broker, name_server(lambda _: known[0] if known else None) as namesrv:
            consumer = aio.PushConsumer("g", namesrv=namesrv.address)
            consumer.subscribe("Misspelt")
            consumer.listen(lambda messages: None)
            await consumer.start()
            await until(lambda: told(logging.WARNING), began_s + 2 * MISSING_ROUTE_WARN_S)
            assert loop.time() - began_s >= MISSING_ROUTE_WARN_S
            await until(lambda: False, loop.time() + 2 * MISSING_ROUTE_WARN_S)
            (warning,) = told(logging.WARNING)
            assert "group g" in warning
            assert namesrv.address in warning
            assert "contrailmq admin topic create" in warning
            known.append(route_to(("a", broker.address)))
            await until(
                lambda: told(logging.INFO)[-1:] == ["topic Misspelt is there now: its messages are consumed"],
                loop.time() + 5,
            )
            assert len(told(logging.WARNING)) == 1
            ending = asyncio.ensure_future(consumer.shutdown())
            await until(ending.done, loop.time() + 60)
            await ending

    caplog.set_level(logging.INFO, "contrailmq.client")
    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(work())
