"""Recovery under damage: the log ends at the last whole record, queues and index agree with it, and twice the same.

`make test` tries a sample of places; CONTRAILMQ_LONG=1 tries every byte.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from plain_store import LogWriter, PlainStore, QuickFiles, copy_store, queue_files

from contrailmq.message.codec import Kind, check_record
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store
from contrailmq.store.recovery.queue_ledger import LEDGER_NAME

IS_LONG = os.environ.get("CONTRAILMQ_LONG") == "1"
SIZES = {"mapped_file_size_consume_queue": 200, "max_hash_slot_num": 10, "max_index_num": 40}


def write_store(root: Path, count: int = 40) -> LogWriter:
    """Several log, queue and index files, three queues, closed cleanly."""
    writer = LogWriter(root)
    for number in range(count):
        properties = f"TAGS\x01t{number % 3}\x02UNIQ_KEY\x01u{number}\x02KEYS\x01k{number} shared\x02"
        writer.add("Orders", number % 2, bytes([number % 255 + 1]) * (60 + number % 50), properties.encode())
        if number % 5 == 0:
            writer.add("Audit", 0, b"a" * 30)
    PlainStore(root, **SIZES).close()
    return writer


def check_against(writer: LogWriter, store: PlainStore, end: int) -> None:
    """Exactly the records below `end`, each at its place; nothing else, and everything fits together."""
    assert store.recovery.physical_offset_max == end
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, queue_id, _, physical_offset, size in writer.records:
        if physical_offset < end:
            expected.setdefault((topic, queue_id), []).append((physical_offset, size))
    found = {key: [unit[:2] for unit in units] for key, units in store.units().items() if units}
    assert found == expected
    store.close()
    with StoreView(StoreConfig(store.root, **SIZES)) as view:
        report = verify_store(view)
    assert report.findings == []


def check_holed(writer: LogWriter, store: PlainStore) -> None:
    """Every unit is there, of the damaged record too: offsets never shift, and none is given out twice."""
    assert store.recovery.physical_offset_max == writer.end
    assert (store.recovery.units_cut, store.recovery.cut_bytes) == (0, 0)
    expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, queue_id, _, physical_offset, size in writer.records:
        expected.setdefault((topic, queue_id), []).append((physical_offset, size))
    assert {key: [unit[:2] for unit in units] for key, units in store.units().items() if units} == expected
    store.close()


def zero(data: bytearray, begin: int, end: int, _seed: int) -> None:
    data[begin:end] = bytes(end - begin)


def garbage(data: bytearray, begin: int, end: int, seed: int) -> None:
    data[begin:end] = random.Random(seed).randbytes(end - begin)


def cut(data: bytearray, begin: int, _end: int, _seed: int) -> None:
    """As when the file had ended there and was grown again with zeros."""
    data[begin:] = bytes(len(data) - begin)


def damaged_places(writer: LogWriter) -> list[tuple[int, int]]:
    """(Record, byte in it) of the last three records, and of the last and first record around a file boundary."""
    boundary = next(
        number
        for number in range(len(writer.records) - 1, 0, -1)
        if writer.records[number][3] // writer.file_bytes != writer.records[number - 1][3] // writer.file_bytes
    )
    numbers = [*range(len(writer.records) - 3, len(writer.records)), boundary - 1, boundary]
    return [(number, byte) for number in numbers for byte in range(writer.records[number][4])]


@pytest.mark.parametrize("damage", [zero, garbage, cut])
@pytest.mark.parametrize("exit_kind", ["clean", "crash"])
def test_a_damaged_record_ends_the_log_unless_what_follows_was_surely_stored(
    damage: Callable[[bytearray, int, int, int], None], exit_kind: str, tmp_path: Path
) -> None:
    """After a clean exit the ledger knows what follows: then nothing but the damaged record is lost."""
    good = tmp_path / "good"
    writer = write_store(good)
    places = damaged_places(writer)
    if exit_kind == "clean":  # then the walk begins with the last file: what is before it was synced long ago
        places = [place for place in places if writer.records[place[0]][3] >= writer.end - writer.end % 4096]
    if not IS_LONG:
        places = random.Random(4).sample(places, 10)
    for number, byte in places:
        root = copy_store(good, tmp_path / "damaged")
        if exit_kind == "crash":
            (root / "abort").write_text("1")
        _, _, _, physical_offset, size = writer.records[number]
        path, position = LogWriter(root).path_of(physical_offset)
        data = bytearray(path.read_bytes())
        damage(data, position + byte, position + size, byte)
        path.write_bytes(data)
        verdict = check_record(data, position, physical_offset=physical_offset)
        # A change in the tail that no checksum covers leaves the record whole; then the next one decides.
        if verdict.kind is not Kind.WHOLE:
            end = physical_offset
        elif damage is cut and number + 1 < len(writer.records):
            end = _end_after_cut(writer, number)
        else:
            continue
        store = PlainStore(root, **SIZES)
        if exit_kind == "clean" and damage is not cut and number + 1 < len(writer.records):
            following = writer.records[number + 1][3]
            assert [hole[:2] for hole in store.recovery.holes] == [(physical_offset, following)]
            check_holed(writer, store)
            check_holed(writer, PlainStore(root, **SIZES))
            shutil.rmtree(root)
            continue
        assert store.recovery.cut_bytes or damage is not garbage or not byte
        check_against(writer, store, end)
        check_against(writer, PlainStore(root, **SIZES), end)
        shutil.rmtree(root)


def _end_after_cut(writer: LogWriter, number: int) -> int:
    """Only zeros were cut from this record: the log ends behind it, within its file."""
    _, _, _, physical_offset, size = writer.records[number]
    return physical_offset + size


def test_a_crash_in_the_middle_of_recovery_changes_nothing(tmp_path: Path) -> None:
    writer = write_store(tmp_path / "s")
    root = tmp_path / "s"
    (root / "abort").write_text("1")
    shutil.rmtree(root / "consumequeue/Orders/1")
    for _ in range(3):
        PlainStore(root, **SIZES).drop()  # as if killed before anything was flushed
    check_against(writer, PlainStore(root, **SIZES), writer.end)


def test_an_old_record_behind_the_cut_never_comes_back(tmp_path: Path) -> None:
    """Cut, write a record of the same size, crash: the old record behind it lines up, and must be gone."""
    root = tmp_path / "s"
    writer = LogWriter(root)
    offsets = [writer.add(body=bytes([number]) * 50)[0] for number in range(1, 9)]
    path, position = writer.path_of(offsets[5])
    data = bytearray(path.read_bytes())
    data[position + 90] ^= 1
    path.write_bytes(data)
    (root / "abort").write_text("1")
    store = PlainStore(root, **SIZES)
    assert store.recovery.physical_offset_max == offsets[5]
    store.close()
    writer.end = offsets[5]
    writer.next_offsets["Orders", 0] = 5
    writer.add(body=b"n" * 50)
    (root / "abort").write_text("1")
    store = PlainStore(root, **SIZES)
    assert store.recovery.physical_offset_max == writer.end == offsets[6]
    assert store.ranges() == {("Orders", 0): (0, 6)}


def _delete_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/Orders/1")


def _delete_all_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def _delete_last_queue_file(root: Path) -> None:
    sorted((root / "consumequeue/Orders/0").iterdir())[-1].unlink()


def _delete_first_queue_file(root: Path) -> None:
    sorted((root / "consumequeue/Orders/0").iterdir())[0].unlink()


def _shorten_queue_file(root: Path) -> None:
    with sorted((root / "consumequeue/Orders/0").iterdir())[0].open("r+b") as file:
        file.truncate(77)


def _zero_end_of_queue(root: Path) -> None:
    path = sorted((root / "consumequeue/Orders/0").iterdir())[0]
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(100))


def _empty_queue_file(root: Path) -> None:
    sorted((root / "consumequeue/Orders/0").iterdir())[-1].write_bytes(b"")


def _delete_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def _delete_one_index_file(root: Path) -> None:
    sorted((root / "index").iterdir())[1].unlink()


def _shorten_index_file(root: Path) -> None:
    with sorted((root / "index").iterdir())[0].open("r+b") as file:
        file.truncate(100)


def _delete_checkpoint(root: Path) -> None:
    (root / "checkpoint").unlink()


def _garbage_checkpoint(root: Path) -> None:
    (root / "checkpoint").write_bytes(random.Random(1).randbytes(4096))


DAMAGES = [
    _delete_queue,
    _delete_all_queues,
    _delete_last_queue_file,
    _delete_first_queue_file,
    _shorten_queue_file,
    _zero_end_of_queue,
    _empty_queue_file,
    _delete_index,
    _delete_one_index_file,
    _shorten_index_file,
    _delete_checkpoint,
    _garbage_checkpoint,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("exit_kind", ["clean", "crash", "clean without ledger"])
def test_damaged_queues_index_and_checkpoint_are_made_again(
    damage: Callable[[Path], None], exit_kind: str, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    writer = write_store(root)
    before = queue_files(root)
    if exit_kind == "crash":
        (root / "abort").write_text("1")
    if exit_kind == "clean without ledger":
        (root / LEDGER_NAME).unlink()
    damage(root)
    check_against(writer, PlainStore(root, **SIZES), writer.end)
    assert queue_files(root) == before


@pytest.mark.parametrize("exit_kind", ["clean", "crash", "clean without ledger"])
def test_a_flipped_bit_anywhere_in_a_queue_is_mended(exit_kind: str, tmp_path: Path) -> None:
    good = tmp_path / "good"
    writer = write_store(good)
    before = queue_files(good)
    names = [name for name in before if "Orders/0" in name]
    places = [(name, position) for name in names for position in range(len(before[name].rstrip(b"\0")))]
    if not IS_LONG:
        places = random.Random(9).sample(places, 15)
    for name, position in places:
        root = copy_store(good, tmp_path / "flipped")
        if exit_kind == "crash":
            (root / "abort").write_text("1")
        if exit_kind == "clean without ledger":
            (root / LEDGER_NAME).unlink()
        data = bytearray(before[name])
        data[position] ^= 1 << position % 8
        (root / name).write_bytes(data)
        check_against(writer, PlainStore(root, **SIZES), writer.end)
        assert queue_files(root) == before, (name, position)


def test_a_killed_process_keeps_its_index_and_a_crashed_machine_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    writer = write_store(root)
    (root / "abort").write_text("1")
    store = PlainStore(root, **SIZES)
    assert store.recovery.index_rebuilt == ()
    check_against(writer, store, writer.end)
    (root / "abort").write_text("1")
    monkeypatch.setattr(QuickFiles, "boot_id", lambda self: "another")
    store = PlainStore(root, **SIZES)
    assert len(store.recovery.index_rebuilt) > 0
    check_against(writer, store, writer.end)


def test_the_last_unit_of_a_queue_that_is_lost_is_noticed_below_the_walk(tmp_path: Path) -> None:
    """The Audit queue's last message lies in an early file. Apache would give its offset out again."""
    root = tmp_path / "s"
    writer = LogWriter(root)
    for _ in range(3):
        writer.add("Audit")
    for _ in range(60):
        writer.add("Orders")
    PlainStore(root, **SIZES).close()
    path = root / "consumequeue/Audit/0" / ("0" * 20)
    path.write_bytes(path.read_bytes()[:40] + bytes(160))
    store = PlainStore(root, **SIZES)
    assert store.recovery.walked_from > 0
    assert [(queue.topic, queue.queue_id) for queue in store.recovery.queues_rebuilt] == [("Audit", 0)]
    check_against(writer, store, writer.end)


