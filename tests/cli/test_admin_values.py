"""What `contrailmq admin` takes and gives as values: times in several forms, JSON of numbers and nulls, short lists."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from admin_command import run, run_json

from contrailmq import Admin, Message, MessageQueue, Producer
from contrailmq.cli.admin.figures import figure, setting
from contrailmq.client.admin.times import parse_time
from contrailmq.testing import LocalCluster

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        with Admin(namesrv=made.namesrv) as admin, Producer("shop", namesrv=made.namesrv) as producer:
            admin.create_topic("Orders", queues=2)
            (broker,) = admin.masters()
            for number in range(5):
                message = Message("Orders", b"%d" % number, keys=["k"])
                producer.send(message, queue=MessageQueue("Orders", broker, 0))
            admin.create_group("slow")
            admin.create_group("idle")
            admin.set_offset("slow", MessageQueue("Orders", broker, 0), 2)
        yield made


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("now", NOW_MS),
        ("-1h", NOW_MS - HOUR_MS),
        ("-30m", NOW_MS - HOUR_MS // 2),
        ("-2d", NOW_MS - 48 * HOUR_MS),
        ("-45s", NOW_MS - 45_000),
        ("+1w", NOW_MS + 168 * HOUR_MS),
        ("-999999999d", 0),
        ("2026-01-31T08:00:00Z", int(datetime(2026, 1, 31, 8, tzinfo=UTC).timestamp()) * 1000),
        ("2026-01-31T08:00:00.250+02:00", int(datetime(2026, 1, 31, 6, tzinfo=UTC).timestamp()) * 1000 + 250),
        ("2026-01-31T08:00", int(datetime(2026, 1, 31, 8).astimezone().timestamp()) * 1000),
        ("2026-01-31", int(datetime(2026, 1, 31).astimezone().timestamp()) * 1000),
    ],
)
def test_a_time_is_iso_8601_relative_or_milliseconds(text: str, time_ms: int) -> None:
    assert parse_time(text, now_ms=NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "-1y", "1h", "2026-13-01", "9" * 30, "--1h", "²"])
def test_what_is_no_time_is_an_error_that_names_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: give 2026-01-31T08:00"):
        parse_time(text)


def test_times_are_taken_in_every_form_where_one_is_asked_for(cluster: LocalCluster) -> None:
    soon = datetime.fromtimestamp(datetime.now().timestamp() + 60, tz=UTC).isoformat()
    assert len(run_json(cluster, "message", "by-time", "Orders", "--since", "-1h", "--until", soon)) == 5
    assert run_json(cluster, "message", "by-time", "Orders", "--until", "-1h") == []
    assert len(run_json(cluster, "message", "by-time", "Orders", "--begin-ms", "0", "--end-ms", str(2**60))) == 5
    assert len(run_json(cluster, "message", "by-key", "Orders", "k", "--since", "-1h")) == 5
    assert run_json(cluster, "message", "by-key", "Orders", "k", "--until", "-2d") == []
    for to, offset in (("-1h", 0), ("+1h", 5), (soon, 5), ("1", 0)):
        rows = run_json(cluster, "offset", "reset", "slow", "Orders", "--to", to, "--yes")
        assert {row["queue"]: row["offset"] for row in rows} == {0: offset, 1: 0}
    assert "is not a time" in run(cluster, "message", "by-time", "Orders", "--since", "noon", code=2)


def test_times_in_json_are_numbers_or_null(cluster: LocalCluster) -> None:
    written, empty = run_json(cluster, "topic", "status", "Orders")
    assert written["last_written_ms"] > 1_700_000_000_000
    assert (empty["queue"], empty["last_written_ms"]) == (1, None)
    run(cluster, "offset", "reset", "slow", "Orders", "--to", "earliest", "--yes")
    rows = run_json(cluster, "group", "progress", "slow", "--topic", "Orders")
    assert [row["last_consumed_ms"] for row in rows] == [None, None]
    assert "last_written" in run(cluster, "topic", "status", "Orders")


def test_system_topics_and_groups_are_shown_only_with_all(cluster: LocalCluster) -> None:
    assert run_json(cluster, "topic", "list") == [{"topic": "Orders"}]
    everything = {row["topic"] for row in run_json(cluster, "topic", "list", "--all")}
    with Admin(namesrv=cluster.namesrv) as admin:
        (broker,) = admin.masters()
    assert {"Orders", "SCHEDULE_TOPIC_XXXX", "TBW102", "DefaultCluster", broker} <= everything
    assert {row["group"] for row in run_json(cluster, "group", "list")} == {"idle", "slow"}
    assert "TOOLS_CONSUMER" in {row["group"] for row in run_json(cluster, "group", "list", "--all")}


def test_groups_are_listed_with_their_lag(cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        (broker,) = admin.masters()
        run(cluster, "offset", "reset", "slow", "Orders", "--to", "earliest", "--yes")
        admin.set_offset("slow", MessageQueue("Orders", broker, 0), 2)
    idle, slow = run_json(cluster, "group", "list")
    assert idle == {"group": "idle", "topics": 0, "lag": None}
    assert slow == {"group": "slow", "topics": 1, "lag": 3}


def test_a_brokers_figures_and_settings_are_numbers_in_json(cluster: LocalCluster) -> None:
    address = cluster.broker_addresses[0]
    status = run_json(cluster, "broker", "status", address)
    assert status["msgPutTotalTodayNow"] == 5
    assert status["runtime"] >= 0
    assert status["brokerActive"] is True
    assert len(status["putTps"]) == 3
    assert sum(status["putMessageDistributeTime"].values()) == 5
    assert status["putLatency99"] > 0
    assert status["commitLogDirCapacity"]["total_bytes"] > status["commitLogDirCapacity"]["free_bytes"]
    texts = {key for key, value in status.items() if isinstance(value, str)}
    assert texts == {"brokerVersionDesc"}
    config = run_json(cluster, "broker", "config", address)
    assert (config["fileReservedTime"], config["deleteWhen"], config["traceOn"]) == (72, "04", True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("17", 17),
        ("-1", -1),
        ("0.16", 0.16),
        ("true", True),
        ("0.0 1.5 2", [0.0, 1.5, 2]),
        ("[ 1 days, 2 hours, 3 minutes, 4 seconds ]", 93_784),
        ("Total : 1.0 KiB, Free : 512 B.", {"total_bytes": 1024, "free_bytes": 512}),
        ("2.5 MiB", 2_621_440),
        ("[<=0ms]:3 [0~10ms]:1 ", {"<=0ms": 3, "0~10ms": 1}),
        ("150,152", [150, 152]),
        ("[]", []),
        ('[{"topic":"Orders","queueId":2}]', [{"topic": "Orders", "queueId": 2}]),
        ('[{"topic":', '[{"topic":'),
        ("V5_3_3", "V5_3_3"),
    ],
)
def test_a_figure_is_read_as_what_it_says(text: str, value: object) -> None:
    assert figure(text) == value


@pytest.mark.parametrize("text", ["04", "", "1s 5s", "127.0.0.1:9876", "broker-a"])
def test_a_setting_that_is_a_text_stays_one(text: str) -> None:
    assert setting(text) == text
