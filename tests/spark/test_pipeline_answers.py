"""What `contrailmq pipeline` answers: rows of queries as they are, and options that choose what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contrailmq import Message
from contrailmq.cli.pipeline_output import answer_rows, print_found
from contrailmq.cli.pipeline_running import spark_cause
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.sync_admin import Admin
from contrailmq.message import dlq_topic
from contrailmq.spark.jobs import replay as replay_job
from contrailmq.spark.sinks.sending import Sender, SinkSettings, make_message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster
from spark import test_pipeline_command
from spark.conftest import expected, unpack
from spark.test_pipeline_command import run


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def answer(*arguments: str) -> Any:
    return test_pipeline_command.answer(*arguments, "--engine", "local")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select 1 a, 2 a, 3 b, 4 a", [{"a": 1, "a (2)": 2, "b": 3, "a (3)": 4}]),
        ("select double('NaN') x, -double('Infinity') y, 0.5D z", [{"x": "NaN", "y": "-Infinity", "z": 0.5}]),
        ("select map(cast('k' as binary), 1, X'ff', null) m", [{"m": {"k": 1, "ff": None}}]),
        (
            "select map(timestamp_millis(1700000000017), array(timestamp_millis(0), null)) m",
            [{"m": {"2023-11-14T22:13:20.017000+00:00": ["1970-01-01T00:00:00+00:00", None]}}],
        ),
        ("select timestamp_ntz'2023-11-14 22:13:20' local", [{"local": "2023-11-14T22:13:20"}]),
        ("select named_struct('a', X'6162', 'b', date'2023-11-14') s", [{"s": {"a": "ab", "b": "2023-11-14"}}]),
        ("select 1.50BD price", [{"price": "1.50"}]),
        ("select cast(null as timestamp) t, cast(null as map<int, int>) m", [{"t": None, "m": None}]),
    ],
)
def test_rows_are_shown_as_json_knows_them_and_none_hides_another(
    spark: Any, capsys: pytest.CaptureFixture[str], sql: str, rows: list[dict[str, Any]]
) -> None:
    frame = spark.sql(sql)
    shown = answer_rows(frame.collect(), frame.schema)
    assert shown == rows
    print_found(shown, True, title="")
    assert json.loads(capsys.readouterr().out) == rows


@pytest.mark.long  # for the start of its JVM
@pytest.mark.spark
def test_a_query_elsewhere_tells_times_in_utc_and_how_to_see_more(golden_store: Callable[[str], str]) -> None:
    """A process of its own, since it stops its session: on the other side of the world, with one row of many."""
    first = min(expected("clean")["messages"], key=lambda message: message["commitLogOffset"])
    stored = datetime.fromtimestamp(first["storeTimestamp"] / 1000, UTC)
    sql = "select storeTimestamp, hour(storeTimestamp) h, topic, topic from log order by physicalOffset"
    words = ["ask", "--store", golden_store("clean"), "--rows", "1", "--json", "--master", "local[1]", sql]
    done = subprocess.run(
        [sys.executable, "-m", "contrailmq", "pipeline", *words],
        env={**os.environ, "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        {
            "storeTimestamp": stored.isoformat(),
            "h": stored.hour,
            "topic": first["topic"],
            "topic (2)": first["topic"],
        }
    ]
    assert "there are more than 1 rows: see more of them with --rows" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["replay", "--from", "/x", "--dry-run", "--topics", ""], "--topics is '' and lacks a name"),
        (["replay", "--from", "/x", "--dry-run", "--topics", "A,,B"], "--topics is 'A,,B' and lacks a name"),
        (["archive", "--to", "/x", "--store", "/y", "--topics", " "], "--topics is ' ' and lacks a name"),
        (["ask", "select 1", "--archive", "/y", "--topics", " , "], "--topics is ' , ' and lacks a name"),
        (["redrive", "--group", "g", "-n", "y:1", "--tags", ""], "--tags is '' and lacks a name"),
        (["replay", "--from", "/x", "--dry-run", "--since", "1700000000"], "not seconds"),
        (["replay", "--from", "/x", "--dry-run", "--since", "20231116", "--until", "2023-11-15"], "not before --until"),
    ],
)
def test_choices_that_would_choose_something_else_are_refused(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    done = run(*words)
    assert (done.exit_code, text in done.stderr) == (2, True), done.stderr


def test_lists_may_have_spaces_and_times_any_form(golden_store: Callable[[str], str]) -> None:
    java = [m for m in expected("clean")["messages"] if m["topic"] in ("GoldenOrder", "GoldenAuto")]
    words = ["replay", "--from", golden_store("clean"), "--dry-run", "--topics", "GoldenOrder, GoldenAuto"]
    assert answer(*words)["found"] == len(java) == 54
    middle = sorted(m["storeTimestamp"] for m in java)[20]
    moment = datetime.fromtimestamp(middle / 1000, UTC)
    before = sum(m["storeTimestamp"] < middle for m in java)
    for time in (str(middle), moment.isoformat(), moment.replace(tzinfo=None).isoformat()):
        assert answer(*words, "--until", time)["found"] == before
        assert answer(*words, "--since", time)["found"] == len(java) - before
    assert answer(*words, "--until", f"{moment:%Y%m%d}")["found"] == 0
    assert answer(*words, "--since", f"{moment:%Y%m%d}")["found"] == len(java)


def test_redrive_takes_letters_with_one_of_the_tags_at_the_rate(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []

    class Pace(replay_job.Pace):
        def __init__(self, per_second: float, *given: Any, **named: Any) -> None:
            rates.append(per_second)
            super().__init__(per_second, *given, **named)

    settings = SinkSettings(cluster.namesrv)
    with QueueReader(namesrv=cluster.namesrv) as client, Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Back", queues=2)
        sender = Sender(client, settings)
        for number, tag in enumerate(("a", "b", "c", "a")):
            row = {"topic": dlq_topic("tagged"), "body": tag, "tags": tag}
            letter = make_message(row, settings, f"tagged-{number}")
            letter.properties["RETRY_TOPIC"] = "Back"
            sender.add(letter, {"queueId": 0})
        sender.flush()
    words = ["redrive", "--group", "tagged", "-n", cluster.namesrv]
    assert answer(*words, "--dry-run")["found"] == 4
    assert answer(*words, "--dry-run", "--tags", "a, b")["found"] == 3
    monkeypatch.setattr(replay_job, "Pace", Pace)
    assert answer(*words, "--tags", "b", "--rate", "1000") == {"found": 1, "sent": 1, "skipped": 0}
    assert sum(rates) == 1000


def test_a_redrive_of_a_group_without_dead_letters_says_so(cluster: LocalCluster) -> None:
    done = run("redrive", "--group", "nobody", "-n", cluster.namesrv, "--engine", "local")
    assert done.exit_code == 2
    assert f"group nobody has no dead letters: no broker of {cluster.namesrv} has %DLQ%nobody" in done.stderr


def test_an_archive_goes_on_to_where_recovery_will_cut_when_it_may_skip_damage(tmp_path: Path) -> None:
    store, target = unpack("torn-mid", tmp_path), str(tmp_path / "archive")
    words = ["archive", "--store", store, "--to", target]
    refused = run(*words, "--engine", "local")
    assert (refused.exit_code, "archive with --skip-corrupt" in refused.stderr) == (2, True), refused.stderr
    kept = [m for m in expected("torn-mid")["messages"] if m["topic"].startswith("Golden")]  # by Java's recovery
    assert answer(*words, "--skip-corrupt")["rows"] == len(kept)


def test_a_rebuild_keeps_what_it_replaced_when_it_is_asked_to(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    (unit,) = Path(store, "consumequeue", "GoldenOrder", "1").iterdir()
    old = unit.read_bytes()[:20]
    unit.write_bytes(b"\x7f" * 20 + unit.read_bytes()[20:])
    kept = answer("rebuild", "--store", store, "--keep-old")["old"]
    assert unit.read_bytes()[:20] == old
    (replaced,) = (path for folder in kept for path in Path(folder).glob("consumequeue/GoldenOrder/1/*"))
    assert replaced.read_bytes()[:20] == b"\x7f" * 20
    assert answer("rebuild", "--store", store)["old"] == []
    assert sorted(Path(store).glob("*before-rebuild*")) == sorted(map(Path, kept))


def test_the_page_of_a_report_is_written_beside_its_tables(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    html = tmp_path / "out.html"
    done = run("report", "--store", golden_store("clean"), "--engine", "local", "--html", str(html))
    assert (done.exit_code, f"page: {html}" in done.stdout.replace("\n", "")) == (0, True), done.output
    text = html.read_text(encoding="utf-8")
    assert all(f"<td>{topic}</td>" in text for topic in ("GoldenOrder", "GoldenBulk"))
    assert text.count("<svg") == text.count("</svg>") >= 5


def test_queues_of_several_stores_are_shown_with_their_store(tmp_path: Path) -> None:
    stores = [unpack("direct", tmp_path / name) for name in ("a", "b")]
    for given, columns in ((stores[0], 3), (",".join(stores), 4)):
        told = run("report", "--store", given, "--engine", "local").stdout
        heads = told.partition("queues\n")[2].splitlines()[1]
        assert len(heads.strip("┃").split("┃")) == columns
        assert ("store" in heads) == (columns == 4)


def test_what_messages_hold_is_shown_as_it_is(tmp_path: Path) -> None:
    sizes = StoreConfig(tmp_path, mapped_file_size_commit_log=65_536, max_hash_slot_num=10, max_index_num=40)
    with MessageStore(sizes) as store:
        store.put(Message("Marked", b"x", tags="[/t] :smile:"))
    told = run("report", "--store", str(tmp_path), "--engine", "local")
    assert told.exit_code == 0, told.output
    assert "[/t] :smile:" in told.output


def test_what_py4j_says_before_javas_own_words_is_left_out() -> None:
    text = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: java.lang.X: why\n\tat y"
    )
    assert spark_cause(text) == "java.lang.X: why"
