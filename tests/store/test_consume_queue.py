"""Consume queues: units at their places, pending or written, and what happens at both ends."""

from __future__ import annotations

import errno
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.message import SysFlag
from contrailmq.store import Boundary, Files
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.descriptors import FEW, DescriptorCache, capacity_for, ceiling_for, file_name
from contrailmq.store.queues.queue_state import DispatchFact, QueueState
from contrailmq.store.queues.queue_unit import PRE_BLANK, PRE_BLANK_SIZE, UNIT_BYTES, Unit, pack_unit
from how_many import examples

FILE_UNITS = 10
FILE_BYTES = FILE_UNITS * UNIT_BYTES


class FullDisk(Files):
    """Refuses to write while `is_full`."""

    is_full = False

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(descriptor, data, position)


def make_table(root: Path, files: Files | None = None, *, open_files_max: int = 16) -> ConsumeQueueTable:
    return ConsumeQueueTable(
        root / "consumequeue", file_bytes=FILE_BYTES, files=files or Files(), open_files_max=open_files_max
    )


def append(table: ConsumeQueueTable, offset: int, physical_offset: int, *, topic: str = "Orders") -> None:
    table.append(topic, 0, offset, physical_offset, 100, offset * 7, 1_700_000_000_000 + offset)


def fill(table: ConsumeQueueTable, begin: int, end: int, *, topic: str = "Orders") -> ConsumeQueue:
    for offset in range(begin, end):
        append(table, offset, offset * 100, topic=topic)
    queue = table.get(topic, 0)
    assert queue is not None
    return queue


records = st.tuples(st.sampled_from(["T", "U", "Inner"]), st.integers(-2, 3), st.booleans(), st.integers(0, 9))


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
@given(st.lists(records, max_size=40), st.integers(1, 7), st.sampled_from([0, 100]))
def test_units_that_come_together_are_those_that_come_one_by_one(
    made: list[tuple[str, int, bool, int]], chunk: int, ext_file_bytes: int
) -> None:
    """Repeated records, gaps, records that are in no queue, batch queues and extensions, in chunks of any length."""
    states = {topic: QueueState(topic, 0, 0) for topic in ("T", "U", "Inner")}
    ends = dict.fromkeys(states, 0)
    facts: list[DispatchFact] = []
    expected: dict[str, dict[int, Unit]] = {"T": {}, "U": {}}
    for number, (topic, ahead, is_prepared, code) in enumerate(made):
        offset, physical_offset = max(0, ends[topic] + ahead), number * 100
        flags = SysFlag.TRANSACTION_PREPARED if is_prepared else 0
        properties = b""
        if topic == "Inner":
            flags |= SysFlag.INNER_BATCH
            properties = b"INNER_NUM\x013\x02INNER_BASE\x01%d\x02" % offset
        facts.append((states[topic], physical_offset, 100, code, 5, offset, [], flags, properties))
        if not is_prepared and offset >= ends[topic]:
            ends[topic] = offset + (3 if topic == "Inner" else 1)
            if topic != "Inner":
                expected[topic][offset] = Unit(physical_offset, 100, code)
    with tempfile.TemporaryDirectory() as directory:
        seen = []
        for way in ("one by one", "together"):
            table = ConsumeQueueTable(
                Path(directory) / way / "consumequeue", file_bytes=FILE_BYTES, files=Files(), open_files_max=16,
                ext_file_bytes=ext_file_bytes, batch_topics={"Inner"},
            )  # fmt: skip
            for begin in range(0, len(facts), chunk):
                if way == "together":
                    table.append_all(facts[begin : begin + chunk])
                    continue
                for fact in facts[begin : begin + chunk]:
                    table.append_fact(fact)
            units = {queue.topic: dict(queue.scan(0, queue.max_offset)) for queue in table}
            for topic, known in units.items():
                found = {offset: unit for offset, unit in known.items() if not unit.is_pre_blank}
                if ext_file_bytes:
                    for offset, unit in found.items():
                        code = table.extension_code(topic, 0, unit.tags_code)
                        assert code is not None
                        found[offset] = unit._replace(tags_code=code)
                assert found == expected[topic]
            assert table.next_offsets() == {(topic, 0): end for topic, end in ends.items() if end}
            seen.append((units, table.next_offsets(), table.last_physical_offset, table.last_store_time_ms))
            seen[-1] = (*seen[-1], table.flush())
            table.close()
        assert seen[0] == seen[1]


