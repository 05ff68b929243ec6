"""What worker threads do on their own: flush and commit by pages and by time, and what the checkpoint then says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles

from contrailmq.message import Message
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig, StoreError
from contrailmq.store.recovery.checkpoint import read_checkpoint

PAGE = 4096
WAIT_S = 120.0


class RoundCounting:
    """A manual clock that lets a test wait for rounds of one worker: each asks for the time once a round.

    It has one and is not one: compiled, a ManualClock has no subclasses.
    """

    def __init__(self, worker: str) -> None:
        self._clock = ManualClock()
        self._worker = worker
        self._rounds = threading.Semaphore(0)
        self.now_ms, self.advance = self._clock.now_ms, self._clock.advance
        self.slept_ms, self.boot_id = self._clock.slept_ms, self._clock.boot_id

    def monotonic_ms(self) -> int:
        if threading.current_thread().name == self._worker:
            self._rounds.release()
        return self._clock.monotonic_ms()

    def wait_for_rounds(self, count: int) -> None:
        while self._rounds.acquire(blocking=False):
            continue  # those that are over
        for _ in range(count):
            assert self._rounds.acquire(timeout=WAIT_S)


def config_at(path: Path, **settings: Any) -> StoreConfig:
    sizes = {"mapped_file_size_commit_log": 256 * 1024, "max_hash_slot_num": 10, "max_index_num": 21}
    return StoreConfig(path, **(sizes | settings))


def test_asynchronous_flush_waits_for_its_pages_and_flushes_all_after_the_thorough_interval(tmp_path: Path) -> None:
    clock = RoundCounting("contrailmq-flush")
    settings = config_at(
        tmp_path,
        flush_interval_commit_log=1,
        flush_commit_log_least_pages=4,
        flush_commit_log_thorough_interval=10_000,
    )
    durable = threading.Semaphore(0)
    with MessageStore(settings, clock=clock) as store:
        store.on_durable(lambda _: durable.release())
        store.put(Message("T", b"small"))
        clock.wait_for_rounds(3)
        assert store.durable_offset == 0  # less than four pages, and no time has passed
        store.put(Message("T", bytes(4 * PAGE)))
        assert durable.acquire(timeout=WAIT_S)
        end = store.durable_offset
        assert end == store.log_max_offset
        store.put(Message("T", b"small"))
        clock.advance(9_999)
        clock.wait_for_rounds(3)
        assert store.durable_offset == end
        clock.advance(1)
        assert durable.acquire(timeout=WAIT_S)
        assert store.durable_offset == store.log_max_offset > end


def test_the_pool_is_committed_by_pages_and_wholly_after_its_interval(tmp_path: Path) -> None:
    clock = RoundCounting("contrailmq-commit")
    settings = config_at(
        tmp_path,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        commit_interval_commit_log=1,
        commit_commit_log_least_pages=4,
        commit_commit_log_thorough_interval=200,
        wake_commit_when_put_message=False,
    )
    committed = threading.Semaphore(0)
    with MessageStore(settings, clock=clock) as store:
        store.on_committed(committed.release)
        first = store.put(Message("T", b"small"))
        clock.wait_for_rounds(3)
        assert store.log_max_offset == 0
        second = store.put(Message("T", bytes(4 * PAGE)))
        assert committed.acquire(timeout=WAIT_S)
        assert store.log_max_offset == second.physical_offset + second.size_bytes
        assert store.lookup(first.physical_offset) is not None
        third = store.put(Message("T", b"small"))
        clock.wait_for_rounds(3)
        assert store.log_max_offset == third.physical_offset
        clock.advance(200)
        assert committed.acquire(timeout=WAIT_S)
        assert store.log_max_offset == third.physical_offset + third.size_bytes


def test_the_checkpoint_moves_with_the_flush_of_log_queues_and_full_index_files(tmp_path: Path) -> None:
    """Each of its times is that of the newest message which that flush has covered."""
    clock, files = ManualClock(), Files()
    settings = config_at(tmp_path, flush_interval_commit_log=600_000)
    with MessageStore(settings, clock=clock) as store:
        start_ms = clock.now_ms()
        for _ in range(30):  # each has a unique key: an index file of 20 entries is full, another one begun
            clock.advance(10)
            newest = store.put(Message("T", b"x"))
        store.tick()
        early = read_checkpoint(settings.checkpoint_path, files)
        assert (early.physic_msg_time_ms, early.logics_msg_time_ms) == (0, 0)  # nothing was synced so far
        store.flush()
        assert store.checkpoint.physic_msg_time_ms == newest.store_time_ms == start_ms + 300
        clock.advance(60_000)
        store.tick()
        told = read_checkpoint(settings.checkpoint_path, files)
        assert told.physic_msg_time_ms == told.logics_msg_time_ms == start_ms + 300
        assert told.logics_physical_offset == newest.physical_offset
        assert told.index_msg_time_ms == start_ms + 200


def test_a_task_with_a_defect_does_not_end_housekeeping(tmp_path: Path) -> None:
    rounds = threading.Semaphore(0)

    def fail() -> None:
        rounds.release()
        raise KeyError("absent")

    with MessageStore(config_at(tmp_path, flush_interval_consume_queue=1)) as store:
        store._housekeeping.add_task(fail)
        for _ in range(3):
            assert rounds.acquire(timeout=WAIT_S)
        assert "KeyError('absent')" in str(store._housekeeping.error)


def test_puts_are_refused_when_the_flush_thread_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    files = FaultyFiles(tmp_path)
    settings = config_at(tmp_path, flush_interval_commit_log=1, flush_commit_log_least_pages=0)
    with MessageStore(settings, files=files) as store:
        files.fault = defect_of_a_sync
        store.put(Message("T", b"x"))
        assert ended.wait(WAIT_S)
        with pytest.raises(StoreError, match=r"the thread that flushes the commit log ended: KeyError\('absent'\)"):
            store.put(Message("T", b"y"))
        files.fault = lambda *_: None


def defect_of_a_sync(operation: str, _path: Path, _count: int) -> None:
    if operation == "sync" and threading.current_thread().name == "contrailmq-flush":
        raise KeyError("absent")
