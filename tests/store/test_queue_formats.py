"""The two rarer queue formats: extensions with filter bitmaps, and batch queues."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from contrailmq.store import Files
from contrailmq.store.batch_consume_queue import BATCH_UNIT_BYTES
from contrailmq.store.batch_queue_table import BatchQueueTable
from contrailmq.store.consume_queue_ext import (
    EXT_ADDRESS_MAX,
    ConsumeQueueExt,
    ExtUnit,
    ext_address,
    is_ext_address,
    real_offset,
)
from contrailmq.store.consume_queue_table import ConsumeQueueTable
from contrailmq.store.descriptors import DescriptorCache


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


def test_extensions_go_on_after_a_load_and_can_be_cut_at_both_ends(tmp_path: Path) -> None:
    ext = make_ext(tmp_path)
    addresses = [ext.put(ExtUnit(number, number, b"bits")) for number in range(12)]
    again = make_ext(tmp_path)
    assert again.end == ext.end
    kept, cut = addresses[5], addresses[6]
    assert kept is not None
    assert cut is not None
    again.truncate_after(kept)
    assert again.get(kept) == ExtUnit(5, 5, b"bits")
    assert again.get(cut) is None
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
