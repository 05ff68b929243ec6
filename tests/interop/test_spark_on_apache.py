"""Spark's source and exactly-once sink with Apache's broker as the peer, as the tasks and the driver use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache import Apache

from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker under our clients", "5.5.0")

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from contrailmq import Admin, Message, Producer  # noqa: E402
from contrailmq.client.blocking.raw_halves import End  # noqa: E402
from contrailmq.spark.columns import COLUMNS  # noqa: E402
from contrailmq.spark.sinks.exactly_once import Committer, TaskHalves, decisions_of, write_halves  # noqa: E402
from contrailmq.spark.sinks.halves import decode_places, end_all  # noqa: E402
from contrailmq.spark.sinks.sending import ExactlyOnce, SinkSettings  # noqa: E402
from contrailmq.spark.sources.rocketmq import RocketMQSource  # noqa: E402

ROWS = 120


@pytest.fixture(scope="module")
def cluster(rocketmq: Apache) -> Iterator[SimpleNamespace]:
    with rocketmq.cluster(autoCreateTopicEnable="true", transactionTimeOut=60_000) as (namesrv, _):
        until(lambda: "TBW102" in Admin(namesrv=namesrv).topics())
        yield SimpleNamespace(namesrv=namesrv)


def read(namesrv: str, topic: str, **options: str) -> list[dict[str, Any]]:
    from pyspark.sql.types import StringType, StructField, StructType

    source = RocketMQSource({"nameServer": namesrv, "subscribe": topic, **options})
    reader = source.reader(StructType([StructField(name, StringType()) for name in COLUMNS]))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def bodies(namesrv: str, topic: str) -> list[bytes]:
    return sorted(row["body"] for row in read(namesrv, topic))


def made(first: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + ROWS)]


@pytest.fixture
def settings(cluster: SimpleNamespace, tmp_path: Path, request: pytest.FixtureRequest) -> SinkSettings:
    topic = f"Once{len(request.node.name)}"
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(topic, queues=2)
    until(lambda: topic in Admin(namesrv=cluster.namesrv).topics())
    (tmp_path / "decisions").mkdir()
    once = ExactlyOnce(str(tmp_path / "decisions"), log_id=topic, write_name="write", immunity_s=60)
    return SinkSettings(cluster.namesrv, topic=topic, group=f"g_{topic}", exactly_once=once)


def sent(settings: SinkSettings, rows: list[bytes], batch: str) -> TaskHalves:
    """What a task does."""
    columns = pa.RecordBatch.from_pydict({"body": rows, "tags": ["a"] * len(rows)})
    return write_halves(iter([columns]), settings, "key", batch, is_done=False)


def test_rows_become_visible_once_when_their_batch_commits(settings: SinkSettings) -> None:
    """Two tasks, one of them also as a speculative copy whose half messages nobody commits."""
    assert settings.topic is not None
    tasks = [sent(settings, made(0), "b0"), sent(settings, made(ROWS), "b0")]
    copy = sent(settings, made(ROWS), "b0")
    assert bodies(settings.namesrv, settings.topic) == []
    Committer(settings).commit("b0", tasks)
    assert bodies(settings.namesrv, settings.topic) == made(0) + made(ROWS)
    Committer(settings).commit("b0", [copy])  # Spark repeats a batch that is done
    Committer(settings).commit("b0", tasks)
    assert bodies(settings.namesrv, settings.topic) == made(0) + made(ROWS)


def test_a_batch_that_is_aborted_leaves_nothing_visible(settings: SinkSettings) -> None:
    assert settings.topic is not None
    Committer(settings).abort("b0", [sent(settings, made(0), "b0")])
    Committer(settings).commit("b0", [sent(settings, made(0), "b0")])
    assert bodies(settings.namesrv, settings.topic) == made(0)


def test_a_driver_that_died_between_two_ends_is_taken_up_where_it_was(settings: SinkSettings) -> None:
    """The decision is durable and half of the ends were carried out; Apache's broker would carry one out twice."""
    assert settings.topic is not None
    assert settings.exactly_once is not None
    places, _ = decode_places(sent(settings, made(0), "b0").places)
    with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
        begins = dict.fromkeys(client.publish_queues(settings.topic), 0)
        decisions_of(settings.exactly_once).decide("b0", places, begins)
        assert end_all(client, places[: ROWS // 2], End.COMMIT, group=settings.group) == []
    assert len(bodies(settings.namesrv, settings.topic)) == ROWS // 2
    Committer(settings, sleep=lambda _: None).recover()
    assert bodies(settings.namesrv, settings.topic) == made(0)
    Committer(replace(settings)).recover()
    assert bodies(settings.namesrv, settings.topic) == made(0)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import contrailmq.spark

    session = contrailmq.spark.session(
        "interop",
        master="local[2,3]",
        spark_driver_memory="1g",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
        },
    )
    yield session
    session.stop()


def test_whole_micro_batches_of_spark_are_visible_once(
    spark: Any, settings: SinkSettings, cluster: SimpleNamespace, tmp_path: Path
) -> None:
    """From topic to topic through Spark. The first attempt of each task fails after its last row; then a restart."""
    from pyspark import TaskContext

    assert settings.topic is not None
    source_topic = "MicroBatches"
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(source_topic, queues=2)

    def send(first: int) -> None:
        with Producer("micro", namesrv=cluster.namesrv) as producer:
            for body in made(first):
                producer.send(Message(source_topic, body))

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    def run() -> int:
        reader = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv)
        reader = reader.option("subscribe", source_topic).option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", "50").load().select("body").mapInArrow(failing, "body binary")
        writer = rows.writeStream.format("rocketmq").option("nameServer", cluster.namesrv)
        writer = writer.option("topic", settings.topic).option("delivery", "exactly-once")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return len([progress for progress in query.recentProgress if progress.numInputRows])

    send(0)
    assert run() >= 2
    assert bodies(cluster.namesrv, settings.topic) == made(0)
    send(ROWS)
    run()
    assert bodies(cluster.namesrv, settings.topic) == made(0) + made(ROWS)


def test_tags_keys_and_queues_leave_out_what_a_filter_would(cluster: SimpleNamespace) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Pruned", queues=2)
    tags = ["a", "ab", "Aa", "BB", None]  # Aa and BB have one hash
    with Producer("pruned", namesrv=cluster.namesrv) as producer:
        for number in range(40):
            keys = ("k1", "k2") if number % 3 else ("k12",)
            producer.send(Message("Pruned", b"%d" % number, tags=tags[number % 5], keys=keys))
    plain = read(cluster.namesrv, "Pruned")
    assert len(plain) == 40
    for tag in ("a", "Aa"):
        assert read(cluster.namesrv, "Pruned", tags=json.dumps([tag])) == [row for row in plain if row["tags"] == tag]
    assert read(cluster.namesrv, "Pruned", keys="k2") == [row for row in plain if "k2" in row["keys"].split(" ")]
    assert read(cluster.namesrv, "Pruned", queueId="1") == [row for row in plain if row["queueId"] == 1]
