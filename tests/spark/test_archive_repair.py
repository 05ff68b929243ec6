"""`archive --repair`: lost files come back from the log, and what does not come back is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.spark.decoding.store_files import log_files
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.archive_repair import repair
from contrailmq.spark.jobs.manifest import ArchiveError, Layout, Manifest
from contrailmq.spark.jobs.upkeep import compact, expire
from contrailmq.spark.runtime.engine import LocalEngine
from spark.conftest import expected, unpack
from spark.test_archive import archived, begin, user_offsets

ONE = LocalEngine(workers=1)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", "archive", *words, "--engine", "local"])


@pytest.fixture
def store(tmp_path: Path) -> str:
    return unpack("clean", tmp_path)


@pytest.mark.parametrize("layout", ["packed", "topics"])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_files_that_a_foreign_vacuum_removed_come_back(
    store: str, tmp_path: Path, layout: Layout, is_compacted: bool
) -> None:
    """The next run names them, the repair writes exactly their rows, and nothing is there twice."""
    target = tmp_path / "archive"
    begin(target, layout)
    archive(store, str(target), ONE)
    if is_compacted:
        compact(str(target), target_bytes=150_000)
    lost = Manifest(target).load().files[::2]
    for file in lost:
        (target / file.path).unlink()
    failed = run("--store", store, "--to", str(target))
    assert failed.exit_code == 2
    assert f"lacks {len(lost)} of its" in failed.stderr
    assert f"{lost[0].path} (gone)" in failed.stderr
    assert "--repair" in failed.stderr
    done = run("--store", store, "--to", str(target), "--repair", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["lost_rows"] == told["restored_rows"] == sum(file.rows for file in lost)
    assert archived(target) == user_offsets("clean")
    assert json.loads(run("--store", store, "--to", str(target), "--json").stdout)["rows"] == 0
    assert repair(store, str(target)).lost_files == 0


def test_what_the_log_has_no_more_is_named_and_can_be_forgotten(store: str, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    archive(store, str(target), ONE)
    lost = Manifest(target).load().files
    for file in lost:
        (target / file.path).unlink()
    first, *rest = log_files(store)
    Path(first.path).unlink()  # the broker cleaned it
    left = [offset for offset in user_offsets("clean") if offset >= rest[0].base]
    done = run("--store", store, "--to", str(target), "--repair")
    assert done.exit_code == 2
    rows = len(user_offsets("clean"))
    assert f"error: not restored: {', '.join(file.path for file in lost)}: held {rows} messages" in done.stderr
    assert f"the log still has {len(left)} of them" in done.stderr
    with pytest.raises(ArchiveError, match="lacks 5 of its 5 files"):
        Manifest(target).load()
    assert not list(target.glob("date=*/*.parquet"))
    forgotten = run("--store", store, "--to", str(target), "--repair", "--forget-lost")
    assert forgotten.exit_code == 0
    assert "warning: left out" in forgotten.stderr
    assert archived(target) == left


def test_expired_rows_do_not_come_back(store: str, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    archive(store, str(target), ONE)
    times = sorted(message["storeTimestamp"] for message in expected("clean")["messages"])
    expire(str(target), times[len(times) // 2])
    kept = archived(target)
    for path in Manifest(target).paths()[:2]:
        Path(path).unlink()
    done = repair(store, str(target))
    assert done.restored_rows == done.lost_rows > 0
    assert archived(target) == kept
    assert 0 < len(kept) < len(user_offsets("clean"))


def test_another_store_than_was_archived_restores_nothing(store: str, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    archive(store, str(target), ONE)
    Path(Manifest(target).paths()[0]).unlink()
    other = str(tmp_path / "other")
    shutil.copytree(store, other)
    done = repair(other, str(target))
    assert done.restored_rows == 0
    assert len(done.unrestored) == 1
