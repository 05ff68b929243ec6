"""The report against what Java says, its page, the command line, and messages sent again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from contrailmq import Message, Producer
from contrailmq.cli import app
from contrailmq.cli.pipeline_running import spark_cause
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.message import dlq_topic
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.replay import Pace, Share, redrive, replay, stored_rows
from contrailmq.spark.jobs.report import percentile, report
from contrailmq.spark.jobs.report_page import page
from contrailmq.spark.runtime.engine import Engine, LocalEngine, SparkEngine
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sinks.sending import Sender, SinkSettings, make_message
from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.testing import LocalCluster
from spark.conftest import expected, unpack

ONE = LocalEngine(workers=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def test_the_report_counts_what_java_counts(golden_store: Callable[[str], str]) -> None:
    small = LogSettings(check_crc=False, range_bytes=40_000)
    found = report(golden_store("clean"), ONE, settings=small)
    java = expected("clean")["messages"]
    assert found.messages == len(java)
    assert {(t, q): n for t, q, n, _, _ in found.queues} == Counter((m["topic"], m["queueId"]) for m in java)
    assert found.log_bytes == sum(m["storeSize"] for m in java)
    tags = Counter((m["topic"], m["properties"]["TAGS"]) for m in java if m["properties"].get("TAGS"))
    assert {(t, tag): n for t, tag, n in found.tags} == tags
    assert sum(n for _, _, n, _ in found.minutes) == len(java)
    assert {group: n for kind, group, n in found.retries if kind == "dlq"} == {"Golden_cg_retry": 2}
    assert {delay.level: delay.waiting for delay in found.delays} == {17: 1, 18: 1, 0: 26}
    assert found == report(golden_store("clean"), ONE)


def test_traffic_over_time_is_told_by_queue_tag_and_host(golden_store: Callable[[str], str]) -> None:
    found = report(golden_store("clean"), ONE).to_json()
    java = [m for m in expected("clean")["messages"] if m["topic"] == "GoldenOrder"]
    by_queue = Counter((str(m["queueId"]), m["storeTimestamp"] // 60_000 * 60_000) for m in java)
    rows = [row for row in found["queue_minutes"] if row["topic"] == "GoldenOrder"]
    assert {(row["queue"], row["time_ms"]): row["messages"] for row in rows} == by_queue
    by_tag = Counter(m["properties"].get("TAGS") for m in java)
    tags: Counter[str | None] = Counter()
    for row in found["tag_minutes"]:
        tags[row["tag"]] += row["messages"] if row["topic"] == "GoldenOrder" else 0
    assert +tags == Counter({tag: count for tag, count in by_tag.items() if tag})
    assert sum(row["messages"] for row in found["host_minutes"]) == found["messages"]
    text = page(report(golden_store("clean"), ONE))
    for title in ("Messages over time", "Queues over time", "Tags over time", "Producers over time"):
        assert f"<h2>{title}</h2>" in text


@pytest.mark.parametrize(
    ("names", "step_ms"),
    [(["clean"], 1000), (["clean", "kill9"], 1000), (["clean", "direct"], 60_000), (["direct", "clean"], 60_000)],
)
def test_traffic_is_told_by_the_second_within_ten_minutes_and_by_the_minute_beyond(
    golden_store: Callable[[str], str], names: list[str], step_ms: int
) -> None:
    """The second store was written 8 minutes after the first, the third 31."""
    settings = LogSettings(check_crc=False, range_bytes=40_000)
    found = report(",".join(map(golden_store, names)), ONE, settings=settings)
    java = [message for name in names for message in expected(name)["messages"]]
    assert found.step_ms == step_ms
    for rows, cut_ms in ((found.traffic, step_ms), (found.minutes, 60_000)):
        times = [(m["topic"], m["storeTimestamp"] // cut_ms * cut_ms, m["storeSize"]) for m in java]
        sizes: Counter[tuple[str, int]] = Counter()
        for topic, time_ms, size in times:
            sizes[topic, time_ms] += size
        numbers = Counter((topic, time_ms) for topic, time_ms, _ in times)
        assert rows == sorted((*key, number, sizes[key]) for key, number in numbers.items())
    by_queue = Counter(
        (m["topic"], str(m["queueId"]), m["storeTimestamp"] // step_ms * step_ms, golden_store(name))
        for name in names
        for m in expected(name)["messages"]
    )
    assert found.over_time["queue"] == sorted((*key[:3], number, key[3]) for key, number in by_queue.items())


@pytest.mark.parametrize(
    ("last", "step_ms", "columns", "marks"),
    [
        ("2026-01-01 00:00:00", 1000, 12, ["2026-01-01 00:00:00", "2026-01-01 00:00:03", "2026-01-01 00:00:12"]),
        ("2026-01-01 00:00:58", 1000, 60, ["2026-01-01 00:00:00", "2026-01-01 00:00:15", "2026-01-01 00:01:00"]),
        ("2026-01-01 00:00:59", 1000, 32, ["2026-01-01 00:00:00", "2026-01-01 00:00:16", "2026-01-01 00:01:04"]),
        ("2026-01-02 23:59:00", 60_000, 48, ["2026-01-01 00:00", "2026-01-01 12:00", "2026-01-03 00:00"]),
        ("2026-07-19 23:59:00", 60_000, 52, ["2025-12-30", "2026-02-20", "2026-07-26"]),
    ],
)
def test_columns_stand_for_as_little_time_as_sixty_of_them_leave_room_for(
    golden_store: Callable[[str], str], last: str, step_ms: int, columns: int, marks: list[str]
) -> None:
    """Traffic from the beginning of 2026 on; the axis is labelled at its first, second and last mark."""
    first_ms, last_ms = (
        int(datetime.fromisoformat(f"{time}+00:00").timestamp()) * 1000 for time in ("2026-01-01 00:00:00", last)
    )
    rows = [("Topic", time_ms, 1, 1) for time_ms in {first_ms, last_ms}]
    shown = page(replace(report(golden_store("clean"), ONE), step_ms=step_ms, traffic=rows))
    plot = ElementTree.fromstring("<svg" + shown.split("<svg")[1].split("</svg>")[0] + "</svg>")
    labels = [text.text for text in plot.iter("text") if (text.text or "").startswith("202")]
    assert [labels[0], labels[1], labels[-1]] == marks
    wide = {float(column.attrib["width"]) + 1 for column in plot.iter("rect")}
    assert {round(940 / column) for column in wide} == {columns}


def test_percentiles_are_upper_bounds_within_a_sixteenth_octave(golden_store: Callable[[str], str]) -> None:
    """The true one is the least size that so many messages do not pass."""
    topics = {row.topic: row for row in report(golden_store("clean"), ONE).topics}
    sizes: dict[str, list[int]] = {}
    for message in expected("clean")["messages"]:
        sizes.setdefault(message["topic"], []).append(message["storedBodyLength"])
    assert len({size for topic in topics for size in sizes[topic]}) > 20
    for topic, found in topics.items():
        of_topic = sorted(sizes[topic])
        for shown, hundredths in ((found.size_p50, 50), (found.size_p99, 99)):
            true = of_topic[-(-len(of_topic) * hundredths // 100) - 1]
            assert true <= shown <= true * 2 ** (1 / 16), (topic, hundredths)
    assert percentile({}, 0.5) == 0


def test_lag_is_the_distance_from_the_saved_offset_to_the_end_of_the_log(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    config = Path(store, "config", "consumerOffset.json")
    config.write_text('{"offsetTable":{"GoldenOrder@late":{0:2,1:12,2:12,3:12}}}')
    assert [tuple(lag) for lag in report(store, ONE).lags] == [("late", "GoldenOrder", 10)]


def test_lag_and_delays_of_two_brokers_add_up_and_do_not_mix(tmp_path: Path) -> None:
    """Both brokers have the queue GoldenOrder/0; each one's offset counts against its own log."""
    stores = [unpack(name, tmp_path / name) for name in ("clean", "kill9")]
    for store in stores:
        Path(store, "config", "consumerOffset.json").write_text('{"offsetTable":{"GoldenOrder@late":{0:2}}}')
    one_by_one = [report(store, ONE) for store in stores]
    both = report(",".join(stores), ONE)
    assert [tuple(lag) for lag in both.lags] == [
        ("late", "GoldenOrder", sum(lag.lag for found in one_by_one for lag in found.lags))
    ]
    levels = [delay.level for delay in both.delays]
    assert len(levels) == len(set(levels))
    assert sum(d.waiting for d in both.delays) == sum(d.waiting for found in one_by_one for d in found.delays)


