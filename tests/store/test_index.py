"""The key index: Java's hash table on disk."""

from __future__ import annotations

import mmap
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contrailmq.message import SysFlag, java_hash
from contrailmq.store import Files, ManualClock
from contrailmq.store.index.index_file import HEADER_BYTES, MARK_UNITS, IndexFile, index_file_bytes
from contrailmq.store.index.index_service import QUERY_COUNT_MAX, IndexService

EVER = 2**63 - 1
T0 = 1_700_000_000_000


def make_index(root: Path, *, slots: int = 20, units: int = 50, clock: ManualClock | None = None) -> IndexService:
    return IndexService(root / "index", slots=slots, units=units, files=Files(), clock=clock or ManualClock())


def reload(root: Path, *, trusted_end_time_ms: int | None = None) -> tuple[IndexService, list[str]]:
    index = make_index(root)
    return index, index.load(trusted_end_time_ms=trusted_end_time_ms)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TagA", 2598919),
        ("", 0),
        ("*", 42),
        ("中文", 646394),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
        ("TopicTest#KEY1", -1656969516),
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    for cut in range(len(text) + 1):
        assert java_hash(text[cut:], seed=java_hash(text[:cut])) == expected


def test_a_key_lies_in_the_slot_of_the_format_sheet(tmp_path: Path) -> None:
    """store.md: "TopicTest#KEY1" has the index hash 1656969516 and, of 5,000,000 slots, slot 1969516."""
    index = make_index(tmp_path, slots=5_000_000)
    index.put("TopicTest", "KEY1", None, 7, T0)
    index.flush()
    with index.index_files[0].path.open("rb") as file:
        file.seek(HEADER_BYTES + 1_969_516 * 4)
        assert int.from_bytes(file.read(4), "big") == 1
    assert index.index_files[0].scan() == [(1_656_969_516, 7, 0)]


def test_the_hash_of_any_ascii_text_is_the_plain_loops() -> None:
    for length in (1, 5, 31, 32, 255, 256, 257, 1000):
        text = "".join(chr((length * 31 + position * 7) % 128) for position in range(length))
        value = 0
        for character in text:
            value = (31 * value + ord(character)) & 0xFFFFFFFF
        assert java_hash(text) & 0xFFFFFFFF == value


