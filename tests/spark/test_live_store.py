"""Reading the files of a store that is open and being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from contrailmq.message import Message
from contrailmq.spark import scan
from contrailmq.spark.commitlog import CommitLogStreamReader
from contrailmq.spark.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.store_files import confirmed_end
from contrailmq.store import MessageStore, StoreConfig


def put(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(Message("Live", b"%d" % number, tags="t", keys=[f"k{number}"]), queue_id=number % 3)


def numbers(path: str) -> list[int]:
    settings = LogSettings()
    parts = plan_parts(path, 0, confirmed_end(path), settings)
    return [int(body) for part in parts for batch in read_part(part, settings) for body in batch["body"].to_pylist()]


def test_an_open_store_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    """Small log files, so that the log rolls while it is read; its queues are written later than the log."""
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=16 * 1024)) as store:
        for first in range(0, 300, 60):
            put(store, first, 60)
            assert numbers(path) == list(range(first + 60))
    assert numbers(path) == list(range(300))


def test_a_stream_of_an_open_store_sees_each_message_once(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    seen: list[int] = []
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=16 * 1024)) as store:
        put(store, 0, 1)
        reader = CommitLogStreamReader(path, LogSettings())
        at: dict[str, Any] = reader.initialOffset()
        for first in range(1, 201, 40):
            put(store, first, 40)
            end = reader.latestOffset(at, ReadAllAvailable())
            for partition in reader.partitions(at, end):
                for batch in reader.read(partition):
                    seen += [int(body) for body in batch.column("body").to_pylist()]
            at = end
    assert seen == list(range(201))


def test_the_end_of_a_live_log_is_found_without_looking_through_the_space_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log file is a gigabyte of zeros but for its head, and a stream asks for its end with every micro-batch."""
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=16 * 1024)) as store:
        put(store, 0, 60)
    sought: list[int] = []
    find = scan._find_record

    def watched(*given: Any) -> int:
        sought.append(given[3])
        return find(*given)

    monkeypatch.setattr(scan, "_find_record", watched)
    end = confirmed_end(path)
    assert end == confirmed_end(path, known_end=end)
    assert sought == []
    assert numbers(path) == list(range(60))
