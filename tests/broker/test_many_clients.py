"""Many connections and many held pulls on a broker of its own process: what they cost, and that all are answered."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq import Message, MessageQueue, Producer
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command

QUEUES = 4
SUSPEND, SUBSCRIPTION = 2, 4
TOPIC = "Held"


def held_pull(group: str, queue_id: int, opaque: int) -> bytes:
    fields = {
        "consumerGroup": group,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": "1",
        "maxMsgNums": "32",
        "sysFlag": str(SUSPEND | SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "600000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return encode_request(RequestCode.PULL_MESSAGE, fields, b"", opaque=opaque)


class Crowd:
    """Raw connections, each with as many pulls that wait."""

    def __init__(self, address: str, connections: int, pulls: int) -> None:
        self._address = address
        self._connections = connections
        self._pulls_each = pulls // connections
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, FrameParser]] = []

    async def hold(self) -> None:
        """Returns when the broker has seen all pulls: the question behind them on each connection is answered."""
        host, _, port = self._address.rpartition(":")
        for number in range(self._connections):
            reader, writer = await asyncio.open_connection(host, int(port))
            self._open.append((reader, writer, FrameParser()))
            for opaque in range(self._pulls_each):
                writer.write(held_pull(f"g{number % 50}", opaque % QUEUES, opaque))
            question = {"topic": TOPIC, "queueId": "0"}
            writer.write(encode_request(RequestCode.GET_MAX_OFFSET, question, b"", opaque=self._pulls_each))
        for answers in await asyncio.gather(*(self._read(entry, 1) for entry in self._open)):
            assert [answer.opaque for answer in answers] == [self._pulls_each], "a pull was answered, not held"

    async def answered(self) -> list[Command]:
        """The answers of all pulls."""
        found = await asyncio.gather(*(self._read(entry, self._pulls_each) for entry in self._open))
        return [answer for answers in found for answer in answers]

    def close(self) -> None:
        for _, writer, _ in self._open:
            writer.close()

    async def _read(
        self, entry: tuple[asyncio.StreamReader, asyncio.StreamWriter, FrameParser], count: int
    ) -> list[Command]:
        reader, _, parser = entry
        found: list[Command] = []
        while len(found) < count:
            data = await reader.read(1 << 16)
            assert data, "the broker closed the connection"
            found += parser.feed(data)
        return found


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_mb(process_id: int) -> float:
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures memory through /proc")
@pytest.mark.parametrize(
    ("connections", "pulls", "bound_mb"),
    [(200, 2_000, 120), pytest.param(1_000, 10_000, 300, marks=pytest.mark.long)],
    ids=["quick", "full"],
)
def test_many_held_pulls_stay_within_memory_and_all_are_woken(
    many_descriptors: None, connections: int, pulls: int, bound_mb: int
) -> None:
    with LocalCluster(processes=True) as cluster, Producer("crowd", namesrv=cluster.namesrv) as producer:
        queues = [MessageQueue(TOPIC, "broker-0", queue_id) for queue_id in range(QUEUES)]
        for queue in queues:
            producer.send(Message(TOPIC, b"first"), queue=queue)

        async def run() -> tuple[float, list[Command]]:
            crowd = Crowd(cluster.broker_addresses[0], connections, pulls)
            try:
                await crowd.hold()
                size_mb = resident_mb(cluster.broker_process_id())
                for queue in queues:
                    await asyncio.to_thread(producer.send, Message(TOPIC, b"second"), queue=queue)
                return size_mb, await crowd.answered()
            finally:
                crowd.close()

        size_mb, answers = asyncio.run(run())
    print(f"{connections} connections, {pulls} held pulls: {size_mb:.0f} MB resident")
    assert len(answers) == pulls
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert size_mb < bound_mb
