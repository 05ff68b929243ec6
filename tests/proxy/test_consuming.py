"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue, on our broker's POP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from contrailmq import Admin, Producer
from contrailmq.message import Message
from contrailmq.proxy import clients, renewing
from contrailmq.proxy.handles import parse_handle
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from proxy.calling import Caller, caller_of, proxy_of, topic

SECOND = v2.ReceiveMessageRequest().invisible_duration.__class__


def seconds(count: int) -> Any:
    return SECOND(seconds=count)


def run(cluster: LocalCluster, work: Callable[[Caller], Awaitable[None]]) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv) as caller:
            await work(caller)

    asyncio.run(asyncio.wait_for(main(), 240))


def filled(cluster: LocalCluster, name: str, *messages: Message) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(name, queues=2)
    with Producer("filling", namesrv=cluster.namesrv) as producer:
        for one in messages:
            producer.send(one)


async def receive(caller: Caller, name: str, group: str, *, expression: str = "*", **more: Any) -> list[Any]:
    """The messages of one receive; empty when there were none."""
    parts = await caller.stream(
        "ReceiveMessage",
        group=topic(group),
        message_queue=v2.MessageQueue(topic=topic(name), id=-1),
        filter_expression=v2.FilterExpression(type=1, expression=expression),
        batch_size=32,
        **({"invisible_duration": seconds(30), "long_polling_timeout": seconds(5)} | more),
    )
    if len(parts) == 1:
        assert parts[0].status.code == Code.MESSAGE_NOT_FOUND, parts
        return []
    assert [part.WhichOneof("content") for part in parts] == [
        "status",
        *["message"] * (len(parts) - 2),
        "delivery_timestamp",
    ]
    return [part.message for part in parts[1:-1]]


async def gathered(caller: Caller, name: str, group: str, count: int, **more: Any) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        got += await receive(caller, name, group, **more)
    return got


async def acknowledge(caller: Caller, name: str, group: str, *handles: str) -> list[int]:
    entries = [v2.AckMessageEntry(message_id="id", receipt_handle=handle) for handle in handles]
    answer = await caller.call("AckMessage", group=topic(group), topic=topic(name), entries=entries)
    return [entry.status.code for entry in answer.entries]


def test_messages_come_whole_and_once_when_they_are_acknowledged(cluster: LocalCluster) -> None:
    sent = Message("pop-whole", b"\0" * 5000 + b"end", tags="T", keys="k1 k2", properties={"color": "blue"})
    filled(cluster, "pop-whole", sent)

    async def work(caller: Caller) -> None:
        [got] = await gathered(caller, "pop-whole", "whole", 1)
        system = got.system_properties
        assert (got.topic.name, got.body, system.tag, list(system.keys)) == ("pop-whole", sent.body, "T", ["k1", "k2"])
        assert (dict(got.user_properties), system.delivery_attempt) == ({"color": "blue"}, 1)
        assert (system.body_encoding, system.invisible_duration.seconds) == (1, 30)
        assert await acknowledge(caller, "pop-whole", "whole", system.receipt_handle) == [Code.OK]
        assert await acknowledge(caller, "pop-whole", "whole", system.receipt_handle) == [Code.OK], "idempotent"
        assert await receive(caller, "pop-whole", "whole") == []

    run(cluster, work)


def test_a_message_that_is_let_go_comes_again_with_one_attempt_more_and_its_old_handle_is_dead(
    cluster: LocalCluster,
) -> None:
    filled(cluster, "pop-again", Message("pop-again", b"again"))

    async def work(caller: Caller) -> None:
        [first] = await gathered(caller, "pop-again", "again", 1)
        old = first.system_properties.receipt_handle
        ask = {"group": topic("again"), "topic": topic("pop-again"), "message_id": "id"}
        answer = await caller.call("ChangeInvisibleDuration", receipt_handle=old, invisible_duration=seconds(20), **ask)
        assert answer.status.code == Code.OK, answer
        assert parse_handle(answer.receipt_handle).invisible_ms == 20_000
        newest = answer.receipt_handle
        answer = await caller.call("ChangeInvisibleDuration", receipt_handle=old, invisible_duration=seconds(20), **ask)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
        answer = await caller.call(
            "ChangeInvisibleDuration", receipt_handle=newest, invisible_duration=seconds(0), **ask
        )
        assert answer.status.code == Code.OK
        [again] = await gathered(caller, "pop-again", "again", 1)
        assert (again.body, again.topic.name, again.system_properties.delivery_attempt) == (b"again", "pop-again", 2)
        assert await acknowledge(caller, "pop-again", "again", again.system_properties.receipt_handle) == [Code.OK]

    run(cluster, work)