def test_a_message_is_found_by_unique_key_every_key_and_tag(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.put("Orders", "k1  k2", "u-1", 100, T0, tags="paid")
    for key in ("u-1", "k1", "k2", "T#paid"):
        assert index.query("Orders", key, 10, 0, EVER) == [100]
    assert index.query("Other", "k1", 10, 0, EVER) == []
    assert index.entries == 4


def test_a_rolled_back_message_is_not_entered_and_a_prepared_one_is(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.put("Orders", "k", None, 100, T0, SysFlag.TRANSACTION_ROLLBACK)
    index.put("Orders", "k", None, 200, T0, SysFlag.TRANSACTION_PREPARED)
    index.put("Orders", "k", None, 300, T0, SysFlag.TRANSACTION_COMMIT)
    assert index.query("Orders", "k", 10, 0, EVER) == [300, 200]


def test_answers_are_newest_first_over_rolled_files_and_bounded(tmp_path: Path) -> None:
    clock = ManualClock()
    index = make_index(tmp_path, units=10, clock=clock)
    for number in range(100):
        index.put("Orders", "k", None, number, T0 + number * 1000)
    assert len(index.index_files) == 12  # nine entries a file; all made in the same millisecond
    assert index.query("Orders", "k", 5, 0, EVER) == [99, 98, 97, 96, 95]
    assert len(index.query("Orders", "k", 1000, 0, EVER)) == QUERY_COUNT_MAX
    assert index.query("Orders", "k", 100, T0 + 40_000, T0 + 43_000) == [43, 42, 41, 40]


def test_the_smallest_hash_is_stored_as_zero(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    topic = "T"
    key = _key_with_hash(topic, -(2**31))
    index.put(topic, key, None, 5, T0)
    assert index.query(topic, key, 10, 0, EVER) == [5]
    assert index.index_files[0].scan() == [(0, 5, 0)]


def _key_with_hash(topic: str, wanted: int) -> str:
    """A key whose `topic#key` has a given hash: seven characters are enough digits in base 31."""
    rest = (wanted - java_hash(topic + "#") * 31**7) & 0xFFFFFFFF
    digits = []
    value = rest + (1 << 32) * 200
    for _ in range(6):
        digits.append(chr(value % 31 + 31))
        value = (value - (value % 31 + 31)) // 31
    return chr(value) + "".join(reversed(digits))


def test_entries_hold_the_seconds_since_the_first_and_never_more_than_fit(tmp_path: Path) -> None:
    """A clock may jump by a century: the number has 31 bits."""
    path, begin_ms = tmp_path / "0", 1_000_000
    index_file = IndexFile(path, slots=20, units=50, files=Files())
    index_file.create(previous=None)
    times_ms = [begin_ms, begin_ms + 1_999, begin_ms + 7_000, begin_ms + 2**31 * 1_000, begin_ms + 2**40 * 1_000]
    assert index_file.put_all([([5, 5], offset, time_ms) for offset, time_ms in enumerate(times_ms)]) == 10
    index_file.flush()
    index_file.close()
    data = path.read_bytes()
    units = [struct.unpack_from(">iqii", data, HEADER_BYTES + 20 * 4 + 20 * number) for number in range(1, 11)]
    assert [unit[2] for unit in units] == [0, 0, 1, 1, 7, 7, 2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1]


def test_a_file_that_is_loaded_is_filled_on(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.put("Orders", "k", None, 1, T0)
    index.flush()
    index.close()
    index, reasons = reload(tmp_path)
    assert reasons == []
    index.put("Orders", "k", None, 2, T0 + 1)
    assert index.query("Orders", "k", 10, 0, EVER) == [2, 1]
    assert len(index.index_files) == 1


def test_a_record_below_the_end_is_not_entered_again(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for offset in (10, 20, 20, 10):
        index.put("Orders", "k", None, offset, T0)
    assert index.query("Orders", "k", 10, 0, EVER) == [20, 10]


def test_a_start_and_the_worker_may_write_out_full_files_at_the_same_time(tmp_path: Path) -> None:
    """The one took from the list what the other had taken already, and the store did not open."""
    sealed: list[int] = []
    both = threading.Event()
    index: IndexService

    def on_sealed(end_time_ms: int) -> None:
        if not sealed:
            others.append(pool.submit(index.flush_sealed))
            both.wait(0.2)  # a second flush at once has all the time it needs
        sealed.append(end_time_ms)

    with ThreadPoolExecutor(1) as pool:
        others: list[object] = []
        index = IndexService(
            tmp_path / "index", slots=20, units=50, files=Files(), clock=ManualClock(), on_sealed=on_sealed
        )
        for number in range(200):
            index.put("Orders", f"k{number}", None, number, T0 + number)
        index.flush_sealed()
    assert sealed == [T0 + 48, T0 + 97, T0 + 146, T0 + 195]
    index.close()


def test_after_a_crash_the_file_being_filled_is_removed_and_full_flushed_ones_stay(tmp_path: Path) -> None:
    sealed: list[int] = []
    index = IndexService(
        tmp_path / "index", slots=20, units=50, files=Files(), clock=ManualClock(), on_sealed=sealed.append
    )
    for number in range(60):
        index.put("Orders", f"k{number}", None, number, T0 + number)
    assert index.flush_sealed() == T0 + 48
    assert sealed == [T0 + 48]
    index.close()
    index, reasons = reload(tmp_path, trusted_end_time_ms=sealed[0])
    assert len(reasons) == 1
    assert index.end_offset == 48


def test_a_put_that_was_killed_in_the_middle_is_undone(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for number in range(10):
        index.put("Orders", "k", None, number, T0)
    index.flush()
    path = index.index_files[0].path
    header = path.read_bytes()[:HEADER_BYTES]
    index.put("Orders", "k k", None, 10, T0)
    index.close()
    with path.open("r+b") as file:
        file.write(header)  # killed before the header was written
    index = make_index(tmp_path)
    assert index.load(killed_with={}) == []
    assert index.query("Orders", "k", 20, 0, EVER) == list(range(9, -1, -1))
    index.put("Orders", "k", None, 10, T0)
    assert index.query("Orders", "k", 3, 0, EVER) == [10, 9, 8]


def test_after_a_kill_a_file_goes_back_to_its_newest_mark(tmp_path: Path) -> None:
    index = make_index(tmp_path, units=3 * MARK_UNITS)
    count = 2 * MARK_UNITS + 100
    for number in range(count):
        index.put("Orders", f"k{number % 1000}", None, number, T0 + number)
    index.close()
    index = make_index(tmp_path, units=3 * MARK_UNITS)
    assert index.load(killed_with={}) == []
    (file,) = index.index_files
    assert (file.entries, file.end_offset, file.end_time_ms) == (
        2 * MARK_UNITS,
        2 * MARK_UNITS - 1,
        T0 + file.end_offset,
    )
    assert file.fault(units_checked_max=count) is None
    for number in range(file.end_offset, count):
        index.put("Orders", f"k{number % 1000}", None, number, T0 + number)
    assert file.fault(units_checked_max=2 * count) is None
    assert index.query("Orders", "k7", 64, 0, EVER) == list(range(8007, 0, -1000))


@pytest.mark.parametrize("position", [0, 3, 16, 24, 32, 36, HEADER_BYTES + 4 * 7, HEADER_BYTES + 80 + 20])
def test_a_flipped_index_file_is_noticed_and_removed(position: int, tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for number in range(30):
        index.put("Orders", f"k{number}", None, number * 100, T0 + number)
    index.flush()
    index.close()
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
    index, reasons = reload(tmp_path)
    assert len(reasons) == 1, reasons
    assert index.end_offset == -1
    assert not path.exists()


def test_every_flipped_bit_of_hash_slot_and_chain_is_noticed(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    for number in range(30):
        index.put("Orders", f"k{number}", None, number * 100, T0)
    index.flush()
    index.close()
    (path,) = (tmp_path / "index").iterdir()
    good = path.read_bytes()
    start = HEADER_BYTES + 20 * 4
    positions = [
        *range(HEADER_BYTES, start),
        *(start + unit * 20 + byte for unit in (1, 15, 30) for byte in range(16, 20)),
    ]
    for position in positions:
        data = bytearray(good)
        data[position] ^= 0x01
        path.write_bytes(data)
        file = IndexFile(path, slots=20, units=50, files=Files())
        file.load()
        assert file.fault(units_checked_max=100) is not None, position
        file.close()


def test_a_file_of_another_size_is_removed(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20260101000000000").write_bytes(bytes(index_file_bytes(20, 50) - 1))
    _, reasons = reload(tmp_path)
    assert "bytes" in reasons[0]


def test_old_files_go_with_the_log_but_never_the_last(tmp_path: Path) -> None:
    index = make_index(tmp_path, units=10)
    for number in range(30):
        index.put("Orders", "k", None, number, T0 + number)
    assert index.delete_below(10) == 1
    assert index.delete_below(10_000) == 2
    assert len(index.index_files) == 1


def test_the_clock_going_back_keeps_the_order_of_files(tmp_path: Path) -> None:
    clock = ManualClock()
    index = make_index(tmp_path, units=3, clock=clock)
    for number in range(10):
        index.put("Orders", "k", None, number, T0)
        clock.set_wall(clock.now_ms() - 3_600_000)
    names = [file.path.name for file in index.index_files]
    assert names == sorted(names)
    assert all(len(name) == 17 for name in names)


def test_a_cut_log_takes_a_full_file_with_it_even_when_a_new_one_without_entries_follows(tmp_path: Path) -> None:
    """A crash right after the roll leaves such a file behind: what the full one says of the cut part must go too."""
    index = make_index(tmp_path, units=5)
    for number in range(4):
        index.put("T", f"k{number}", None, number * 100, T0 + number)
    index.close()
    (full,) = (tmp_path / "index").iterdir()
    header = T0.to_bytes(8, "big") * 2 + (300).to_bytes(8, "big") * 2  # where the full one ends, and nothing entered
    (full.parent / str(int(full.name) + 1)).write_bytes(header.ljust(full.stat().st_size, b"\0"))
    index = make_index(tmp_path, units=5)
    assert index.load() == []
    assert (index.entries, len(index.index_files)) == (4, 2)
    assert index.truncate_physical(301) == 0
    assert index.truncate_physical(300) == 2
    assert index.query("T", "k3", 10, 0, EVER) == []
    assert list(full.parent.iterdir()) == []


class Watched(Files):
    """Remembers the mappings, and does something before a file is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[mmap.mmap] = []
        self.before_open: Callable[[Path], None] | None = None

    def map(self, descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
        self.maps.append(super().map(descriptor, size_bytes, writable=writable))
        return self.maps[-1]

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        if self.before_open is not None:
            act, self.before_open = self.before_open, None
            act(Path(path))
        return super().open(path, writable=writable, create=create)


def watched(root: Path) -> tuple[IndexService, Watched]:
    files = Watched()
    return IndexService(root / "index", slots=20, units=50, files=files, clock=ManualClock()), files


def test_a_mapping_is_not_closed_under_its_readers(tmp_path: Path) -> None:
    """A query beside the first put after a start failed with "mmap closed or invalid"."""
    index = make_index(tmp_path)
    index.put("Orders", "k", None, 10, T0)
    index.flush()
    index.close()
    index, files = watched(tmp_path)
    index.load()
    assert index.query("Orders", "k", 10, 0, EVER) == [10]
    (to_read,) = files.maps
    index.put("Orders", "k", None, 20, T0)
    to_write = files.maps[-1]
    assert not to_read.closed
    assert to_write is not to_read
    assert index.query("Orders", "k", 10, 0, EVER) == [20, 10]
    index.flush()
    index.truncate_physical(0)
    assert not to_read.closed
    assert not to_write.closed
    del to_read, to_write
    files.maps.clear()
    assert files.mapped() == (0, 0), "and goes with the last of them"


def test_a_query_that_maps_a_file_beside_the_put_that_does_leaves_the_puts_mapping(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.put("Orders", "k", None, 10, T0)
    index.flush()
    index.close()
    index, files = watched(tmp_path)
    index.load()
    index.index_files[0].close()  # no query has mapped it
    put = threading.Thread(target=index.put, args=("Orders", "k", None, 20, T0))

    def put_meanwhile(path: Path) -> None:
        put.start()
        put.join(0.2)  # it may go on, or wait for this query

    files.before_open = put_meanwhile
    assert 10 in index.query("Orders", "k", 10, 0, EVER)
    put.join()
    index.put("Orders", "k", None, 30, T0)
    assert index.query("Orders", "k", 10, 0, EVER) == [30, 20, 10]


def test_queries_beside_puts_and_deletions_find_what_is_there(tmp_path: Path) -> None:
    """Each file in turn is filled, mapped for reading, sealed and destroyed while others look up."""
    index = make_index(tmp_path)
    floor = 0  # below it nothing need be found
    done = threading.Event()

    def look_up() -> int:
        asked = 0
        while not done.is_set():
            least = floor
            found = index.query("Orders", "k", QUERY_COUNT_MAX, 0, EVER)
            assert found == sorted(set(found), reverse=True)
            assert not found or found[0] >= least
            asked += 1
        return asked

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(look_up) for _ in range(2)]
            try:
                for number in range(1, 4_000):
                    index.put("Orders", "k", None, number, T0)
                    floor = number
                    if number % 100 == 0:
                        index.flush_sealed()
                        index.delete_below(number - 120)
            finally:
                done.set()
            assert all(reader.result() > 0 for reader in readers)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("work", ["query", "settle", "flush_sealed", "take_checksums"])
def test_a_file_that_is_deleted_meanwhile_is_passed_over(work: str, tmp_path: Path) -> None:
    index, files = watched(tmp_path)
    for number in range(1, 120):
        index.put("Orders", f"k{number}", None, number, T0 + number)
    if work != "flush_sealed":
        index.flush_sealed()
    oldest = index.index_files[0]
    oldest.close()
    if work == "settle":
        oldest.is_doubtful = True
    if work == "take_checksums":
        oldest.checksum_count = 0
    if work == "flush_sealed":
        oldest.is_writable = True

    def delete(path: Path) -> None:
        assert path == oldest.path
        index.delete_below(100)

    files.before_open = delete
    if work == "query":
        assert index.query("Orders", "k1", 10, 0, T0 + 40) == []
    else:
        getattr(index, work)()
    assert files.before_open is None, "it was deleted in the middle"
    assert oldest not in index.index_files
    assert index.query("Orders", "k110", 10, 0, EVER) == [110]


def test_a_file_that_somebody_else_took_away_is_an_error(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.put("Orders", "k", None, 10, T0)
    index.flush()
    index.index_files[0].path.unlink()
    with pytest.raises(FileNotFoundError):
        index.query("Orders", "k", 10, 0, EVER)
