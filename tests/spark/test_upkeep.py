"""Upkeep of an archive: its rows stay those of the log, in the manifest and in every table, whatever runs beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import contrailmq
from contrailmq.cli import app
from contrailmq.message import encode_host
from contrailmq.message.codec import encode_record
from contrailmq.spark.decoding.store_files import log_files
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.archive_repair import repair
from contrailmq.spark.jobs.delta import publish_delta
from contrailmq.spark.jobs.iceberg import own_catalog, publish_iceberg
from contrailmq.spark.jobs.manifest import ArchiveBusyError, ArchiveError, Layout, Manifest
from contrailmq.spark.jobs.upkeep import compact, expire, vacuum
from contrailmq.spark.runtime.engine import LocalEngine
from spark.conftest import expected, unpack
from spark.forked import Forking
from spark.test_archive import archived, begin, user_offsets

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

ONE = LocalEngine(workers=1)
IS_LONG = bool(os.environ.get("CONTRAILMQ_LONG"))
SYSTEM = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "TRANS_CHECK")


def stored_since(name: str, time_ms: int) -> list[int]:
    """Physical offsets of the messages that were stored at a time or later, as Apache's classes tell."""
    messages = [m for m in expected(name)["messages"] if not m["topic"].startswith(SYSTEM)]
    return [m["commitLogOffset"] for m in messages if m["storeTimestamp"] >= time_ms]


