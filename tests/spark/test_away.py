"""A broker or NameServer that is away delays a read, a stream and a write, and ends them only when time is over.

What comes back does so inside the pauses themselves: a client's `forget_routes` is called after each one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from typer.testing import CliRunner

import contrailmq.spark.sources.rocketmq as rocketmq
from contrailmq import Admin, Message, Producer
from contrailmq.cli import app
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.errors import BrokerNotFoundError, NoNameServerError, NoRouteError
from contrailmq.message import ContrailError
from contrailmq.spark.columns import OptionError
from contrailmq.spark.jobs.archive_topics import topics_to_archive
from contrailmq.spark.jobs.replay import redrive
from contrailmq.spark.options import Options
from contrailmq.spark.runtime.patience import BrokerAwayError, Patience
from contrailmq.spark.sinks.sending import Sender, SendFailedError, SendRefusedError, SinkSettings
from contrailmq.spark.sources.rocketmq import KNOWN_OPTIONS, RocketMQReader, RocketMQStreamReader, parse_settings
from contrailmq.spark.sources.topic_plan import DataLossError
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, RequestTimeoutError, ResponseError
from spark.test_rocketmq_source import settings_of
from waiting_for import until

REFUSED = ConnectError("127.0.0.1:1", "refused")


def answered(code: ResponseCode) -> ResponseError:
    return ResponseError(int(code), "no", request_code=RequestCode.PULL_MESSAGE, address="127.0.0.1:1")


class Cluster:
    """What is registered, and how often routes were forgotten."""

    def __init__(self, *names: str) -> None:
        self.names, self.forgotten = list(names), 0

    def broker_names(self) -> list[str]:
        return self.names

    def forget_routes(self) -> None:
        self.forgotten += 1


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now_s, self.pauses = 0.0, list[float]()

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses.append(pause_s)


def patience(cluster: Cluster, time: Time, limit_s: float = 60.0) -> Patience:
    return Patience(cluster, limit_s, sleep=time.sleep, clock=lambda: time.now_s)


def raising(*errors: ContrailError | None) -> Callable[[], str]:
    """Fails with each error in turn, with the last one for ever; None: works."""
    left = itertools.chain(errors, itertools.repeat(errors[-1]))

    def do() -> str:
        error = next(left)
        if error is not None:
            raise error
        return "done"

    return do


@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        ConnectionClosedError("127.0.0.1:1", "reset"),
        RequestTimeoutError("127.0.0.1:1", RequestCode.PULL_MESSAGE, 3.0),
        NoNameServerError("none answered"),
        BrokerNotFoundError("broker-a"),
        answered(ResponseCode.SERVICE_NOT_AVAILABLE),
        answered(ResponseCode.SYSTEM_BUSY),
    ],
)
def test_who_is_away_is_asked_again_with_growing_pauses(error: ContrailError) -> None:
    time, cluster = Time(), Cluster("broker-a")
    assert patience(cluster, time).call(raising(*[error] * 8, None)) == "done"
    assert len(time.pauses) == cluster.forgotten == 8
    assert all(0.05 * 2**number <= pause_s <= 0.1 * 2**number for number, pause_s in enumerate(time.pauses[:5]))
    assert max(time.pauses) <= 2.0


def test_when_time_is_over_the_error_says_who_how_long_and_what_to_do() -> None:
    time = Time()
    with pytest.raises(BrokerAwayError) as raised:
        patience(Cluster(), time).call(raising(REFUSED))
    assert 60.0 <= time.now_s < 60.1
    said = str(raised.value)
    assert said.startswith(
        f"127.0.0.1:1 was away for 60.0 s and {len(time.pauses) + 1} tries, and brokerAwayTimeoutMs is "
    )
    assert "60000: start it or check its address, or raise the option; at last: cannot connect to 127.0.0.1:1" in said


def test_who_is_away_is_told_at_once_and_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """A NameServer whose address is mistyped must not be found out after a minute."""
    time = Time()
    unknown = NoNameServerError("none of the NameServers nowhere:9876 answered: Name or service not known")
    told: list[str] = []

    def do() -> str:
        told.append(caplog.text)
        return raising(unknown if len(told) <= 2 else None)()

    assert patience(Cluster(), time).call(do) == "done"
    assert told[0] == ""
    assert "every NameServer is away (none of the NameServers nowhere:9876 answered" in told[1]
    assert "trying again for up to 60 s (brokerAwayTimeoutMs)" in told[1]
    assert told[2] == told[1]  # once
    assert "back after" in caplog.text


def test_time_begins_anew_with_each_answer() -> None:
    time = Time()
    patient = patience(Cluster(), time, limit_s=1.0)
    for _ in range(5):
        assert patient.call(raising(*[REFUSED] * 3, None)) == "done"
    assert time.now_s > 1.0


@pytest.mark.parametrize(
    "error",
    [
        answered(ResponseCode.NO_PERMISSION),
        answered(ResponseCode.SYSTEM_ERROR),
        NoRouteError("Orders", namesrv="none:1", remedy="create it"),
        DataLossError("gone"),
    ],
)
def test_what_is_an_answer_is_not_asked_again(error: ContrailError) -> None:
    time = Time()
    with pytest.raises(type(error)):
        patience(Cluster("broker-a"), time).call(raising(error, None))
    assert time.pauses == []


def test_a_topic_is_waited_for_while_no_broker_is_registered_at_all() -> None:
    """So a NameServer looks that was just started."""
    no_route = NoRouteError("Orders", namesrv="none:1", remedy="create it")
    assert patience(Cluster(), Time()).call(raising(no_route, None)) == "done"
    with pytest.raises(BrokerAwayError, match="every broker was away"):
        patience(Cluster(), Time()).call(raising(no_route))


class Returning(QueueReader):
    """A client during whose pauses things happen."""

    events: Iterator[Callable[[], None]] = iter(())

    def forget_routes(self) -> None:
        super().forget_routes()
        for event in itertools.islice(self.events, 1):
            event()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(store=tmp_path) as running:
        with Producer("filling", namesrv=running.namesrv) as producer:
            for number in range(50):
                producer.send(Message("Orders", b"%d" % number))
        yield running


@pytest.fixture
def client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Returning]:
    with Returning(namesrv=cluster.namesrv, timeout_s=20.0) as reader:
        monkeypatch.setattr(rocketmq, "reader_for", lambda _: reader)
        yield reader


def settings(cluster: LocalCluster, **options: str) -> Any:
    return settings_of(nameServer=cluster.namesrv, groupId="stream", startingOffsets="earliest", **options)


def bodies(reader: Any, partitions: list[Any]) -> list[bytes]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return sorted(body for batch in batches for body in batch.column("body").to_pylist())


ALL_50 = sorted(b"%d" % number for number in range(50))


def test_a_batch_waits_for_its_broker_at_planning_and_between_two_pulls(
    cluster: LocalCluster, client: Returning
) -> None:
    client.events = iter([cluster.restart_broker] * 2)
    reader = RocketMQReader(settings(cluster, pullBatchSize="3", batchBytes="1024"))
    cluster.kill_broker()
    parts = reader.partitions()
    read = []
    for part in parts:
        batches = reader.read(part)
        read.append(next(batches))
        if part is parts[0]:
            cluster.kill_broker()
        read += batches
    assert sorted(body for batch in read for body in batch.column("body").to_pylist()) == ALL_50
    assert list(client.events) == []  # the broker was away both times


def test_a_stream_waits_for_its_broker_and_for_its_name_server(cluster: LocalCluster, client: Returning) -> None:
    reader = RocketMQStreamReader(settings(cluster))
    start = reader.initialOffset()
    cluster.kill_broker()
    client.events = iter([cluster.restart_broker])
    end = reader.latestOffset(start, ReadAllAvailable())
    cluster.stop_name_server()
    client.forget_routes()
    client.events = iter([cluster.restart_name_server, cluster.restart_broker])  # which registers again
    assert bodies(reader, reader.partitions(start, end)) == ALL_50
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert list(client.events) == []


def test_a_broker_that_stays_away_is_an_error_and_no_data_loss(cluster: LocalCluster, client: Returning) -> None:
    reader = RocketMQStreamReader(settings(cluster, brokerAwayTimeoutMs="150"))
    start = reader.initialOffset()
    cluster.stop_broker()  # and says goodbye: the NameServer has no route any more
    with pytest.raises(BrokerAwayError, match="broker-0 was away for 0.* s .*brokerAwayTimeoutMs is 150"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_run_that_ends_waits_for_its_broker_and_reads_what_that_has(cluster: LocalCluster, client: Returning) -> None:
    """Spark asks for the ends of an AvailableNow run before it knows the start: nobody misses the queues there."""
    start = RocketMQStreamReader(settings(cluster)).initialOffset()
    cluster.stop_broker()  # and says goodbye: the NameServer has no route any more
    client.forget_routes()
    client.events = iter([cluster.restart_broker])
    reader = RocketMQStreamReader(settings(cluster))
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert bodies(reader, reader.partitions(start, end)) == ALL_50
    with Producer("more", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Orders", b"late"))
    assert reader.latestOffset(end, ReadAllAvailable()) == end  # a run has an end


def named_settings(cluster: LocalCluster, **options: str) -> Any:
    return parse_settings(Options({"nameServer": cluster.namesrv, **options}, known=KNOWN_OPTIONS), is_stream=False)


@pytest.mark.parametrize(
    "named",
    [
        {"assign": '{"Orders": {"broker-1": [0]}}'},
        {"subscribe": "Orders", "startingOffsets": '{"Orders": {"broker-1": {"0": 0}}}'},
        {"subscribe": "Orders", "endingOffsets": '{"Orders": {"broker-1": {"0": 1}}}'},
        {"subscribe": "Orders", "startingOffsetsByTimestamp": '{"Orders": {"broker-1": {"0": 1}}}'},
    ],
    ids=lambda named: next(name for name in reversed(named)),
)
def test_a_broker_that_options_name_is_waited_for(
    named: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two brokers one is away: its queues are not unknown, they are not there yet."""
    with (
        LocalCluster(brokers=2, store=tmp_path) as cluster,
        Returning(namesrv=cluster.namesrv, timeout_s=20.0) as client,
    ):
        monkeypatch.setattr(rocketmq, "reader_for", lambda _: client)
        with Producer("filling", namesrv=cluster.namesrv) as producer:
            for number in range(50):
                producer.send(Message("Orders", b"%d" % number))
        cluster.stop_broker(1)
        client.events = iter([lambda: cluster.restart_broker(1)])
        reader = RocketMQReader(named_settings(cluster, **named))
        queues = {partition.part.queue for partition in reader.partitions()}
        assert "broker-1" in {queue.broker_name for queue in queues}
        cluster.stop_broker(1)
        client.forget_routes()
        given = named_settings(cluster, brokerAwayTimeoutMs="100", **named)
        with pytest.raises(BrokerAwayError, match=r"broker broker-1 was away for 0.* s .*brokerAwayTimeoutMs is 100"):
            RocketMQReader(given).partitions()


