"""A store whose files are deleted, moved, replaced or cut while it is in use: it must not acknowledge into the void."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.errors import StoreLostError, StoreReadOnlyError
from contrailmq.store.files import Files
from contrailmq.store.upkeep.ground import GroundWatch

FILE_BYTES = 16_384
# The store looks once a second. Half a second more is enough for a quiet machine, and only the long set has one.
NOTICED_S = 1.5 if os.environ.get("CONTRAILMQ_LONG") else 120.0
SIZES = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 100,
    "max_index_num": 1_000,
}


def config_at(root: Path) -> StoreConfig:
    return StoreConfig(root, **SIZES)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[MessageStore]:
    store = MessageStore(config_at(root)).open()
    for number in range(20):
        store.put(Message("T", b"%d" % number))
    store.get("T", 0, 0)  # the queue's file is open
    yield store
    store.close()


def deleted(root: Path) -> None:
    shutil.rmtree(root)


def deleted_with_a_link_left(root: Path) -> None:
    """As after `cp -al`: the files have a name, only not ours."""
    shutil.copytree(root, root.with_name("backup"), copy_function=os.link)
    shutil.rmtree(root)


def moved(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def replaced(root: Path) -> None:
    with MessageStore(config_at(root.with_name("other"))) as other:
        for number in range(30):
            other.put(Message("T", b"other-%d" % number))
    root.rename(root.with_name("elsewhere"))
    root.with_name("other").rename(root)


def restored(root: Path) -> None:
    """A copy of the same files in the place of those in use."""
    root.rename(root.with_name("elsewhere"))
    shutil.copytree(root.with_name("elsewhere"), root)


def without_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


def without_lock(root: Path) -> None:
    (root / "lock").unlink()


LOSSES: list[tuple[Callable[[Path], None], str]] = [
    (deleted, "lock was deleted"),
    (deleted_with_a_link_left, "lock is no longer there"),
    (moved, "lock is no longer there"),
    (replaced, "lock was replaced by another file"),
    (restored, "lock was replaced by another file"),
    (without_log, "00000 was deleted"),
    (without_lock, "lock was deleted"),
]


@pytest.mark.parametrize(("lose", "cause"), LOSSES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_store_turns_read_only_with_cause_and_remedy_and_reading_goes_on(
    lose: Callable[[Path], None], cause: str, store: MessageStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose(root)
    store.tick()
    store.tick()
    with pytest.raises(StoreReadOnlyError, match=cause) as raised:
        store.put(Message("T", b"void"))
    assert "put the directory back" in str(raised.value)
    assert store.unwritable_reason == store.lost_reason == str(raised.value)
    assert [message.body for message in store.get("T", 0, 0)] == [b"%d" % number for number in range(20)]
    with pytest.raises(StoreLostError):
        store.flush()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == [store.lost_reason]


def test_a_loss_is_noticed_by_itself(store: MessageStore, root: Path) -> None:
    shutil.rmtree(root)
    began = time.monotonic()
    told = threading.Event()
    while not told.wait(0.02) and time.monotonic() < began + NOTICED_S:
        try:
            store.put(Message("T", b"x"))
        except StoreLostError:
            told.set()
    assert told.is_set()
    assert time.monotonic() - began < NOTICED_S


@pytest.mark.parametrize("is_noticed_before", [True, False])
def test_nothing_is_written_to_a_store_that_took_the_place(
    is_noticed_before: bool, store: MessageStore, root: Path
) -> None:
    replaced(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    if is_noticed_before:
        store.tick()
        with pytest.raises(StoreLostError):
            store.put(Message("New", b"x"))
        store.tick()
    store.close()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    with MessageStore(config_at(root)) as other:
        assert other.recovery.was_clean_exit
        assert [message.body for message in other.get("T", 0, 0)] == [b"other-%d" % number for number in range(30)]


def test_nothing_is_made_again_where_the_store_was(store: MessageStore, root: Path) -> None:
    shutil.rmtree(root)
    store.tick()
    store.tick()
    store.close()
    assert not root.exists()


def test_a_store_that_was_moved_is_recovered_where_it_is_now(store: MessageStore, root: Path) -> None:
    moved(root)
    store.tick()
    store.close()
    with MessageStore(config_at(root.with_name("elsewhere"))) as again:
        assert not again.recovery.was_clean_exit
        assert again.max_offset("T", 0) == 20


@pytest.mark.parametrize("left_bytes", [0, 100, 5_000])
def test_a_log_file_that_was_cut_has_its_length_again_and_reading_it_kills_nobody(
    left_bytes: int, store: MessageStore, root: Path
) -> None:
    while store.log_max_offset < 2 * FILE_BYTES:
        store.put(Message("T", b"more" * 50))
    first = min((root / "commitlog").iterdir())
    os.truncate(first, left_bytes)
    store.tick()
    assert first.stat().st_size == FILE_BYTES
    reason = f"{first} was cut from {FILE_BYTES} to {left_bytes} bytes"
    assert reason in store.unwritable_reason
    with pytest.raises(StoreLostError, match="was cut from"):
        store.put(Message("T", b"x"))
    data = store.read_log(left_bytes, 4_096)
    assert data is not None
    assert not any(data[4_095 - left_bytes % 4_096 :])


def test_log_files_that_the_store_removes_itself_are_no_loss(store: MessageStore, root: Path) -> None:
    while store.log_max_offset < 3 * FILE_BYTES:
        store.put(Message("T", b"more" * 50))
    for path in sorted((root / "commitlog").iterdir())[:2]:
        os.utime(path, (0, 0))
    store.delete_expired_files_now()
    store._retention.clean()
    store.tick()
    assert store.log_min_offset > 0
    assert store.writable


def test_a_log_file_that_the_store_removes_while_it_is_looked_at_is_no_loss(root: Path) -> None:
    class Removing(Files):
        removes: Callable[[], None] | None = None
        descriptor = -1

        def identity(self, path):  # type: ignore[no-untyped-def]
            if self.removes is not None and path == self.descriptor:
                self.removes()
                self.removes = None
            return super().identity(path)

    files = Removing()
    store = MessageStore(config_at(root), files=files).open()
    store.put(Message("T", b"x"))
    store._ground.stop()  # this test looks by itself
    causes: list[str] = []
    watch = GroundWatch(files, store._log_files, root / "lock", on_lost=causes.append)
    watch.start(store._lock.descriptor)
    watch.stop()
    last = store._log_files.last
    assert last is not None
    files.descriptor, files.removes = last.descriptor, lambda: assert_true(last.destroy(0, force_after_ms=0))
    watch.tick()
    assert (files.removes, causes) == (None, [])
    store.abandon()


def assert_true(value: bool) -> None:
    assert value


def test_a_file_system_that_does_not_answer_is_no_loss(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Away(Files):
        is_away = False

        def identity(self, path):  # type: ignore[no-untyped-def]
            if self.is_away:
                raise OSError(5, "Input/output error")
            return super().identity(path)

    files = Away()
    with MessageStore(config_at(root), files=files) as store:
        files.is_away = True
        store.tick()
        store.tick()
        files.is_away = False
        store.tick()
        assert store.put(Message("T", b"x")).queue_offset == 0
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error for error in errors if "nobody can say" in error] == [
        f"{root / 'lock'}: nobody can say whether the store's files are still there: [Errno 5] Input/output error"
    ]
