"""A SYNC_MASTER and its slave in one process, with a link between their logs that a test can spoil.

TCP repairs what the network does to segments, so that its peers see delays and splits, and never a byte twice. A block
or a report that comes twice is a fault of the other side, or of a proxy: a slave must take nothing of it twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from broker.test_replication import SYNC, Pair, log_of, queue_units
from broker.test_slave_end_to_end import broker
from contrailmq.message.identity import parse_offset_message_id
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.testing.links import Relay
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.requests import SendMessageResponse
from contrailmq.wire.transport import RemotingClient
from ha_slaves import HEAD
from replica_trial import records
from waiting_for import until_async

pytestmark = pytest.mark.servers

FILE_BYTES = 1 << 20  # of the harness
SENDERS = 4
QUICK = {"haSendHeartbeatInterval": "100", "haHousekeepingInterval": "500"}  # a cut is noticed in half a second


class SpoiledLink(Relay):
    """Knows where blocks and reports begin, and hands them on as `rng` likes while `faults` has something."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.faults: set[str] = set()
        self.furthest = -1  # report that has left for the master
        self.connections = self.repeated = 0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reports."""
        self.connections += 1
        while True:
            report = await _exactly(reader, 8)
            await self._joined.wait()
            self.furthest = max(self.furthest, int.from_bytes(report, "big"))
            await self._send(writer, report)

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Blocks."""
        while True:
            head = await _exactly(reader, HEAD.size)
            block = head + await _exactly(reader, HEAD.unpack(head)[1])
            await self._joined.wait()
            await self._send(writer, block)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        rng, faults = self._rng, self.faults
        if "twice" in faults and rng.random() < 0.02:
            self.repeated += 1
            data += data
        pieces = 1 + min(len(data) - 1, rng.randrange(4)) if "split" in faults else 1
        borders = [0, *sorted(rng.sample(range(1, len(data)), pieces - 1)), len(data)]
        for begin, end in pairwise(borders):
            if "delayed" in faults and rng.random() < 0.2:
                await asyncio.sleep(rng.random() * 0.01)
            writer.write(data[begin:end])
            await writer.drain()
            await asyncio.sleep(0)  # so that each piece is a wakeup of its own
        if "slow" in faults:
            await asyncio.sleep(0.02)


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as exc:
        raise EOFError from exc


class LinkedPair(Pair):
    """The slave follows through the link, and asks its questions without it. `intervals` are those of both."""

    def __init__(self, path: Path, namesrv: str, client: RemotingClient, intervals: dict[str, str]) -> None:
        super().__init__(path, namesrv, client, SYNC | {"slaveTimeout": "300"} | intervals)
        self._intervals = intervals
        self.link: SpoiledLink

    async def start_master(self) -> None:
        await super().start_master()
        assert self.master.replication is not None
        self.link.target = f"127.0.0.1:{self.master.replication.port}"

    async def start_slave(self) -> None:
        role = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true", "haMasterAddress": self.link.address}
        self.slave = broker(self.path / "slave", self.namesrv, **role, **self._intervals)
        await self.slave.start()


@asynccontextmanager
async def linked(path: Path, rng: random.Random, **intervals: str) -> AsyncIterator[LinkedPair]:
    namesrv = NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(path / "home")))
    await namesrv.start()
    client = RemotingClient()
    made = LinkedPair(path, namesrv.address, client, intervals)
    made.link = SpoiledLink(rng)
    await made.link.start()
    await made.start_master()
    await made.start_slave()
    try:
        await made.following()
        yield made
    finally:
        await client.close()
        await made.slave.stop()
        await made.master.stop()
        await made.link.close()
        await namesrv.stop()


