"""`store repair`: damaged ranges of the log are moved aside, and nothing else is touched."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from plain_store import unpack_golden
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import Message
from contrailmq.store import (
    Files,
    GetStatus,
    MessageStore,
    StoreConfig,
    StoreView,
    decode_record,
    find_damage,
    rebuild_store,
    repair_store,
    verify_store,
)
from contrailmq.store.base.errors import CorruptStoreError, StoreLockedError

FILE_BYTES = 16 * 1024
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 400,
    "mapper_file_size_batch_consume_queue": 46 * 4,
    "max_hash_slot_num": 50,
    "max_index_num": 120,
}
COUNT = 90  # messages of 500 bytes and more: three files and a part of a fourth
Place = tuple[int, int]  # of a record: its physical offset and size


def body(number: int) -> bytes:
    return b"%03d" % number * 150


def fill(root: Path) -> list[Place]:
    """Messages to T/0, T/1 and T/2 in turn; the place of each record."""
    with MessageStore(StoreConfig(root, **SMALL)) as store:
        for number in range(COUNT):
            store.put(Message("T", body(number), tags="t", keys=[f"k{number}"]), queue_id=number % 3)
        return [store.read_units("T", number % 3, number // 3, 1)[0][:2] for number in range(COUNT)]


def garble(root: Path, begin: int, data: bytes) -> None:
    for at, byte in enumerate(data, begin):
        with (root / "commitlog" / f"{at // FILE_BYTES * FILE_BYTES:020d}").open("r+b") as file:
            file.seek(at % FILE_BYTES)
            file.write(bytes((byte,)))


def read(root: Path, begin: int, end: int) -> bytes:
    base = begin // FILE_BYTES * FILE_BYTES
    return (root / "commitlog" / f"{base:020d}").read_bytes()[begin - base : end - base]


def all_files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def held(store: MessageStore, topic: str = "T", queues: int = 3) -> dict[tuple[int, int], bytes]:
    """Everything that can be read, by queue and offset."""
    found: dict[tuple[int, int], bytes] = {}
    for queue_id in range(queues):
        offset = 0
        while offset < store.max_offset(topic, queue_id):
            got = store.get(topic, queue_id, offset)
            found |= {(queue_id, message.queue_offset): message.body for message in got}
            assert got.next_offset > offset
            offset = got.next_offset
    return found


def findings(root: Path) -> list[object]:
    with StoreView(StoreConfig(root)) as view:
        return list(verify_store(view).findings)


def first_of_file(places: list[Place], file: int) -> int:
    return next(number for number, (offset, _) in enumerate(places) if offset >= file * FILE_BYTES)


def body_garbled(root: Path, places: list[Place]) -> set[int]:
    garble(root, places[10][0] + 200, b"!")
    return {10}


def head_garbled(root: Path, places: list[Place]) -> set[int]:
    garble(root, places[10][0], b"\xff" * 40)
    return {10}


def several_garbled(root: Path, places: list[Place]) -> set[int]:
    garble(root, places[10][0] + 50, b"\x55" * (places[14][0] - places[10][0]))
    return {10, 11, 12, 13, 14}


def page_zeroed(root: Path, places: list[Place]) -> set[int]:
    garble(root, 4096, bytes(4096))
    return {number for number, (offset, size) in enumerate(places) if offset < 8192 and offset + size > 4096}


def zeros_over_several(root: Path, places: list[Place]) -> set[int]:
    garble(root, places[40][0], bytes(places[44][0] - places[40][0]))
    return {40, 41, 42, 43}


def first_record(root: Path, places: list[Place]) -> set[int]:
    garble(root, 0, b"\x11" * 100)
    return {0}


def file_begin(root: Path, places: list[Place]) -> set[int]:
    number = first_of_file(places, 1)
    garble(root, places[number][0], b"\x11" * 700)
    return {number, number + 1}


def file_end(root: Path, places: list[Place]) -> set[int]:
    """With its BLANK."""
    following = first_of_file(places, 2)
    begin = places[following - 2][0] + 30
    garble(root, begin, b"\x22" * (2 * FILE_BYTES - begin))
    return {following - 2, following - 1}


def blank_only(root: Path, places: list[Place]) -> set[int]:
    offset, size = places[first_of_file(places, 1) - 1]
    garble(root, offset + size, bytes(8))
    return set()


def whole_file(root: Path, places: list[Place]) -> set[int]:
    garble(root, FILE_BYTES, bytes(FILE_BYTES))
    return set(range(first_of_file(places, 1), first_of_file(places, 2)))


def over_two_files(root: Path, places: list[Place]) -> set[int]:
    number = first_of_file(places, 2)
    begin = places[number - 1][0] + 10
    garble(root, begin, b"\x33" * (2 * FILE_BYTES + 20 - begin))
    return {number - 1, number}


def two_ranges(root: Path, places: list[Place]) -> set[int]:
    return body_garbled(root, places) | zeros_over_several(root, places)


def last_of_its_queue(root: Path, places: list[Place]) -> set[int]:
    garble(root, places[COUNT - 3][0] + 200, b"!")
    return {COUNT - 3}


def last_record(root: Path, places: list[Place]) -> set[int]:
    garble(root, places[COUNT - 1][0] + 200, b"!")
    return {COUNT - 1}


def end_zeroed(root: Path, places: list[Place]) -> set[int]:
    """Over the border of two files: the last file has nothing left."""
    first = first_of_file(places, 3) - 2
    garble(root, places[first][0], bytes(3 * FILE_BYTES - places[first][0]))
    garble(root, 3 * FILE_BYTES, bytes(FILE_BYTES))
    return set(range(first, COUNT))


def flip(root: Path, at: int, bits: int) -> None:
    garble(root, at, bytes((read(root, at, at + 1)[0] ^ bits,)))


def queue_id_flipped(root: Path, places: list[Place]) -> set[int]:
    flip(root, places[40][0] + 15, 1)
    return {40}


def queue_offset_flipped(root: Path, places: list[Place]) -> set[int]:
    flip(root, places[40][0] + 27, 1)
    return {40}


def topic_flipped(root: Path, places: list[Place]) -> set[int]:
    flip(root, places[40][0] + 88 + len(body(40)) + 1, 1)
    return {40}


def transaction_type_flipped(root: Path, places: list[Place]) -> set[int]:
    flip(root, places[40][0] + 39, 4)
    return {40}


def lost_flag_flipped(root: Path, places: list[Place]) -> set[int]:
    flip(root, places[40][0] + 37, 1)
    return {40}


DAMAGES: list[Callable[[Path, list[Place]], set[int]]] = [
    body_garbled,
    head_garbled,
    several_garbled,
    page_zeroed,
    zeros_over_several,
    first_record,
    file_begin,
    file_end,
    blank_only,
    whole_file,
    over_two_files,
    two_ranges,
    last_of_its_queue,
    last_record,
    end_zeroed,
    queue_id_flipped,
    queue_offset_flipped,
    topic_flipped,
    transaction_type_flipped,
    lost_flag_flipped,
]
damages = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)


def kept(lost: set[int]) -> dict[tuple[int, int], bytes]:
    return {(number % 3, number // 3): body(number) for number in range(COUNT) if number not in lost}


@pytest.mark.parametrize("then", ["open", "rebuild", "open without a ledger"])
@damages
def test_all_but_the_damaged_messages_are_there_at_their_offsets(
    damage: Callable[[Path, list[Place]], set[int]], then: str, tmp_path: Path
) -> None:
    places = fill(tmp_path)
    lost = damage(tmp_path, places)
    before = all_files(tmp_path)
    report = repair_store(StoreConfig(tmp_path))
    told = {(message.topic, message.queue_id, message.queue_offset) for one in report.ranges for message in one.lost}
    assert told == {("T", number % 3, number // 3) for number in lost}
    assert report.messages_lost == len(lost)
    for one in report.ranges:
        base = one.begin // FILE_BYTES * FILE_BYTES
        stood = before[f"commitlog/{base:020d}"][one.begin - base : one.end - base]
        assert Path(one.saved_as).read_bytes() == stood
    assert findings(tmp_path) == []
    if then == "rebuild":
        rebuild_store(StoreConfig(tmp_path))
        assert findings(tmp_path) == []
    elif then == "open without a ledger":
        (tmp_path / "queues.ledger").unlink()
    for _ in range(2):
        with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
            assert store.recovery.holes == ()
            assert store.recovery.cut_bytes == 0
            assert held(store) == kept(lost)
            assert [store.max_offset("T", queue_id) for queue_id in range(3)] == [COUNT // 3] * 3
            assert [found.body for found in store.query("T", "k50")] == ([body(50)] if 50 not in lost else [])
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        assert store.put(Message("T", b"new"), queue_id=0).queue_offset == COUNT // 3
    assert findings(tmp_path) == []


@damages
def test_only_damaged_bytes_and_their_units_change_and_a_second_run_changes_nothing(
    damage: Callable[[Path, list[Place]], set[int]], tmp_path: Path
) -> None:
    damage(tmp_path, fill(tmp_path))
    before = all_files(tmp_path)
    found = find_damage(StoreConfig(tmp_path))
    assert all_files(tmp_path) == before  # a dry run
    report = repair_store(StoreConfig(tmp_path))
    assert [(one.begin, one.end, one.lost) for one in found.ranges] == [
        (one.begin, one.end, one.lost) for one in report.ranges
    ]
    after = all_files(tmp_path)
    for name, content in before.items():
        if name.startswith("commitlog/"):
            base = int(name.split("/")[1])
            changed = {base + at for at, (old, new) in enumerate(zip(content, after[name], strict=True)) if old != new}
            assert all(any(one.begin <= at < one.end for one in report.ranges) for at in changed)
        elif not name.startswith("consumequeue/"):
            assert after[name] == content
    assert repair_store(StoreConfig(tmp_path)).ranges == ()
    assert all_files(tmp_path) == after


def test_the_list_says_what_was_lost_and_has_the_checksum(tmp_path: Path) -> None:
    places = fill(tmp_path)
    several_garbled(tmp_path, places)
    begin, end = places[10][0], places[15][0]
    stood = read(tmp_path, begin, end)
    repair_store(StoreConfig(tmp_path))
    (line,) = [json.loads(text) for text in (tmp_path / "damaged" / "damaged.jsonl").read_text().splitlines()]
    assert (line["begin"], line["end"], line["file"]) == (begin, end, f"{begin:020d}-{end:020d}.bin")
    assert line["sha256"] == hashlib.sha256(stood).hexdigest()
    assert line["lost"][0] == {
        "topic": "T",
        "queue_id": 1,
        "queue_offset": 3,
        "physical_offset": begin,
        "size_bytes": places[10][1],
        "messages": 1,
    }
    assert [one["queue_offset"] for one in line["lost"]] == [3, 3, 4, 4, 4]


def served(store: MessageStore) -> dict[tuple[int, int], bytes]:
    """What a broker would give away."""
    found: dict[tuple[int, int], bytes] = {}
    for queue_id in range(3):
        offset = 0
        while offset < COUNT // 3:
            got = store.get_slices_sound("T", queue_id, offset, 32)
            messages = [decode_record(bytes(record)) for record in got.slices]
            found |= {(queue_id, message.queue_offset): message.body for message in messages}
            got.release()
            assert got.next_offset > offset
            offset = got.next_offset
    return found


class Killed(BaseException):
    """Nothing may catch it."""


class DyingFiles(Files):
    """Raises at the n-th call that changes something, half of a write done."""

    def __init__(self, dies_at: int) -> None:
        super().__init__()
        self._left = dies_at

    def _step(self) -> bool:
        self._left -= 1
        return self._left == 0

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self._step():
            super().pwrite(descriptor, data[: len(data) // 2], position)
            raise Killed
        super().pwrite(descriptor, data, position)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        if self._step():
            raise Killed
        super().truncate(descriptor, size_bytes)

    def rename(self, source: Path, target: Path) -> None:
        if self._step():
            raise Killed
        super().rename(source, target)

    def sync(self, descriptor: int) -> None:
        if self._step():
            raise Killed

    def sync_directory(self, path: Path) -> None:
        if self._step():
            raise Killed


def test_a_kill_at_any_step_leaves_what_a_second_run_finishes(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged-store"
    places = fill(damaged)
    lost = several_garbled(damaged, places) | file_end(damaged, places)
    stood = [read(damaged, one.begin, one.end) for one in find_damage(StoreConfig(damaged)).ranges]
    for step in count(1):
        root = tmp_path / str(step)
        shutil.copytree(damaged, root)
        try:
            repair_store(StoreConfig(root), files=DyingFiles(step))
        except Killed:
            shutil.copytree(root, tmp_path / "opened")  # by somebody who does not know of it
            with MessageStore(StoreConfig(tmp_path / "opened", **SMALL)) as store:
                assert served(store) == kept(lost)
            shutil.rmtree(tmp_path / "opened")
            repair_store(StoreConfig(root))
        else:
            break
        saved = [path.read_bytes() for path in (root / "damaged").glob("*.bin")]
        assert all(data in saved for data in stood)
        assert findings(root) == []
        with MessageStore(StoreConfig(root, **SMALL)) as store:
            assert held(store) == kept(lost)
        shutil.rmtree(root)
    assert step > 20


@pytest.mark.parametrize("damage", [queue_id_flipped, queue_offset_flipped], ids=lambda damage: damage.__name__)
def test_a_wrong_header_takes_no_other_messages_offset_after_a_kill(
    damage: Callable[[Path, list[Place]], set[int]], tmp_path: Path
) -> None:
    """Without a ledger a start compares every unit with the log, and the first of two records with one offset wins."""
    lost = damage(tmp_path, fill(tmp_path))
    (tmp_path / "abort").touch()
    (tmp_path / "queues.ledger").unlink()
    repair_store(StoreConfig(tmp_path))
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        assert held(store) == kept(lost)


def test_queues_in_each_others_place_make_no_record_damaged(tmp_path: Path) -> None:
    """Every record contradicts its queue then: it is the queues that are wrong."""
    fill(tmp_path)
    queues = tmp_path / "consumequeue" / "T"
    (queues / "0").rename(queues / "x")
    (queues / "1").rename(queues / "0")
    (queues / "x").rename(queues / "1")
    assert find_damage(StoreConfig(tmp_path)).ranges == ()


def test_a_queue_that_a_kill_left_behind_does_not_give_out_the_offset_of_a_damaged_message(tmp_path: Path) -> None:
    """Its header says which offset it had."""
    places = fill(tmp_path)
    (tmp_path / "abort").touch()
    (tmp_path / "queues.ledger").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    garble(tmp_path, places[COUNT - 3][0] + 200, b"!")
    report = repair_store(StoreConfig(tmp_path))
    assert [lost[:3] for one in report.ranges for lost in one.lost] == [("T", 0, COUNT // 3 - 1)]
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        assert held(store) == kept({COUNT - 3})
        assert store.put(Message("T", b"new"), queue_id=0).queue_offset == COUNT // 3


def test_zeros_at_the_end_after_a_crash_are_unwritten(tmp_path: Path) -> None:
    places = fill(tmp_path)
    (tmp_path / "abort").touch()
    end_zeroed(tmp_path, places)
    assert repair_store(StoreConfig(tmp_path)).ranges == ()


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(FILE_BYTES // 2)


@pytest.mark.parametrize(
    ("harm", "code", "said"),
    [
        (Path.unlink, 1, "there is a gap from 16384 to 32768; restore the file"),
        (cut_short, 2, "it has 8192 bytes, a log file 16384: restore it from a copy"),
    ],
    ids=["missing", "short"],
)
def test_a_file_that_is_missing_or_short_is_named_and_mended_once_zeros_stand_there(
    harm: Callable[[Path], None], code: int, said: str, tmp_path: Path
) -> None:
    places = fill(tmp_path)
    path = tmp_path / "commitlog" / f"{FILE_BYTES:020d}"
    harm(path)
    command = ["store", "repair", str(tmp_path)]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == code
    assert said in result.output
    assert "truncate -s" in result.output
    path.touch()
    with path.open("r+b") as file:
        file.truncate(FILE_BYTES)
    assert CliRunner().invoke(app, command).exit_code == 0
    assert findings(tmp_path) == []
    lost = {number for number, (at, size) in enumerate(places) if _is_gone(path, at, size)}
    assert lost
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        assert held(store) == kept(lost)
        assert [store.max_offset("T", queue_id) for queue_id in range(3)] == [COUNT // 3] * 3


def _is_gone(path: Path, at: int, size: int) -> bool:
    """Whether zeros or a placeholder stand where a record of `fill` stood: it has no letters of its body."""
    position = at - FILE_BYTES
    return 0 <= position < FILE_BYTES and not any(path.read_bytes()[position + 88 : position + min(size, 500)])


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        store.put(Message("T", b"x"))
        for work in (repair_store, find_damage):
            with pytest.raises(StoreLockedError):
                work(StoreConfig(tmp_path))


def test_a_torn_end_after_a_crash_is_left_to_recovery(tmp_path: Path) -> None:
    places = fill(tmp_path)
    (tmp_path / "abort").write_text("1")
    last_record(tmp_path, places)
    report = repair_store(StoreConfig(tmp_path))
    assert report.ranges == ()
    assert f"at {places[-1][0]}: body checksum differs" in report.log_end
    result = CliRunner().invoke(app, ["store", "repair", str(tmp_path)], env={"COLUMNS": "300"})
    assert "after a crash that is not damage; opening the store cuts it there" in result.stdout


def test_a_damaged_batch_is_passed_over_and_its_offsets_stay_taken(tmp_path: Path) -> None:
    def opened() -> MessageStore:
        return MessageStore(StoreConfig(tmp_path, **SMALL), batch_topics=frozenset({"Batch"}))

    with opened() as store:
        ends = []
        for first in (0, 3, 6):
            store.put_inner_batch("Batch", [Message("Batch", b"body %d" % (first + part)) for part in range(3)])
            ends.append(store.log_max_offset)
    garble(tmp_path, ends[0] + 100, b"\x77" * 20)
    report = repair_store(StoreConfig(tmp_path))
    assert [(one.begin, one.end) for one in report.ranges] == [(ends[0], ends[1])]
    assert [tuple(lost) for lost in report.ranges[0].lost] == [("Batch", 0, 3, ends[0], ends[1] - ends[0], 3)]
    assert findings(tmp_path) == []
    expected = {(0, number): b"body %d" % number for number in (0, 1, 2, 6, 7, 8)}
    for _ in range(2):
        with opened() as store:
            assert held(store, "Batch", 1) == expected
        rebuild_store(StoreConfig(tmp_path))
        assert findings(tmp_path) == []


def test_light_queues_lose_the_same_message_and_keep_the_others(tmp_path: Path) -> None:
    settings = SMALL | {"enable_lmq": True, "enable_multi_dispatch": True}
    with MessageStore(StoreConfig(tmp_path, **settings)) as store:
        ends = []
        for number in range(3):
            message = Message("T", body(number))
            message.properties["INNER_MULTI_DISPATCH"] = "%LMQ%a"
            store.put(message)
            ends.append(store.log_max_offset)
    garble(tmp_path, ends[0] + 200, b"!")
    report = repair_store(StoreConfig(tmp_path))
    assert {lost.topic for lost in report.ranges[0].lost} == {"T", "%LMQ%a"}
    assert report.messages_lost == 1
    with MessageStore(StoreConfig(tmp_path, **settings)) as store:
        assert held(store, "T", 1) == {(0, 0): body(0), (0, 2): body(2)}
        assert [message.body for message in store.get("%LMQ%a", 0, 2)] == [body(2)]
        assert store.get("%LMQ%a", 0, 1, 1).status is not GetStatus.FOUND
    assert findings(tmp_path) == []


@pytest.mark.parametrize("name", ["store-5.5.0-clean", "store-5.5.0-kill9-recovered"])
def test_an_apache_store_keeps_what_follows_the_damage_opened_or_repaired(name: str, tmp_path: Path) -> None:
    root = unpack_golden(name, tmp_path)
    with StoreView(StoreConfig(root)) as view:
        units = sorted(
            (unit.physical_offset, unit.size_bytes, queue.topic, queue.queue_id, offset)
            for queue in view.queues
            for offset, unit in queue.scan(queue.min_offset, queue.max_offset)
        )
    victim = units[-5]  # in the part of the log that a start walks
    path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= victim[0])
    with path.open("r+b") as file:
        file.seek(victim[0] - int(path.name))
        file.write(b"\xee" * victim[1])
    alone = tmp_path / "alone"
    shutil.copytree(root, alone)
    with MessageStore(StoreConfig(alone)) as store:
        assert [hole.begin for hole in store.recovery.holes] == [victim[0]]
        assert store.recovery.physical_offset_max == units[-1][0] + units[-1][1]
    report = repair_store(StoreConfig(root))
    assert [lost[:3] for one in report.ranges for lost in one.lost] == [victim[2:]]
    assert findings(root) == []
    with MessageStore(StoreConfig(root)) as store:
        assert store.recovery.cut_bytes == 0
        for physical_offset, _, topic, queue_id, offset in units:
            got = store.get(topic, queue_id, offset, 1)
            if physical_offset == victim[0]:
                assert got.status is not GetStatus.FOUND
            else:
                assert [message.physical_offset for message in got] == [physical_offset]


def test_a_range_in_which_no_record_fits_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    """Only a body that holds a whole record of that very place can do this."""
    from contrailmq.store import encode_record

    host = bytes(8)
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        start = store.log_max_offset
        hidden = encode_record(
            "T", b"hidden", b"", queue_id=0, queue_offset=0, physical_offset=start + 88, born_host=host,
            store_host=host, born_time_ms=1, store_time_ms=1,
        )  # fmt: skip
        store.put(Message("T", hidden))
    garble(tmp_path, start, b"\xff" * 20)
    before = all_files(tmp_path)
    with pytest.raises(CorruptStoreError, match="smaller than a record"):
        repair_store(StoreConfig(tmp_path))
    assert all_files(tmp_path) == before


def test_the_command_tells_what_it_does(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["store", "repair", str(tmp_path), *arguments], env={"COLUMNS": "200"})
        return result.exit_code, result.stdout

    places = fill(tmp_path)
    assert run() == (0, "nothing is damaged\n")
    body_garbled(tmp_path, places)
    code, text = run("--dry-run")
    assert code == 1
    assert f"1 damaged range, {places[10][1]} bytes, 1 message lost" in text
    assert text.endswith("nothing was changed\n")
    code, text = run("--dry-run", "--json")
    assert (code, json.loads(text)["ranges"][0]["lost"][0]["queue_offset"]) == (1, 3)
    code, text = run()
    assert code == 0
    assert f"the bytes are in {tmp_path / 'damaged'}; run contrailmq store verify {tmp_path}" in text
    assert run("--dry-run") == (0, "nothing is damaged\n")
    assert CliRunner().invoke(app, ["store", "verify", str(tmp_path)]).exit_code == 0
    with MessageStore(StoreConfig(tmp_path, **SMALL)):
        assert run()[0] == run("--dry-run")[0] == 2
    assert CliRunner().invoke(app, ["store", "repair", str(tmp_path / "nothing")]).exit_code == 2
