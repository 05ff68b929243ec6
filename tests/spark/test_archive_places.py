"""Rows of several stores in one archive are told apart, and files that somebody removed are missed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from contrailmq import Message
from contrailmq.cli import app
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.jobs.archive import archive, read_archive
from contrailmq.spark.jobs.manifest import ArchiveError, Manifest
from contrailmq.spark.jobs.replay import replay
from contrailmq.store import MessageStore, StoreConfig
from spark.conftest import expected
from spark.test_archive import ONE


def names(target: Path) -> list[str | None]:
    found = [pq.read_table(path, partitioning=None)["brokerName"].to_pylist() for path in Manifest(target).paths()]
    return sorted({name for part in found for name in part}, key=str)


def fill(store: Path, count: int) -> None:
    with MessageStore(StoreConfig(str(store), mapped_file_size_commit_log=64 * 1024)) as opened:
        for number in range(count):
            opened.put(Message("Orders", b"%d" % number), queue_id=0)


def test_rows_of_two_stores_do_not_share_their_places(golden_store: Callable[[str], str], tmp_path: Path) -> None:
    """Both were written at the same address."""
    firsts = [expected(name)["messages"][0] for name in ("clean", "direct")]
    wanted = sorted(f"{first['storeHost']}@{first['storeTimestamp']}" for first in firsts)
    archive(f"{golden_store('clean')},{golden_store('direct')}", str(tmp_path), ONE)
    assert names(tmp_path) == wanted
    assert len(wanted) == 2


def test_a_store_keeps_its_name_when_its_log_was_cleaned_and_an_old_archive_gains_one(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "archive"
    fill(store, 1000)
    archive(str(store), str(target), ONE)
    (name,) = names(target)
    files = sorted((store / "commitlog").iterdir())
    files[0].unlink()  # all of it was archived
    fill(store, 5)
    archive(str(store), str(target), ONE)
    assert names(target) == [name]
    for path in sorted((target / "_manifest").glob("*.json")):  # as older versions wrote them
        commit = json.loads(path.read_text())
        del commit["names"]
        path.write_text(json.dumps(commit))
    fill(store, 5)
    assert archive(str(store), str(target), ONE).rows == 5
    assert len(names(target)) == 2


def test_the_name_of_the_broker_may_be_given_and_stays(golden_store: Callable[[str], str], tmp_path: Path) -> None:
    words = ["pipeline", "archive", "--to", str(tmp_path), "--engine", "local", "--store"]
    done = CliRunner().invoke(app, [*words, golden_store("clean"), "--broker-name", "broker-a"])
    assert (done.exit_code, names(tmp_path)) == (0, ["broker-a"]), done.output
    with pytest.raises(ArchiveError, match="archived as the store of broker 'broker-a', not 'broker-b'"):
        archive(golden_store("clean"), str(tmp_path), ONE, settings=LogSettings(broker_name="broker-b"))
    both = CliRunner().invoke(
        app, [*words, f"{golden_store('clean')},{golden_store('direct')}", "--broker-name", "broker-a"]
    )
    assert both.exit_code == 2
    assert "are 2 stores, and 'broker-a' is the name of one broker" in both.stderr


def test_files_that_somebody_removed_are_an_error_with_their_names(
    golden_store: Callable[[str], str], tmp_path: Path
) -> None:
    store, target = golden_store("clean"), str(tmp_path / "archive")
    archive(store, target, ONE)
    files = Manifest(target).load().files
    removed, cut = files[1], files[3]
    (Path(target) / removed.path).unlink()
    (Path(target) / cut.path).write_bytes(b"PAR1")
    spark: Any = None  # nothing is asked of it
    for use in (
        lambda: archive(store, target, ONE),
        lambda: archive(store, target, ONE, dry_run=True),
        lambda: read_archive(spark, target),
        lambda: replay(target, "Again", "127.0.0.1:1", dry_run=True),
    ):
        with pytest.raises(ArchiveError) as raised:
            use()
        said = str(raised.value)
        assert f"lacks 2 of its {len(files)} files" in said
        assert f"held {removed.rows + cut.rows} messages: {removed.path} (gone), {cut.path} (4 bytes);" in said
        assert "restore them from a backup" in said
    assert sum(1 for _ in Path(target).glob("date=*/*.parquet")) == len(files) - 1  # nothing else was deleted
