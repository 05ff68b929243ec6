"""POP between Apache's programs and ours: its Java consumer and mqadmin on our broker, one store under both brokers.

The store goes both ways with messages in flight: what was acknowledged under one broker does not come again under the
other, what was not comes once, and both agree on how often it was delivered.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from apache import Apache, Program, facts, our_broker

from broker.harness import records, send_fields
from contrailmq import Admin
from contrailmq.wire.header import Command
from contrailmq.wire.pop_strings import PopHandle
from contrailmq.wire.transport import RemotingClient

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

POP, ACK, CHANGE = 200050, 200051, 200053
GUARD_S = 180.0


class Consumer:
    """A POP consumer of group g of topic T over one connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = RemotingClient()

    async def ask(self, code: int, ext: dict[str, object], body: bytes = b"") -> Command:
        fields = {name: str(value) for name, value in ext.items()}
        return await self.client.invoke(self.address, code, fields, body, 10.0)

    async def send(self, *bodies: str) -> None:
        for body in bodies:
            answer = await self.ask(310, dict(send_fields("T")), body.encode())
            assert answer.code == 0, answer.remark

    async def pop(self, invisible_ms: int, count: int = 32) -> list[tuple[str, int, PopHandle]]:
        """(body, attempts, handle) of each message."""
        answer = await self.ask(
            POP,
            {
                "consumerGroup": "g", "topic": "T", "queueId": -1, "maxMsgNums": count, "invisibleTime": invisible_ms,
                "pollTime": 0, "bornTime": int(time.time() * 1000), "initMode": 0, "order": "false",
            },
        )  # fmt: skip
        assert answer.code in (0, 210, 209), (answer.code, answer.remark)
        if answer.code:
            return []
        starts = {
            tuple(entry.split(" ")[:2]): entry.split(" ")[2] for entry in answer.ext["startOffsetInfo"].split(";")
        }
        found = []
        for message in records(answer.body):
            own = message.properties.get("POP_CK")
            handle = PopHandle.decode(own) if own else PopHandle(
                int(starts["0", str(message.queue_id)]), int(answer.ext["popTime"]), invisible_ms,
                int(answer.ext["reviveQid"]), "0", "broker-a", message.queue_id, message.queue_offset,
            )  # fmt: skip
            found.append((message.body.decode(), message.reconsume_times, handle))
        return found

    def fields(self, handle: PopHandle) -> dict[str, object]:
        return {
            "consumerGroup": "g", "topic": "%RETRY%g_T" if handle.mark == "1" else "T", "queueId": handle.queue_id,
            "extraInfo": handle.encode(), "offset": handle.offset,
        }  # fmt: skip

    async def ack(self, handle: PopHandle) -> None:
        assert (await self.ask(ACK, self.fields(handle))).code == 0

    async def change(self, handle: PopHandle, invisible_ms: int) -> PopHandle:
        answer = await self.ask(CHANGE, self.fields(handle) | {"invisibleTime": invisible_ms})
        assert answer.code == 0, answer.remark
        return handle._replace(
            start_offset=handle.offset, pop_time_ms=int(answer.ext["popTime"]), invisible_ms=invisible_ms
        )

    async def drain(self, wanted: set[str], more_s: float) -> Counter[tuple[str, int]]:
        """What comes until all that is wanted was there, and for a while after; each is acknowledged."""
        came: Counter[tuple[str, int]] = Counter()
        end = time.monotonic() + GUARD_S
        while time.monotonic() < end:
            for body, attempts, handle in await self.pop(60_000):
                came[body, attempts] += 1
                await self.ack(handle)
            if wanted <= {body for body, _ in came} and end - time.monotonic() > more_s:
                end = time.monotonic() + more_s
            await asyncio.sleep(0.2)
        return came


def run(broker: Program, work: Callable[[Consumer], Awaitable[object]]) -> object:
    async def whole() -> object:
        consumer = Consumer(broker.address)
        try:
            return await work(consumer)
        finally:
            await consumer.client.close()

    return asyncio.run(whole())


