"""Delays, recalls and transactions over real sockets, with the public clients."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from contrailmq import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.store.base.store_clock import STEP_MS
from contrailmq.testing import LocalCluster
from waiting_for import until

WAIT_S = 120.0  # a bound for a machine that is busy, not a duration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {
        "recallMessageEnable": "true",
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "1000",
        "transactionOpBatchInterval": "100",
    }
    with LocalCluster(config=settings) as made:
        yield made


class Received:
    """What a consumer of one topic got."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._messages: queue.Queue[StoredMessage] = queue.Queue()
        self._consumer = PushConsumer(
            f"reader-of-{topic}", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET
        )
        self._consumer.subscribe(topic)
        self._consumer.listen(lambda messages: [self._messages.put(message) for message in messages] and None)

    def __enter__(self) -> Received:
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.shutdown()

    def next(self) -> StoredMessage:
        return self._messages.get(timeout=WAIT_S)

    def is_empty(self) -> bool:
        return self._messages.empty()


def test_delayed_messages_arrive_in_the_order_of_their_times_and_never_early(cluster: LocalCluster) -> None:
    with Producer("later", namesrv=cluster.namesrv) as producer, Received(cluster, "Later") as received:
        now_ms = time.time_ns() // 1_000_000
        due = {b"level": now_ms + 1000, b"delay": now_ms + 5000, b"time": now_ms + 9000}
        producer.send(Message("Later", b"time", deliver_at=due[b"time"]))
        producer.send(Message("Later", b"delay", delay=5.0))
        producer.send(Message("Later", b"now"))
        producer.send(Message("Later", b"level", delay_level=1))  # of which the second begins when it is there
        found = sorted((received.next() for _ in range(4)), key=lambda message: message.store_time_ms)
    assert [message.body for message in found] == [b"now", b"level", b"delay", b"time"]
    for message in found[1:]:
        assert message.store_time_ms >= due[message.body] - STEP_MS  # by another clock than this test's


def test_a_recalled_message_does_not_arrive(cluster: LocalCluster) -> None:
    with Producer("recaller", namesrv=cluster.namesrv) as producer, Received(cluster, "Recalled") as received:
        kept = producer.send(Message("Recalled", b"kept", delay=4.0))
        dropped = producer.send(Message("Recalled", b"dropped", delay=4.0))
        assert dropped.recall_handle is not None
        assert producer.recall("Recalled", dropped.recall_handle) == dropped.message_id
        assert received.next().message_id == kept.message_id
        producer.send(Message("Recalled", b"after", delay=2.0))
        assert received.next().body == b"after"
        assert received.is_empty()


def test_a_transaction_is_visible_only_when_it_commits_by_itself_or_when_asked(cluster: LocalCluster) -> None:
    states = {
        b"commit": (TransactionState.COMMIT, TransactionState.COMMIT),
        b"rollback": (TransactionState.ROLLBACK, TransactionState.ROLLBACK),
        b"later commit": (TransactionState.UNKNOWN, TransactionState.COMMIT),
        b"later rollback": (TransactionState.UNKNOWN, TransactionState.ROLLBACK),
    }
    asked: queue.Queue[bytes] = queue.Queue()

    def check(message: StoredMessage) -> TransactionState:
        asked.put(message.body)
        return states[message.body][1]

    producer = TransactionProducer(
        "ledger", namesrv=cluster.namesrv, execute=lambda message, arg: states[message.body][0], check=check
    )
    with producer, Received(cluster, "Ledger") as received:
        for body in states:
            producer.send_in_transaction(Message("Ledger", body), None)
        assert {received.next().body, received.next().body} == {b"commit", b"later commit"}
        assert {asked.get(timeout=WAIT_S), asked.get(timeout=WAIT_S)} == {b"later commit", b"later rollback"}
        assert received.is_empty()
    transactions = cluster.broker().transactions
    until(lambda: not transactions.pending(), "the last answer to a check has come", seen=transactions.pending)


def test_a_restarted_producer_that_sends_nothing_is_asked_about_what_the_dead_one_left(cluster: LocalCluster) -> None:
    left = TransactionProducer(
        "heir",
        namesrv=cluster.namesrv,
        execute=lambda message, arg: TransactionState.UNKNOWN,
        check=lambda message: TransactionState.UNKNOWN,
    )
    with left:
        left.send_in_transaction(Message("Estate", b"half"), None)
    heir = TransactionProducer(
        "heir",
        namesrv=cluster.namesrv,
        execute=lambda message, arg: TransactionState.UNKNOWN,
        check=lambda message: TransactionState.COMMIT,
    )
    with heir, Received(cluster, "Estate") as received:
        assert received.next().body == b"half"


def test_what_waits_is_delivered_after_a_kill_and_a_restart() -> None:
    with LocalCluster() as cluster, Producer("later", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Later", b"level", delay_level=2))
        producer.send(Message("Later", b"timer", delay=5.0))
        cluster.kill_broker()
        cluster.restart_broker()
        with Received(cluster, "Later") as received:
            assert {received.next().body, received.next().body} == {b"level", b"timer"}


@pytest.mark.parametrize("stopped_s", [4, pytest.param(10, marks=pytest.mark.long)])
def test_a_suspended_broker_delivers_late_once_and_never_early(stopped_s: int) -> None:
    """SIGSTOP, as when a machine sleeps: some of what waits falls due meanwhile, some only afterwards."""
    due_ms: dict[bytes, float] = {}
    with (
        LocalCluster(processes=True) as cluster,
        Producer("suspended", namesrv=cluster.namesrv) as producer,
        Received(cluster, "Suspended") as received,
    ):
        for delay_s in (1.0, 2.0, 3.0, stopped_s + 3.0):
            due_ms[b"%g" % delay_s] = time.time() * 1000 + delay_s * 1000 - 1
            producer.send(Message("Suspended", b"%g" % delay_s, delay=delay_s))
        process_id = cluster.broker_process_id()
        os.kill(process_id, signal.SIGSTOP)
        try:
            threading.Event().wait(stopped_s)  # the length of the suspension is what is tested
        finally:
            os.kill(process_id, signal.SIGCONT)
        found = [received.next() for _ in due_ms]
        assert sorted(message.body for message in found) == sorted(due_ms)
        late_ms = {message.body: message.store_time_ms - due_ms[message.body] for message in found}
        assert min(late_ms.values()) >= -STEP_MS, late_ms  # by another clock than this test's
        producer.send(Message("Suspended", b"last", delay=2.0))
        assert received.next().body == b"last"
        assert received.is_empty()
