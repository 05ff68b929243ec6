"""Records whose last byte is zero: the sender's are kept, those of a write that was lost are cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contrailmq.message import Message, encode_host
from contrailmq.message.codec import Kind, check_record, encode_batch, encode_blank, encode_record
from contrailmq.store import MessageStore, StoreConfig

HOST = encode_host("127.0.0.1", 1)


def record(offset: int, *, properties: bytes = b"k\x01v\x02", body: bytes = b"body", with_crc: bool = False) -> bytes:
    return encode_record(
        "T", body, properties, queue_id=0, queue_offset=0, physical_offset=offset, born_host=HOST, store_host=HOST,
        born_time_ms=1, store_time_ms=1, with_record_crc=with_crc,
    )  # fmt: skip


def test_a_batch_whose_properties_end_in_nul_loses_nothing_at_a_clean_nor_at_a_hard_end(tmp_path: Path) -> None:
    bodies = [b"before", b"in the batch", b"after"]
    with MessageStore(StoreConfig(tmp_path / "clean")) as store:
        store.put(Message("T", bodies[0]))
        store.append_batch("T", 0, encode_batch([(0, bodies[1], b"k\x01v\x00")]))
        store.put(Message("T", bodies[2]))
        store.flush()
        shutil.copytree(tmp_path / "clean", tmp_path / "killed")
    for name in ("clean", "killed"):
        with MessageStore(StoreConfig(tmp_path / name)) as store:
            found = store.get("T", 0, 0)
            assert [message.body for message in found] == bodies
            assert found[1].properties["k"] == "v\x00"
            assert store.recovery.cut_bytes == 0


@pytest.mark.parametrize("with_blank", [False, True])
def test_a_zero_that_is_followed_in_its_sector_is_the_senders(with_blank: bool) -> None:
    first = record(4096, properties=b"k\x01v\x00")
    second = record(4096 + len(first)) if not with_blank else bytes(encode_blank(64))
    assert check_record(first + second, physical_offset=4096).kind is Kind.WHOLE


@pytest.mark.parametrize("behind", ["nothing", "zeros", "an old record", "garbage"])
def test_a_zero_at_the_end_of_what_was_written_is_a_lost_write(behind: str) -> None:
    first = record(4096, properties=b"k\x01v\x00")
    rest = {"nothing": b"", "zeros": bytes(200), "an old record": record(77), "garbage": b"\xff" * 200}[behind]
    verdict = check_record(first + rest, physical_offset=4096)
    assert verdict.kind is Kind.CORRUPT
    assert "lost write" in verdict.reason


def test_a_zero_at_the_end_of_a_sector_is_not_vouched_for_by_the_next_sector() -> None:
    size = len(record(0, properties=b"k\x01v\x00", body=b""))
    first = record(0, properties=b"k\x01v\x00", body=b"b" * (512 - size))
    assert len(first) == 512
    assert check_record(first + record(512), physical_offset=0).kind is Kind.CORRUPT


def test_a_record_with_its_own_checksum_must_still_say_where_it_lies() -> None:
    data = record(4096, with_crc=True)
    assert check_record(data, physical_offset=4096, check_record_crc=True).kind is Kind.WHOLE
    verdict = check_record(data, physical_offset=8192, check_record_crc=True)
    assert verdict.kind is Kind.CORRUPT
    assert "lies at 8192" in verdict.reason


@pytest.mark.parametrize(("position", "limit"), [(-1, None), (0, 10_000), (10_000, None), (10_000, 20_000)])
def test_places_outside_of_the_buffer_are_judged_and_not_raised(position: int, limit: int | None) -> None:
    data = record(0)
    verdict = check_record(data, position, limit=limit)
    assert verdict.kind is (Kind.WHOLE if position == 0 else Kind.CORRUPT if position < 0 else Kind.NOTHING)
