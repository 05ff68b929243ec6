"""Stores that lack files, or whose queues, units and checksums are wrong: nothing is passed over without a word.

What must be found is told by Java (expected.json): which message lies where in the log.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from contrailmq.message import Message, encode_host
from contrailmq.message.codec import encode_blank, encode_record
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.index_shape import IndexShape
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.queue_units import queue_files, units_between
from contrailmq.spark.decoding.scan import CorruptLogError
from contrailmq.spark.decoding.store_files import (
    StoreFilesError,
    confirmed_end,
    find_stores,
    log_files,
    store_identity,
)
from contrailmq.spark.jobs import swap
from contrailmq.spark.jobs.rebuild import rebuild, remove_old
from contrailmq.spark.jobs.swap import RebuildError
from contrailmq.spark.jobs.verify import verify
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.store import MessageStore, StoreConfig
from spark.conftest import expected, unpack

ONE = LocalEngine(workers=1)
FILE_BYTES = 131072  # of the golden stores' commit logs
SYSTEM_TOPICS = ("rmq_sys_", "schedule_topic_", "trans_check_")
UNIT = struct.Struct(">qiq")
ALL_COLUMNS = StructType([StructField(name, StringType()) for name in COLUMNS])


def rows_of(store: str, *, topics: str | None = None, **settings: Any) -> list[dict[str, Any]]:
    chosen = LogSettings(selection=Selection(topics=topics and frozenset([topics])), **settings)
    end = confirmed_end(store, skips_damage=chosen.skip_corrupt)
    parts = plan_parts(store, log_files(store)[0].base, end, chosen)
    return [row for part in parts for batch in read_part(part, chosen) for row in batch.to_pylist()]


def places(store: str, **settings: Any) -> list[int]:
    return [row["physicalOffset"] for row in rows_of(store, **settings)]


def java_places(*, topic: str | None = None, outside: tuple[int, int] = (0, 0)) -> list[int]:
    """Where Java found the messages of users' topics in the clean store, but for those that touch a stretch."""
    users = [m for m in expected("clean")["messages"] if not m["topic"].lower().startswith(SYSTEM_TOPICS)]
    return sorted(
        m["commitLogOffset"]
        for m in users
        if topic in (None, m["topic"])
        and (m["commitLogOffset"] + m["storeSize"] <= outside[0] or m["commitLogOffset"] >= outside[1])
    )


def log_file(store: str, base: int) -> Path:
    return Path(store, "commitlog", f"{base:020d}")


def remove(*bases: int) -> Callable[[str], None]:
    return lambda store: [log_file(store, base).unlink() for base in bases] and None


def cut(base: int, size: int) -> Callable[[str], None]:
    return lambda store: os.truncate(log_file(store, base), size)


LACKS = {
    "a file in the middle": (remove(262144), (262144, 393216)),
    "an empty file": (cut(262144, 0), (262144, 393216)),
    "a file that ends after a record": (cut(262144, 99932), (362076, 393216)),
    "the last three files": (remove(393216, 524288, 655360), (393216, 657654)),
    "the last file": (remove(655360), (655360, 657654)),
}


@pytest.mark.parametrize("plan", ["log", "queue"])
@pytest.mark.parametrize("what", LACKS)
def test_bytes_that_no_file_holds_are_damage(tmp_path: Path, what: str, plan: str) -> None:
    store = unpack("clean", tmp_path)
    lose, (start, stop) = LACKS[what]
    lose(store)
    topic = "GoldenBulk" if plan == "queue" else None
    with pytest.raises(CorruptLogError, match=f"that no log file holds at physical offset {start} ") as caught:
        rows_of(store, topics=topic, plan=plan)
    assert (caught.value.start, caught.value.stop) == (start, stop)
    assert places(store, topics=topic, plan=plan, skip_corrupt=True) == java_places(topic=topic, outside=(start, stop))


@pytest.mark.parametrize("what", LACKS)
def test_verify_tells_what_is_gone_and_who_points_there_and_rebuild_refuses(tmp_path: Path, what: str) -> None:
    store = unpack("clean", tmp_path)
    lose, (start, stop) = LACKS[what]
    lose(store)
    found = verify(store, ONE)
    corrupt = [finding for finding in found if finding.kind == "corrupt"]
    assert [(finding.physical_offset, finding.detail) for finding in corrupt] == [
        (start, f"{stop - start} bytes: bytes that no log file holds")
    ]
    lost = len(java_places()) - len(java_places(outside=(start, stop)))
    stray = sum(f.rows for f in found if f.kind == "stray-unit" and not (f.topic or "").startswith("rmq_sys"))
    assert stray >= lost > 0
    queues = sorted(Path(store, "consumequeue").rglob("0*"))
    with pytest.raises(CorruptLogError, match="no log file holds"):
        rebuild(store, ONE)
    assert sorted(Path(store, "consumequeue").rglob("0*")) == queues


