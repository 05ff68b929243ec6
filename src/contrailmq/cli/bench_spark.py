"""`contrailmq bench spark`: what reading, archiving and rebuilding a log cost, on Spark and in plain kernels.

Prints rows and MB of log per second and CPU seconds of every process together (driver, JVM, Python workers): on a
shared machine CPU is the figure to compare. The log is synthetic: one topic, four queues, bodies cut from a random
pool (so Parquet sizes are not a worst case), keys, a tag, five properties. Page cache is warm. Spark's start is not
counted.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from contrailmq.message import encode_host, encode_properties
from contrailmq.store.record import encode_blank, encode_record

_FILE_BYTES: Final = 256 * 1024 * 1024
_QUEUES: Final = 4
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def measure_spark(*, count: int, body_bytes: int, directory: Path | None, master: str | None) -> dict[str, object]:
    """Run every case once after a warm-up on the same log; gives name -> figures."""
    import contrailmq.spark
    from contrailmq.spark.engine import LocalEngine, SparkEngine
    from contrailmq.spark.jobs.archive import archive
    from contrailmq.spark.jobs.rebuild import rebuild
    from contrailmq.spark.jobs.verify import verify

    folder = Path(tempfile.mkdtemp(prefix="contrailmq-bench-", dir=directory))
    try:
        store = str(folder / "store")
        log_bytes = write_log(store, count=count, body_bytes=body_bytes)
        spark = contrailmq.spark.session("bench", **({"master": master} if master else {}))

        def frame(**options: str) -> Any:
            return spark.read.format("commitlog").options(**options).load(store)

        def noop(**options: str) -> None:
            frame(**options).write.format("noop").mode("overwrite").save()

        metadata = "topic,queueId,queueOffset,physicalOffset,storeTimestamp"
        pool = LocalEngine()
        noop()  # warm-up: workers started, pages in memory
        cases: dict[str, Callable[[], object]] = {
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
        figures: dict[str, object] = {"messages": count, "body bytes": body_bytes, "log MB": round(log_bytes / 1e6)}
        for name, case in cases.items():
            figures[name] = _timed(case, count, log_bytes)
        pool.close()
        spark.stop()
        return figures
    finally:
        shutil.rmtree(folder)


def _timed(case: Callable[[], object], count: int, log_bytes: int) -> str:
    cpu_s, began_s = cpu_seconds(), time.perf_counter()
    case()
    took_s = time.perf_counter() - began_s
    return (
        f"{count / took_s / 1000:.0f}k rows/s, {log_bytes / took_s / 1e6:.0f} MB/s, {cpu_seconds() - cpu_s:.1f} CPU s, "
        f"{took_s:.1f} s"
    )


def cpu_seconds() -> float:
    """CPU that this process and all of its living descendants, and their ended children, have used."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry)] = int(fields[1])
            ticks[int(entry)] = sum(int(fields[index]) for index in (11, 12, 13, 14))
    family = {os.getpid()}
    while True:
        grown = family | {pid for pid, parent in parents.items() if parent in family}
        if grown == family:
            return sum(ticks.get(pid, 0) for pid in family) / _TICKS_PER_S
        family = grown


def write_log(store: str, *, count: int, body_bytes: int) -> int:
    """A commit log of `count` messages; gives its size up to the last record."""
    folder = Path(store, "commitlog")
    folder.mkdir(parents=True)
    host = encode_host("10.0.0.1", 10911)
    pool = random.Random(1).randbytes(1 << 20)
    base, data = 0, bytearray()
    for number in range(count):
        at = number * 7919 % (len(pool) - body_bytes)
        record = _record(number, base + len(data), pool[at : at + body_bytes], host)
        if len(data) + len(record) + 8 > _FILE_BYTES:
            data += encode_blank(_FILE_BYTES - len(data))
            (folder / f"{base:020d}").write_bytes(bytes(data).ljust(_FILE_BYTES, b"\0"))
            base, data = base + _FILE_BYTES, bytearray()
            record = _record(number, base, pool[at : at + body_bytes], host)
        data += record
    with open(folder / f"{base:020d}", "wb") as file:
        file.write(data)
        file.truncate(_FILE_BYTES)
    return base + len(data)


def _record(number: int, physical_offset: int, body: bytes, host: bytes) -> bytes:
    properties = {
        "KEYS": f"order-{number:08d}",
        "UNIQ_KEY": f"0A00000100002A9F0000{number:012X}",
        "TAGS": f"tag{number % 5}",
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
    }
    return encode_record(
        "Orders",
        body,
        encode_properties(properties),
        queue_id=number % _QUEUES,
        queue_offset=number // _QUEUES,
        physical_offset=physical_offset,
        born_host=host,
        store_host=host,
        born_time_ms=1_700_000_000_000 + number // 10,
        store_time_ms=1_700_000_000_002 + number // 10,
    )
