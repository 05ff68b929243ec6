"""Drivers and workers killed by SIGKILL: archive, tables and files hold every row once, the topic each at least once by
key, and with delivery=exactly-once just once, with no half message left.

`make test` kills workers of typed tables and of an exactly-once sink, and a driver of that; `make test-long` kills
fifty times for each stream. (What an archive holds after a kill is also in test_archive.py and test_upkeep_kills.py.) A
driver dies with its JVM and its workers when a phase of a micro-batch shows in the files: offsets logged, data written
and not committed, committed and Spark does not know, Spark knows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import contrailmq
from bench.spark import process_table
from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.errors import NoRouteError
from contrailmq.message import MessageQueue, SystemTopic
from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.spark.topic_tables.table_manifest import TableManifest
from contrailmq.testing import LocalCluster
from spark.killed_streams import IS_LONG, LOOK_S, start
from spark.test_archive import archived, user_offsets
from spark.test_topic_tables import order, place, put, rows_of, stored
from waiting_for import until

DRIVER_KILLS = 20 if IS_LONG else 1  # of each stream
WORKER_KILLS = 30 if IS_LONG else 2
SENT = 600
TABLE_ROWS, KEYS = 600, 40
CHECKS = {"transactionTimeOut": 1000, "transactionCheckInterval": 500, "transactionCheckMax": 1000}

pytestmark = pytest.mark.spark


class Archive:
    """The archive of the golden store."""

    kind = "archive"

    def __init__(self, store: str, folder: Path) -> None:
        self.source, self.folder = store, folder

    def phases(self) -> list[Callable[[int], bool]]:
        target = self.folder / "archive"
        files = len(list(target.glob("date=*/*")))
        return [
            lambda batch: (self.folder / "checkpoint" / "offsets" / str(batch)).exists(),
            lambda batch: len(list(target.glob("date=*/*"))) > files,
            lambda batch: Manifest(target).head().version > batch,
            lambda batch: (self.folder / "checkpoint" / "commits" / str(batch)).exists(),
        ]

    def progress(self) -> int:
        return Manifest(self.folder / "archive").head().version

    def check(self) -> None:
        assert archived(self.folder / "archive") == user_offsets("clean")


class Tables:
    """Typed tables of a store: of two topics, some of whose bodies are bad, and by key of a third."""

    kind = "tables"

    def __init__(self, folder: Path) -> None:
        self.source, self.folder = str(folder / "store"), folder
        for begin in range(0, TABLE_ROWS, 50):
            put(folder / "store", "Orders", [order(n) for n in range(begin, begin + 50)])
            put(
                folder / "store",
                "Other",
                [{"id": n, f"f{n // 100}": n} if n % 25 else b"bad" for n in range(begin, begin + 50)],
            )
            put(folder / "store", "Users", [{"id": n % KEYS, "n": n} for n in range(begin, begin + 50)], queues=1)

    def phases(self) -> list[Callable[[int], bool]]:
        target = self.folder / "lake"
        files = len(list(target.glob("tables/**/*.parquet")))
        return [
            lambda batch: (self.folder / "checkpoint" / "offsets" / str(batch)).exists(),
            lambda batch: len(list(target.glob("tables/**/*.parquet"))) > files,
            lambda batch: TableManifest(target).head().version > batch,
            lambda batch: (self.folder / "checkpoint" / "commits" / str(batch)).exists(),
        ]

    def progress(self) -> int:
        return TableManifest(self.folder / "lake").head().version

    def check(self) -> None:
        for topic in ("Orders", "Other"):
            held = {
                place: json.loads(body)["id"]
                for place, body in stored(Path(self.source), topic).items()
                if body != b"bad"
            }
            rows = rows_of(self.folder / "lake", topic)
            assert len(rows) == len(held)
            assert {place(row): row["id"] for row in rows} == held
        assert len(rows_of(self.folder / "lake", None)) == TABLE_ROWS // 25
        newest = {n % KEYS: n for n in range(TABLE_ROWS)}
        assert sorted((row["id"], row["n"]) for row in rows_of(self.folder / "lake", "Users")) == sorted(newest.items())


class Sink:
    """A topic copied to another."""

    kind = "sink"

    def __init__(self, namesrv: str, folder: Path) -> None:
        self.source, self.folder = namesrv, folder
        with Producer("filling", namesrv=namesrv) as producer:
            for number in range(SENT):
                producer.send(Message("In", b"%d" % number))

    def phases(self) -> list[Callable[[int], bool]]:
        sent = self._sent()
        return [
            lambda batch: (self.folder / "checkpoint" / "offsets" / str(batch)).exists(),
            lambda batch: self._sent() > sent,
            lambda batch: (self.folder / "checkpoint" / "commits" / str(batch)).exists(),
        ]

    def progress(self) -> int:
        return self._sent()

    def rows(self) -> list[dict[str, Any]]:
        settings, rows = TopicSettings(self.source), []
        with QueueReader(namesrv=self.source) as reader:
            for queue in reader.queues("Out"):
                part = QueueRange(queue, 0, reader.max_offset(queue))
                rows += [row for batch in read_range(part, settings, reader) for row in batch.to_pylist()]
        return rows

    def check(self) -> None:
        rows = self.rows()
        by_key: dict[str, set[bytes]] = {}
        for row in rows:
            by_key.setdefault(dict(row["properties"])[DEDUP_PROPERTY], set()).add(row["body"])
        assert all(len(bodies) == 1 for bodies in by_key.values())  # a key never names two messages
        once = sorted(int(body) for bodies in by_key.values() for body in bodies)
        print(f"{len(rows)} messages for {SENT}")
        assert once == list(range(SENT))

    def _sent(self) -> int:
        with QueueReader(namesrv=self.source) as reader:
            try:
                return sum(reader.max_offset(queue) for queue in reader.queues("Out"))
            except NoRouteError:  # nothing was sent yet
                return 0


class Once(Sink):
    """The same with delivery=exactly-once: seen by what is stored for the topic, visible or not."""

    kind = "once"

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        super().__init__(cluster.namesrv, folder)
        self._cluster = cluster

    def phases(self) -> list[Callable[[int], bool]]:
        sent, decisions = self.progress(), self.folder / "checkpoint" / "contrailmq-sink"
        return [
            lambda batch: (self.folder / "checkpoint" / "offsets" / str(batch)).exists(),
            lambda batch: self.progress() > sent,
            lambda batch: any(decisions.glob(f"*-{batch:012d}.d*")),
            lambda batch: any(decisions.glob(f"*-{batch:012d}.done")),
            lambda batch: (self.folder / "checkpoint" / "commits" / str(batch)).exists(),
        ]

    def progress(self) -> int:
        with QueueReader(namesrv=self.source) as reader:
            return reader.max_offset(MessageQueue(SystemTopic.HALF, "broker-0", 0))

    def check(self) -> None:
        assert sorted(int(row["body"]) for row in self.rows()) == list(range(SENT))
        pending = self._cluster.broker().transactions.pending
        until(lambda: not pending(), "the session's driver has answered for what killed ones left", seen=pending)
        assert sorted(int(row["body"]) for row in self.rows()) == list(range(SENT))


class Files(Sink):
    """A topic into Parquet by Spark's own sink: our source alone."""

    kind = "files"

    def phases(self) -> list[Callable[[int], bool]]:
        target = self.folder / "files"
        files, listed = len(list(target.glob("*.parquet"))), target / "_spark_metadata"
        return [
            lambda batch: (self.folder / "checkpoint" / "offsets" / str(batch)).exists(),
            lambda batch: len(list(target.glob("*.parquet"))) > files,
            lambda batch: (listed / str(batch)).exists() or (listed / f"{batch}.compact").exists(),
            lambda batch: (self.folder / "checkpoint" / "commits" / str(batch)).exists(),
        ]

    def progress(self) -> int:
        return len(list(self.folder.glob("files/_spark_metadata/[0-9]*")))

    def check(self) -> None:
        spark = SparkSession.getActiveSession()
        assert spark is not None
        rows = spark.read.parquet(str(self.folder / "files")).collect()
        assert sorted(int(row["body"]) for row in rows) == list(range(SENT))


