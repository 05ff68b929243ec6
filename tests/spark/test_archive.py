"""The archive: exactly the rows of the log, whatever is killed, with plain kernels and through Spark."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import encode_host
from contrailmq.message.codec import encode_record
from contrailmq.spark.columns import OptionError
from contrailmq.spark.decoding.store_files import log_files
from contrailmq.spark.jobs.archive import archive, archive_stream, read_archive
from contrailmq.spark.jobs.iceberg import own_catalog
from contrailmq.spark.jobs.manifest import ArchiveBusyError, ArchiveError, ArchiveState, Layout, Manifest
from contrailmq.spark.jobs.parquet_files import read_rows
from contrailmq.spark.runtime.engine import LocalEngine, SparkEngine
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.sources.portions import read_portions
from spark.conftest import expected, unpack
from spark.forked import Forking

ONE = LocalEngine(workers=1)
# The archive of the store makes 16 such calls: two for the manifest and the mark that it began, one for the folder of
# its day, two for each of its 5 files, then fsync, link and fsync of the commit.
KILLS = range(16) if os.environ.get("CONTRAILMQ_LONG") else (7, 14, 15)
KILLED_AT = """
import os, signal
from contrailmq.spark.columns import OptionError
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.jobs.archive import archive

calls = 0

def dying(call):
    def before(*given, **named):
        global calls
        if calls == {place}:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return call(*given, **named)
    return before

os.fsync, os.link = dying(os.fsync), dying(os.link)
archive({store!r}, {target!r}, LocalEngine(workers=1))
"""


def archived(target: Path) -> list[int]:
    """Physical offsets in the archive, sorted: repeats would show."""
    rows = [pq.read_table(path, partitioning=None)["physicalOffset"].to_pylist() for path in Manifest(target).paths()]
    return sorted(offset for part in rows for offset in part)


def begin(target: Path, layout: Layout) -> None:
    """Let an archive have this layout: a new one is packed, those of older versions are by topic."""
    Manifest(target).commit(ArchiveState(layout=layout), [])


def user_offsets(name: str) -> list[int]:
    system = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "TRANS_CHECK")
    return [m["commitLogOffset"] for m in expected(name)["messages"] if not m["topic"].startswith(system)]


def test_an_archive_grows_by_what_the_log_gained(tmp_path: Path) -> None:
    whole = unpack("clean", tmp_path / "whole")
    growing = tmp_path / "growing" / "commitlog"
    growing.mkdir(parents=True)
    for count in (2, 4, 6, 6):
        for file in log_files(whole)[:count]:
            shutil.copy(file.path, growing)
        archive(str(tmp_path / "growing"), str(tmp_path / "archive"), ONE)
    assert archived(tmp_path / "archive") == user_offsets("clean")
    assert Manifest(tmp_path / "archive").load().version == 3  # nothing new, no commit


@pytest.mark.parametrize("layout", ["packed", "topics"])
def test_rows_in_the_archive_equal_rows_of_the_log(
    tmp_path: Path, golden_store: Callable[[str], str], layout: Layout
) -> None:
    begin(tmp_path, layout)
    archive(golden_store("clean"), str(tmp_path), ONE)
    rows = [
        row for f in Manifest(tmp_path).load().files for row in read_rows(str(tmp_path / f.path), f.topic).to_pylist()
    ]
    assert sorted(row["physicalOffset"] for row in rows) == user_offsets("clean")
    by_offset = {message["commitLogOffset"]: message for message in expected("clean")["messages"]}
    for row in rows:
        message = by_offset[row["physicalOffset"]]
        assert (row["topic"], dict(row["properties"])) == (message["topic"], message["properties"])
        assert hashlib.sha256(row["body"]).hexdigest() == message["bodySha256"]
    names = {path.name for path in tmp_path.iterdir()} - {"_manifest"}
    assert names == {"date=2026-11-15"} if layout == "packed" else "topic=%25DLQ%25Golden_cg_retry" in names


def test_files_that_no_commit_lists_do_not_count_and_are_removed(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    archive(golden_store("clean"), str(tmp_path), ONE)
    leavings = [tmp_path / name / "deadbeefdeadbeef.parquet" for name in ("topic=A/date=2026-11-09", "date=2026-11-09")]
    for leaving in leavings:
        leaving.parent.mkdir(parents=True)
        shutil.copy(Manifest(tmp_path).paths()[0], leaving)
    assert archived(tmp_path) == user_offsets("clean")
    archive(golden_store("clean"), str(tmp_path), ONE)
    assert not any(leaving.exists() for leaving in leavings)
    assert archived(tmp_path) == user_offsets("clean")


@pytest.mark.parametrize("place", KILLS)
def test_an_archive_killed_at_any_step_is_whole_after_the_next_run(
    tmp_path: Path, forking: Forking, golden_store: Callable[[str], str], place: int
) -> None:
    """SIGKILL before the n-th call that makes something durable: a file, a folder, the commit."""
    code = KILLED_AT.format(place=place, store=golden_store("clean"), target=str(tmp_path))
    assert forking.run(code) == -signal.SIGKILL
    assert archived(tmp_path) in ([], user_offsets("clean"))
    archive(golden_store("clean"), str(tmp_path), ONE)
    assert archived(tmp_path) == user_offsets("clean")


def test_every_name_on_the_way_to_a_file_is_durable_before_the_commit(
    tmp_path: Path, golden_store: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is durable when the folder that holds it was synced after it appeared."""
    durable: set[str] = set()
    sync, link = os.fsync, os.link

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        durable.update(map(str, path.iterdir()) if path.is_dir() else [])
        sync(descriptor)

    def commit(*names: str) -> None:
        files = {str(path) for path in target.rglob("date=*/*")} | {str(path) for path in target.glob("*")}
        assert files <= durable
        assert len(files) == 5 + 1 + 1
        link(*names)

    target = tmp_path / "archive"
    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "link", commit)
    archive(golden_store("clean"), str(target), ONE)
    assert str(target) in durable
    assert archived(target) == user_offsets("clean")


