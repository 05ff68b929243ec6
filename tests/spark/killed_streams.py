"""The streams that tests kill: into an archive, tables and files (exactly once) and into a topic (at least, or exactly
once).

Run as a program it is a driver of its own process group, which the test kills whole, as when a host dies:

    python killed_streams.py archive STORE FOLDER
    python killed_streams.py tables STORE FOLDER
    python killed_streams.py sink NAMESRV FOLDER
    python killed_streams.py once NAMESRV FOLDER
    python killed_streams.py files NAMESRV FOLDER
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
TABLE_BYTES = 4_000 if IS_LONG else 110_000
TRIGGER_ROWS = 15 if IS_LONG else 150
ONCE = {"delivery": "exactly-once", "transactionTimeoutMs": "5000"}


def start_archive(spark: Any, store: str, folder: Path) -> Any:
    source = spark.readStream.format("commitlog").option("path", store)
    source = source.option("maxBytesPerTrigger", str(TRIGGER_BYTES))
    writer = archive_stream(source, str(folder / "archive"), str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def start_tables(spark: Any, store: str, folder: Path) -> Any:
    source = spark.readStream.format("commitlog").option("path", store).option("topics", "Orders,Other,Users")
    source = source.option("maxBytesPerTrigger", str(TABLE_BYTES))
    specs = {"Orders": {"schema": "id bigint NOT NULL, customer string, amount double"}, "Other": {"evolve": True}}
    specs["Users"] = {"schema": "id int, n bigint", "key": ["id"], "buckets": 3}
    writer = tables_stream(source, str(folder / "lake"), str(folder / "checkpoint"), specs)
    return writer.trigger(availableNow=True).start()


def start_sink(spark: Any, namesrv: str, folder: Path) -> Any:
    return copying(reading(spark, namesrv), namesrv, folder).trigger(availableNow=True).start()


def reading(spark: Any, namesrv: str, rows: int = TRIGGER_ROWS, loss: str = "true") -> Any:
    """A topic's rows as a stream. `loss`: whether messages that are gone end it."""
    source = spark.readStream.format("rocketmq").option("nameServer", namesrv).option("subscribe", "In")
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(rows))
    return source.option("failOnDataLoss", loss).load().select("body")


def copying(stream: Any, namesrv: str, folder: Path, **options: str) -> Any:
    """A writer of these rows into another topic."""
    writer = stream.writeStream.format("rocketmq").option("nameServer", namesrv).option("topic", "Out")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).options(**options)


def start_once(spark: Any, namesrv: str, folder: Path) -> Any:
    return copying(reading(spark, namesrv), namesrv, folder, **ONCE).trigger(availableNow=True).start()


def start_files(spark: Any, namesrv: str, folder: Path) -> Any:
    """Into files by Spark's own sink, which lists those that count."""
    writer = reading(spark, namesrv).writeStream.format("parquet").option("path", str(folder / "files"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def start_endless(spark: Any, namesrv: str, folder: Path) -> Any:
    return copying(reading(spark, namesrv, rows=1000), namesrv, folder, **ONCE).start()


def start_lenient(spark: Any, namesrv: str, folder: Path) -> Any:
    """The same where loss is allowed."""
    return copying(reading(spark, namesrv, rows=1000, loss="false"), namesrv, folder, **ONCE).start()


STREAMS = {
    "archive": start_archive,
    "tables": start_tables,
    "sink": start_sink,
    "once": start_once,
    "files": start_files,
    "endless": start_endless,
    "lenient": start_lenient,
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
