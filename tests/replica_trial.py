"""A SYNC_MASTER and its slave as processes, under load, and what must be true of both whenever the faults are over.

    the slave's log is a byte prefix of the master's, and all of it once it has caught up, in bounded time
    what was acknowledged is on both, bodies equal
    nothing was acknowledged before the slave itself had reported it: its reports are read on their way to the master
    the slave's queues and index are those that a rebuild from its log makes
    no connection stays behind

What is expected comes from the bytes of the log and from what senders were told, not from what brokers say.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from contrailmq import Message, Producer, SendStatus, StoredMessage
from contrailmq.message import ContrailError
from contrailmq.message.codec import BLANK_MAGIC, decode_record
from contrailmq.message.identity import parse_offset_message_id
from contrailmq.store import MessageStore, StoreConfig, StoreView, rebuild_store, verify_store
from contrailmq.testing import LocalCluster, links
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.requests import GetMaxOffset, OffsetResponse, QueryMessage
from contrailmq.wire.transport import RemotingClient

FILE_BYTES = 1 << 20
TOPIC = "Orders"
QUEUES = 4
SENDERS = 3
WAIT_S = 300.0  # a bound for a machine that is busy, not a duration
SOCKETS_MAX = 24  # of one broker here: it has a dozen
# A connection through a partition is given up after one second and a half; shorter partitions are only a pause.
SETTINGS = {
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": "2",
    "slaveTimeout": "400",
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "1500",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "defaultTopicQueueNums": str(QUEUES),
}


class ReportReader(links.Relay):
    """Reads the reports that pass from a slave to its master."""

    furthest = -1

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(links.READ_BYTES):
            await self._joined.wait()
            rest += data
            whole = len(rest) - len(rest) % 8
            reports = [int.from_bytes(rest[at : at + 8], "big") for at in range(0, whole, 8)]
            self.furthest = max([self.furthest, *reports])
            rest = rest[whole:]
            writer.write(data)
            await writer.drain()


class Acknowledged(NamedTuple):
    """What a sender was told, and how far the slave had reported by then."""

    offset: int
    reported: int


class Load:
    """Senders that note what was acknowledged; what was not may be stored all the same."""

    def __init__(self, cluster: LocalCluster, reports: ReportReader) -> None:
        self._reports = reports
        self._producer = Producer("load", namesrv=cluster.namesrv, retry_times=0)
        self._numbers = itertools.count()
        self._turns = [threading.Lock() for _ in range(SENDERS)]
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(turn,), daemon=True) for turn in self._turns]
        self.acknowledged: dict[bytes, Acknowledged] = {}
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._producer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        self._producer.shutdown()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody sends inside."""
        with contextlib.ExitStack() as held:
            for turn in self._turns:
                held.enter_context(turn)
            yield

    def wait_for(self, count: int) -> None:
        """Until so many more sends were answered, or failed."""
        self._wait(lambda: self.answers.total(), count)

    def wait_for_timeout(self) -> None:
        """Until a send has waited for the slave in vain."""
        self._wait(lambda: self.answers[SendStatus.FLUSH_SLAVE_TIMEOUT.name], 1)

    def _wait(self, counted: Callable[[], int], more: int) -> None:
        wanted, deadline = counted() + more, time.monotonic() + WAIT_S
        while counted() < wanted:
            assert time.monotonic() < deadline, f"{wanted - counted()} answers are missing: {self.answers}"
            self._is_over.wait(0.002)

    def _send(self, turn: threading.Lock) -> None:
        while not self._is_over.is_set():
            with turn:
                self._send_one(next(self._numbers))
            self._is_over.wait(0.001)  # a lock is taken at once by whoever gave it back: others need a chance

    def _send_one(self, number: int) -> None:
        rng = random.Random(number)
        body = b"%d " % number + rng.randbytes(rng.choice([1, 100, 3000, 30_000]))  # no compression makes it smaller
        try:
            result = self._producer.send(Message(TOPIC, body, keys=[f"k{number}"]), timeout=3.0)
        except ContrailError as exc:  # the master is gone for a moment
            self.answers[type(exc).__name__] += 1
            self._is_over.wait(0.02)
            return
        self.answers[result.status.name] += 1
        if result.status is SendStatus.OK:
            offset = parse_offset_message_id(result.offset_message_id)[2]
            self.acknowledged[body] = Acknowledged(offset, self._reports.furthest)


