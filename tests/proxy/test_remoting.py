"""Remoting clients that know the proxy alone: what they do is done by the brokers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from contrailmq.client.settings import ClientOptions
from contrailmq.message import ContrailError
from contrailmq.proxy import brokers
from contrailmq.proxy.server import ProxyConfig, ProxyServer
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import HeartbeatData, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient
from wire.peers import turns_until

WAIT_S = 60


class Front:
    """A proxy on a loop of its own, for blocking clients."""

    def __init__(self, namesrv: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        config = ProxyConfig(client=ClientOptions(namesrv=namesrv), port=0, remoting_port=0, drain_s=0.2)
        self.server = self.run(_started(config))
        assert self.server.remoting is not None
        self.address = self.server.remoting.address

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    @property
    def passed(self) -> int:
        assert self.server.remoting is not None
        return self.server.remoting.passed

    def close(self) -> None:
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def passed_more_than(front: Front, count: int) -> None:
    await turns_until(lambda: front.passed > count)


async def _started(config: ProxyConfig) -> ProxyServer:
    server = ProxyServer(config)
    await server.start()
    return server


@contextlib.contextmanager
def front_of(namesrv: str) -> Iterator[Front]:
    front = Front(namesrv)
    try:
        yield front
    finally:
        front.close()


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, config={"transactionTimeOut": "1000", "transactionCheckInterval": "300"}) as made:
        with Admin(namesrv=made.namesrv) as admin:
            for name in ("behind", "behind-leaving", "behind-pop", "behind-order", "behind-halves", "behind-later"):
                admin.create_topic(name, queues=2)
        yield made


@pytest.fixture(scope="module")
def front(two_brokers: LocalCluster) -> Iterator[Front]:
    with front_of(two_brokers.namesrv) as made:
        yield made


def test_messages_of_all_queues_of_both_brokers_come_through_once_and_offsets_are_kept(front: Front) -> None:
    with Producer("through", namesrv=front.address) as producer:
        results = [producer.send(Message("behind", b"%d" % number, keys=[f"k{number}"])) for number in range(16)]
    assert len({(result.queue.broker_name, result.queue.queue_id) for result in results}) == 4
    settings: dict[str, Any] = {"namesrv": front.address, "from_where": ConsumeFromWhere.FIRST_OFFSET}
    got: list[bytes] = []
    with LitePullConsumer("through", **settings) as consumer:
        consumer.subscribe("behind")
        while len(got) < 16:
            got += [message.body for message in consumer.poll(timeout=10)]
        consumer.commit()
    assert sorted(got, key=int) == [b"%d" % number for number in range(16)]
    with Producer("through", namesrv=front.address) as producer:
        producer.send(Message("behind", b"next"))
    with LitePullConsumer("through", **settings) as consumer:
        consumer.subscribe("behind")
        assert [message.body for message in consumer.poll(timeout=20)] == [b"next"]


def test_a_push_consumer_gets_what_it_failed_again(front: Front) -> None:
    seen: list[tuple[bytes, int]] = []
    done = threading.Event()

    def listen(messages: list[Any]) -> None:
        for message in messages:
            seen.append((message.body, message.reconsume_times))
            if message.reconsume_times == 0:
                raise ValueError("again")
            done.set()

    consumer = PushConsumer("pushed", namesrv=front.address, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("behind-later")
    consumer.listen(listen)
    with consumer, Producer("pushing", namesrv=front.address) as producer:
        producer.send(Message("behind-later", b"twice"))
        assert done.wait(WAIT_S), seen
    assert seen == [(b"twice", 0), (b"twice", 1)]


def test_a_transaction_that_nobody_ended_is_asked_about_through_the_proxy(front: Front) -> None:
    asked: list[bytes] = []
    checked = threading.Event()

    def check(message: Any) -> TransactionState:
        asked.append(message.body)
        checked.set()
        return TransactionState.COMMIT

    with TransactionProducer(
        "halves", namesrv=front.address, execute=lambda message, argument: TransactionState.UNKNOWN, check=check
    ) as producer:
        producer.send_in_transaction(Message("behind-halves", b"half"))
        assert checked.wait(WAIT_S)
        with LitePullConsumer("halved", namesrv=front.address, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
            consumer.subscribe("behind-halves")
            assert [message.body for message in consumer.poll(timeout=30)] == [b"half"]
    assert set(asked) == {b"half"}


def test_requests_that_are_not_for_clients_are_refused_with_a_sentence(front: Front) -> None:
    async def work() -> None:
        client = RemotingClient()
        try:
            answer = await client.invoke(front.address, RequestCode.UPDATE_BROKER_CONFIG, {}, b"x=y")
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "the proxy does not pass UPDATE_BROKER_CONFIG(25) on" in (answer.remark or "")
            answer = await client.invoke(front.address, RequestCode.GET_MAX_OFFSET, {"topic": "behind", "queueId": 0})
            assert answer.code == ResponseCode.VERSION_NOT_SUPPORTED
            assert "does not name its broker (bname), and 2 could be meant" in (answer.remark or "")
            ext = {"topic": "behind", "queueId": 0, "bname": "broker-z"}
            answer = await client.invoke(front.address, RequestCode.GET_MAX_OFFSET, ext)
            assert (answer.code, "broker-z" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            answer = await client.invoke(front.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_a_broker_that_dies_answers_what_it_owes_and_is_found_again(two_brokers: LocalCluster) -> None:
    """Its client hears at once that a held pull will not be answered."""
    with LocalCluster() as cluster, front_of(cluster.namesrv) as front:
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic("dying", queues=1)
        with Producer("dying", namesrv=front.address) as producer:
            name = producer.send(Message("dying", b"one")).queue.broker_name

            async def hold() -> tuple[int, str]:
                client = RemotingClient()
                unnamed = {"topic": "dying", "queueId": 0}  # a client of 4.x: there is one broker only
                answer = await client.invoke(front.address, RequestCode.GET_MAX_OFFSET, unnamed)
                assert (answer.code, answer.ext["offset"]) == (0, "1")
                ext = {
                    "consumerGroup": "g", "topic": "dying", "queueId": 0, "queueOffset": 1, "maxMsgNums": 1,
                    "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subVersion": 0,
                    "subscription": "*", "bname": name,
                }  # fmt: skip
                loop = asyncio.get_running_loop()
                passed = front.passed
                held = asyncio.ensure_future(client.invoke(front.address, 11, ext, timeout_s=WAIT_S))
                await loop.run_in_executor(None, front.run, passed_more_than(front, passed))
                await loop.run_in_executor(None, cluster.kill_broker)
                answer = await held
                await client.close()
                return answer.code, answer.remark or ""

            code, remark = asyncio.run(asyncio.wait_for(hold(), WAIT_S))
            assert (code, "ended the connection before it answered" in remark) == (14, True)
            cluster.restart_broker()
            assert producer.send(Message("dying", b"two")).queue.broker_name == name


def test_a_heartbeat_finds_the_only_broker_as_soon_as_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """That there was none is not remembered for 20 s, as the brokers of a cluster are."""
    monkeypatch.setattr(brokers, "ASK_GAP_S", 0.0)
    body = encode_body(HeartbeatData(client_id="beating"))

    async def beat(address: str) -> Command:
        client = RemotingClient()
        try:
            return await client.invoke(address, RequestCode.HEART_BEAT, {}, body)
        finally:
            await client.close()

    with LocalCluster() as cluster, front_of(cluster.namesrv) as front:
        cluster.stop_broker()
        answer = asyncio.run(beat(front.address))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no broker is there")
        cluster.restart_broker()
        assert asyncio.run(beat(front.address)).code == ResponseCode.SUCCESS


def test_a_client_that_leaves_takes_its_connections_with_it(two_brokers: LocalCluster) -> None:
    with front_of(two_brokers.namesrv) as front:
        assert front.server.remoting is not None
        with Producer("leaving", namesrv=front.address) as producer:
            producer.send(Message("behind-leaving", b"bye"))
            assert front.server.remoting.connections == 1
        with Producer("left", namesrv=front.address) as producer:
            producer.send(Message("behind-leaving", b"first"))
            front.run(front.server.stop())
            with pytest.raises(ContrailError):
                producer.send(Message("behind-leaving", b"late"), timeout=1)
