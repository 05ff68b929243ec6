"""A SYNC_MASTER and its slave under load, with kills at random: what was acknowledged is on both, bytes equal."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from broker.test_replication import SYNC, Pair, log_of, pair
from contrailmq.message.codec import BLANK_MAGIC, decode_record
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import WireError
from waiting_for import until_async

pytestmark = [pytest.mark.servers, pytest.mark.kills]

SENDERS = 4
SENDS_BEFORE_A_KILL = 150


class Load:
    """Senders that note what was acknowledged; what was not may be stored all the same."""

    def __init__(self, made: Pair) -> None:
        self._made = made
        self._number = 0
        self.acknowledged: set[bytes] = set()
        self.codes: dict[int, int] = {}

    async def send(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            body = b"%d " % self._number + bytes(self._number % 700)
            try:
                answer = await self._made.send("single", body, timeout_s=5)
            except WireError:  # the master was killed meanwhile
                return
            self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged.add(body)


def bodies_in(log: bytes, file_bytes: int) -> set[bytes]:
    """Of every record of a log from offset 0 on; a file ends with a BLANK."""
    bodies: set[bytes] = set()
    position = 0
    while position < len(log):
        if int.from_bytes(log[position + 4 : position + 8], "big", signed=True) == BLANK_MAGIC:
            position += file_bytes - position % file_bytes
            continue
        message = decode_record(log, position)
        bodies.add(message.body)
        position += message.size_bytes
    return bodies


async def check(made: Pair, load: Load) -> None:
    """After healing: the slave has caught up, both logs are one, and hold all that was acknowledged."""
    await made.following()
    await made.in_step()
    ours, theirs = log_of(made.master), log_of(made.slave)
    assert ours == theirs
    missing = load.acknowledged - bodies_in(theirs, made.slave.store.config.mapped_file_size_commit_log)
    assert not missing, f"{len(missing)} acknowledged messages are not on the slave"


async def strike(made: Pair, victims: str) -> None:
    """Kill, and start again; who is killed first is gone while the other still works."""
    for victim in victims.split():
        await (made.slave if victim == "slave" else made.master).kill()
    if "master" in victims:
        await made.start_master()
    if "slave" in victims:
        await made.start_slave()


async def one_round(made: Pair, load: Load, rng: random.Random) -> None:
    senders = [asyncio.create_task(load.send(SENDS_BEFORE_A_KILL)) for _ in range(SENDERS)]
    enough = len(load.acknowledged) + rng.randrange(SENDS_BEFORE_A_KILL)
    await until_async(lambda: len(load.acknowledged) >= enough or all(one.done() for one in senders))
    await strike(made, rng.choice(["slave", "master", "slave master", "master slave"]))
    await asyncio.gather(*senders)
    await check(made, load)


@pytest.mark.parametrize("rounds", [4, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_kills_at_random_lose_nothing_that_was_acknowledged(tmp_path: Path, flush: str, rounds: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")

    async def work() -> None:
        rng = random.Random(seed)
        async with pair(tmp_path, **(SYNC | {"slaveTimeout": "300"}), flushDiskType=flush) as made:
            load = Load(made)
            for _ in range(rounds):
                await one_round(made, load, rng)
            print(f"{len(load.acknowledged)} acknowledged, answers by code: {load.codes}")
            assert load.acknowledged

    asyncio.run(work())