def test_a_delta_table_lists_each_file_of_the_archive_once(tmp_path: Path) -> None:
    """Published after every growth and once more; topics with a % in their names are among them."""
    deltalake = pytest.importorskip("deltalake")
    whole = unpack("clean", tmp_path / "whole")
    growing, target = tmp_path / "growing" / "commitlog", tmp_path / "archive"
    growing.mkdir(parents=True)
    published = 0
    for count in (3, 6, 6):
        for file in log_files(whole)[:count]:
            shutil.copy(file.path, growing)
        words = ["archive", "--store", str(growing.parent), "--to", str(target), "--engine", "local"]
        done = CliRunner().invoke(app, ["pipeline", *words, "--delta", "--json"])
        assert done.exit_code == 0, done.output
        published += json.loads(done.output)["delta_files"]
    assert published == len(Manifest(target).paths())
    table = deltalake.DeltaTable(str(target))
    assert table.version() == 1  # nothing new, no commit
    rows = table.to_pyarrow_table()
    assert sorted(rows["physicalOffset"].to_pylist()) == user_offsets("clean")
    assert "%DLQ%Golden_cg_retry" in set(rows["topic"].to_pylist())
    archive(str(growing.parent), str(target), ONE)  # takes nothing of the table for leavings
    assert archived(target) == user_offsets("clean")


def test_an_iceberg_table_lists_each_file_of_the_archive_once(tmp_path: Path) -> None:
    """Published after every growth and once more; topic and date, which no file holds, come from its partitions."""
    pytest.importorskip("pyiceberg")
    whole = unpack("clean", tmp_path / "whole")
    growing, target = tmp_path / "growing" / "commitlog", tmp_path / "archive"
    growing.mkdir(parents=True)
    published = []
    for count in (3, 6, 6):
        for file in log_files(whole)[:count]:
            shutil.copy(file.path, growing)
        words = ["archive", "--store", str(growing.parent), "--to", str(target), "--engine", "local"]
        done = CliRunner().invoke(app, ["pipeline", *words, "--iceberg", "--json"])
        assert done.exit_code == 0, done.output
        published.append(json.loads(done.output)["iceberg_files"])
    assert sum(published) == len(Manifest(target).paths())
    assert published[2] == 0
    table = own_catalog(str(target)).load_table("contrailmq.archive")
    assert len(table.snapshots()) == 2
    rows = table.scan().to_arrow()
    by_offset = {m["commitLogOffset"]: (m["topic"], m["properties"]) for m in expected("clean")["messages"]}
    offsets = rows["physicalOffset"].to_pylist()
    assert sorted(offsets) == user_offsets("clean")
    facts = zip(rows["topic"].to_pylist(), map(dict, rows["properties"].to_pylist()), strict=True)
    assert list(facts) == [by_offset[offset] for offset in offsets]
    assert rows["date"].null_count == 0
    letters = table.scan(row_filter="topic = '%DLQ%Golden_cg_retry'").to_arrow()
    assert letters.num_rows == 2
    archive(str(growing.parent), str(target), ONE)  # takes nothing of the table for leavings
    assert table.scan().to_arrow().num_rows == len(offsets)


