"""Lite topics over gRPC: sends, subscriptions, receives, acknowledgements, what is taken away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from contrailmq import Admin
from contrailmq.proxy.handles import parse_handle
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from proxy.calling import Caller, caller_of, message, topic
from proxy.test_consuming import seconds

PARENT = "lite"
PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD, COMPLETE_REMOVE = range(4)


def run(cluster: LocalCluster, work: Callable[[Caller], Awaitable[None]]) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv) as caller:
            await work(caller)

    asyncio.run(asyncio.wait_for(main(), 120))


def bind(cluster: LocalCluster, group: str, **attributes: str) -> None:
    more = {name.replace("_", "."): value for name, value in attributes.items()}
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_group(
            SubscriptionGroupConfig(group_name=group, attributes=_plus({"lite.bind.topic": PARENT} | more))
        )


def _plus(attributes: dict[str, str]) -> dict[str, str]:
    return {f"+{name}": value for name, value in attributes.items()}


@asynccontextmanager
async def settled(caller: Caller, group: str, *, kind: int = 5, parent: str = PARENT) -> AsyncIterator[Any]:
    """A consumer of lite topics, with its stream."""
    entry = v2.SubscriptionEntry(topic=topic(parent), expression=v2.FilterExpression(type=1, expression="*"))
    subscription = v2.Subscription(group=topic(group), subscriptions=[entry])
    stream = caller.telemetry()
    await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=kind, subscription=subscription)))
    yield stream, (await stream.read()).settings
    await caller.call("NotifyClientTermination", group=topic(group))


async def send(caller: Caller, lite_topic: str, *bodies: str) -> None:
    for body in bodies:
        answer = await caller.call(
            "SendMessage",
            messages=[message(PARENT, body.encode(), message_type=5, lite_topic=lite_topic, keys=["letter"])],
        )
        assert answer.status.code == Code.OK, answer


async def sync(caller: Caller, group: str, action: int, *names: str, parent: str = PARENT, **more: Any) -> Any:
    answer = await caller.call(
        "SyncLiteSubscription", action=action, topic=topic(parent), group=topic(group), lite_topic_set=names, **more
    )
    return answer.status


async def receive(caller: Caller, group: str, **more: Any) -> list[Any]:
    parts = await caller.stream(
        "ReceiveMessage",
        group=topic(group),
        message_queue=v2.MessageQueue(topic=topic(PARENT), id=-1),
        filter_expression=v2.FilterExpression(type=1, expression="*"),
        batch_size=32,
        **({"invisible_duration": seconds(10), "long_polling_timeout": seconds(5)} | more),
    )
    if len(parts) == 1:
        assert parts[0].status.code == Code.MESSAGE_NOT_FOUND, parts
        return []
    return [part.message for part in parts[1:-1]]


async def acknowledge(caller: Caller, group: str, *messages: Any) -> None:
    for one in messages:
        system = one.system_properties
        entry = v2.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
        )
        answer = await caller.call("AckMessage", group=topic(group), topic=topic(PARENT), entries=[entry])
        assert answer.entries[0].status.code == Code.OK, answer


def seen(messages: list[Any]) -> list[tuple[str, bytes, int]]:
    return [(one.system_properties.lite_topic, one.body, one.system_properties.delivery_attempt) for one in messages]


@pytest.mark.parametrize("kind", [5, 6], ids=["push", "simple"])
def test_a_consumer_gets_the_lite_topics_that_it_is_subscribed_to(cluster: LocalCluster, kind: int) -> None:
    group, one, two = f"lite-{kind}", f"a-{kind}", f"b-{kind}"
    bind(cluster, group, lite_sub_client_quota="7")

    async def work(caller: Caller) -> None:
        async with settled(caller, group, kind=kind) as (_, settings):
            subscription = settings.subscription
            assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (7, 64)
            assert (await sync(caller, group, PARTIAL_ADD, one, version=1)).code == Code.OK
            await send(caller, one, "a", "b")
            await send(caller, two, "other")
            found = await receive(caller, group)
            assert seen(found) == [(one, b"a", 1), (one, b"b", 1)]
            system = found[1].system_properties
            assert (system.message_type, system.queue_offset, found[1].topic.name) == (5, 1, PARENT)
            await acknowledge(caller, group, *found)
            assert (await sync(caller, group, COMPLETE_ADD, one, two, version=2)).code == Code.OK
            assert seen(await receive(caller, group)) == [(two, b"other", 1)]

    run(cluster, work)


def test_a_pop_waits_for_a_message_of_its_lite_topics(cluster: LocalCluster) -> None:
    bind(cluster, "lite-wait")

    async def work(caller: Caller) -> None:
        async with settled(caller, "lite-wait"):
            await sync(caller, "lite-wait", PARTIAL_ADD, "w1")
            waiting = asyncio.create_task(receive(caller, "lite-wait", long_polling_timeout=seconds(20)))
            await send(caller, "w2", "not mine")
            await send(caller, "w1", "mine")
            assert seen(await waiting) == [("w1", b"mine", 1)]

    run(cluster, work)


def test_a_message_is_let_go_suspended_and_forwarded_by_handles_with_or_without_the_lite_topic(
    cluster: LocalCluster,
) -> None:
    bind(cluster, "lite-again")

    async def work(caller: Caller) -> None:
        async def change(handle: str, **more: Any) -> Any:
            fields = {"group": topic("lite-again"), "topic": topic(PARENT), "message_id": "id"}
            return await caller.call("ChangeInvisibleDuration", receipt_handle=handle, **fields, **more)

        async with settled(caller, "lite-again"):
            await sync(caller, "lite-again", PARTIAL_ADD, "r1")
            await send(caller, "r1", "again")
            (first,) = await receive(caller, "lite-again")
            answer = await change(first.system_properties.receipt_handle, invisible_duration=seconds(0))
            assert answer.status.code == Code.OK, answer
            (again,) = await receive(caller, "lite-again")
            assert seen([again]) == [("r1", b"again", 2)]
            bare = " ".join(again.system_properties.receipt_handle.split(" ")[:9])  # as of RocketMQ's proxy
            answer = await change(bare, invisible_duration=seconds(0), lite_topic="r1", suspend=True)
            assert (answer.status.code, parse_handle(answer.receipt_handle).lite_topic) == (Code.OK, "r1")
            (same,) = await receive(caller, "lite-again")
            assert seen([same]) == [("r1", b"again", 2)], "to suspend is no attempt"
            answer = await change(bare, invisible_duration=seconds(0), lite_topic="r1")
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
            answer = await caller.call(
                "ForwardMessageToDeadLetterQueue",
                group=topic("lite-again"),
                topic=topic(PARENT),
                receipt_handle=same.system_properties.receipt_handle,
                message_id=same.system_properties.message_id,
                lite_topic="r1",
            )
            assert answer.status.code == Code.OK, answer
            await send(caller, "r1", "next")
            assert seen(await receive(caller, "lite-again")) == [("r1", b"next", 1)]

    run(cluster, work)
    with Admin(namesrv=cluster.namesrv) as admin:
        (dead,) = admin.messages_by_key("%DLQ%lite-again", "letter")
        assert dead.body == b"again"


def test_what_a_client_that_left_had_goes_to_another(cluster: LocalCluster) -> None:
    bind(cluster, "lite-left")

    async def work(caller: Caller) -> None:
        async with settled(caller, "lite-left"):
            await sync(caller, "lite-left", PARTIAL_ADD, "l1")
            await send(caller, "l1", "held")
            assert seen(await receive(caller, "lite-left", auto_renew=True)) == [("l1", b"held", 1)]
        async with grpc.aio.insecure_channel(caller.address) as channel:
            other = Caller(channel, "other@1@0@y")
            async with settled(other, "lite-left"):
                await sync(other, "lite-left", PARTIAL_ADD, "l1")
                assert seen(await receive(other, "lite-left")) == [("l1", b"held", 2)]

    run(cluster, work)


def test_a_consumer_is_told_when_another_has_its_lite_topic(cluster: LocalCluster) -> None:
    bind(cluster, "lite-one", lite_sub_model="Exclusive")

    async def work(caller: Caller) -> None:
        async with settled(caller, "lite-one") as (stream, _):
            await sync(caller, "lite-one", PARTIAL_ADD, "e1", "e2")
            async with grpc.aio.insecure_channel(caller.address) as channel:
                other = Caller(channel, "other@1@0@y")
                async with settled(other, "lite-one"):
                    await sync(other, "lite-one", PARTIAL_ADD, "e1")
                    assert (await stream.read()).notify_unsubscribe_lite_command.lite_topic == "e1"
                    await send(caller, "e1", "theirs")
                    await send(caller, "e2", "mine")
                    assert seen(await receive(caller, "lite-one")) == [("e2", b"mine", 1)]
                    assert seen(await receive(other, "lite-one")) == [("e1", b"theirs", 1)]

    run(cluster, work)


def test_what_is_wrong_with_a_subscription_is_said_by_its_code(cluster: LocalCluster) -> None:
    bind(cluster, "lite-bad", lite_sub_client_quota="1")

    async def work(caller: Caller) -> None:
        async with settled(caller, "lite-bad"):
            for status, code in (
                (await sync(caller, "lite-bad", PARTIAL_ADD, "a$b"), Code.ILLEGAL_LITE_TOPIC),
                (await sync(caller, "lite-bad", PARTIAL_ADD, "a" * 65), Code.ILLEGAL_LITE_TOPIC),
                (await sync(caller, "lite-bad", PARTIAL_ADD, " "), Code.ILLEGAL_LITE_TOPIC),
                (await sync(caller, "lite-bad", 9, "a"), Code.BAD_REQUEST),
                (await sync(caller, "lite-bad", PARTIAL_ADD, "a", parent="plain"), Code.ILLEGAL_TOPIC),
                (await sync(caller, "no-such-group", PARTIAL_ADD, "a"), Code.ILLEGAL_CONSUMER_GROUP),
                (
                    await sync(caller, "lite-bad", COMPLETE_ADD, *(f"a{number}" for number in range(302))),
                    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                ),
            ):
                assert status.code == code, status

    run(cluster, work)


@pytest.mark.parametrize(
    ("group", "kind", "parent"),
    [("lite-mode", 2, PARENT), ("ordinary-mode", 5, PARENT), ("lite-mode", 5, "plain")],
    ids=["an ordinary consumer of a lite group", "a lite consumer of an ordinary group", "of another topic"],
)
def test_settings_that_do_not_fit_their_group_end_the_stream(
    cluster: LocalCluster, group: str, kind: int, parent: str
) -> None:
    bind(cluster, "lite-mode")

    async def work(caller: Caller) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async with settled(caller, group, kind=kind, parent=parent) as (stream, _):
                await stream.read()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(cluster, work)
