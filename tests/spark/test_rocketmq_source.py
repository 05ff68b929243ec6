"""The `rocketmq` source and sink: planning against a fake broker, and whole through a cluster in this process."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import contrailmq.spark.sources.rocketmq as rocketmq
from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import QueueReader, RawPull
from contrailmq.client.blocking.raw_connection import Landing
from contrailmq.client.errors import NoRouteError
from contrailmq.client.results import PullStatus
from contrailmq.message import MessageQueue, SysFlag, encode_host
from contrailmq.message.codec import encode_record
from contrailmq.spark import deduplicated, mirror_offsets
from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import Options
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sinks.sink import parse_sink
from contrailmq.spark.sources.rocketmq import (
    KNOWN_OPTIONS,
    RocketMQSource,
    RocketMQStreamReader,
    offsets_json,
    offsets_of,
    parse_settings,
)
from contrailmq.spark.sources.topic_plan import (
    DataLossError,
    QueueRange,
    TopicSettings,
    ending_offsets,
    find_queues,
    plan_queue_ranges,
    share_limit,
    starting_offsets,
)
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.testing import LocalCluster

HOST = encode_host("127.0.0.1", 10911)
Q0, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)


Posted = tuple[Landing, Callable[[], RawPull]]


class FakeBroker:
    """Queues of records in memory; answers as a QueueReader does. `lowest` models deletion of old messages."""

    def __init__(self, sizes: dict[MessageQueue, int]) -> None:
        self.sizes = sizes
        self.lowest: dict[MessageQueue, int] = {}
        self.group_offsets: dict[MessageQueue, int] = {}
        self.pull_count_max = 7
        self.posted = self.abandoned = 0

    def queues(self, topic: str) -> list[MessageQueue]:
        found = [queue for queue in self.sizes if queue.topic == topic]
        if not found:
            raise NoRouteError(topic, namesrv="none:1", remedy="create it")
        return found

    def broker_names(self) -> list[str]:
        return ["broker-a"]

    def forget_routes(self) -> None:
        """It keeps none."""

    def min_offset(self, queue: MessageQueue) -> int:
        return self.lowest.get(queue, 0)

    def max_offset(self, queue: MessageQueue) -> int:
        return self.sizes[queue]

    def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        return min(time_ms, self.sizes[queue])

    def consumer_offset(self, queue: MessageQueue, group: str | None = None) -> int:
        return self.group_offsets.get(queue, -1)

    def update_consumer_offset(self, queue: MessageQueue, offset: int, group: str | None = None) -> None:
        self.group_offsets[queue] = offset

    def post_pull(self, queue: MessageQueue, offset: int, *, landing: Landing, **limits: Any) -> Posted:
        self.posted += 1
        return landing, functools.partial(self.pull, queue, offset, **limits)

    def pull_answer(self, posted: Posted) -> RawPull:
        self.posted -= 1
        landing, pull = posted
        pulled = pull()
        landing.body = landing.room(len(pulled.body))
        landing.body[:] = pulled.body
        return pulled._replace(body=landing.body)

    def abandon(self, posted: Posted) -> None:
        self.posted -= 1
        self.abandoned += 1

    def pull(self, queue: MessageQueue, offset: int, *, max_count: int, **_: Any) -> RawPull:
        low, high = self.min_offset(queue), self.sizes[queue]
        if offset < low or offset > high:
            return RawPull(PullStatus.OFFSET_ILLEGAL, low, low, high, b"")
        stop = min(high, offset + max(max_count, self.pull_count_max))  # may bring more than was asked for
        body = b"".join(self.record(queue, number) for number in range(offset, stop))
        status = PullStatus.FOUND if body else PullStatus.NO_NEW_MESSAGE
        return RawPull(status, stop, low, high, body)

    def record(self, queue: MessageQueue, number: int) -> bytes:
        return encode_record(
            queue.topic,
            b"body %d" % number,
            b"TAGS\x01%s\x02" % (b"even" if number % 2 == 0 else b"odd"),
            queue_id=queue.queue_id,
            queue_offset=number,
            physical_offset=number * 1000,
            born_host=HOST,
            store_host=HOST,
            born_time_ms=1,
            store_time_ms=2,
        )


def settings_of(**options: str) -> TopicSettings:
    given = {"nameServer": "none:1", "subscribe": "Orders", **options}
    return parse_settings(Options(given, known=KNOWN_OPTIONS), is_stream="stream" in options.get("groupId", ""))


def read(broker: FakeBroker, part: QueueRange, **options: str) -> list[int]:
    batches = read_range(part, settings_of(**options), broker)  # type: ignore[arg-type]
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def test_a_range_is_read_to_its_end_and_never_past_it() -> None:
    broker = FakeBroker({Q0: 100})
    assert read(broker, QueueRange(Q0, 10, 33)) == list(range(10, 33))
    assert read(broker, QueueRange(Q0, 10, 33), batchBytes="1024") == list(range(10, 33))


def test_the_next_pull_is_on_its_way_while_one_is_decoded_and_none_when_reading_ends() -> None:
    broker = FakeBroker({Q0: 100})
    whole = read_range(QueueRange(Q0, 0, 36), settings_of(batchBytes="1024", pullBatchSize="12"), broker)  # type: ignore[arg-type]
    assert [(batch.num_rows, broker.posted) for batch in whole] == [(12, 1), (12, 1), (12, 0)]
    assert (broker.posted, broker.abandoned) == (0, 0)
    begun = read_range(QueueRange(Q0, 0, 36), settings_of(batchBytes="1024", pullBatchSize="12"), broker)  # type: ignore[arg-type]
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    assert (broker.posted, broker.abandoned) == (0, 1)


def test_tags_are_compared_as_text_again() -> None:
    broker = FakeBroker({Q0: 10})
    assert read(broker, QueueRange(Q0, 0, 10), subExpression="even || none") == [0, 2, 4, 6, 8]


def test_compressed_bodies_come_as_they_were_sent_unless_that_is_not_wanted() -> None:
    class Compressing(FakeBroker):
        def record(self, queue: MessageQueue, number: int) -> bytes:
            return encode_record(
                queue.topic,
                zlib.compress(b"body %d" % number),
                b"",
                queue_id=queue.queue_id,
                queue_offset=number,
                physical_offset=number * 1000,
                born_host=HOST,
                store_host=HOST,
                born_time_ms=1,
                store_time_ms=2,
                sys_flag=SysFlag.COMPRESSED,
            )

    def bodies(**options: str) -> list[bytes]:
        batches = read_range(QueueRange(Q0, 0, 3), settings_of(**options), Compressing({Q0: 3}))  # type: ignore[arg-type]
        return [body for batch in batches for body in batch.column("body").to_pylist()]

    assert bodies() == [b"body 0", b"body 1", b"body 2"]
    assert bodies(decompress="false") == [zlib.compress(b"body %d" % number) for number in range(3)]


def test_deleted_messages_fail_the_read_unless_that_is_allowed() -> None:
    broker = FakeBroker({Q0: 100})
    broker.lowest[Q0] = 50
    with pytest.raises(DataLossError, match="offsets 10 to 50 are not on the broker any more"):
        read(broker, QueueRange(Q0, 10, 60))
    assert read(broker, QueueRange(Q0, 10, 60), failOnDataLoss="false") == list(range(50, 60))
    with pytest.raises(DataLossError):
        read(FakeBroker({Q0: 5}), QueueRange(Q0, 0, 60))


def test_starts_and_ends_follow_the_precedence_of_time_over_offsets() -> None:
    broker = FakeBroker({Q0: 100, Q1: 10})
    queues = find_queues(broker, settings_of(), [])

    def starts(**options: str) -> list[int]:
        return list(starting_offsets(broker, queues, settings_of(**options)).values())

    assert starts() == [0, 0]
    latest = '{"Orders": {"broker-a": {"0": 5, "1": -1}}}'  # a stream may begin there, groupId says that it is one
    assert starts(startingOffsets=latest, groupId="stream") == [5, 10]
    assert starts(startingOffsets='{"Orders": {"broker-a": {"0": 5, "1": -2}}}') == [5, 0]
    assert starts(startingOffsets='{"Orders": {"0": 5}}') == [5, 0]
    assert starts(startingTimestamp="7", startingOffsets='{"Orders": {"0": 5}}') == [7, 7]
    by_time = '{"Orders": {"broker-a": {"0": 3}}}'
    assert starts(startingOffsetsByTimestamp=by_time, startingOffsets="earliest") == [3, 0]
    broker.group_offsets[Q0] = 42
    assert starts(startingOffsets="group", groupId="g") == [42, 0]
    with pytest.raises(OptionError, match="no message stored at or after 50"):
        starts(startingTimestamp="50")
    assert starts(startingTimestamp="50", startingOffsetsByTimestampStrategy="latest") == [50, 10]
    assert list(ending_offsets(broker, queues, settings_of(endingTimestamp="20")).values()) == [20, 10]


def test_limits_are_shared_in_proportion_and_no_queue_starves() -> None:
    shared = share_limit({Q0: 0, Q1: 90}, {Q0: 1000, Q1: 91}, 100)
    assert shared == {Q0: 99, Q1: 91}
    assert share_limit({Q0: 0}, {Q0: 5}, 100) == {Q0: 5}


def test_ranges_are_cut_for_partitions_and_sizes() -> None:
    begins, ends = {Q0: 0, Q1: 5}, {Q0: 100, Q1: 5}
    assert plan_queue_ranges(begins, ends, partitions_min=0, records_max=0) == [QueueRange(Q0, 0, 100)]
    assert len(plan_queue_ranges(begins, ends, partitions_min=4, records_max=0)) == 4
    cut = plan_queue_ranges(begins, ends, partitions_min=0, records_max=30)
    assert [part.stop - part.start for part in cut] == [25, 25, 25, 25]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribePattern": "x"}, "exactly one of the options"),
        ({"startingOffsets": "latest"}, "batch would find nothing"),
        ({"endingOffsets": "earliest"}, "takes latest or offsets"),
        ({"startingOffsets": "group"}, "give the group as groupId"),
        ({"subExpression": "a", "sqlExpression": "b > 1"}, "not both"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        settings_of(**options)


def test_group_offsets_are_mirrored_for_a_group_only() -> None:
    given = {"nameServer": "none:1", "subscribe": "Orders", "commitGroupOffsets": "true"}
    with pytest.raises(OptionError, match="needs a group"):
        parse_settings(Options(given, known=KNOWN_OPTIONS), is_stream=True)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RocketMQStreamReader, FakeBroker]]:
    broker = FakeBroker({Q0: 100, Q1: 10})
    monkeypatch.setattr(rocketmq, "reader_for", lambda _: broker)
    settings = settings_of(startingOffsets="earliest", groupId="stream")
    return RocketMQStreamReader(settings, rows_max=50, is_mirrored=True), broker


def test_offsets_are_canonical_whatever_the_order() -> None:
    one, other = offsets_json({Q1: 2, Q0: 1}), offsets_json({Q0: 1, Q1: 2})
    assert str(one) == str(other)
    assert offsets_of(one) == {Q0: 1, Q1: 2}


def test_a_stream_honours_limits_and_takes_all_when_told(stream: tuple[RocketMQStreamReader, FakeBroker]) -> None:
    reader, _ = stream
    start = reader.initialOffset()
    limited = offsets_of(reader.latestOffset(start, ReadMaxRows(50)))
    assert limited == {Q0: 45, Q1: 4}
    assert offsets_of(reader.latestOffset(start, ReadAllAvailable())) == {Q0: 100, Q1: 10}


def test_available_now_ends_where_the_queues_ended_when_it_began(
    stream: tuple[RocketMQStreamReader, FakeBroker],
) -> None:
    reader, broker = stream
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.sizes[Q0] = 500
    assert offsets_of(reader.latestOffset(start, ReadAllAvailable())) == {Q0: 100, Q1: 10}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_comes_before_a_start_at_the_end_is_looked_up_is_no_loss_and_not_read(
    stream: tuple[RocketMQStreamReader, FakeBroker], fails: str
) -> None:
    """Spark asks for the ends of AvailableNow first: a queue grows and another appears until it asks for the start.

    The other one may be of a broker that was away: it is read up to where it ends when it is first looked at.
    """
    broker = stream[1]
    reader = RocketMQStreamReader(settings_of(startingOffsets="latest", groupId="stream", failOnDataLoss=fails))
    reader.prepareForTriggerAvailableNow()
    new = MessageQueue("Orders", "broker-b", 0)
    broker.sizes |= {Q0: 105, new: 7}
    start = reader.initialOffset()
    assert offsets_of(start) == {Q0: 105, Q1: 10, new: 7}
    broker.sizes |= {Q0: 110, new: 9}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert offsets_of(end) == {**offsets_of(start), new: 9}
    asked_again = reader.initialOffset()  # as Spark does before it plans the first batch, and after a restart
    assert asked_again != start
    assert [partition.part for partition in reader.partitions(asked_again, end)] == [QueueRange(new, 7, 9)]
    broker.sizes[new] = 20
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_first_batch_from_the_end_is_planned_again_from_where_it_began(
    stream: tuple[RocketMQStreamReader, FakeBroker],
) -> None:
    """Spark died after it had saved the end of the batch; it asks for the start anew, which is elsewhere by now."""
    broker = stream[1]
    settings = settings_of(startingOffsets="latest", groupId="stream")
    reader = RocketMQStreamReader(settings)
    start = reader.initialOffset()
    broker.sizes[Q0] = 103
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    broker.sizes[Q0], broker.sizes[Q1] = 150, 20
    restarted = RocketMQStreamReader(settings)
    planned = [partition.part for partition in restarted.partitions(restarted.initialOffset(), end)]
    assert planned == [QueueRange(Q0, 100, 103)]


def test_a_batch_with_a_new_queue_is_planned_again_from_where_that_began(
    stream: tuple[RocketMQStreamReader, FakeBroker],
) -> None:
    """Its first messages expired in between: that is for the reading to tell."""
    reader, broker = stream
    start = reader.reportLatestOffset()
    new = MessageQueue("Orders", "broker-b", 0)
    broker.sizes[new], broker.lowest[new] = 8, 1
    end = reader.latestOffset(start, ReadAllAvailable())
    broker.lowest[new] = 5
    assert [partition.part for partition in reader.partitions(start, end)] == [QueueRange(new, 1, 8)]


def test_a_queue_made_anew_is_a_loss_also_when_ends_were_looked_up_before(
    stream: tuple[RocketMQStreamReader, FakeBroker],
) -> None:
    reader, broker = stream
    start = reader.reportLatestOffset()
    broker.sizes[Q0] = 3
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="ends at 3, before the offset 100"):
        reader.latestOffset(start, ReadAllAvailable())


def test_new_queues_are_read_from_their_beginning(stream: tuple[RocketMQStreamReader, FakeBroker]) -> None:
    reader, broker = stream
    start = reader.reportLatestOffset()
    new = MessageQueue("Orders", "broker-b", 0)
    broker.sizes[new], broker.lowest[new] = 8, 3
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [partition.part for partition in reader.partitions(start, end)] == [QueueRange(new, 3, 8)]


def test_vanished_and_remade_queues_fail_unless_allowed(stream: tuple[RocketMQStreamReader, FakeBroker]) -> None:
    reader, broker = stream
    start = reader.reportLatestOffset()
    broker.sizes[Q0] = 3
    with pytest.raises(DataLossError, match="was created again"):
        reader.latestOffset(start, ReadAllAvailable())
    del broker.sizes[Q0]
    with pytest.raises(DataLossError, match="no longer there"):
        reader.latestOffset(start, ReadAllAvailable())
    broker.sizes.clear()
    with pytest.raises(DataLossError, match="no longer there"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_broker_that_comes_back_between_two_questions_has_lost_nothing(
    stream: tuple[RocketMQStreamReader, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away when its queues are asked for, and there when the brokers are."""
    reader, broker = stream
    start = reader.reportLatestOffset()
    sizes = dict(broker.sizes)

    def back() -> list[str]:
        broker.sizes.update(sizes)
        return sorted({queue.broker_name for queue in sizes})

    monkeypatch.setattr(broker, "broker_names", back)
    broker.sizes.clear()
    assert offsets_of(reader.latestOffset(start, ReadAllAvailable())) == offsets_of(start)