Stream = Archive | Tables | Sink


FROM_TOPICS: dict[str, Callable[[LocalCluster, Path], Sink]] = {
    "sink": lambda cluster, folder: Sink(cluster.namesrv, folder),
    "files": lambda cluster, folder: Files(cluster.namesrv, folder),
    "once": Once,
}


LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("archive", "sink", "files")]


@pytest.fixture(params=["tables", "once", *LONG])
def stream(request: pytest.FixtureRequest, tmp_path: Path, golden_store: Callable[[str], str]) -> Iterator[Stream]:
    if request.param in ("archive", "tables"):
        yield Archive(golden_store("clean"), tmp_path) if request.param == "archive" else Tables(tmp_path)
        return
    with LocalCluster(config=CHECKS) as running:  # its own: topics are counted from 0
        yield FROM_TOPICS[request.param](running, tmp_path)


def last_batch(folder: Path) -> int:
    """The newest micro-batch that Spark has logged as done, -1 before the first."""
    done = folder / "checkpoint" / "commits"
    return max((int(path.name) for path in done.glob("*") if path.name.isdecimal()), default=-1)


def kill_driver(stream: Stream, number: int) -> None:
    """Start a driver and kill it and all of its processes at the next batch, in one of its phases."""
    script = Path(__file__).with_name("killed_streams.py")
    paths = [str(Path(contrailmq.__file__).parents[1]), str(script.parents[1])]
    phases = stream.phases()
    is_there, batch = phases[number % len(phases)], last_batch(stream.folder) + 1
    with open(stream.folder / f"driver-{number}.log", "wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(script), stream.kind, stream.source, str(stream.folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=log,
        )
        while driver.poll() is None and not is_there(batch):
            try:
                driver.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
        assert driver.poll() is None, Path(log.name).read_text()[-3000:]
        for pid in family(driver.pid):
            with contextlib.suppress(ProcessLookupError):  # a worker that ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL


def family(root: int) -> list[int]:
    """A process and all below it, the oldest first. Spark's daemons leave its process group."""
    table, found = process_table(), [root]
    for pid in found:
        found += [row.pid for row in table if row.parent == pid]
    return found


@pytest.mark.parametrize(
    "stream",
    ["once", *LONG, pytest.param("tables", marks=pytest.mark.long)],  # a driver is a JVM of its own
    indirect=True,
)
def test_a_stream_whose_driver_was_killed_goes_on_where_it_was(spark: Any, stream: Stream) -> None:
    for number in range(DRIVER_KILLS):
        # The one kill of the short test is the worst: written or committed, and Spark does not know.
        kill_driver(stream, number if IS_LONG else {"sink": 1}.get(stream.kind, 2))
    start(stream.kind, spark, stream.source, stream.folder).awaitTermination()
    stream.check()


def spark_pythons() -> list[int]:
    """Python processes below this one that Spark has started: daemons, and their forks."""
    commands: dict[int, bytes] = {}
    for pid in family(os.getpid()):
        try:
            commands[pid] = Path("/proc", str(pid), "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
    return [pid for pid, command in commands.items() if b"daemon\0pyspark.worker" in command]


def python_workers() -> list[int]:
    """Those that run tasks: forks of a daemon."""
    pythons = spark_pythons()
    parents = {row.pid: row.parent for row in process_table()}
    return [pid for pid in pythons if parents.get(pid) in pythons]


def test_a_stream_whose_workers_were_killed_repeats_nothing_and_loses_nothing(spark: Any, stream: Stream) -> None:
    """Workers die when progress shows; Spark tries their tasks again, and what they left does not count.

    A task whose workers died three times ends the query (the session's master is local[2,3]): it is started again.
    """
    kills, seen = 0, stream.progress()
    query = start(stream.kind, spark, stream.source, stream.folder)
    while query.isActive:
        reached = stream.progress()
        if reached > seen and kills < WORKER_KILLS:
            seen = reached
            for pid in python_workers()[: WORKER_KILLS - kills]:
                with contextlib.suppress(ProcessLookupError):  # a worker that ended by itself meanwhile
                    os.kill(pid, signal.SIGKILL)
                kills += 1
        try:
            query.awaitTermination(LOOK_S)
        except StreamingQueryException as exc:
            if kills < 3 or "failed 3 times, most recent failure" not in str(exc):
                raise
            query = start(stream.kind, spark, stream.source, stream.folder)
    assert query.exception() is None
    assert kills == WORKER_KILLS
    stream.check()
