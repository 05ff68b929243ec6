"""A flipped byte in a queue file, an index file, the checkpoint or the ledger: made again from the log, never served.

Each test flips one byte after the other in a copy of one store, opens it, and asks for everything: every message of
every queue, every key, and every key by time. What the answers must be follows from what was put, and `store verify`
must have no findings afterwards. `make test` takes a sample; CONTRAILMQ_LONG=1 takes every byte.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_store import GOLDEN, QuickFiles, unpack_golden

from contrailmq.message import Message
from contrailmq.store import ManualClock, MessageStore, StoreConfig, StoreView, verify_store
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.config import START_BOUNDS, StartBounds
from contrailmq.store.index.index_file import MARK_UNITS
from contrailmq.store.index.index_service import UNITS_CHECKED_AT_LOAD_MAX
from contrailmq.store.recovery.queue_ledger import LEDGER_NAME
from how_many import IS_LONG, examples

SEED = int(os.environ.get("CONTRAILMQ_SEED", "7"))
START_MS = 1_790_000_000_000
STEP_MS = 1_500
COUNT = 90
SLOTS, UNITS = 20, 100  # three entries a message (unique id, its key, the key of all): the third file is being filled
MARK = range(40 + 4 * SLOTS, 60 + 4 * SLOTS)  # in an index file, behind its header and slots
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 8 * 1024,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": SLOTS,
    "max_index_num": UNITS,
}
BEYOND = StartBounds(queue_bytes=1, index_bytes=1)  # the newest file of the index, and one queue file


def store_at(root: Path, bounds: StartBounds = START_BOUNDS, **settings: object) -> MessageStore:
    config = StoreConfig(root, **(SIZES | settings))
    return MessageStore(config, files=QuickFiles(), clock=ManualClock(START_MS + COUNT * STEP_MS), bounds=bounds)


def write(root: Path, *, is_clean: bool) -> Path:
    """Closed once in the middle and opened again: after a kill some entries and units are older than the last flush."""
    clock = ManualClock(START_MS)
    for numbers in (range(COUNT - 15), range(COUNT - 15, COUNT)):
        store = MessageStore(StoreConfig(root, **SIZES), files=QuickFiles(), clock=clock).open()
        for number in numbers:
            assert store.put(Message("T", b"%d" % number, keys=[f"k{number}", "all"]), number % 2).reason == ""
            clock.advance(STEP_MS)
        store.dispatch()
        if is_clean or numbers.start == 0:
            store.close()
        else:
            store.abandon()
    return root


def check(store: MessageStore) -> None:
    for queue_id in (0, 1):
        bodies: list[bytes] = []
        while len(bodies) < store.max_offset("T", queue_id):
            bodies += [message.body for message in store.get("T", queue_id, len(bodies))]
        assert bodies == [b"%d" % number for number in range(queue_id, COUNT, 2)]
    assert bodies_of(store, "all", 0, 2**62) == [b"%d" % number for number in range(COUNT - 1, COUNT - 65, -1)]
    for number in range(COUNT):
        stored_ms, this = START_MS + number * STEP_MS, [b"%d" % number]
        assert bodies_of(store, f"k{number}", 0, 2**62) == this
        assert bodies_of(store, f"k{number}", stored_ms - 999, stored_ms) == this
        assert bodies_of(store, f"k{number}", stored_ms + 1, 2**62) == []
        assert bodies_of(store, f"k{number}", 0, stored_ms - 1000) == []
        assert bodies_of(store, "all", stored_ms - 999, stored_ms) == this


def bodies_of(store: MessageStore, key: str, begin_ms: int, end_ms: int) -> list[bytes]:
    return [message.body for message in store.query("T", key, 64, begin_ms, end_ms)]


def findings(root: Path) -> list[object]:
    with StoreView(StoreConfig(root, **SIZES)) as view:
        return list(verify_store(view).findings)


def flips(
    whole: Path, file: Path, used: int, work: Path, *, sample: int, always: Iterable[int] = ()
) -> Iterator[tuple[Path, str]]:
    """Copies of a store, each with another byte of one file changed, and what to say when a check fails."""
    rng = random.Random(SEED)
    positions = set(range(used) if IS_LONG else rng.sample(range(used), min(used, examples(sample * 3))))
    for position in sorted(positions | set(always)):
        root = work / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        path = root / file.relative_to(whole)
        data = bytearray(path.read_bytes())
        mask = rng.randrange(1, 256)
        data[position] ^= mask
        path.write_bytes(data)
        yield root, f"byte {position} of {path.relative_to(root)} ^ {mask:#x}, CONTRAILMQ_SEED={SEED}"


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def used_of(index_file: Path) -> int:
    count = int.from_bytes(index_file.read_bytes()[36:40], "big")
    return 40 + 4 * SLOTS + 20 * count


def queue_files(root: Path) -> list[Path]:
    return sorted((root / "consumequeue").rglob("[0-9]" * 20))


FILES: dict[str, Callable[[Path], Path]] = {
    "first index file": lambda root: index_files(root)[0],
    "newest index file": lambda root: index_files(root)[-1],
    "first queue file": lambda root: queue_files(root)[0],
    "newest queue file": lambda root: queue_files(root)[-1],
    "checkpoint": lambda root: root / "checkpoint",
    "ledger": lambda root: root / LEDGER_NAME,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_any_flipped_byte_is_noticed_at_the_next_start(is_clean: bool, name: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", is_clean=is_clean)
    assert len(index_files(whole)) == 3
    file = FILES[name](whole)
    used = {"checkpoint": 48, "ledger": file.stat().st_size}.get(name, file.stat().st_size)
    if "index" in name:
        used = used_of(file)
    always = (*range(40), *MARK) if name == "newest index file" else ()
    for root, said in flips(whole, file, used, tmp_path, sample=24, always=always):
        try:
            with store_at(root) as store:
                check(store)
            assert findings(root) == []
        except Exception as error:
            raise AssertionError(said) from error


@pytest.mark.parametrize("name", ["first index file", "first queue file"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "killed"])
def test_a_flipped_byte_beyond_the_bounds_is_an_error_and_mended_at_the_start_after(
    is_clean: bool, name: str, tmp_path: Path
) -> None:
    whole = write(tmp_path / "whole", is_clean=is_clean)
    file = FILES[name](whole)
    used = used_of(file) if "index" in name else file.stat().st_size
    in_entry = 40 + 4 * SLOTS + 33 if "index" in name else 15  # a place that no start mends by itself
    errors = 0
    for root, said in flips(whole, file, used, tmp_path, sample=24, always=(in_entry,)):
        try:
            with store_at(root, BEYOND) as store:
                for _ in range(2):
                    try:
                        check(store)  # what the start mends by itself, as a file's header, is right now
                    except CorruptStoreError as error:
                        assert "damaged" in str(error)
                        assert "rebuilt from the log at the next start" in str(error)
                        errors += 1
            with store_at(root, BEYOND) as store:
                check(store)
            assert findings(root) == []
            with store_at(root, BEYOND) as store:
                assert store.recovery.index_rebuilt == store.recovery.queues_rebuilt == ()
                check(store)
        except Exception as error:
            raise AssertionError(said) from error
    assert errors


def test_what_is_beyond_the_bounds_and_right_is_served(tmp_path: Path) -> None:
    with store_at(write(tmp_path, is_clean=True), BEYOND) as store:
        assert store.recovery.trusted_bytes == 0
        check(store)
        check(store)


def test_what_is_beyond_the_bounds_is_compared_in_the_background_and_damage_remembered(tmp_path: Path) -> None:
    """Three rounds a minute apart: nobody reads the damaged files, and yet the next start makes them again."""
    write(tmp_path, is_clean=True)
    for path, position in ((index_files(tmp_path)[0], 40 + 4 * SLOTS + 33), (queue_files(tmp_path)[0], 15)):
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
    clock = ManualClock(START_MS + COUNT * STEP_MS)
    with MessageStore(StoreConfig(tmp_path, **SIZES), files=QuickFiles(), clock=clock, bounds=BEYOND) as store:
        assert store.is_index_doubtful
        for _ in range(6):
            clock.advance(60_000)
            store.tick()
        assert [file.is_doubtful for file in store._index.index_files] == [True, False, False]  # type: ignore[union-attr]
        assert {queue.queue_id: list(queue.doubts) for queue in store._queues} == {0: [0], 1: []}
        store.abandon()
    with store_at(tmp_path, BEYOND) as store:
        assert "was found damaged" in store.recovery.index_rebuilt[0]
        assert [queue.queue_id for queue in store.recovery.queues_rebuilt] == [0]
        check(store)
        assert not store.is_index_doubtful
    assert findings(tmp_path) == []


def test_damage_beyond_the_bounds_that_is_in_the_way_of_recovery_is_mended_at_once(tmp_path: Path) -> None:
    """The log's first files are gone: to find its new minimum, a start searches the queue, in the damaged file."""
    write(tmp_path, is_clean=True)
    gone = sorted((tmp_path / "commitlog").iterdir())[0]
    gone.unlink()
    path = queue_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    for position in range(0, 400, 20):
        data[position + 4] ^= 1
    path.write_bytes(data)
    with store_at(tmp_path, BEYOND) as store:
        assert [(queue.topic, queue.queue_id) for queue in store.recovery.queues_rebuilt] == [("T", 0)]
        first = store.min_offset("T", 0)
        assert store.get("T", 0, first)[0].physical_offset >= store.log_min_offset == int(gone.name) + 8 * 1024
        assert store.get("T", 0, first)[0].body == b"%d" % (2 * first)
    assert findings(tmp_path) == []


