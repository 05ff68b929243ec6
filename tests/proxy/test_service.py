"""Routes, settings, who is connected, and queues read by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from contrailmq import Admin, Producer
from contrailmq.client.transport.routes import QueueGroup
from contrailmq.message import Message
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.service import permissions
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from contrailmq.wire.errors import ListenError
from proxy.calling import Caller, caller_of, message, proxy_of, topic

HOME = v2.Endpoints(scheme=3, addresses=[v2.Address(host="mq.example.com", port=443)])


def run(cluster: LocalCluster, work: Callable[[Caller], Awaitable[None]]) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv) as caller:
            await work(caller)

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((4, 4, 6), [4] * 4),
        ((6, 4, 6), [2, 2, 4, 4, 4, 4]),
        ((2, 3, 6), [3, 4, 4]),
        ((3, 8, 4), [2] * 3),
        ((0, 0, 0), [1]),
    ],
)
def test_queues_are_listed_read_only_first_then_write_only_then_both(
    given: tuple[int, int, int], expected: list[int]
) -> None:
    assert permissions(QueueGroup("broker-a", *given)) == expected


def test_a_route_leads_back_to_where_the_client_came_from_and_says_what_the_topic_takes(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        answer = await caller.call("QueryRoute", topic=topic("ordered"), endpoints=HOME)
        assert answer.status.code == Code.OK
        assert [queue.id for queue in answer.message_queues] == list(range(8))
        for queue in answer.message_queues:
            assert (queue.permission, list(queue.accept_message_types)) == (4, [2])
            assert (queue.broker.id, queue.broker.endpoints) == (0, HOME)
        answer = await caller.call("QueryRoute", topic=topic("anything"), endpoints=HOME)
        assert list(answer.message_queues[0].accept_message_types) == [1, 2, 3, 4]
        answer = await caller.call("QueryRoute", topic=topic("nowhere"), endpoints=HOME)
        assert answer.status.code == Code.TOPIC_NOT_FOUND

    run(cluster, work)


def test_an_assignment_is_one_queue_a_broker_and_every_queue_of_an_ordered_group(cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_group(SubscriptionGroupConfig(group_name="in-order", consume_message_orderly=True))

    async def work(caller: Caller) -> None:
        for group, expected in (("shared", [-1]), ("in-order", list(range(8)))):
            answer = await caller.call("QueryAssignment", topic=topic("ordered"), group=topic(group), endpoints=HOME)
            assert [one.message_queue.id for one in answer.assignments] == expected
        answer = await caller.call("QueryAssignment", topic=topic("ordered"), group=topic("no/group"), endpoints=HOME)
        assert answer.status.code == Code.ILLEGAL_CONSUMER_GROUP

    run(cluster, work)


def test_settings_come_back_with_what_the_server_decides(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        answer = await caller.call("Heartbeat", client_type=1)
        assert answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        stream = caller.telemetry()
        await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=1, publishing=v2.Publishing())))
        settings = (await stream.read()).settings
        assert (settings.publishing.max_body_size, settings.publishing.validate_message_type) == (4194304, True)
        assert settings.backoff_policy.max_attempts == 3
        assert settings.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
        entry = v2.SubscriptionEntry(topic=topic("plain"), expression=v2.FilterExpression(type=1, expression="*"))
        subscription = v2.Subscription(group=topic("readers"), subscriptions=[entry])
        await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=2, subscription=subscription)))
        settings = (await stream.read()).settings
        assert (settings.subscription.fifo, settings.subscription.receive_batch_size) == (False, 32)
        assert settings.backoff_policy.max_attempts == 17
        waits = [wait.seconds for wait in settings.backoff_policy.customized_backoff.next]
        assert (len(waits), waits[:5], waits[-1]) == (18, [1, 5, 10, 30, 60], 7200)
        answer = await caller.call("Heartbeat", client_type=2)
        assert answer.status.code == Code.OK
        assert (await caller.call("NotifyClientTermination")).status.code == Code.OK
        assert (await caller.call("Heartbeat", client_type=2)).status.code == Code.UNRECOGNIZED_CLIENT_TYPE

    run(cluster, work)


def test_settings_of_nobody_end_the_stream(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        stream = caller.telemetry()
        await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=1)))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(cluster, work)


def test_a_transaction_that_nobody_ended_is_asked_about_and_decided(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        stream = caller.telemetry()
        publishing = v2.Publishing(topics=[topic("decided")])
        await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=1, publishing=publishing)))
        await stream.read()
        sent = message("decided", b"orphan", message_type=4, message_id="01ORPHAN", keys=["orphan"])
        assert (await caller.call("SendMessage", messages=[sent])).status.code == Code.OK
        asked = (await stream.read()).recover_orphaned_transaction_command
        assert (asked.message.body, asked.message.system_properties.message_id) == (b"orphan", "01ORPHAN")
        answer = await caller.call(
            "EndTransaction",
            topic=topic("decided"),
            message_id="01ORPHAN",
            transaction_id=asked.transaction_id,
            resolution=1,
            source=2,
        )
        assert answer.status.code == Code.OK, answer

    run(cluster, work)
    with Admin(namesrv=cluster.namesrv) as admin:
        [found] = admin.messages_by_key("decided", "orphan")
    assert found.body == b"orphan"


def test_queues_are_pulled_and_offsets_kept(cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("by-hand", queues=1)
    with Producer("hand", namesrv=cluster.namesrv) as producer:
        sent = [producer.send(Message("by-hand", b"%d" % number)) for number in range(3)]
    queue = v2.MessageQueue(topic=topic("by-hand"), id=0, broker=v2.Broker(name=sent[0].queue.broker_name))

    async def work(caller: Caller) -> None:
        group = topic("hands")
        parts = await caller.stream("PullMessage", group=group, message_queue=queue, offset=1, batch_size=8)
        assert [part.WhichOneof("content") for part in parts] == ["status", "message", "message", "next_offset"]
        assert [part.message.body for part in parts[1:3]] == [b"1", b"2"]
        assert parts[-1].next_offset == 3
        answer = await caller.call("GetOffset", group=group, message_queue=queue)
        assert answer.status.code == Code.OFFSET_NOT_FOUND
        assert (await caller.call("UpdateOffset", group=group, message_queue=queue, offset=2)).status.code == Code.OK
        assert (await caller.call("GetOffset", group=group, message_queue=queue)).offset == 2
        for policy, offset in ((0, 0), (1, 3)):
            assert (await caller.call("QueryOffset", message_queue=queue, query_offset_policy=policy)).offset == offset
        answer = await caller.call("QueryOffset", message_queue=queue, query_offset_policy=2)
        assert answer.status.code == Code.BAD_REQUEST

    run(cluster, work)


def test_what_a_receive_may_not_ask_for(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        queue = v2.MessageQueue(topic=topic("plain"), id=-1)
        short = {"group": topic("readers"), "message_queue": queue, "batch_size": 1}
        [answer] = await caller.stream("ReceiveMessage", **short)
        assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME
        [answer] = await caller.stream("ReceiveMessage", auto_renew=True, timeout_s=3, **short)
        assert answer.status.code == Code.ILLEGAL_POLLING_TIME
        forged = "0 1 60000 0 0 broker-a 0 0 0"
        answer = await caller.call(
            "AckMessage",
            group=topic("readers"),
            topic=topic("plain"),
            entries=[v2.AckMessageEntry(message_id="x", receipt_handle=handle) for handle in (forged, "garbage")],
        )
        assert [entry.status.code for entry in answer.entries] == [Code.INVALID_RECEIPT_HANDLE] * 2

    run(cluster, work)


def test_a_port_that_is_taken_is_said(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with proxy_of(cluster.namesrv) as first:
            from contrailmq.client.settings import ClientOptions
            from contrailmq.proxy.server import ProxyConfig, ProxyServer

            second = ProxyServer(ProxyConfig(client=ClientOptions(namesrv=cluster.namesrv), port=first.port))
            with pytest.raises(ListenError, match=str(first.port)):
                await second.start()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_name_server_that_is_away_is_said_and_ends_calls_and_not_the_proxy(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with caller_of("127.0.0.1:1") as caller:
            answer = await caller.call("QueryRoute", topic=topic("plain"), endpoints=HOME)
            assert answer.status.code >= 50000
            assert "127.0.0.1:1" in answer.status.message
        assert any("no NameServer of 127.0.0.1:1 answers" in line for line in caplog.messages)

    asyncio.run(asyncio.wait_for(main(), 120))
