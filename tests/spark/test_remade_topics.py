"""Topics that were deleted and made again, whose queues count from 0 anew, in the jobs that keep what they read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contrailmq.spark.topic_tables.job import tables
from contrailmq.store import MessageStore, StoreConfig
from spark.test_topic_tables import ONE, put, rows_of

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
