"""`deduplicated`: one row of each key, every row without a key, whatever columns the frame has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrailmq import Message, MessageQueue, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.message import encode_host
from contrailmq.message.codec import encode_record
from contrailmq.spark import OptionError, deduplicated
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster
from spark.conftest import expected

pytestmark = pytest.mark.spark
# Two messages without a key that are equal but for their place, and three with two keys.
KEYS = [None, None, "a", "b", "a"]
NOW_MS = 1_790_000_000_000
ALL = "topic,brokerName,queueId,queueOffset,physicalOffset,storeHost,storeTimestamp,body,properties"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("keys")
    config = StoreConfig(folder, mapped_file_size_commit_log=65_536, max_hash_slot_num=10, max_index_num=40)
    with MessageStore(config) as opened:
        for key in KEYS:
            own = {} if key is None else {DEDUP_PROPERTY: key}
            opened.put(Message("Keyed", (key or "none").encode(), properties=own))
    return str(folder)


@pytest.mark.parametrize("columns", [ALL, "topic,body,properties", "body,properties", "properties", "topic,properties"])
def test_rows_without_a_key_are_all_kept_whatever_the_columns(spark: Any, store: str, columns: str) -> None:
    frame = spark.read.format("commitlog").option("columns", columns).load(store)
    rows = deduplicated(frame).collect()
    assert Counter(row["properties"].get(DEDUP_PROPERTY) for row in rows) == {None: 2, "a": 1, "b": 1}
    assert rows[0].__fields__ == columns.split(",")


def test_a_store_without_keys_keeps_every_row(spark: Any, golden_store: Callable[[str], str]) -> None:
    reader = spark.read.format("commitlog").option("includeSystemTopics", "true")
    frame = reader.option("columns", "topic,body,properties").load(golden_store("clean"))
    assert deduplicated(frame).count() == len(expected("clean")["messages"])


@pytest.mark.parametrize("within", [None, "1 hour"])
def test_a_stream_keeps_rows_without_a_key_and_drops_repeats(
    spark: Any, store: str, tmp_path: Path, within: str | None
) -> None:
    """The brokerName of a store's files is null: no row may be lost by that."""
    frame = spark.readStream.format("commitlog").option("columns", ALL).load(store)
    writer = deduplicated(frame, within=within).writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "out")).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert Counter(row["properties"].get(DEDUP_PROPERTY) for row in rows) == {None: 2, "a": 1, "b": 1}


def test_a_stream_keeps_what_was_stored_long_before_what_it_has_read(spark: Any, tmp_path: Path) -> None:
    """As when one queue is read behind another: the third run finds two rows and a repeat that are an hour older.

    Spark would drop them by the time that it knew before its second batch.
    """
    folder, log, host = tmp_path / "store" / "commitlog", b"", encode_host("10.0.0.1", 1)
    folder.mkdir(parents=True)
    found: Counter[str | None] = Counter()

    def take(rows: Any, number: int) -> None:
        found.update(row["properties"].get(DEDUP_PROPERTY) for row in rows.collect())

    for now_ms, keys in ((NOW_MS, [None, "a"]), (NOW_MS, ["c"]), (NOW_MS - 3_600_000, [None, "a", "b"])):
        for key in keys:
            own = b"" if key is None else f"{DEDUP_PROPERTY}\x01{key}\x02".encode()
            log += encode_record(
                "Keyed", b"x", own, queue_id=0, queue_offset=0, physical_offset=len(log), born_host=host,
                store_host=host, born_time_ms=now_ms, store_time_ms=now_ms,
            )  # fmt: skip
        (folder / ("0" * 20)).write_bytes(log.ljust(4096, b"\0"))
        frame = spark.readStream.format("commitlog").option("columns", ALL).load(str(folder.parent))
        writer = deduplicated(frame, within="30 minutes").writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert found == {None: 2, "a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("columns", "within", "missing"),
    [
        ("topic,body,properties", None, "storeHost, queueOffset, physicalOffset"),
        ("topic,brokerName,queueId,queueOffset,properties", None, "storeHost, physicalOffset"),
        ("storeHost,queueOffset,properties", "1 hour", "physicalOffset"),
    ],
)
def test_a_stream_that_could_lose_rows_is_refused(
    spark: Any, store: str, columns: str, within: str | None, missing: str
) -> None:
    frame = spark.readStream.format("commitlog").option("columns", columns).load(store)
    with pytest.raises(OptionError, match=f"the stream has no {missing}, without which .*: read properties, storeHost"):
        deduplicated(frame, within=within)


@pytest.mark.parametrize(
    ("options", "state"),
    [({"properties": "string"}, "string"), ({"properties": "none"}, "missing"), ({"columnStyle": "kafka"}, "missing")],
)
def test_a_frame_whose_properties_are_no_map_is_refused(
    spark: Any, store: str, options: dict[str, str], state: str
) -> None:
    frame = spark.read.format("commitlog").options(**options).load(store)
    with pytest.raises(OptionError, match=f"column properties is {state}: .* read the frame with properties=map"):
        deduplicated(frame)


def test_a_batch_that_is_repeated_in_other_partitions_loses_nothing(spark: Any, tmp_path: Path) -> None:
    """The commit of a stream's only batch is taken away, as if Spark had died before it, and minPartitions is changed.

    Five messages of one queue and three of another are two partitions first and eight then: without the digest in
    their keys the first rows of partitions 1 and up carry the keys of other messages.
    """
    bodies = {0: [b"a%d" % n for n in range(5)], 1: [b"b%d" % n for n in range(3)]}

    def copy(partitions: str) -> None:
        source = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "Dealt")
        frame = source.options(startingOffsets="earliest", minPartitions=partitions).load().select("body")
        writer = frame.writeStream.format("rocketmq").option("nameServer", cluster.namesrv).option("topic", "Copied")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination()

    with LocalCluster() as cluster:
        with Producer("dealer", namesrv=cluster.namesrv) as producer, QueueReader(namesrv=cluster.namesrv) as reader:
            broker = reader.publish_queues("Dealt")[0].broker_name
            for queue_id, sent in bodies.items():
                for body in sent:
                    producer.send(Message("Dealt", body), queue=MessageQueue("Dealt", broker, queue_id))
        copy("1")
        for commit in (tmp_path / "commits").glob("*0*"):
            commit.unlink()
        copy("8")
        read = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "Copied").load()
        rows = [(row["properties"][DEDUP_PROPERTY], bytes(row["body"])) for row in read.collect()]
        left = {bytes(row["body"]) for row in deduplicated(read).collect()}
    assert len(rows) == 16  # both attempts arrived whole; had the first not, its keys would hide rows of the second
    assert len(set(rows)) == len({key for key, _ in rows})  # no key has two bodies
    assert left == {*bodies[0], *bodies[1]}