def without_queue(store: str) -> None:
    shutil.rmtree(Path(store, "consumequeue", "GoldenBulk", "1"))


def with_a_zeroed_file(store: str) -> None:
    path = sorted(Path(store, "consumequeue", "GoldenBulk", "0").iterdir())[0]
    path.write_bytes(bytes(path.stat().st_size))


def without_any_queue(store: str) -> None:
    shutil.rmtree(Path(store, "consumequeue"))


def with_units_of_another_queue(store: str) -> None:
    for name in Path(store, "consumequeue", "GoldenBulk", "0").iterdir():
        shutil.copy(name, Path(store, "consumequeue", "GoldenBulk", "1", name.name))


def with_a_unit_that_points_into_a_body(store: str) -> None:
    path = sorted(Path(store, "consumequeue", "GoldenBulk", "2").iterdir())[0]
    data = bytearray(path.read_bytes())
    place, size, code = UNIT.unpack_from(data, 0)
    UNIT.pack_into(data, 0, place + 40, size, code)
    path.write_bytes(data)


@pytest.mark.parametrize("range_bytes", [9_999, 64 << 20])
@pytest.mark.parametrize(
    "damage",
    [
        without_queue,
        with_a_zeroed_file,
        without_any_queue,
        with_units_of_another_queue,
        with_a_unit_that_points_into_a_body,
    ],
)
def test_what_queues_lack_or_say_wrongly_is_read_from_the_log(
    tmp_path: Path, damage: Callable[[str], None], range_bytes: int
) -> None:
    store = unpack("clean", tmp_path)
    damage(store)
    for topic in ("GoldenBulk", "GoldenOrder"):
        assert places(store, topics=topic, range_bytes=range_bytes) == java_places(topic=topic)


def test_a_plan_has_the_same_parts_whatever_the_queues_hold(tmp_path: Path) -> None:
    """The numbers of parts are in the keys by which a sink's repeats are known."""
    store = unpack("clean", tmp_path)
    planned = []
    for plan in ("log", "queue", "auto"):
        chosen = LogSettings(selection=Selection(topics=frozenset(["GoldenOrder"])), plan=plan, range_bytes=20_000)
        parts = plan_parts(store, 0, confirmed_end(store), chosen)
        planned.append([[row["physicalOffset"] for b in read_part(p, chosen) for row in b.to_pylist()] for p in parts])
    assert planned[0] == planned[1] == planned[2]
    assert [place for part in planned[0] for place in part] == java_places(topic="GoldenOrder")
    assert [] in planned[0]  # a part without a row keeps its number


def stream(store: str, **options: str) -> Any:
    return CommitLogSource({"path": store, **options}).streamReader(ALL_COLUMNS)


def test_a_stream_says_that_its_store_became_shorter(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path / "a")
    reached = stream(store).latestOffset(stream(store).initialOffset(), ReadAllAvailable())
    shutil.rmtree(store)
    shutil.move(unpack("direct", tmp_path / "b"), store)
    end = confirmed_end(store)
    with pytest.raises(StoreFilesError, match=f"read up to 657654, but its log ends at {end} now.*start a new query"):
        stream(store).latestOffset(reached, ReadAllAvailable())
    allowed = stream(store, failOnDataLoss="false")
    assert allowed.latestOffset(reached, ReadAllAvailable()) == reached


