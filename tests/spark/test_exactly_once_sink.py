"""Exactly-once delivery through Spark: batch writes, tasks that Spark repeats, options. Kills are in test_kills.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import Options
from contrailmq.spark.sinks.sink import parse_sink
from contrailmq.spark.sources.rocketmq import KNOWN_OPTIONS
from contrailmq.testing import LocalCluster
from spark.test_exactly_once import CHECKS, visible, wait_until_nothing_is_pending
from waiting_for import until

BODY = StructType([StructField("body", StringType())])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config=CHECKS) as running:
        yield running


def save(frame: Any, cluster: LocalCluster, topic: str, folder: Path, **options: str) -> None:
    writer = frame.write.format("rocketmq").option("nameServer", cluster.namesrv).option("topic", topic)
    writer = writer.option("delivery", "exactly-once").option("checkpointLocation", str(folder / "checkpoint"))
    writer.options(transactionTimeoutMs="1000", **options).mode("append").save()


def settings(cluster: LocalCluster, topic: str, folder: Path, **options: str) -> Any:
    given = {"nameServer": cluster.namesrv, "topic": topic, "delivery": "exactly-once"}
    given |= {"checkpointLocation": str(folder / "checkpoint")} | options
    return parse_sink(Options(given, known=KNOWN_OPTIONS), BODY, is_overwrite=False)


@pytest.mark.spark
def test_a_batch_write_is_visible_once_and_a_named_one_is_not_repeated(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(f"{number}",) for number in range(40)], BODY).repartition(3)
    rows = Counter(b"%d" % number for number in range(40))
    save(frame, cluster, "Written", tmp_path, writeId="day-1")
    assert visible(cluster.namesrv, "Written") == rows
    save(frame, cluster, "Written", tmp_path, writeId="day-1")  # a job that is started again
    assert visible(cluster.namesrv, "Written") == rows
    save(frame, cluster, "Written", tmp_path, writeId="day-2")
    assert visible(cluster.namesrv, "Written") == rows + rows
    pending = cluster.broker().transactions.pending
    until(lambda: not pending(), "the ends that were answered are counted", seen=pending)


@pytest.mark.spark
def test_tasks_that_fail_after_sending_leave_nothing(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The first attempt of each task fails after its last row was taken; Spark tries again (local[2,3])."""

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    frame = spark.range(0, 60, 1, 2).selectExpr("cast(id as string) as body").mapInArrow(failing, BODY)
    save(frame, cluster, "Tried", tmp_path)
    assert visible(cluster.namesrv, "Tried") == Counter(b"%d" % number for number in range(60))
    wait_until_nothing_is_pending(cluster, settings(cluster, "Tried", tmp_path))
    assert visible(cluster.namesrv, "Tried") == Counter(b"%d" % number for number in range(60))


def test_what_exactly_once_cannot_do_is_refused_at_once(tmp_path: Path) -> None:
    def parse(schema: StructType = BODY, *, is_stream: bool = False, **given: str) -> Any:
        options = Options({"nameServer": "x", "topic": "T", **given}, known=KNOWN_OPTIONS)
        return parse_sink(options, schema, is_overwrite=False, is_stream=is_stream)

    place = str(tmp_path / "checkpoint")
    with pytest.raises(OptionError, match="needs the option checkpointLocation"):
        parse(delivery="exactly-once")
    with pytest.raises(OptionError, match="takes a path that the driver's host has mounted"):
        parse(delivery="exactly-once", checkpointLocation="s3a://bucket/checkpoint")
    with pytest.raises(OptionError, match="option delivery is 'twice'"):
        parse(delivery="twice")
    with pytest.raises(OptionError, match="writeId has no effect without delivery=exactly-once"):
        parse(writeId="x")
    with pytest.raises(OptionError, match="writeId has no effect on a stream"):
        parse(delivery="exactly-once", checkpointLocation=place, writeId="x", is_stream=True)
    with pytest.raises(OptionError, match="option writeId is 'a/b'"):
        parse(delivery="exactly-once", checkpointLocation=place, writeId="a/b")
    late = StructType([*BODY.fields, StructField("deliverAt", TimestampType())])
    with pytest.raises(OptionError, match="column deliverAt cannot go with delivery=exactly-once"):
        parse(late, delivery="exactly-once", checkpointLocation=place)
    ours = [parse(delivery="exactly-once", checkpointLocation=form) for form in (place, f"file://{place}")]
    assert len({one.group for one in ours}) == 1  # the same checkpoint, and so the same producer group
    assert ours[0].group.startswith("contrailmq_spark_")