def test_two_writers_do_not_meet(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    with Manifest(tmp_path).writing(), pytest.raises(ArchiveBusyError, match="another process"):
        archive(golden_store("clean"), str(tmp_path), ONE)
    manifest = Manifest(tmp_path)
    state = manifest.load()
    manifest.commit(state, [])
    with pytest.raises(ArchiveBusyError, match="commit 1 was made by another writer"):
        manifest.commit(state, [])


def test_a_log_cleaned_before_it_was_archived_is_an_error(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path / "s")
    files = log_files(store)
    for file in files[1:]:
        shutil.move(file.path, tmp_path)
    shutil.rmtree(Path(store, "consumequeue"))
    archive(store, str(tmp_path / "archive"), ONE)
    for file in files[1:]:
        shutil.move(tmp_path / Path(file.path).name, file.path)
    Path(files[0].path).unlink()
    Path(files[1].path).unlink()
    with pytest.raises(ArchiveError, match="deleted before they were archived"):
        archive(store, str(tmp_path / "archive"), ONE)


@pytest.mark.spark
def test_spark_and_a_process_pool_archive_the_same(
    spark: Any, tmp_path: Path, golden_store: Callable[[str], str], pool: LocalEngine
) -> None:
    results = [
        archive(golden_store("kill9"), str(tmp_path / str(number)), engine)
        for number, engine in enumerate([SparkEngine(spark), pool])
    ]
    assert archived(tmp_path / "0") == archived(tmp_path / "1") == user_offsets("kill9")
    assert results[0].rows == results[1].rows == len(user_offsets("kill9"))
    frame = read_archive(spark, str(tmp_path / "0"))
    assert frame.where("topic is null or date is null").count() == 0
    assert frame.count() == results[0].rows


@pytest.mark.spark
@pytest.mark.parametrize("name", ["ar [x]", "ar{a,b}", "ar*", "a?", "a\\[b", "100%41"])
def test_an_archive_whose_path_looks_like_a_glob_is_read(spark: Any, tmp_path: Path, name: str) -> None:
    """Of its neighbours, which such a glob would match, nothing is read."""
    store = unpack("clean", tmp_path)
    for folder in (name, "ar x", "ara", "ab"):
        archive(store, str(tmp_path / folder), ONE)
    frame = read_archive(spark, str(tmp_path / name))
    assert sorted(row[0] for row in frame.select("physicalOffset").collect()) == user_offsets("clean")
    assert frame.where("topic is null or date is null").count() == 0


@pytest.mark.spark
@pytest.mark.parametrize("layout", ["packed", "topics"])
def test_topics_of_an_archive_keep_their_names(spark: Any, tmp_path: Path, layout: Layout) -> None:
    """Names that Spark does not get back from a directory's, and one that is what it makes of another."""
    names = ["__HIVE_DEFAULT_PARTITION__", "größe", "grÃ¶ÃŸe", "gr\u00c3\u00b6\u00c3\u009fe", "注文", "a%b|c", "null"]
    log, host = b"", encode_host("10.0.0.1", 1)
    for name in names:
        log += encode_record(
            name, name.encode(), b"", queue_id=0, queue_offset=0, physical_offset=len(log), born_host=host,
            store_host=host, born_time_ms=1, store_time_ms=1,
        )  # fmt: skip
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / ("0" * 20)).write_bytes(log + bytes(5000))
    begin(tmp_path / "archive", layout)
    archive(str(tmp_path / "store"), str(tmp_path / "archive"), ONE)
    frame = read_archive(spark, str(tmp_path / "archive"))
    assert {row.body.decode(): row.topic for row in frame.collect()} == {name: name for name in names}
    for name in names:
        assert [row.body.decode() for row in frame.where(frame["topic"] == name).collect()] == [name]


@pytest.mark.spark
def test_a_stream_is_archived_the_same_as_a_frame_and_as_a_reader(
    spark: Any, tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    source = spark.readStream.format("commitlog").option("path", golden_store("kill9"))
    for name, stream in (("frame", source.load()), ("reader", source)):
        writer = archive_stream(stream, str(tmp_path / name), str(tmp_path / f"{name}-checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert archived(tmp_path / name) == user_offsets("kill9")
    frames = [read_archive(spark, str(tmp_path / name)) for name in ("frame", "reader")]
    columns = [column for column in frames[0].columns if column != "properties"]  # maps cannot be compared as rows
    rows = [sorted(map(str, frame.selectExpr(*columns, "to_json(properties)").collect())) for frame in frames]
    assert rows[0] == rows[1]


def test_portions_are_whole_messages_for_streams(golden_store: Callable[[str], str]) -> None:
    given = {"path": golden_store("kill9"), "emit": "portions"}
    source = CommitLogSource(given)
    assert source.schema() == "portion binary"
    reader = source.streamReader(StructType([StructField("portion", BinaryType())]))
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    portions = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    read = [offset for rows in read_portions(iter(portions)) for offset in rows["physicalOffset"].to_pylist()]
    assert sorted(read) == user_offsets("kill9")
    with pytest.raises(OptionError, match="drop the options columns"):
        CommitLogSource({**given, "columns": "body"}).schema()
    with pytest.raises(OptionError, match="emit=portions is for streams"):
        source.reader(StructType([StructField("portion", BinaryType())]))