def test_a_unit_that_points_nowhere_does_not_place_the_end(tmp_path: Path) -> None:
    """Whoever passes over damage goes on behind the last whole record, so that what comes later is read."""
    store = str(tmp_path / "store")
    config = StoreConfig(store, mapped_file_size_commit_log=64 * 1024)
    with MessageStore(config) as opened:
        sizes = [opened.put(Message("Orders", b"x"), queue_id=0).size_bytes for _ in range(3)]
    end = confirmed_end(store)
    assert end == sum(sizes)
    path = next(Path(store, "consumequeue", "Orders", "0").iterdir())
    for place in (10**12, 40_000):  # behind the log's files, and in what is not written yet
        data = bytearray(path.read_bytes())
        UNIT.pack_into(data, 3 * UNIT.size, place, 100, 0)
        path.write_bytes(data)
        assert confirmed_end(store) == place + 100  # to be reported
        assert confirmed_end(store, skips_damage=True) == end
        with pytest.raises(CorruptLogError):
            rows_of(store)
        assert len(rows_of(store, skip_corrupt=True)) == 3
        stray = [f for f in verify(store, ONE) if f.kind == "stray-unit"]
        assert [(f.topic, f.queue_id, f.queue_offset, f.physical_offset) for f in stray] == [("Orders", 0, 3, place)]


@pytest.mark.parametrize("skips_damage", [False, True])
def test_a_stream_that_runs_gets_past_a_damaged_record(tmp_path: Path, skips_damage: bool) -> None:
    """It found its end before the damage, or just behind; what comes later is in the queues."""
    store = str(tmp_path / "store")
    with MessageStore(StoreConfig(store, mapped_file_size_commit_log=64 * 1024)) as opened:
        sizes = [opened.put(Message("Orders", b"x%d" % n), queue_id=0).size_bytes for n in range(9)]
    (file,) = log_files(store)
    data = Path(file.path).read_bytes()
    first_six, end = sum(sizes[:6]), sum(sizes)
    damaged = bytearray(data[:first_six] + bytes(len(data) - first_six))
    damaged[sum(sizes[:5]) + 4] ^= 1  # the magic of the sixth
    Path(file.path).write_bytes(damaged)
    known = confirmed_end(store, known_end=sum(sizes[:5]), skips_damage=skips_damage)
    assert known == (sum(sizes[:5]) if skips_damage else end)
    Path(file.path).write_bytes(damaged[:first_six] + data[first_six:])
    assert confirmed_end(store, known_end=sum(sizes[:5]), skips_damage=skips_damage) == end


def test_the_end_of_a_live_log_is_taken_without_asking_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("clean", tmp_path)
    end = confirmed_end(store)
    monkeypatch.setattr("contrailmq.spark.decoding.store_files.dispatched_end", lambda store: pytest.fail("asked"))
    assert confirmed_end(store, known_end=end) == confirmed_end(store, known_end=262144) == end


def test_a_file_that_is_gone_far_behind_the_wanted_times_is_not_asked_for(tmp_path: Path) -> None:
    folder, hour, host = tmp_path / "commitlog", 3_600_000, encode_host("10.0.0.1", 1)
    folder.mkdir()
    for number in (0, 1, 3):  # the third file is missing
        record = encode_record(
            "T", b"%d" % number, b"", queue_id=0, queue_offset=number, physical_offset=number * 4096, born_host=host,
            store_host=host, born_time_ms=1, store_time_ms=hour * (1 + number),
        )  # fmt: skip
        Path(folder, f"{number * 4096:020d}").write_bytes(
            record + encode_blank(4096 - len(record)).ljust(4096 - len(record), b"\0")
        )

    def bodies(**selection: Any) -> list[bytes]:
        chosen = LogSettings(selection=Selection(**selection))
        parts = plan_parts(str(tmp_path), 0, 3 * 4096 + 100, chosen)
        return [row["body"] for part in parts for batch in read_part(part, chosen) for row in batch.to_pylist()]

    assert bodies(end_ms=hour + 1) == [b"0"]
    with pytest.raises(CorruptLogError, match="no log file holds at physical offset 8192 "):
        bodies(end_ms=2 * hour + 1)


def test_units_are_found_in_queues_of_many_files(tmp_path: Path) -> None:
    """A place in each file, at its borders and between units; files of three units, the first begins at unit 1."""
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    places = {n: 100 + 7 * n for n in range(1, 2000)}
    for base in range(0, 2000, 3):
        units = [
            UNIT.pack(places[n], 5, 0) if n in places else UNIT.pack(0, 2147483647, 0) for n in range(base, base + 3)
        ]
        Path(folder, f"{base * UNIT.size:020d}").write_bytes(b"".join(units[: 2000 - base]))
    (queue,) = queue_files(str(tmp_path))
    for start, stop in ((0, 50), (107, 108), (108, 115), (121, 4000), (4001, 4003), (14_000, 10**9), (0, 10**9)):
        first, last = units_between(queue, start, stop)
        wanted = [n for n, place in places.items() if start <= place < stop]
        assert [n for n in range(first, last) if n in places] == wanted, (start, stop)


