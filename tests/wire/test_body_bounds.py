"""Bodies that would hold the loop are refused before anything decodes them: the bound is on work, not on time."""

from __future__ import annotations

import asyncio

import pytest

from contrailmq.wire.body_bounds import (
    FREE_BYTES,
    JSON_BYTES_MAX,
    JSON_ITEMS_MAX,
    JSON_MEMBERS_MAX,
    check_json,
    refusal,
)
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.transport import Connection, RemotingClient, RemotingServer

MANY_BYTES = b'{"clientID":"%b"}' % (b"a" * JSON_BYTES_MAX)
MANY_ITEMS = b'{"consumerDataSet":[%b{}]}' % (b'{"groupName":"g"},' * JSON_ITEMS_MAX)


@pytest.mark.parametrize(
    ("code", "body", "cause"),
    [
        (Code.HEART_BEAT, MANY_BYTES, "HEART_BEAT.*body of 2097167 bytes is above the limit of 2097152"),
        (Code.HEART_BEAT, MANY_ITEMS, "HEART_BEAT.*body has 20003 objects and arrays, the limit is 20000"),
        (Code.HEART_BEAT, b'{"a":1%b}' % (b',"a":1' * JSON_MEMBERS_MAX), "50001 members, the limit is 50000"),
        (Code.LOCK_BATCH_MQ, b"[" * (FREE_BYTES + 1), "65537 objects and arrays"),
        (Code.UPDATE_BROKER_CONFIG, b"a=1\n" * 20_000, "body of 80000 bytes, settings may take 65536"),
        (Code.UPDATE_NAMESRV_CONFIG, b"a=1\n" * 20_000, "body of 80000 bytes, settings may take 65536"),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b"[1%b]" % (b",1" * 100_001), "100001 commas, the limit is 100000"),
    ],
)
def test_a_refusal_names_the_request_the_size_and_the_limit(code: int, body: bytes, cause: str) -> None:
    import re

    said = refusal(code, body)
    assert said is not None
    assert re.search(cause, said), said


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.REGISTER_BROKER, 999_999])
def test_messages_are_not_looked_at_nor_what_nobody_serves(code: int) -> None:
    assert refusal(code, MANY_BYTES) is None
    assert refusal(code, MANY_ITEMS) is None


def test_bodies_at_the_limits_are_accepted() -> None:
    assert refusal(Code.HEART_BEAT, b"[" * FREE_BYTES) is None
    assert refusal(Code.HEART_BEAT, b"[1%b]" % (b",1" * 100_000)) is None
    check_json(b"[" + b" " * (JSON_BYTES_MAX - 1))
    check_json(b"[" * JSON_ITEMS_MAX + b" " * FREE_BYTES)
    with pytest.raises(RemoteProtocolError):
        check_json(b"[" * (JSON_ITEMS_MAX + 1) + b" " * FREE_BYTES)


def test_a_server_answers_such_requests_itself_and_serves_the_others() -> None:
    async def main() -> None:
        seen: list[int] = []

        def handler(connection: Connection, commands: list[Command]) -> None:
            for command in commands:
                seen.append(len(command.body))
                connection.reply(encode_response(command))

        server = RemotingServer(handler, host="127.0.0.1")
        await server.start()
        client = RemotingClient()
        try:
            await client.oneway(server.address, Code.HEART_BEAT, None, MANY_ITEMS)  # neither served nor answered
            refused, served, sent = await asyncio.gather(
                client.invoke(server.address, Code.HEART_BEAT, None, MANY_BYTES),
                client.invoke(server.address, Code.HEART_BEAT, None, b"{}"),
                client.invoke(server.address, Code.SEND_MESSAGE_V2, None, MANY_BYTES),
            )
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "2097167" in str(refused.remark)
            assert (served.code, sent.code) == (0, 0)
            assert seen == [2, len(MANY_BYTES)]
            [connection] = server.connections
            assert connection.in_flight == 0
            assert connection.late_answers == 0
        finally:
            await client.close()
            await server.close(drain_seconds=0.0)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_clients_take_answers_of_any_size() -> None:
    """A tool that asks for a hundred thousand topics trusts its broker."""

    async def main() -> None:
        def handler(connection: Connection, commands: list[Command]) -> None:
            for command in commands:
                connection.reply(encode_response(command, body=MANY_BYTES))

        server = RemotingServer(handler, host="127.0.0.1")
        await server.start()
        client = RemotingClient()
        try:
            answer = await client.invoke(server.address, Code.GET_ALL_TOPIC_CONFIG)
            assert len(answer.body) == len(MANY_BYTES)
        finally:
            await client.close()
            await server.close(drain_seconds=0.0)

    asyncio.run(asyncio.wait_for(main(), 120))
