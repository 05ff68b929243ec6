"""A broker process that is killed (SIGKILL) after any step of: pop, acknowledge, set back or forward, pop again,
acknowledge by new and old handles. Half of the steps are followed by a kill: a start saves what the steps before told
it, and would hide what is wrong with two steps of one life.

One consumer, so what each step must give is known exactly: a pop gives the messages from where the group stands, none
left out and none twice; in flight is what was popped last and not acknowledged under that handle. A FIFO queue waits
for its batch until that is acknowledged or an operator moves the group. Half of the moves go to where an earlier pop
began or ended. The seed is in the message of a failure.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Final

import pytest

from broker.harness import ROUNDS, records, send_fields
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.header import Command
from contrailmq.wire.pop_strings import PopHandle
from contrailmq.wire.transport import RemotingClient

SEED: Final = int(os.environ.get("CONTRAILMQ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SEND, SET, RUNTIME, RESET = 310, 15, 28, 222
POP, ACK = 200050, 200051
OK, NOT_IN_BATCH = 0, 13  # what an acknowledgement of a FIFO batch of before may be answered
MESSAGES: Final = 40
INVISIBLE_MS: Final = 3_600_000  # nothing comes again by time
LIMIT_S: Final = 600.0


class Trial:
    """What the group is owed, and the steps that ask for it."""

    def __init__(self, cluster: LocalCluster, *, is_fifo: bool) -> None:
        self.cluster = cluster
        self.is_fifo = is_fifo
        self.random = random.Random(SEED)
        self.position = self.batch_end = 0  # what the next pop begins with; where a FIFO batch ends
        self.places = [0]  # where pops began and ended
        self.in_flight: dict[int, PopHandle] = {}  # by offset: the newest handle
        self.old: list[PopHandle] = []  # handles that count no more
        self.story: list[str] = []

    @property
    def told(self) -> str:
        return f"seed {SEED}: " + "; ".join(self.story[-8:])

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        client = RemotingClient()
        try:
            answer = await client.invoke(self.cluster.broker_addresses[0], code, fields, body, 10.0)
        finally:
            await client.close()
        return answer

    async def killed(self) -> None:
        await asyncio.to_thread(self.cluster.kill_broker)
        await asyncio.to_thread(self.cluster.restart_broker)
        if not self.is_fifo:
            answer = await self.ask(RUNTIME, {})
            figures = decode_body(answer.body, KVTable).table
            assert int(figures["popInFlight"]) == len(self.in_flight), self.told

    async def run(self, rounds: int) -> None:
        for number in range(MESSAGES):
            assert (await self.ask(SEND, send_fields("T", e=0), b"%d" % number)).code == 0
        for _ in range(rounds):
            for step in (self.pop, self.acknowledge, self.move, self.pop, self.acknowledge):
                await step()
                if self.random.random() < 0.5:
                    await self.killed()
        await self.to_the_end()

    async def to_the_end(self) -> None:
        """Everything from where the group stands comes."""
        while self.position < MESSAGES or self.in_flight:
            await self.pop()
            for handle in list(self.in_flight.values()):
                await self.acknowledge_one(handle)

    # --- steps

    async def pop(self) -> None:
        count = self.random.randint(1, 8)
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": str(count), "pollTime": "0",
            "invisibleTime": str(INVISIBLE_MS), "bornTime": "0", "initMode": "0", "order": str(self.is_fifo).lower(),
        }  # fmt: skip
        answer = await self.ask(POP, fields)
        found = [message.queue_offset for message in records(answer.body)] if answer.code == 0 else []
        self.story.append(f"pop of {count} at {self.position} gave {found}")
        waits = self.is_fifo and bool(self.in_flight)
        expected = [] if waits else list(range(self.position, min(self.position + count, MESSAGES)))
        assert found == expected, self.told
        for offset in found:
            if offset in self.in_flight:
                self.old.append(self.in_flight[offset])
            self.in_flight[offset] = PopHandle(
                found[0], int(answer.ext["popTime"]), INVISIBLE_MS, int(answer.ext["reviveQid"]), "0", "x", 0, offset
            )
        if found:
            self.batch_end = found[-1] + 1
            self.places += [found[0], self.batch_end]
        if not self.is_fifo:
            self.position += len(found)

    async def acknowledge(self) -> None:
        """Some of the newest handles, and one that counts no more."""
        for handle in list(self.in_flight.values()):
            if self.random.random() < 0.6:
                await self.acknowledge_one(handle)
        if self.old:
            await self.sent(self.random.choice(self.old), allowed=(OK, NOT_IN_BATCH))

    async def acknowledge_one(self, handle: PopHandle) -> None:
        await self.sent(handle)
        del self.in_flight[handle.offset]
        if self.is_fifo:
            self.position = min(self.in_flight, default=self.batch_end)

    async def sent(self, handle: PopHandle, *, allowed: tuple[int, ...] = (OK,)) -> None:
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": "0", "extraInfo": handle.encode(),
            "offset": str(handle.offset),
        }  # fmt: skip
        answer = await self.ask(ACK, fields)
        self.story.append(f"acknowledged {handle.offset} popped at {handle.pop_time_ms}: {answer.code}")
        assert answer.code in allowed, (answer.remark, self.told)

    async def move(self) -> None:
        to = self.random.choice((self.random.randint(0, MESSAGES), self.random.choice(self.places[-6:])))
        code = self.random.choice((RESET, SET))
        if code == RESET:
            place = {"topic": "T", "group": "g", "queueId": "0", "offset": str(to)}
            fields = place | {"timestamp": "0", "isForce": "true"}
        else:
            fields = {"topic": "T", "consumerGroup": "g", "queueId": "0", "commitOffset": str(to)}
        answer = await self.ask(code, fields)
        self.story.append(f"moved from {self.position} to {to} by {code}: {answer.code}")
        assert answer.code == 0, (answer.remark, self.told)
        self.position = to
        if self.is_fifo:  # the batch is forgotten
            self.old += self.in_flight.values()
            self.in_flight.clear()


@pytest.mark.parametrize("is_fifo", [False, True], ids=["plain", "fifo"])
def test_a_kill_between_two_steps_changes_nothing(tmp_path: Path, is_fifo: bool) -> None:
    with LocalCluster(store=tmp_path, processes=True) as cluster:
        trial = Trial(cluster, is_fifo=is_fifo)
        asyncio.run(asyncio.wait_for(trial.run(ROUNDS), LIMIT_S))
