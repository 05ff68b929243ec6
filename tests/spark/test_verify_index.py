"""`verify` of an index: what is gone is told, what was never there is told as that, and so is what outlived its log."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import Message, encode_host
from contrailmq.message.codec import encode_record
from contrailmq.spark.decoding.index_shape import IndexShape
from contrailmq.spark.decoding.store_files import StoreFilesError, confirmed_end
from contrailmq.spark.jobs import verify as job
from contrailmq.spark.jobs.rebuild import rebuild
from contrailmq.spark.jobs.verify import Finding, verify
from contrailmq.spark.runtime.engine import LocalEngine, SparkEngine
from contrailmq.store import MessageStore, StoreConfig
from spark.conftest import expected, unpack

ONE = LocalEngine(workers=1)
GONE = "keys of records, and the store has no index file: it had an index once, which is gone; rebuild makes it again"
GONE_OR_OFF = (
    "keys of records, and the store has no index file: its index is gone and rebuild makes it again, or its broker "
    "writes none (messageIndexEnable=false)"
)


def keys_due(name: str) -> list[int]:
    """The places of the records of a store, each as often as it has keys; its unique id is one."""
    found = []
    for message in expected(name)["messages"]:
        properties = message["properties"]
        count = ("UNIQ_KEY" in properties) + len(properties.get("KEYS", "").split())
        found += [message["commitLogOffset"]] * count
    return found


@pytest.mark.parametrize(("left", "detail"), [("its time", GONE), ("its directory", GONE), ("nothing", GONE_OR_OFF)])
def test_an_index_that_is_gone_is_one_finding(tmp_path: Path, left: str, detail: str) -> None:
    """What is left of it: the checkpoint has the time of the newest file that was filled, or 0."""
    store = unpack("clean", tmp_path)
    shutil.rmtree(Path(store, "index"))
    if left == "its directory":
        Path(store, "index").mkdir()
    if left != "its time":
        checkpoint = Path(store, "checkpoint").read_bytes()
        Path(store, "checkpoint").write_bytes(checkpoint[:16] + bytes(8) + checkpoint[24:])
    (found,) = verify(store, ONE, range_bytes=25_000)
    due = keys_due("clean")
    assert found == Finding("no-index-entry", store, None, None, None, due[0], len(due), detail)
    told = CliRunner().invoke(app, ["pipeline", "verify", "--store", store, "--engine", "local", "--json"])
    assert (told.exit_code, json.loads(told.stdout)["findings"]) == (1, [found._asdict()])
    rebuild(store, ONE, index_shape=IndexShape(100, 400))
    assert verify(store, ONE) == []


def test_a_checkpoint_that_is_no_file_is_no_trace_of_an_index(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    shutil.rmtree(Path(store, "index"))
    Path(store, "checkpoint").unlink()
    Path(store, "checkpoint").mkdir()
    assert [finding.detail for finding in verify(store, ONE)] == [GONE_OR_OFF]


def test_a_store_whose_broker_writes_no_index_is_told_as_such(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    config = StoreConfig(store, mapped_file_size_commit_log=64 * 1024, message_index_enable=False)
    with MessageStore(config) as opened:
        opened.put(Message("Orders", b"x", keys="a b"), queue_id=0)
    assert not Path(store, "index").exists()
    (found,) = verify(store, ONE)
    assert (found.kind, found.rows, found.detail) == ("no-index-entry", 3, GONE_OR_OFF)  # two keys and the unique id


def test_no_index_is_missed_where_no_record_has_a_key(tmp_path: Path) -> None:
    """A tag alone is not missed: RocketMQ before 5.5 entered none."""
    host = encode_host("10.0.0.1", 1)
    record = encode_record(
        "T", b"body", b"TAGS\x01paid\x02", queue_id=0, queue_offset=0, physical_offset=0, born_host=host,
        store_host=host, born_time_ms=1, store_time_ms=1,
    )  # fmt: skip
    Path(tmp_path, "commitlog").mkdir()
    Path(tmp_path, "commitlog", "0" * 20).write_bytes(record + bytes(5000))
    assert [finding.kind for finding in verify(str(tmp_path), ONE)] == ["no-unit"]


def keyed(folder: Path) -> tuple[str, list[int]]:
    """A store of 500 messages, each with a key and its unique id in the index, and where they lie in the log."""
    with MessageStore(StoreConfig(str(folder), mapped_file_size_commit_log=1024 * 1024)) as opened:
        places = [
            opened.put(Message("Orders", b"x", keys=[f"k{number}"]), queue_id=0).physical_offset
            for number in range(500)
        ]
    return str(folder), [int(place) for place in places]


def zero_from(path: Path, position: int) -> None:
    """Zeros from there to the end of a file, whose size stays."""
    size = path.stat().st_size
    os.truncate(path, position)
    os.truncate(path, size)


@pytest.mark.spark
@pytest.mark.parametrize("left", [250, 0])
def test_index_entries_behind_the_end_of_the_log_are_stray(tmp_path: Path, spark: Any, left: int) -> None:
    """A log that lost its end, and its queue with it; of both nothing is left in the second case."""
    store, places = keyed(tmp_path / "store")
    assert verify(store, ONE) == []
    end = places[left]
    zero_from(Path(store, "commitlog", "0" * 20), end)
    zero_from(Path(store, "consumequeue", "Orders", "0", "0" * 20), left * 20)
    detail = f"index entries that point past the last record: the log ends at {end}"
    told = [Finding("stray-index-entry", store, None, None, None, end, 2 * (500 - left), detail)]
    assert verify(store, ONE, range_bytes=10_000) == told
    assert verify(store, SparkEngine(spark), range_bytes=10_000) == told


def test_index_entries_of_a_store_without_log_files_are_stray(tmp_path: Path) -> None:
    store, _ = keyed(tmp_path / "store")
    Path(store, "commitlog", "0" * 20).unlink()
    shutil.rmtree(Path(store, "consumequeue"))
    assert [(found.kind, found.physical_offset, found.rows) for found in verify(store, ONE)] == [
        ("stray-index-entry", 0, 1000)
    ]


def test_index_entries_of_messages_that_came_meanwhile_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes on after the end of its log was looked up, and before its index is read."""
    ends: list[int] = []
    store, _ = keyed(tmp_path / "store")

    def overtaken(path: str) -> int:
        ends.append(confirmed_end(path))
        if len(ends) == 1:
            with MessageStore(StoreConfig(store, mapped_file_size_commit_log=1024 * 1024)) as opened:
                opened.put(Message("Orders", b"y", keys="late"), queue_id=0)
        return ends[-1]

    monkeypatch.setattr(job, "confirmed_end", overtaken)
    assert verify(store, ONE) == []
    assert len(ends) == 2
    assert ends[0] < ends[1]


def test_index_entries_of_cleaned_log_files_are_no_damage(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    shutil.rmtree(Path(store, "consumequeue"))
    Path(store, "commitlog", "0" * 20).unlink()
    assert "stray-index-entry" not in {finding.kind for finding in verify(store, ONE)}


def test_an_index_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    shutil.rmtree(Path(store, "index"))
    Path(store, "index").write_bytes(b"")
    text = rf"cannot list the index {re.escape(store)}/index: Not a directory; name a directory"
    with pytest.raises(StoreFilesError, match=text):
        verify(store, ONE)
    told = CliRunner().invoke(app, ["pipeline", "verify", "--store", store, "--engine", "local"])
    assert told.exit_code == 2, told.output


def test_an_index_that_may_not_be_read_is_not_told_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read anything: the listing is refused in the system's stead."""
    store, scan = unpack("clean", tmp_path), os.scandir

    def refused(path: Any) -> Any:
        if Path(path) == Path(store, "index"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    text = rf"cannot list the index {re.escape(store)}/index: Permission denied; give this user the right to it"
    with pytest.raises(StoreFilesError, match=text):
        verify(store, ONE)