class Trial:
    """The pair, and how much of its logs was looked at."""

    def __init__(self, cluster: LocalCluster, load: Load) -> None:
        self.cluster, self.load = cluster, load
        self.slave = cluster.slave_index()
        self._paths = [cluster.store_path / name for name in ("broker-0", "broker-0-slave-1")]
        self._seen_end = 0
        self._ends: Counter[int] = Counter()  # of the queues, by the log
        self._bodies: dict[bytes, tuple[int, int]] = {}  # where they begin and end in the log
        self.count = 0  # of what was acknowledged and is there

    def check(self, rng: random.Random) -> None:
        """Once the faults are over. The load waits meanwhile."""
        with self.load.paused():
            self.cluster.wait_until_replicated(WAIT_S)
            asyncio.run(self._check(rng))
        for index in (0, self.slave):
            assert sockets_of(self.cluster.broker_process_id(index)) <= SOCKETS_MAX

    async def _check(self, rng: random.Random) -> None:
        client = RemotingClient()
        try:
            addresses = self.cluster.broker_addresses
            end, slave_end = [await log_end(client, addresses[index]) for index in (0, self.slave)]
            assert slave_end == end
            ours, theirs = (log_bytes(path, self._seen_end, end) for path in self._paths)
            assert ours == theirs, "the slave's log is not the master's"
            new = self._look_at(theirs, end)
            self._check_acknowledged()
            await self._check_slave(client, addresses[self.slave], rng.sample(new, min(3, len(new))))
        finally:
            await client.close()

    def _look_at(self, log: bytes, end: int) -> list[StoredMessage]:
        """Count the records since the last time."""
        new = list(records(log, self._seen_end))
        for message in new:
            self._bodies[message.body] = (message.physical_offset, message.physical_offset + message.size_bytes)
            assert message.queue_offset == self._ends[message.queue_id]
            self._ends[message.queue_id] += 1
        self._seen_end = end
        return new

    def _check_acknowledged(self) -> None:
        for body, told in self.load.acknowledged.items():
            begin, end = self._bodies.get(body, (-1, -1))
            assert begin == told.offset, f"{body[:20]!r} was acknowledged at {told.offset} and is not there"
            assert end <= told.reported, f"acknowledged up to {end} when the slave had reported {told.reported}"
        self.count += len(self.load.acknowledged)
        self.load.acknowledged.clear()

    async def _check_slave(self, client: RemotingClient, address: str, sample: list[StoredMessage]) -> None:
        """The queues end where the log says, once it is synced, and messages of the last round are found by keys."""
        for queue_id, end in self._ends.items():
            ext = GetMaxOffset(topic=TOPIC, queue_id=queue_id)
            deadline, found = time.monotonic() + WAIT_S, -1
            while found != end:
                assert found <= end, f"queue {queue_id} ends at {found}, and by the log at {end}"
                assert time.monotonic() < deadline, (
                    f"queue {queue_id} ends at {found} for long, and by the log at {end}"
                )
                answer = await client.invoke(address, RequestCode.GET_MAX_OFFSET, ext, timeout_s=WAIT_S)
                found = answer.header(OffsetResponse).offset
        for message in sample:
            ext = QueryMessage(topic=TOPIC, key=message.keys[0], max_num=8, begin_timestamp=0, end_timestamp=2**62)
            answer = await client.invoke(address, RequestCode.QUERY_MESSAGE, ext)
            assert message.body in {found.body for found in records(bytes(answer.body), 0, file_bytes=1 << 62)}

    def check_files(self, rebuilt: Path) -> None:
        """The slave's files against a rebuild, while it is stopped and nobody sends."""
        with self.load.paused():
            self.cluster.wait_until_replicated(WAIT_S)
            self.cluster.stop_broker(self.slave)
            assert_as_rebuilt(self._paths[1], rebuilt, [body.partition(b" ")[0] for body in self._bodies])
            self.cluster.restart_broker(self.slave)
            self.cluster.wait_until_replicated(WAIT_S)


