"""Topics that were deleted and made again, whose queues count from 0 anew, in the jobs that keep what they read."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrailmq import Admin, Message, Producer
from contrailmq.cli import app
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.jobs.archive import RECORDS_VIEW, archive
from contrailmq.spark.jobs.archive_rows import archived_tables
from contrailmq.spark.jobs.replay import replay
from contrailmq.spark.jobs.restore import restore
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.topic_tables.job import tables
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster
from spark.test_exactly_once import records
from spark.test_topic_tables import ONE, put, rows_of, stored

USERS = {"Users": {"schema": "id bigint, n int", "key": ["id"], "buckets": 2}}


def remake(store: Path, topic: str) -> None:
    with MessageStore(StoreConfig(store, mapped_file_size_commit_log=1 << 20)) as opened:
        opened.delete_topics([topic])


@pytest.mark.parametrize("runs_between", [True, False])
def test_changes_after_a_topic_was_made_again_are_newer_than_those_before(tmp_path: Path, runs_between: bool) -> None:
    """Their queue offsets are lower. Without a run between, one run reads both lives of the queue."""
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Users", [{"id": n % 6, "n": n} for n in range(30)], queues=1)
    if runs_between:
        tables(str(store), str(target), ONE, USERS)
    remake(store, "Users")
    put(store, "Users", [{"id": n, "n": 100 + n} for n in range(3)], queues=1)
    put(store, "Users", [b"null"], queues=1, keys=["4"])
    tables(str(store), str(target), ONE, USERS)
    found = {row["id"]: row["n"] for row in rows_of(target, "Users")}
    assert found == {0: 100, 1: 101, 2: 102, 3: 27, 5: 29}


def test_changes_that_are_read_again_do_not_bring_an_older_row_back(tmp_path: Path) -> None:
    """Another source of the same messages: here a copy of the store, under the same broker's name."""
    store, copy, target = tmp_path / "store", tmp_path / "copy", tmp_path / "lake"
    put(store, "Users", [{"id": n % 6, "n": n} for n in range(12)], queues=1)
    shutil.copytree(store, copy)
    put(store, "Users", [{"id": n, "n": 100 + n} for n in range(6)], queues=1)
    tables(str(store), str(target), ONE, USERS, broker_name="b")
    tables(str(copy), str(target), ONE, USERS, broker_name="b")
    assert {row["id"]: row["n"] for row in rows_of(target, "Users")} == {n: 100 + n for n in range(6)}


@pytest.mark.parametrize("is_archived", [True, False])
def test_both_lives_of_a_queue_are_replayed_in_their_order_and_with_keys_of_their_own(
    tmp_path: Path, is_archived: bool
) -> None:
    """Of two messages with one key, a consumer that drops repeats would drop the second."""
    store = tmp_path / "store"
    put(store, "Orders", [{"n": n} for n in range(4)], queues=1)
    remake(store, "Orders")
    put(store, "Orders", [{"n": n} for n in range(4, 8)], queues=1)
    source = str(store)
    if is_archived:
        source = str(tmp_path / "archive")
        archive(str(store), source, ONE)
    with LocalCluster() as cluster:
        for _ in range(2):  # the same keys in every replay
            assert replay(source, "Again", cluster.namesrv).sent == 8
        found = records(cluster.namesrv, "Again")
    assert [json.loads(message.body)["n"] for message in found] == [*range(8), *range(8)]
    keys = [message.properties[DEDUP_PROPERTY] for message in found]
    assert keys[:8] == keys[8:]
    assert len(set(keys)) == 8


@pytest.mark.parametrize("keep_records", [True, False])
def test_a_restore_tells_what_no_broker_will_serve_and_how_to_restore_that(tmp_path: Path, keep_records: bool) -> None:
    """A queue holds one life of its topic. The other can be restored by itself."""
    store, source = tmp_path / "store", str(tmp_path / "archive")
    put(store, "Orders", [{"n": n} for n in range(5)], queues=1)
    remake(store, "Orders")
    put(store, "Orders", [{"n": n} for n in range(5, 8)], queues=1)
    archive(str(store), source, ONE, settings=LogSettings(view=RECORDS_VIEW) if keep_records else None)
    done = restore(source, str(tmp_path / "both"), log_file_bytes=1 << 20)
    assert (done.messages, done.in_no_queue) == (8, 5)
    assert [json.loads(body)["n"] for body in stored(tmp_path / "both", "Orders").values()] == [5, 6, 7]
    said = CliRunner().invoke(app, ["pipeline", "restore", "--archive", source, "--to", str(tmp_path / "told")])
    assert said.exit_code == 0
    assert "warning: 5 of 8 messages are in the log and in no queue" in said.stderr
    times = sorted(row["storeTimestamp"] for table in archived_tables(source, Selection()) for row in table.to_pylist())
    until = Selection(end_ms=round(times[5].timestamp() * 1000))
    done = restore(source, str(tmp_path / "first"), selection=until, log_file_bytes=1 << 20)
    assert (done.messages, done.in_no_queue) == (5, 0)
    assert [json.loads(body)["n"] for body in stored(tmp_path / "first", "Orders").values()] == [0, 1, 2, 3, 4]


@pytest.mark.spark
@pytest.mark.parametrize("job", ["archive", "tables"])
def test_a_job_of_a_topic_that_was_made_again_names_its_own_way_on_and_it_works(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    for module in ("contrailmq.cli.pipeline", "contrailmq.cli.pipeline_tables"):  # the session is for all tests
        monkeypatch.setattr(f"{module}.spark_session", lambda *_: contextlib.nullcontext(spark))
    with LocalCluster() as cluster, Admin(namesrv=cluster.namesrv) as admin:
        words = ["pipeline", job, "-n", cluster.namesrv, "--to", str(tmp_path / "to"), "--topics", "Orders", "--json"]

        def sent(count: int) -> None:
            admin.create_topic("Orders", queues=1)
            with Producer("maker", namesrv=cluster.namesrv) as producer:
                for number in range(count):
                    producer.send(Message("Orders", b'{"n":%d}' % number))

        sent(3)
        assert json.loads(CliRunner().invoke(app, words).stdout)["rows"] == 3
        admin.delete_topic("Orders")
        sent(5)
        failed = CliRunner().invoke(app, words)
        assert failed.exit_code == 2
        assert "begin in another directory, or give --accept-loss to read it from its beginning" in failed.stderr
        assert json.loads(CliRunner().invoke(app, [*words, "--accept-loss"]).stdout)["rows"] == 5
        assert json.loads(CliRunner().invoke(app, words).stdout)["rows"] == 0
