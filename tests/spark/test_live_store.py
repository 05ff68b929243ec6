"""Reading the files of a store that is open and being written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from contrailmq.message import Message
from contrailmq.spark.decoding import queue_units, scan, store_files
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.store_files import confirmed_end
from contrailmq.spark.sources.commitlog import CommitLogStreamReader
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


def test_what_comes_before_a_start_at_the_end_is_looked_up_is_no_loss_and_not_read(tmp_path: Path) -> None:
    """Spark asks for the end of AvailableNow first, and for the start then."""
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=16 * 1024)) as store:
        put(store, 0, 3)
        reader = CommitLogStreamReader(path, LogSettings(), begins_at_end=True)
        reader.prepareForTriggerAvailableNow()
        put(store, 3, 2)
        start: dict[str, Any] = reader.initialOffset()
        put(store, 5, 2)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["stores"] == start["stores"]
        asked_again = reader.initialOffset()  # as Spark does before it plans the first batch
        assert asked_again != start
        assert reader.partitions(asked_again, end) == []
        assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_first_batch_from_the_end_is_planned_again_from_where_it_began(tmp_path: Path) -> None:
    """Spark died after it had saved the end of the batch; it asks for the start anew, which is behind that by now."""
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=16 * 1024)) as store:
        put(store, 0, 3)
        reader = CommitLogStreamReader(path, LogSettings(), begins_at_end=True)
        start: dict[str, Any] = reader.initialOffset()
        put(store, 3, 2)
        end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
        put(store, 5, 2)
        restarted = CommitLogStreamReader(path, LogSettings(), begins_at_end=True)
        parts = restarted.partitions(restarted.initialOffset(), end)
        batches = [batch for part in parts for batch in restarted.read(part)]
    assert [int(body) for batch in batches for body in batch.column("body").to_pylist()] == [3, 4]


def test_a_store_that_appeared_is_planned_again_from_where_it_began(tmp_path: Path) -> None:
    """Its first file was deleted in between, which is a loss."""
    for name, count in (("a", 1), ("b", 200)):
        with MessageStore(StoreConfig(str(tmp_path / name), mapped_file_size_commit_log=16 * 1024)) as store:
            put(store, 0, count)
    reader = CommitLogStreamReader(f"{tmp_path}/*", LogSettings())
    start: dict[str, Any] = {"stores": {str(tmp_path / "a"): confirmed_end(str(tmp_path / "a"))}, "version": 1}
    end = reader.latestOffset(start, ReadAllAvailable())
    Path(store_files.log_files(str(tmp_path / "b"))[0].path).unlink()
    with pytest.raises(store_files.StoreFilesError, match="16384 bytes were deleted unread"):
        reader.partitions(start, end)


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


@pytest.fixture
def cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[store_files.LogFile], int]:
    """A store whose oldest log file and whose queue 0 are deleted just after their directories were listed."""
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=16 * 1024)) as store:
        put(store, 0, 301)
        end = store.log_max_offset
    files, queues = store_files.log_files(path), queue_units.queue_files(path)
    assert len(files) > 2
    assert queues[0][:2] == ("Live", 0)
    monkeypatch.setattr(store_files, "log_files", lambda store: files)
    for module in (store_files, queue_units):
        monkeypatch.setattr(module, "queue_files", lambda store: queues)
    Path(files[0].path).unlink()
    shutil.rmtree(Path(queues[0].paths[0]).parent)
    return path, files, end


@pytest.mark.parametrize("skips_damage", [False, True])
@pytest.mark.parametrize("is_first_look", [False, True])
def test_files_that_are_deleted_meanwhile_do_not_hide_the_end_of_the_log(
    cleaned: tuple[str, list[store_files.LogFile], int], is_first_look: bool, skips_damage: bool
) -> None:
    path, files, end = cleaned
    assert confirmed_end(path, known_end=0 if is_first_look else files[1].base, skips_damage=skips_damage) == end


def test_a_stream_that_stands_in_a_file_that_is_deleted_goes_on_behind_it(
    cleaned: tuple[str, list[store_files.LogFile], int],
) -> None:
    path, files, end = cleaned
    assert store_files.record_at_or_after(path, 10, end) == files[1].base
    assert confirmed_end(path, known_end=files[0].base + 1) == end


def test_a_plan_by_time_takes_a_deleted_file_for_one_of_any_time(
    cleaned: tuple[str, list[store_files.LogFile], int],
) -> None:
    path, files, end = cleaned
    parts = plan_parts(path, 0, end, LogSettings(selection=Selection(begin_ms=1)))
    assert sorted({part.range.path for part in parts}) == [file.path for file in files]


def test_queues_that_go_while_they_are_listed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path)) as store:
        put(store, 0, 3)
    listed = queue_units._inside

    def overtaken(folder: Path) -> list[Path]:
        found = listed(folder)
        if folder.name == "Live":
            shutil.rmtree(folder / "1")
        return found

    monkeypatch.setattr(queue_units, "_inside", overtaken)
    assert [queue.queue_id for queue in queue_units.queue_files(path)] == [0, 2]


def test_the_last_units_of_a_queue_are_read_without_its_older_files(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path, mapped_file_size_consume_queue=20 * 20)) as store:
        put(store, 0, 300)
    queue = queue_units.queue_files(path)[0]
    last = queue_units.last_places(queue)
    Path(queue.paths[0]).unlink()
    assert len(last) == 16
    assert queue_units.last_places(queue) == last
