"""A broker process that is killed (SIGKILL) again and again while ten consumers of one group pop, acknowledge, keep
messages longer, fail and disappear.

Rules: a message whose acknowledgement was confirmed before its invisible time was over is in no later pop's answer.
Every other comes again until somebody acknowledges it. None is lost: in the end all that were sent are acknowledged.
A tenth of the rounds in `make test`, all under CONTRAILMQ_LONG=1. The seed is in the message of a failure.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from broker.harness import records, send_fields
from contrailmq.testing import LocalCluster
from contrailmq.wire.errors import WireError
from contrailmq.wire.pop_strings import PopHandle
from contrailmq.wire.transport import RemotingClient

KILLS = 100 if os.environ.get("CONTRAILMQ_LONG") else 10
CONSUMERS = 10
INVISIBLE_MS = 3000
GUARD_S = 600.0
SEED = int(os.environ.get("CONTRAILMQ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
POP, ACK, CHANGE = 200050, 200051, 200053


class Trial:
    def __init__(self, cluster: LocalCluster, kills: int) -> None:
        self.cluster = cluster
        self.kills = kills
        self.random = random.Random(SEED)
        self.sent: set[bytes] = set()
        self.acked: dict[bytes, float] = {}  # body -> when the acknowledgement was confirmed
        self.tried: set[bytes] = set()  # an acknowledgement was sent that may have come in time, or not at all
        self.wrong: list[str] = []
        self.deliveries = self.again = 0
        self.is_over = False
        self.is_draining = False

    @property
    def missing(self) -> set[bytes]:
        return self.sent - self.acked.keys() - self.tried

    @property
    def address(self) -> str:
        return self.cluster.broker_addresses[0]

    async def run(self) -> None:
        tasks = [asyncio.create_task(self.produce())]
        tasks += [asyncio.create_task(self.consume(number)) for number in range(CONSUMERS)]
        try:
            for _ in range(self.kills):
                await asyncio.sleep(self.random.uniform(0.1, 1.2))
                await asyncio.to_thread(self.cluster.kill_broker)
                await asyncio.to_thread(self.cluster.restart_broker)
                assert not self.wrong, self.wrong[:3]
            self.is_draining = True
            await tasks[0]
            await asyncio.wait_for(self.drained(), GUARD_S)
            await asyncio.sleep(2 * INVISIBLE_MS / 1000)  # what is acknowledged must not come again now either
        finally:
            self.is_over = True
            done = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    async def drained(self) -> None:
        """Until everything was acknowledged, or a rule was broken."""
        while True:
            if self.wrong or not self.missing:
                return
            await asyncio.sleep(0.2)

    async def produce(self) -> None:
        client, number = RemotingClient(), 0
        while not self.is_draining and not self.is_over:
            body = b"m%d" % number
            number += 1
            try:
                answer = await client.invoke(self.address, 310, send_fields("T", e=number % 4), body, 2.0)
            except WireError:
                await asyncio.sleep(0.05)
                continue
            if answer.code == 0:
                self.sent.add(body)
            await asyncio.sleep(0.002)
        await client.close()

    async def consume(self, number: int) -> None:
        source = random.Random(SEED + number)
        client = RemotingClient()
        while not self.is_over:
            began = time.monotonic()
            try:
                await self.round(client, source, began)
            except WireError:
                await asyncio.sleep(0.05)
            if source.random() < 0.05:  # it dies, and another takes its place
                await client.close()
                client = RemotingClient()
        await client.close()

    async def round(self, client: RemotingClient, source: random.Random, began: float) -> None:
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": str(source.choice((1, 4, 16, 32))),
            "invisibleTime": str(INVISIBLE_MS), "pollTime": "1000", "bornTime": "0", "initMode": "0", "order": "false",
        }  # fmt: skip
        answer = await client.invoke(self.address, POP, fields, b"", 3.0)
        if answer.code != 0:
            return
        starts = {
            tuple(entry.split(" ")[:2]): entry.split(" ")[2] for entry in answer.ext["startOffsetInfo"].split(";")
        }
        for message in records(answer.body):
            self.note_delivery(message.body, began, message.reconsume_times)
            own = message.properties.get("POP_CK")
            handle = PopHandle.decode(own) if own else PopHandle(
                int(starts["0", str(message.queue_id)]), int(answer.ext["popTime"]), INVISIBLE_MS,
                int(answer.ext["reviveQid"]), "0", "x", message.queue_id, message.queue_offset,
            )  # fmt: skip
            if source.random() < (0.02 if self.is_draining else 0.15):
                continue  # it fails
            await self.finish(client, source, message.body, handle, began)

    async def finish(
        self, client: RemotingClient, source: random.Random, body: bytes, handle: PopHandle, began: float
    ) -> None:
        fields = {
            "consumerGroup": "g", "topic": "%RETRY%g_T" if handle.mark == "1" else "T",
            "queueId": str(handle.queue_id), "extraInfo": handle.encode(), "offset": str(handle.offset),
        }  # fmt: skip
        valid_until = began + INVISIBLE_MS / 1000
        if source.random() < 0.2:
            changed_at = time.monotonic()
            answer = await client.invoke(self.address, CHANGE, fields | {"invisibleTime": "4000"}, b"", 2.0)
            if answer.code != 0:
                return
            valid_until = changed_at + 4.0
            handle = handle._replace(
                start_offset=handle.offset, pop_time_ms=int(answer.ext["popTime"]), invisible_ms=4000
            )
            fields["extraInfo"] = handle.encode()
            if source.random() < 0.2:
                return  # kept longer, and then it fails
        self.tried.add(body)
        answer = await client.invoke(self.address, ACK, fields, b"", 2.0)
        assert answer.code == 0, answer.remark
        now = time.monotonic()
        if now < valid_until:
            self.acked.setdefault(body, now)

    def note_delivery(self, body: bytes, began: float, times: int) -> None:
        self.deliveries += 1
        self.again += times > 0
        confirmed = self.acked.get(body)
        if confirmed is not None and began > confirmed:
            self.wrong.append(
                f"{body!r} came {began - confirmed:.3f} s after its acknowledgement was confirmed, as attempt {times}"
            )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_kills_lose_nothing_and_repeat_nothing_that_was_acknowledged(tmp_path: Path, flush: str) -> None:
    settings = {"flushDiskType": flush, "defaultTopicQueueNums": 4}
    with LocalCluster(store=tmp_path, processes=True, config=settings) as cluster:
        trial = Trial(cluster, KILLS if flush == "ASYNC_FLUSH" else max(KILLS // 5, 2))
        asyncio.run(trial.run())
    told = f"seed {SEED}: {len(trial.sent)} sent, {trial.deliveries} deliveries, {trial.again} of them again"
    assert not trial.wrong, f"{told}: {trial.wrong[:5]}"
    assert not trial.missing, f"{told}: lost {sorted(trial.missing)[:5]}"
    assert len(trial.acked) > len(trial.sent) // 2, told
    assert trial.again > 0, told
