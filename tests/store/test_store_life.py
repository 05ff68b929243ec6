"""A store that is not open, one that a fork copied, and listeners that misbehave."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrailmq.message import Message
from contrailmq.store import MessageStore, PutStatus, StoreConfig, StoreError
from contrailmq.store.base.errors import StoreClosedError, StoreForkedError, StoreLockedError

WAIT_S = 120.0
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 120,
}
EAGER: dict[str, Any] = {
    "flush_interval_commit_log": 10,
    "flush_commit_log_least_pages": 0,
    "commit_interval_commit_log": 10,
    "commit_commit_log_least_pages": 0,
}
MODES: dict[str, dict[str, Any]] = {
    "async": {},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True},
}


def store_at(path: Path, **settings: Any) -> MessageStore:
    return MessageStore(StoreConfig(path, **(SMALL | settings)))


def opened(path: Path, **settings: Any) -> MessageStore:
    return store_at(path, **settings).open()


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}


# --- not open

NO_RECORD: dict[str, Any] = {"tags_code": 0, "keys": None, "unique_key": None}
ALWAYS_ALLOWED = {
    "open",
    "close",
    "abandon",
    "config",
    "files",
    "clock",
    "store_clock",
    "stats",
    "checkpoint",
    "recovery",
    "replica",  # refuses by itself: test_replica.py
}
REFUSED_BY_STATUS: dict[str, Callable[[MessageStore], object]] = {
    "append": lambda store: store.append("T", 0, b"x", b"", **NO_RECORD).status,
    "append_batch": lambda store: store.append_batch("T", 0, b"").status,
    "append_copies": lambda store: store.append_copies([]),
}
CALLS: dict[str, Callable[[MessageStore], object]] = {
    "add_arrival_listener": lambda store: store.add_arrival_listener(print),
    "add_dispatcher": lambda store: store.add_dispatcher(print),
    "clean_expired_queues": lambda store: store.clean_expired_queues(),
    "confirm_offset": lambda store: store.confirm_offset,
    "damaged_places": lambda store: store.damaged_places(),
    "delete_expired_files_now": lambda store: store.delete_expired_files_now(),
    "delete_topics": lambda store: store.delete_topics(["T"]),
    "dispatch": lambda store: store.dispatch(),
    "dispatched_offset": lambda store: store.dispatched_offset,
    "appended_offset": lambda store: store.appended_offset,
    "durable_offset": lambda store: store.durable_offset,
    "earliest_time": lambda store: store.earliest_time(),
    "flush": lambda store: store.flush(),
    "get": lambda store: store.get("T", 0, 0),
    "get_slices": lambda store: store.get_slices("T", 0, 0, 32),
    "get_slices_cold": lambda store: store.get_slices_cold("T", 0, 0, 32),
    "get_slices_sound": lambda store: store.get_slices_sound("T", 0, 0, 32),
    "get_slices_warm": lambda store: store.get_slices_warm("T", 0, 0, 32),
    "is_cold": lambda store: store.is_cold("T", 0, 0),
    "is_index_doubtful": lambda store: store.is_index_doubtful,
    "is_resident": lambda store: store.is_resident(0),
    "log_max_offset": lambda store: store.log_max_offset,
    "log_min_offset": lambda store: store.log_min_offset,
    "lookup": lambda store: store.lookup(0),
    "lookup_sound": lambda store: store.lookup_sound(0),
    "view_sound": lambda store: store.view_sound(0),
    "max_offset": lambda store: store.max_offset("T", 0),
    "min_offset": lambda store: store.min_offset("T", 0),
    "offset_at": lambda store: store.offset_at("T", 0, 0),
    "on_committed": lambda store: store.on_committed(print),
    "on_durable": lambda store: store.on_durable(print),
    "put": lambda store: store.put(Message("T", b"late")),
    "put_inner_batch": lambda store: store.put_inner_batch("T", [Message("T", b"late")]),
    "put_many": lambda store: store.put_many([Message("T", b"late")]),
    "query": lambda store: store.query("T", "k"),
    "has_batch_queues": lambda store: store.has_batch_queues("T"),
    "delete_queues_before": lambda store: store.delete_queues_before({"T": 0}),
    "query_sound": lambda store: store.query_sound("T", "k"),
    "queues": lambda store: store.queues(),
    "read_cold": lambda store: store.read_cold(0, 100),
    "read_log": lambda store: store.read_log(0, 100),
    "read_record": lambda store: store.read_record(0),
    "reader": lambda store: store.reader.max_offset("T", 0),  # its reads are those of get_slices
    "read_units": lambda store: store.read_units("T", 0, 0, 1),
    "request_flush": lambda store: store.request_flush(),
    "runtime_info": lambda store: store.runtime_info(),
    "set_batch_topics": lambda store: store.set_batch_topics(["T"]),
    "unify_queues": lambda store: store.unify_queues(),
    "set_disk_full": lambda store: store.set_disk_full("full"),
    "store_time_at": lambda store: store.store_time_at("T", 0, 0),
    "tick": lambda store: store.tick(),
}
NUMBERS_OF_ITS_OWN = {
    "flush_count", "flush_times", "lost_reason", "new_queues", "writable", "unwritable_reason", "standstill_reason",
}  # fmt: skip


def test_the_table_of_calls_names_every_public_part_of_a_store(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        public = {name for name in dir(store) if not name.startswith("_")}
    assert public == {*CALLS, *REFUSED_BY_STATUS, *ALWAYS_ALLOWED, *NUMBERS_OF_ITS_OWN}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_on_a_closed_store_raises_and_touches_nothing(name: str, tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(Message("T", b"x", keys="k"))
    store.close()
    before = snapshot(tmp_path)
    with pytest.raises(StoreClosedError, match="it was closed: make a new MessageStore"):
        CALLS[name](store)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", REFUSED_BY_STATUS)
def test_an_append_to_a_closed_store_is_refused_and_touches_nothing(name: str, tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    before = snapshot(tmp_path)
    assert REFUSED_BY_STATUS[name](store) in (PutStatus.SERVICE_NOT_AVAILABLE, 0)
    assert "make a new MessageStore" in store.unwritable_reason
    assert snapshot(tmp_path) == before


def test_a_read_that_a_close_overtakes_says_closed_whatever_it_met(tmp_path: Path) -> None:
    """Readers go on until they are told; every other error, and every empty answer, would be wrong."""
    store = opened(tmp_path, max_index_num=4_000)
    for number in range(200):
        store.put(Message("T", b"%d" % number, keys=["k"]))
    errors: list[BaseException] = []
    wrong: list[object] = []
    running = threading.Barrier(5)

    def read(call: Callable[[], int], expected: int) -> None:
        call()
        running.wait(WAIT_S)
        try:
            while (found := call()) == expected:
                pass
            wrong.append(found)
        except Exception as exc:  # noqa: BLE001 - what it is is judged below
            errors.append(exc)

    reads: list[tuple[Callable[[], int], int]] = [
        (lambda: len(store.query("T", "k", 64)), 64),
        (lambda: len(store.get("T", 0, 0, 10)), 10),  # within one file of the queue, whether it is written yet or not
        (lambda: store.get_slices("T", 0, 5, 10).count, 10),
        (lambda: store.max_offset("T", 0), 200),
    ]
    threads = [threading.Thread(target=read, args=each, daemon=True) for each in reads]
    for thread in threads:
        thread.start()
    running.wait(WAIT_S)
    store.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert wrong == []
    assert [type(error) for error in errors] == [StoreClosedError] * 4


# --- forked


def in_child(work: Callable[[], object]) -> Any:
    """What `work` returns in a forked child, through JSON."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


