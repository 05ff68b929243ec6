"""Where a queue begins: at the stored offset, else where `from_where` says."""

from __future__ import annotations

import asyncio

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere
from contrailmq.message import retry_topic
from contrailmq.wire.bodies import ConsumerList, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from waiting_for import until_async

from .fake_peer import FakePeer, name_server, route_to

CLIENT_IP = "10.1.1.1"
GROUP = "g"
TIME_MS = 1_700_000_000_000
ANSWERS = {
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: encode_body(ConsumerList(consumer_id_list=[f"{CLIENT_IP}@start"])),
}
OFFSETS = {RequestCode.GET_MAX_OFFSET: "77", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "33"}


def broker(stored: str | None) -> FakePeer:
    def script(request: Command) -> bytes | None:
        code = RequestCode(request.code)
        if code in ANSWERS:
            return encode_response(request, body=ANSWERS[code])
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            if stored is None:
                return encode_response(request, ResponseCode.QUERY_NOT_FOUND)
            return encode_response(request, 0, {"offset": stored})
        return encode_response(request, 0, {"offset": OFFSETS[code]}) if code in OFFSETS else None

    return FakePeer(script)


@pytest.mark.parametrize(
    ("from_where", "stored", "begins_at", "retries_begin_at"),
    [
        (ConsumeFromWhere.LAST_OFFSET, None, 77, 0),
        (ConsumeFromWhere.FIRST_OFFSET, None, 0, 0),
        (ConsumeFromWhere.TIMESTAMP, None, 33, 77),
        (ConsumeFromWhere.LAST_OFFSET, "5", 5, 5),
        (ConsumeFromWhere.FIRST_OFFSET, "5", 5, 5),
        (ConsumeFromWhere.TIMESTAMP, "5", 5, 5),
    ],
)
def test_a_stored_offset_wins_and_else_the_group_begins_where_it_wants(
    from_where: ConsumeFromWhere, stored: str | None, begins_at: int, retries_begin_at: int
) -> None:
    async def work() -> None:
        async with (
            broker(stored) as peer,
            name_server(lambda _: route_to(("a", peer.address))) as namesrv,
        ):
            consumer = aio.PushConsumer(
                GROUP,
                namesrv=namesrv.address,
                client_ip=CLIENT_IP,
                instance_name="start",
                from_where=from_where,
                consume_timestamp_ms=TIME_MS,
            )
            consumer.subscribe("T")
            consumer.listen(lambda _: None)
            async with consumer:
                await until_async(lambda: len(peer.asked(RequestCode.PULL_MESSAGE)) == 2)
            pulls = {
                request.ext["topic"]: int(request.ext["queueOffset"])
                for request in peer.asked(RequestCode.PULL_MESSAGE)
            }
            assert pulls == {"T": begins_at, retry_topic(GROUP): retries_begin_at}
            searches = peer.asked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
            assert {request.ext["timestamp"] for request in searches} <= {str(TIME_MS)}

    asyncio.run(work())
