"""The two rarer queue formats: extensions with filter bitmaps, and batch queues."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from contrailmq.message import Message, tags_code
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.queues.batch_consume_queue import BATCH_UNIT_BYTES
from contrailmq.store.queues.batch_queue_table import BatchQueueTable
from contrailmq.store.queues.consume_queue_ext import (
    EXT_ADDRESS_MAX,
    ConsumeQueueExt,
    ExtUnit,
    ext_address,
    is_ext_address,
    real_offset,
)
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.descriptors import DescriptorCache

EXTENDED = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 104,  # five units and the end mark
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 10,
    "max_index_num": 50,
}


class Tagged:
    """Wants one tag, by its code alone."""

    def __init__(self, tag: str) -> None:
        self._code = tags_code(tag)

    def match_unit(self, code: int, _ext: object) -> bool:
        return code == self._code

    def match_record(self, _record: memoryview) -> bool:
        return True


def make_ext(root: Path, *, file_bytes: int = 100) -> ConsumeQueueExt:
    files = Files()
    ext = ConsumeQueueExt(root, file_bytes=file_bytes, files=files, descriptors=DescriptorCache(files, 4))
    ext.load()
    return ext


def test_an_address_is_never_a_tags_code() -> None:
    assert ext_address(0) == -9223372036854775808
    assert real_offset(EXT_ADDRESS_MAX) == 9223372034707292159
    for code in (0, 2**31 - 1, -(2**31)):
        assert not is_ext_address(code)


def test_extension_units_have_the_formats_bytes_and_roll_with_an_end_mark(tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    units = [ExtUnit(number - 5, 1000 + number, bytes([number]) * 14) for number in range(7)]
    addresses = [ext.put(unit) for unit in units]
    assert [real_offset(address) for address in addresses if address is not None] == [0, 34, 100, 134, 200, 234, 300]
    assert [ext.get(address) for address in addresses if address is not None] == units
    data = (tmp_path / ("0" * 20)).read_bytes()
    assert data[:34] == struct.pack(">hqqh", 34, -5, 1000, 14) + bytes(14)
    assert data[68:70] == b"\xff\xff"


@pytest.mark.parametrize("position", range(20))
def test_a_flipped_extension_hides_no_message(position: int, tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **EXTENDED)) as store:
        for number in range(20):
            store.put(Message("T", b"%d" % number, tags="ab"[number % 2]))
    path = tmp_path / "consumequeue_ext" / "T" / "0" / f"{104:020d}"
    data = bytearray(path.read_bytes())
    data[20 + position] ^= 0x10  # of message 6
    path.write_bytes(data)
    with MessageStore(StoreConfig(tmp_path, **EXTENDED)) as store:
        found = {message.queue_offset for message in store.get("T", 0, 0, 32, filter=Tagged("a"))}
    assert found >= set(range(0, 20, 2))
    assert found <= {*range(0, 20, 2), *range(5, 10)}  # those of the damaged file may match too often


class BitsFilter:
    """Wants what has a bit set in its map."""

    def match_unit(self, _code: int, ext: object) -> bool:
        return isinstance(ext, ExtUnit) and ext.bit_map == b"\x01"

    def match_record(self, _record: memoryview) -> bool:
        return True


def test_a_filters_bits_come_from_a_dispatcher_to_the_filter(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **EXTENDED)) as store:
        store.add_dispatcher(lambda arrival: b"\x01" if arrival.queue_offset % 3 == 0 else None)
        for number in range(9):
            store.put(Message("T", b"%d" % number))
        found = [message.queue_offset for message in store.get("T", 0, 0, 32, filter=BitsFilter())]
    assert found == [0, 3, 6]


def test_extension_files_go_with_the_messages(tmp_path: Path) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    with MessageStore(StoreConfig(tmp_path, **EXTENDED), clock=clock) as store:
        for number in range(100):
            store.put(Message("T", bytes(100), tags="ab"[number % 2]))
        assert store.max_offset("T", 0) == 100  # dispatched
        folder = tmp_path / "consumequeue_ext" / "T" / "0"
        assert len(list(folder.iterdir())) == 20
        for path in sorted((tmp_path / "commitlog").iterdir())[:3]:
            os.utime(path, (0, 0))
        store.delete_expired_files_now()
        clock.advance(60_000)  # the first round comes after a minute
        store.tick()
        first = store.min_offset("T", 0)
        assert first > 10
        assert sorted(int(path.name) for path in folder.iterdir())[0] == first // 5 * 104
        wanted = [number for number in range(first, 100) if number % 2 == 0]
        found = [message.queue_offset for message in store.get("T", 0, first, 100, filter=Tagged("a"))]
        assert found
        assert found == wanted[: len(found)]


def test_extensions_go_on_after_a_load_and_can_be_cut_at_the_front(tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    addresses = [ext.put(ExtUnit(number, number, b"bits")) for number in range(12)]
    again = make_ext(tmp_path)
    assert again.end == ext.end
    kept = addresses[5]
    assert kept is not None
    assert again.get(kept) == ExtUnit(5, 5, b"bits")
    assert again.delete_below(kept) == 1
    first = addresses[0]
    assert first is not None
    assert again.get(first) is None


def test_a_unit_too_large_for_a_file_leaves_the_plain_code_in_the_queue(tmp_path: Path) -> None:
    assert make_ext(tmp_path).put(ExtUnit(1, 2, bytes(90))) is None
    table = ConsumeQueueTable(
        tmp_path / "consumequeue", file_bytes=200, files=Files(), open_files_max=4, ext_file_bytes=100
    )
    table.append("Orders", 0, 0, 0, 50, 77, 1000, bytes(90))
    table.append("Orders", 0, 1, 50, 50, 78, 1001, b"bits")
    queue = table.get("Orders", 0)
    assert queue is not None
    assert table.ext is not None
    plain, address = (unit.tags_code for _, unit in queue.scan(0, 2))
    assert plain == 77
    assert is_ext_address(address)
    assert table.ext.get("Orders", 0, address) == ExtUnit(78, 1001, b"bits")
    assert (tmp_path / "consumequeue_ext/Orders/0").is_dir()


def test_a_unit_after_a_gap_has_its_extension_too(tmp_path: Path) -> None:
    table = ConsumeQueueTable(
        tmp_path / "consumequeue", file_bytes=200, files=Files(), open_files_max=4, ext_file_bytes=100
    )
    table.append("Orders", 0, 0, 0, 50, 77, 1000, b"first")
    table.append("Orders", 0, 3, 50, 50, 78, 1001, b"after")
    queue = table.get("Orders", 0)
    assert queue is not None
    assert table.ext is not None
    unit = queue.unit_at(3)
    assert unit is not None
    assert table.ext.get("Orders", 0, unit.tags_code) == ExtUnit(78, 1001, b"after")


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, bytes(40)])
def test_an_unreadable_extension_is_no_extension(damage: bytes, tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    address = ext.put(ExtUnit(1, 2, b"bits"))
    assert address is not None
    path = tmp_path / ("0" * 20)
    path.write_bytes(damage.ljust(100 if damage else 0, b"\0"))
    assert make_ext(tmp_path).get(address) is None


def test_a_batch_queue_finds_the_record_that_holds_an_offset(tmp_path: Path) -> None:
    units = [(0, 500, 1, 1000, 10, 5, -1, 0), (500, 300, 2, 1001, 15, 1, -1, 0), (800, 900, 3, 1002, 16, 20, -1, 0)]
    data = b"".join(struct.pack(">qiqqqhii", *unit) for unit in units)
    assert len(data) == 3 * BATCH_UNIT_BYTES
    directory = tmp_path / "Batch/3"
    directory.mkdir(parents=True)
    (directory / ("0" * 20)).write_bytes(data[: 2 * BATCH_UNIT_BYTES])
    (directory / "92".zfill(20)).write_bytes(data[2 * BATCH_UNIT_BYTES :] + bytes(BATCH_UNIT_BYTES))
    files = Files()
    table = BatchQueueTable(tmp_path, file_bytes=92, files=files, descriptors=DescriptorCache(files, 4))
    table.load()
    (queue,) = table
    assert (queue.topic, queue.queue_id) == ("Batch", 3)
    assert (queue.min_offset, queue.max_offset, len(queue)) == (10, 36, 3)
    found = {offset: queue.find(offset) for offset in (9, 10, 14, 15, 16, 35, 36)}
    assert found[9] is None
    assert found[36] is None
    assert [unit.physical_offset for unit in found.values() if unit is not None] == [0, 0, 500, 800, 800]
