"""Options of `rocketmq` that decide what is read and how a cluster is entered: each has an effect or is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

import contrailmq.spark.sources.rocketmq as rocketmq
from contrailmq.message import MessageQueue
from contrailmq.spark.access import parse_access
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.sources.commitlog import CommitLogReader, CommitLogSource
from contrailmq.spark.sources.rocketmq import RocketMQReader, RocketMQSource, RocketMQStreamReader, offsets_of
from contrailmq.spark.sources.topic_plan import (
    DataLossError,
    QueueRange,
    TopicSettings,
    find_queues,
    plan_queue_ranges,
)
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
    readers: list[RocketMQReader | CommitLogReader] = [
        RocketMQReader(settings_of()),
        CommitLogReader("/nowhere", LogSettings()),
    ]
    assert [list(reader.read(partition)) for reader in readers] == [[], []]


BODY = StructType([StructField("body", StringType())])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger has no effect on a batch read"),
        ({"minOffsetsPerTrigger": "5"}, "option minOffsetsPerTrigger has no effect on a batch read"),
        ({"maxTriggerDelay": "5s"}, "option maxTriggerDelay has no effect on a batch read"),
        ({"commitGroupOffsets": "true", "groupId": "g"}, "option commitGroupOffsets has no effect on a batch read"),
        ({"producerGroup": "g"}, "option producerGroup has no effect on reading"),
        ({"batchCount": "5"}, "option batchCount has no effect on reading"),
        ({"startingOffsets": '{"Orders": {"0": -1}}'}, r"-1 \(latest\) for Orders/0, where nothing would be read"),
        ({"startingOffsets": '{"Orders": {"0": -7}}'}, "has -7 for Orders/0"),
        ({"endingOffsets": '{"Orders": {"0": -2}}'}, r"-2 \(earliest\) for Orders/0, where nothing would be read"),
        ({"endingOffsetsByTimestamp": '{"Orders": {"0": -1}}'}, "milliseconds since 1970"),
        ({"startingTimestamp": "yesterday"}, "takes a whole number"),
        ({"topic": "Other"}, "options subscribe and topic mean the same and differ"),
        ({"namesrvAddr": "y:1"}, "options nameServer and namesrvAddr mean the same and differ"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "error or latest"),
        ({"pullBatchSize": "0"}, "the least is 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"columnStyle": "flink"}, "native or kafka"),
        ({"properties": "json"}, "map, string or none"),
        ({"columns": "properties", "properties": "none"}, "leaves no column"),
        ({"emit": "portions"}, "is for streams"),
    ],
)
def test_a_batch_refuses_what_would_do_nothing_or_mean_nothing(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        RocketMQSource({"nameServer": "x:1", "subscribe": "Orders", **options}).reader(ALL_COLUMNS)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets has no effect on a stream"),
        ({"endingTimestamp": "5"}, "option endingTimestamp has no effect on a stream"),
        ({"endingOffsetsByTimestamp": "{}"}, "option endingOffsetsByTimestamp has no effect on a stream"),
        ({"maxTriggerDelay": "5s"}, "option maxTriggerDelay has no effect without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is 9, more than"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "a number with ms, s, m or h"),
        ({"sendTries": "5"}, "option sendTries has no effect on reading"),
    ],
)
def test_a_stream_refuses_what_would_do_nothing_or_mean_nothing(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        RocketMQSource({"nameServer": "x:1", "subscribe": "Orders", **options}).streamReader(ALL_COLUMNS)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("pattern", ["", " "])
def test_a_pattern_that_matches_no_topic_at_all_is_refused(pattern: str, is_stream: bool) -> None:
    """A blank one would read nothing, without a word."""
    given = rocketmq.Options({"nameServer": "x:1", "subscribePattern": pattern}, known=rocketmq.KNOWN_OPTIONS)
    with pytest.raises(OptionError, match="option subscribePattern is empty: give a regular expression"):
        rocketmq.parse_settings(given, is_stream=is_stream)


@pytest.mark.parametrize("source", [RocketMQSource, CommitLogSource])
def test_what_is_known_leaves_out_the_option_that_only_jobs_set(
    source: type[RocketMQSource] | type[CommitLogSource],
) -> None:
    with pytest.raises(OptionError, match="known are ") as raised:
        source({"zzzzzz": "1"})
    known = str(raised.value).partition("known are ")[2].split(", ")
    assert "columns" in known
    assert "emit" not in known
    with pytest.raises(OptionError) as raised:
        source({"emitt": "1"})
    assert "did you mean emit" not in str(raised.value)


@pytest.mark.parametrize("name", ["subscribe", "startingOffsets", "columns", "groupId", "failOnDataLoss", "emit"])
def test_a_sink_refuses_the_options_of_the_source(name: str) -> None:
    source = RocketMQSource({"nameServer": "x:1", "topic": "Out", name: "rows"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match=f"option {name} has no effect on writing"):
            writer(BODY, False)


def test_a_sink_refuses_to_overwrite_a_topic() -> None:
    source = RocketMQSource({"nameServer": "x:1", "topic": "Out"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match="cannot be overwritten"):
            writer(BODY, True)


def test_limits_of_a_stream_reach_its_reader() -> None:
    given = {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "90s"}
    stream = RocketMQSource({"nameServer": "x:1", "subscribe": "Orders", **given}).streamReader(ALL_COLUMNS)
    assert stream.getDefaultReadLimit().max_rows == 9
    assert (stream._rows_min, stream._delay_max_s) == (5, 90.0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", '{"Ordres": {"0": 5}}'),
        ("startingOffsets", '{"Orders": {"broker-a": {"2": 5}}}'),
        ("startingOffsets", '{"Orders": {"2": 5}}'),
        ("endingOffsets", '{"Orders": {"2": 5}}'),
        ("startingOffsetsByTimestamp", '{"Orders": {"2": 5}}'),
        ("endingOffsetsByTimestamp", '{"Orders": {"broker-a": {"2": 5}}}'),
    ],
)
def test_offsets_of_queues_that_are_not_read_are_refused(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    """A mistyped name would otherwise mean the default, which is everything."""
    monkeypatch.setattr(rocketmq, "reader_for", lambda _: FakeBroker({Q0: 100, Q1: 10}))
    with pytest.raises(OptionError, match=f"option {option} names .*, which is not among the queues to read"):
        RocketMQReader(settings_of(**{option: value})).partitions()
    lossy = RocketMQReader(settings_of(failOnDataLoss="false", **{option: value}))
    assert [partition.part for partition in lossy.partitions()] == [QueueRange(Q0, 0, 100), QueueRange(Q1, 0, 10)]


def test_assigned_queues_are_read_alone_and_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker({Q0: 100, Q1: 10})
    monkeypatch.setattr(rocketmq, "reader_for", lambda _: broker)

    def settings(text: str) -> TopicSettings:
        given = rocketmq.Options({"nameServer": "x:1", "assign": text}, known=rocketmq.KNOWN_OPTIONS)
        return rocketmq.parse_settings(given, is_stream=False)

    one = RocketMQReader(settings('{"Orders": {"broker-a": [1]}}')).partitions()
    assert [partition.part for partition in one] == [QueueRange(Q1, 0, 10)]
    with pytest.raises(OptionError, match="names Orders/broker-a/7, which is not there: there are Orders/broker-a/0, "):
        RocketMQReader(settings('{"Orders": {"broker-a": [1, 7]}}')).partitions()
    with pytest.raises(OptionError, match="names no queue"):
        settings('{"Orders": {"broker-a": []}}')
    for text in ('{"Orders": [1]}', '{"Orders": {"b": "12"}}', '{"Orders": {"b": [1.9]}}', '{"Orders": {"b": [true]}}'):
        with pytest.raises(OptionError, match="not queues as JSON"):
            settings(text)


@pytest.mark.parametrize("wanted", range(3, 12))
def test_there_are_never_fewer_ranges_than_wanted(wanted: int) -> None:
    sizes = {MessageQueue("T", "b", number): size for number, size in enumerate((40, 40, 41))}
    cut = plan_queue_ranges(dict.fromkeys(sizes, 0), sizes, partitions_min=wanted, records_max=0)
    assert len(cut) >= wanted
    assert sum(part.stop - part.start for part in cut) == 121


def test_system_topics_match_a_pattern_only_on_request() -> None:
    broker = FakeBroker({Q0: 1, MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 0): 1})

    def topics(**options: str) -> list[str]:
        given = {"nameServer": "x:1", "subscribePattern": ".*", **options}
        settings = rocketmq.parse_settings(rocketmq.Options(given, known=rocketmq.KNOWN_OPTIONS), is_stream=False)
        return [queue.topic for queue in find_queues(broker, settings, ["Orders", "SCHEDULE_TOPIC_XXXX"])]

    assert topics() == ["Orders"]
    assert topics(includeSystemTopics="true") == ["Orders", "SCHEDULE_TOPIC_XXXX"]


def test_every_option_of_the_sink_reaches_it() -> None:
    given = {"producerGroup": "g", "dedupKeyColumn": "id", "sendTries": "2", "sendTimeoutMs": "1500", "batchCount": "7"}
    schema = StructType([StructField(name, StringType()) for name in ("body", "id")])
    sink = RocketMQSource({"nameServer": "x:1", "topic": "Out", **given}).writer(schema, False)._settings
    assert (sink.group, sink.dedup_column, sink.tries, sink.timeout_s, sink.batch_count) == ("g", "id", 2, 1.5, 7)
    assert (sink.namesrv, sink.topic) == ("x:1", "Out")


def test_every_option_of_a_read_reaches_it() -> None:
    given = {"pullBatchSize": "9", "pullTimeoutMs": "1500", "batchBytes": "2048", "decompress": "false", "groupId": "g"}
    settings = settings_of(columns="body", sqlExpression="a > 1", **given)
    assert (settings.pull_count, settings.pull_timeout_s, settings.batch_bytes) == (9, 1.5, 2048)
    assert (settings.decompress, settings.group, settings.view.columns) == (False, "g", ("body",))
    assert (settings.subscription, settings.expression_type) == ("a > 1", "SQL92")
    cut = RocketMQSource({"nameServer": "x:1", "subscribe": "T", "minPartitions": "5", "maxRecordsPerPartition": "6"})
    reader = cut.reader(ALL_COLUMNS)
    assert (reader._partitions_min, reader._records_max) == (5, 6)
