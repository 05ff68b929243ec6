"""Handing a message back: by reference when its broker can, as a plain send to the retry topic when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from contrailmq.client.consuming.send_back import SendBack
from contrailmq.client.settings import ClientOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import decode_properties
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command

from .fake_peer import FakePeer, name_server, route_to, stored
from .messages import received

Script = Callable[[Command], bytes]


def takes_back(request: Command) -> bytes:
    return encode_response(request)


def only_stores(request: Command) -> bytes:
    """A broker that lost the message: it cannot be handed back by reference."""
    return (
        stored(request) if request.code == RequestCode.SEND_MESSAGE_V2 else encode_response(request, 1, remark="gone")
    )


def refuses_all(request: Command) -> bytes:
    return encode_response(request, 13, remark="never")


@asynccontextmanager
async def joined(script: Script) -> AsyncIterator[tuple[SendBack, FakePeer]]:
    async with FakePeer(script) as broker, name_server(lambda _: route_to(("broker-a", broker.address))) as namesrv:
        instance = ClientInstance.acquire("back", ClientOptions(namesrv=namesrv.address))
        try:
            yield SendBack(instance, "billing", max_reconsume_times=5), broker
        finally:
            await instance.release()


def test_a_message_is_handed_back_by_reference() -> None:
    async def run() -> None:
        async with joined(takes_back) as (back, broker):
            message = received(7, properties={"UNIQ_KEY": "ID"})
            assert await back.send_back(message, topic="Orders", delay_level=4)
        (asked,) = broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
        wanted = {"offset": "700", "group": "billing", "delayLevel": "4", "originMsgId": "ID", "originTopic": "Orders"}
        assert wanted.items() <= asked.ext.items()
        assert asked.ext["maxReconsumeTimes"] == "5"
        assert broker.asked(RequestCode.SEND_MESSAGE_V2) == []

    asyncio.run(run())


@pytest.mark.parametrize("failures", [0, 2])
def test_a_message_that_cannot_be_handed_back_goes_to_the_retry_topic_with_one_failure_more(failures: int) -> None:
    async def run() -> None:
        async with joined(only_stores) as (back, broker):
            message = received(7, b"the body", properties={"UNIQ_KEY": "ID", "KEYS": "o-17"}, reconsume_times=failures)
            assert await back.send_back(message, topic="Orders")
        (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
        assert (sent.ext["b"], sent.body) == ("%RETRY%billing", b"the body")
        assert (sent.ext["j"], sent.ext["l"]) == (str(failures + 1), "5")
        properties = decode_properties(sent.ext["i"])
        assert properties["RETRY_TOPIC"] == "Orders"
        assert properties["DELAY"] == str(3 + failures)
        assert properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
        assert (properties["UNIQ_KEY"], properties["KEYS"]) == ("ID", "o-17")
        assert message.reconsume_times == failures  # the caller's copy is not counted twice

    asyncio.run(run())


def test_a_message_that_nobody_takes_is_said_to_be_still_here() -> None:
    async def run() -> None:
        async with joined(refuses_all) as (back, _):
            assert not await back.send_back(received(7), topic="Orders")

    asyncio.run(run())
