"""Records with and without the checksum of the whole (enabledAppendPropCRC) under forceVerifyPropCRC."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.message.batch import encode_batch
from contrailmq.message.codec import Kind, check_record, encode_record
from contrailmq.store import MessageStore, StoreConfig

SMALL = {"mapped_file_size_commit_log": 16 * 1024, "max_hash_slot_num": 50, "max_index_num": 120}


def bodies(store: MessageStore) -> list[bytes]:
    return [bytes(message.body) for message in store.get("T", 0, 0)]


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_asking_for_the_checksum_erases_nothing_that_was_stored_before_it_was_written(
    tmp_path: Path, is_clean: bool
) -> None:
    sent = [b"%d" % number for number in range(8)]
    old = MessageStore(StoreConfig(tmp_path, **SMALL)).open()
    for body in sent[:4]:
        old.put(Message("T", body))
    old.close() if is_clean else old.abandon()
    new = MessageStore(StoreConfig(tmp_path, enabled_append_prop_crc=True, force_verify_prop_crc=True)).open()
    assert (new.recovery.cut_bytes, bodies(new)) == (0, sent[:4])
    for body in sent[4:]:
        new.put(Message("T", body))
    new.close() if is_clean else new.abandon()
    with MessageStore(StoreConfig(tmp_path, force_verify_prop_crc=True)) as again:
        assert (again.recovery.cut_bytes, bodies(again)) == (0, sent)


@pytest.mark.parametrize("with_crc", [True, False], ids=["with the property", "without"])
def test_a_flipped_body_still_ends_the_log_when_the_checksum_is_asked_for(tmp_path: Path, with_crc: bool) -> None:
    store = MessageStore(StoreConfig(tmp_path, **SMALL, enabled_append_prop_crc=with_crc)).open()
    store.put(Message("T", b"first"))
    damaged = store.put(Message("T", b"second")).physical_offset
    store.abandon()
    (log_file,) = (path for path in (tmp_path / "commitlog").iterdir() if int(path.name) == 0)
    with log_file.open("r+b") as file:
        file.seek(damaged + 88)
        file.write(b"S")
    with MessageStore(StoreConfig(tmp_path, force_verify_prop_crc=True)) as again:
        assert bodies(again) == [b"first"]
        assert "checksum" in again.recovery.reason


@pytest.mark.parametrize("lost", [9, 14])
def test_a_checksum_of_which_a_lost_sector_took_the_front_is_no_missing_one(lost: int) -> None:
    record = bytearray(encode_record(
        "T", b"body", b"a\x01b\x02", queue_id=0, queue_offset=0, physical_offset=0, born_host=bytes(8),
        store_host=bytes(8), born_time_ms=1, store_time_ms=1, with_record_crc=True,
    ))  # fmt: skip
    assert check_record(record, check_record_crc=True).kind is Kind.WHOLE
    record[-20 - 3 : -lost] = bytes(23 - lost)  # the end of the sector: a bit of the properties before it, too
    verdict = check_record(record, check_record_crc=True)
    assert verdict.kind is Kind.CORRUPT
    assert "record checksum" in verdict.reason


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        (b"__CRC32#\x0112345\x02a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02__CRC32#\x0112345", {"a": "b"}),
        (b"__CRC32#\x011\x02__CRC32#\x012\x02", {}),
        (b"my__CRC32#\x011\x02", {"my__CRC32#": "1"}),
    ],
)
def test_a_senders_own_checksum_is_dropped_whatever_stands_beside_it(
    properties: bytes, kept: dict[str, str], is_batch: bool, tmp_path: Path
) -> None:
    config = StoreConfig(tmp_path, **SMALL, enabled_append_prop_crc=True, force_verify_prop_crc=True)
    with MessageStore(config) as store:
        if is_batch:
            assert store.append_batch("T", 0, encode_batch([(0, b"x", properties)])).queue_offset == 0
        else:
            put = store.append("T", 0, b"x", properties, tags_code=0, keys=None, unique_key=None)
            assert put.queue_offset == 0
        store.dispatch()
        (message,) = store.get("T", 0, 0)
        assert {name: value for name, value in message.properties.items() if name != "__CRC32#"} == kept
    store = MessageStore(config).open()
    store.abandon()
    with MessageStore(config) as store:
        assert (store.recovery.cut_bytes, bodies(store)) == (0, [b"x"])