def test_a_filter_gives_its_tags_only(cluster: LocalCluster) -> None:
    """ "AaAa" and "BBBB" have one hash: the broker lets both through."""
    filled(cluster, "pop-tags", *(Message("pop-tags", tag.encode(), tags=tag) for tag in ("AaAa", "BBBB", "other")))

    async def work(caller: Caller) -> None:
        [got] = await gathered(caller, "pop-tags", "tags", 1, expression="BBBB || none")
        assert got.body == b"BBBB"
        assert await receive(caller, "pop-tags", "tags", expression="BBBB || none") == []

    run(cluster, work)


def test_a_message_that_is_forwarded_is_a_dead_letter_and_comes_no_more(cluster: LocalCluster) -> None:
    filled(cluster, "pop-dead", Message("pop-dead", b"dead", keys="dead-key"))

    async def work(caller: Caller) -> None:
        [got] = await gathered(caller, "pop-dead", "forwarders", 1)
        answer = await caller.call(
            "ForwardMessageToDeadLetterQueue",
            group=topic("forwarders"),
            topic=topic("pop-dead"),
            receipt_handle=got.system_properties.receipt_handle,
            message_id=got.system_properties.message_id,
        )
        assert answer.status.code == Code.OK, answer
        assert await receive(caller, "pop-dead", "forwarders") == []

    run(cluster, work)
    with Admin(namesrv=cluster.namesrv) as admin:
        [letter] = admin.messages_by_key("%DLQ%forwarders", "dead-key")
    assert letter.body == b"dead"


def test_messages_of_a_consumer_that_renews_stay_with_it_and_come_back_when_it_is_gone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster, "pop-renewed", Message("pop-renewed", b"renewed"))
    monkeypatch.setattr(renewing, "SCAN_S", 0.05)
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs
    monkeypatch.setattr(clients, "SCAN_S", 0.05)
    monkeypatch.setattr(clients, "GONE_S", 0.2)

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server:
            async with grpc.aio.insecure_channel(server.address) as channel:
                caller = Caller(channel, "renewing@1")
                stream = caller.telemetry()
                subscription = v2.Subscription(group=topic("renewers"))
                await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=2, subscription=subscription)))
                await stream.read()
                [got] = await gathered(caller, "pop-renewed", "renewers", 1, auto_renew=True)
                assert got.system_properties.invisible_duration.seconds == 60
                stream.cancel()
            async with grpc.aio.insecure_channel(server.address) as channel:  # the client died: a second later
                other = Caller(channel, "other@2")
                [again] = await gathered(other, "pop-renewed", "renewers", 1)
                assert (again.body, again.system_properties.delivery_attempt) == (b"renewed", 2)
                handle = again.system_properties.receipt_handle
                assert await acknowledge(other, "pop-renewed", "renewers", handle) == [Code.OK]

    asyncio.run(asyncio.wait_for(main(), 240))


def test_the_first_handle_acknowledges_a_message_that_was_renewed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster, "pop-first", Message("pop-first", b"first"))
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            caller = Caller(channel, "first@1")
            assert server.service is not None
            [got] = await gathered(caller, "pop-first", "firsts", 1, auto_renew=True)
            given = got.system_properties.receipt_handle
            await server.service.renewals.renew()
            newest = server.service.renewals.newest("first@1", given)
            assert newest is not None
            assert newest.text != given
            assert await acknowledge(caller, "pop-first", "firsts", given) == [Code.OK]
            assert server.service.renewals.newest("first@1", given) is None
            assert await receive(caller, "pop-first", "firsts") == []

    asyncio.run(asyncio.wait_for(main(), 240))