def test_jobs_wait_for_a_broker_as_long_as_they_are_told(cluster: LocalCluster, tmp_path: Path) -> None:
    with Producer("filling", namesrv=cluster.namesrv) as producer:
        producer.send(Message("%DLQ%billing", b"x"))
    cluster.stop_broker()
    options = {"brokerAwayTimeoutMs": "100"}
    with pytest.raises(BrokerAwayError, match="every broker was away for 0.* s .*brokerAwayTimeoutMs is 100"):
        redrive("billing", cluster.namesrv, options=options)
    with pytest.raises(BrokerAwayError, match="every broker was away for 0.* s .*brokerAwayTimeoutMs is 100"):
        topics_to_archive(cluster.namesrv, "Orders", str(tmp_path / "archive"), options=options)
    words = ["pipeline", "redrive", "--group", "billing", "-n", cluster.namesrv, "--engine", "local"]
    told = CliRunner().invoke(app, [*words, "--broker-away-timeout-ms", "100"])
    assert (told.exit_code, "every broker was away for 0." in told.output) == (2, True), told.output
    with pytest.raises(OptionError, match="brokerAwayTimeoutMs is 'soon'"):
        redrive("billing", cluster.namesrv, options={"brokerAwayTimeoutMs": "soon"})


def test_a_write_waits_for_its_broker(cluster: LocalCluster) -> None:
    """The time of tries is over long before: it counts only while the broker answers."""
    events = iter([lambda: None, lambda: None, cluster.restart_broker])
    with QueueReader(namesrv=cluster.namesrv) as client:
        sender = Sender(client, SinkSettings(cluster.namesrv, topic="Copy", tries=1), sleep=lambda _: next(events)())
        first = sender.choose("Copy", None, None)
        cluster.kill_broker()
        for number in range(5):
            sender.add_to(first, Message("Copy", b"%d" % number))
        sender.flush()
        sender.close()
        assert client.max_offset(first) == 5
        assert list(events) == []


