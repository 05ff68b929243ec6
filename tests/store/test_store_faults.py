"""Disks that fail, fill up or stall: the cause is named, nothing acknowledged is lost, and the store goes on if it may.

Each test first runs the workload on a good disk and counts the operations of a kind, then runs it once for each of
them with that one failing.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, no_space, sync_error

from contrailmq.message import Message
from contrailmq.store import Files, ManualClock, MessageStore, PutStatus, StoreConfig, StoreError
from contrailmq.store.base.errors import StoreFullError, StoreIOError, StoreReadOnlyError
from contrailmq.store.queues.consume_queue_table import SYNC_TOGETHER_LEAST

STRIDE = 1 if os.environ.get("CONTRAILMQ_LONG") else 7  # every n-th call site; the long run takes each


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("contrailmq.store")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(before)


def settings_at(path: Path, **more: object) -> StoreConfig:
    return StoreConfig(
        path,
        mapped_file_size_commit_log=8 * 1024,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=20,
        max_index_num=40,
        flush_interval_consume_queue=3_600_000,  # housekeeping when the test says so: every run makes the same calls
        **more,
    )


class Workload:
    """Puts 60 messages into two queues with housekeeping between; `acknowledged` are the bodies that were."""

    def __init__(self, root: Path, **settings: object) -> None:
        root.mkdir()
        self.root = root
        self.files = FaultyFiles(root)
        self.files.records = False
        self.clock = ManualClock()
        self.settings = settings
        self.acknowledged: list[bytes] = []
        self.errors: list[StoreError] = []
        self.reason = ""
        self.is_open = False

    def run(self, after: Callable[[MessageStore], None] = lambda _: None) -> None:
        clock = self.clock
        store = MessageStore(settings_at(self.root, **self.settings), files=self.files, clock=clock)
        try:
            store.open()
        except StoreError as exc:
            self.errors.append(exc)
            return
        self.is_open = True
        for number in range(60):
            self.put(store, b"%03d" % number * 60, number % 2)
            clock.advance(61_000 if number % 20 == 19 else 10)
            store.tick()
        after(store)
        self.reason = store.unwritable_reason
        store.close()

    def put(self, store: MessageStore, body: bytes, queue_id: int) -> None:
        try:
            if store.put(Message("T", body, keys=body[:3].decode()), queue_id).status is PutStatus.PUT_OK:
                self.acknowledged.append(body)
        except StoreError as exc:
            self.errors.append(exc)

    def stored(self) -> list[bytes]:
        """What a good disk gives back, in log order; every key finds its message."""
        with MessageStore(settings_at(self.root)) as store:
            found: list[tuple[int, bytes]] = []
            for (topic, queue_id), (lowest, highest) in store.queues().items():
                for offset in range(lowest, highest):
                    (message,) = store.get(topic, queue_id, offset, 1)
                    found.append((message.physical_offset, message.body))
                    hits = [hit.physical_offset for hit in store.query(topic, message.keys[0])]
                    assert message.physical_offset in hits
            return [body for _, body in sorted(found)]


def sites(tmp_path: Path, operation: str, **settings: object) -> range:
    """The call numbers of an operation in a run on a good disk."""
    good = Workload(tmp_path / "good", **settings)
    good.run()
    assert len(good.acknowledged) == 60
    assert good.stored() == good.acknowledged
    count = good.files.counts.get(operation, 0)
    assert count > 0
    found = range(1, count + 1, STRIDE)
    print(f"{operation} {settings.get('flush_disk_type', '')}: {len(found)} of {count} sites")
    return found


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
def test_a_failed_sync_is_final_wherever_it_happens(operation: str, flush_disk_type: str, tmp_path: Path) -> None:
    for site in sites(tmp_path, operation, flush_disk_type=flush_disk_type):
        fail_one_sync(tmp_path / f"{site}", operation, flush_disk_type, site)


def fail_one_sync(root: Path, operation: str, flush_disk_type: str, site: int) -> None:
    run = Workload(root, flush_disk_type=flush_disk_type)
    failed_at: list[tuple[int, bool]] = []

    def fault(called: str, _: Path, count: int) -> OSError | None:
        if called != operation or count != site:
            return None
        failed_at.append((len(run.acknowledged), threading.current_thread() is threading.main_thread()))
        return sync_error()

    run.files.fault = fault
    run.run()
    assert failed_at, f"call {site} of {operation} did not come"
    acknowledged_before, is_of_a_put = failed_at[0]
    if run.is_open and acknowledged_before < 58:
        assert "errno 5" in run.reason or "Input/output" in run.reason, (site, run.reason)
        if is_of_a_put:
            # The put whose own flush failed gets no acknowledgement, nor does any that begins later. What fails in a
            # worker (the next file, a queue) is noticed a moment later; puts in between have synced their own bytes.
            assert len(run.acknowledged) <= acknowledged_before + 1, site
            assert any(isinstance(error, StoreReadOnlyError | StoreIOError) for error in run.errors)
    stored = run.stored()
    assert stored[: len(run.acknowledged)] == run.acknowledged, site


def test_no_acknowledgement_precedes_its_sync(tmp_path: Path) -> None:
    """The journal of the file layer shows, for each acknowledged record, a sync that began after it was written."""
    files = FaultyFiles(tmp_path.resolve())
    with MessageStore(settings_at(tmp_path, flush_disk_type="SYNC_FLUSH"), files=files) as store:
        for number in range(40):
            put = store.put(Message("T", b"%d" % number * 100))
            record = store.read_record(put.physical_offset)
            assert record is not None
            synced = [inode.synced[-1][1] for inode in files.journal.inodes.values() if inode.synced]
            assert any(record in content for content in synced)


@pytest.mark.parametrize(
    ("operation", "flush_disk_type"),
    [
        ("allocate", "ASYNC_FLUSH"),
        ("create", "ASYNC_FLUSH"),
        ("truncate", "ASYNC_FLUSH"),
        ("pwrite", "ASYNC_FLUSH"),
        ("pwrite", "SYNC_FLUSH"),
    ],
)
def test_a_full_disk_is_named_and_the_store_goes_on_when_there_is_room(
    operation: str, flush_disk_type: str, tmp_path: Path
) -> None:
    for site in sites(tmp_path, operation, flush_disk_type=flush_disk_type):
        fill_the_disk(tmp_path / f"{site}", operation, flush_disk_type, site)


def fill_the_disk(root: Path, operation: str, flush_disk_type: str, site: int) -> None:
    """From the given call of an operation on every write fails, until the 60 puts are done."""
    run = Workload(root, flush_disk_type=flush_disk_type)
    run.files.free_bytes = 4321
    is_full = threading.Event()
    is_full.set()

    def fault(called: str, _: Path, count: int) -> OSError | None:
        is_write = called in ("allocate", "create", "truncate", "pwrite")
        if is_write and is_full.is_set() and run.files.counts.get(operation, 0) >= site:
            return no_space()
        return None

    def room_again(store: MessageStore) -> None:
        is_full.clear()
        run.files.free_bytes = None
        run.clock.advance(61_000)  # cleaning looks at the disk again
        store.tick()
        before = len(run.acknowledged)
        for number in range(60, 80):
            run.put(store, b"%03d" % number * 60, number % 2)
        assert len(run.acknowledged) == before + 20, [str(error) for error in run.errors[-3:]]

    run.files.fault = fault
    run.run(room_again)
    assert all(isinstance(error, StoreFullError | StoreIOError) for error in run.errors), run.errors
    for error in run.errors:
        assert str(run.root) in str(error)
        assert "4321" in str(error) or "errno 28" in str(error)
    is_full.clear()
    assert run.stored() == run.acknowledged, site


def test_too_many_open_files_is_named_and_passes(tmp_path: Path) -> None:
    for site in sites(tmp_path, "open"):
        run_out_of_descriptors(tmp_path / f"{site}", site)


def run_out_of_descriptors(root: Path, site: int) -> None:
    run = Workload(root)

    def fault(called: str, _: Path, count: int) -> OSError | None:
        return OSError(errno.EMFILE, "Too many open files") if called == "open" and count == site else None

    run.files.fault = fault
    run.run()
    assert all("errno 24" in str(error) for error in run.errors)
    assert run.stored() == run.acknowledged, site


def test_a_put_that_waits_behind_a_stalled_sync_times_out_and_the_message_is_stored(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path.resolve())
    files.records = False
    settings = settings_at(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=50)
    with MessageStore(settings, files=files) as store:
        store.put(Message("T", b"first"))
        files.stall = threading.Event()
        leader = threading.Thread(target=store.put, args=(Message("T", b"leader"),))
        leader.start()
        files.stalled.wait()
        late = store.put(Message("T", b"late"))
        assert late.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert late.status.is_stored
        assert "50 ms" in late.reason
        assert store.max_offset("T", 0) == 1  # what is not durable is not shown
        stall, files.stall = files.stall, None
        stall.set()
        leader.join()
        assert store.put(Message("T", b"next")).status is PutStatus.PUT_OK
        assert [m.body for m in store.get("T", 0, 0)] == [b"first", b"leader", b"late", b"next"]


def test_messages_that_nobody_waits_for_are_shown_once_they_are_durable(tmp_path: Path) -> None:
    with MessageStore(settings_at(tmp_path, flush_disk_type="SYNC_FLUSH")) as store:
        arrived = threading.Event()
        store.add_arrival_listener(lambda _: arrived.set())
        put = store.put(Message("T", b"x", wait_store_ok=False))
        assert put.status is PutStatus.PUT_OK
        assert arrived.wait(120)
        assert store.durable_offset >= put.physical_offset + put.size_bytes


def test_writers_that_wait_together_share_their_syncs(tmp_path: Path) -> None:
    """64 writers, 4 puts each: far fewer syncs than puts."""
    files = FaultyFiles(tmp_path.resolve())
    files.records = False
    config = settings_at(tmp_path, flush_disk_type="SYNC_FLUSH").replaced(mapped_file_size_commit_log=1 << 20)
    with MessageStore(config, files=files) as store:
        store.put(Message("T", b"warm"))
        before = files.counts["sync"]
        barrier = threading.Barrier(64)

        def write() -> None:
            barrier.wait()
            for _ in range(4):
                assert store.put(Message("T", b"x" * 1024)).status is PutStatus.PUT_OK

        writers = [threading.Thread(target=write) for _ in range(64)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert store.max_offset("T", 0) == 257
        assert files.counts["sync"] - before < 64


# --- many queues at once


def many_queues(root: Path) -> tuple[FaultyFiles, MessageStore]:
    root.mkdir()
    files = FaultyFiles(root)
    files.records = False
    store = MessageStore(settings_at(root), files=files, clock=ManualClock()).open()
    for queue_id in range(SYNC_TOGETHER_LEAST):
        store.put(Message("T", b"x", keys=f"k{queue_id}"), queue_id)
    return files, store


def test_many_queues_are_synced_with_one_call(tmp_path: Path) -> None:
    files, store = many_queues(tmp_path / "store")
    syncs, directories = files.counts["sync"], files.counts["sync_directory"]
    store.close()
    if not Files().sync_filesystem(tmp_path):
        pytest.skip("this kernel's syncfs does not report errors: queues are synced one by one")
    assert files.counts["sync_filesystem"] == 1
    assert files.counts["sync"] - syncs < SYNC_TOGETHER_LEAST / 4  # log files, index files, ledger, checkpoint
    assert files.counts["sync_directory"] - directories < 10
    with MessageStore(settings_at(tmp_path / "store")) as again:
        assert again.recovery.was_clean_exit
        assert len(again.queues()) == SYNC_TOGETHER_LEAST


def test_where_one_call_cannot_sync_many_queues_each_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrailmq.store.files._SYNCFS_REPORTS_ERRORS", False)
    files, store = many_queues(tmp_path / "store")
    syncs, directories = files.counts["sync"], files.counts["sync_directory"]
    store.close()
    assert files.counts["sync"] - syncs >= SYNC_TOGETHER_LEAST
    assert files.counts["sync_directory"] - directories >= SYNC_TOGETHER_LEAST


def test_a_failed_sync_of_many_queues_is_no_clean_exit(tmp_path: Path) -> None:
    files, store = many_queues(tmp_path / "store")
    files.fault = lambda operation, *_: sync_error() if operation == "sync_filesystem" else None
    store.close()
    assert files.counts["sync_filesystem"] == 1
    with MessageStore(settings_at(tmp_path / "store")) as again:
        assert not again.recovery.was_clean_exit
        assert again.queues() == {("T", queue_id): (0, 1) for queue_id in range(SYNC_TOGETHER_LEAST)}