def reload(root: Path) -> ConsumeQueue:
    table = make_table(root)
    assert table.load() == []
    queue = table.get("Orders", 0)
    assert queue is not None
    return queue


def expected_units(begin: int, end: int) -> list[Unit]:
    return [Unit(offset * 100, 100, offset * 7) for offset in range(begin, end)]


def units_of(queue: ConsumeQueue) -> list[Unit]:
    return [unit for _, unit in queue.scan(queue.min_offset, queue.max_offset)]


def test_a_unit_has_the_bytes_of_the_format_document() -> None:
    assert pack_unit(1000, 132, 2598919).hex() == "00000000000003e8" + "00000084" + "000000000027a807"


@pytest.mark.parametrize(
    "write", [lambda table: None, lambda table: table.write_pending(1), lambda table: table.flush()]
)
def test_units_read_the_same_before_and_after_they_reach_the_file(
    write: Callable[[ConsumeQueueTable], object], tmp_path: Path
) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 7)
    write(table)
    queue = fill(table, 7, 25)
    assert units_of(queue) == expected_units(0, 25)
    assert queue.unit_at(6) == Unit(600, 100, 42)
    assert queue.unit_at(25) is None
    assert len(queue.read_units(5, 100)) == 5 * UNIT_BYTES  # never past the file that holds the first one


def test_files_are_sparse_full_size_and_named_by_their_first_address(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 12)
    table.flush()
    files = sorted((tmp_path / "consumequeue/Orders/0").iterdir())
    assert [path.name for path in files] == ["0" * 20, "200".zfill(20)]
    assert [path.stat().st_size for path in files] == [FILE_BYTES, FILE_BYTES]
    assert files[1].read_bytes() == b"".join(pack_unit(*unit) for unit in expected_units(10, 12)).ljust(
        FILE_BYTES, b"\0"
    )


def test_a_loaded_queue_goes_on_where_it_was(tmp_path: Path) -> None:
    for count in (1, 9, 10, 11, 20, 25):
        table = make_table(tmp_path)
        table.load()
        fill(table, table.next_offset("Orders", 0), count)
        table.flush()
        queue = reload(tmp_path)
        assert (queue.min_offset, queue.max_offset, queue.physical_max) == (0, count, count * 100)
        assert units_of(queue) == expected_units(0, count)


