"""`tags`, `keys` and `queueId` of `rocketmq`: rows as of a plain read that is filtered afterwards; and `explain`.

One broker holds a topic of single messages, one whose queues hold batches, and messages that wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

import contrailmq.spark
from contrailmq import Admin, Message, Producer
from contrailmq.message import SystemTopic
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.explaining import pruned
from contrailmq.spark.sources.rocketmq import RocketMQSource
from contrailmq.testing import LocalCluster

ALL_COLUMNS = StructType([StructField(name, StringType()) for name in COLUMNS])
# Two with one hash, one that is another's beginning, some that mean something in an expression; and none at all.
TAGS = ["a", "ab", "Aa", "BB", "a||b", "*", "x,y", None]
KEYS = [("k1",), ("k1", "k2"), ("k12",), ()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        with Admin(namesrv=running.namesrv) as admin:
            admin.create_topic("Single", queues=2)
            admin.create_topic("Batch", queues=2, attributes={"queue.type": "BatchCQ"})
        with Producer("filling", namesrv=running.namesrv) as producer:
            made = [Message(topic, f"{number}".encode(), tags=TAGS[number % len(TAGS)], keys=KEYS[number % 5 % 4])
                    for topic in ("Single", "Batch") for number in range(40)]  # fmt: skip
            for message in made[:40]:
                producer.send(message)
            for first in range(40, 80, 8):
                producer.send_batch(made[first : first + 8])
            producer.send(Message("Single", b"later", tags="a", keys=("k1",), delay_level=18))
        yield running


def read(cluster: LocalCluster, topic: str, **options: str) -> list[dict[str, Any]]:
    """A batch read without Spark around it."""
    given = {"nameServer": cluster.namesrv, "subscribe": topic, **options}
    reader = RocketMQSource(given).reader(ALL_COLUMNS)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("topic", ["Single", "Batch", SystemTopic.SCHEDULE])
@pytest.mark.parametrize(
    ("options", "is_meant"),
    [
        *(
            ({"tags": json.dumps([tag])}, lambda row, tag=tag: row["tags"] == tag)
            for tag in [*TAGS[:-1], "none"]
        ),
        ({"tags": "a,Aa"}, lambda row: row["tags"] in ("a", "Aa")),
        ({"keys": "k1"}, lambda row: "k1" in (row["keys"] or "").split(" ")),
        ({"keys": "k2,k12"}, lambda row: bool({"k2", "k12"} & set((row["keys"] or "").split(" ")))),
        ({"tags": "a", "keys": "k1", "queueId": "1"},
         lambda row: row["tags"] == "a" and "k1" in (row["keys"] or "").split(" ") and row["queueId"] == 1),
    ],
)  # fmt: skip
def test_rows_are_those_of_a_plain_read_filtered_afterwards(
    cluster: LocalCluster, topic: str, options: dict[str, str], is_meant: Callable[[dict[str, Any]], bool]
) -> None:
    plain = read(cluster, topic)
    assert len(plain) == {"Single": 40, "Batch": 40}.get(topic, 1)
    assert read(cluster, topic, **options) == [row for row in plain if is_meant(row)]


def test_only_the_queues_that_are_named_are_read_in_batch_and_as_a_stream(cluster: LocalCluster) -> None:
    given = {"nameServer": cluster.namesrv, "subscribe": "Single", "queueId": "1"}
    planned = RocketMQSource(given).reader(ALL_COLUMNS).partitions()
    assert {part.part.queue.queue_id for part in planned} == {1}
    stream = RocketMQSource({**given, "startingOffsets": "earliest"}).streamReader(ALL_COLUMNS)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert [list(queues) for queues in end["offsets"]["Single"].values()] == [["1"]]
    found = [row for part in stream.partitions(start, end) for batch in stream.read(part) for row in batch.to_pylist()]
    assert found == [row for row in read(cluster, "Single") if row["queueId"] == 1]
    other = RocketMQSource({**given, "queueId": "0", "startingOffsets": "earliest"}).streamReader(ALL_COLUMNS)
    with pytest.raises(
        OptionError, match="queueId leaves Single/.*/1 out, which the checkpoint has: give the option as"
    ):
        other.latestOffset(end, ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tags": "a", "subExpression": "b"}, "give one of the options subExpression and tags, not both"),
        ({"queueId": "9"}, "option queueId names 9, which no topic to be read has: there are 0, 1"),
        ({"queueId": "-1"}, "option queueId has '-1': it takes whole numbers"),
        ({"keys": "a b"}, "a space separates two keys"),
        ({"startingTimestamp": str(10**18)}, "the most is 253402300799999"),
    ],
)
def test_options_that_mean_nothing_are_refused(cluster: LocalCluster, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        read(cluster, "Single", **options)


@pytest.mark.spark
def test_explain_shows_what_each_source_leaves_out(
    spark: Any, cluster: LocalCluster, golden_store: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    topics = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "Single")
    narrow = topics.option("queueId", "1").option("tags", "a").option("columns", "body,tags").load()
    log = spark.read.format("commitlog").option("topics", "GoldenOrder").load(golden_store("clean"))
    held = sum(row["queueId"] == 1 for row in read(cluster, "Single"))
    first, second = pruned(narrow.union(log.select("body", "tags")).where("tags = 'a'"))
    assert first == f"rocketmq Single: 1 of 2 queues, {held} of 40 messages; tags a at the broker; 2 of 17 columns"
    assert second.startswith(f"commitlog {golden_store('clean')}: ")
    assert second.endswith("; topics GoldenOrder along the queues; 17 of 17 columns")
    contrailmq.spark.explain(narrow)
    shown = capfd.readouterr().out
    assert "== Physical Plan ==" in shown
    assert f"== Pruned reads ==\n{first}\n" in shown
    assert narrow.count() == sum(row["queueId"] == 1 and row["tags"] == "a" for row in read(cluster, "Single"))