def test_a_damaged_queue_file_does_not_stop_the_cleaning_of_others(tmp_path: Path) -> None:
    write(tmp_path, is_clean=True)
    path = queue_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:4] + b"\1" + path.read_bytes()[5:])
    for log_file in (tmp_path / "commitlog").iterdir():
        os.utime(log_file, (0, 0))
    clock = ManualClock(START_MS + COUNT * STEP_MS)
    with MessageStore(StoreConfig(tmp_path, **SIZES), files=QuickFiles(), clock=clock, bounds=BEYOND) as store:
        store.delete_expired_files_now()
        clock.advance(120_000)
        store.tick()
        assert store.log_min_offset > 0
        assert store.min_offset("T", 1) > 0
        assert path.exists()
        with pytest.raises(CorruptStoreError):
            store.get("T", 0, 0)


@pytest.mark.parametrize("flip", [0, 1])
def test_a_queue_file_that_is_written_on_is_compared_first(flip: int, tmp_path: Path) -> None:
    write(tmp_path, is_clean=True)
    newest = [file for file in queue_files(tmp_path) if file.parent.name == "0"][-1]
    data = bytearray(newest.read_bytes())
    data[15] ^= flip
    newest.write_bytes(data)
    with store_at(tmp_path, BEYOND) as store:  # the one file that it reads is another queue's
        assert store.recovery.queues_rebuilt == ()
        store.put(Message("T", b"%d" % COUNT, keys=[f"k{COUNT}", "all"]), 0)
        assert store.get("T", 0, COUNT // 2)[0].body == b"%d" % COUNT  # it is pending
    with store_at(tmp_path, BEYOND) as store:
        assert [queue.queue_id for queue in store.recovery.queues_rebuilt] == [0] * flip
        assert store.get("T", 0, COUNT // 2 - 1)[0].body == b"%d" % (COUNT - 2)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("name", ["first index file", "newest index file", "first queue file"])
def test_without_a_ledger_a_small_store_is_compared_with_its_log(name: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", is_clean=True)
    (whole / LEDGER_NAME).unlink()
    file = FILES[name](whole)
    used = used_of(file) if "index" in name else file.stat().st_size
    mark = MARK if "index" in name else ()  # nobody reads it in a closed store
    for root, said in flips(whole, file, used, tmp_path, sample=24):
        try:
            with store_at(root) as store:
                check(store)
                is_mended = store.recovery.index_rebuilt or store.recovery.units_corrected
                assert is_mended or int(said.split()[1]) in mark or store.recovery.queues_rebuilt
            assert findings(root) == []
        except Exception as error:
            raise AssertionError(said) from error


def test_without_a_ledger_a_large_store_is_taken_on_trust_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, is_clean=True)
    (tmp_path / LEDGER_NAME).unlink()
    in_index = sum(used_of(file) for file in index_files(tmp_path))
    with store_at(tmp_path, StartBounds(walk_bytes=0)) as store:
        assert store.recovery.trusted_bytes == COUNT * 20 + in_index
        assert f"{COUNT * 20 + in_index} bytes of queues and index were not checked" in caplog.text
        assert "store verify" in caplog.text
    with store_at(tmp_path, StartBounds(walk_bytes=0)) as store:
        assert store.recovery.trusted_bytes == 0


@pytest.mark.parametrize("name", ["first index file", "first queue file"])
def test_a_ledger_of_an_older_state_still_knows_what_full_files_hold(name: str, tmp_path: Path) -> None:
    """A power cut has taken the record that the ledger names, and the log is too large to compare everything."""
    whole = write(tmp_path / "whole", is_clean=True)
    (whole / "abort").write_text("1")
    last = sorted((whole / "commitlog").iterdir())[-1]
    data = last.read_bytes()
    end = len(data.rstrip(b"\0"))
    last.write_bytes(data[: end - 30].ljust(len(data), b"\0"))
    file = FILES[name](whole)
    used = used_of(file) if "index" in name else file.stat().st_size
    for root, said in flips(whole, file, used, tmp_path, sample=16):
        try:
            with store_at(root, StartBounds(walk_bytes=0)) as store:
                assert store.recovery.cut_bytes
                assert [message.body for message in store.get("T", 0, 0, 20)] == [b"%d" % n for n in range(0, 40, 2)]
                for number in range(COUNT - 1):
                    assert bodies_of(store, f"k{number}", START_MS + number * STEP_MS - 999, 2**62) == [b"%d" % number]
            assert findings(root) == []
        except Exception as error:
            raise AssertionError(said) from error


def test_a_large_file_that_was_being_filled_at_a_kill_is_compared_up_to_its_newest_mark(tmp_path: Path) -> None:
    """The marks of a running store, not those of a close."""
    sizes: dict[str, Any] = {
        "max_hash_slot_num": 1_000,
        "max_index_num": 20_000,
        "mapped_file_size_commit_log": 1 << 20,
    }
    count = MARK_UNITS + 500
    whole = tmp_path / "whole"
    store = store_at(whole, **sizes).open()
    for number in range(count):
        store.put(Message("T", b"%d" % number, keys=[f"k{number}"]))
    store.dispatch()
    store.abandon()
    file = index_files(whole)[-1]
    rng = random.Random(SEED)
    for turn in range(40 if IS_LONG else 6):
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        path = root / "index" / file.name
        data = bytearray(path.read_bytes())
        position = rng.randrange(40 + 4_000 + 20 * 2 * count) if turn else 40 + 4_000 + 20 * 77 + 13  # a unit's seconds
        data[position] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        with store_at(root, **sizes) as store:
            assert store.recovery.index_entries_added < 3 * MARK_UNITS or store.recovery.index_rebuilt
            for number in range(0, count, 10):
                assert bodies_of(store, f"k{number}", 0, START_MS + COUNT * STEP_MS + 1_000) == [b"%d" % number], (
                    position
                )
        with StoreView(StoreConfig(root, **(SIZES | sizes))) as view:
            assert verify_store(view).findings == [], position


@pytest.mark.parametrize("kind", ["index", "queue"])
def test_apaches_answers_stand_whatever_byte_of_its_files_is_flipped(kind: str, tmp_path: Path) -> None:
    name = "store-5.5.0-clean"
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    whole = unpack_golden(name, tmp_path / "whole")
    rng = random.Random(SEED)
    for _ in range(120 if IS_LONG else 10):
        file = rng.choice(index_files(whole) if kind == "index" else queue_files(whole))
        used = [position for position, byte in enumerate(file.read_bytes()) if byte]
        if not used:
            continue
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        path, position = root / file.relative_to(whole), rng.choice(used)
        data = bytearray(path.read_bytes())
        data[position] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        said = f"byte {position} of {path.relative_to(root)}, CONTRAILMQ_SEED={SEED}"
        sizes = {
            "max_hash_slot_num": expected["config"]["maxHashSlotNum"],
            "max_index_num": expected["config"]["maxIndexNum"],
        }
        with MessageStore(StoreConfig(root, **sizes), files=QuickFiles()) as store:
            for message in expected["messages"]:
                found = store.get(message["topic"], message["queueId"], message["queueOffset"], 1)
                assert [one.physical_offset for one in found] == [message["commitLogOffset"]], said
            for asked in expected["queryByKey"]:
                hits = store.query(asked["topic"], asked["key"], asked["maxNum"], asked["begin"], asked["end"])
                assert [hit.physical_offset for hit in hits] == asked["commitLogOffsets"][::-1], said


def test_a_chain_that_is_damaged_while_the_store_runs_is_an_error_and_made_again_at_the_next_start(
    tmp_path: Path,
) -> None:
    store = store_at(write(tmp_path, is_clean=True)).open()
    check(store)
    path = index_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    for number in range(1, UNITS):
        data[40 + 4 * SLOTS + 20 * number + 3] ^= 1  # every hash, by one
    with path.open("r+b") as file:  # the mapping sees it
        file.write(data)
    with pytest.raises(CorruptStoreError, match=f"{path.name}.*chain of slot"):
        store.query("T", "k1")
    with pytest.raises(CorruptStoreError, match="rebuilt"):
        store.query("T", "k2")
    assert bodies_of(store, f"k{COUNT - 1}", START_MS + (COUNT - 3) * STEP_MS, 2**62) == [b"%d" % (COUNT - 1)]
    store.close()
    with store_at(tmp_path, BEYOND) as store:
        assert path.name in store.recovery.index_rebuilt[0]
        check(store)


def test_an_index_that_lies_about_a_time_while_the_store_runs_gives_no_message_of_another_time(tmp_path: Path) -> None:
    store = store_at(write(tmp_path, is_clean=True)).open()
    check(store)
    path = index_files(tmp_path)[-1]
    data = bytearray(path.read_bytes())
    for number in range(1, (used_of(path) - 40 - 4 * SLOTS) // 20):
        data[40 + 4 * SLOTS + 20 * number + 12 : 40 + 4 * SLOTS + 20 * number + 16] = bytes(4)
    with path.open("r+b") as file:  # the mapping sees it: all are of the file's first second
        file.write(data)
    begin_ms = int.from_bytes(data[:8], "big")
    assert begin_ms < START_MS + (COUNT - 10) * STEP_MS
    assert bodies_of(store, f"k{COUNT - 1}", begin_ms, begin_ms + 500) == []
    store.abandon()


def test_a_tags_code_that_looks_like_the_address_of_an_extension_is_mended(tmp_path: Path) -> None:
    write(tmp_path, is_clean=True)
    path = queue_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[12] ^= 0x80
    path.write_bytes(data)
    with store_at(tmp_path) as store:
        assert store.recovery.units_corrected == 1
        assert store.read_units("T", 0, 0, 1)[0][2] == 0
    assert findings(tmp_path) == []


def test_what_the_brokers_own_services_read_is_compared_whatever_the_bounds(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        for number in range(60):
            store.put(Message("T" if number % 2 else "SCHEDULE_TOPIC_XXXX", b"x"), 0)
    path = next(path for path in queue_files(tmp_path) if "SCHEDULE" in str(path))
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)
    with store_at(tmp_path, BEYOND) as store:
        assert [queue.topic for queue in store.recovery.queues_rebuilt] == ["SCHEDULE_TOPIC_XXXX"]


def test_minimums_are_kept_where_the_files_that_they_are_in_are_in_doubt(tmp_path: Path) -> None:
    write(tmp_path, is_clean=True)
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    with store_at(tmp_path) as store:
        minimums = store.queues()
        assert all(lowest > 0 for lowest, _ in minimums.values())
    with store_at(tmp_path, BEYOND) as store:
        assert store.queues() == minimums
        assert any(queue.doubts for queue in store._queues)


def test_a_wrong_count_in_the_header_of_a_large_index_file_is_noticed(tmp_path: Path) -> None:
    """So large that a start does not look at each unit."""
    settings: dict[str, Any] = {
        "max_hash_slot_num": 1_000,
        "max_index_num": 300_000,
        "mapped_file_size_commit_log": 1 << 24,
    }
    count = UNITS_CHECKED_AT_LOAD_MAX // 3 + 1_000
    keys = [[f"k{number}", "all"] for number in range(count)]
    with store_at(tmp_path, **settings) as store:
        store.put_many([Message("T", b"%d" % number, keys=keys[number]) for number in range(count)])
    (path,) = index_files(tmp_path)
    data = bytearray(path.read_bytes())
    data[38] ^= 1  # 256 entries more or less
    path.write_bytes(data)
    with store_at(tmp_path, **settings) as store:
        assert "entries, it had" in store.recovery.index_rebuilt[0]
        assert bodies_of(store, f"k{count - 1}", 0, 2**62) == [b"%d" % (count - 1)]
