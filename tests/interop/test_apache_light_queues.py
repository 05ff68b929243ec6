"""Light queues (enableLmq, enableMultiDispatch) go both ways: Apache's broker and our store in turns, in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache import Apache, Program

from contrailmq import Message, MessageQueue, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.records import decode_messages
from contrailmq.message import StoredMessage
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true", "mappedFileSizeConsumeQueue": 1200}
NAMES = ("%LMQ%all", "%LMQ%some")
WAIT_S = 20.0

Queue = list[tuple[int, bytes, str]]  # (physical offset, body, its offsets in light queues)


def light_message(number: int) -> tuple[Message, list[str]]:
    """Every third is in no light queue, every other one in both."""
    names = [] if number % 3 == 2 else list(NAMES) if number % 2 else ["%LMQ%all"]
    message = Message("Parent", b"body %d" % number, tags=f"t{number % 2}", keys=f"k{number}")
    if names:
        message.properties["INNER_MULTI_DISPATCH"] = ",".join(names)
    return message, names


class Turns:
    """What each light queue must hold, as bodies by offset."""

    def __init__(self) -> None:
        self.number = 0
        self.bodies: dict[str, list[bytes]] = {name: [] for name in NAMES}

    def next_messages(self, count: int) -> list[Message]:
        messages = []
        for _ in range(count):
            message, names = light_message(self.number)
            for name in names:
                self.bodies[name].append(message.body)
            messages.append(message)
            self.number += 1
        return messages


def facts_of(message: StoredMessage) -> tuple[int, bytes, str]:
    return message.physical_offset, message.body, message.properties["INNER_MULTI_QUEUE_OFFSET"]


def pulled_from(broker: Program, name: str, count: int) -> Queue:
    """The first so many messages of a light queue, from Apache's broker; it waits for those that it dispatches late."""
    found: Queue = []
    with QueueReader(address=broker.address, group="light") as reader:
        queue = MessageQueue(name, "broker-a", 0)
        while len(found) < count:
            pull = reader.pull(queue, len(found), wait_s=WAIT_S)
            assert pull.body, (name, len(found), count, pull)
            found += map(facts_of, decode_messages(pull.body))
            assert pull.next_offset == len(found)
        assert (reader.min_offset(queue), reader.max_offset(queue)) == (0, len(found))
    return found


def held_by(store: MessageStore, name: str) -> Queue:
    found: Queue = []
    low, high = store.queues()[name, 0]
    assert low == 0
    while len(found) < high:
        page = [facts_of(message) for message in store.get(name, 0, len(found))]
        assert page, (name, len(found), high)
        found += page
    return found


def send_all(namesrv: str, messages: list[Message]) -> None:
    with Producer("light", namesrv=namesrv) as producer:
        for message in messages:
            producer.send(message)


def bodies(queue: Queue) -> list[bytes]:
    return [body for _, body, _ in queue]


def test_light_queues_of_apaches_broker_and_of_our_store_are_read_by_the_other(
    rocketmq: Apache, tmp_path: Path
) -> None:
    path, turns = tmp_path / "store", Turns()
    ours: dict[str, Queue] = {}
    config = StoreConfig(
        path,
        mapped_file_size_commit_log=16 << 20,
        mapped_file_size_consume_queue=1200,
        max_hash_slot_num=5000,
        max_index_num=20000,
        enable_lmq=True,
        enable_multi_dispatch=True,
    )
    with rocketmq.namesrv() as namesrv:
        for _ in range(2):
            with rocketmq.broker(namesrv.address, store=path, **SETTINGS) as broker:
                for name, queue in ours.items():  # what our store wrote in the turn before, first of all
                    assert pulled_from(broker, name, len(queue)) == queue
                send_all(namesrv.address, turns.next_messages(80))
                theirs = {name: pulled_from(broker, name, len(turns.bodies[name])) for name in NAMES}
            assert {name: bodies(queue) for name, queue in theirs.items()} == turns.bodies
            with MessageStore(config) as store:
                assert (store.recovery.units_corrected, store.recovery.units_cut) == (0, 0)
                assert {name: held_by(store, name) for name in NAMES} == theirs
                for message in turns.next_messages(70):
                    store.put(message, queue_id=turns.number % 4)
                ours = {name: held_by(store, name) for name in NAMES}
            assert {name: bodies(queue) for name, queue in ours.items()} == turns.bodies
            with StoreView(config) as view:
                assert verify_store(view).findings == []
