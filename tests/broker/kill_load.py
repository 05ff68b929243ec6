"""What clients do to a broker that is killed again and again, and the diary of what they were told.

Each kind of traffic has a thread that sends until the trial is over, through every kill; it makes new topics in each
life of the broker. A message is made from its value alone ("level/17"), so whoever finds a record knows what it must
hold. What was tried is in `Diary.tried`, what was acknowledged in `Diary.acknowledged`. Nothing is sent twice.

Moments are taken here, and are bounds: the broker has a message or a commit not before `sent`, and not after
`answered`. So what is older than some bound by `answered` is so for the broker as well, however late a thread woke up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from contrailmq import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    SendStatus,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.raw_connection import RawConnection
from contrailmq.client.consuming.pulling import FLAG_COMMIT_OFFSET, pull_ext
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Command

AT_A_PLACE: Final = ("single", "unwaited", "batch", "ordered")  # the acknowledgement names the queue and the offset
LATER: Final = ("level", "timer", "commit", "unknown")  # unknown: the producer says so, and commits when it is asked
KINDS: Final = (*AT_A_PLACE, *LATER, "rollback", "retry", "doomed")  # doomed: refused until it is a dead letter
TRANSACTIONS: Final = ("commit", "unknown", "rollback")
TASKS: Final = "Tasks"
ORDERED: Final = "Ordered"
WORKERS: Final = "workers"
RETRIES_MAX: Final = 2
LEVELS_MS: Final = {1: 1000, 2: 5000}
LEVELS: Final = "1s 5s " + " ".join(["1s"] * 16)  # retries wait on the third and fourth
BATCH: Final = 5
TOPICS_PER_LIFE: Final = 3
MESSAGES_PER_TOPIC: Final = 6
PACE_S: Final = 0.003  # between two sends of a thread: all of them share two cores with the broker
WALK: Final = "Walk"  # where the committers go
WALK_QUEUES: Final = 2
WALK_BATCH: Final = 500
WALK_PER_KILL: Final = 300  # messages of each queue: no committer goes further, a broker would clamp that
COMMIT_PACE_S: Final = 0.01


class Place(NamedTuple):
    queue_id: int
    queue_offset: int


class Acknowledged(NamedTuple):
    topic: str
    place: Place | None
    answered_s: float  # monotonic


class Commit(NamedTuple):
    offset: int
    answered_s: float  # monotonic


def kind_of(value: str) -> str:
    return value.partition("/")[0]


def number_of(value: str) -> int:
    return int(value.partition("/")[2])


def body_of(value: str) -> bytes:
    return f"{value}|".encode() * (1 + number_of(value) % 40)


def value_of(body: bytes) -> str:
    return body.partition(b"|")[0].decode()


def properties_of(value: str) -> dict[str, str]:
    """What a consumer must find among the properties."""
    return {"KEYS": value, "TAGS": kind_of(value), "mark": value[::-1]}


def delay_ms_of(value: str) -> int:
    number = number_of(value)
    if kind_of(value) == "level":
        return LEVELS_MS[1 + (number % 4 == 0)]
    return 200 + number * 37 % 2800 if kind_of(value) == "timer" else 0


def message_of(topic: str, value: str) -> Message:
    kind, number = kind_of(value), number_of(value)
    return Message(
        topic,
        body_of(value),
        tags=kind,
        keys=value,
        properties={"mark": value[::-1]},
        wait_store_ok=kind != "unwaited",
        delay_level=1 + (number % 4 == 0) if kind == "level" else 0,
        delay=delay_ms_of(value) / 1000 if kind == "timer" else None,
        sharding_key=f"s{number % 3}" if kind == "ordered" else None,
    )


class Diary:
    """What clients tried, were told and got. Written by their threads, read by the trial."""

    def __init__(self) -> None:
        self.tried: dict[str, int] = {}  # value -> epoch milliseconds before it was sent
        self.acknowledged: dict[str, dict[str, Acknowledged]] = {kind: {} for kind in KINDS}
        self.commits: dict[tuple[str, int], list[Commit]] = {}  # (group, queue) -> those that were answered, in order
        self.commits_tried: dict[tuple[str, int], int] = {}  # (group, queue) -> the last
        self.consumed: set[str] = set()
        self.refused: dict[str, float] = {}  # value -> monotonic seconds when its consumer last handed it back
        self.out_of_order: list[str] = []
        self._lock = threading.Lock()

    def acknowledge(self, kind: str, told: dict[str, Acknowledged]) -> None:
        with self._lock:
            self.acknowledged[kind] |= told

    def told(self, kind: str) -> list[tuple[str, Acknowledged]]:
        """All that was acknowledged up to now, in order."""
        with self._lock:
            return list(self.acknowledged[kind].items())


class Load:
    """All clients of a trial. `life` is counted up by the trial when a broker may be used again."""

    def __init__(self, namesrv: str, address: Callable[[], str], *, kills: int) -> None:
        self._walk_batches = 4 + kills * WALK_PER_KILL // WALK_BATCH
        self.diary = Diary()
        self.life = 0
        self.failure: BaseException | None = None
        self._namesrv = namesrv
        self._address = address
        self._number = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._lives = threading.Condition()
        self._latest: dict[int, int] = {}  # of the orderly consumer: queue -> last number
        self._producers = {kind: self._producer(kind) for kind in KINDS if kind not in TRANSACTIONS}
        self._ledger = TransactionProducer(
            "ledger",
            namesrv=namesrv,
            execute=lambda message, kind: _outcome(str(kind)),
            check=lambda message: _outcome(kind_of(value_of(message.body)), is_asked=True),
            retry_times=0,
            heartbeat_interval_s=1.0,
        )
        self._workers = self._consumer(WORKERS, TASKS, self._work, max_reconsume_times=RETRIES_MAX)
        self._clerks = self._consumer("clerks", ORDERED, self._take_in_order, orderly=True, suspend_s=0.05)
        self._threads = [threading.Thread(target=self._guarded, args=(self._send_all, kind)) for kind in KINDS]
        self._threads += [
            threading.Thread(target=self._guarded, args=(self._commit_all, way)) for way in (by_request, by_pull)
        ]

    def _producer(self, kind: str) -> Producer:
        return Producer(kind, namesrv=self._namesrv, retry_times=0)

    def _consumer(
        self, group: str, topic: str, listen: Callable[[list[StoredMessage]], None], **settings: object
    ) -> PushConsumer:
        consumer = PushConsumer(
            group,
            namesrv=self._namesrv,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            poll_namesrv_interval_s=1.0,
            heartbeat_interval_s=1.0,
            **settings,
        )
        consumer.subscribe(topic)
        consumer.listen(listen)
        return consumer

    # --- life

    def start(self) -> None:
        for client in (*self._producers.values(), self._ledger):
            client.start()
        self._fill_walk()
        for kind, topic in (("retry", TASKS), ("ordered", ORDERED)):
            self._send_one(kind, topic)  # makes the topic
        for consumer in (self._workers, self._clerks):
            consumer.start()
        for thread in self._threads:
            thread.start()

    def stop_sending(self) -> None:
        self._stop.set()
        self.begin_life()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def close(self) -> None:
        self.stop_sending()
        for client in (self._workers, self._clerks, self._ledger, *self._producers.values()):
            client.shutdown()

    def begin_life(self) -> None:
        """The committers may go on: what a broker knows of their commits was asked."""
        with self._lives:
            self.life += 1
            self._lives.notify_all()

    def _guarded(self, work: Callable[..., None], arg: object) -> None:
        try:
            work(arg)
        except BaseException as exc:  # a thread of the trial must not end unnoticed
            self.failure = exc
            raise

    # --- sends

    def _send_all(self, kind: str) -> None:
        life, count = -1, 0
        while not self._stop.wait(PACE_S):
            count = 0 if life != self.life else count + 1
            life = self.life
            part = min(count // MESSAGES_PER_TOPIC, TOPICS_PER_LIFE - 1)
            topic = {"retry": TASKS, "doomed": TASKS, "ordered": ORDERED}.get(kind, f"{kind}-{life}-{part}")
            try:
                self._send_one(kind, topic)
            except ContrailError:
                self._stop.wait(0.02)  # the broker is away: what was tried may be there or not

    def _send_one(self, kind: str, topic: str) -> None:
        values = [self._value(kind) for _ in range(BATCH if kind == "batch" else 1)]
        messages = [message_of(topic, value) for value in values]
        if kind == "batch":
            result = self._producers[kind].send_batch(messages, timeout=2.0)
        elif kind in TRANSACTIONS:
            result = self._ledger.send_in_transaction(messages[0], kind, timeout=2.0)
        elif kind == "ordered":
            key = messages[0].properties["__SHARDINGKEY"]
            result = self._producers[kind].send(messages[0], selector=_by_key, arg=key, timeout=2.0)
        else:
            result = self._producers[kind].send(messages[0], timeout=2.0)
        answered_s = time.monotonic()
        if result.status is not SendStatus.OK:
            return
        told = {}
        for index, value in enumerate(values):
            place = Place(result.queue.queue_id, result.queue_offset + index) if kind in AT_A_PLACE else None
            told[value] = Acknowledged(topic, place, answered_s)
        self.diary.acknowledge(kind, told)

    def _value(self, kind: str) -> str:
        with self._lock:
            self._number += 1
            value = f"{kind}/{self._number}"
            self.diary.tried[value] = time.time_ns() // 1_000_000
        return value

    # --- consumers

    def _work(self, messages: list[StoredMessage]) -> None:
        """A task is refused once and comes back; a doomed one is refused until it is a dead letter."""
        for message in messages:
            value = value_of(message.body)
            if kind_of(value) == "doomed" or not message.reconsume_times:
                self.diary.refused |= {value_of(one.body): time.monotonic() for one in messages}
                raise ValueError("again, please")
            self.diary.consumed.add(value)

    def _take_in_order(self, messages: list[StoredMessage]) -> None:
        """What was not seen before never comes behind a later one of its queue."""
        for message in messages:
            value = value_of(message.body)
            if value not in self.diary.consumed and number_of(value) < self._latest.get(message.queue_id, 0):
                self.diary.out_of_order.append(value)
            self._latest[message.queue_id] = max(number_of(value), self._latest.get(message.queue_id, 0))
            self.diary.consumed.add(value)

    # --- commits

    def _fill_walk(self) -> None:
        """Messages for the committers to pass."""
        with QueueReader(self._address()) as reader:
            for queue_id in range(WALK_QUEUES):
                for _ in range(self._walk_batches):
                    reader.send_batch([Message(WALK, b"step")] * WALK_BATCH, walk_queue(queue_id))
            last = walk_queue(WALK_QUEUES - 1)
            while reader.max_offset(last) < self._walk_batches * WALK_BATCH:  # the write buffer pool is a little late
                self._stop.wait(0.01)
        with contextlib.closing(RawConnection(self._address())) as connection:
            by_pull(connection, last, 0, group=by_request.__name__)  # makes the group: a commit alone does not

    def _commit_all(self, commit: Way) -> None:
        """One message after the other. A life has one connection: after a kill nothing is committed until the trial has
        compared, however late this thread is."""
        offset, end = 0, self._walk_batches * WALK_BATCH
        while not self._stop.is_set():
            life = self.life
            with contextlib.suppress(ContrailError), contextlib.closing(RawConnection(self._address())) as connection:
                while self.life == life and offset < end and not self._stop.wait(COMMIT_PACE_S):
                    offset += 1
                    self._commit_one(connection, commit, offset)
            with self._lives:
                while self.life == life and not self._stop.is_set():
                    self._lives.wait()

    def _commit_one(self, connection: RawConnection, commit: Way, offset: int) -> None:
        where = commit.__name__, offset % WALK_QUEUES
        self.diary.commits_tried[where] = offset
        answer = commit(connection, walk_queue(where[1]), offset)
        assert answer.code == 0, answer
        self.diary.commits.setdefault(where, []).append(Commit(offset, time.monotonic()))


Way = Callable[[RawConnection, MessageQueue, int], Command]


def by_request(connection: RawConnection, queue: MessageQueue, offset: int) -> Command:
    ext = {"consumerGroup": "by_request", "topic": queue.topic, "queueId": queue.queue_id, "commitOffset": offset}
    return connection.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, ext, timeout_s=10.0)


def by_pull(connection: RawConnection, queue: MessageQueue, offset: int, *, group: str = "by_pull") -> Command:
    """As push consumers do; the answer of the pull says that it was received."""
    ext = pull_ext(
        group,
        queue,
        offset,
        flags=FLAG_COMMIT_OFFSET,
        max_count=1,
        max_bytes=1,
        commit_offset=offset,
        suspend_s=0,
        version=0,
        expression_type="TAG",
        expression="*",
    )
    return connection.invoke(RequestCode.PULL_MESSAGE, ext, timeout_s=10.0)


def walk_queue(queue_id: int) -> MessageQueue:
    return MessageQueue(WALK, "broker-0", queue_id)


def _by_key(queues: list[MessageQueue], message: Message, key: object) -> MessageQueue:
    return queues[int(str(key)[1:]) % len(queues)]


def _outcome(kind: str, *, is_asked: bool = False) -> TransactionState:
    if kind == "unknown" and not is_asked:
        return TransactionState.UNKNOWN
    return TransactionState.ROLLBACK if kind == "rollback" else TransactionState.COMMIT
