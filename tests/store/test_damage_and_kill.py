"""A record is damaged on the disk and the process is killed: two faults that meet at the next start.

The log must not end at the damage where what follows was surely written: messages that were acknowledged would be gone,
and their offsets would be given out again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.clock import ManualClock
from contrailmq.store.files import Files
from contrailmq.store.recovery.checkpoint import Checkpoint

COUNT = 12
SMALL = {"mapped_file_size_commit_log": 4 * 1024, "max_hash_slot_num": 50, "max_index_num": 500}
ONE_FILE = SMALL | {"mapped_file_size_commit_log": 16 * 1024}
DAMAGES = {"a body": (100, b"!"), "a header": (0, b"\xff" * 30), "a lost page": (0, bytes(120))}


class AfterReboot(Files):
    def boot_id(self) -> str:
        return "the next run of the machine"


def body_of(number: int) -> bytes:
    return f"message {number} ".encode() * 70


def put(store: MessageStore, number: int) -> int:
    """Two queues in turn, over two log files; where it stands."""
    queue_id, queue_offset = number % 2, number // 2
    result = store.put(Message("T", body_of(number), keys=[f"k{number}"]), queue_id=queue_id)
    assert result.queue_offset == queue_offset
    place: int = store.read_units("T", queue_id, queue_offset, 1)[0][0]
    return place


def killed_and_damaged(store: MessageStore, to: Path, place: int, damage: str) -> Path:
    """What a kill leaves, the page cache included, with some bytes changed."""
    shutil.copytree(store.config.path, to)
    skip, data = DAMAGES[damage]
    file_bytes = store.config.mapped_file_size_commit_log
    path = to / "commitlog" / f"{place // file_bytes * file_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(place % file_bytes + skip)
        file.write(data)
    return to


def check_all_but(store: MessageStore, lost: set[int]) -> None:
    """Every other message is at its offset, and no offset is given out again."""
    for number in set(range(COUNT)) - lost:
        (found,) = store.get("T", number % 2, number // 2, 1)
        assert (found.body, found.queue_offset) == (body_of(number), number // 2)
    for number in (COUNT, COUNT + 1):
        put(store, number)


# When units and ledger were written. The ledger's newest record may be the one that is damaged (9).
NOTES = {"none": (), "half": (5, 9), "all": (COUNT - 1,)}
CASES = [
    (lost, notes, damage)
    for lost in (0, 1, 5, 9, 10)
    for notes in NOTES
    for damage in DAMAGES
    if not (lost == 10 and notes != "all" and damage != "a body")  # nothing says which offset its queue's last one had
]


@pytest.mark.parametrize(("lost", "notes", "damage"), CASES)
def test_a_kill_and_a_damaged_record_lose_that_record_alone(lost: int, notes: str, damage: str, tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path / "s", **SMALL)) as store:
        places = []
        for number in range(COUNT):
            places.append(put(store, number))
            if number in NOTES[notes]:
                store._housekeeping.persist_in_turn()
        root = killed_and_damaged(store, tmp_path / "killed", places[lost], damage)
    with MessageStore(StoreConfig(root, **SMALL)) as again:
        assert [hole.begin for hole in again.recovery.holes] == [places[lost]]
        check_all_but(again, {lost})


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("lost", [0, 5, 10])
def test_a_power_cut_and_a_damaged_record_keep_what_the_checkpoint_knows(
    lost: int, damage: str, tmp_path: Path
) -> None:
    clock = ManualClock()
    with MessageStore(StoreConfig(tmp_path / "s", **ONE_FILE), clock=clock) as store:
        places = [put(store, number) for number in range(COUNT)]
        clock.advance(10_000)
        store.put(Message("Other", b"after ten seconds"))
        store.dispatch()
        store._housekeeping.persist_in_turn()
        root = killed_and_damaged(store, tmp_path / "cut", places[lost], damage)
    checkpoint = Checkpoint(root / "checkpoint", Files())
    checkpoint.load()
    checkpoint.physic_msg_time_ms = checkpoint.logics_msg_time_ms  # every ten seconds a flush says so
    checkpoint.flush()
    with MessageStore(StoreConfig(root, **ONE_FILE), clock=clock, files=AfterReboot()) as again:
        assert [hole.begin for hole in again.recovery.holes] == [places[lost]]
        check_all_but(again, {lost})


def test_after_a_power_cut_a_hole_that_no_checkpoint_knows_ends_the_log(tmp_path: Path) -> None:
    """The disk may have kept later pages of what nobody synced: to serve them would put a hole among messages."""
    with MessageStore(StoreConfig(tmp_path / "s", **SMALL)) as store:
        places = [put(store, number) for number in range(COUNT)]
        root = killed_and_damaged(store, tmp_path / "cut", places[5], "a lost page")
    with MessageStore(StoreConfig(root, **SMALL), files=AfterReboot()) as again:
        assert (again.recovery.holes, again.recovery.physical_offset_max) == ((), places[5])


def test_old_bytes_that_another_program_left_past_its_end_do_not_come_back(tmp_path: Path) -> None:
    """It cut the log, wrote a message in the place of an old one of the same size, and was killed writing the next."""
    clock = ManualClock()
    log_name = f"commitlog/{0:020d}"
    with MessageStore(StoreConfig(tmp_path / "old", **ONE_FILE), clock=clock) as store:
        places = [put(store, number) for number in range(6)]
        old_log = (store.config.path / log_name).read_bytes()
    clock.advance(1000)
    with MessageStore(StoreConfig(tmp_path / "new", **ONE_FILE), clock=clock) as store:
        assert [put(store, number) for number in range(4)] == places[:4]
        new = Path(shutil.copytree(store.config.path, tmp_path / "killed"))
    new_log = (new / log_name).read_bytes()
    (new / log_name).write_bytes(new_log[: places[4]] + b"\xff" + old_log[places[4] + 1 :])
    with MessageStore(StoreConfig(new, **ONE_FILE), clock=clock) as again:
        assert (again.recovery.holes, again.recovery.physical_offset_max) == ((), places[4])
        assert again.recovery.cut_bytes > 0


@pytest.mark.parametrize("lost", [0, 3, 6])
def test_a_kill_and_a_damaged_batch_lose_that_batch_alone(lost: int, tmp_path: Path) -> None:
    """Of a topic whose queues hold batches: the others are at their offsets, and none is given out again."""

    def opened(root: Path) -> MessageStore:
        return MessageStore(StoreConfig(root, **ONE_FILE), batch_topics=frozenset({"Batch"}))

    places = {}
    with opened(tmp_path / "s") as store:
        for first in (0, 3, 6, 9):
            places[first] = store.log_max_offset
            store.put_inner_batch("Batch", [Message("Batch", body_of(first + part)) for part in range(3)])
        root = killed_and_damaged(store, tmp_path / "killed", places[lost], "a body")
    with opened(root) as again:
        assert [hole.begin for hole in again.recovery.holes] == [places[lost]]
        for first in set(places) - {lost}:
            found = again.get("Batch", 0, first, 1)
            assert [message.body for message in found] == [body_of(first + part) for part in range(3)]
        again.put_inner_batch("Batch", [Message("Batch", b"new")])
        assert again.max_offset("Batch", 0) == 13