def said(call: Callable[[], object]) -> list[str]:
    try:
        return ["answered", repr(call())]
    except StoreError as exc:
        return [type(exc).__name__, str(exc)]


@pytest.mark.parametrize("mode", MODES)
def test_a_forked_child_neither_writes_nor_closes_the_parents_store(mode: str, tmp_path: Path) -> None:
    store = opened(tmp_path, **MODES[mode])
    store.put(Message("T", b"parent"))

    def child() -> dict[str, list[str]]:
        answers = {name: said(lambda call=call: call(store)) for name, call in CALLS.items()}  # type: ignore[misc]
        store.close()
        answers["a store of its own"] = said(lambda: opened(tmp_path))
        return answers

    answers = in_child(child)
    own = answers.pop("a store of its own")
    assert own[0] == StoreLockedError.__name__
    assert f"process {os.getpid()}" in own[1]
    assert {kind for kind, _ in answers.values()} == {StoreForkedError.__name__}
    assert all(f"process {os.getpid()}" in text and "would be lost" in text for _, text in answers.values())
    assert (tmp_path / "abort").exists()
    assert store.put(Message("T", b"parent again")).queue_offset == 1
    store.close()
    with MessageStore(StoreConfig(tmp_path)) as again:
        assert [message.body for message in again.get("T", 0, 0)] == [b"parent", b"parent again"]


