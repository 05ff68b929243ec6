"""A topic that its master deleted is deleted at the slave, whatever the slave has seen of it and of its next life."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.test_slave_sync import MASTER, Broker, Pair, rounds
from contrailmq.broker.cluster import slave_sync
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.message import Message
from contrailmq.wire.codes import RequestCode

KINDS = {"ordinary": {}, "batch": {"queue.type": "BatchCQ"}}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    made.master.node.groups.put(Group("g"))
    yield made
    made.close()


def make(pair: Pair, kind: str) -> None:
    """The topic B, as an operator creates it."""
    pair.master.node.topics.put(Topic("B", read_queues=2, write_queues=2, attributes=KINDS[kind]))


def send(pair: Pair, count: int, *, queue_id: int, body: bytes = b"old") -> None:
    for number in range(count):
        pair.master.send("B", body + b"-%d" % number, e=queue_id)


def delete(pair: Pair) -> None:
    assert pair.master.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "B"}).code == 0


def queues(broker: Broker) -> dict[int, tuple[int, int]]:
    """The queues of B that hold or held a message."""
    return {key[1]: ends for key, ends in broker.store.queues().items() if key[0] == "B" and ends[1]}


def bodies(broker: Broker) -> list[bytes]:
    return sorted(message.body for queue_id in (0, 1) for message in broker.messages("B", queue_id))


def replicate(pair: Pair) -> None:
    """Log and tables, after the time in which a slave asks for them."""
    pair.copy_log()
    pair.slave.clock.advance(slave_sync.TABLES_MS)
    rounds(pair, 2)


WAYS = list(itertools.product(KINDS, KINDS, [False, True]))


@pytest.mark.parametrize(
    ("first", "second", "is_seen_between"),
    WAYS,
    ids=[f"{one} then {other}, {'seen' if seen else 'not seen'} between" for one, other, seen in WAYS],
)
def test_the_queues_of_a_deleted_topic_go_at_the_slave_too(
    pair: Pair, first: str, second: str, is_seen_between: bool
) -> None:
    make(pair, first)
    for queue_id in (0, 1):
        send(pair, 20, queue_id=queue_id)
    replicate(pair)
    assert queues(pair.slave) == {0: (0, 20), 1: (0, 20)}
    delete(pair)
    if is_seen_between:
        replicate(pair)
        assert queues(pair.slave) == {}
    make(pair, second)
    send(pair, 1, queue_id=0, body=b"new")
    replicate(pair)
    assert queues(pair.slave) == queues(pair.master) == {0: (0, 1)}
    send(pair, 3, queue_id=1, body=b"late")
    replicate(pair)
    assert queues(pair.slave) == queues(pair.master) == {0: (0, 1), 1: (0, 3)}
    assert bodies(pair.slave) == bodies(pair.master) == [b"late-0", b"late-1", b"late-2", b"new-0"]


def test_a_log_that_lags_has_its_queues_removed_when_it_has_come_to_the_deletion(pair: Pair) -> None:
    make(pair, "ordinary")
    send(pair, 5, queue_id=0)
    send(pair, 5, queue_id=1)
    pair.copy_log()
    send(pair, 5, queue_id=1)
    delete(pair)
    make(pair, "ordinary")
    send(pair, 2, queue_id=0, body=b"new")
    rounds(pair, 3)
    assert queues(pair.slave) == {0: (0, 5), 1: (0, 5)}, "it has not come to the deletion"
    pair.copy_log()
    rounds(pair, 1)
    assert queues(pair.slave) == queues(pair.master) == {0: (0, 2)}


def test_offsets_in_deleted_queues_are_not_handed_to_the_master(pair: Pair) -> None:
    """It would pass over as many messages of the new life."""
    make(pair, "ordinary")
    send(pair, 20, queue_id=1)
    replicate(pair)
    pair.wire.gone.add(MASTER)
    rounds(pair, 3)
    pair.slave.node.commit_offset("g", "B", 1, 20)
    delete(pair)
    make(pair, "ordinary")
    send(pair, 30, queue_id=1, body=b"new")
    pair.wire.gone.clear()
    rounds(pair, 3)
    assert pair.master.node.offsets.stored("B@g", 1) is None
    pair.copy_log()
    rounds(pair, 2)
    assert pair.slave.node.offsets.stored("B@g", 1) is None
    assert queues(pair.slave) == {1: (0, 30)}


def test_a_master_that_tells_of_no_deletion_gets_no_offset_beyond_the_end_of_its_queue(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    make(pair, "ordinary")
    send(pair, 20, queue_id=1)
    replicate(pair)
    pair.wire.gone.add(MASTER)
    pair.slave.node.commit_offset("g", "B", 1, 20)
    delete(pair)
    pair.master.node.deleted.follow(type(pair.master.node.deleted)(), reached=0)  # as RocketMQ's masters: no notes
    make(pair, "ordinary")
    send(pair, 3, queue_id=1, body=b"new")
    pair.wire.gone.clear()
    rounds(pair, 2)
    assert pair.master.node.offsets.stored("B@g", 1) is None
    assert "offset 20 of B@g, queue 1, committed at this slave, is dropped: the queue ends at 3 there" in caplog.text


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "killed before it was told"])
def test_a_slave_started_again_or_as_a_master_shows_no_deleted_message(
    pair: Pair, tmp_path: Path, is_told: bool
) -> None:
    make(pair, "ordinary")
    send(pair, 20, queue_id=0)
    send(pair, 20, queue_id=1)
    replicate(pair)
    delete(pair)
    make(pair, "ordinary")
    send(pair, 1, queue_id=0, body=b"new")
    pair.copy_log()
    if is_told:
        replicate(pair)
    pair.restart_slave()
    if not is_told:
        replicate(pair)
    assert queues(pair.slave) == {0: (0, 1)}
    now_ms = pair.slave.clock.now_ms()
    pair.slave.close()
    pair.slave = Broker(tmp_path / "slave", now_ms=now_ms)
    assert queues(pair.slave) == {0: (0, 1)}
    assert bodies(pair.slave) == [b"new-0"]
    assert pair.slave.send("B", b"first", e=1).ext["queueOffset"] == "0"


def test_a_slave_made_master_adopts_what_came_after_the_deletion(pair: Pair, tmp_path: Path) -> None:
    """Its last table says that the topic is gone; the log says that the topic lives again."""
    make(pair, "ordinary")
    send(pair, 20, queue_id=0)
    replicate(pair)
    delete(pair)
    replicate(pair)
    make(pair, "ordinary")
    send(pair, 2, queue_id=0, body=b"new")
    pair.copy_log()
    now_ms = pair.slave.clock.now_ms()
    pair.slave.close()
    pair.slave = Broker(tmp_path / "slave", now_ms=now_ms)
    assert bodies(pair.slave) == [b"new-0", b"new-1"]


def test_queues_that_the_master_cleaned_as_nobodys_go_too(pair: Pair) -> None:
    """clean_unused_topic: the table lacks the topic before and after."""
    pair.master.store.put(Message("Nobodys", b"x"))
    pair.master.settle()
    pair.master.node.topics.delete("Nobodys")  # adopted when its queue was made
    replicate(pair)
    assert ("Nobodys", 0) in pair.slave.store.queues()
    assert pair.master.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert ("Nobodys", 0) not in pair.master.store.queues()
    replicate(pair)
    assert ("Nobodys", 0) not in pair.slave.store.queues()


def test_a_slave_forgets_the_deletions_that_its_master_has_forgotten(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """One that stayed would, after a cut of the log, pass for a deletion of what is written there now."""
    caplog.set_level(logging.INFO)
    make(pair, "ordinary")
    send(pair, 2, queue_id=0)
    replicate(pair)
    delete(pair)
    replicate(pair)
    assert list(pair.slave.node.deleted.log_ends()) == ["B"]
    assert '"B"' in (pair.slave.config_path / DELETED_FILE).read_text()
    assert "removed 1 queues of 1 topics that the master deleted: B" in caplog.text
    pair.master.node.deleted.fit(pair.master.store.appended_offset, pair.master.store.appended_offset)
    make(pair, "ordinary")
    replicate(pair)
    assert pair.slave.node.deleted.log_ends() == {}
    assert '"B"' not in (pair.slave.config_path / DELETED_FILE).read_text()