def test_a_queue_whose_messages_are_gone_keeps_its_next_offset(tmp_path: Path) -> None:
    root = tmp_path / "s"
    writer = write_store(root)
    shutil.rmtree(root / "consumequeue/Audit")
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    store = PlainStore(root, **SIZES)
    ranges = store.ranges()
    assert ranges["Audit", 0][1] == writer.next_offsets["Audit", 0]


def test_a_store_without_a_log_forgets_its_queues(tmp_path: Path) -> None:
    root = tmp_path / "s"
    write_store(root)
    shutil.rmtree(root / "commitlog")
    store = PlainStore(root, **SIZES)
    assert store.ranges() == {}
    assert store.index.entries == 0
    assert "no log" in store.recovery.reason


def test_a_blank_at_the_end_of_the_last_file_is_where_writing_resumes(tmp_path: Path) -> None:
    root = tmp_path / "s"
    writer = LogWriter(root)
    while writer.end < writer.file_bytes:
        last_end = writer.end
        writer.add(body=b"z" * 300)
    (root / "commitlog" / str(writer.file_bytes).zfill(20)).unlink()
    store = PlainStore(root, **SIZES)
    assert store.recovery.physical_offset_max == last_end
    assert store.recovery.cut_bytes == 8
    assert "blank" in store.recovery.reason