def test_a_child_may_open_another_store(tmp_path: Path) -> None:
    with store_at(tmp_path / "parent"):

        def child() -> int:
            with store_at(tmp_path / "child") as own:
                return own.put(Message("T", b"child")).queue_offset

        assert in_child(child) == 0
    with MessageStore(StoreConfig(tmp_path / "child")) as again:
        assert again.recovery.was_clean_exit
        assert len(again.get("T", 0, 0)) == 1


# --- listeners


class Raises:
    """Raises at its first call; `heard` is set by the second."""

    def __init__(self) -> None:
        self.calls = 0
        self.heard = threading.Event()

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the listener fails once")
        self.heard.set()


LISTEN: dict[str, Callable[[MessageStore, Any], None]] = {
    "on_durable": lambda store, listener: store.on_durable(listener),
    "on_committed": lambda store, listener: store.on_committed(listener),
    "arrival": lambda store, listener: store.add_arrival_listener(listener),
    "arrival of some": lambda store, listener: store.add_arrival_listener(listener, queues={("T", 0)}),
    "dispatcher": lambda store, listener: store.add_dispatcher(listener),
}
LISTENING = [(kind, mode) for kind in LISTEN for mode in MODES if kind != "on_committed" or mode == "pool"]


@pytest.mark.parametrize(("kind", "mode"), LISTENING)
def test_a_listener_that_raises_stops_nothing_and_is_counted_and_logged(
    kind: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, **EAGER, **MODES[mode])
    listener = Raises()
    LISTEN[kind](store, listener)
    with caplog.at_level(logging.ERROR):
        sent = 0
        while not listener.heard.is_set():
            assert store.put(Message("T", b"%d" % sent)).status is PutStatus.PUT_OK
            sent += 1
            listener.heard.wait(0.02)
            assert sent < 500
    assert store.stats.listener_error_count == 1
    records = [record for record in caplog.records if "a listener raised" in record.getMessage()]
    assert len(records) == 1
    assert records[0].exc_info is not None
    assert "fails once" in str(records[0].exc_info[1])
    store.flush()
    assert store.durable_offset == store.log_max_offset
    assert store.max_offset("T", 0) == sent
    store.close()
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize(("kind", "mode"), LISTENING)
@pytest.mark.parametrize("name", ["close", "abandon"])
def test_a_listener_cannot_close_the_store_and_is_told_who_can(name: str, kind: str, mode: str, tmp_path: Path) -> None:
    store = opened(tmp_path, **EAGER, **MODES[mode])
    told: list[str] = []
    heard = threading.Event()

    def close(*_: object) -> None:
        try:
            getattr(store, name)()
        except StoreError as exc:
            told.append(str(exc))
        heard.set()

    LISTEN[kind](store, close)
    assert store.put(Message("T", b"x")).status is PutStatus.PUT_OK
    assert heard.wait(WAIT_S)
    assert f"{name}() was called by a listener" in told[0]
    assert store.put(Message("T", b"y")).status is PutStatus.PUT_OK
    store.close()
    assert not (tmp_path / "abort").exists()


def test_who_listens_for_commits_hears_of_one_that_a_flush_made(tmp_path: Path) -> None:
    """A flush empties the write buffers itself; nobody else would say that more of the log can be read now."""
    rarely_ms = 3_600_000
    store = opened(
        tmp_path,
        transient_store_pool_enable=True,
        commit_interval_commit_log=rarely_ms,
        commit_commit_log_thorough_interval=rarely_ms,
        flush_interval_commit_log=rarely_ms,
        flush_commit_log_thorough_interval=rarely_ms,
    )
    heard = threading.Event()
    committed: list[int] = []

    def note() -> None:
        committed.append(store.log_max_offset)
        heard.set()

    store.on_committed(note)
    assert store.put(Message("T", b"x")).status is PutStatus.PUT_OK
    assert store.log_max_offset == 0
    store.flush()
    assert heard.wait(WAIT_S)
    assert committed == [store.appended_offset]
    store.close()