def test_a_record_that_comes_twice_is_taken_once(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    queue = fill(table, 0, 5)
    append(table, 4, 400)
    append(table, 3, 300)
    append(table, 2, 9_900)  # the same offset again: the first one stays
    assert units_of(queue) == expected_units(0, 5)


def test_a_queue_that_starts_above_zero_is_pre_blanked_from_its_files_begin(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    queue = fill(table, 13, 15)
    assert (queue.min_offset, queue.max_offset) == (13, 15)
    table.flush()
    data = (tmp_path / "consumequeue/Orders/0" / "200".zfill(20)).read_bytes()
    assert data[: 3 * UNIT_BYTES] == PRE_BLANK * 3
    queue = reload(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.physical_max) == (13, 15, 1500)


def test_pre_blank_units_alone_are_no_data(tmp_path: Path) -> None:
    """Java takes them for a record that ends at 2 GiB and then drops every message below that."""
    table = make_table(tmp_path)
    queue = table.find_or_create("Orders", 0)
    queue.start_at(13)
    table.mark_dirty(queue)
    table.flush()
    queue = reload(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.physical_max) == (13, 13, -1)
    assert not queue.has(13, 60)


def test_a_gap_becomes_pre_blank_so_that_offsets_keep_their_places(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 3)
    queue = fill(table, 5, 6)
    assert queue.unit_at(3) == Unit(0, PRE_BLANK_SIZE, 0)
    assert queue.unit_at(5) == Unit(500, 100, 35)
    assert queue.max_offset == 6


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 20, 24])
@pytest.mark.parametrize("is_written", [True, False])
def test_cutting_leaves_zeros_and_no_phantom(keep: int, is_written: bool, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    queue = fill(table, 0, 25)
    if is_written:
        table.flush()
    assert table.truncate_physical(keep * 100) == 25 - keep
    assert (queue.max_offset, queue.physical_max) == (keep, keep * 100 if keep else -1)
    table.mark_dirty(queue)
    table.flush()
    if keep or is_written:
        again = reload(tmp_path)
        assert (again.max_offset, units_of(again)) == (keep, expected_units(0, keep))
    fill(table, keep, 30)
    assert units_of(queue) == expected_units(0, 30)


def test_an_emptied_queue_keeps_its_maximum(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    queue = fill(table, 0, 25)
    table.flush()
    assert queue.delete_files_below(10_000) == 2  # never the last file
    queue.correct_min_offset(10_000)
    assert (queue.min_offset, queue.max_offset) == (25, 25)
    again = reload(tmp_path)
    again.correct_min_offset(10_000)
    assert (again.min_offset, again.max_offset) == (25, 25)


@pytest.mark.parametrize("log_min", [0, 1, 100, 950, 1000, 1050, 1999, 2400, 2401])
def test_the_minimum_is_the_first_unit_whose_message_is_still_there(log_min: int, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    queue = fill(table, 0, 25)
    table.flush()
    queue.delete_files_below(log_min)
    queue.correct_min_offset(log_min)
    assert queue.min_offset == -(-log_min // 100)
    assert queue.bases[0] <= queue.min_offset * UNIT_BYTES or queue.min_offset == 25
    assert len(queue.bases) == 3 - min(2, sum(last < log_min for last in (900, 1900)))


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [(0, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 3), (25, 4, 3), (30, 4, 4), (40, 5, 5), (41, 6, 5), (99, 6, 5)],
)
def test_searching_by_time_gives_either_end_of_one_instant(time: int, lower: int, upper: int, tmp_path: Path) -> None:
    times = [10, 20, 20, 20, 30, 40]
    queue = fill(make_table(tmp_path), 0, len(times))

    def store_time(physical_offset: int, _size: int) -> int:
        return times[physical_offset // 100]

    assert queue.offset_at(time, store_time) == queue.offset_at(time, store_time, Boundary.LOWER) == lower
    assert queue.offset_at(time, store_time, Boundary.UPPER) == upper


def test_searching_by_time_passes_over_messages_that_are_gone(tmp_path: Path) -> None:
    queue = fill(make_table(tmp_path), 0, 6)
    assert queue.offset_at(5, lambda offset, _: -1 if offset < 300 else offset) == 3


@pytest.mark.parametrize("size", [1, FILE_BYTES - 1, FILE_BYTES + 20])
def test_a_queue_file_of_wrong_size_is_left_out_and_named(size: int, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 25)
    table.flush()
    with (tmp_path / "consumequeue/Orders/0" / "200".zfill(20)).open("r+b") as file:
        file.truncate(size)
    table = make_table(tmp_path)
    (damaged,) = table.load()
    assert (damaged.topic, damaged.queue_id) == ("Orders", 0)
    assert f"{size} bytes" in damaged.reason
    queue = table.get("Orders", 0)
    assert queue is not None
    assert queue.max_offset == 10  # what stands before it is kept
    queue.remove_strays()
    fill(table, 10, 25)
    assert units_of(queue) == expected_units(0, 25)


def test_a_missing_file_in_the_middle_is_noticed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 35)
    table.flush()
    (tmp_path / "consumequeue/Orders/0" / "200".zfill(20)).unlink()
    assert [damaged.queue_id for damaged in make_table(tmp_path).load()] == [0]


def test_a_full_disk_loses_nothing_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    files = FullDisk()
    table = make_table(tmp_path, files)
    fill(table, 0, 5)
    files.is_full = True
    with pytest.raises(OSError, match="No space left"):
        table.flush()
    queue = fill(table, 5, 8)
    assert units_of(queue) == expected_units(0, 8)
    files.is_full = False
    assert table.flush().physical_offset == 700
    assert units_of(reload(tmp_path)) == expected_units(0, 8)


def test_flush_says_up_to_where_the_queues_are_durable(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 5)
    assert tuple(table.flush()) == (400, 1_700_000_000_004)


def test_many_queues_need_few_descriptors(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    table = make_table(tmp_path, open_files_max=8)
    for number in range(100):
        fill(table, 0, 3, topic=f"T{number}")
    table.flush()
    for number in range(100):
        queue = table.get(f"T{number}", 0)
        assert queue is not None
        assert units_of(queue) == expected_units(0, 3)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 8


@pytest.mark.parametrize(("limit", "capacity"), [(256, 64), (1024, 512), (20_000, 10_000), (1 << 20, 16_384)])
def test_the_number_of_open_queue_files_follows_the_limit(limit: int, capacity: int) -> None:
    assert capacity_for(limit) == capacity


def test_a_deleted_topic_leaves_no_directory_and_starts_again_at_zero(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 0, 15)
    table.flush()
    assert table.delete_topic("Orders") == 1
    assert not (tmp_path / "consumequeue/Orders").exists()
    assert table.next_offset("Orders", 0) == 0


def test_units_that_a_read_took_along_are_forgotten_when_the_queue_changes_under_them(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    queue = fill(table, 0, 8)
    table.flush()
    assert [queue.unit_at(offset) for offset in range(8)] == expected_units(0, 8)  # one read, then from the window
    queue.overwrite(5, pack_unit(9_000, 90, 9))
    assert queue.unit_at(5) == Unit(9_000, 90, 9)
    queue.truncate_to(4)
    for offset in range(4, 8):
        append(table, offset, 50_000 + offset * 100)
    table.flush()
    assert [queue.unit_at(offset) for offset in (3, 4, 7)] == [
        Unit(300, 100, 21),
        Unit(50_400, 100, 28),
        Unit(50_700, 100, 49),
    ]

    loaded = reload(tmp_path)  # looks past the end for it: those zeros must not be served once units stand there
    loaded.extend(8, pack_unit(70_000, 100, 1), 70_100)
    loaded.write_pending()
    assert loaded.unit_at(7) == Unit(50_700, 100, 49)
    assert loaded.unit_at(8) == Unit(70_000, 100, 1)


def test_consecutive_reads_of_written_units_ask_the_disk_once(tmp_path: Path) -> None:
    class Counting(Files):
        reads = 0

        def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
            self.reads += 1
            return super().pread(descriptor, size_bytes, position)

    files = Counting()
    table = make_table(tmp_path, files)
    queue = fill(table, 0, FILE_UNITS)
    table.flush()
    files.reads = 0
    assert [queue.unit_at(offset) for offset in range(FILE_UNITS)] == expected_units(0, FILE_UNITS)
    assert files.reads == 1


class Calls(Files):
    """Counts what a load asks of the operating system."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"open": 0, "pread": 0}

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        self.counts["open"] += 1
        return super().open(path, writable=writable, create=create)

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        self.counts["pread"] += 1
        return super().pread(descriptor, size_bytes, position)


def unit(number: int) -> bytes:
    return struct.pack(">qiq", 1_000 + number * 100, 100, number)


@pytest.mark.parametrize(
    ("content", "limits", "reads"),
    [
        (b"", (0, 0, -1), 3),
        (unit(0), (0, 1, 1_100), 1),
        (b"".join(map(unit, range(3))), (0, 3, 1_300), 1),
        (b"".join(map(unit, range(FILE_UNITS))), (0, FILE_UNITS, 1_000 + 100 * FILE_UNITS), 2),
        (PRE_BLANK * 2 + unit(2), (2, 3, 1_300), 8),
        (unit(0) + b"\xff" * 20, (0, 1, 1_100), 1),
        (unit(0) + bytes(20) + unit(2), (0, 1, 1_100), 1),
    ],
    ids=["nothing", "one", "some", "full", "pre-blank", "rubbish", "hole"],
)
def test_what_a_queue_of_one_file_holds_is_read_off_its_first_page(
    content: bytes, limits: tuple[int, int, int], reads: int, tmp_path: Path
) -> None:
    place = tmp_path / "consumequeue" / "Orders" / "0"
    place.mkdir(parents=True)
    (place / f"{0:020d}").write_bytes(content.ljust(FILE_BYTES, b"\0"))
    files = Calls()
    table = make_table(tmp_path, files)
    assert table.load() == []
    queue = table.get("Orders", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset, queue.physical_max) == limits
    assert queue.ends_in_rubbish == content.endswith(b"\xff")
    assert files.counts["open"] == 1
    assert files.counts["pread"] <= reads
    table.append("Orders", 0, queue.max_offset, 9_000, 100, 7, 1)
    table.flush()
    assert queue.unit_at(limits[1]) == Unit(9_000, 100, 7)


def test_a_directory_with_the_name_of_a_queue_file_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "consumequeue" / "Orders" / "0"
    (place / f"{0:020d}").mkdir(parents=True)
    table = make_table(tmp_path)
    assert table.load() == []
    assert table.next_offset("Orders", 0) == 0


@pytest.mark.parametrize("count", [203, 204, 205, 260, 3_479, 3_480, 3_481, 4_999, 5_000])
def test_the_end_of_a_longer_queue_is_found_with_few_reads(count: int, tmp_path: Path) -> None:
    """A page has 204 units, the block behind it 3,276; from there on a search halves the rest of the file."""
    place = tmp_path / "consumequeue" / "Orders" / "0"
    place.mkdir(parents=True)
    file_bytes = 5_000 * UNIT_BYTES
    (place / f"{0:020d}").write_bytes(b"".join(map(unit, range(count))).ljust(file_bytes, b"\0"))
    files = Calls()
    table = ConsumeQueueTable(tmp_path / "consumequeue", file_bytes=file_bytes, files=files, open_files_max=4)
    assert table.load() == []
    queue = table.get("Orders", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset, queue.physical_max) == (0, count, 1_000 + 100 * count)
    assert files.counts["open"] == 1
    assert files.counts["pread"] <= (4 if count < 3_480 else 16)


def test_queue_files_stop_where_descriptors_become_scarce(tmp_path: Path) -> None:
    """Another part of the process takes descriptors until fewer are left than log files may need."""
    files = Files()
    ceiling = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 60
    cache = DescriptorCache(files, 1_000, ceiling)
    for number in range(30):
        cache.create(str(tmp_path), number, 20)
    assert len(cache) == 30
    taken = []
    while not taken or taken[-1] < ceiling - 5:
        taken.append(files.open(tmp_path / file_name(0)))
    for number in range(30, 300):
        cache.create(str(tmp_path), number, 20)
        assert cache.peek(str(tmp_path), number - 29, 1)[0] == 20
    assert FEW <= len(cache) < 40
    assert max(int(path.name) for path in Path("/proc/self/fd").iterdir()) <= ceiling + 2
    for descriptor in taken:
        files.close(descriptor)
    for number in range(300, 700):
        cache.create(str(tmp_path), number, 20)
    assert len(cache) > 50
    cache.close()


@pytest.mark.parametrize(("limit", "ceiling"), [(64, 48), (256, 192), (1024, 960), (1 << 20, (1 << 20) - 64)])
def test_some_descriptors_are_left_to_log_files(limit: int, ceiling: int) -> None:
    assert ceiling_for(limit) == ceiling


def test_units_that_are_replaced_or_cut_are_not_taken_for_checked_ones(tmp_path: Path) -> None:
    queue = fill(make_table(tmp_path), 0, 25)
    queue.write_pending()
    queue.sound = (0, 25)
    queue.overwrite(20, pack_unit(9_000, 100, 0))
    assert queue.sound == (0, 20)
    queue.truncate_to(15)
    assert queue.sound == (0, 15)
    queue.destroy()
    assert queue.sound == ()