def test_a_pre_allocated_file_behind_the_end_is_dropped(tmp_path: Path) -> None:
    root = tmp_path / "s"
    writer = write_store(root)
    base = writer.end - writer.end % writer.file_bytes + writer.file_bytes
    (root / "commitlog" / str(base).zfill(20)).write_bytes(bytes(writer.file_bytes))
    (root / "abort").write_text("1")
    store = PlainStore(root, **SIZES)
    assert store.recovery.cut_files == 1
    assert store.recovery.cut_bytes == 0
    check_against(writer, store, writer.end)


def test_a_log_that_begins_above_zero_gives_pre_blanked_queues(tmp_path: Path) -> None:
    root = tmp_path / "s"
    writer = write_store(root)
    for path in sorted((root / "commitlog").iterdir())[:2]:
        path.unlink()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    store = PlainStore(root, **SIZES)
    log_min = 2 * writer.file_bytes
    for (topic, queue_id), (minimum, maximum) in store.ranges().items():
        offsets = [
            offset for name, queue, offset, physical, _ in writer.records
            if (name, queue) == (topic, queue_id) and physical >= log_min
        ]  # fmt: skip
        assert (minimum, maximum) == (min(offsets), max(offsets) + 1)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_queue_whose_only_new_record_has_an_impossible_offset_keeps_its_units(is_full: bool, tmp_path: Path) -> None:
    """No checksum covers a record's queue offset, and a sender may give offsets in light queues."""
    root = tmp_path / "s"
    writer = write_store(root)
    kept = PlainStore(root, **SIZES)
    units, ranges = kept.units(), kept.ranges()
    kept.close()
    for topic in ("Audit", "New"):
        writer.next_offsets[topic, 0] = 1 << 40
        writer.add(topic, 0, b"a" * 30)
    writer.add("Orders", 0, b"o" * 30)
    if is_full:
        (root / LEDGER_NAME).unlink()
    (root / "abort").write_text("1")
    store = PlainStore(root, **SIZES)
    assert store.recovery.physical_offset_max == writer.end
    assert (store.units()["Audit", 0], store.ranges()["Audit", 0]) == (units["Audit", 0], ranges["Audit", 0])
    assert store.units()["Orders", 0][:-1] == units["Orders", 0]
    assert store.ranges().get(("New", 0), (0, 0)) == (0, 0)


def test_a_new_store_is_called_new_and_one_that_was_closed_empty_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        caplog.clear()
        with (
            caplog.at_level("INFO", "contrailmq.store.recovery.recovery"),
            MessageStore(StoreConfig(tmp_path)) as store,
        ):
            assert store.recovery.is_new == ("is new" in caplog.text)
        return caplog.messages

    assert said() == ["the store is new: its log is empty"]
    (again,) = said()
    assert again.startswith("recovered the store: it was closed cleanly; the log is empty")
