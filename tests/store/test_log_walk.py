"""A walk that knows what to expect, and one that hands nothing over, find what a walk without that finds.

Over a good log, and with any byte changed.
"""

from __future__ import annotations

import mmap
import random
import shutil
import struct
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.message.record import RecordView
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.recovery.log_walk import WalkEnd, next_record, walk
from contrailmq.store.recovery.reconcile import Reconciler
from how_many import IS_LONG, IS_SECOND

QUEUE_FILE_BYTES = 400
COUNT = 60
Outcome = tuple[WalkEnd, tuple[int, int, int], dict[tuple[str, int], list[bytes]], set[tuple[str, int]]]


class LogFile:
    def __init__(self, data: bytes) -> None:
        self.base = 0
        self.size_bytes = len(data)
        self.mapping = mmap.mmap(-1, len(data))
        self.mapping[:] = data


class Counted(Reconciler):
    """Counts the records that were handed over."""

    taken = 0

    def take(self, record: RecordView, /) -> None:
        self.taken += 1
        super().take(record)


class NoSink:
    def take(self, record: RecordView, /) -> None:
        raise AssertionError(f"the record at {record.physical_offset} was handed over")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    settings = StoreConfig(
        root,
        mapped_file_size_commit_log=32 * 1024,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=50,
    )
    with MessageStore(settings, clock=ManualClock()) as opened:
        for number in range(COUNT):
            tags = ("TagA", "TagB", None)[number % 3]
            keys = () if number % 5 else ("TAGS", f"k{number}")
            topic = "Orders" if number % 7 else "Bills"
            odd = {} if number % 11 else {"MYTAGS": "TagB"}  # its name ends like the property of the tags
            opened.put(Message(topic, b"%d" % number, tags=tags, keys=keys, properties=odd), number % 4)
    return root


def log_of(store: Path) -> bytes:
    return (store / "commitlog" / f"{0:020d}").read_bytes()


def walked(store: Path, data: bytes, root: Path, *, knows: bool) -> tuple[Outcome, int]:
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(store / "consumequeue", root)
    queues = ConsumeQueueTable(root, file_bytes=QUEUE_FILE_BYTES, files=Files())
    queues.load()
    sink = Counted(queues, None, DelayLevels("1s 5s"))
    end = walk(LogFile(data), sink, check_body_crc=True, expects=sink.expects if knows else None)
    sink.finish(0)
    units = {
        (queue.topic, queue.queue_id): [queue.read_units(n, 1) for n in range(queue.max_offset)] for queue in queues
    }
    queues.close()
    return (end, (sink.units_added, sink.units_corrected, sink.units_cut), units, sink.gaps), sink.taken


def judged(data: bytes) -> WalkEnd:
    """The end of a walk that hands nothing over."""
    return walk(LogFile(data), NoSink(), check_body_crc=True, take_from=2**62)


def test_a_good_log_is_hardly_handed_over(store: Path, tmp_path: Path) -> None:
    expected, handed_over = walked(store, log_of(store), tmp_path / "plain", knows=False)
    assert handed_over == COUNT
    assert expected[0].records == COUNT
    assert expected[1] == (0, 0, 0)
    found, handed_over = walked(store, log_of(store), tmp_path / "knowing", knows=True)
    assert found == expected
    assert judged(log_of(store)) == expected[0]
    assert handed_over < COUNT / 3  # the first ones of each queue, of each of its files and of each tag; odd ones


def test_a_changed_byte_has_the_same_outcome_wherever_it_is(store: Path, tmp_path: Path) -> None:
    log = log_of(store)
    begins = [0]
    for _ in range(COUNT):
        begins.append(begins[-1] + int.from_bytes(log[begins[-1] : begins[-1] + 4], "big"))
    rng = random.Random(11)
    for position in range(begins[40], begins[42], 1 if IS_LONG else 7 if IS_SECOND else 3):
        data = bytearray(log)
        data[position] ^= rng.randint(1, 255)
        expected, _ = walked(store, bytes(data), tmp_path / "plain", knows=False)
        found, _ = walked(store, bytes(data), tmp_path / "knowing", knows=True)
        assert found == expected, position - begins[40]
        assert judged(bytes(data)) == expected[0], position - begins[40]


def test_a_wrong_unit_is_found_and_mended(store: Path, tmp_path: Path) -> None:
    log = log_of(store)
    good, _ = walked(store, log, tmp_path / "good", knows=True)
    changed = tmp_path / "changed"
    shutil.copytree(store, changed)
    for place in range(0, 60, 7):
        file = changed / "consumequeue" / "Orders" / "1" / f"{0:020d}"
        data = bytearray((store / "consumequeue" / "Orders" / "1" / f"{0:020d}").read_bytes())
        data[place] ^= 0x10
        file.write_bytes(data)
        found, _ = walked(changed, log, tmp_path / "knowing", knows=True)
        assert found[1] == (0, 1, 0), place
        assert found[2] == good[2], place


@pytest.mark.parametrize("queue_offset", [-1, -(2**63), COUNT * 1000, 2**40, 2**62])
@pytest.mark.parametrize("number", [0, 41])
def test_an_offset_that_no_message_can_have_costs_that_message_alone(
    number: int, queue_offset: int, store: Path, tmp_path: Path
) -> None:
    """The checksum does not cover it. The queue keeps its other messages where they are."""
    log = bytearray(log_of(store))
    begin = 0
    for _ in range(number):
        begin += int.from_bytes(log[begin : begin + 4], "big")
    good, _ = walked(store, bytes(log), tmp_path / "good", knows=True)
    log[begin + 20 : begin + 28] = queue_offset.to_bytes(8, "big", signed=True)
    found, _ = walked(store, bytes(log), tmp_path / "found", knows=True)
    assert found[0] == good[0]
    assert found[2] == good[2]


@pytest.mark.parametrize("pages", [1, 2])
def test_a_search_ends_with_the_file_and_finds_a_blank_in_its_last_bytes(pages: int) -> None:
    """Python before 3.11.5 read on behind the mapping when nothing was found, and died of it."""
    file = LogFile(bytes(pages * mmap.PAGESIZE))
    data = file.mapping
    assert next_record(file, 0, len(data)) == -1
    data[-8:] = struct.pack(">II", 8, 0xCBD43194)  # a BLANK that is nothing but its head
    assert next_record(file, 0, len(data)) == len(data) - 8
    assert next_record(file, 0, len(data) - 1) == -1
