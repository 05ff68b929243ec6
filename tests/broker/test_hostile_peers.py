"""Requests made to keep a broker busy or to fill it, over sockets: each has its answer, and others are served."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.transport import RemotingClient

T = TypeVar("T")
MIB = 1024 * 1024
SENT = {
    "producerGroup": "g",
    "topic": "Large",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "reconsumeTimes": "0",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(store=tmp_path) as made:
        yield made


def asked(work: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 120))


def test_a_body_that_would_be_decoded_for_long_is_refused_with_its_numbers_and_a_message_is_not(
    cluster: LocalCluster,
) -> None:
    async def work() -> tuple[tuple[int, str | None], tuple[int, str | None]]:
        client = RemotingClient()
        address = cluster.broker_addresses[0]
        heartbeat = await client.invoke(address, RequestCode.HEART_BEAT, None, b'{"a":' * (600 * 1024), timeout_s=120)
        message = await client.invoke(address, RequestCode.SEND_MESSAGE, SENT, bytes(3 * MIB), timeout_s=120)
        await client.close()
        return (heartbeat.code, heartbeat.remark), (message.code, message.remark)

    heartbeat, message = asked(work())
    assert heartbeat == (
        ResponseCode.INVALID_PARAMETER,
        "HEART_BEAT(34): body of 3072000 bytes is above the limit of 2097152: send less",
    )
    assert message == (ResponseCode.SUCCESS, None)


def test_a_header_that_would_be_decoded_for_long_closes_the_connection_and_others_are_served(
    cluster: LocalCluster,
) -> None:
    async def work() -> tuple[bytes, int]:
        address = cluster.broker_addresses[0]
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack(">II", 4 + 5 * MIB, 5 * MIB) + b'{"code":34,' + b" " * 1000)
        answer = await reader.read()
        writer.close()
        client = RemotingClient()
        other = await client.invoke(address, RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"}, b"", 30)
        await client.close()
        return answer, other.code

    assert asked(work()) == (b"", ResponseCode.SUCCESS)


def test_properties_that_no_broker_takes_cost_their_message_and_not_the_connection(cluster: LocalCluster) -> None:
    """Java's client sends what it is given; its other producers share the connection."""

    async def work() -> tuple[tuple[int, str | None], int]:
        client = RemotingClient()
        address = cluster.broker_addresses[0]
        connection = await client.connect(address)
        large = {**SENT, "properties": "k\x01" + "v" * MIB}
        refused, other = await asyncio.gather(
            client.invoke(address, RequestCode.SEND_MESSAGE, large, b"x", timeout_s=120),
            client.invoke(address, RequestCode.SEND_MESSAGE, SENT, b"x", timeout_s=120),
        )
        assert connection.is_open
        await client.close()
        return (refused.code, refused.remark), other.code

    (code, remark), other = asked(work())
    assert code == ResponseCode.INVALID_PARAMETER
    assert str(remark).startswith("SEND_MESSAGE(10): header of 10")
    assert str(remark).endswith("bytes is above the limit of 524288: move data into the body")
    assert other == ResponseCode.SUCCESS


def test_frames_that_never_end_make_large_messages_wait_small_requests_not(cluster: LocalCluster) -> None:
    async def work() -> tuple[int, int]:
        client = RemotingClient()
        address = cluster.broker_addresses[0]
        host, _, port = address.rpartition(":")
        writers = []
        for _ in range(40):  # two and a half times what all unfinished frames may take
            _reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(struct.pack(">II", 15 * MIB, 100))
            writers.append(writer)
        question = {"topic": "TBW102", "queueId": "0"}
        answer = await client.invoke(address, RequestCode.GET_MAX_OFFSET, question, b"", 30)
        sending = asyncio.ensure_future(client.invoke(address, RequestCode.SEND_MESSAGE, SENT, bytes(3 * MIB), 30))
        for writer in writers:
            writer.close()
        sent = await sending
        await client.close()
        return answer.code, sent.code

    assert asked(work()) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
