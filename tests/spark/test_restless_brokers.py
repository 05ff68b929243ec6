"""A stream from topic to topic, exactly once, while its brokers are killed every ten seconds for ten minutes.

Meanwhile messages come, queues are added, a second broker gets the topic, leaves and comes back, and the topic is twice
deleted and made anew. The stream tells what is a loss and ends, and goes on where it is allowed. `make test` has two
kills of a broker (test_away.py), queues and brokers that come and go (test_rocketmq_cluster.py) and topics that are
made anew (test_marks.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from contrailmq import Admin, Message, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.testing import LocalCluster
from spark.killed_streams import start
from spark.test_kills import CHECKS

KILL_EVERY_S = 10
GUARD_S = 300
ROUNDS = 60
NEW_TOPIC = (18, 38)  # the rounds in which the topic is made anew
LEAVES, RETURNS = 48, 54  # the second broker, which has the topic from round 25 on
SENT = 200  # in each round

pytestmark = [pytest.mark.spark, pytest.mark.long]


class Stream:
    """The stream and what it is to copy. It is started again with other options from the same checkpoint."""

    def __init__(self, spark: Any, cluster: LocalCluster, folder: Path, broker: str) -> None:
        self._spark, self._cluster, self._folder = spark, cluster, folder
        self.sent = 0
        self.queues: dict[str, int] = {}  # of the topic, by broker
        self.gone: list[bytes] = []  # rows of topics that were deleted, or of a broker that is away
        self.grow(broker, 2)
        self.send()
        self.query = start("endless", spark, cluster.namesrv, folder)

    def grow(self, broker: str, queues: int) -> None:
        self.queues[broker] = queues
        with Admin(namesrv=self._cluster.namesrv) as admin:
            admin.create_topic("In", queues=queues, broker=broker)

    def send(self) -> None:
        with Producer("filling", namesrv=self._cluster.namesrv) as producer:
            for _ in range(SENT):
                producer.send(Message("In", b"%d" % self.sent))
                self.sent += 1

    def ends_with(self, text: str) -> None:
        """Nothing is silent: it ends and says why."""
        with pytest.raises(StreamingQueryException, match=text):
            self.query.awaitTermination(GUARD_S)

    def goes_on(self, kind: str) -> None:
        self.send()
        self.query = start(kind, self._spark, self._cluster.namesrv, self._folder)

    def settle(self) -> list[bytes]:
        """All that the topic holds is copied; gives that."""
        self.query.processAllAvailable()
        return bodies_of(self._cluster.namesrv, "In")

    def made_anew(self) -> None:
        """With as many queues: one that is gone stays in the checkpoint, and is a loss until it is there again."""
        self.gone += self.settle()
        with Admin(namesrv=self._cluster.namesrv) as admin:
            admin.delete_topic("In")
            for broker, queues in self.queues.items():
                admin.create_topic("In", queues=queues, broker=broker)
        self.ends_with("set failOnDataLoss=false to")
        self.goes_on("lenient")
        self.settle()
        self.query.stop()
        self.goes_on("endless")


def test_rows_are_each_visible_once_though_the_broker_is_killed_every_ten_seconds_for_ten_minutes(
    spark: Any, tmp_path: Path
) -> None:
    config = CHECKS | {"autoCreateTopicEnable": "true"}
    with LocalCluster(store=tmp_path / "brokers", config=config, brokers=2, processes=True) as cluster:
        with Admin(namesrv=cluster.namesrv) as admin:
            first, second = sorted(admin.topic_configs())
            admin.create_topic("Out", queues=2, broker=first)
        names = (first, second)
        stream, away = Stream(spark, cluster, tmp_path, first), list[bytes]()
        for number in range(ROUNDS):
            if number in NEW_TOPIC:
                stream.made_anew()
            if number == LEAVES:
                away = [*stream.settle()]
                cluster.kill_broker(1)
                away = sorted(set(away) - set(bodies_of(cluster.namesrv, "In", first)))
                assert away
                stream.ends_with(f"broker {second} was away .* gone for good, failOnDataLoss=false")
                stream.goes_on("lenient")
            if number == RETURNS:
                stream.settle()
                stream.query.stop()
                cluster.restart_broker(1)
                stream.goes_on("endless")
            stream.send()
            if number % 10 == 5 and not LEAVES <= number < RETURNS:
                stream.grow(names[number > 20], 3 + number // 10)
            assert not stream.query.awaitTermination(KILL_EVERY_S)
            killed = number % 2 if number > 25 and not LEAVES <= number < RETURNS else 0
            cluster.kill_broker(killed)
            cluster.restart_broker(killed)
        held = stream.gone + stream.settle()
        stream.query.stop()
        assert set(away) <= set(held)
        assert len(set(held)) == stream.sent
        assert sorted(bodies_of(cluster.namesrv, "Out")) == sorted(held)


def bodies_of(namesrv: str, topic: str, broker: str | None = None) -> list[bytes]:
    """A plain read of a topic, or of what one broker has of it."""
    settings, found = TopicSettings(namesrv), []
    with QueueReader(namesrv=namesrv) as reader:
        for queue in reader.queues(topic):
            if broker in (None, queue.broker_name):
                part = QueueRange(queue, 0, reader.max_offset(queue))
                found += [body for batch in read_range(part, settings, reader) for body in batch["body"].to_pylist()]
    return found
