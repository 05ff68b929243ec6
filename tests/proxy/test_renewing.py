"""Messages that are with a consumer who renews: no renewal crosses what the consumer says of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import pytest

from contrailmq import Admin, Producer
from contrailmq.message import Message
from contrailmq.proxy import clients, renewing
from contrailmq.proxy.protocol import SERVICE, v2
from contrailmq.proxy.server import ProxyServer
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from proxy.calling import Caller, proxy_of, topic
from proxy.test_consuming import acknowledge, filled, gathered, receive, seconds
from waiting_for import until_async

LIMIT_S: Final = 120


def ask_to_receive(caller: Caller, name: str, group: str, *, auto_renew: bool = False) -> Any:
    """A receive that waits: the call, to read or to cancel."""
    ask = caller.channel.unary_stream(
        f"/{SERVICE}/ReceiveMessage",
        v2.ReceiveMessageRequest.SerializeToString,
        v2.ReceiveMessageResponse.FromString,
    )
    request = v2.ReceiveMessageRequest(
        group=topic(group),
        message_queue=v2.MessageQueue(topic=topic(name), id=-1),
        filter_expression=v2.FilterExpression(type=1, expression="*"),
        batch_size=32,
        auto_renew=auto_renew,
        invisible_duration=seconds(300),
        long_polling_timeout=seconds(20),
    )
    return ask(request, metadata=(("x-mq-client-id", "asking"),), timeout=30)


class HeldAnswers:
    """What the broker answers to changes reaches the proxy when `go` is set."""

    def __init__(self, server: ProxyServer) -> None:
        assert server.service is not None
        self.go, self.changed = asyncio.Event(), 0
        self._consuming = server.service._consuming
        self._change = self._consuming.change
        self._consuming.change = self._held  # type: ignore[method-assign]

    async def _held(self, *args: Any, **fields: Any) -> Any:
        changed = await self._change(*args, **fields)
        self.changed += 1
        await self.go.wait()
        return changed


CALLS: Final = {
    "AckMessage": lambda handle: {"entries": [{"message_id": "id", "receipt_handle": handle}]},
    "ChangeInvisibleDuration": lambda handle: {
        "message_id": "id",
        "receipt_handle": handle,
        "invisible_duration": seconds(60),
    },
    "ForwardMessageToDeadLetterQueue": lambda handle: {"message_id": "id", "receipt_handle": handle},
}


@pytest.mark.parametrize("call", CALLS)
def test_what_crosses_a_renewal_counts_for_the_renewed_message(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The broker has renewed it and the proxy has not heard of that: the old handle counts no more."""
    name, group = f"crossing-{call}", f"crossers-{call}"
    filled(cluster, name, Message(name, b"once"))
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs
    monkeypatch.setattr(renewing, "LADDER_MS", (2_000,))  # a renewed message that is not done comes again soon

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            caller = Caller(channel, "crossing@1")
            [got] = await gathered(caller, name, group, 1, auto_renew=True)
            fields = CALLS[call](got.system_properties.receipt_handle)
            answers = HeldAnswers(server)
            renewal = asyncio.create_task(server.service.renewals.renew())
            await until_async(lambda: answers.changed == 1)
            asked = asyncio.create_task(caller.call(call, group=topic(group), topic=topic(name), **fields))
            await until_async(lambda: server.served[call] == 1)
            answers.go.set()
            answer = await asked
            assert answer.status.code == Code.OK, answer
            await renewal
            assert len(server.service.renewals) == 0
            assert await receive(caller, name, group) == []

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_renewal_leaves_a_message_alone_that_is_being_acknowledged(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's broker would renew an acknowledged message, and it would come again."""
    filled(cluster, "acked-first", Message("acked-first", b"once"))
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            renewals, consuming = server.service.renewals, server.service._consuming
            caller = Caller(channel, "acking@1")
            [got] = await gathered(caller, "acked-first", "first-ackers", 1, auto_renew=True)
            given, answers, go = got.system_properties.receipt_handle, HeldAnswers(server), asyncio.Event()

            async def slow(handle: Any) -> None:
                await go.wait()
                await consuming.acknowledge("first-ackers", "acked-first", handle)

            acknowledged = asyncio.create_task(renewals.settle("acking@1", given, slow))
            await asyncio.sleep(0)  # it holds the handle now
            renewal = asyncio.create_task(renewals.renew())
            await asyncio.sleep(0)
            go.set()
            answers.go.set()
            await asyncio.gather(acknowledged, renewal)
            assert answers.changed == 0
            assert len(renewals) == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@contextmanager
def standing_still(cluster: LocalCluster, broker: int) -> Iterator[None]:
    process_id = cluster.broker_process_id(broker)
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


async def receive_from(caller: Caller, broker: str, name: str, *, auto_renew: bool) -> list[str]:
    """The handles of one receive."""
    parts = await caller.stream(
        "ReceiveMessage",
        group=topic("still"),
        message_queue=v2.MessageQueue(topic=topic(name), id=-1, broker=v2.Broker(name=broker)),
        filter_expression=v2.FilterExpression(type=1, expression="*"),
        batch_size=32,
        auto_renew=auto_renew,
        invisible_duration=seconds(60),
        long_polling_timeout=seconds(5),
    )
    return [part.message.system_properties.receipt_handle for part in parts if part.HasField("message")]


def test_a_broker_that_stands_still_holds_up_no_other_broker_s_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their renewal, and their giving back when the client is gone. A request has a time limit of 3 s."""
    count, soon_s = 20, 30  # of which each of the first broker's takes 3 s, one after the other
    monkeypatch.setattr(renewing, "SCAN_S", 0.05)
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs

    async def main(cluster: LocalCluster) -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            renewals, caller, other = server.service.renewals, Caller(channel, "one@1"), Caller(channel, "other@2")
            handles: dict[str, list[str]] = {}
            for broker in ("broker-0", "broker-1"):
                held = handles[broker] = []
                while len(held) < count:
                    held += await receive_from(caller, broker, "still", auto_renew=True)
            with standing_still(cluster, 0):
                before = {handle: renewals.newest("one@1", handle) for handle in handles["broker-1"]}
                await until_async(
                    lambda: all(renewals.newest("one@1", handle) != was for handle, was in before.items()),
                    "the messages of the other broker are renewed",
                    limit_s=soon_s,
                )
                leaving = asyncio.create_task(renewals.release("one@1"))
                came = 0
                async with asyncio.timeout(soon_s):
                    while came < count:
                        came += len(await receive_from(other, "broker-1", "still", auto_renew=False))
            await leaving

    with LocalCluster(brokers=2, processes=True) as cluster:
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic("still", queues=1)
        with Producer("filling", namesrv=cluster.namesrv) as producer:
            for _ in range(2 * count):
                producer.send(Message("still", b"held"))
        asyncio.run(asyncio.wait_for(main(cluster), LIMIT_S))


@pytest.mark.parametrize("auto_renew", [False, True])
def test_a_message_comes_soon_to_others_when_its_receiver_left_while_it_waited(
    cluster: LocalCluster, auto_renew: bool
) -> None:
    """The broker knows nothing of that, and gives the message to the receive that waits."""
    name, group = f"left-{auto_renew}", f"leavers-{auto_renew}"
    filled(cluster, name)

    async def main(producer: Producer) -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            caller, waiters = Caller(channel, "here@1"), cluster.broker().pop.waiters
            asked = ask_to_receive(caller, name, group, auto_renew=auto_renew)
            await until_async(lambda: any(key[:2] == (name, group) for key in waiters.awaited()))
            asked.cancel()
            await caller.call("Heartbeat")  # on the same connection: the proxy has heard of the cancel
            await asyncio.to_thread(producer.send, Message(name, b"for who is there"))
            async with asyncio.timeout(60):
                [got] = await gathered(caller, name, group, 1)
            assert got.body == b"for who is there"
            assert len(server.service.renewals) == 0

    with Producer("leaving", namesrv=cluster.namesrv) as producer:
        asyncio.run(asyncio.wait_for(main(producer), LIMIT_S))


@pytest.mark.parametrize("auto_renew", [False, True])
def test_messages_that_a_broken_stream_did_not_take_come_soon_to_others(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture, auto_renew: bool
) -> None:
    """The client reads one of them and leaves. Its window, 64 KiB, keeps most of the others from being written."""
    name, group, count = f"broken-{auto_renew}", f"breakers-{auto_renew}", 12
    filled(cluster, name, *[Message(name, b"x" * 20_000) for _ in range(count)])

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            async with grpc.aio.insecure_channel(server.address) as left:
                asked = ask_to_receive(Caller(left), name, group, auto_renew=auto_renew)
                assert (await asked.read()).status.code == Code.OK
                assert (await asked.read()).message.body
                asked.cancel()
            async with asyncio.timeout(60):
                await gathered(Caller(channel), name, group, count // 2)

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert "please report" not in caplog.text


def test_messages_of_a_client_that_never_said_its_settings_come_back_when_it_is_silent(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is after the proxy has started again. A client that is heard of in any way keeps its messages."""
    filled(cluster, "unsettled", Message("unsettled", b"held"))
    filled(cluster, "unsettled-too", Message("unsettled-too", b"held"))
    monkeypatch.setattr(renewing, "SCAN_S", 0.05)
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs
    monkeypatch.setattr(clients, "SCAN_S", 0.05)
    monkeypatch.setattr(clients, "GONE_S", 6.0)

    async def live(caller: Caller) -> None:
        while True:
            await acknowledge(caller, "unsettled-too", "unsettled", "no handle")

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            renewals, silent, lively = server.service.renewals, Caller(channel, "silent@1"), Caller(channel, "lively@2")
            [kept] = await gathered(lively, "unsettled-too", "unsettled", 1, auto_renew=True)
            living = asyncio.create_task(live(lively))
            [left] = await gathered(silent, "unsettled", "unsettled", 1, auto_renew=True)
            await until_async(lambda: renewals.newest("silent@1", left.system_properties.receipt_handle) is None)
            assert renewals.newest("lively@2", kept.system_properties.receipt_handle) is not None
            living.cancel()
            async with asyncio.timeout(60):
                [again] = await gathered(Caller(channel, "other@3"), "unsettled", "unsettled", 1)
            assert again.body == b"held"

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_an_acknowledgement_is_refused_when_the_message_was_not_renewed_in_time(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker did not answer, for example. Another consumer has the message, and the broker would confirm."""
    filled(cluster, "too-late", Message("too-late", b"late"))
    monkeypatch.setattr(renewing, "LADDER_MS", (1_000,))

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            slow, other = Caller(channel, "slow@1"), Caller(channel, "other@2")
            [got] = await gathered(slow, "too-late", "late", 1, auto_renew=True)
            with monkeypatch.context() as patched:
                patched.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)
                await server.service.renewals.renew()
            monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", -3_600_000)  # never again
            [again] = await gathered(other, "too-late", "late", 1)
            for caller, one, code in ((slow, got, Code.INVALID_RECEIPT_HANDLE), (other, again, Code.OK)):
                handle = one.system_properties.receipt_handle
                assert await acknowledge(caller, "too-late", "late", handle) == [code]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
