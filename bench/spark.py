"""`contrailmq bench spark`: what reading, archiving and rebuilding a log cost, on Spark and in plain kernels.

Prints rows and MB of log per second and CPU seconds of every process together (driver, JVM, Python workers): on a
shared machine CPU is the figure to compare. The log is synthetic, uniform or mixed, with bodies cut from a random pool
(so Parquet sizes are not a worst case). Page cache is warm. Spark's start is not counted.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from contrailmq.message import ContrailError, encode_host, encode_properties
from contrailmq.message.codec import encode_blank, encode_record

_FILE_BYTES: Final = 256 * 1024 * 1024
_QUEUES: Final = 4
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_LOOK_S: Final = 0.1
_CORE_ROUNDS: Final = 3
_SECOND_CORE_TARGET: Final = 1.6
_TRICKLE_WARM: Final = 5  # messages before those that count: workers start and the JVM compiles
_TRICKLE_COUNT: Final = 40
_TRICKLE_WAIT_S: Final = 60.0
_TRICKLE_TARGET_MS: Final = 1000


def measure_spark(
    messages: Iterable[Made], *, directory: Path | None, master: str | None, only: str | None = None
) -> dict[str, object]:
    """Run every case once after a warm-up on the same log; gives name -> figures. `only`: as `is_chosen` takes it."""
    import contrailmq.spark
    from bench.spark_lake import lake_cases
    from contrailmq.spark.jobs.archive import archive
    from contrailmq.spark.jobs.rebuild import rebuild
    from contrailmq.spark.jobs.verify import verify
    from contrailmq.spark.runtime.engine import LocalEngine, SparkEngine

    folder = Path(tempfile.mkdtemp(prefix="contrailmq-bench-", dir=directory))
    try:
        store = str(folder / "store")
        made = list(messages)
        count, log_bytes = len(made), write_messages(store, made)
        spark = contrailmq.spark.session("bench", **({"master": master} if master else {}))

        def frame(**options: str) -> Any:
            return spark.read.format("commitlog").options(**options).load(store)

        def noop(**options: str) -> None:
            frame(**options).write.format("noop").mode("overwrite").save()

        metadata = "topic,queueId,queueOffset,physicalOffset,storeTimestamp"
        pool = LocalEngine()
        noop()  # warm-up: workers started, pages in memory
        timed: dict[str, Callable[[], object]] = {
            "all columns -> noop": noop,
            "all columns, no CRC check -> noop": lambda: noop(checkCrc="false"),
            "properties as text -> noop": lambda: noop(properties="string"),
            "metadata columns -> count by queue": lambda: frame(columns=metadata).groupBy("queueId").count().collect(),
            "all columns -> Parquet by Spark": lambda: frame().write.parquet(str(folder / "jvm")),
            "archive job on Spark": lambda: archive(store, str(folder / "archive"), SparkEngine(spark)),
            "archive job in a process pool": lambda: archive(store, str(folder / "pool"), pool),
            "rebuild in a process pool": lambda: rebuild(store, pool),
            "verify in a process pool": lambda: verify(store, pool),
        }
        figures: dict[str, object] = {"messages": count, "log MB": round(log_bytes / 1e6)}
        with CpuMeter() as meter:
            cases: dict[str, Callable[[], object]] = {
                name: partial(_timed, case, count, log_bytes, meter) for name, case in timed.items()
            }
            cases |= lake_cases(spark, folder, store, count=count, meter=meter)
            cases["reading with a second core"] = lambda: _second_core(noop)
            cases["one message, topic -> Spark -> topic"] = lambda: _trickle(spark, folder)
            for name, case in cases.items():
                if is_chosen(name, only):
                    figures[name] = case()
                    tell(name, figures[name])
        pool.close()
        spark.stop()
        return figures
    finally:
        shutil.rmtree(folder)


def is_chosen(name: str, only: str | None) -> bool:
    """Whether a case is one of those asked for: its name holds one of the words, which commas separate."""
    return only is None or any(word.strip() in name for word in only.split(","))


def tell(name: str, figures: object) -> None:
    """Show a case when it is over: a later one that fails takes nothing with it."""
    print(f"{name}: {figures}", file=sys.stderr, flush=True)


def _timed(case: Callable[[], object], count: int, log_bytes: int, meter: CpuMeter) -> str:
    cpu_s, began_s = meter.seconds(), time.perf_counter()
    case()
    took_s = time.perf_counter() - began_s
    return (
        f"{count / took_s / 1000:.0f}k rows/s, {log_bytes / took_s / 1e6:.0f} MB/s, "
        f"{meter.seconds() - cpu_s:.1f} CPU s, {took_s:.1f} s"
    )


def _second_core(read: Callable[[], object]) -> str:
    """The same read with every process of ours on one core and on two, taking turns; the least of each counts.

    Says how much of a core others had meanwhile: beside a busy neighbour there is no second core to gain.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return "not measured: this process may use one core only"
    took_s: dict[int, list[float]] = {1: [], 2: []}
    with CpuMeter() as meter:
        all_began_s, busy_s, cpu_s = time.perf_counter(), _busy_s(), meter.seconds()
        for _ in range(_CORE_ROUNDS):
            for count, times in took_s.items():
                _pin_family(set(cores[:count]))
                began_s = time.perf_counter()
                read()
                times.append(time.perf_counter() - began_s)
        _pin_family(set(cores))
        others_s = (_busy_s() - busy_s) - (meter.seconds() - cpu_s)
        others = max(0.0, others_s) / (time.perf_counter() - all_began_s)
    one_s, two_s = min(took_s[1]), min(took_s[2])
    verdict = "met" if one_s / two_s >= _SECOND_CORE_TARGET else "SHORT"
    return (
        f"{one_s / two_s:.2f}x ({one_s:.2f} s, {two_s:.2f} s), target {_SECOND_CORE_TARGET}: {verdict}; "
        f"others used {others:.1f} cores"
    )


