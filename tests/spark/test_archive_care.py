"""What an archive refuses: nothing of others is deleted, and nothing that was lost passes for empty or for done."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import contrailmq
from contrailmq import Message, Producer
from contrailmq.cli import app
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.decoding.store_files import log_files
from contrailmq.spark.jobs.archive import archive, archive_stream, read_archive
from contrailmq.spark.jobs.archive_topics import archive_topics, topics_to_archive
from contrailmq.spark.jobs.delta import publish_delta
from contrailmq.spark.jobs.iceberg import publish_iceberg
from contrailmq.spark.jobs.manifest import ArchiveError, ArchiveState, Manifest, make_folder
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.testing import LocalCluster
from spark.conftest import expected, unpack
from spark.test_archive import archived, user_offsets

ONE = LocalEngine(workers=1)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def data_files(target: Path) -> set[Path]:
    return set(target.glob("date=*/*"))


def commit_path(target: Path, number: int) -> Path:
    return target / "_manifest" / f"{number:020d}.json"


@pytest.fixture
def grown(tmp_path: Path) -> tuple[str, Path]:
    """A store and its archive of three commits."""
    whole = unpack("clean", tmp_path / "whole")
    growing, target = tmp_path / "growing" / "commitlog", tmp_path / "archive"
    growing.mkdir(parents=True)
    for count in (2, 4, 6):
        for file in log_files(whole)[:count]:
            shutil.copy(file.path, growing)
        archive(str(growing.parent), str(target), ONE)
    return str(growing.parent), target


def test_files_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "topic=A" / "date=2026-01-01"
    folder.mkdir(parents=True)
    names = ("report.csv", "notes.txt", "part-00000-5c1f.snappy.parquet", "0123456789ABCDEF.parquet")
    for name in names:
        (folder / name).write_text(name)
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    done = run("archive", "--store", str(tmp_path / "empty"), "--to", str(tmp_path / "mine"), "--engine", "local")
    assert done.exit_code == 0, done.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == {name: name for name in names}


@pytest.mark.parametrize("lost", ["manifest", "commits"])
@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--delta",)])
def test_data_without_a_manifest_is_refused_and_stays(
    grown: tuple[str, Path], lost: str, flags: tuple[str, ...]
) -> None:
    store, target = grown
    before = data_files(target)
    if lost == "manifest":
        shutil.rmtree(target / "_manifest")
    else:
        for number in (1, 2, 3):
            commit_path(target, number).unlink()
    done = run("archive", "--store", store, "--to", str(target), "--engine", "local", *flags)
    assert done.exit_code == 2
    assert f"{target} holds {len(before)} data files, but {target}/_manifest has no commit: restore" in done.stderr
    assert data_files(target) == before


def test_an_archive_without_its_manifest_is_not_replayed_as_a_store(grown: tuple[str, Path]) -> None:
    _, target = grown
    shutil.rmtree(target / "_manifest")
    done = run("replay", "--from", str(target), "--engine", "local", "--dry-run")
    assert done.exit_code == 2
    assert f"{target}/_manifest has no commit: restore it from a backup" in done.stderr


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_commit_missing_from_the_middle_is_an_error_and_its_data_stays(
    grown: tuple[str, Path], flags: tuple[str, ...]
) -> None:
    store, target = grown
    before, lost = data_files(target), commit_path(target, 2)
    kept = lost.rename(target / "kept")
    done = run("archive", "--store", store, "--to", str(target), "--engine", "local", *flags)
    assert done.exit_code == 2
    assert f"{lost} is missing, though there is a commit 3: restore it from a backup" in done.stderr
    for read in (Manifest(target).load, Manifest(target).head):
        with pytest.raises(ArchiveError, match="is missing"):
            read()
    assert data_files(target) == before
    kept.rename(lost)
    assert archived(target) == user_offsets("clean")


class CutShort(LocalEngine):
    """Fails after the first piece of work."""

    def run(self, *given: Any, **named: Any) -> Iterator[Any]:
        yield next(super().run(*given, **named))
        raise RuntimeError("cut short")


def test_files_of_a_first_run_that_failed_are_gone_after_the_next(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    """Its mark tells them from those of an archive whose manifest was lost; the mark goes with the first commit."""
    with pytest.raises(RuntimeError, match="cut short"):
        archive(golden_store("clean"), str(tmp_path), CutShort(1))
    left = data_files(tmp_path)
    archive(golden_store("clean"), str(tmp_path), ONE)
    assert left
    assert not left & data_files(tmp_path)
    assert archived(tmp_path) == user_offsets("clean")
    assert {path.name for path in (tmp_path / "_manifest").iterdir()} == {".lock", commit_path(tmp_path, 1).name}


@pytest.mark.parametrize("publish", [publish_delta, publish_iceberg])
def test_publishing_after_a_first_run_that_failed_leaves_the_archive_usable(
    tmp_path: Path, golden_store: Callable[[str], str], publish: Callable[[str], int]
) -> None:
    with pytest.raises(RuntimeError, match="cut short"):
        archive(golden_store("clean"), str(tmp_path), CutShort(1))
    assert data_files(tmp_path)
    assert publish(str(tmp_path)) == 0
    archive(golden_store("clean"), str(tmp_path), ONE)
    assert archived(tmp_path) == user_offsets("clean")
    assert publish(str(tmp_path)) == len(data_files(tmp_path))


def test_a_run_that_commits_nothing_keeps_the_mark_of_one_that_failed(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    """An empty store has nothing to commit; a writer of a stream may end early in the same way."""
    with pytest.raises(RuntimeError, match="cut short"):
        archive(golden_store("clean"), str(tmp_path), CutShort(1))
    with Manifest(tmp_path).writing() as head:
        assert head.version == 0
    archive(golden_store("clean"), str(tmp_path), ONE)
    assert archived(tmp_path) == user_offsets("clean")


@pytest.mark.parametrize("damage", [b"", b'{"version": 1, "off', b"[]", b'{"version": 1}', b"\xff\xfe", b"7"])
def test_a_damaged_commit_is_named_with_its_remedy(grown: tuple[str, Path], damage: bytes) -> None:
    store, target = grown
    before = data_files(target)
    for number in (2, 3):  # one is read for every file, the other for the head
        whole = commit_path(target, number).read_bytes()
        commit_path(target, number).write_bytes(damage)
        done = run("archive", "--store", store, "--to", str(target), "--engine", "local")
        assert done.exit_code == 2
        text = f"error: {commit_path(target, number)} is damaged: its {len(damage)} bytes are not a commit"
        assert done.stderr.startswith(text)
        assert "restore it from a backup" in done.stderr
        commit_path(target, number).write_bytes(whole)
    assert data_files(target) == before
    assert archived(target) == user_offsets("clean")


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_log_that_ends_before_its_archive_is_an_error(tmp_path: Path, flags: tuple[str, ...]) -> None:
    store, target = unpack("clean", tmp_path), str(tmp_path / "archive")
    end = archive(store, target, ONE).offsets[store]
    first, *rest = log_files(store)
    for file in rest:
        Path(file.path).unlink()
    shutil.rmtree(Path(store, "consumequeue"))
    in_first = [m for m in expected("clean")["messages"] if m["commitLogOffset"] < first.size_bytes]
    left = max(message["commitLogOffset"] + message["storeSize"] for message in in_first)
    done = run("archive", "--store", store, "--to", target, "--engine", "local", *flags)
    assert done.exit_code == 2
    text = (
        f"{store} was archived up to {end}, but its log ends at {left} now: another store took its place, or messages"
    )
    assert text in done.stderr
    assert "bring the store back" in done.stderr


@pytest.mark.parametrize("name", ["link", "store/commitlog"])
def test_a_store_archived_under_another_name_is_not_archived_again(tmp_path: Path, name: str) -> None:
    """Commits of older versions know it by the path that was given."""
    store, target = unpack("clean", tmp_path), tmp_path / "archive"
    (tmp_path / "link").symlink_to(store)
    kept = Path(log_files(store)[-1].path)
    kept.rename(tmp_path / kept.name)
    shutil.rmtree(Path(store, "consumequeue"))
    archive(store, str(target), ONE)
    commit = json.loads(commit_path(target, 1).read_text())
    for part in ("offsets", "topics"):
        commit[part] = {str(tmp_path / name): commit[part][store]}
    commit_path(target, 1).write_text(json.dumps(commit))
    (tmp_path / kept.name).rename(kept)
    archive(store, str(target), ONE)
    assert archived(target) == user_offsets("clean")
    assert list(Manifest(target).head().offsets) == list(Manifest(target).head().topics) == [store]
    with pytest.raises(ArchiveError, match="with all topics: give the same topics again"):
        archive(store, str(target), ONE, settings=LogSettings(selection=Selection(topics=frozenset({"GoldenOrder"}))))


LIMITED = """
import resource, sys
from contrailmq.cli import app

resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_max}, {bytes_max}))
app({words!r})
"""


@pytest.mark.parametrize(("bytes_max", "failing"), [(6_000, "date="), (1, "date="), (800, "_manifest")])
def test_a_disk_that_takes_no_more_is_told_with_file_and_remedy(
    tmp_path: Path, golden_store: Callable[[str], str], bytes_max: int, failing: str
) -> None:
    """By a limit on the size of files, which the system enforces as it does a full disk."""
    store, target = golden_store("clean"), tmp_path / "archive"
    topics = (
        ["--topics", "GoldenOrder"] if failing == "date=" else ["--topics", ",".join(f"None{n}" for n in range(99))]
    )
    words = ["pipeline", "archive", "--store", store, "--to", str(target), "--engine", "local", *topics]
    code = LIMITED.format(bytes_max=bytes_max, words=words)
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    *_, told = done.stderr.splitlines()
    assert told.startswith(f"error: {target}/{failing}")
    assert told.endswith(
        " cannot be written: File too large; nothing was committed: raise the limit on the size of files (ulimit -f), "
        "then run again"
    )
    assert Manifest(target).head().version == 0
    archive(store, str(target), ONE)
    assert archived(target) == user_offsets("clean")


def test_an_error_of_the_system_is_told_with_its_place_and_remedy(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    (tmp_path / "file").touch()
    done = run("archive", "--store", golden_store("clean"), "--to", str(tmp_path / "file"), "--engine", "local")
    assert done.exit_code == 2
    assert done.stderr == f"error: {tmp_path}/file: Not a directory; name a directory\n"


class Overtaken(type(Path())):  # type: ignore[misc]
    """A folder that another task makes just after this one looked for it."""

    def is_dir(self) -> bool:
        was_there = super().is_dir()
        os.makedirs(self, exist_ok=True)
        return was_there


def test_tasks_that_make_a_folder_at_once_both_have_it(tmp_path: Path) -> None:
    folder = Overtaken(tmp_path, "topic=T", "date=2026-11-15")
    make_folder(folder)
    assert Path(folder).is_dir()


def test_a_file_where_a_folder_belongs_is_named(tmp_path: Path) -> None:
    (tmp_path / "topic=T").touch()
    with pytest.raises(NotADirectoryError) as caught:
        make_folder(tmp_path / "topic=T" / "date=2026-11-15")
    assert caught.value.filename == str(tmp_path / "topic=T")


@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_a_damaged_file_of_an_archive_is_named_with_its_remedy(
    tmp_path: Path, golden_store: Callable[[str], str], damage: str
) -> None:
    archive(golden_store("clean"), str(tmp_path), ONE)
    path = Path(Manifest(tmp_path).paths()[0])
    state = {"cut": "1000 bytes", "empty": "0 bytes", "gone": "gone"}[damage]
    content = path.read_bytes()
    path.write_bytes(content[: 1000 if damage == "cut" else 0])
    if damage == "gone":
        path.unlink()
    done = run("replay", "--from", str(tmp_path), "--dry-run", "--engine", "local")
    assert done.exit_code == 2
    assert f"{path.relative_to(tmp_path)} ({state}); restore them from a backup" in done.stderr


def test_a_garbled_file_of_an_archive_is_named_with_its_remedy(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    archive(golden_store("clean"), str(tmp_path), ONE)
    path = Path(Manifest(tmp_path).paths()[0])
    size = path.stat().st_size
    path.write_bytes(bytes(size))
    done = run("replay", "--from", str(tmp_path), "--dry-run", "--engine", "local")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {path} cannot be read, it has {size} bytes (")
    assert done.stderr.endswith("): restore it from a backup\n")


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("none", "there is no such directory"),
        ("file", "it is a file"),
        ("store", "it is a store"),
        ("folder", "it has no _manifest"),
    ],
)
def test_what_is_no_archive_does_not_read_as_an_empty_one(tmp_path: Path, name: str, state: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    text = f"{tmp_path}/{name} is not an archive, {state}: name the directory that `archive` wrote to"
    done = run("ask", "--archive", str(tmp_path / name), "select count(*) from log")
    assert (done.exit_code, done.stderr) == (2, f"error: {text}\n")
    for job in (partial(read_archive, None), publish_delta, publish_iceberg):
        with pytest.raises(ArchiveError, match=re.escape(text)):
            job(str(tmp_path / name))
    assert not (tmp_path / name / "_manifest").exists()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("store", "store is a store, no place for an archive: give a directory beside it"),
        ("link", "link is a store, no place for an archive: give a directory beside it"),
        ("store/commitlog", "commitlog is a store, no place for an archive: give a directory beside it"),
        ("store/archive", "store/archive is inside the store "),
        ("link/config/../archive/deep", "deep is inside the store "),
        ("", "the archive's directory has no name, '' was given: name one"),
    ],
)
def test_an_archive_does_not_go_into_a_store_or_to_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str
) -> None:
    store = unpack("clean", tmp_path)
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before, target = sorted(tmp_path.rglob("*")), place and f"{tmp_path}/{place}"
    for dry_run in (False, True):
        with pytest.raises(ArchiveError, match=re.escape(text)):
            archive(str(tmp_path / "link"), target, ONE, dry_run=dry_run)
    assert sorted(tmp_path.rglob("*")) == before
    beside = str(tmp_path / "store-archive")  # a name that begins alike
    assert archive(store, beside, ONE).rows == len(user_offsets("clean"))


@pytest.mark.parametrize("place", ["store", ""])
def test_streams_and_topics_are_not_archived_into_a_store_or_to_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for job in (
        partial(archive_stream, None, place, "checkpoint"),
        partial(archive_topics, None, "localhost:1", "T", place),
        partial(topics_to_archive, "localhost:1", "T", place),
    ):
        with pytest.raises(ArchiveError, match="store is a store|'' was given"):
            job()
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "store", tmp_path / "store" / "commitlog"]


def test_topics_without_a_queue_are_warned_of(tmp_path: Path) -> None:
    """They may come later, so the run is none the worse; a store without consume queues does not tell."""
    store, target = unpack("clean", tmp_path), str(tmp_path / "archive")
    words = ("archive", "--store", store, "--to", target, "--topics", "Nope,GoldenOrder,Never", "--engine", "local")
    done = run(*words, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rows"] == 48
    assert done.stderr.startswith(f"warning: {store} has no consume queue of Never, Nope: check the names")
    assert done.stderr.count("\n") == 1
    shutil.rmtree(Path(store, "consumequeue"))
    again = run(*words)
    assert (again.exit_code, again.stderr) == (0, "")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.mark.spark
def test_topics_whose_checkpoint_and_manifest_do_not_belong_together_are_refused(
    spark: Any, tmp_path: Path, cluster: LocalCluster, golden_store: Callable[[str], str]
) -> None:
    """A stream with its checkpoint elsewhere writes to the same archive, before and after."""
    target, copies = tmp_path / "archive", tmp_path / "copies"

    def stream_into_it() -> None:
        source = spark.readStream.format("commitlog").option("path", golden_store("kill9"))
        writer = archive_stream(source, str(target), str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    stream_into_it()
    streamed = len(user_offsets("kill9"))
    with Producer("care_pg", namesrv=cluster.namesrv) as producer:
        for number in range(2):
            producer.send(Message("Cared", b"%d" % number))
            assert archive_topics(spark, cluster.namesrv, "Cared", str(target))["rows"] == 1
            shutil.copytree(target / "_checkpoint", copies / str(number))
        producer.send(Message("Cared", b"late"))
    stream_into_it()
    assert Manifest(target).load().rows == streamed + 2
    shutil.rmtree(target / "_checkpoint")
    for job in (partial(archive_topics, spark), topics_to_archive):
        with pytest.raises(ArchiveError, match="holds 2 batches of topics, but .*_checkpoint is not their checkpoint"):
            job(cluster.namesrv, "Cared", str(target))
    assert not (target / "_checkpoint").exists()
    shutil.copytree(copies / "0", target / "_checkpoint")
    for job in (partial(archive_topics, spark), topics_to_archive):
        with pytest.raises(
            ArchiveError, match="has 1 batches planned and 1 finished, .* holds 2: one of them is an old"
        ):
            job(cluster.namesrv, "Cared", str(target))
    assert Manifest(target).load().rows == streamed + 2
    shutil.rmtree(target / "_checkpoint")
    shutil.copytree(copies / "1", target / "_checkpoint")
    newest = commit_path(target, Manifest(target).head().version)
    newest.rename(copies / "newest")
    before = data_files(target)
    for job in (partial(archive_topics, spark), topics_to_archive):
        with pytest.raises(
            ArchiveError, match="has 2 batches planned and 2 finished, .* holds 1: one of them is an old"
        ):
            job(cluster.namesrv, "Cared", str(target))
    assert data_files(target) == before
    (copies / "newest").rename(newest)
    assert archive_topics(spark, cluster.namesrv, "Cared", str(target))["rows"] == 1
    bodies = [row["body"] for row in read_archive(spark, str(target)).where("topic = 'Cared'").collect()]
    assert sorted(bodies) == [b"0", b"1", b"late"]


def test_topics_of_a_query_without_an_id_go_on(tmp_path: Path, cluster: LocalCluster) -> None:
    """Spark tells no id under PYSPARK_PIN_THREAD=false; its checkpoint has one all the same."""
    with Producer("nameless_pg", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Nameless", b"0"))
    Manifest(tmp_path).commit(ArchiveState(), [], batches={"stream": 0}, checkpoints={"stream": "_checkpoint"})
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").write_text('{"id": "5c1f0b5e-2f7c-4f0e-9d53-6a1b8f0e7c11"}')
    assert topics_to_archive(cluster.namesrv, "Nameless", str(tmp_path)) == {"rows": 1, "files": 0, "version": 1}


@pytest.mark.spark
def test_an_archive_whose_first_run_found_nothing_reads_as_empty(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    archive(str(tmp_path / "store"), str(tmp_path / "archive"), ONE)
    assert read_archive(spark, str(tmp_path / "archive")).count() == 0