class Senders:
    """What was acknowledged: offset in the log, and how far the slave had reported by then."""

    def __init__(self, made: LinkedPair) -> None:
        self._made = made
        self._number = 0
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.checked = 0

    async def send(self, count: int) -> None:
        await asyncio.gather(*(self._send(count // SENDERS) for _ in range(SENDERS)))

    async def _send(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            body = b"%d " % self._number + bytes(self._number * 31 % 5000)
            try:
                answer = await self._made.send("single", body, timeout_s=20)
            except WireError:  # the master was killed meanwhile
                return
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT), answer.remark
            if answer.code == ResponseCode.SUCCESS:
                offset = parse_offset_message_id(answer.header(SendMessageResponse).msg_id)[2]
                self.acknowledged[body] = (offset, self._made.link.furthest)

    async def check(self) -> None:
        """After the faults: the slave has caught up, both are one, and hold all that was acknowledged."""
        made = self._made
        await made.following()
        await made.in_step()
        await until_async(lambda: made.slave.store.dispatched_offset == made.master.store.dispatched_offset)
        ours, theirs = made.logs()
        assert ours == theirs
        found = {message.body: message for message in records(theirs, 0, FILE_BYTES)}
        for body, (offset, reported) in self.acknowledged.items():
            message = found[body]
            assert message.physical_offset == offset
            assert offset + message.size_bytes <= reported, "acknowledged before the slave's own report"
        places: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for message in found.values():
            places.setdefault((message.topic, message.queue_id), []).append(
                (message.physical_offset, message.size_bytes)
            )
        assert {queue: [unit[:2] for unit in units] for queue, units in queue_units(made.slave).items()} == places
        for body in random.Random(len(found)).sample(sorted(self.acknowledged), min(3, len(self.acknowledged))):
            assert made.slave.store.read_record(found[body].physical_offset) is not None
        self.checked += len(self.acknowledged)
        self.acknowledged.clear()


def descriptors(path: Path) -> set[str]:
    """Sockets, and files of this test. Those of other tests' clusters come and go."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(entry))
    return {text for text in found if text.startswith("socket:") or str(path) in text}


def play(path: Path, rounds: int, faults: list[set[str]], *, cuts: bool) -> None:
    """Rounds under load, each with some of the faults; nothing of them stays."""
    seed = int(os.environ.get("CONTRAILMQ_SEED") or random.randrange(2**32))
    print(f"seed {seed}: CONTRAILMQ_SEED={seed} chooses the same faults again")

    async def work() -> None:
        rng = random.Random(seed)
        before = descriptors(path)
        async with linked(path, random.Random(seed + 1), **(QUICK if cuts else {})) as made:
            senders = Senders(made)
            for _ in range(rounds):
                made.link.faults = rng.choice(faults)
                sending = asyncio.ensure_future(senders.send(40))
                if cuts:
                    made.link.cut()
                    await asyncio.sleep(rng.choice([0.0, 0.1, 0.7]))  # the last is longer than a silence may be
                    if rng.random() < 0.3:
                        made.link.reset()
                    made.link.join()
                await sending
                made.link.faults = set()
                await senders.check()
            print(f"{senders.checked} acknowledged, {made.link.connections} connections, {made.link.repeated} repeats")
            assert senders.checked
            if not cuts and not any("twice" in some for some in faults):
                assert made.link.connections == 1, "splits and delays are nothing to TCP's peers"
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
        left = lambda: descriptors(path) - before  # noqa: E731
        await until_async(lambda: not left(), "no descriptor is left over", seen=left)

    asyncio.run(work())


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.long)])
def test_segments_that_are_split_and_delayed_cost_nothing(tmp_path: Path, rounds: int) -> None:
    play(tmp_path, rounds, [{"split"}, {"delayed"}, {"split", "delayed"}], cuts=False)


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.long)])
def test_blocks_and_reports_that_come_twice_are_taken_once(tmp_path: Path, rounds: int) -> None:
    play(tmp_path, rounds, [{"twice"}, {"twice", "split", "delayed"}], cuts=False)


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.long)])
def test_a_link_that_is_cut_and_joined_under_load_loses_nothing(tmp_path: Path, rounds: int) -> None:
    play(tmp_path, rounds, [set(), {"split", "delayed"}, {"twice"}], cuts=True)


def test_a_slow_link_lets_the_slave_fall_behind_and_it_catches_up(tmp_path: Path) -> None:
    """Sends are answered FLUSH_SLAVE_TIMEOUT or late, the log goes on, and the status says by how many bytes."""

    async def work() -> None:
        async with linked(tmp_path, random.Random(7)) as made:
            senders = Senders(made)
            await senders.send(8)
            made.link.faults = {"slow"}
            assert made.master.replication is not None
            server = made.master.replication.server
            sending = [asyncio.ensure_future(made.send("single", os.urandom(60_000))) for _ in range(60)]
            await until_async(lambda: any(slave.lag_bytes > 500_000 for slave in server.status()))
            late = await asyncio.gather(*sending)
            assert {answer.code for answer in late} <= {ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT}
            made.link.faults = set()
            await senders.check()
            assert [slave.lag_bytes for slave in server.status()] == [0]
            assert len(log_of(made.slave)) > 3_000_000

    asyncio.run(work())