def test_an_empty_store_is_reported_as_one_and_cannot_be_rebuilt(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert "The log holds no messages." in page(report(str(tmp_path), ONE))
    for words, code, text in (
        (["rebuild", "--store", str(tmp_path)], 2, "is empty"),
        (["verify", "--store", str(tmp_path)], 0, "findings: nothing"),
        (["archive", "--store", str(tmp_path), "--to", "/proc/no/archive"], 2, "error: /proc/no"),
    ):
        done = CliRunner().invoke(app, ["pipeline", *words, "--engine", "local"])
        assert (done.exit_code, text in done.output) == (code, True), done.output


def test_spark_errors_are_told_by_their_cause() -> None:
    raised = "contrailmq.spark.decoding.store_files.StoreFilesError: /x is gone"
    deep = f"[PYTHON_ERROR] it failed\nTraceback\n  File x\n{raised}\n\nat org"
    assert spark_cause(deep) == "/x is gone"
    assert spark_cause("[PARSE_SYNTAX_ERROR] Syntax error at 'selct'.\n\n== SQL ==\nselct") == (
        "[PARSE_SYNTAX_ERROR] Syntax error at 'selct'."
    )
    assert spark_cause("[UNRESOLVED_COLUMN] `nope` is not a column; line 1 pos 7;\n'Project ['nope]") == (
        "[UNRESOLVED_COLUMN] `nope` is not a column; line 1 pos 7"
    )


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(golden_store: Callable[[str], str]) -> None:
    text = page(report(golden_store("clean"), ONE))
    assert "<script" not in text
    assert "http" not in text
    plots = [part.split("</svg>")[0] for part in text.split("<svg")[1:]]
    assert len(plots) >= 5
    for plot in plots:
        ElementTree.fromstring(f"<svg{plot}</svg>")  # well-formed


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def test_the_commands_work_without_spark(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    archived = json.loads(
        run("archive", "--store", store, "--to", str(tmp_path / "a"), "--engine", "local", "--json").stdout
    )
    assert archived["rows"] == 621
    page_path = tmp_path / "out.html"
    shown = run("report", "--store", store, "--html", str(page_path), "--engine", "local")
    assert shown.exit_code == 0
    assert "GoldenBulk" in shown.stdout
    assert page_path.read_text().startswith("<!doctype html>")
    assert run("verify", "--store", store, "--engine", "local").exit_code == 0
    bad = run("verify", "--store", golden_store("torn-mid"), "--engine", "local", "--json")
    assert bad.exit_code == 1
    assert "corrupt" in {finding["kind"] for finding in json.loads(bad.stdout)["findings"]}
    nothing = run("verify", "--store", str(tmp_path), "--engine", "local")
    assert nothing.exit_code == 2
    assert "has no commitlog directory" in nothing.stderr
    dry = run(
        "replay", "--from", str(tmp_path / "a"), "--topics", "GoldenOrder", "--dry-run", "--engine", "local", "--json"
    )
    assert json.loads(dry.stdout) == {"found": 48, "sent": 0, "skipped": 0}


def read_topic(cluster: LocalCluster, topic: str) -> list[dict[str, Any]]:
    settings = TopicSettings(cluster.namesrv, with_system_topics=True)
    rows = []
    with QueueReader(namesrv=cluster.namesrv) as reader:
        for queue in reader.queues(topic):
            part = QueueRange(queue, 0, reader.max_offset(queue))
            rows += [row for batch in read_range(part, settings, reader) for row in batch.to_pylist()]
    return rows


@pytest.mark.parametrize("kind", ["store", "archive"])
def test_replayed_messages_keep_order_and_origin(
    cluster: LocalCluster, tmp_path: Path, golden_store: Callable[[str], str], kind: str
) -> None:
    source = golden_store("clean")
    if kind == "archive":
        archive(source, str(tmp_path / "archive"), ONE)
        source = str(tmp_path / "archive")
    only = Selection(topics=frozenset(["GoldenOrder"]))
    topic = f"Again_{kind}"
    assert replay(source, topic, cluster.namesrv, selection=only).sent == 48
    rows = read_topic(cluster, topic)
    origins = {}
    for row in rows:
        properties = dict(row["properties"])
        assert properties["REPLAY_TOPIC"] == "GoldenOrder"
        origins.setdefault(row["queueId"], []).append(int(properties["REPLAY_OFFSET"]))
    assert origins == {queue: list(range(12)) for queue in range(4)}
    java = [m for m in expected("clean")["messages"] if m["topic"] == "GoldenOrder"]
    assert sorted(
        (row["queueId"], int(dict(row["properties"])["REPLAY_OFFSET"]), sha256(row["body"]).hexdigest()) for row in rows
    ) == sorted((m["queueId"], m["queueOffset"], m["bodySha256"]) for m in java)
    assert len({dict(row["properties"])[DEDUP_PROPERTY] for row in rows}) == 48


def test_dead_letters_go_back_once(cluster: LocalCluster) -> None:
    """Letters are put into the dead-letter topic as a broker would put them; a second run finds them done."""
    with Producer("maker", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Fixed", b"first"))  # makes the topic
    settings = SinkSettings(cluster.namesrv)
    with QueueReader(namesrv=cluster.namesrv) as client:
        sender = Sender(client, settings)
        for number in range(3):
            letter = make_message(
                {"topic": dlq_topic("g"), "body": f"b{number}", "tags": "t", "keys": f"k{number}"}, settings, "x"
            )
            letter.properties["RETRY_TOPIC"] = "Fixed"
            sender.add(letter, {})
        sender.flush()
    assert tuple(vars_of(redrive("g", cluster.namesrv, dry_run=True))) == (3, 0, 0)
    only = redrive("g", cluster.namesrv, matches=lambda row: row["keys"] == "k1")
    assert vars_of(only) == (1, 1, 0)
    assert vars_of(redrive("g", cluster.namesrv)) == (3, 2, 1)
    assert vars_of(redrive("g", cluster.namesrv)) == (3, 0, 3)
    rows = [row for row in read_topic(cluster, "Fixed") if row["body"] != b"first"]
    assert sorted(row["body"] for row in rows) == [b"b0", b"b1", b"b2"]
    assert all(dict(row["properties"])["REDRIVEN_FROM"] == "%DLQ%g" for row in rows)


def vars_of(result: Any) -> tuple[int, int, int]:
    return result.found, result.sent, result.skipped


class Timed:
    """A clock that stands still but for pauses and `pass_s`, and what was sent by which time."""

    def __init__(self, per_second: float) -> None:
        self.now_s, self.passed, self.sent = 0.0, 0, 0
        self.arrivals: list[tuple[float, int]] = []  # time, how many
        self._pace = Pace(per_second, self._send, clock=lambda: self.now_s, sleep=self._pause)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds

    def let_through(self) -> None:
        self._pace.wait()
        self.passed += 1

    def _send(self) -> None:
        self.arrivals.append((self.now_s, self.passed - self.sent))
        self.sent = self.passed

    def _pause(self, seconds: float) -> None:
        assert self.sent == self.passed  # nothing waits meanwhile
        self.now_s += seconds


@pytest.mark.parametrize("per_second", [0.5, 7, 100, 1000, 123_456])
def test_no_more_arrives_than_the_pace_allows(per_second: float) -> None:
    timed = Timed(per_second)
    for _ in range(250):
        timed.let_through()
        assert timed.passed <= timed.now_s * per_second + 1e-6
    assert 250 / per_second <= timed.now_s + 1e-9 <= 250 / per_second + 0.06
    assert max(count for _, count in timed.arrivals) <= 0.05 * per_second + 1


def test_what_a_slow_source_gives_arrives_without_a_pause_too() -> None:
    """One message every 10 ms where 200 a second are allowed."""
    timed = Timed(200)
    for _ in range(300):
        timed.pass_s(0.01)
        timed.let_through()
        assert timed.passed - timed.sent <= 6
    assert timed.now_s == pytest.approx(3.0)


def test_after_a_standstill_a_second_is_made_up_for_and_no_more() -> None:
    timed = Timed(100)
    timed.pass_s(60.0)
    for _ in range(200):
        timed.let_through()
    assert timed.now_s == pytest.approx(61.0, abs=0.06)


def test_without_a_rate_nothing_is_sent_before_its_batch_is_full() -> None:
    timed = Timed(0)
    for _ in range(5000):
        timed.pass_s(1.0)
        timed.let_through()
    assert timed.arrivals == []


def order_of(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[tuple[int, bytes, str]]]:
    """By the queue they came from: offsets, bodies and keys in the order in which the target holds them."""
    found: dict[tuple[str, str], list[tuple[int, bytes, str]]] = {}
    for row in rows:
        of = dict(row["properties"])
        origin = of["REPLAY_TOPIC"], of["REPLAY_QUEUE_ID"]
        found.setdefault(origin, []).append((int(of["REPLAY_OFFSET"]), row["body"], of[DEDUP_PROPERTY]))
    return found


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["store", "archive"])
def test_replay_in_spark_tasks_equals_replay_in_this_process(
    spark: Any, cluster: LocalCluster, tmp_path: Path, golden_store: Callable[[str], str], kind: str
) -> None:
    """Several topics to one, dealt to two tasks: each queue's messages arrive in their order, whoever sent them."""
    source = golden_store("clean")
    if kind == "archive":
        archive(source, str(tmp_path / "archive"), ONE)
        source = str(tmp_path / "archive")
    some = Selection(topics=frozenset(["GoldenOrder", "GoldenBulk"]))
    engines: dict[str, Engine] = {"local": ONE, "spark": SparkEngine(spark)}
    assert engines["spark"].tasks_at_once == 2
    results = {
        name: replay(source, f"Both_{kind}_{name}", cluster.namesrv, engine, selection=some)
        for name, engine in engines.items()
    }
    assert results["local"] == results["spark"]
    local, through_spark = (order_of(read_topic(cluster, f"Both_{kind}_{name}")) for name in engines)
    assert local == through_spark
    assert sum(len(rows) for rows in local.values()) == results["local"].sent > 48
    for rows in local.values():
        assert [offset for offset, _, _ in rows] == sorted(offset for offset, _, _ in rows)


def test_shares_of_queues_are_whole_and_leave_nothing_out(golden_store: Callable[[str], str]) -> None:
    def places(share: Share) -> list[tuple[str, int, int]]:
        rows = stored_rows(golden_store("clean"), Selection(), share)
        return [(row["topic"], row["queueId"], row["queueOffset"]) for row in rows]

    whole = places(Share())
    for of in (2, 3):
        shares = [places(Share(number, of)) for number in range(of)]
        assert all(shares)
        assert sorted(row for share in shares for row in share) == sorted(whole)
        queues = [{row[:2] for row in share} for share in shares]
        assert sum(len(found) for found in queues) == len(set.union(*queues))


@pytest.mark.spark
def test_redrive_in_spark_tasks_sends_each_letter_once(spark: Any, cluster: LocalCluster) -> None:
    """Letters in several queues, a filter without a name, and a second run that finds everything done."""
    with Producer("maker", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Mended", b"first"))
    settings = SinkSettings(cluster.namesrv, batch_count=1)
    with QueueReader(namesrv=cluster.namesrv) as client:
        sender = Sender(client, settings)
        for number in range(8):
            letter = make_message(
                {"topic": dlq_topic("s"), "body": f"b{number}", "keys": f"k{number}", "properties": {"n": str(number)}},
                settings,
                f"s{number}",
            )
            letter.properties["RETRY_TOPIC"] = "Mended"
            sender.add(letter, {})
        sender.flush()
    engine = SparkEngine(spark)
    unwanted = "k7"
    assert vars_of(redrive("s", cluster.namesrv, engine, properties={"n": "3"})) == (1, 1, 0)
    assert vars_of(redrive("s", cluster.namesrv, engine, matches=lambda row: row["keys"] != unwanted)) == (7, 6, 1)
    assert vars_of(redrive("s", cluster.namesrv)) == (8, 1, 7)
    rows = [row for row in read_topic(cluster, "Mended") if row["body"] != b"first"]
    assert sorted(row["body"] for row in rows) == [b"b%d" % number for number in range(8)]
