"""The short way of blocking sends: who takes it, and that a failed one goes on where every other does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from contrailmq import Message, Producer, SendStatus
from contrailmq.client.blocking import direct as direct_module
from contrailmq.client.blocking.direct import DirectSends
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.errors import SendFailedError
from contrailmq.client.hooks import ClientHooks
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError

from .fake_peer import FakePeer, Script, name_server, refused, route_to, stored
from .names import fresh_name


@pytest.fixture
def name() -> str:
    return fresh_name("Direct")


def direct_of(producer: Producer) -> DirectSends:
    assert producer._direct is not None
    return producer._direct


def test_sends_of_many_threads_are_each_stored_once_on_a_connection_for_each_at_a_time(
    cluster: LocalCluster, name: str
) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"the route is known then"))
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(lambda number: producer.send(Message(name, b"%d" % number)), range(400)))
        connections = [pooled.connection for pool in direct_of(producer)._pools.values() for pooled in pool]
    assert {result.status for result in results} == {SendStatus.OK}
    assert len({(result.queue, result.queue_offset) for result in results}) == 400
    assert len({result.message_id for result in results}) == 400
    with QueueReader(namesrv=cluster.namesrv) as reader:
        assert sum(reader.max_offset(queue) for queue in reader.queues(name)) == 401
    assert 1 <= len(connections) <= 8
    assert {connection._socket.fileno() for connection in connections} == {-1}  # the producer has ended


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({}, b"x" * 5000),
        ({"hooks": ClientHooks()}, b"x"),
        ({"trace": True}, b"x"),
        ({"send_latency_fault_enable": True}, b"x"),
        ({"retry_another_broker_when_not_store_ok": True}, b"x"),
    ],
    ids=["to be compressed", "with hooks", "traced", "with latencies", "with results that are tried again"],
)
def test_what_needs_more_than_a_request_goes_over_the_loop(
    cluster: LocalCluster, name: str, settings: dict[str, object], body: bytes
) -> None:
    with Producer(name, namesrv=cluster.namesrv, **settings) as producer:  # type: ignore[arg-type]
        assert producer.send(Message(name, b"the route is known then")).status is SendStatus.OK
        assert direct_of(producer).send(Message(name, body), 3.0) is None
        assert producer.send(Message(name, body)).status is SendStatus.OK


def test_a_batch_takes_the_short_way_too(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        assert direct_of(producer).send_batch([Message(name, b"0")], 3.0) is None  # its queues are not known
        producer.send(Message(name, b"the route is known then"))
        result = direct_of(producer).send_batch([Message(name, b"%d" % number) for number in range(5)], 3.0)
        assert result is not None
        again = producer.send_batch([Message(name, b"5"), Message(name, b"6")])
    assert (result.status, again.status) == (SendStatus.OK, SendStatus.OK)
    assert len(result.message_id.split(",")) == 5
    with QueueReader(namesrv=cluster.namesrv) as reader:
        assert sum(reader.max_offset(queue) for queue in reader.queues(name)) == 8


def test_somebody_who_waits_for_ever_may(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        statuses = [producer.send(Message(name, b"x"), timeout=float("inf")).status for _ in range(3)]
    assert statuses == [SendStatus.OK] * 3


def test_a_topic_that_is_not_known_yet_goes_over_the_loop_once(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        assert direct_of(producer).send(Message(name, b"x"), 3.0) is None
        assert producer.send(Message(name, b"x")).status is SendStatus.OK
        assert direct_of(producer).send(Message(name, b"x"), 3.0) is not None


def scripted(
    scripts: list[Script],
    use: Callable[[Producer, list[FakePeer]], Awaitable[None]],
    *,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    **settings: object,
) -> list[int]:
    """Use a producer whose topic lies on brokers that answer by script; how many sends each of them saw.

    The first send, which learns the route, is answered and not counted.
    """

    async def main() -> list[int]:
        brokers = [FakePeer(stored) for _ in scripts]
        for broker in brokers:
            await broker.__aenter__()
        pairs = [(f"b{index}", broker.address) for index, broker in enumerate(brokers)]
        async with name_server(lambda _topic: route_to(*pairs)) as names:
            producer = Producer("direct", namesrv=names.address, **settings)  # type: ignore[arg-type]
            await asyncio.to_thread(producer.start)
            await asyncio.to_thread(producer.send, Message("T", b"first"))
            for broker, script in zip(brokers, scripts, strict=True):
                broker.script = script
                broker.requests.clear()
            await use(producer, brokers)
            await asyncio.to_thread(producer.shutdown)
        for broker in brokers:
            await broker.__aexit__()
        return [len(broker.asked(code)) for broker in brokers]

    return asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_failed_try_is_the_first_of_all_tries(retries: int) -> None:
    async def use(producer: Producer, _brokers: list[FakePeer]) -> None:
        with pytest.raises(SendFailedError) as caught:
            await asyncio.to_thread(producer.send, Message("T", b"x"))
        assert f"{1 + retries} tr" in str(caught.value)

    busy = refused(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert sum(scripted([busy, busy], use, retry_times=retries)) == 1 + retries


def test_the_second_try_goes_to_another_broker() -> None:
    async def use(producer: Producer, _brokers: list[FakePeer]) -> None:
        for _ in range(4):  # each broker has its turn
            result = await asyncio.to_thread(producer.send, Message("T", b"x"))
            assert (result.status, result.queue.broker_name) == (SendStatus.OK, "b1")

    first, second = scripted([refused(ResponseCode.SERVICE_NOT_AVAILABLE), stored], use)
    assert second == 4
    assert 1 <= first <= 4


def test_a_batch_that_fails_is_tried_elsewhere() -> None:
    async def use(producer: Producer, _brokers: list[FakePeer]) -> None:
        with pytest.raises(SendFailedError):
            await asyncio.to_thread(producer.send_batch, [Message("T", b"x"), Message("T", b"y")])

    busy = refused(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert sum(scripted([busy, busy], use, retry_times=2, code=RequestCode.SEND_BATCH_MESSAGE)) == 3


def test_a_refusal_that_holds_everywhere_is_told_at_once() -> None:
    async def use(producer: Producer, _brokers: list[FakePeer]) -> None:
        with pytest.raises(ResponseError, match="scripted"):
            await asyncio.to_thread(producer.send, Message("T", b"x"))

    illegal = refused(ResponseCode.MESSAGE_ILLEGAL)
    assert sum(scripted([illegal, illegal], use)) == 1


def test_an_answer_that_does_not_come_ends_with_the_time_limit_and_is_not_taken_for_the_next_one() -> None:
    async def use(producer: Producer, brokers: list[FakePeer]) -> None:
        with pytest.raises(SendFailedError, match="no answer"):
            await asyncio.to_thread(producer.send, Message("T", b"x"), timeout=3.0)
        assert not any(direct_of(producer)._pools.values())
        brokers[0].script = stored
        assert (await asyncio.to_thread(producer.send, Message("T", b"x"))).status is SendStatus.OK

    assert scripted([lambda _request: None], use) == [2]


def test_a_connection_that_the_broker_has_closed_meanwhile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(producer: Producer, brokers: list[FakePeer]) -> None:
        await asyncio.to_thread(producer.send, Message("T", b"x"))
        monkeypatch.setattr(direct_module, "TRUSTED_S", 0.0)
        brokers[0].hang_up()
        await brokers[0].closed()
        assert (await asyncio.to_thread(direct_of(producer).send, Message("T", b"x"), 3.0)) is not None

    assert scripted([stored], use) == [2]


def test_a_broker_that_hangs_up_in_the_middle_is_asked_again() -> None:
    async def use(producer: Producer, brokers: list[FakePeer]) -> None:
        await asyncio.to_thread(producer.send, Message("T", b"x"))
        brokers[0].hang_up()
        await brokers[0].closed()
        assert (await asyncio.to_thread(producer.send, Message("T", b"x"))).status is SendStatus.OK

    assert scripted([stored], use) == [2]