@pytest.mark.parametrize("name", ["a [x]", "a*", "a?b", "a{b,c}", "a,b", ",", "[a"])
def test_a_path_that_exists_is_a_store_whatever_its_letters_mean_elsewhere(tmp_path: Path, name: str) -> None:
    """As a glob, `a*` would find its neighbour too; as a list, `a,b` is two stores."""
    for folder in (name, "ab", "a"):
        (tmp_path / folder / "st" / "commitlog").mkdir(parents=True)
    assert find_stores(f"{tmp_path}/{name}/st") == [f"{tmp_path}/{name}/st"]
    assert find_stores(f" {tmp_path}/{name}/st/commitlog ") == [f"{tmp_path}/{name}/st"]
    if "," not in name:
        assert find_stores(f"{tmp_path}/ab/st, {tmp_path}/{name}/st") == [f"{tmp_path}/ab/st", f"{tmp_path}/{name}/st"]
    assert set(find_stores(f"{tmp_path}/*/st")) == {f"{tmp_path}/{folder}/st" for folder in (name, "ab", "a")}


@pytest.mark.parametrize("part", ["none", "none*"])
def test_a_comma_that_parts_what_is_one_path_is_told(tmp_path: Path, part: str) -> None:
    (tmp_path / "a" / "commitlog").mkdir(parents=True)
    given = f"{tmp_path}/a,{part}"
    text = f"nothing matches '{re.escape(part)}' on host .*: commas separate stores, '{re.escape(given)}' names 2"
    with pytest.raises(StoreFilesError, match=text):
        find_stores(given)


def test_a_store_is_the_same_under_every_name(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    link = tmp_path / "link"
    link.symlink_to(store)
    names = [store, str(link), f"{store}/commitlog", f"{link}/commitlog", f"{store}/"]
    assert {store_identity(name) for name in names} == {os.path.realpath(store)}
    assert find_stores(",".join(names)) == [store]
    assert find_stores(f"{link}/commitlog") == [str(link)]  # as it was given: executors may have no other name for it
    begun = stream(str(link)).latestOffset(stream(str(link)).initialOffset(), ReadAllAvailable())
    assert begun["stores"] == {str(link): 657654}
    for name in names:
        again = stream(name)
        reached = again.latestOffset(begun, ReadAllAvailable())
        assert reached["stores"] == {str(link) if name.startswith(str(link)) else store: 657654}
        assert again.partitions(begun, reached) == []


def test_a_stream_goes_on_when_a_store_moves_and_its_link_follows(tmp_path: Path) -> None:
    link, store = tmp_path / "link", unpack("clean", tmp_path)
    link.symlink_to(store)
    begun = stream(str(link)).latestOffset(stream(str(link)).initialOffset(), ReadAllAvailable())
    Path(store).rename(tmp_path / "moved")
    link.unlink()
    link.symlink_to(tmp_path / "moved")
    assert stream(str(link)).latestOffset(begun, ReadAllAvailable()) == begun


def test_a_checkpoint_that_names_a_log_directory_goes_on(tmp_path: Path) -> None:
    """Offsets of older versions bear the path as it was given."""
    store = unpack("clean", tmp_path)
    old = {"stores": {f"{store}/commitlog": 655360}, "version": 1}
    reader = stream(f"{store}/commitlog")
    reached = reader.latestOffset(old, ReadAllAvailable())
    found = [
        row["physicalOffset"]
        for part in reader.partitions(old, reached)
        for b in reader.read(part)
        for row in b.to_pylist()
    ]
    assert found == [place for place in java_places() if place >= 655360]


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ('{"GoldenBulkk": {"0": 3}}', "queue 0 of 'GoldenBulkk', which .* does not have: it has no such topic"),
        ('{"GoldenBulk": {"77": 3}}', "queue 77 of 'GoldenBulk', which .* does not have: it has [0-9, ]+ of"),
        ('{"GoldenBulk": {"0": 1.5}}', "1.5 is not a whole number"),
        ('{"GoldenBulk": {"0": true}}', "True is not a whole number"),
    ],
)
def test_offsets_of_no_queue_and_those_that_are_no_numbers_are_refused(
    golden_store: Callable[[str], str], offsets: str, text: str
) -> None:
    source = {"path": golden_store("clean"), "startingOffsets": offsets}
    with pytest.raises(OptionError, match=text):
        CommitLogSource(source).reader(ALL_COLUMNS).partitions()
    with pytest.raises(OptionError, match=text):
        CommitLogSource(source).streamReader(ALL_COLUMNS).initialOffset()


