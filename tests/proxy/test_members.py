"""A gRPC consumer is a member of its group at the broker in whose process the proxy runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from contrailmq import ConsumeFromWhere, aio
from contrailmq.proxy import clients, members
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerConnection, ConsumerRunningInfo
from contrailmq.wire.bodies import ConsumerList, decode_body
from contrailmq.wire.codes import OUR_VERSION, RequestCode, version_number
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient
from free_ports import free_port
from proxy.calling import Caller, message, topic
from proxy.test_consuming import receive
from proxy.test_in_broker import Serving, broker_with_grpc, make_topic
from waiting_for import until_async

PUSH, SIMPLE = 2, 3
JAVA, GO = 1, 4
TAG, SQL = 1, 2
GROUP = "billing"


def settings(*entries: Any, group: str = GROUP, kind: int = PUSH, language: int = JAVA, version: str = "5.0.8") -> Any:
    subscription = v2.Subscription(group=topic(group), subscriptions=entries)
    agent = v2.UA(language=language, version=version)
    return v2.TelemetryCommand(settings=v2.Settings(client_type=kind, subscription=subscription, user_agent=agent))


def entry(name: str, expression: str = "*", kind: int = TAG) -> Any:
    return v2.SubscriptionEntry(topic=topic(name), expression=v2.FilterExpression(type=kind, expression=expression))


async def opened(caller: Caller, said: Any) -> Any:
    stream = caller.telemetry()
    await stream.write(said)
    assert (await stream.read()).settings.HasField("subscription")
    return stream


async def ask(serving: Serving, code: RequestCode, **ext: str) -> Command:
    remoting = RemotingClient()
    try:
        address = serving.member.address
        return await remoting.invoke(address, code, {"consumerGroup": GROUP} | ext, timeout_s=30)
    finally:
        await remoting.close()


async def seen(serving: Serving, group: str = GROUP) -> ConsumerConnection | None:
    answer = await ask(serving, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    return decode_body(answer.body, ConsumerConnection) if answer.code == 0 else None


def ids(serving: Serving, group: str = GROUP) -> list[str]:
    live = serving.member.server.node.clients.consumer_group(group)
    return [] if live is None else live.client_ids()


def wants(serving: Serving, name: str, group: str = GROUP) -> str:
    subscription = serving.member.server.node.clients.subscription(group, name)
    return "" if subscription is None else subscription.expression


@asynccontextmanager
async def opened_broker(path: Path, **properties: str) -> AsyncIterator[tuple[Serving, grpc.aio.Channel]]:
    async with (
        broker_with_grpc(path, free_port(), **properties) as serving,
        grpc.aio.insecure_channel(serving.address) as channel,
    ):
        yield serving, channel


def run(path: Path, work: Callable[[Serving, grpc.aio.Channel], Awaitable[None]], **properties: str) -> None:
    async def main() -> None:
        async with opened_broker(path, **properties) as (serving, channel):
            await work(serving, channel)

    asyncio.run(asyncio.wait_for(main(), 240))


def test_a_consumer_is_a_member_with_its_subscription_language_and_version_until_it_says_goodbye(
    tmp_path: Path,
) -> None:
    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        await make_topic(serving, "Paid", "NORMAL")
        caller = Caller(channel, "one@1@0@x")
        stream = await opened(caller, settings(entry("Paid", "a || b")))
        await until_async(lambda: ids(serving) == ["one@1@0@x"])
        found = await seen(serving)
        assert found is not None
        [connection] = found.connection_set
        assert (connection.client_id, connection.language) == ("one@1@0@x", "JAVA")
        assert connection.version == version_number("5.0.8")
        assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        wanted = found.subscription_table["Paid"]
        assert (wanted.sub_string, wanted.expression_type, set(wanted.tags_set)) == ("a || b", "TAG", {"a", "b"})
        listed = await ask(serving, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        assert decode_body(listed.body, ConsumerList).consumer_id_list == ["one@1@0@x"]

        await caller.call("NotifyClientTermination", group=topic(GROUP))
        await until_async(lambda: not ids(serving))
        assert await seen(serving) is None
        stream.cancel()

    run(tmp_path, work)


def test_new_settings_change_what_the_broker_knows_and_another_group_is_joined_in_place_of_the_first(
    tmp_path: Path,
) -> None:
    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        for name in ("Paid", "Sent"):
            await make_topic(serving, name, "NORMAL")
        said = settings(entry("Paid"), kind=SIMPLE, language=GO, version="of my own")
        stream = await opened(Caller(channel), said)
        await until_async(lambda: wants(serving, "Paid") == "*")
        first = await seen(serving)
        assert first is not None
        assert first.consume_type == "CONSUME_ACTIVELY"
        assert [(one.language, one.version) for one in first.connection_set] == [("GO", OUR_VERSION)]
        for again in (settings(entry("Sent", "a > 5", SQL)), settings(entry("Sent", "x"))):
            await stream.write(again)
            expression = again.settings.subscription.subscriptions[0].expression.expression
            await until_async(lambda: wants(serving, "Sent") == expression)  # noqa: B023
            assert wants(serving, "Paid") == ""
        await stream.write(settings(entry("Sent"), group="shipping"))
        await until_async(lambda: (ids(serving), ids(serving, "shipping")) == ([], ["test@1@0@x"]))
        publishing = v2.Publishing(topics=[topic("Paid")])
        await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=1, publishing=publishing)))
        await until_async(lambda: not ids(serving, "shipping"))
        stream.cancel()

    run(tmp_path, work)


def test_a_consumer_whose_stream_broke_is_a_member_no_more_when_it_counts_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SCAN_S", 0.05)
    monkeypatch.setattr(clients, "GONE_S", 0.2)

    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        stream = await opened(Caller(channel, "broken@1"), settings())
        staying = await opened(Caller(channel, "staying@1"), settings())
        await until_async(lambda: set(ids(serving)) == {"broken@1", "staying@1"})
        stream.cancel()
        await until_async(lambda: ids(serving) == ["staying@1"])
        staying.cancel()

    run(tmp_path, work)


def test_heartbeats_keep_a_member_and_one_that_the_broker_dropped_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "LOOK_S", 0.02)
    monkeypatch.setattr(members, "BEAT_S", 0.05)

    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        stream = await opened(Caller(channel, "kept@1"), settings())
        await until_async(lambda: ids(serving) == ["kept@1"])
        node, table = serving.member.server.node, serving.member.server.node.clients

        def member() -> Any:
            live = table.consumer_group(GROUP)
            return None if live is None else live.find("kept@1")

        first = member()
        await until_async(lambda: member().seen_ms > first.seen_ms)
        assert member().connection is first.connection
        serving.member.server.members.expire(node.monotonic_ms() + 2 * table.silence_ms)
        assert member() is None
        await until_async(lambda: member() is not None)
        assert member().connection is not first.connection
        stream.cancel()

    run(tmp_path, work)


def test_what_an_administrator_asks_the_broker_reaches_the_consumer(tmp_path: Path) -> None:
    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        await make_topic(serving, "Paid", "NORMAL")
        caller = Caller(channel, "asked@1")
        sent = await caller.call("SendMessage", messages=[message("Paid", b"look at me")])
        stored = await stored_id(serving, sent.entries[0].offset)
        stream = await opened(caller, settings(entry("Paid", "a")))
        await until_async(lambda: ids(serving) == ["asked@1"])

        brief = await ask(serving, RequestCode.GET_CONSUMER_RUNNING_INFO, clientId="asked@1", jstackEnable="false")
        info = decode_body(brief.body, ConsumerRunningInfo)
        assert [(one.topic, one.sub_string) for one in info.subscription_set] == [("Paid", "a")]
        assert (info.jstack, info.properties["PROP_CONSUME_TYPE"]) == (None, "CONSUME_PASSIVELY")

        asking = asyncio.ensure_future(
            ask(serving, RequestCode.GET_CONSUMER_RUNNING_INFO, clientId="asked@1", jstackEnable="true")
        )
        nonce = (await stream.read()).print_thread_stack_trace_command.nonce
        trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: idle")
        await stream.write(v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=trace))
        assert decode_body((await asking).body, ConsumerRunningInfo).jstack == "main: idle"

        asking = asyncio.ensure_future(
            ask(serving, RequestCode.CONSUME_MESSAGE_DIRECTLY, clientId="asked@1", msgId=stored, topic="Paid")
        )
        asked = (await stream.read()).verify_message_command
        assert asked.message.body == b"look at me"
        result = v2.VerifyMessageResult(nonce=asked.nonce)
        await stream.write(v2.TelemetryCommand(status=v2.Status(code=Code.OK), verify_message_result=result))
        assert decode_body((await asking).body, ConsumeMessageDirectlyResult).consume_result == "CR_SUCCESS"
        stream.cancel()

    run(tmp_path, work)


async def stored_id(serving: Serving, offset: int) -> str:
    """The id that names where the only message of the store is."""
    async with aio.Admin(namesrv=serving.member.server.config.namesrv_addresses[0]) as admin:
        for queue in await admin.queues("Paid"):
            if await admin.max_offset(queue) > offset:
                [found] = await admin.messages_by_time("Paid", begin_ms=0, end_ms=2**42, max_count=1)
                return str(found.offset_message_id)
    raise AssertionError("no queue has it")


def test_other_requests_of_the_broker_are_taken_or_refused_and_a_reset_it_cannot_do_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        stream = await opened(Caller(channel, "reset@1"), settings())
        await until_async(lambda: ids(serving) == ["reset@1"])
        live = serving.member.server.node.clients.consumer_group(GROUP)
        assert live is not None
        [member] = live.members.values()
        for code in (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET):
            member.connection.oneway(code, {"consumerGroup": GROUP, "group": GROUP})
        ext = {"group": GROUP, "topic": "Paid"}
        answer = await member.connection.invoke(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext, b"", 30)
        assert "not supported" in (answer.remark or "")
        assert f"group {GROUP} has gRPC consumers: reset it with useServerSideResetOffset=true" in caplog.text
        stream.cancel()

    run(tmp_path, work)


def test_calls_go_on_when_the_broker_is_gone_and_its_refusals_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(members, "LOOK_S", 0.02)
    caplog.set_level(logging.DEBUG, "contrailmq.proxy")

    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        await serving.member.stop()
        caller = Caller(channel)
        stream = await opened(caller, settings())
        await until_async(lambda: len(failures()) > 2)
        assert (await caller.call("Heartbeat", client_type=PUSH, group=topic(GROUP))).status.code == Code.OK
        assert (await caller.call("NotifyClientTermination", group=topic(GROUP))).status.code == Code.OK
        stream.cancel()

    def failures() -> list[int]:
        return [one.levelno for one in caplog.records if "heartbeats of gRPC consumers failed" in one.getMessage()]

    run(tmp_path, work)
    assert failures()[0] == logging.WARNING
    assert set(failures()[1:]) == {logging.DEBUG}


def test_a_slave_knows_the_consumers_beside_it_too(tmp_path: Path) -> None:
    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        stream = await opened(Caller(channel, "beside@slave"), settings())
        await until_async(lambda: ids(serving) == ["beside@slave"])
        stream.cancel()

    run(tmp_path, work, brokerRole="SLAVE", brokerId="1")


def test_in_a_mixed_group_both_kinds_are_members_and_every_message_reaches_one_of_them(tmp_path: Path) -> None:
    """Remoting consumers share the queues with those over gRPC; these take from all queues."""

    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        await make_topic(serving, "Paid", "NORMAL")
        namesrv = serving.member.server.config.namesrv_addresses[0]
        got: set[bytes] = set()
        bodies = {b"%d" % number for number in range(40)}
        caller = Caller(channel)
        stream = await opened(caller, settings(entry("Paid")))
        pulling = aio.PushConsumer(GROUP, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        pulling.subscribe("Paid")

        @pulling.listen
        async def take(messages: list[Any]) -> None:
            got.update(one.body for one in messages)

        async with pulling:
            await until_async(lambda: len(ids(serving)) == 2)
            for body in bodies:
                assert (await caller.call("SendMessage", messages=[message("Paid", body)])).status.code == Code.OK
            async with asyncio.timeout(120):
                while got != bodies:
                    got.update(one.body for one in await receive(caller, "Paid", GROUP))
        await until_async(lambda: ids(serving) == ["test@1@0@x"])
        stream.cancel()

    run(tmp_path, work)


def test_five_hundred_consumers_join_and_leave_and_nothing_stays(tmp_path: Path) -> None:
    async def work(serving: Serving, channel: grpc.aio.Channel) -> None:
        node = serving.member.server.node
        [server, *_] = serving.member.server._servers
        callers = [Caller(channel, f"many@{number}") for number in range(500)]
        first = await opened(Caller(channel, "first@1"), settings(group="other"))
        await until_async(lambda: ids(serving, "other") == ["first@1"])
        before = len(server.connections)
        streams = await asyncio.gather(*(opened(caller, settings()) for caller in callers))
        await until_async(lambda: len(ids(serving)) == 500)
        await asyncio.gather(*(caller.call("NotifyClientTermination", group=topic(GROUP)) for caller in callers))
        await until_async(lambda: not ids(serving))
        await until_async(lambda: len(server.connections) == before)
        assert node.clients.consumer_group(GROUP) is None
        assert ids(serving, "other") == ["first@1"]
        for stream in (first, *streams):
            stream.cancel()

    run(tmp_path, work)