@contextlib.contextmanager
def trial(path: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> Iterator[Trial]:
    """A pair under load; at the end its files are compared with a rebuild, and both logs once more as a whole."""
    monkeypatch.setattr(links, "Relay", ReportReader)
    store = path / "stores"
    with LocalCluster(slaves=1, processes=True, store=store, config=SETTINGS | settings) as cluster:
        with Load(cluster, reports_of(cluster)) as load:
            made = Trial(cluster, load)
            load.wait_for(10)
            yield made
            made.check_files(path / "rebuilt")
        print(f"{made.count} acknowledged, answers: {dict(load.answers)}")
        assert made.count
    ours, theirs = (whole_log(store / name) for name in ("broker-0", "broker-0-slave-1"))
    assert ours[: len(theirs)] == theirs


def reports_of(cluster: LocalCluster) -> ReportReader:
    """The relay before the master's HA port, as the slave sees it."""
    assert cluster._links is not None
    relay = cluster._links._relays[cluster.slave_index(), 0, links.HA]
    assert isinstance(relay, ReportReader)
    return relay


def whole_log(store: Path) -> bytes:
    files = sorted((store / "commitlog").glob("[0-9]*"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


async def log_end(client: RemotingClient, address: str) -> int:
    answer = await client.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(decode_body(answer.body, KVTable).table["commitLogMaxOffset"])


def log_bytes(store: Path, begin: int, end: int, file_bytes: int = FILE_BYTES) -> bytes:
    """Of a log, as they stand in its files."""
    parts = []
    while begin < end:
        base = begin - begin % file_bytes
        stop = min(end, base + file_bytes)
        with (store / "commitlog" / f"{base:020d}").open("rb") as file:
            file.seek(begin - base)
            parts.append(file.read(stop - begin))
        begin = stop
    return b"".join(parts)


def records(log: bytes, base: int, file_bytes: int = FILE_BYTES) -> Iterator[StoredMessage]:
    """Of bytes that begin at `base` in a log; a file ends with a BLANK."""
    position = 0
    while position < len(log):
        if int.from_bytes(log[position + 4 : position + 8], "big", signed=True) == BLANK_MAGIC:
            position += file_bytes - (base + position) % file_bytes
            continue
        message = decode_record(log, position)
        yield message
        position += message.size_bytes


def assert_as_rebuilt(store: Path, rebuilt: Path, numbers: list[bytes]) -> None:
    """Queues and index of a store are those that its log alone gives."""
    config = StoreConfig(store)
    with StoreView(config) as view:
        assert verify_store(view).findings == []
    shutil.rmtree(rebuilt, ignore_errors=True)
    shutil.copytree(store / "commitlog", rebuilt / "commitlog")
    sizes = {name: getattr(config, name) for name in ("max_hash_slot_num", "max_index_num") if getattr(config, name)}
    rebuild_store(StoreConfig(rebuilt, **sizes))
    assert queue_files(store) == queue_files(rebuilt)
    slave = config.replaced(broker_role="SLAVE")
    with MessageStore(StoreConfig(rebuilt)) as ours, MessageStore(slave) as theirs:
        for number in numbers[:: 1 + len(numbers) // 200]:
            key = f"k{number.decode()}"
            found = [message.physical_offset for message in ours.query(TOPIC, key)]
            assert found
            assert [message.physical_offset for message in theirs.query(TOPIC, key)] == found
    shutil.rmtree(rebuilt)


def queue_files(store: Path, folder: str = "consumequeue") -> dict[str, bytes]:
    """Without what is not written yet."""
    root = store / folder
    files = {str(path.relative_to(root)): path.read_bytes().rstrip(b"\0") for path in root.rglob("[0-9]" * 20)}
    return {name: data for name, data in files.items() if data}


def sockets_of(process_id: int) -> int:
    folder = Path(f"/proc/{process_id}/fd")
    found = 0
    for entry in folder.iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return found
