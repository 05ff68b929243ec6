"""A real broker process is killed (SIGKILL) again and again while it delivers: what comes twice, and what is lost.

Delay levels, timers, transactions and retries are under way at the same time. In the end the log itself is asked: each
message that waited has its record in a system topic, and each delivery a record, with its store time, in the topic it
was meant for. Deliveries beyond what waited are repeats, and each must be of a message that had been delivered within
the last 200 ms before a kill, or while it was under way: some tens of milliseconds lie between the moment when a test
decides to kill and the last thing that the process does.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from contrailmq import (
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.message import ContrailError, Property, SystemTopic, retry_topic
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster
from waiting_for import until

REPEATED_MS = 200
NEVER_MS = 2**62
WORKERS = "workers"
IN_FLIGHT = 64
SETTINGS = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
}


class Kill(NamedTuple):
    decided_ms: int
    done_ms: int


class Load:
    """Sends what has to be delivered later, and knows what was acknowledged."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._random = random.Random(seed)
        self.acknowledged: dict[str, set[bytes]] = {"Levels": set(), "Timers": set(), "Ledger": set(), "Tasks": set()}
        self.retried: set[bytes] = set()
        self._producer = Producer("load", namesrv=cluster.namesrv)
        self._ledger = TransactionProducer(
            "ledger",
            namesrv=cluster.namesrv,
            execute=lambda message, arg: TransactionState.COMMIT if arg else TransactionState.UNKNOWN,
            check=lambda message: TransactionState.COMMIT,
        )
        self._workers = PushConsumer(WORKERS, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        self._workers.subscribe("Tasks")
        self._workers.listen(self._work)

    def __enter__(self) -> Load:
        for client in (self._producer, self._ledger, self._workers):
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self._workers, self._ledger, self._producer):
            client.shutdown()

    def _work(self, messages: list[StoredMessage]) -> None:
        """Each task fails once, and comes back."""
        for message in messages:
            if message.reconsume_times == 0:
                raise ValueError("not yet")
            self.retried.add(message.body)

    def send(self, prefix: str, count: int) -> None:
        """Of ten messages four wait on a level, three for a timer, two are transactions, and one is a task."""
        with ThreadPoolExecutor(2) as senders:
            transactions = senders.submit(self._send_transactions, prefix, count * 2 // 10)
            later = senders.submit(self._send_later, prefix, count * 8 // 10)
            transactions.result()
            later.result()

    def _send_later(self, prefix: str, count: int) -> None:
        sent: list[tuple[Message, Future[object]]] = []
        for number in range(count):
            message = self._message(b"%s-%d" % (prefix.encode(), number), number)
            sent.append((message, self._producer.send_async(message)))
            if len(sent) == IN_FLIGHT or number == count - 1:
                for message, future in sent:
                    if future.exception() is None:
                        self.acknowledged[message.topic].add(message.body)
                sent.clear()

    def _message(self, body: bytes, number: int) -> Message:
        if number % 8 < 4:
            return Message("Levels", body, delay_level=1 + number % 2)
        if number % 8 < 7:
            return Message("Timers", body, delay=0.2 + 2.3 * self._random.random())
        return Message("Tasks", body)

    def _send_transactions(self, prefix: str, count: int) -> None:
        for number in range(count):
            body = b"%s-t%d" % (prefix.encode(), number)
            try:
                self._ledger.send_in_transaction(Message("Ledger", body), number % 4 > 0)
            except ContrailError:
                continue
            self.acknowledged["Ledger"].add(body)


@pytest.mark.parametrize(("kills", "messages"), [(2, 1_000), pytest.param(15, 10_000, marks=pytest.mark.long)])
def test_a_kill_repeats_what_was_delivered_in_the_last_200_ms_at_most_and_loses_nothing(
    tmp_path: Path, kills: int, messages: int
) -> None:
    source = random.Random(messages)
    kills_ms: list[Kill] = []
    with LocalCluster(store=tmp_path, config=SETTINGS, processes=True) as cluster, Load(cluster, 3) as load:
        load.send("first", 20)  # makes the topics
        with ThreadPoolExecutor(1) as sender:
            for number in range(kills):
                sending = sender.submit(load.send, f"r{number}", messages // kills)
                if number % 3:
                    sending.result()  # else the kill may come while they are sent
                threading.Event().wait(0.3 + 2.0 * source.random())  # the moment of the kill is what is drawn
                decided_ms = time.time_ns() // 1_000_000
                cluster.kill_broker()  # returns when the process is gone
                kills_ms.append(Kill(decided_ms, time.time_ns() // 1_000_000))
                cluster.restart_broker()
                sending.result()
        wait_for_all(cluster, load)
    with MessageStore(StoreConfig(tmp_path / "broker-0")) as store:
        found = Found(store, kills_ms)
    assert found.missing(load) == {}
    assert sum(map(len, load.acknowledged.values())) >= messages // 2
    print(f"\n{found.report()}")
    assert found.beyond_the_bound() == []
    assert found.repeats["Ledger"] == 0


def wait_for_all(cluster: LocalCluster, load: Load) -> None:
    missing = {topic: set(bodies) for topic, bodies in load.acknowledged.items() if topic != "Tasks"}
    with LitePullConsumer("reader", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as reader:
        for topic in missing:
            reader.subscribe(topic)

        def is_all_there() -> bool:
            for message in reader.poll(timeout=0.5):
                missing[message.topic].discard(message.body)
            return not any(missing.values()) and load.acknowledged["Tasks"] <= load.retried

        unread = lambda: (missing, load.acknowledged["Tasks"] - load.retried)  # noqa: E731
        until(is_all_there, "everything that was acknowledged can be pulled", seen=unread)


class Found:
    """What the log holds in the end."""

    def __init__(self, store: MessageStore, kills_ms: list[Kill]) -> None:
        self._kills_ms = kills_ms
        self.waited: dict[str, Counter[object]] = {}
        self.delivered: dict[str, dict[object, list[int]]] = {}
        self.bodies: dict[str, set[bytes]] = {}
        topics = ("Levels", "Timers", "Ledger", retry_topic(WORKERS))
        for topic in topics:
            self.waited[topic], self.delivered[topic], self.bodies[topic] = Counter(), {}, set()
        halves: set[tuple[object, int]] = set()
        for message in records(store, lambda topic: topic in topics or topic.startswith(("SCHEDULE", "rmq_sys_wheel"))):
            self._take(message)
        for message in records(store, lambda topic: topic == SystemTopic.HALF):
            halves.add((identity(message), message.born_time_ms))  # put back for a check it is there again
        self.waited["Ledger"] = Counter(who for who, _ in halves)
        self.repeats = {
            topic: sum(max(len(times) - self.waited[topic][who], 0) for who, times in self.delivered[topic].items())
            for topic in topics
        }

    def _take(self, message: StoredMessage) -> None:
        if message.topic in self.delivered:
            self.delivered[message.topic].setdefault(identity(message), []).append(message.store_time_ms)
            self.bodies[message.topic].add(message.body)
        else:
            self.waited[message.properties[Property.REAL_TOPIC]][identity(message)] += 1

    def missing(self, load: Load) -> dict[str, set[bytes]]:
        missing = {topic: bodies - self.bodies.get(topic, load.retried) for topic, bodies in load.acknowledged.items()}
        return {topic: bodies for topic, bodies in missing.items() if bodies}

    def beyond_the_bound(self) -> list[tuple[str, object, list[int]]]:
        """Messages that came more often than they waited and were delivered right before a kill; with the time that
        was left until the next one, for each delivery."""
        found = []
        for topic, delivered in self.delivered.items():
            for who, times in delivered.items():
                if len(times) - self.waited[topic][who] > sum(map(self._is_before_a_kill, times)):
                    found.append((topic, who, [self._left_ms(time_ms) for time_ms in times]))
        return found

    def _is_before_a_kill(self, time_ms: int) -> bool:
        return self._left_ms(time_ms) <= REPEATED_MS

    def _left_ms(self, time_ms: int) -> int:
        """From a delivery to the next kill; 0 when that was under way."""
        decided_ms = min((kill.decided_ms for kill in self._kills_ms if kill.done_ms >= time_ms), default=NEVER_MS)
        return max(decided_ms - time_ms, 0)

    def report(self) -> str:
        lines = [f"{len(self._kills_ms)} kills"]
        for topic, delivered in self.delivered.items():
            count = sum(map(len, delivered.values()))
            lefts_ms = [self._left_ms(time_ms) for times in delivered.values() for time_ms in times]
            last = sum(left_ms <= REPEATED_MS for left_ms in lefts_ms)
            lines.append(
                f"{topic}: {count} deliveries, {last} of them in the last {REPEATED_MS} ms before a kill, "
                f"{self.repeats[topic]} repeated"
            )
        return "; ".join(lines)


def identity(message: StoredMessage) -> object:
    return message.properties[Property.UNIQUE_KEY], message.reconsume_times


def records(store: MessageStore, is_wanted: Callable[[str], bool]) -> Iterator[StoredMessage]:
    for (topic, queue_id), (begin, end) in store.queues().items():
        offset = begin
        while is_wanted(topic) and offset < end:
            found = store.get(topic, queue_id, offset, 1000)
            yield from found
            offset = found.next_offset
