"""Options of `rocketmq` that decide what is read and how a cluster is entered: each has an effect or is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

import contrailmq.spark.rocketmq as rocketmq
from contrailmq.client.errors import NoRouteError
from contrailmq.client.raw import RawPull
from contrailmq.message import MessageQueue
from contrailmq.spark.access import parse_access
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.commitlog import CommitLogReader
from contrailmq.spark.log_plan import LogSettings
from contrailmq.spark.rocketmq import RocketMQReader, RocketMQSource, RocketMQStreamReader, offsets_of
from contrailmq.spark.topic_plan import DataLossError, QueueRange, TopicSettings, find_queues, read_range
from spark.test_rocketmq_source import Q0, Q1, FakeBroker, settings_of

ALL_COLUMNS = StructType([StructField(name, StringType()) for name in COLUMNS])
ROOT = Path(__file__).resolve().parents[2]


def reader_of(
    monkeypatch: pytest.MonkeyPatch, broker: FakeBroker, settings: TopicSettings, *, rows_min: int = 0
) -> RocketMQStreamReader:
    monkeypatch.setattr(rocketmq, "reader_for", lambda _: broker)
    return RocketMQStreamReader(settings, rows_min=rows_min, delay_max_s=60.0)


def lenient() -> TopicSettings:
    return settings_of(startingOffsets="earliest", groupId="stream", failOnDataLoss="false")


def test_the_streaming_example_of_the_readme_uses_options_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    block = next(part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "readStream" in part)
    options = dict(re.findall(r'\.option\("(\w+)", "([^"]+)"\)', block))
    assert options["subscribe"] == "Orders"
    source = RocketMQSource(options)
    assert isinstance(source.streamReader(ALL_COLUMNS), RocketMQStreamReader)


def test_a_deleted_topic_ends_nothing_when_loss_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker({Q0: 100, Q1: 10})
    reader = reader_of(monkeypatch, broker, lenient())
    start = reader.reportLatestOffset()
    broker.sizes.clear()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.partitions(start, end) == []
    broker.sizes[Q0], broker.sizes[Q1] = 101, 10
    again = reader.latestOffset(end, ReadAllAvailable())
    assert [partition.part for partition in reader.partitions(end, again)] == [QueueRange(Q0, 100, 101)]


def test_a_remade_topic_is_read_from_its_beginning_when_loss_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker({Q0: 100, Q1: 10})
    reader = reader_of(monkeypatch, broker, lenient())
    start = reader.reportLatestOffset()
    broker.sizes[Q0] = 8
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert [partition.part for partition in reader.partitions(start, end)] == [QueueRange(Q0, 0, 4)]
    later = reader.latestOffset(end, ReadAllAvailable())
    assert [partition.part for partition in reader.partitions(end, later)] == [QueueRange(Q0, 4, 8)]


class DeletedBroker(FakeBroker):
    def pull(self, queue: MessageQueue, offset: int, **_: object) -> RawPull:  # type: ignore[override]
        raise NoRouteError(queue.topic, namesrv="none:1", remedy="create it")


def test_a_topic_deleted_between_planning_and_reading_is_loss() -> None:
    part, broker = QueueRange(Q0, 10, 20), DeletedBroker({Q0: 100})
    with pytest.raises(DataLossError, match="went away before offsets 10 to 20 were read"):
        list(read_range(part, settings_of(), broker))  # type: ignore[arg-type]
    assert list(read_range(part, lenient(), broker)) == []  # type: ignore[arg-type]


def test_a_batch_that_starts_behind_the_end_is_loss_and_not_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq, "reader_for", lambda _: FakeBroker({Q0: 100, Q1: 10}))
    beyond = '{"Orders": {"0": 5, "1": 11}}'
    with pytest.raises(DataLossError, match="Orders/broker-a/1 is to be read from 11, but ends at 10"):
        RocketMQReader(settings_of(startingOffsets=beyond)).partitions()
    allowed = RocketMQReader(settings_of(startingOffsets=beyond, failOnDataLoss="false")).partitions()
    assert [partition.part for partition in allowed] == [QueueRange(Q0, 5, 100)]


def test_too_few_messages_wait_for_more_or_for_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(rocketmq.time, "monotonic", lambda: now_s)
    broker = FakeBroker({Q0: 100, Q1: 10})
    reader = reader_of(monkeypatch, broker, lenient(), rows_min=5)
    start = reader.reportLatestOffset()
    broker.sizes[Q0] = 104
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    broker.sizes[Q0] = 105
    reached = reader.latestOffset(start, ReadAllAvailable())
    assert offsets_of(reached)[Q0] == 105
    broker.sizes[Q0] = 106
    assert reader.latestOffset(reached, ReadAllAvailable()) == reached
    now_s += 61.0
    assert offsets_of(reader.latestOffset(reached, ReadAllAvailable()))[Q0] == 106
    reader.prepareForTriggerAvailableNow()
    assert offsets_of(reader.latestOffset(reached, ReadAllAvailable()))[Q0] == 106


def test_a_pattern_names_whole_topics_and_survives_one_that_goes() -> None:
    other, longer = MessageQueue("Other", "broker-a", 0), MessageQueue("Orders2", "broker-a", 0)
    broker = FakeBroker({Q0: 1, other: 1, longer: 1})
    settings = rocketmq.parse_settings(
        rocketmq.Options({"nameServer": "x:1", "subscribePattern": "Orders|Gone"}, known=rocketmq.KNOWN_OPTIONS),
        is_stream=False,
    )
    assert find_queues(broker, settings, ["Orders", "Orders2", "Other", "Gone", "RMQ_SYS_TRACE_TOPIC"]) == [Q0]
    broken = rocketmq.parse_settings(
        rocketmq.Options({"nameServer": "x:1", "subscribePattern": "Ord("}, known=rocketmq.KNOWN_OPTIONS),
        is_stream=False,
    )
    with pytest.raises(OptionError, match="no regular expression"):
        find_queues(broker, broken, [])


def test_a_path_is_refused_where_it_would_mean_nothing() -> None:
    with pytest.raises(OptionError, match="takes no path"):
        RocketMQSource({"nameServer": "x:1", "path": "/tmp/x"})


def test_keys_and_certificates_reach_the_client_whatever_the_case_of_their_names() -> None:
    """Spark lower-cases the names of options."""
    access = parse_access({"accesskey": "me", "secretkey": "s3cret", "tls.enable": "true"})
    credentials = access.credentials()
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key) == ("me", "s3cret")
    assert access.tls() is not None
    assert "s3cret" not in repr(access)
    assert parse_access({}).tls() is None
    schema = StructType([StructField("body", StringType())])
    source = RocketMQSource({"nameServer": "x:1", "topic": "T", "rocketmq.accessKey": "me", "rocketmq.secretKey": "s"})
    sink, read = source.writer(schema, False), source.reader(ALL_COLUMNS)
    assert sink._settings.access == read._settings.access == parse_access({"accessKey": "me", "secretKey": "s"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"acessKey": "x"}, "did you mean rocketmq.accessKey"),
        ({"consumeThreadMin": "3"}, "has no effect here"),
        ({"accessKey": "x"}, "go together"),
        ({"securityToken": "x"}, "needs rocketmq.accessKey"),
        ({"tls.client.certPath": "/x.pem"}, "without rocketmq.tls.enable=true"),
    ],
)
def test_client_settings_without_effect_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_access(options)


@pytest.mark.parametrize("partition", [None, InputPartition(None)])
def test_an_empty_plan_reads_nothing(partition: InputPartition | None) -> None:
    """Spark makes one partition without a value of a plan that has none."""
    readers = [RocketMQReader(settings_of()), CommitLogReader("/nowhere", LogSettings())]
    assert [list(reader.read(partition)) for reader in readers] == [[], []]
