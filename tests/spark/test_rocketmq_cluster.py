"""The kernels of `rocketmq` against a real broker in this process, without Spark: filters, patterns, loss, delays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.sync_admin import Admin
from contrailmq.message import MessageQueue
from contrailmq.spark.columns import COLUMNS
from contrailmq.spark.options import Options
from contrailmq.spark.runtime.patience import BrokerAwayError
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sinks.sending import SinkSettings, write_rows
from contrailmq.spark.sources.rocketmq import KNOWN_OPTIONS, RocketMQSource, RocketMQStreamReader, parse_settings
from contrailmq.spark.sources.topic_plan import (
    DataLossError,
    QueueRange,
    TopicSettings,
    find_queues,
)
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.store.base.store_clock import STEP_MS
from contrailmq.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[QueueReader]:
    with QueueReader(namesrv=cluster.namesrv) as reader:
        yield reader


def fill(cluster: LocalCluster, topic: str, count: int) -> None:
    with Producer("filling", namesrv=cluster.namesrv) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number, properties={"n": str(number)}))


def settings_of(cluster: LocalCluster, **options: str) -> TopicSettings:
    given = Options({"nameServer": cluster.namesrv, **options}, known=KNOWN_OPTIONS)
    return parse_settings(given, is_stream=False)


def ranges_of(client: QueueReader, settings: TopicSettings) -> list[QueueRange]:
    queues = find_queues(client, settings, client.topics())
    return [QueueRange(queue, 0, client.max_offset(queue)) for queue in queues if client.max_offset(queue)]


def bodies(client: QueueReader, settings: TopicSettings, ranges: list[QueueRange]) -> list[int]:
    batches = [batch for part in ranges for batch in read_range(part, settings, client)]
    return sorted(int(body) for batch in batches for body in batch.column("body").to_pylist())


def test_an_sql_expression_filters_at_the_broker_and_gaps_are_no_loss(
    cluster: LocalCluster, client: QueueReader
) -> None:
    fill(cluster, "Filtered", 40)
    settings = settings_of(cluster, subscribe="Filtered", sqlExpression="n BETWEEN 10 AND 14 OR n > 37")
    assert bodies(client, settings, ranges_of(client, settings)) == [10, 11, 12, 13, 14, 38, 39]


def test_a_pattern_reads_every_topic_that_it_matches_whole(cluster: LocalCluster, client: QueueReader) -> None:
    for topic, count in (("PatternOne", 3), ("PatternTwo", 2), ("NoPattern", 5)):
        fill(cluster, topic, count)
    settings = settings_of(cluster, subscribePattern="Pattern.*")
    ranges = ranges_of(client, settings)
    assert {part.queue.topic for part in ranges} == {"PatternOne", "PatternTwo"}
    assert bodies(client, settings, ranges) == [0, 0, 1, 1, 2]


def test_a_kept_connection_that_the_broker_closed_is_made_anew(cluster: LocalCluster, client: QueueReader) -> None:
    """Workers keep connections between micro-batches, and brokers close those that were silent for two minutes."""
    fill(cluster, "Silent", 8)
    settings = settings_of(cluster, subscribe="Silent")
    ranges = ranges_of(client, settings)
    assert bodies(client, settings, ranges) == list(range(8))
    cluster.restart_broker()  # closes every connection, as the sweep of silent ones does
    assert [client.max_offset(part.queue) for part in ranges] == [part.stop for part in ranges]
    cluster.restart_broker()
    assert bodies(client, settings, ranges) == list(range(8))


def test_a_topic_deleted_after_planning_is_loss_unless_allowed(cluster: LocalCluster, client: QueueReader) -> None:
    fill(cluster, "Deleted", 8)
    strict = settings_of(cluster, subscribe="Deleted")
    ranges = ranges_of(client, strict)
    assert bodies(client, strict, ranges) == list(range(8))
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.delete_topic("Deleted")
    with pytest.raises(DataLossError):
        bodies(client, strict, ranges)
    allowed = settings_of(cluster, subscribe="Deleted", failOnDataLoss="false")
    assert bodies(client, allowed, ranges) == []


def test_delayed_rows_arrive_in_their_time_with_their_keys(cluster: LocalCluster, client: QueueReader) -> None:
    """By delay level, by a moment, and one at once; a moment given by Spark is in the session's time zone."""
    fill(cluster, "Delayed", 1)
    queue = client.queues("Delayed")[0]
    first = client.max_offset(queue)
    at = datetime.now(UTC) + timedelta(seconds=1)
    batch = pa.RecordBatch.from_pydict(
        {
            "body": ["level", "moment", "now"],
            "queueId": pa.array([queue.queue_id] * 3, pa.int32()),
            "delayLevel": pa.array([1, None, None], pa.int32()),
            "deliverAt": pa.array([None, at, None], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    assert write_rows(iter([batch]), SinkSettings(cluster.namesrv, topic="Delayed"), "job-0") == 3
    written = datetime.now(UTC)
    settings = settings_of(cluster, subscribe="Delayed")
    offset = first
    while offset < first + 3:  # each pull waits at the broker until something arrives
        pulled = client.pull(queue, offset, max_count=1, wait_s=15.0)
        assert pulled.next_offset > offset, f"nothing arrived at {offset}"
        offset = pulled.next_offset
    rows = [r for b in read_range(QueueRange(queue, first, offset), settings, client) for r in b.to_pylist()]
    by_body = {row["body"].decode(): row for row in rows}
    keys = {body: dict(row["properties"])[DEDUP_PROPERTY] for body, row in by_body.items()}
    assert {body: key.rpartition("-")[0] for body, key in keys.items()} == {
        "level": "job-0-0",
        "moment": "job-0-1",
        "now": "job-0-2",
    }
    apart = timedelta(milliseconds=STEP_MS)  # store times are of another clock than this test's, and births
    assert by_body["now"]["storeTimestamp"] <= written + apart
    assert by_body["moment"]["storeTimestamp"] >= at - apart
    assert by_body["level"]["storeTimestamp"] - by_body["level"]["bornTimestamp"] >= timedelta(seconds=1) - apart


def test_queues_and_brokers_added_while_a_stream_runs_are_read_whole_and_one_that_leaves_is_told() -> None:
    def stream(namesrv: str, **options: str) -> RocketMQStreamReader:
        given = {"nameServer": namesrv, "subscribe": "Grows", "startingOffsets": "earliest", **options}
        names = StructType([StructField(name, StringType()) for name in COLUMNS])
        return RocketMQSource(given).streamReader(names)

    def send(producer: Producer, queue: MessageQueue, *numbers: int) -> None:
        for number in numbers:
            producer.send(Message("Grows", b"%d" % number), queue=queue)

    with LocalCluster(brokers=2) as cluster, Admin(namesrv=cluster.namesrv) as admin:
        first, second = sorted(admin.topic_configs())
        admin.create_topic("Grows", queues=1, broker=first)
        reader, allowed = stream(cluster.namesrv), stream(cluster.namesrv, failOnDataLoss="false")
        read: list[int] = []

        def step(start: dict[str, object]) -> dict[str, object]:
            end = reader.latestOffset(start, ReadAllAvailable())
            for part in reader.partitions(start, end):
                read.extend(int(body) for batch in reader.read(part) for body in batch.column("body").to_pylist())
            return end

        with Producer("filling", namesrv=cluster.namesrv) as producer:
            send(producer, MessageQueue("Grows", first, 0), 0, 1)
            end = step(reader.initialOffset())
            assert read == [0, 1]
            admin.create_topic("Grows", queues=2, broker=first)
            send(producer, MessageQueue("Grows", first, 1), 2, 3)
            end = step(end)
            assert read == [0, 1, 2, 3]
            admin.create_topic("Grows", queues=1, broker=second)
            send(producer, MessageQueue("Grows", second, 0), 4, 5)
            send(producer, MessageQueue("Grows", first, 0), 6)
            end = step(end)
            assert sorted(read) == [0, 1, 2, 3, 4, 5, 6]
        gone = next(i for i in range(2) if cluster.broker(i).config.broker_name == second)
        cluster.stop_broker(gone)
        strict = stream(cluster.namesrv, brokerAwayTimeoutMs="0")
        with pytest.raises(BrokerAwayError, match=f"broker {second} was away .* gone for good, failOnDataLoss=false"):
            strict.latestOffset(end, ReadAllAvailable())
        assert allowed.latestOffset(end, ReadAllAvailable()) == end
