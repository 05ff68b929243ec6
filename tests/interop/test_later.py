"""What waits goes on under the other broker: delays, timers, recalls and half messages, left by one, delivered by the
other."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest
from apache import Apache

from contrailmq import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

WAIT_S = 120.0
LEVELS = "1s 20s"
OURS = {
    "messageDelayLevel": LEVELS,
    "recallMessageEnable": "true",
    "mappedFileSizeTimerLog": "1040",
    "transactionCheckInterval": "600000",
}
APACHES = {
    "messageDelayLevel": LEVELS,
    "recallMessageEnable": "true",
    "mappedFileSizeTimerLog": 1040,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "transactionCheckInterval": 2000,
    "transactionTimeOut": 1000,
}

BUSY_S = 60.0  # for a machine that is busy, not a duration


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _leave_waiting(namesrv: str) -> int:
    """Put messages that wait; the time of the timers that are due last."""
    with Producer("later", namesrv=namesrv, send_timeout_s=BUSY_S) as producer:
        producer.send(Message("Later", b"was due", delay_level=1))
        deliver_ms = _now_ms() + 45_000  # on a busy machine a broker of Apache takes half a minute to start
        producer.send(Message("Later", b"level", delay_level=2))
        for number in range(30):  # several files of the timer log
            producer.send(Message("Later", b"timer %d" % number, deliver_at=deliver_ms + number % 3 * 1000))
        recalled = producer.send(Message("Later", b"recalled", deliver_at=deliver_ms))
        assert recalled.recall_handle is not None
        producer.recall("Later", recalled.recall_handle)
    unknown = TransactionProducer(
        "ledger",
        namesrv=namesrv,
        send_timeout_s=BUSY_S,
        execute=lambda m, a: TransactionState.UNKNOWN,
        check=lambda m: TransactionState.UNKNOWN,
    )
    with unknown:
        unknown.send_in_transaction(Message("Later", b"half"), None)
    return deliver_ms


def _received(namesrv: str, count: int, *, may_repeat: frozenset[bytes] = frozenset()) -> dict[bytes, StoredMessage]:
    """The first messages that a new group gets, until `count` different ones are there."""
    messages: queue.Queue[StoredMessage] = queue.Queue()
    consumer = PushConsumer("reader", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Later")
    consumer.listen(lambda found: [messages.put(message) for message in found] and None)
    answer = TransactionProducer(
        "ledger",
        namesrv=namesrv,
        send_timeout_s=BUSY_S,
        execute=lambda message, _: TransactionState.ROLLBACK,
        # Apache may ask about the one that was rolled back: its op message is written three seconds later.
        check=lambda message: TransactionState.COMMIT if message.body == b"half" else TransactionState.ROLLBACK,
    )
    got: dict[bytes, StoredMessage] = {}
    with answer:
        answer.send_in_transaction(Message("Later", b"rolled back"), None)  # the broker learns of this producer
        consumer.start()
        try:
            while len(got) < count:
                message = messages.get(timeout=WAIT_S)
                assert message.body not in got or message.body in may_repeat, f"{message.body!r} came twice"
                got.setdefault(message.body, message)
        finally:
            consumer.shutdown()
    return got


WAITING = {b"was due", b"level", b"half", *(b"timer %d" % number for number in range(30))}


def test_apache_delivers_what_our_broker_left(rocketmq: Apache, tmp_path: Path) -> None:
    with LocalCluster(store=tmp_path, config=OURS) as cluster:
        deliver_ms = _leave_waiting(cluster.namesrv)
        store = cluster.broker().store.config.path
        name = cluster.broker().config.broker_name
    with rocketmq.cluster(store=store, name=name, **APACHES) as (namesrv, _):
        # Until its op message is written, three seconds later, Apache's broker may check and commit a half again.
        got = _received(namesrv, len(WAITING), may_repeat=frozenset({b"half"}))
    assert set(got) == WAITING
    for body, message in got.items():
        if body.startswith(b"timer"):
            assert message.store_time_ms >= deliver_ms
    assert b"recalled" not in got


def test_our_broker_delivers_what_apache_left(rocketmq: Apache, tmp_path: Path) -> None:
    """Apache's directory is the first broker's of a cluster of ours."""
    settings = {key: str(value) for key, value in APACHES.items()}
    with LocalCluster(store=tmp_path, config=settings) as cluster:
        store = cluster.broker().store.config.path
        name = cluster.broker().config.broker_name
    with rocketmq.cluster(store=store, name=name, **(APACHES | {"transactionCheckInterval": 600_000})) as (namesrv, _):
        deliver_ms = _leave_waiting(namesrv)
    with LocalCluster(store=tmp_path, config=settings) as cluster:
        got = _received(cluster.namesrv, len(WAITING))
    assert set(got) == WAITING
    for body, message in got.items():
        if body.startswith(b"timer"):
            assert message.store_time_ms >= deliver_ms


def test_apache_delivers_the_rest_of_a_tick_in_which_our_broker_was_stopped(rocketmq: Apache, tmp_path: Path) -> None:
    """Each once: half of them by this broker, at their own milliseconds, and the others by Apache's."""
    names = {b"tick %d" % number for number in range(40)}
    with LocalCluster(store=tmp_path, config=OURS) as cluster:
        broker = cluster.broker()
        with Producer("later", namesrv=cluster.namesrv, send_timeout_s=BUSY_S) as producer:
            tick_ms = (_now_ms() // 1000 + 5) * 1000
            for name in names:
                number = int(name.split()[1])
                producer.send(Message("Later", name, deliver_at=tick_ms + 100 + number * 20))
            recalled = producer.send(Message("Later", b"recalled", deliver_at=tick_ms + 950))
            assert recalled.recall_handle is not None
            producer.recall("Later", recalled.recall_handle)
            producer.send(Message("Later", b"long after", deliver_at=tick_ms + 3_600_000))
        end_s = time.monotonic() + WAIT_S
        while _stored(broker.store) < 5:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        store, name = broker.store.config.path, broker.config.broker_name
    with MessageStore(StoreConfig(store)) as stopped:
        assert 5 <= _stored(stopped) < 40
    with rocketmq.cluster(store=store, name=name, **APACHES) as (namesrv, _):
        got = _received(namesrv, len(names))
    assert set(got) == names
    assert all(message.store_time_ms >= tick_ms + 100 for message in got.values())
    with MessageStore(StoreConfig(store)) as after:
        assert _stored(after) == len(names)


def _stored(store: MessageStore) -> int:
    return sum(store.max_offset("Later", queue_id) for queue_id in range(16))