async def leave_in_flight(consumer: Consumer) -> None:
    """a acknowledged; b left; c kept longer and acknowledged; d kept longer and left; e never popped."""
    await consumer.send("a", "b", "c", "d")
    found = {body: handle for body, _, handle in await consumer.pop(12_000)}
    assert sorted(found) == ["a", "b", "c", "d"]
    await consumer.send("e")
    await consumer.ack(found["a"])
    await consumer.ack(await consumer.change(found["c"], 12_000))
    await consumer.change(found["d"], 14_000)


EXPECTED = {("b", 1): 1, ("d", 1): 1, ("e", 0): 1}


def ours(tmp_path: Path, namesrv: str) -> Program:
    sizes = {"mappedFileSizeTimerLog": 1024 * 1024, "maxHashSlotNum": 5000, "maxIndexNum": 20000}  # as Apache's here
    return our_broker(tmp_path, namesrv, {"brokerName": "broker-a", "storePathRootDir": tmp_path / "store", **sizes})


def theirs(rocketmq: Apache, tmp_path: Path, namesrv: str) -> Program:
    return rocketmq.broker(namesrv, store=tmp_path / "store", name="broker-a")


def test_apaches_broker_goes_on_with_what_is_in_flight_in_our_store(rocketmq: Apache, tmp_path: Path) -> None:
    with rocketmq.namesrv() as namesrv:
        with ours(tmp_path, namesrv.address) as broker:
            run(broker, leave_in_flight)
        with theirs(rocketmq, tmp_path, namesrv.address) as broker:
            assert run(broker, lambda consumer: consumer.drain({"b", "d", "e"}, 12.0)) == EXPECTED


def test_our_broker_goes_on_with_what_is_in_flight_in_apaches_store_and_back(rocketmq: Apache, tmp_path: Path) -> None:
    with rocketmq.namesrv() as namesrv:
        with theirs(rocketmq, tmp_path, namesrv.address) as broker:
            run(broker, leave_in_flight)
        with ours(tmp_path, namesrv.address) as broker:
            assert run(broker, lambda consumer: consumer.drain({"b", "d", "e"}, 8.0)) == EXPECTED
        with theirs(rocketmq, tmp_path, namesrv.address) as broker:  # nothing is left: nothing comes
            assert run(broker, lambda consumer: consumer.drain(set(), 12.0)) == {}


def test_messages_that_came_again_under_our_broker_do_not_under_apaches(rocketmq: Apache, tmp_path: Path) -> None:
    async def let_it_come_again(consumer: Consumer) -> None:
        await consumer.send("x", "y")
        assert len(await consumer.pop(2000)) == 2
        came = await consumer.drain({"x", "y"}, 1.0)
        assert came == {("x", 1): 1, ("y", 1): 1}

    with rocketmq.namesrv() as namesrv:
        with ours(tmp_path, namesrv.address) as broker:
            run(broker, let_it_come_again)
        with theirs(rocketmq, tmp_path, namesrv.address) as broker:
            assert run(broker, lambda consumer: consumer.drain(set(), 12.0)) == {}


@pytest.mark.program("Java client (remoting)", "5.5.0")
@pytest.mark.parametrize("mode", ["pop", "pop-retry"])
def test_apaches_push_consumer_pops_from_our_broker(rocketmq: Apache, tmp_path: Path, mode: str) -> None:
    """clientRebalance=false: the broker assigns queue -1 in mode POP, and the client acknowledges each message."""
    with rocketmq.namesrv() as namesrv, ours(tmp_path, namesrv.address) as broker:
        with Admin(namesrv=namesrv.address) as admin:
            admin.create_topic("Popped", queues=4)  # a route of its own: the template's comes a moment later
        rocketmq.client("produce", namesrv.address, "Popped", "20")
        group = f"java_{mode}"
        rocketmq.mqadmin("updateSubGroup", "-b", broker.address, "-g", group, namesrv=namesrv.address)
        told = rocketmq.mqadmin(
            "setConsumeMode", "-b", broker.address, "-t", "Popped", "-g", group, "-m", "POP", "-q", "0",
            namesrv=namesrv.address,
        )  # fmt: skip
        assert "success" in told
        output = rocketmq.client("consume", namesrv.address, group, "Popped", "*", "20", mode)
        got = facts(output, "got")
        assert len(got) == 20
        assert len({tuple(fact) for fact in got}) == 20
        assert facts(output, "done")[0][0] == "true"
