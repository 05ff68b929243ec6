"""What an administrator asks of a gRPC consumer reaches it by its Telemetry stream, and its answer comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from contrailmq import Admin, Producer
from contrailmq.message import Message
from contrailmq.proxy import clients
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from contrailmq.wire.bodies import decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient
from proxy.calling import Caller, proxy_of, topic

CLIENT, GROUP = "asked@1@0@x", "asked"


async def opened(caller: Caller) -> Any:
    stream = caller.telemetry()
    subscription = v2.Subscription(group=topic(GROUP))
    await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=3, subscription=subscription)))
    await stream.read()
    return stream


async def ask(address: str, code: RequestCode, **ext: str) -> Command:
    remoting = RemotingClient()
    try:
        return await remoting.invoke(address, code, {"consumerGroup": GROUP, "clientId": CLIENT} | ext, timeout_s=20)
    finally:
        await remoting.close()


def test_the_threads_of_a_client_and_a_message_that_it_consumes_on_demand(cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("on-demand", queues=1)
    with Producer("on-demand", namesrv=cluster.namesrv) as producer:
        sent = producer.send(Message("on-demand", b"look at me"))

    async def main() -> None:
        async with (
            proxy_of(cluster.namesrv, remoting_port=0) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            assert server.remoting is not None
            stream = await opened(Caller(channel, CLIENT))
            asking = asyncio.ensure_future(ask(server.remoting.address, RequestCode.GET_CONSUMER_RUNNING_INFO))
            nonce = (await stream.read()).print_thread_stack_trace_command.nonce
            trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: idle")
            await stream.write(v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=trace))
            assert decode_body((await asking).body, ConsumerRunningInfo).jstack == "main: idle"
            for code, expected in ((Code.OK, "CR_SUCCESS"), (60_000, "CR_LATER")):
                asking = asyncio.ensure_future(
                    ask(
                        server.remoting.address,
                        RequestCode.CONSUME_MESSAGE_DIRECTLY,
                        topic="on-demand",
                        brokerName=sent.queue.broker_name,
                        msgId=sent.offset_message_id,
                    )
                )
                asked = (await stream.read()).verify_message_command
                assert asked.message.body == b"look at me"
                result = v2.VerifyMessageResult(nonce=asked.nonce)
                await stream.write(v2.TelemetryCommand(status=v2.Status(code=code), verify_message_result=result))
                assert decode_body((await asking).body, ConsumeMessageDirectlyResult).consume_result == expected

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_client_that_is_not_here_or_says_nothing_is_named(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "RELAY_S", 0.05)

    async def main() -> None:
        async with (
            proxy_of(cluster.namesrv, remoting_port=0) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            assert server.remoting is not None
            answer = await ask(server.remoting.address, RequestCode.GET_CONSUMER_RUNNING_INFO)
            assert f"no gRPC consumer {CLIENT!r} of group {GROUP!r}" in (answer.remark or "")
            stream = await opened(Caller(channel, CLIENT))
            answer = await ask(server.remoting.address, RequestCode.GET_CONSUMER_RUNNING_INFO)
            assert "has not answered within 0.05 s" in (answer.remark or "")
            stream.cancel()

    asyncio.run(asyncio.wait_for(main(), 120))
