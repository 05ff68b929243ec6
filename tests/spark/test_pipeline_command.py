"""The flags of `contrailmq pipeline`: each has an effect or is refused, a dry run changes nothing, engines agree."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import contrailmq.spark
from contrailmq import Message, Producer
from contrailmq.cli import app
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.archive_topics import archive_topics, topics_to_archive
from contrailmq.spark.jobs.manifest import ArchiveError, Manifest
from contrailmq.spark.jobs.replay import stored_rows
from contrailmq.spark.jobs.report import report
from contrailmq.spark.jobs.verify import verify
from contrailmq.spark.runtime.engine import LocalEngine, SparkEngine
from contrailmq.testing import LocalCluster
from spark.conftest import expected, unpack

ONE = LocalEngine(1)
HEARD_S = 120  # the longest that a task waits until progress is told


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def answer(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def files_under(folder: str | Path) -> dict[str, tuple[int, int]]:
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["archive", "--to", "/x"], "give either --store or --namesrv"),
        (["archive", "--to", "/x", "-n", "y:1"], "--topics is missing"),
        (["archive", "--to", "/x", "-n", "y:1", "--topics", "T", "--engine", "local"], "--engine local has no effect"),
        (["archive", "--to", "/x", "-n", "y:1", "--topics", "T", "--skip-corrupt"], "--skip-corrupt has no effect"),
        (["archive", "--to", "/x", "--store", "/y", "--client", "accessKey=a"], "--client has no effect with --store"),
        (["report", "--store", "/x", "--engine", "local", "--master", "local[2]"], "--master is for Spark"),
        (["report", "--store", "/x", "--engine", "flink"], "it takes spark or local"),
        (["ask", "select 1", "--store", "/x", "-n", "y:1"], "exactly one of --store, --archive and --namesrv"),
        (["ask", "select 1", "-n", "y:1"], "--topics is missing"),
        (["ask", "select 1", "--store", "/x", "--client", "accessKey=a"], "--client has no effect without --namesrv"),
        (
            ["replay", "--from", "/x", "--dry-run", "--starting-offsets", "5"],
            "--starting-offsets is not offsets as JSON",
        ),
        (["replay", "--from", "/x"], "--namesrv is missing"),
        (["replay", "--from", "/x", "--dry-run", "--since", "noon"], "neither an ISO time nor milliseconds"),
        (["redrive", "--group", "g"], "--namesrv is missing"),
    ],
)
def test_flags_that_contradict_or_do_nothing_are_refused(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    done = run(*arguments)
    assert done.exit_code == 2
    assert text in done.stderr


def test_rebuild_and_verify_take_many_stores(tmp_path: Path) -> None:
    stores = [unpack("clean", tmp_path / name) for name in ("a", "b")]
    both = f"{tmp_path}/*/store"
    (torn,) = (path for path in [*Path(stores[1], "consumequeue", "GoldenOrder", "1").iterdir()])
    torn.write_bytes(bytes(20) + torn.read_bytes()[20:])
    found = run("verify", "--store", both, "--engine", "local", "--json")
    assert found.exit_code == 1
    assert {row["store"] for row in json.loads(found.stdout)["findings"]} == {stores[1]}
    rebuilt = answer("rebuild", "--store", both, "--engine", "local")
    assert [row["store"] for row in rebuilt] == stores
    assert rebuilt[0]["units"] == rebuilt[1]["units"] > 600
    assert answer("verify", "--store", both, "--engine", "local") == {"findings": []}
    refused = run("verify", "--store", both, "--slave", stores[0], "--engine", "local")
    assert refused.exit_code == 2


@pytest.mark.parametrize("job", ["archive", "rebuild"])
def test_a_dry_run_leaves_every_file_as_it_was(tmp_path: Path, job: str) -> None:
    store = unpack("clean", tmp_path)
    Path(store, "lock").touch()
    before = files_under(tmp_path)
    target = ["--to", str(tmp_path / "archive")] if job == "archive" else []
    shown = answer(job, "--store", store, "--engine", "local", "--dry-run", *target)
    assert shown["log_bytes"] > 600_000
    assert files_under(tmp_path) == before


def test_another_choice_of_topics_does_not_pass_over_what_was_left_out(tmp_path: Path) -> None:
    store, target = unpack("clean", tmp_path), str(tmp_path / "archive")

    def chosen(*topics: str) -> LogSettings:
        return LogSettings(selection=Selection(topics=frozenset(topics)))

    assert archive(store, target, ONE, settings=chosen("GoldenOrder")).rows == 48
    with pytest.raises(ArchiveError, match="with GoldenOrder: give the same topics again"):
        archive(store, target, ONE, settings=chosen("GoldenBulk"))
    with pytest.raises(ArchiveError, match="another directory"):
        archive(store, target, ONE)
    assert archive(store, target, ONE, settings=chosen("GoldenOrder")).rows == 0
    assert Manifest(target).load().rows == 48


@pytest.mark.parametrize("kind", ["store", "archive"])
def test_a_replay_keeps_to_offsets_and_times(tmp_path: Path, golden_store: Callable[[str], str], kind: str) -> None:
    source = golden_store("clean")
    if kind == "archive":
        archive(source, str(tmp_path / "archive"), ONE)
        source = str(tmp_path / "archive")
    java = [m for m in expected("clean")["messages"] if m["topic"] == "GoldenOrder"]
    bounds = json.dumps({"GoldenOrder": {"1": 3}}), json.dumps({"GoldenOrder": {"1": 7, "2": 2}})
    wanted = [
        m
        for m in java
        if not (m["queueId"] == 1 and not 3 <= m["queueOffset"] < 7)
        and not (m["queueId"] == 2 and m["queueOffset"] >= 2)
    ]
    words = ["--from", source, "--topics", "GoldenOrder", "--dry-run", "--engine", "local"]
    shown = answer("replay", *words, "--starting-offsets", bounds[0], "--ending-offsets", bounds[1])
    assert shown == {"found": len(wanted), "sent": 0, "skipped": 0}
    assert 0 < len(wanted) < len(java)
    middle = sorted(m["storeTimestamp"] for m in java)[20]
    key = ("GoldenOrder", 1)
    for selection, keeps in (
        (Selection(begin_ms=middle), lambda m: m["storeTimestamp"] >= middle),
        (Selection(end_ms=middle), lambda m: m["storeTimestamp"] < middle),
        (Selection(starting_times_ms={key: middle}), lambda m: m["queueId"] != 1 or m["storeTimestamp"] >= middle),
        (Selection(ending_times_ms={key: middle}), lambda m: m["queueId"] != 1 or m["storeTimestamp"] < middle),
    ):
        rows = [row for row in stored_rows(source, selection) if row["topic"] == "GoldenOrder"]
        assert sorted(row["physicalOffset"] for row in rows) == sorted(m["commitLogOffset"] for m in java if keeps(m))


def test_archive_and_store_agree_on_tags(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    archive(golden_store("clean"), str(tmp_path / "archive"), ONE)
    counts = []
    for source in (golden_store("clean"), str(tmp_path / "archive")):
        tags = {row["tags"] for row in stored_rows(source, Selection())} - {None}
        one = Selection(tags=frozenset([min(tags)]))
        counts.append(sorted((row["physicalOffset"], row["tags"]) for row in stored_rows(source, one)))
    assert counts[0] == counts[1] != []


def wait(work: tuple[int, str]) -> int:
    """A kernel whose last item ends only after somebody heard that another was done."""
    number, pipe = work
    if number == 5:
        with open(pipe, "rb", buffering=0) as opened:
            heard, _, _ = select.select([opened], [], [], HEARD_S)
            assert heard, f"nobody heard within {HEARD_S} s that another task was done"
    return number * number


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["spark", "pool"])
def test_progress_is_told_while_tasks_run(tmp_path: Path, spark: Any, pool: LocalEngine, kind: str) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    told: list[tuple[int, int]] = []
    allowed_s = HEARD_S
    with open(os.open(pipe, os.O_RDWR), "wb", buffering=0) as end:

        def tell(done: int, total: int) -> None:
            if not told:
                end.write(b"go")
            told.append((done, total))

        def by_value(work: tuple[int, str]) -> int:  # Spark's workers cannot import tests
            import select

            number, pipe = work
            if number == 5:
                with open(pipe, "rb", buffering=0) as opened:
                    heard, _, _ = select.select([opened], [], [], allowed_s)
                    assert heard, f"nobody heard within {allowed_s} s that another task was done"
            return number * number

        work = [(number, pipe) for number in range(6)]
        found = SparkEngine(spark).run(by_value, work, tell) if kind == "spark" else pool.run(wait, work, tell)
        assert list(found) == [0, 1, 4, 9, 16, 25]
    assert 0 <= told[0][0] < 6
    assert told[-1] == (6, 6)


@pytest.mark.spark
def test_engines_give_equal_reports_findings_and_rebuilt_files(
    tmp_path: Path, spark: Any, pool: LocalEngine, golden_store: Callable[[str], str]
) -> None:
    engines = [SparkEngine(spark), pool, ONE]
    reports = [report(golden_store("clean"), engine).to_json() for engine in engines]
    assert reports[0] == reports[1] == reports[2]
    small = [verify(golden_store("torn-mid"), engine, range_bytes=50_000) for engine in engines]
    assert small[0] == small[1] == small[2] != []
    frame = contrailmq.spark.findings_frame(spark, small[0])
    assert [tuple(row) for row in frame.collect()] == [tuple(finding) for finding in small[0]]
    assert contrailmq.spark.findings_frame(spark, []).count() == 0
    stores = [unpack("clean", tmp_path / str(number)) for number in range(3)]
    results = [contrailmq.spark.rebuild(store, engine) for store, engine in zip(stores, engines, strict=True)]
    assert len({(r.queues, r.units, r.index_entries, r.gaps) for r in results}) == 1
    built = [
        {str(path.relative_to(store)): path.read_bytes() for path in Path(store).glob("consumequeue/*/*/*")}
        for store in stores
    ]
    assert built[0] == built[1] == built[2] != {}


@pytest.mark.spark
def test_topics_are_archived_once_and_a_dry_run_says_how_many_are_left(
    tmp_path: Path, spark: Any, cluster: LocalCluster
) -> None:
    target = str(tmp_path / "archive")
    with Producer("maker", namesrv=cluster.namesrv) as producer:
        for number in range(10):
            producer.send(Message("Archived", b"%d" % number))
        words = ("archive", "--to", target, "-n", cluster.namesrv, "--topics", "Archived", "--dry-run")
        assert answer(*words) == {"rows": 10, "files": 0, "version": 0}
        assert not Path(target).exists()
        assert archive_topics(spark, cluster.namesrv, "Archived", target)["rows"] == 10
        assert topics_to_archive(cluster.namesrv, "Archived", target)["rows"] == 0
        producer.send(Message("Archived", b"late"))
        assert topics_to_archive(cluster.namesrv, "Archived", target)["rows"] == 1
    assert archive_topics(spark, cluster.namesrv, "Archived", target)["rows"] == 1
    bodies = sorted(row["body"] for row in contrailmq.spark.read_archive(spark, target).collect())
    assert bodies == sorted([*(b"%d" % number for number in range(10)), b"late"])


@pytest.mark.spark
def test_ask_answers_for_a_store_an_archive_and_topics(
    tmp_path: Path, spark: Any, cluster: LocalCluster, golden_store: Callable[[str], str]
) -> None:
    store, target = golden_store("clean"), str(tmp_path / "archive")
    archive(store, target, ONE)
    count = "select count(*) from log"
    ask = contrailmq.spark.ask
    assert ask(spark, count, store=store).first()[0] == len(expected("clean")["messages"])
    assert ask(spark, count, store=store, topics="GoldenOrder").first()[0] == 48
    assert ask(spark, count, archive=target).first()[0] == 621
    assert ask(spark, count, archive=target, topics="GoldenOrder, GoldenAuto").first()[0] == 54
    with Producer("maker", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Asked", b"1"))
    assert ask(spark, count, namesrv=cluster.namesrv, topics="Asked").first()[0] == 1
    with pytest.raises(contrailmq.spark.OptionError, match="exactly one"):
        ask(spark, count, store=store, archive=target)
    with pytest.raises(contrailmq.spark.OptionError, match="name at least one"):
        ask(spark, count, namesrv=cluster.namesrv)
