"""What a lakehouse team runs all day: exactly-once writes beside at-least-once ones, typed tables, compaction.

Part of `python -m bench spark`. A write's CPU is that of driver, JVM, workers and broker together, per row; the two
deliveries take turns in one run, and their medians are compared. Tables and archives are written below the folder of
the benchmark.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.spark import CpuMeter, Made, process_table, uniform, write_messages

_SHARE: Final = 4  # written rows are so many times fewer than those of the log: disks fill up
_ROUNDS: Final = 4
_WARM_ROUNDS: Final = 1
_BODY_BYTES: Final = 1024
_SETTLE_S: Final = 0.5  # for what the broker does after its last answer
_DELIVERIES: Final = ("at-least-once", "exactly-once")
_TARGET: Final = 2.5
_SMALL_BYTES: Final = 4 << 20  # of log in one file of an archive before compaction
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
JSON_TOPIC: Final = "Json"
JSON_DDL: Final = (
    "id bigint NOT NULL, customer string, at timestamp, amount double, currency string, items int, paid boolean, "
    "city string, note string, score double"
)


def json_messages(count: int, queues: int = 4) -> Iterator[Made]:
    """Bodies of ten JSON fields, about 250 bytes; as `JSON_DDL` says."""
    chance = random.Random(2)
    for number in range(count):
        body = {
            "id": number,
            "customer": f"customer-{chance.randrange(100_000)}",
            "at": f"2026-11-{1 + number % 28:02d}T12:{number % 60:02d}:{chance.randrange(60):02d}.{number % 1000:03d}Z",
            "amount": round(chance.random() * 1000, 2),
            "currency": chance.choice(("EUR", "USD", "CNY")),
            "items": chance.randrange(20),
            "paid": chance.random() < 0.9,
            "city": f"city {chance.randrange(500)}",
            "note": "n" * chance.randrange(40),
            "score": chance.random(),
        }
        properties = {"KEYS": f"order-{number:08d}", "UNIQ_KEY": f"0A00000100002A9F0000{number:012X}", "WAIT": "true"}
        yield Made(JSON_TOPIC, number % queues, json.dumps(body).encode(), properties)


def lake_cases(spark: Any, folder: Path, store: str, *, count: int, meter: CpuMeter) -> dict[str, Callable[[], object]]:
    """Name -> what runs the case and gives its line of figures."""
    return {
        "exactly-once beside at-least-once": lambda: deliveries(spark, folder, count // _SHARE, meter),
        "typed table of JSON, 10 fields": lambda: typed_table(spark, folder, count, meter),
        "compaction": lambda: compaction(spark, folder, store, meter),
    }


def deliveries(spark: Any, folder: Path, count: int, meter: CpuMeter) -> str:
    """A log's rows into a topic, both ways in turns."""
    from contrailmq.testing import LocalCluster

    store = str(folder / "rows")
    write_messages(store, uniform(count, _BODY_BYTES))
    config = {"mappedFileSizeCommitLog": 1 << 28, "defaultTopicQueueNums": 4}
    whole: dict[str, list[float]] = {}
    brokers: dict[str, list[float]] = {}
    with LocalCluster(store=folder / "delivered", config=config, processes=True) as cluster:
        broker = _broker()
        for number in range(_WARM_ROUNDS + _ROUNDS):
            for delivery in _DELIVERIES if number % 2 else reversed(_DELIVERIES):
                rows = spark.read.format("commitlog").option("columns", "queueId,keys,body").load(store)
                writer = rows.write.format("rocketmq").option("nameServer", cluster.namesrv)
                writer = writer.option("topic", delivery).option("delivery", delivery)
                if delivery == "exactly-once":
                    writer = writer.option("checkpointLocation", str(folder / "delivered-checkpoint"))
                cpu_s, broker_s = meter.seconds(), _cpu_s(broker)
                writer.mode("append").save()
                time.sleep(_SETTLE_S)
                if number >= _WARM_ROUNDS:
                    whole.setdefault(delivery, []).append((meter.seconds() - cpu_s) / count * 1e6)
                    brokers.setdefault(delivery, []).append((_cpu_s(broker) - broker_s) / count * 1e6)
    least, most = (statistics.median(whole[delivery]) for delivery in _DELIVERIES)
    shown = ", ".join(
        f"{delivery} {statistics.median(whole[delivery]):.1f} us CPU a row, "
        f"{statistics.median(brokers[delivery]):.1f} of it the broker"
        for delivery in _DELIVERIES
    )
    ratio = most / least
    return f"{shown}: {ratio:.2f}x, at most {_TARGET}: {'met' if ratio <= _TARGET else 'SHORT'}"


def _broker() -> int:
    """The process id of the broker that this process has started last."""
    ours = [row for row in process_table() if row.parent == os.getpid()]
    named = [row for row in ours if b"\0broker\0" in Path("/proc", str(row.pid), "cmdline").read_bytes()]
    return max(named, key=lambda row: row.start).pid


def _cpu_s(pid: int) -> float:
    return next(row.ticks for row in process_table() if row.pid == pid) / _TICKS_PER_S


def typed_table(spark: Any, folder: Path, count: int, meter: CpuMeter) -> str:
    """`pipeline tables` over a log of JSON bodies: once on Spark, once in a process pool."""
    from contrailmq.spark.runtime.engine import LocalEngine, SparkEngine
    from contrailmq.spark.topic_tables.job import tables

    store = str(folder / "json")
    log_bytes = write_messages(store, json_messages(count))
    pool = LocalEngine()
    shown = []
    for name, engine in (("Spark", SparkEngine(spark)), ("process pool", pool)):
        cpu_s, began_s = meter.seconds(), time.perf_counter()
        done = tables(store, str(folder / f"tables-{name}"), engine, {JSON_TOPIC: {"schema": JSON_DDL}})
        took_s = time.perf_counter() - began_s
        assert done.rows == count, done
        shown.append(
            f"{name} {count / took_s / 1000:.0f}k rows/s, {log_bytes / took_s / 1e6:.0f} MB/s of log, "
            f"{(meter.seconds() - cpu_s) / count * 1e6:.1f} us CPU a row"
        )
    pool.close()
    return "; ".join(shown)


def compaction(spark: Any, folder: Path, store: str, meter: CpuMeter) -> str:
    """An archive of small files, one for each few megabytes of log, into files of 128 MB."""
    from contrailmq.spark.decoding.log_plan import LogSettings
    from contrailmq.spark.jobs.archive import archive
    from contrailmq.spark.jobs.upkeep import compact
    from contrailmq.spark.runtime.engine import SparkEngine

    engine, target = SparkEngine(spark), str(folder / "small")
    archive(store, target, engine, settings=LogSettings(range_bytes=_SMALL_BYTES))
    cpu_s, began_s = meter.seconds(), time.perf_counter()
    done = compact(target, engine)
    took_s = time.perf_counter() - began_s
    return (
        f"{done.bytes_before / took_s / 1e6:.0f} MB/s of Parquet, {done.rows_after / took_s / 1000:.0f}k rows/s, "
        f"{done.files_before} files to {done.files_after}, {meter.seconds() - cpu_s:.1f} CPU s, {took_s:.1f} s"
    )
