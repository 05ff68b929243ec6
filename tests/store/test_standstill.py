"""Dispatch that cannot go on, and what the system refuses: puts stop, the cause is named, and all goes on later."""

from __future__ import annotations

import errno
import logging
import resource
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles, no_space

from contrailmq.message import Message
from contrailmq.store import Drive, ManualClock, MessageStore, PutStatus, StoreConfig
from contrailmq.store.base.errors import StoreFullError, StoreIOError
from contrailmq.store.files import DiskUsage
from contrailmq.store.recovery.queue_ledger import read_ledger

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 400,
    "mapper_file_size_batch_consume_queue": 460,
    "max_hash_slot_num": 20,
    "max_index_num": 40,
    "flush_interval_consume_queue": 3_600_000,  # housekeeping when the test says so
}
INDEX_BYTES = 40 + 20 * 4 + 40 * 20
FREE_BYTES = 700
ONE: dict[str, Any] = {"tags_code": 0, "keys": None, "unique_key": "id"}


class FullFiles(FaultyFiles):
    """No room for the files of one directory, as long as `full` names it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.records = False
        self.free_bytes = FREE_BYTES
        self.full = ""
        self.fault = self._refuse

    def _refuse(self, operation: str, path: Path, _count: int) -> OSError | None:
        is_there = bool(self.full) and self.full in path.parts
        return no_space() if is_there and operation in ("create", "allocate", "pwrite") else None


def standstills(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "dispatch stopped" in record.getMessage()]


def fill(store: MessageStore) -> int:
    """Put until it is refused; how many were stored."""
    for number in range(5_000):
        try:
            assert store.put(Message("T", b"%d" % number)).status is PutStatus.PUT_OK
        except StoreFullError:
            return number
    raise AssertionError("never refused")


@pytest.mark.parametrize(
    ("where", "needed"), [("index", INDEX_BYTES), ("consumequeue", 400), ("batchconsumequeue", 460)]
)
def test_puts_are_refused_with_the_cause_while_dispatch_has_no_room_and_taken_when_it_has(
    where: str, needed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FullFiles(tmp_path)
    batch_topics = {"T"} if where == "batchconsumequeue" else set()
    config = StoreConfig(tmp_path, **SIZES)
    store = MessageStore(config, files=files, clock=ManualClock(), batch_topics=batch_topics).open()
    store.put(Message("T", b"before"))
    assert store.max_offset("T", 0) == 1
    files.full = where
    with caplog.at_level(logging.INFO):
        stored = fill(store)
        with pytest.raises(StoreFullError) as refused:
            store.put(Message("T", b"refused"))
        assert f"{tmp_path / where}" in str(refused.value)
        assert f"needs {needed} B for the next file, {FREE_BYTES} B are free: free space" in str(refused.value)
        assert (refused.value.needed_bytes, refused.value.free_bytes) == (needed, FREE_BYTES)
        assert str(refused.value) in store.unwritable_reason
        assert "until dispatch goes on" in store.standstill_reason
        log_end = store.log_max_offset
        for _ in range(5):
            store.get("T", 0, 0)
            store.tick()
        assert len(standstills(caplog)) == 1
        files.full = ""
        store.tick()
        assert (store.writable, store.standstill_reason) == (True, "")
        assert "puts are taken again" in caplog.text
    assert store.log_max_offset == log_end
    assert store.put(Message("T", b"after")).queue_offset == stored + 1
    assert store.max_offset("T", 0) == stored + 2
    files.full = where
    with caplog.at_level(logging.INFO):
        fill(store)
    assert len(standstills(caplog)) == 2  # another one
    files.full = ""
    store.close()
    assert not (tmp_path / "abort").exists()


def test_a_loop_is_told_to_dispatch_again(tmp_path: Path) -> None:
    files = FullFiles(tmp_path)
    with MessageStore(StoreConfig(tmp_path, **SIZES), files=files, drive=Drive.LOOP) as store:
        files.full = "index"
        assert store.append("T", 0, b"x", b"", **ONE).status is PutStatus.PUT_OK
        store.dispatch()
        refused = store.append("T", 0, b"y", b"", **ONE)
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert f"needs {INDEX_BYTES} B" in refused.reason
        assert store.standstill_reason == refused.reason
        files.full = ""
        assert store.dispatch() == 1
        assert store.append("T", 0, b"y", b"", **ONE).status is PutStatus.PUT_OK


def test_opening_on_a_full_disk_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **SIZES)) as store:
        store.put(Message("T", b"x"))
    (index_file,) = (tmp_path / "index").iterdir()
    index_file.unlink()
    files = FullFiles(tmp_path)
    files.full = "index"
    with pytest.raises(StoreFullError) as refused:
        MessageStore(StoreConfig(tmp_path, **SIZES), files=files).open()
    assert f"{tmp_path / 'index'}" in str(refused.value)
    assert f"needs {INDEX_BYTES} B for the next file, {FREE_BYTES} B are free: free space" in str(refused.value)


class UsedFiles(FaultyFiles):
    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1 << 30, 95 * (1 << 30) // 100, 5 * (1 << 30) // 100)


def test_a_disk_that_is_full_by_ratio_is_said_to_be_so(tmp_path: Path) -> None:
    clock = ManualClock()
    files = UsedFiles(tmp_path)
    with MessageStore(StoreConfig(tmp_path, **SIZES), files=files, clock=clock) as store:
        clock.advance(61_000)
        store.tick()
        with pytest.raises(
            StoreFullError, match="is used to 96%, above 90%: free space or lower fileReservedTime .51.2 MiB"
        ):
            store.put(Message("T", b"x"))


def test_too_many_open_files_are_counted_and_the_remedy_is_named(tmp_path: Path) -> None:
    files = FullFiles(tmp_path)
    files.fault = lambda operation, path, _: (
        OSError(errno.EMFILE, "Too many open files")
        if operation == "open" and path.parent.name == "commitlog"
        else None
    )
    with MessageStore(StoreConfig(tmp_path, **SIZES)) as store:
        store.put(Message("T", b"x"))
    with pytest.raises(StoreIOError) as refused:
        MessageStore(StoreConfig(tmp_path, **SIZES), files=files).open()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"this process has {limit} files open, which is its limit; raise it (ulimit -n" in str(refused.value)
    assert "commitlog" in str(refused.value)


def test_other_tasks_have_their_turn_when_queues_cannot_be_written(tmp_path: Path) -> None:
    """Cleaning is one of them: it would never make room."""
    files, turns = FullFiles(tmp_path), list[str]()
    with MessageStore(StoreConfig(tmp_path, **SIZES), files=files, clock=ManualClock()) as store:
        store._housekeeping.add_task(lambda: turns.append("cleaned"))
        store.put(Message("T", b"x"))
        assert store.max_offset("T", 0) == 1  # dispatched: a unit waits to be written
        files.full = "consumequeue"
        store._housekeeping._asked += 1  # what persist_soon does, without waking the thread
        store._housekeeping.tick()
        assert turns == ["cleaned"]
        assert "No space left" in str(store._housekeeping.error)
        files.full = ""
        store._housekeeping.tick()
        assert store._housekeeping.error is None


def test_what_could_not_be_persisted_is_tried_again_in_the_next_round(tmp_path: Path) -> None:
    files = FullFiles(tmp_path)
    with MessageStore(StoreConfig(tmp_path, **SIZES), files=files, clock=ManualClock()) as store:
        store.put(Message("T", b"x"))
        assert store.max_offset("T", 0) == 1
        files.full = "queues.ledger.new"
        store._housekeeping._asked += 1
        store._housekeeping.tick()
        assert "No space left" in str(store._housekeeping.error)
        files.full = ""
        store._housekeeping.tick()
        ledger = read_ledger(tmp_path, files)
        assert ledger is not None
        assert [(entry.topic, entry.max_offset) for entry in ledger.queues] == [("T", 1)]
