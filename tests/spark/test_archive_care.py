"""What an archive refuses: nothing of others is deleted, and nothing that was lost passes for empty or for done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrailmq import Message, Producer
from contrailmq.cli import app
from contrailmq.spark.decode import Selection
from contrailmq.spark.engine import LocalEngine
from contrailmq.spark.jobs.archive import archive, archive_stream, read_archive
from contrailmq.spark.jobs.archive_topics import archive_topics, topics_to_archive
from contrailmq.spark.jobs.manifest import ArchiveError, Manifest
from contrailmq.spark.log_plan import LogSettings
from contrailmq.spark.store_files import log_files
from contrailmq.testing import LocalCluster
from spark.conftest import expected, unpack
from spark.test_archive import archived, user_offsets

ONE = LocalEngine(workers=1)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def data_files(target: Path) -> set[Path]:
    return set(target.glob("topic=*/date=*/*"))


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


@pytest.mark.parametrize("damage", [b"", b'{"version": 1, "off', b"[]", b'{"version": 1}', b"\xff\xfe", b"7"])
def test_a_damaged_commit_is_named_with_its_remedy(grown: tuple[str, Path], damage: bytes) -> None:
    store, target = grown
    before = data_files(target)
    for number in (2, 3):  # one is read for every file, the other for the head
        whole = commit_path(target, number).read_bytes()
        commit_path(target, number).write_bytes(damage)
        done = run("archive", "--store", store, "--to", str(target), "--engine", "local")
        assert done.exit_code == 2
        text = f"error: {commit_path(target, number)} is damaged: its {len(damage)} bytes are no commit"
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


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.mark.spark
def test_topics_whose_checkpoint_was_lost_or_is_old_are_not_archived_again(
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
        with pytest.raises(ArchiveError, match=r"knows 1 batches, .* holds 2: messages would be passed over; restore"):
            job(cluster.namesrv, "Cared", str(target))
    assert Manifest(target).load().rows == streamed + 2
    shutil.rmtree(target / "_checkpoint")
    shutil.copytree(copies / "1", target / "_checkpoint")
    assert archive_topics(spark, cluster.namesrv, "Cared", str(target))["rows"] == 1
    bodies = [row["body"] for row in read_archive(spark, str(target)).where("topic = 'Cared'").collect()]
    assert sorted(bodies) == [b"0", b"1", b"late"]
