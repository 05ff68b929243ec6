"""The `commitlog` source through a real Spark session, and its stream reader as a plain object."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

import contrailmq
from contrailmq.spark.columns import OptionError
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.decoding.store_files import StoreFilesError, confirmed_end, log_files
from contrailmq.spark.sources.commitlog import CommitLogSource, CommitLogStreamReader
from spark.conftest import expected, unpack

pytestmark = pytest.mark.spark


def load(spark: Any, store: str, **options: str) -> Any:
    return spark.read.format("commitlog").options(**options).load(store)


def test_spark_reads_every_row_of_a_store(spark: Any, golden_store: Callable[[str], str]) -> None:
    frame = load(spark, golden_store("clean"), includeSystemTopics="true", rangeBytes="50000")
    rows = sorted(frame.collect(), key=lambda row: row["physicalOffset"])
    java = expected("clean")["messages"]
    assert [row["physicalOffset"] for row in rows] == [m["commitLogOffset"] for m in java]
    assert [row["properties"] for row in rows] == [m["properties"] for m in java]
    assert [len(row["body"]) for row in rows] == [m["bodyLength"] for m in java]
    assert frame.count() == len(java)


def test_only_what_a_message_may_lack_is_nullable_and_a_given_schema_may_say_less(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    store = golden_store("clean")
    frame = spark.read.format("commitlog").load(store)
    assert [field.name for field in frame.schema.fields if field.nullable] == ["brokerName", "tags", "keys"]
    loose = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
    same = spark.read.format("commitlog").schema(loose).load(store)
    assert all(field.nullable for field in same.schema.fields)
    assert rows_by_place(same) == rows_by_place(frame)
    with pytest.raises(Exception, match="NOT NULL of tags, which may be null"):
        spark.read.format("commitlog").schema("tags string NOT NULL").option("columns", "tags").load(store).count()
    kafka = spark.read.format("commitlog").option("columnStyle", "kafka").load(store)
    assert all(field.nullable for field in kafka.schema.fields)  # as the connector has them


def rows_by_place(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: row["physicalOffset"])


def test_filters_and_aggregates_on_one_load_do_not_disturb_each_other(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    """Push-down in Spark 4.3 keeps the last filter for every frame of one load(); ours has none and stays right."""
    frame = load(spark, golden_store("clean"), topics="GoldenOrder")
    assert frame.where("queueId = 1").count() == 12
    assert frame.count() == 48
    both = frame.where("queueId = 1").union(frame.where("queueId = 2"))
    assert sorted((r["queueId"], r["count"]) for r in both.groupBy("queueId").count().collect()) == [(1, 12), (2, 12)]
    frame.createOrReplaceTempView("orders")
    counts = spark.sql(
        "select (select count(*) from orders where queueId = 1) a, (select count(*) from orders) b, "
        "(select count(*) from orders where queueId = 2) c"
    ).first()
    spark.catalog.dropTempView("orders")
    assert tuple(counts) == (12, 48, 12)


def test_a_bad_stretch_fails_the_query_and_is_skipped_only_on_request(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    store = golden_store("torn-mid")
    with pytest.raises(Exception, match="physical offset 606629"):
        load(spark, store).collect()
    kept = len(expected("torn-mid")["messages"])  # Java's recovery cuts the damaged record and the eight after it
    assert load(spark, store, onCorrupt="skip", includeSystemTopics="true").count() == kept


def test_a_view_in_sql_takes_options(spark: Any, golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    spark.sql(f"create or replace temporary view log using commitlog options (path '{store}', topics 'GoldenAuto')")
    assert spark.sql("select count(*) from log").first()[0] == 6


def test_times_per_queue_bound_that_queue_and_a_time_for_all_counts_more(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    store = golden_store("clean")
    java = [m for m in expected("clean")["messages"] if m["topic"] == "GoldenOrder"]
    times = sorted({m["storeTimestamp"] for m in java if m["queueId"] == 1})
    middle = times[len(times) // 2]

    def offsets(**options: str) -> list[int]:
        rows = load(spark, store, topics="GoldenOrder", columns="physicalOffset", **options).collect()
        return sorted(row[0] for row in rows)

    def those(keeps: Callable[[dict[str, Any]], bool]) -> list[int]:
        found = sorted(m["commitLogOffset"] for m in java if keeps(m))
        assert 0 < len(found) < len(java)
        return found

    by_time = json.dumps({"GoldenOrder": {"1": middle}})
    from_middle = those(lambda m: m["queueId"] != 1 or m["storeTimestamp"] >= middle)
    assert offsets(startingOffsetsByTimestamp=by_time) == from_middle
    none = json.dumps({"GoldenOrder": {"1": 10_000}})  # offsets count less, so nothing is left out by these
    assert offsets(startingOffsetsByTimestamp=by_time, startingOffsets=none) == from_middle
    to_middle = those(lambda m: m["queueId"] != 1 or m["storeTimestamp"] < middle)
    assert offsets(endingOffsetsByTimestamp=by_time) == to_middle
    all_from_middle = those(lambda m: m["storeTimestamp"] >= middle)
    assert offsets(startingTimestamp=str(middle), startingOffsetsByTimestamp=none) == all_from_middle


def test_a_stream_of_a_growing_store_gives_each_record_once(spark: Any, tmp_path: Path) -> None:
    """Files appear one after the other, as a live store's would; each run takes up where the last one stopped."""
    whole = unpack("clean", tmp_path / "whole")
    growing = tmp_path / "growing" / "commitlog"
    growing.mkdir(parents=True)

    def run() -> None:
        stream = (
            spark.readStream.format("commitlog")
            .option("path", str(tmp_path / "growing"))
            .option("includeSystemTopics", "true")
            .option("columns", "physicalOffset")
            .option("maxBytesPerTrigger", "200000")
            .load()
        )
        (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    for files in (log_files(whole)[:2], log_files(whole)[2:]):
        for file in files:
            shutil.copy(file.path, growing)
        run()
    rows = sorted(row[0] for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert rows == [message["commitLogOffset"] for message in expected("clean")["messages"]]


def reader(store: str, **options: Any) -> CommitLogStreamReader:
    return CommitLogStreamReader(store, LogSettings(), **options)


def test_offsets_are_canonical_and_respect_the_limit(golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    stream = reader(store, bytes_per_trigger=100_000)
    start = stream.initialOffset()
    assert start == {"stores": {store: 0}, "version": 1}
    limited = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert isinstance(stream.getDefaultReadLimit(), ReadMaxBytes)
    assert 100_000 <= limited["stores"][store] < 110_000
    offsets = {message["commitLogOffset"] for message in expected("clean")["messages"]}
    assert limited["stores"][store] in offsets  # always the beginning of a record
    assert stream.latestOffset(start, ReadAllAvailable())["stores"][store] == confirmed_end(store)
    assert stream.latestOffset(stream.reportLatestOffset(), ReadAllAvailable()) == stream.reportLatestOffset()


def test_a_log_deleted_unread_fails_unless_allowed(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    stream = reader(store)
    start, end = stream.initialOffset(), stream.reportLatestOffset()
    Path(log_files(store)[0].path).unlink()
    with pytest.raises(StoreFilesError, match="131072 bytes were deleted unread"):
        stream.partitions(start, end)
    allowed = CommitLogStreamReader(store, LogSettings(fail_on_data_loss=False))
    assert allowed.partitions(start, end)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/x", "endingOfsets": "latest"}, "did you mean endingOffsets"),
        ({"path": "/x", "columns": "topic,bodi"}, "'bodi'"),
        ({"path": "/x", "onCorrupt": "maybe"}, "fail or skip"),
        ({"path": "/x", "startingOffsets": "group"}, "earliest or offsets"),
        ({"path": "/x", "startingOffsets": '{"t": 3}'}, "not offsets as JSON"),
        ({"path": "/x", "checkCrc": "yes"}, "true or false"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        CommitLogSource(options).schema()


def test_a_path_that_is_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreFilesError, match="has no commitlog directory on host"):
        reader(str(tmp_path)).initialOffset()
    with pytest.raises(StoreFilesError, match="nothing matches"):
        reader(str(tmp_path / "none*")).initialOffset()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("contrailmq.spark.sources.commitlog", ["contrailmq.store.message_store", "asyncio", "pandas"]),
        (
            "contrailmq.spark.sources.rocketmq",
            ["contrailmq.store.message_store", "contrailmq.client.producing.producer", "pandas"],
        ),
    ],
)
def test_a_planner_of_a_source_loads_no_store_and_no_client_of_ours(module: str, heavy: list[str]) -> None:
    """Spark starts a process for every streaming query, which imports the source before the first micro-batch."""
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