@pytest.mark.parametrize(
    "last", ["order_created\x012024-01-01\x02", "__Cxxxxx\x011234567890\x02", "__\x01_R34567890123456\x02"]
)
def test_a_property_that_looks_a_little_like_a_checksum_is_none(tmp_path: Path, last: str) -> None:
    """Where the checksum's name would stand, two to four of its nine bytes."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    host, data = encode_host("10.0.0.1", 1), b""
    for number in range(3):
        properties = last.encode() if number == 1 else b"a\x01b\x02"
        data += encode_record(
            "T", b"body", properties, queue_id=0, queue_offset=number, physical_offset=len(data), born_host=host,
            store_host=host, born_time_ms=1, store_time_ms=1,
        )  # fmt: skip
    Path(folder, "0" * 20).write_bytes(data + bytes(5000))
    assert confirmed_end(str(tmp_path)) == len(data)
    assert [row["queueOffset"] for row in rows_of(str(tmp_path))] == [0, 1, 2]


def test_offsets_of_batch_queues_are_taken(tmp_path: Path) -> None:
    """Topics with queue.type=BatchCQ have their queues in a directory of their own."""
    store = str(tmp_path / "store")
    with MessageStore(StoreConfig(store, mapped_file_size_commit_log=64 * 1024)) as opened:
        opened.set_batch_topics({"B"})
        for topic in ("B", "N", "B"):
            opened.put(Message(topic, b"x"), queue_id=0)
    assert {path.name for path in Path(store, "batchconsumequeue").iterdir()} == {"B"}
    reader = CommitLogSource({"path": store, "startingOffsets": '{"B": {"0": 1}}'}).reader(ALL_COLUMNS)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["topic"], row["queueOffset"]) for row in found] == [("N", 0), ("B", 1)]


def test_a_record_that_fails_its_own_checksum_is_found(tmp_path: Path) -> None:
    """One bit of a key: the body and all lengths are as they were."""
    store = unpack("direct-crc", tmp_path)
    path = log_files(store)[0].path
    data = bytearray(Path(path).read_bytes())
    at = data.index(b"KEYS\x01") + 5
    assert re.fullmatch(rb"[ -~]", data[at : at + 1])
    assert verify(store, ONE) == []
    data[at] ^= 1
    Path(path).write_bytes(data)
    begins = [message["commitLogOffset"] for message in expected("direct-crc")["messages"]]
    place = max(begin for begin in begins if begin <= at)
    assert ("corrupt", place) in [(finding.kind, finding.physical_offset) for finding in verify(store, ONE)]
    with pytest.raises(CorruptLogError, match=f"a record that fails its CRC at physical offset {place} "):
        rows_of(store)


@pytest.mark.parametrize(("name", "shape"), [("direct-crc", (50, 120)), ("clean", (100, 400))])
def test_the_shape_of_an_index_is_known_by_its_entries(
    golden_store: Callable[[str], str], name: str, shape: tuple[int, int]
) -> None:
    assert IndexShape.of_store(golden_store(name)) == shape


def test_an_index_of_unknown_shape_is_named_and_not_replaced(tmp_path: Path) -> None:
    store = unpack("direct-crc", tmp_path)
    (path,) = Path(store, "index").iterdir()
    path.write_bytes(bytes(2_641))
    (found,) = verify(store, ONE)
    assert (found.kind, found.rows) == ("index-shape", 1)
    assert "has 2641 bytes" in found.detail
    with pytest.raises(RebuildError, match="do not say how many slots they have.*move its directory index away"):
        rebuild(store, ONE)
    assert path.read_bytes() == bytes(2_641)


@pytest.mark.parametrize("empty_one", ["master", "slave"])
def test_an_empty_log_can_be_compared(tmp_path: Path, empty_one: str) -> None:
    full, empty = unpack("clean", tmp_path), str(tmp_path / "empty")
    Path(empty, "commitlog").mkdir(parents=True)
    if empty_one == "slave":
        assert verify(full, ONE, slave=empty) == []
    else:
        (found,) = verify(empty, ONE, slave=full)
        assert (found.kind, found.detail) == ("slave-ahead", "the slave's log goes to 657654, its master's to 0")


def test_a_rebuild_that_died_between_its_renames_is_undone_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("clean", tmp_path)
    before = {str(path.relative_to(store)) for path in Path(store).rglob("*") if path.is_file()}

    class Died(BaseException):
        pass

    def die(*names: str) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *given, **named: None)  # a killed process removes nothing
        patched.setattr(tempfile.TemporaryDirectory, "_rmtree", lambda *given, **named: None)  # an older Python's own
        patched.setattr(swap, "swap", lambda store, folder: half_swapped(store, die))
        with pytest.raises(Died):
            rebuild(store, ONE)
    assert not Path(store, "consumequeue").exists()
    assert list(Path(store).glob("rebuild-*"))
    remove_old(rebuild(store, ONE))
    assert verify(store, ONE) == []
    after = {str(path.relative_to(store)) for path in Path(store).rglob("*") if path.is_file()}
    assert {name for name in after if not name.startswith("index/")} == {
        name for name in before if not name.startswith("index/")
    } | {"lock"}


def half_swapped(store: str, die: Callable[..., None]) -> None:
    """The first of the two renames, and no more."""
    old = Path(store, "consumequeue.before-rebuild-x")
    old.mkdir()
    Path(store, "consumequeue").rename(old / "consumequeue")
    die()


@pytest.mark.parametrize("what", ["cut", "flipped"])
def test_an_end_that_is_passed_over_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Nothing follows the damage, so no reader of the log meets it: only the queues know that something was there."""
    store = tmp_path / "store"
    with MessageStore(StoreConfig(store, mapped_file_size_commit_log=64 * 1024)) as opened:
        sizes = [opened.put(Message("Orders", b"x%d" % n), queue_id=0).size_bytes for n in range(9)]
    (file,) = log_files(str(store))
    if what == "cut":
        os.truncate(file.path, sum(sizes[:8]) + 10)
    else:
        data = bytearray(Path(file.path).read_bytes())
        data[sum(sizes) - sizes[8] + 88] ^= 0xFF
        Path(file.path).write_bytes(data)
    with caplog.at_level("WARNING"):
        assert places(str(store), skip_corrupt=True) == [sum(sizes[:n]) for n in range(8)]
    assert [text for text in caplog.messages if "is not read" in text] == [
        f"{store}: {sum(sizes[:8])} to {sum(sizes)} is not read: queues point there, and it holds no whole record or "
        "no file has it (contrailmq pipeline verify)"
    ]


