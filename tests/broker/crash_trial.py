"""A broker process under every kind of traffic at once, killed with SIGKILL again and again.

Each round makes topics of its own, so that a first message meets the kill. Threads send until the broker is gone; what
was acknowledged goes into `Trial.acknowledged`, what was only tried into `tried`. Nothing here asks the broker how it
did: at the end all queues are read through a restarted broker, and `Trial.found` says what lies there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from contrailmq import Message, Producer, PushConsumer, StoredMessage, TransactionProducer, TransactionState
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.records import decode_messages
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.testing import LocalCluster

GROUP = "trial"
RETRIED = "Retried"
KINDS = ("single", "unwaited", "batch", "level", "timer", "transaction", "rollback", "retry")
AT_A_PLACE = ("single", "unwaited", "batch")  # the acknowledgement names the queue and the offset
LEVELS = " ".join(["1s"] * 18)
TIMER_MS = 700
BATCH = 5
DRAIN_S = 60.0


class Place(NamedTuple):
    queue_id: int
    queue_offset: int


class Stored(NamedTuple):
    """One copy of a value in its topic."""

    place: Place
    store_time_ms: int


class Trial:
    """One broker process over many lives."""

    def __init__(self, directory: Path, *, flush: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = LocalCluster(
            store=directory,
            processes=True,
            config={
                "flushDiskType": flush,
                "messageDelayLevel": LEVELS,
                "transactionCheckInterval": 1000,
                "transactionCheckMax": 1000,  # 15 would be over before a producer is connected again
            },
        )
        self.acknowledged: dict[str, dict[str, Place | None]] = {kind: {} for kind in KINDS}  # value -> where
        self.tried: set[str] = set()
        self.kill_times_ms: list[int] = []
        self.consumed: set[str] = set()
        self.found: dict[str, list[Stored]] = {}  # every copy of every value, when nothing is on its way any more
        self._number = 0
        self._lock = threading.Lock()

    # --- what runs while the broker lives

    def run(self, rounds: int) -> None:
        """`rounds` lives that end by SIGKILL, then one in which everything is delivered."""
        with self._consumer(), self._answering("transaction"), self._answering("rollback"):
            for number in range(rounds):
                self._live_and_die(number)
            self._await(lambda: self.acknowledged["retry"].keys() <= self.consumed)
            self.found = self._found()

    def _live_and_die(self, number: int) -> None:
        stop = threading.Event()
        threads = [threading.Thread(target=self._send, args=(kind, number, stop)) for kind in KINDS]
        for thread in threads:
            thread.start()
        stop.wait(self.random.uniform(0.05, 0.8))  # nobody sets it before: the moment of the kill
        self.cluster.kill_broker()
        self.kill_times_ms.append(time.time_ns() // 1_000_000)
        stop.set()
        for thread in threads:
            thread.join()
        self.cluster.restart_broker()

    def _send(self, kind: str, number: int, stop: threading.Event) -> None:
        """Send messages of a kind, every few to a topic that is new, until the broker is killed."""
        is_decided = kind in ("transaction", "rollback")
        plain = Producer(kind, namesrv=self.cluster.namesrv, retry_times=0)
        with self._answering(kind) if is_decided else plain as producer:
            count = 0
            while not stop.is_set():
                topic = RETRIED if kind == "retry" else f"{kind}-{number}-{count // 8}"
                count += 1
                try:
                    self._send_one(producer, kind, topic)
                except ContrailError:
                    stop.wait(0.01)  # the broker is away: what was tried may be there or not

    def _send_one(self, producer: Producer, kind: str, topic: str) -> None:
        values = [self._value(kind) for _ in range(BATCH if kind == "batch" else 1)]
        messages = [self._message(kind, topic, value) for value in values]
        if kind == "batch":
            result = producer.send_batch(messages, timeout=2.0)
        elif isinstance(producer, TransactionProducer):
            result = producer.send_in_transaction(messages[0], kind)
        else:
            result = producer.send(messages[0], timeout=2.0)
        for index, value in enumerate(values):
            place = Place(result.queue.queue_id, result.queue_offset + index) if kind in AT_A_PLACE else None
            self.acknowledged[kind][value] = place

    def _value(self, kind: str) -> str:
        with self._lock:
            self._number += 1
            value = f"{kind}/{self._number}"
            self.tried.add(value)
        return value

    def _message(self, kind: str, topic: str, value: str) -> Message:
        body = value.encode()
        if kind == "level":
            return Message(topic, body, delay_level=1)
        if kind == "timer":
            return Message(topic, body, deliver_at=time.time_ns() // 1_000_000 + TIMER_MS)
        return Message(topic, body, wait_store_ok=kind != "unwaited")

    def _answering(self, group: str) -> TransactionProducer:
        """Whom the broker may ask about the half messages of the group."""
        return TransactionProducer(
            group,
            namesrv=self.cluster.namesrv,
            execute=_decided,
            check=_checked,
            retry_times=0,
            heartbeat_interval_s=1.0,
        )

    def _consumer(self) -> PushConsumer:
        """Refuses each message once, so that all come back through a delay level and the retry topic."""
        consumer = PushConsumer(GROUP, namesrv=self.cluster.namesrv, poll_namesrv_interval_s=1.0)
        consumer.subscribe(RETRIED)

        def listen(messages: list[StoredMessage]) -> None:
            if any(not message.reconsume_times for message in messages):
                raise ValueError("again, please")
            self.consumed.update(message.body.decode() for message in messages)

        consumer.listen(listen)
        return consumer

    # --- what is there in the end

    def _found(self) -> dict[str, list[Stored]]:
        """Read the topics of consumers until what waits has arrived."""
        awaited = set().union(*(self.acknowledged[kind] for kind in ("level", "timer", "transaction")))
        found: dict[str, list[Stored]] = {}

        def is_all_there() -> bool:
            found.clear()
            found.update(self._read_all())
            return awaited <= found.keys()

        self._await(is_all_there)
        return found

    def _read_all(self) -> dict[str, list[Stored]]:
        copies: dict[str, list[Stored]] = defaultdict(list)
        with QueueReader(namesrv=self.cluster.namesrv) as reader:
            for topic in reader.topics():
                if topic.partition("-")[0] not in KINDS and topic != RETRIED:
                    continue
                for queue in reader.queues(topic):
                    for message in _records(reader, queue):
                        place = Place(message.queue_id, message.queue_offset)
                        copies[message.body.decode()].append(Stored(place, message.store_time_ms))
        return copies

    def _await(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so, at most DRAIN_S: whoever asserts says then what is missing."""
        pause, end_s = threading.Event(), time.monotonic() + DRAIN_S
        while not is_so() and time.monotonic() < end_s:
            pause.wait(0.2)


def _decided(message: Message, kind: object) -> TransactionState:
    return TransactionState.ROLLBACK if kind == "rollback" else TransactionState.COMMIT


def _checked(message: StoredMessage) -> TransactionState:
    return _decided(message, message.body.decode().partition("/")[0])  # type: ignore[arg-type]


def _records(reader: QueueReader, queue: MessageQueue) -> Iterator[StoredMessage]:
    offset, end = reader.min_offset(queue), reader.max_offset(queue)
    while offset < end:
        pulled = reader.pull(queue, offset)
        assert pulled.next_offset > offset, f"{queue} stands still at {offset} of {end}: {pulled.status}"
        yield from decode_messages(bytes(pulled.body))
        offset = pulled.next_offset
