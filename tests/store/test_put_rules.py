"""Puts that break a rule, names that are no queue's, and files that are none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrailmq.message import Message, SysFlag
from contrailmq.message.batch import encode_batch
from contrailmq.store import Drive, ManualClock, MessageStore, PutStatus, StoreConfig
from contrailmq.store.base.errors import CorruptStoreError, StoreClosedError
from contrailmq.store.base.status import AppendResult, BatchResult

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 4_000,
    "max_hash_slot_num": 50,
    "max_index_num": 500,
}
TOO_LARGE = {"a": "v" * 40_000}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore(StoreConfig(tmp_path, **SMALL), batch_topics={"BQ"}) as opened:
        yield opened


def test_properties_that_are_too_large_are_refused_by_their_status_and_in_their_turn(store: MessageStore) -> None:
    refused = store.put(Message("T", b"x", properties=TOO_LARGE))
    assert refused.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    others = len("WAIT\x01true\x02UNIQ_KEY\x01\x02") + 32
    assert f"{len('a') + 2 + 40_000 + others} bytes, the limit is 32767" in refused.reason
    long_topic = store.put(Message("x" * 200, b"x", properties=TOO_LARGE))
    assert long_topic.status is PutStatus.MESSAGE_ILLEGAL  # the topic's rule comes first
    assert store.queues() == {}
    store.close()
    with pytest.raises(StoreClosedError):
        store.put(Message("T", b"x", properties=TOO_LARGE))


def test_one_refused_message_of_many_leaves_the_others_stored(store: MessageStore) -> None:
    many = [Message("T", b"1"), Message("T", b"2", properties=TOO_LARGE), Message("T", b"3")]
    results = store.put_many(many)
    assert [result.status for result in results] == [
        PutStatus.PUT_OK,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.PUT_OK,
    ]
    assert [message.body for message in store.get("T", 0, 0)] == [b"1", b"3"]


def test_a_message_of_another_topic_does_not_go_into_a_batch(store: MessageStore) -> None:
    refused = store.put_inner_batch("BQ", [Message("BQ", b"1"), Message("Other", b"2")])
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert "'Other'" in refused.reason
    assert store.log_max_offset == 0
    assert store.put_inner_batch("BQ", [Message("BQ", b"1"), Message("BQ", b"2")]).status is PutStatus.PUT_OK


@pytest.mark.parametrize("bit", [SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6])
@pytest.mark.parametrize("is_batch", [True, False])
def test_a_flag_that_says_ipv6_of_a_host_that_is_not_is_refused_and_ends_no_log(
    is_batch: bool, bit: int, tmp_path: Path
) -> None:
    """Such a record has a head that does not fit: the next start would cut the log there."""
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        refused: AppendResult | BatchResult
        if is_batch:
            refused = store.append_batch("T", 0, encode_batch([(0, b"one", b"")]), sys_flag=bit)
        else:
            refused = store.append("T", 0, b"one", b"", tags_code=0, keys=None, unique_key=None, sys_flag=bit)
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert f"sys_flag {bit:#x} says IPv6" in refused.reason
        assert store.put(Message("T", b"two")).queue_offset == 0
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        assert [message.body for message in store.get("T", 0, 0)] == [b"two"]


@pytest.mark.parametrize("code", [2**63, -(2**63) - 1, 2**80])
def test_a_tags_code_that_no_unit_can_hold_is_refused(code: int, store: MessageStore) -> None:
    refused = store.append("T", 0, b"x", b"", tags_code=code, keys=None, unique_key=None)
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert str(code) in refused.reason
    for fits in (2**63 - 1, -(2**63)):
        assert store.append("T", 0, b"x", b"", tags_code=fits, keys=None, unique_key=None).status is PutStatus.PUT_OK
    assert [unit[2] for unit in store.read_units("T", 0, 0, 2)] == [2**63 - 1, -(2**63)]


def test_a_truth_value_names_the_queue_that_its_number_names(store: MessageStore) -> None:
    assert store.put(Message("T", b"x"), True).status is PutStatus.PUT_OK
    assert store.put(Message("T", b"x"), 1).queue_offset == 1
    store.close()
    assert [path.name for path in (store.config.path / "consumequeue" / "T").iterdir()] == ["1"]


@pytest.mark.parametrize("name", ["007", "99999999999", "2147483648", "00"])
@pytest.mark.parametrize("root", ["consumequeue", "batchconsumequeue"])
def test_a_directory_that_is_not_named_as_we_name_queues_adds_none(name: str, root: str, tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        store.put(Message("T", b"x"), 7)
        queues = store.queues()
    (tmp_path / root / "T" / name).mkdir(parents=True)
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        assert store.queues() == queues == {("T", 7): (0, 1)}


# --- deleted topics


@pytest.mark.parametrize("drive", Drive)
def test_a_deleted_topic_stays_deleted_after_a_kill(drive: Drive, tmp_path: Path) -> None:
    """The log still has its messages, and recovery would dispatch them again."""
    clock = ManualClock()
    store = MessageStore(StoreConfig(tmp_path, **SMALL), drive=drive, clock=clock).open()
    for number in range(20):
        store.append(("Gone", "Kept")[number % 2], 0, b"x", b"", tags_code=0, keys=None, unique_key=None)
    store.dispatch()
    assert store.delete_topics(["Gone"]) == 1
    if drive is Drive.LOOP:
        store.tick()  # what the woken thread does
    store.abandon()
    with MessageStore(StoreConfig(tmp_path, **SMALL), clock=clock) as again:
        assert again.queues() == {("Kept", 0): (0, 10)}


def test_deleting_in_a_loop_wakes_the_thread_that_makes_it_durable(tmp_path: Path) -> None:
    settings = SMALL | {"flush_interval_consume_queue": 3_600_000}
    with MessageStore(StoreConfig(tmp_path, **settings), drive=Drive.LOOP) as store:
        store.append("T", 0, b"x", b"", tags_code=0, keys=None, unique_key=None)
        store.dispatch()
        ledger = tmp_path / "queues.ledger"
        before = ledger.stat().st_ino
        store.delete_topics(["T"])
        while ledger.stat().st_ino == before:
            assert store.writable
        assert b'"T"' not in ledger.read_bytes()


# --- files that are none


def test_the_log_file_of_the_wrong_size_is_blamed_and_not_the_good_one_behind_it(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        for _ in range(3):
            store.put(Message("T", bytes(40_000)))
    first = tmp_path / "commitlog" / f"{0:020d}"
    with first.open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptStoreError) as refused:
        MessageStore(StoreConfig(tmp_path)).open()
    assert str(refused.value).startswith(f"{first}: has 65537 bytes, but the next file begins 65536 bytes behind it")


@pytest.mark.parametrize("name", ["index/20260101000000000", "checkpoint", "queues.ledger"])
def test_a_directory_where_a_file_belongs_is_named(name: str, tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        store.put(Message("T", b"x"))
    path = tmp_path / name
    path.unlink(missing_ok=True)
    path.mkdir()
    with pytest.raises(CorruptStoreError) as refused:
        MessageStore(StoreConfig(tmp_path, **SMALL)).open()
    assert str(path) in str(refused.value)
    assert "move it elsewhere" in str(refused.value) or "remove it" in str(refused.value)
    shutil.rmtree(path)
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as again:
        assert len(again.get("T", 0, 0)) == 1