def middle_ms() -> int:
    """A time in the middle of the golden store."""
    times = sorted(m["storeTimestamp"] for m in expected("clean")["messages"])
    return int(times[len(times) // 2])


def make_archive(folder: Path, layout: Layout = "packed") -> tuple[str, Path]:
    """A store and its archive of three runs, each published as Delta and Iceberg tables."""
    whole = unpack("clean", folder / "whole")
    growing, target = folder / "growing" / "commitlog", folder / "archive"
    growing.mkdir(parents=True)
    begin(target, layout)
    for count in (2, 4, 6):
        for file in log_files(whole)[:count]:
            shutil.copy(file.path, growing)
        archive(str(growing.parent), str(target), ONE)
        publish_delta(str(target))
        publish_iceberg(str(target))
    return str(growing.parent), target


def in_delta(target: Path) -> list[int]:
    found: list[int] = deltalake.DeltaTable(str(target)).to_pyarrow_table()["physicalOffset"].to_pylist()
    return sorted(found)


def in_iceberg(target: Path) -> list[int]:
    rows = own_catalog(str(target)).load_table("contrailmq.archive").scan().to_arrow()
    assert rows["topic"].null_count == rows["date"].null_count == 0
    return sorted(rows["physicalOffset"].to_pylist())


def check(target: Path, offsets: list[int]) -> None:
    """Manifest and both tables hold these rows, each once."""
    assert archived(target) == offsets
    assert in_delta(target) == offsets
    assert in_iceberg(target) == offsets


def on_disk(target: Path) -> set[str]:
    return {str(path.relative_to(target)) for path in target.rglob("*.parquet") if not path.parts[-2].startswith("_")}


@pytest.mark.parametrize("layout", ["packed", "topics"])
def test_an_archive_has_the_same_rows_after_all_upkeep(tmp_path: Path, layout: Layout) -> None:
    """An older archive, with a directory for each topic, is a packed one from its first compaction on."""
    store, target = make_archive(tmp_path, layout)
    files = len(Manifest(target).paths())
    assert files == {"packed": 5, "topics": 22}[layout]
    check(target, user_offsets("clean"))
    done = compact(str(target))
    assert (done.files_before, done.files_after, done.rows_after) == (files, 1, len(user_offsets("clean")))
    check(target, user_offsets("clean"))
    expire(str(target), middle_ms())
    check(target, stored_since("clean", middle_ms()))
    assert vacuum(str(target)).files == 0  # readers have a week
    assert vacuum(str(target), retention_s=0).files == files + 1
    check(target, stored_since("clean", middle_ms()))
    assert on_disk(target) == {file.path for file in Manifest(target).load().files}
    archive(store, str(target), ONE)
    assert Manifest(target).head().layout == "packed"
    check(target, stored_since("clean", middle_ms()))


def test_what_other_programs_read_is_the_same_after_upkeep(tmp_path: Path) -> None:
    """Once vacuumed, the directory itself holds exactly the archive's rows, with the topic as a column."""
    _, target = make_archive(tmp_path)
    compact(str(target))
    expire(str(target), middle_ms())
    vacuum(str(target), retention_s=0)
    offsets = stored_since("clean", middle_ms())
    pandas = pytest.importorskip("pandas")
    frame = pandas.concat([pandas.read_parquet(path, columns=["topic", "physicalOffset"]) for path in paths(target)])
    assert sorted(frame["physicalOffset"]) == offsets
    rows = ds.dataset(str(target), partitioning="hive", exclude_invalid_files=False).to_table(
        columns=["physicalOffset"]
    )
    assert sorted(rows["physicalOffset"].to_pylist()) == offsets
    letters = ds.dataset(paths(target)).to_table(filter=ds.field("topic") == "%DLQ%Golden_cg_retry")
    assert letters.num_rows == 2


def test_duckdb_reads_an_archive_after_upkeep(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: make install brings it")
    _, target = make_archive(tmp_path)
    compact(str(target))
    expire(str(target), middle_ms())
    vacuum(str(target), retention_s=0)
    rows = duckdb.sql(f"select physicalOffset from read_parquet('{target}/date=*/*.parquet') order by 1").fetchall()
    assert [row[0] for row in rows] == stored_since("clean", middle_ms())


def paths(target: Path) -> list[str]:
    return Manifest(target).paths()


def test_compacted_files_are_sorted_and_near_their_size(tmp_path: Path) -> None:
    """A smaller target than the archive: several files, none larger, each in the order of topic, queue and offset."""
    _, target = make_archive(tmp_path)
    before = Manifest(target).load()
    limit = sum(file.size_bytes for file in before.files) // 2
    compact(str(target), target_bytes=limit)
    after = Manifest(target).load().files
    assert 1 < len(after) < len(before.files)
    assert max(file.size_bytes for file in after) <= limit
    joined = [file for file in after if file not in before.files]
    assert len(joined) > 1
    for file in joined:
        table = pq.read_table(target / file.path, partitioning=None)
        keys = list(zip(*(table[name].to_pylist() for name in ("topic", "queueId", "queueOffset")), strict=True))
        assert keys == sorted(keys)
    assert compact(str(target), target_bytes=limit // 8).version == Manifest(target).head().version  # nothing to do
    check(target, user_offsets("clean"))


def write_topics(store: Path, topics: int, messages: int) -> None:
    """A log of many small topics."""
    log, host = bytearray(), encode_host("10.0.0.1", 1)
    for number in range(topics * messages):
        log += encode_record(
            f"Topic{number % topics:05d}", b"body %d" % number, b"", queue_id=0, queue_offset=number // topics,
            physical_offset=len(log), born_host=host, store_host=host, born_time_ms=1, store_time_ms=1,
        )  # fmt: skip
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / ("0" * 20)).write_bytes(log + bytes(5000))


def test_three_thousand_topics_make_one_file(tmp_path: Path) -> None:
    write_topics(tmp_path / "store", 3000, 4)
    assert archive(str(tmp_path / "store"), str(tmp_path / "archive"), ONE).files == 1
    (path,) = paths(tmp_path / "archive")
    assert pq.read_table(path, filters=[("topic", "=", "Topic02999")], partitioning=None)["body"].to_pylist() == [
        b"body %d" % number for number in range(2999, 12000, 3000)
    ]


def test_a_large_topic_has_row_groups_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a reader of another topic does not read its rows."""
    monkeypatch.setattr("contrailmq.spark.jobs.parquet_files._GROUP_BYTES", 200_000)
    log, host = bytearray(), encode_host("10.0.0.1", 1)
    for number in range(2000):
        topic = "Large" if number % 4 else f"Small{number % 16:02d}"
        log += encode_record(
            topic, bytes(100) if topic != "Large" else os.urandom(500), b"", queue_id=0, queue_offset=number,
            physical_offset=len(log), born_host=host, store_host=host, born_time_ms=1, store_time_ms=1,
        )  # fmt: skip
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / ("0" * 20)).write_bytes(log + bytes(5000))
    archive(str(tmp_path / "store"), str(tmp_path / "archive"), ONE)
    (path,) = paths(tmp_path / "archive")
    metadata = pq.read_metadata(path)
    place = metadata.schema.names.index("topic")
    bounds = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
    assert {part.max for part in bounds if part.min == "Large"} == {"Large"}
    assert sum(part.min != "Large" for part in bounds) < 4  # small ones share
    assert metadata.num_rows == 2000


class Between(LocalEngine):
    """Does something after the work and before its commit."""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__(workers=1)
        self._between = between

    def run(self, *given: Any, **named: Any) -> Iterator[Any]:
        yield from list(super().run(*given, **named))
        self._between()


@pytest.mark.parametrize("layout", ["packed", "topics"])
def test_an_archive_that_runs_during_a_compaction_loses_nothing_of_either(tmp_path: Path, layout: Layout) -> None:
    """It does not take files of the compaction for leavings, and what it adds by topic is packed, too."""
    whole = unpack("clean", tmp_path / "whole")
    growing, target = tmp_path / "growing" / "commitlog", tmp_path / "archive"
    growing.mkdir(parents=True)
    begin(target, layout)
    *first, last = log_files(whole)
    for file in first:
        shutil.copy(file.path, growing)
        archive(str(growing.parent), str(target), ONE)

    def archive_more() -> None:
        shutil.copy(last.path, growing)
        archive(str(growing.parent), str(target), ONE)

    compact(str(target), Between(archive_more))
    assert archived(target) == user_offsets("clean")
    assert Manifest(target).head().layout == "packed"
    assert not any(file.topic for file in Manifest(target).load().files)


def test_upkeep_runs_once_at_a_time(tmp_path: Path) -> None:
    _, target = make_archive(tmp_path)
    with pytest.raises(ArchiveBusyError, match="is being compacted, expired, vacuumed or repaired by another process"):
        compact(str(target), Between(lambda: vacuum(str(target))))
    check(target, user_offsets("clean"))
    assert on_disk(target) == {file.path for file in Manifest(target).load().files}  # what it wrote is gone


def test_two_archives_and_a_compaction_at_once_end_with_the_rows_of_both_logs(tmp_path: Path) -> None:
    """Each in a process of its own, again and again until both logs are archived."""
    target, runs = tmp_path / "archive", list[subprocess.Popen[bytes]]()
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    stores = [unpack(name, tmp_path / name) for name in ("clean", "direct")]
    for store in stores:
        code = ARCHIVING.format(
            store=store, target=str(target), folder=str(tmp_path / f"grow-{Path(store).parent.name}")
        )
        runs.append(subprocess.Popen([sys.executable, "-c", code], env=environment))
    while any(run.poll() is None for run in runs):
        if Manifest(target).archive.exists() and (target / "_manifest").exists():
            compact(str(target))
            vacuum(str(target), retention_s=0)
    assert [run.returncode for run in runs] == [0, 0]
    compact(str(target))
    assert archived(target) == sorted(user_offsets("clean") + user_offsets("direct"))


ARCHIVING = """
import shutil
from pathlib import Path
from contrailmq.spark.decoding.store_files import log_files
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.manifest import ArchiveBusyError
from contrailmq.spark.runtime.engine import LocalEngine

growing = Path({folder!r}, "commitlog")
growing.mkdir(parents=True)
for file in log_files({store!r}):
    shutil.copy(file.path, growing)
    while True:
        try:
            archive(str(growing.parent), {target!r}, LocalEngine(workers=1))
            break
        except ArchiveBusyError:
            pass
"""
KILLED_AT = """
import os, signal
from contrailmq.spark.jobs import archive_repair, upkeep

calls = 0

def dying(call):
    def before(*given, **named):
        global calls
        if calls == {place}:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return call(*given, **named)
    return before

os.fsync, os.link, os.unlink = dying(os.fsync), dying(os.link), dying(os.unlink)
upkeep.bring_delta_up, upkeep.bring_iceberg_up = dying(upkeep.bring_delta_up), dying(upkeep.bring_iceberg_up)
{job}
"""
# job -> its call, how often it comes to a step where it may be killed, and the steps that `make test` takes
JOBS = {
    "compact": ("upkeep.compact({target!r})", 10, (1, 8)),
    "convert": ("upkeep.compact({target!r})", 11, (6,)),
    "expire": ("upkeep.expire({target!r}, {time_ms})", 16, (14,)),
    "vacuum": ("upkeep.vacuum({target!r}, retention_s=0)", 11, (6,)),
    "repair": ("archive_repair.repair({store!r}, {target!r})", 8, (6,)),
}
AGAIN: dict[str, Callable[[str, str], object]] = {
    "compact": lambda store, target: compact(target),
    "convert": lambda store, target: compact(target),
    "expire": lambda store, target: expire(target, middle_ms()),
    "vacuum": lambda store, target: vacuum(target, retention_s=0),
    "repair": repair,
}
KILLS = [(job, place) for job, (_, steps, few) in JOBS.items() for place in (range(steps) if IS_LONG else few)]


@pytest.mark.parametrize(("job", "place"), KILLS)
def test_upkeep_killed_at_any_step_is_whole_after_the_next_run(
    tmp_path: Path, forking: Forking, job: str, place: int
) -> None:
    """SIGKILL before the n-th step: a file or folder made durable, the commit, a table brought up, a file deleted."""
    store, target = make_archive(tmp_path, "topics" if job == "convert" else "packed")
    if job == "vacuum":
        compact(str(target))
    if job == "repair":
        (target / Manifest(target).load().files[1].path).unlink()
    call = JOBS[job][0].format(store=store, target=str(target), time_ms=middle_ms())
    assert forking.run(KILLED_AT.format(place=place, job=call)) == -signal.SIGKILL
    before, after = user_offsets("clean"), user_offsets("clean")
    if job == "expire":
        after = stored_since("clean", middle_ms())
    if job != "repair":
        assert archived(target) in (before, after)
        assert in_delta(target) in (before, after)
        assert in_iceberg(target) in (before, after)
    AGAIN[job](store, str(target))
    check(target, after)
    archive(store, str(target), ONE)
    state = Manifest(target).load()
    assert on_disk(target) == {file.path for file in state.files} | {file.path for file in state.removed}
    check(target, after)


LIMITED = """
import resource
from contrailmq.cli import app

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
app({words!r})
"""


def test_a_disk_that_is_full_during_a_compaction_changes_nothing(tmp_path: Path) -> None:
    """By a limit on the size of files, which the system enforces as it does a full disk."""
    _, target = make_archive(tmp_path)
    before = on_disk(target)
    words = ["pipeline", "compact", "--archive", str(target), "--engine", "local"]
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    code = LIMITED.format(words=words)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "cannot be written: File too large; nothing was committed: raise the limit" in done.stderr
    assert on_disk(target) == before
    check(target, user_offsets("clean"))


def test_a_delta_table_that_another_tool_rewrote_is_told_with_the_remedy(tmp_path: Path) -> None:
    store, target = make_archive(tmp_path)
    deltalake.DeltaTable(str(target)).optimize.compact()
    archive(store, str(target), ONE)
    with pytest.raises(
        ArchiveError, match=r"does not list 5 of 5 files that were replaced.*OPTIMIZE.*remove .*_delta_log"
    ):
        compact(str(target))
    assert archived(target) == user_offsets("clean")
    shutil.rmtree(target / "_delta_log")
    publish_delta(str(target))
    compact(str(target))
    check(target, user_offsets("clean"))


def test_tables_of_an_older_version_go_on(tmp_path: Path) -> None:
    """They know how many files they list, and no commit of the manifest."""
    whole = unpack("clean", tmp_path / "whole")
    growing, target = tmp_path / "growing" / "commitlog", tmp_path / "archive"
    growing.mkdir(parents=True)
    begin(target, "topics")
    for file in log_files(whole)[:3]:
        shutil.copy(file.path, growing)
    archive(str(growing.parent), str(target), ONE)
    publish_delta(str(target))
    publish_iceberg(str(target))
    older(target, len(paths(target)))
    for file in log_files(whole):
        shutil.copy(file.path, growing)
    archive(str(growing.parent), str(target), ONE)
    publish_delta(str(target))
    publish_iceberg(str(target))
    check(target, user_offsets("clean"))
    compact(str(target))
    check(target, user_offsets("clean"))


def older(target: Path, files: int) -> None:
    """Make manifest and tables what the version before wrote."""
    for path in (target / "_manifest").glob("*.json"):
        commit = json.loads(path.read_text())
        for name in ("layout", "expired_before_ms", "is_whole", "has_same_rows", "removed"):
            del commit[name]
        path.write_text(json.dumps({**commit, "version": 1}))
    log = target / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "txn" in action:
            action["txn"] |= {"appId": "contrailmq-archive", "version": files}
    log.write_text("\n".join(map(json.dumps, actions)))
    table = own_catalog(str(target)).load_table("contrailmq.archive")
    with table.transaction() as change:
        change.remove_properties("contrailmq.commit")
        with change.update_snapshot(snapshot_properties={"contrailmq.files": str(files)}).fast_append():
            pass


def test_the_commands_say_what_they_did(tmp_path: Path) -> None:
    _, target = make_archive(tmp_path)
    size = sum(file.size_bytes for file in Manifest(target).load().files)

    def run(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["pipeline", *words, "--archive", str(target), "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.output)
        return found

    planned = run("compact", "--engine", "local", "--dry-run")
    assert (planned["files_before"], planned["files_after"], planned["bytes_after"]) == (5, 1, size)
    done = run("compact", "--engine", "local")
    assert (done["files_after"], done["rows_after"]) == (1, len(user_offsets("clean")))
    assert run("expire", "--before", "2026-11-15", "--dry-run")["rows_after"] == done["rows_after"]
    assert (
        run("expire", "--before", "2026-11-16", "--dry-run")["rows_after"] == done["rows_after"]
    )  # of that day: unread
    assert run("expire", "--before", "2026-11-17", "--dry-run")["rows_after"] == 0
    assert run("expire", "--before", str(middle_ms()))["rows_after"] == len(stored_since("clean", middle_ms()))
    assert run("vacuum", "--dry-run")["files"] == 0
    assert run("vacuum", "--retain-hours", "0", "--dry-run")["files"] == 6
    assert run("vacuum", "--retain-hours", "0")["files"] == 6
    check(target, stored_since("clean", middle_ms()))


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "--engine", "local"],
        ["expire", "--before", "2020-01-01", "--engine", "local"],
        ["vacuum", "--retain-hours", "0"],
    ],
)
def test_upkeep_that_cannot_even_begin_names_the_file_and_drops_nothing(tmp_path: Path, words: list[str]) -> None:
    """A full disk is when somebody expires and vacuums."""
    _, target = make_archive(tmp_path)
    code = LIMITED.replace("20_000", "1").format(words=["pipeline", *words, "--archive", str(target)])
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    *_, told = done.stderr.splitlines()
    assert told == (
        f"error: {target}/_manifest/.upkeep cannot be written: File too large; nothing was committed: raise the limit "
        "on the size of files (ulimit -f), then run again"
    )
    check(target, user_offsets("clean"))
    assert vacuum(str(target), retention_s=0.0).files == 0