def test_the_group_offset_mirrors_the_next_offset_to_read(stream: tuple[RocketMQStreamReader, FakeBroker]) -> None:
    reader, broker = stream
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert broker.group_offsets == {Q0: 0, Q1: 0}
    reader.commit(end)
    assert broker.group_offsets == {Q0: 100, Q1: 10}


def sink_schema(ddl: str) -> StructType:
    schema = StructType()
    for column in ddl.split(", "):
        schema.add(*column.split(" "))
    return schema


@pytest.mark.parametrize(
    ("ddl", "options", "text"),
    [
        ("topic string", {}, "no column body"),
        ("body string", {}, "no column topic"),
        ("body integer", {"topic": "T"}, "must be string or binary"),
        ("body string, colour string", {"topic": "T"}, "no place in a message"),
        ("body string", {"topic": "T", "dedupKeyColumn": "id"}, "do not have"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused_before_anything_is_sent(
    ddl: str, options: dict[str, str], text: str
) -> None:
    given = Options({"nameServer": "x:1", **options}, known=KNOWN_OPTIONS)
    with pytest.raises(OptionError, match=text):
        parse_sink(given, sink_schema(ddl), is_overwrite=False)
    with pytest.raises(OptionError, match="cannot be overwritten"):
        parse_sink(given, sink_schema(ddl), is_overwrite=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def fill(cluster: LocalCluster, topic: str, count: int) -> None:
    with Producer("filling", namesrv=cluster.namesrv) as producer:
        for number in range(count):
            tags = "even" if number % 2 == 0 else "odd"
            producer.send(Message(topic, b"%d" % number, tags=tags, keys=[f"k{number}"], properties={"n": str(number)}))


def rows_of(spark: Any, cluster: LocalCluster, topic: str, **options: str) -> list[Any]:
    reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", topic)
    found: list[Any] = reader.options(**options).load().collect()
    return found


@pytest.mark.spark
def test_spark_reads_a_topic_through_the_broker(spark: Any, cluster: LocalCluster) -> None:
    fill(cluster, "ReadMe", 40)
    rows = rows_of(spark, cluster, "ReadMe")
    assert sorted(int(row["body"]) for row in rows) == list(range(40))
    assert all(row["properties"]["n"] == row["body"].decode() for row in rows)
    assert {row["tags"] for row in rows} == {"even", "odd"}
    assert len({(row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows}) == 40
    even = rows_of(spark, cluster, "ReadMe", subExpression="even", minPartitions="8")
    assert sorted(int(row["body"]) for row in even) == list(range(0, 40, 2))


@pytest.mark.spark
def test_a_stream_through_spark_gives_each_message_once_and_its_sink_marks_them(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """In -> Spark -> out, stopped and started again in between; and a group's offset follows to the end."""
    source = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "In")

    mirror = mirror_offsets(spark, cluster.namesrv, "lag-tools")

    def run() -> None:
        frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "25").load()
        query = (
            frame.selectExpr("concat('seen ', cast(body as string)) as body", "tags", "keys")
            .writeStream.format("rocketmq")
            .option("nameServer", cluster.namesrv)
            .option("topic", "Out")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    fill(cluster, "In", 30)
    run()
    fill(cluster, "In", 20)
    run()
    rows = rows_of(spark, cluster, "Out")
    wanted = sorted([f"seen {n}" for n in range(30)] + [f"seen {n}" for n in range(20)])
    assert sorted(row["body"].decode() for row in rows) == wanted
    keys = [row["properties"][DEDUP_PROPERTY] for row in rows]
    assert len(set(keys)) == 50
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)  # ms; a busy machine needs more than its 10 s
    spark.streams.removeListener(mirror)
    with QueueReader(namesrv=cluster.namesrv) as client:
        queues = client.queues("In")
        assert sum(client.consumer_offset(queue, "lag-tools") for queue in queues) == 50


@pytest.mark.spark
def test_repeats_of_an_at_least_once_sink_are_dropped_by_key(spark: Any, cluster: LocalCluster) -> None:
    frame = spark.createDataFrame([(f"b{n}", f"id{n % 7}") for n in range(21)], "body string, id string")
    (
        frame.coalesce(1)
        .write.format("rocketmq")
        .option("nameServer", cluster.namesrv)
        .option("topic", "Repeats")
        .option("dedupKeyColumn", "id")
        .mode("append")
        .save()
    )
    load = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "Repeats").load()
    assert load.count() == 21
    assert deduplicated(load).count() == 7


def test_the_source_names_itself() -> None:
    assert RocketMQSource.name() == "rocketmq"
    with pytest.raises(OptionError, match="did you mean subscribe"):
        RocketMQSource({"subscrib": "x"})
