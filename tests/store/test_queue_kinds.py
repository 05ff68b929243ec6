"""A slave that gets messages of a batch topic (queue.type=BatchCQ) before it is told of the topic."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_batch_queues import SMALL

from contrailmq.message import Message
from contrailmq.store import Drive, GetStatus, MessageStore, PutStatus, StoreConfig
from contrailmq.store.recovery.queue_kinds import unify_queues
from replica_trial import queue_files

TOPICS = frozenset({"Batch"})
KINDS = {"singles": "ssssssssssssssssssssssssssssss", "inner first": "bssbsssbss", "single first": "sbsssbbsssss"}


class Written:
    """A master's store; `s` puts a single message and `b` an inner batch of three, in turns into two queues."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = MessageStore(StoreConfig(path, **SMALL), batch_topics=TOPICS).open()
        self.bodies: dict[int, list[bytes]] = {0: [], 1: []}
        self._turn = 0

    def put(self, kinds: str) -> None:
        for kind in kinds:
            queue_id, self._turn = self._turn % 2, self._turn + 1
            count = 3 if kind == "b" else 1
            new = [Message("Batch", b"%d of %d" % (part, self._turn), tags="paid") for part in range(count)]
            put = (
                self.store.put_inner_batch("Batch", new, queue_id) if kind == "b" else self.store.put(new[0], queue_id)
            )
            assert put.status is PutStatus.PUT_OK
            self.store.put(Message("Plain", b"beside"))
            self.bodies[queue_id] += [message.body for message in new]


@pytest.fixture
def master(tmp_path: Path) -> Written:
    return Written(tmp_path / "master")


def open_slave(path: Path, topics: frozenset[str] = frozenset(), role: str = "SLAVE") -> MessageStore:
    config = StoreConfig(path, **SMALL, broker_role=role)
    return MessageStore(config, drive=Drive.LOOP, batch_topics=topics).open()


def follow(master: Written, slave: MessageStore) -> None:
    while slave.replica.received_end < master.store.log_max_offset:
        chunk = master.store.read_log(slave.replica.received_end, 777)
        assert chunk is not None
        slave.replica.append(slave.replica.received_end, bytes(chunk))
        chunk.release()
    slave.dispatch()


def bodies(store: MessageStore) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for queue_id in (0, 1):
        found[queue_id], offset = [], 0
        while (got := store.get("Batch", queue_id, offset)).status is GetStatus.FOUND:
            found[queue_id] += [message.body for message in got]
            offset = got.next_offset
    return found


def check_equal(master: Written, slave: MessageStore, path: Path) -> None:
    """Same messages and offsets; same files, once both are closed."""
    assert bodies(slave) == master.bodies
    assert slave.queues() == master.store.queues()
    slave.close()
    master.store.close()
    for folder in ("consumequeue", "batchconsumequeue"):
        assert queue_files(path, folder) == queue_files(master.path, folder)


def learns(slave: MessageStore, path: Path) -> MessageStore:
    slave.set_batch_topics(TOPICS)
    slave.unify_queues()
    return slave


def opened_again(slave: MessageStore, path: Path) -> MessageStore:
    slave.close()
    return open_slave(path, TOPICS)


def killed(slave: MessageStore, path: Path) -> MessageStore:
    shutil.copytree(path, left := path.with_name("left"))
    slave.close()
    shutil.rmtree(path)
    left.rename(path)
    return open_slave(path, TOPICS)


def promoted(slave: MessageStore, path: Path) -> MessageStore:
    slave.close()
    promoted = open_slave(path, TOPICS, "ASYNC_MASTER")
    promoted.close()
    return open_slave(path)  # the queues themselves say what the topic is


@pytest.mark.parametrize("way", [learns, opened_again, killed, promoted])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_a_topic_that_is_known_too_late_has_the_masters_queues(
    master: Written, tmp_path: Path, kinds: str, way: Callable[[MessageStore, Path], MessageStore]
) -> None:
    slave = open_slave(path := tmp_path / "slave")
    master.put(kinds)
    follow(master, slave)
    slave = way(slave, path)
    master.put("sbsbbs")
    follow(master, slave)
    check_equal(master, slave, path)


@pytest.mark.parametrize("kinds", [KINDS["singles"], KINDS["single first"]], ids=["singles", "single first"])
def test_a_kill_while_queues_are_moved_leaves_what_the_next_start_completes(
    master: Written, tmp_path: Path, kinds: str
) -> None:
    slave = open_slave(path := tmp_path / "slave")
    master.put(kinds)
    follow(master, slave)
    slave.tick()
    slave._housekeeping.persist()  # what the ledger says of these queues is about to be wrong
    left: list[Path] = []

    def keep() -> None:
        left.append(tmp_path / f"left-{len(left)}")
        shutil.copytree(path, left[-1])

    def persist() -> None:
        keep()
        slave._queues.batches.write_pending()
        keep()
        slave._housekeeping.persist()
        keep()

    slave.set_batch_topics(TOPICS)
    assert unify_queues(slave._queues, slave._log_files, persist) == ["Batch"]
    slave.close()
    assert len(left) == 6
    for image in left:
        again = open_slave(image, TOPICS)
        assert bodies(again) == master.bodies, image.name
        assert again.queues() == master.store.queues(), image.name
        again.close()
        assert queue_files(image, "batchconsumequeue") == queue_files(path, "batchconsumequeue")
        assert not (image / "consumequeue/Batch").exists()
    master.store.close()


def test_offsets_go_on_in_a_batch_queue_whose_messages_are_all_gone(master: Written, tmp_path: Path) -> None:
    slave = open_slave(path := tmp_path / "slave")
    master.put("ssss")
    follow(master, slave)
    for queue in slave._queues:
        queue.correct_min_offset(slave.log_max_offset)
    slave = learns(slave, path)
    assert {key: ends for key, ends in slave.queues().items() if key[0] == "Batch"} == {
        ("Batch", 0): (2, 2),
        ("Batch", 1): (2, 2),
    }
    slave.close()
    master.store.close()