def _busy_s() -> float:
    """CPU that the whole machine has used, or was denied by the one that it runs on, since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _pin_family(cores: set[int]) -> None:
    """This process and all below it, thread by thread; what they start later inherits it."""
    table, family = process_table(), [os.getpid()]
    for pid in family:
        family += [row.pid for row in table if row.parent == pid]
    for pid in family:
        with contextlib.suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)


def _trickle(spark: Any, folder: Path) -> str:
    """End to end, one message at a time: from before it is sent to when what Spark made of it can be pulled."""
    from contrailmq import Message, Producer
    from contrailmq.client.blocking.raw import QueueReader
    from contrailmq.testing import LocalCluster

    with LocalCluster(processes=True) as cluster, Producer("trickle", namesrv=cluster.namesrv) as producer:
        for topic in ("In", "Out"):
            producer.send(Message(topic, b"makes the topic"))
        source = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "In")
        writer = source.load().selectExpr("body", "0 as queueId").writeStream.format("rocketmq")
        writer = writer.option("nameServer", cluster.namesrv).option("topic", "Out")
        query = writer.option("checkpointLocation", str(folder / "trickle")).start()
        took_ms = []
        with QueueReader(namesrv=cluster.namesrv) as reader:
            out = next(queue for queue in reader.queues("Out") if queue.queue_id == 0)
            offset = reader.max_offset(out)
            while not query.lastProgress:  # the stream begins at the end of the topic: it must know the end first
                query.awaitTermination(_LOOK_S)
            for number in range(_TRICKLE_WARM + _TRICKLE_COUNT):
                began_s = time.perf_counter()
                producer.send(Message("In", b"%d" % number))
                pulled = reader.pull(out, offset, max_count=1, wait_s=_TRICKLE_WAIT_S)
                if pulled.next_offset <= offset:
                    raise ContrailError(f"message {number} did not come back within {_TRICKLE_WAIT_S} s")
                took_ms.append((time.perf_counter() - began_s) * 1000)
                offset = pulled.next_offset
        query.stop()
    measured = sorted(took_ms[_TRICKLE_WARM:])
    median, slow = measured[len(measured) // 2], measured[len(measured) * 95 // 100]
    verdict = "met" if median <= _TRICKLE_TARGET_MS else "SHORT"
    return f"median {median:.0f} ms, p95 {slow:.0f} ms of {len(measured)}, target {_TRICKLE_TARGET_MS} ms: {verdict}"


class Process(NamedTuple):
    """A line of the process table. Numbers are used again, so a process is known by number and start."""

    pid: int
    parent: int
    start: int
    ticks: int  # of CPU, its own


def process_table() -> list[Process]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            found.append(Process(int(entry), int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12])))
    return found


class CpuMeter:
    """CPU that this process and all of its descendants have used, also those that have ended.

    Sums over living processes go back when one ends whose parent does not wait for it, as Spark's workers do. So
    a thread looks often and keeps the most that each process was seen to use: the sum never goes back, and misses what
    a process used between the last look at it and its end (`_LOOK_S` at most).
    """

    def __init__(self, table: Callable[[], list[Process]] = process_table, root: int | None = None) -> None:
        self._table, self._root = table, os.getpid() if root is None else root
        self._family: set[tuple[int, int]] = set()  # (pid, start): a member stays one when its parent ends
        self._ticks: dict[tuple[int, int], int] = {}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu-meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def seconds(self) -> float:
        """The sum so far, after one more look."""
        with self._lock:
            table = self._table()
            pids = {self._root} | {row.pid for row in table if (row.pid, row.start) in self._family}
            while True:
                grown = pids | {row.pid for row in table if row.parent in pids}
                if grown == pids:
                    break
                pids = grown
            for row in table:
                if row.pid in pids:
                    key = (row.pid, row.start)
                    self._family.add(key)
                    self._ticks[key] = max(row.ticks, self._ticks.get(key, 0))
            return sum(self._ticks.values()) / _TICKS_PER_S

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.seconds()


class Made(NamedTuple):
    """A message of a synthetic log."""

    topic: str
    queue: int
    body: bytes
    properties: dict[str, str]


def uniform(count: int, body_bytes: int) -> Iterator[Made]:
    """One topic, bodies of one size, five properties of the same names and lengths."""
    pool = random.Random(1).randbytes(1 << 20)
    for number in range(count):
        at = number * 7919 % (len(pool) - body_bytes)
        properties = {
            "KEYS": f"order-{number:08d}",
            "UNIQ_KEY": f"0A00000100002A9F0000{number:012X}",
            "TAGS": f"tag{number % 5}",
            "CLUSTER": "DefaultCluster",
            "WAIT": "true",
        }
        yield Made("Orders", number % _QUEUES, pool[at : at + body_bytes], properties)


def mixed(count: int) -> Iterator[Made]:
    """The shape of mixed.c: 64 topics of 8 queues, bodies of 0.1 to 16 KiB, 0 to 12 properties, half with keys."""
    chance = random.Random(1)
    pool = chance.randbytes(1 << 20)
    for number in range(count):
        body_bytes = round(102.4 * 160 ** chance.random())
        at = chance.randrange(len(pool) - body_bytes)
        properties = {"UNIQ_KEY": f"0A00000100002A9F0000{number:012X}", "WAIT": "true"}
        if number % 2:
            properties["KEYS"] = f"order-{chance.getrandbits(40)}"
        if chance.random() < 0.75:
            properties["TAGS"] = f"tag{chance.randrange(8)}"
        first = chance.randrange(200)
        for which in range(chance.randint(0, 12)):
            properties["user_named_field"[: chance.randint(1, 12)] + str(first + 7 * which)] = "v" * chance.randint(
                1, 24
            )
        yield Made(f"mixed_{chance.randrange(64):02d}", chance.randrange(8), pool[at : at + body_bytes], properties)


def write_log(store: str, *, count: int, body_bytes: int) -> int:
    """A commit log of `count` uniform messages; gives its size up to the last record."""
    return write_messages(store, uniform(count, body_bytes))


def write_messages(store: str, messages: Iterable[Made]) -> int:
    """A commit log of these messages; gives its size up to the last record."""
    folder = Path(store, "commitlog")
    folder.mkdir(parents=True)
    base, data = 0, bytearray()
    offsets: dict[tuple[str, int], int] = {}
    for number, made in enumerate(messages):
        queue_offset = offsets.get((made.topic, made.queue), 0)
        offsets[made.topic, made.queue] = queue_offset + 1
        record = _record(number, base + len(data), queue_offset, made)
        if len(data) + len(record) + 8 > _FILE_BYTES:
            data += encode_blank(_FILE_BYTES - len(data))
            (folder / f"{base:020d}").write_bytes(bytes(data).ljust(_FILE_BYTES, b"\0"))
            base, data = base + _FILE_BYTES, bytearray()
            record = _record(number, base, queue_offset, made)
        data += record
    with open(folder / f"{base:020d}", "wb") as file:
        file.write(data)
        file.truncate(_FILE_BYTES)
    return base + len(data)


def _record(number: int, physical_offset: int, queue_offset: int, made: Made) -> bytes:
    host = encode_host("10.0.0.1", 10911)
    return encode_record(
        made.topic,
        made.body,
        encode_properties(made.properties),
        queue_id=made.queue,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_host=host,
        store_host=host,
        born_time_ms=1_700_000_000_000 + number // 10,
        store_time_ms=1_700_000_000_002 + number // 10,
    )