@pytest.mark.parametrize("crash", ["power cut", "none"])
def test_rows_that_recovery_will_cut_are_not_read_when_damage_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, crash: str
) -> None:
    """After a power cut whole records may stand behind a hole: recovery drops them, and so does onCorrupt=skip.

    After a clean stop they were durable, and recovery keeps them.
    """
    store = tmp_path / "store"
    with MessageStore(StoreConfig(store, mapped_file_size_commit_log=64 * 1024)) as opened:
        sizes = [opened.put(Message("Orders", b"x%d" % n), queue_id=0).size_bytes for n in range(9)]
    (file,) = log_files(str(store))
    data = bytearray(Path(file.path).read_bytes())
    hole = sum(sizes[:5])
    data[hole : hole + sizes[5]] = bytes(sizes[5])  # the page did not reach the disk
    Path(file.path).write_bytes(data)
    if crash == "power cut":
        (store / "abort").touch()
        for name in ("checkpoint", "queues.ledger"):
            for path in store.rglob(name):
                path.unlink()
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    with caplog.at_level("WARNING"):
        rows = places(str(store), skip_corrupt=True)
    with MessageStore(StoreConfig(copy, mapped_file_size_commit_log=64 * 1024)) as recovered:
        kept_to = recovered.recovery.physical_offset_max
    starts = [sum(sizes[:number]) for number in range(9) if number != 5]
    assert rows == [start for start in starts if start < kept_to]
    told = [text for text in caplog.messages if "the next start will cut the log at" in text]
    if crash == "power cut":
        assert kept_to == hole
        assert told == [
            f"{store}: {hole} to {sum(sizes)} is not read: its broker did not stop cleanly, and the next start will "
            f"cut the log at {hole}, where it finds unwritten space"
        ]
    else:
        assert (rows, told) == (starts, [])
