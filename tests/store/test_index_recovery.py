"""Index files that are gone or changed are made again at the next start, whoever knew of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plain_store import GOLDEN, unpack_golden

from contrailmq.message import Message
from contrailmq.store import ManualClock, MessageStore, StoreConfig
from contrailmq.store.recovery.queue_ledger import LEDGER_NAME

COUNT = 200
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 4_000,
    "max_hash_slot_num": 20,
    "max_index_num": 50,
}
UNITS_START = 40 + 20 * 4


def write_store(root: Path, *, is_clean: bool, clock: ManualClock | None = None) -> None:
    """Keys k0 to k199, two entries a message (the unique id is one): several files, some cut in a message."""
    clock = clock or ManualClock(1_790_000_000_000)
    store = MessageStore(StoreConfig(root, **SIZES), clock=clock).open()
    for number in range(COUNT):
        store.put(Message("T", b"%d" % number, keys=[f"k{number}"]))
        clock.advance(1_000)
    store.dispatch()
    store.close() if is_clean else store.abandon()


def unfound(store: MessageStore) -> list[int]:
    return [
        number
        for number in range(COUNT)
        if [message.body for message in store.query("T", f"k{number}")] != [b"%d" % number]
    ]


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


@pytest.mark.parametrize("has_ledger", [True, False], ids=["ledger", "no ledger"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("place", [0, 1, 4, -2, -1])
def test_any_index_file_that_is_deleted_is_made_again(
    place: int, is_clean: bool, has_ledger: bool, tmp_path: Path
) -> None:
    write_store(tmp_path, is_clean=is_clean)
    assert len(index_files(tmp_path)) > 6
    index_files(tmp_path)[place].unlink()
    if not has_ledger:
        (tmp_path / LEDGER_NAME).unlink()
    with MessageStore(StoreConfig(tmp_path)) as store:
        assert unfound(store) == []
        assert store.recovery.index_entries_added > 0
    with MessageStore(StoreConfig(tmp_path)) as store:
        assert store.recovery.index_rebuilt == ()


def test_messages_without_keys_between_two_index_files_are_no_gap(tmp_path: Path) -> None:
    append: dict[str, Any] = {"tags_code": 0, "keys": None, "unique_key": None}
    store = MessageStore(StoreConfig(tmp_path, **SIZES)).open()
    for _ in range(3):
        for number in range(20):
            store.put(Message("T", b"%d" % number, keys=["k"]))
        for _ in range(60):
            store.append("T", 0, b"x", b"", **append)
        store.dispatch()
    assert len(index_files(tmp_path)) == 3
    store.close()
    (tmp_path / LEDGER_NAME).unlink()
    with MessageStore(StoreConfig(tmp_path)) as again:
        assert again.recovery.index_rebuilt == ()
        assert len(again.query("T", "k", 64)) == 60


@pytest.mark.parametrize("name", ["store-5.5.0-clean", "store-5.5.0-kill9", "store-5.5.0-direct"])
def test_javas_answers_stand_whichever_of_its_index_files_is_deleted(name: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())["queryByKey"]
    assert expected
    count = len(index_files(unpack_golden(name, tmp_path / "whole")))
    for place in range(count):
        root = unpack_golden(name, tmp_path / str(place))
        index_files(root)[place].unlink()
        with MessageStore(StoreConfig(root)) as store:
            for query in expected:
                asked = (query[name] for name in ("topic", "key", "maxNum", "begin", "end"))
                found = [message.physical_offset for message in store.query(*asked)]
                assert found == sorted(query["commitLogOffsets"], reverse=True), (place, query)  # newest first


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_flipped_time_of_a_unit_is_noticed_at_the_next_start(place: int, tmp_path: Path) -> None:
    """It leaves hashes, offsets and chains as they were, and a query with a time range would find nothing."""
    clock = ManualClock(1_790_000_000_000)
    write_store(tmp_path, is_clean=True, clock=clock)
    path = index_files(tmp_path)[place]
    good = path.read_bytes()
    data = bytearray(good)
    data[UNITS_START + 20 + 13] ^= 0x10  # the first unit: twelve days later
    path.write_bytes(data)
    with MessageStore(StoreConfig(tmp_path), clock=clock) as store:
        assert store.recovery.index_rebuilt == (
            f"index file {path.name} is not what was written: its checksum differs",
        )
        for number in range(COUNT):
            (message,) = store.query("T", f"k{number}")
            time_ms = message.store_time_ms
            assert len(store.query("T", f"k{number}", 32, time_ms - 5_000, time_ms + 5_000)) == 1
    with MessageStore(StoreConfig(tmp_path), clock=clock) as store:
        assert store.recovery.index_rebuilt == ()


def test_full_index_files_are_vouched_for_without_a_clean_close(tmp_path: Path) -> None:
    clock = ManualClock(1_790_000_000_000)
    store = MessageStore(StoreConfig(tmp_path, **SIZES), clock=clock).open()
    for number in range(COUNT):
        store.put(Message("T", b"%d" % number, keys=[f"k{number}"]))
    clock.advance(61_000)
    store.tick()
    store.abandon()
    path = index_files(tmp_path)[2]
    data = bytearray(path.read_bytes())
    data[UNITS_START + 20 + 13] ^= 0x10
    path.write_bytes(data)
    with MessageStore(StoreConfig(tmp_path), clock=clock) as again:
        assert "checksum differs" in again.recovery.index_rebuilt[0]
        assert unfound(again) == []