@pytest.mark.parametrize("is_escaping", [False, True])
def test_a_write_waits_for_a_master_that_is_stood_in_for(tmp_path: Path, is_escaping: bool) -> None:
    """A slave that acts shows the queues and takes nothing; the tries count only where somebody could take it."""
    config = {"enableSlaveActingMaster": "true", "brokerHeartbeatInterval": "100", "syncBrokerMemberGroupPeriod": "50"}
    config |= {"enableRemoteEscape": str(is_escaping).lower()}
    with (
        LocalCluster(slaves=1, store=tmp_path, config=config) as pair,
        Admin(namesrv=pair.namesrv) as admin,
        QueueReader(namesrv=pair.namesrv) as client,
    ):
        admin.create_topic("Copy", queues=1)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 6:
                pair.restart_broker(0)

        sender = Sender(client, SinkSettings(pair.namesrv, topic="Copy", tries=1), sleep=pause)
        first = sender.choose("Copy", None, None)
        sender.add_to(first, Message("Copy", b"0"))
        sender.flush()
        pair.wait_until_replicated()
        pair.kill_broker(0)
        slave = pair.broker_addresses[pair.slave_index()]
        until(lambda: admin.broker_stats(slave)["isActingMaster"] == "true", "the slave stands in")
        for number in range(1, 5):
            sender.add_to(first, Message("Copy", b"%d" % number))
        sender.flush()
        later = Sender(client, SinkSettings(pair.namesrv, topic="Copy", tries=1), sleep=pause)
        later.add_to(later.choose("Copy", None, None), Message("Copy", b"5"))
        later.flush()
        assert len(pauses) >= 6, "nobody waited"
        reader = RocketMQReader(settings_of(nameServer=pair.namesrv, subscribe="Copy"))
        assert bodies(reader, reader.partitions()) == [b"%d" % number for number in range(6)]
        sender.close()
        later.close()


