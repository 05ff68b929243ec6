"""`verify` of a store without an index: what is gone is told, and what was never there is told as that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import Message, encode_host
from contrailmq.spark.engine import LocalEngine
from contrailmq.spark.jobs.index_files import IndexShape
from contrailmq.spark.jobs.rebuild import rebuild
from contrailmq.spark.jobs.verify import Finding, verify
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.record import encode_record
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
