"""The streams that tests kill: into an archive and tables (exactly once) and into a topic (at least, or exactly once).

Run as a program it is a driver of its own process group, which the test kills whole, as when a host dies:

    python killed_streams.py archive STORE FOLDER
    python killed_streams.py tables STORE FOLDER
    python killed_streams.py sink NAMESRV FOLDER
    python killed_streams.py once NAMESRV FOLDER
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

import contrailmq.spark
from contrailmq.spark.jobs.archive import archive_stream
from contrailmq.spark.topic_tables.job import tables_stream

# Of a micro-batch. The full count of kills needs more of them than there are kills.
IS_LONG = bool(os.environ.get("CONTRAILMQ_LONG"))
TRIGGER_BYTES = 20_000 if IS_LONG else 330_000
TABLE_BYTES = 4_000 if IS_LONG else 80_000
TRIGGER_ROWS = 15 if IS_LONG else 150
ONCE = {"delivery": "exactly-once", "transactionTimeoutMs": "5000"}


def start_archive(spark: Any, store: str, folder: Path) -> Any:
    source = spark.readStream.format("commitlog").option("path", store)
    source = source.option("maxBytesPerTrigger", str(TRIGGER_BYTES))
    writer = archive_stream(source, str(folder / "archive"), str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def start_tables(spark: Any, store: str, folder: Path) -> Any:
    source = spark.readStream.format("commitlog").option("path", store).option("topics", "Orders,Other")
    source = source.option("maxBytesPerTrigger", str(TABLE_BYTES))
    specs = {"Orders": {"schema": "id bigint NOT NULL, customer string, amount double"}, "Other": {"evolve": True}}
    writer = tables_stream(source, str(folder / "lake"), str(folder / "checkpoint"), specs)
    return writer.trigger(availableNow=True).start()


def start_sink(spark: Any, namesrv: str, folder: Path) -> Any:
    return copying(spark, namesrv, folder).trigger(availableNow=True).start()


def copying(spark: Any, namesrv: str, folder: Path, rows: int = TRIGGER_ROWS, **options: str) -> Any:
    """A writer of a topic's rows into another."""
    source = spark.readStream.format("rocketmq").option("nameServer", namesrv).option("subscribe", "In")
    stream = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(rows)).load()
    writer = stream.select("body").writeStream.format("rocketmq").option("nameServer", namesrv).option("topic", "Out")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).options(**options)


def start_once(spark: Any, namesrv: str, folder: Path) -> Any:
    return copying(spark, namesrv, folder, **ONCE).trigger(availableNow=True).start()


def start_endless(spark: Any, namesrv: str, folder: Path) -> Any:
    return copying(spark, namesrv, folder, rows=1000, **ONCE).start()


STREAMS = {
    "archive": start_archive,
    "tables": start_tables,
    "sink": start_sink,
    "once": start_once,
    "endless": start_endless,
}
STARTS_MAX = 5
LOOK_S = 0.02
GROWN_S = 300.0  # the longest until a checkpoint has grown
DRIVER_S = 600.0  # the longest that a driver runs: long before, it is killed or has read everything


def start(kind: str, spark: Any, source: str, folder: Path) -> Any:
    """The stream, once its checkpoint has grown (or it has ended).

    Spark gives a source's process ten seconds to start, which a busy machine may not grant: that alone is tried again.
    """
    before = logged(folder)
    for _ in range(STARTS_MAX):
        query = STREAMS[kind](spark, source, folder)
        deadline_s = time.monotonic() + GROWN_S
        while query.isActive and logged(folder) == before:
            assert time.monotonic() < deadline_s, (
                f"no batch of the {kind} was logged within {GROWN_S:g} s: {query.status}"
            )
            with contextlib.suppress(StreamingQueryException):  # asked for below
                query.awaitTermination(LOOK_S)
        failure = query.exception()
        if failure is None or "Python worker failed to connect back" not in str(failure):
            break
    return query


def logged(folder: Path) -> set[str]:
    """What Spark has noted of micro-batches."""
    return {str(path) for path in folder.glob("checkpoint/*/[0-9]*")}


def main(kind: str, source: str, folder: str) -> None:
    # Whatever a driver waits for too long is told in its log, and it ends: the test that watches it goes on.
    faulthandler.dump_traceback_later(DRIVER_S, exit=True)
    spark = contrailmq.spark.session(kind, master="local[2]", spark_driver_memory="1g")
    start(kind, spark, source, Path(folder)).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