def test_a_write_to_a_broker_that_stays_away_fails_and_a_refusal_at_once(cluster: LocalCluster) -> None:
    pauses: list[float] = []
    with QueueReader(namesrv=cluster.namesrv) as client:
        given = SinkSettings(cluster.namesrv, topic="Orders", away_timeout_s=5.0)
        sender = Sender(client, given, sleep=pauses.append)
        queue = sender.choose("Orders", None, None)
        sender.add_to(queue, Message("Orders", b"x" * 5_000_000))  # more than a broker takes
        with pytest.raises(SendRefusedError, match="refused rows, for good"):
            sender.flush()
        assert pauses == []
        cluster.kill_broker()
        sender.add_to(queue, Message("Orders", b"x"))
        with pytest.raises(SendFailedError, match=r"Orders/broker-0/\d did not acknowledge: .* was away for 5.0 s"):
            sender.flush()
        assert sum(pauses) == pytest.approx(5.0)


@pytest.mark.spark
def test_queries_go_on_while_the_broker_is_killed_and_restarted(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    source = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "Orders")
    rows = source.option("startingOffsets", "earliest").load().select("body")
    sink = rows.writeStream.format("rocketmq").option("nameServer", cluster.namesrv).option("topic", "Copy")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        for number in (50, 51):  # the query asks for new offsets all the time
            cluster.kill_broker()
            cluster.restart_broker()
            with Producer("more", namesrv=cluster.namesrv) as producer:
                producer.send(Message("Orders", b"%d" % number))
            query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    copied = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "Copy").load()
    assert {bytes(row["body"]) for row in copied.select("body").collect()} == {*ALL_50, b"50", b"51"}
