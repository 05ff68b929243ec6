"""Retries, dead letters, delays and transactions, with short delay levels."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    SendStatus,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.client.results import ConsumeOutcome
from contrailmq.testing import LocalCluster
from waiting_for import until

from .names import fresh_name
from .waiting import Inbox

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture(scope="module")
def quick() -> Iterator[LocalCluster]:
    """Every delay level is one second; transactions are asked back after one second."""
    config = {
        "messageDelayLevel": " ".join(["1s"] * 18),
        "recallMessageEnable": True,
        "transactionTimeOut": 1000,
        "transactionCheckInterval": 500,
    }
    with LocalCluster(config=config) as made:
        yield made


@pytest.fixture
def name() -> str:
    return fresh_name("Retry")


def consumer_of(cluster: LocalCluster, name: str, listener: object, **options: object) -> PushConsumer:
    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, **options)  # type: ignore[arg-type]
    consumer.subscribe(name)
    consumer.listen(listener)  # type: ignore[arg-type]
    consumer.start()
    return consumer


def test_a_failed_message_comes_again_with_its_topic_id_and_number_of_failures(quick: LocalCluster, name: str) -> None:
    seen = Inbox()

    def fail_twice(messages: list[StoredMessage]) -> None:
        seen(messages)
        if messages[0].reconsume_times < 2:
            raise ValueError("not yet")

    with Producer(name, namesrv=quick.namesrv) as producer:
        result = producer.send(Message(name, b"x", tags="t"))
    consumer = consumer_of(quick, name, fail_twice)
    got = seen.wait_for(3)
    consumer.shutdown()
    assert [message.reconsume_times for message in got] == [0, 1, 2]
    assert {(message.topic, message.message_id, message.tags) for message in got} == {(name, result.message_id, "t")}


def test_after_the_last_retry_a_message_is_a_dead_letter_and_can_be_sent_again(quick: LocalCluster, name: str) -> None:
    attempts: list[int] = []
    is_mended = False

    def fail(messages: list[StoredMessage]) -> ConsumeResult:
        attempts.append(messages[0].reconsume_times)
        return ConsumeResult.SUCCESS if is_mended else ConsumeResult.RETRY

    with Producer(name, namesrv=quick.namesrv) as producer:
        producer.send(Message(name, b"poison", keys=["p"]))
    consumer = consumer_of(quick, name, fail, max_reconsume_times=1)
    with Admin(namesrv=quick.namesrv) as admin:
        until(lambda: f"%DLQ%{name}" in admin.topics() and admin.dead_letters(name))
        (letter,) = admin.dead_letters(name)
        assert (letter.body, letter.keys) == (b"poison", ["p"])
        assert attempts == [0, 1]
        is_mended = True
        admin.resend_dead_letter(name, letter)
        until(lambda: len(attempts) == 3)
    consumer.shutdown()


def test_a_listener_can_send_straight_to_the_dead_letters(quick: LocalCluster, name: str) -> None:
    def refuse(messages: list[StoredMessage]) -> ConsumeOutcome:
        return ConsumeResult.RETRY.with_details(delay_level=-1)

    with Producer(name, namesrv=quick.namesrv) as producer:
        producer.send(Message(name, b"never"))
    consumer = consumer_of(quick, name, refuse)
    with Admin(namesrv=quick.namesrv) as admin:
        until(lambda: [letter.body for letter in admin.dead_letters(name)] == [b"never"])
    consumer.shutdown()


def test_only_the_messages_after_the_acknowledged_ones_are_retried(quick: LocalCluster, name: str) -> None:
    counts: Counter[bytes] = Counter()

    def first_only(messages: list[StoredMessage]) -> ConsumeOutcome | None:
        counts.update(message.body for message in messages)
        if messages[0].reconsume_times == 0:
            return ConsumeResult.SUCCESS.with_details(acknowledged=1)
        return None

    with Producer(name, namesrv=quick.namesrv) as producer:
        producer.send_batch([Message(name, b"a"), Message(name, b"b"), Message(name, b"c")])
    consumer = consumer_of(quick, name, first_only, consume_batch_size=8)
    until(lambda: counts == {b"a": 1, b"b": 2, b"c": 2}, seen=lambda: counts)
    consumer.shutdown()


def test_a_listener_that_hangs_does_not_keep_its_message_for_ever(quick: LocalCluster, name: str) -> None:
    """After the consume timeout the message is handed back and another call gets it."""
    release, seen = threading.Event(), Inbox()

    def hang_once(messages: list[StoredMessage]) -> None:
        seen(messages)
        if messages[0].reconsume_times == 0:
            release.wait(120)

    with Producer(name, namesrv=quick.namesrv) as producer:
        producer.send(Message(name, b"x"))
    consumer = consumer_of(quick, name, hang_once, consume_timeout_s=0.3)
    got = seen.wait_for(2)
    release.set()
    consumer.shutdown()
    assert [message.reconsume_times for message in got[:2]] == [0, 1]


def test_an_orderly_message_that_never_succeeds_becomes_a_dead_letter_and_the_queue_goes_on(
    quick: LocalCluster, name: str
) -> None:
    inbox = Inbox()

    def poisoned(messages: list[StoredMessage]) -> None:
        if messages[0].body == b"poison":
            raise ValueError("always")
        inbox(messages)

    with Producer(name, namesrv=quick.namesrv) as producer:
        queue = producer.queues(name)[0]
        for body in (b"before", b"poison", b"after"):
            producer.send(Message(name, body), queue=queue)
    consumer = consumer_of(quick, name, poisoned, orderly=True, max_reconsume_times=2, suspend_s=0.01)
    inbox.wait_for(2)
    assert inbox.bodies == [b"before", b"after"]
    with Admin(namesrv=quick.namesrv) as admin:
        until(lambda: [letter.body for letter in admin.dead_letters(name)] == [b"poison"])
    consumer.shutdown()


def test_an_orderly_listener_can_commit_and_roll_back_itself(quick: LocalCluster, name: str) -> None:
    calls: list[bytes] = []

    def in_pairs(messages: list[StoredMessage]) -> ConsumeResult:
        calls.append(messages[0].body)
        if calls == [b"0", b"1"]:
            return ConsumeResult.ROLLBACK
        return ConsumeResult.COMMIT if messages[0].body == b"1" else ConsumeResult.SUCCESS

    with Producer(name, namesrv=quick.namesrv) as producer:
        queue = producer.queues(name)[0]
        for body in (b"0", b"1"):
            producer.send(Message(name, body), queue=queue)
    consumer = consumer_of(quick, name, in_pairs, orderly=True, auto_commit=False, suspend_s=0.01)
    until(lambda: len(calls) == 4)
    consumer.shutdown()
    assert calls == [b"0", b"1", b"0", b"1"]
    with Admin(namesrv=quick.namesrv) as admin:
        assert admin.offset(name, queue) == 2


def test_delayed_messages_come_when_they_are_due_and_recalled_ones_never(quick: LocalCluster, name: str) -> None:
    arrived: dict[bytes, float] = {}

    def note(messages: list[StoredMessage]) -> None:
        for message in messages:
            arrived[message.body] = time.time()

    with Producer(name, namesrv=quick.namesrv) as producer:
        producer.send(Message(name, b"now"))
        consumer = consumer_of(quick, name, note)
        sent = time.time()
        producer.send(Message(name, b"level", delay_level=3))
        producer.send(Message(name, b"timer", deliver_at=round(sent * 1000) + 2000))
        producer.send(Message(name, b"after the recalled", deliver_at=round(sent * 1000) + 7000))
        recalled = producer.send(Message(name, b"recalled", deliver_at=round(sent * 1000) + 6000))
        assert recalled.recall_handle
        assert producer.recall(name, recalled.recall_handle) == recalled.message_id
    until(lambda: b"after the recalled" in arrived and len(arrived) >= 4, seen=lambda: arrived)
    consumer.shutdown()
    assert arrived[b"level"] - sent >= 0.9
    assert arrived[b"timer"] - sent >= 1.9
    assert arrived.keys() == {b"now", b"level", b"timer", b"after the recalled"}


def test_committed_transactions_are_delivered_and_others_are_not(quick: LocalCluster, name: str) -> None:
    inbox = Inbox()
    states = {b"commit": TransactionState.COMMIT, b"rollback": TransactionState.ROLLBACK}
    with TransactionProducer(
        name,
        namesrv=quick.namesrv,
        execute=lambda message, arg: states[message.body],
        check=lambda message: TransactionState.ROLLBACK,
    ) as producer:
        for body, state in states.items():
            result = producer.send_in_transaction(Message(name, body))
            assert (result.status, result.state) == (SendStatus.OK, state)
        consumer = consumer_of(quick, name, inbox)
        inbox.wait_for(1)
        consumer.shutdown()
    assert inbox.bodies == [b"commit"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_the_broker_asks_back_what_was_left_open(quick: LocalCluster, name: str, kind: str) -> None:
    inbox, asked = Inbox(), Inbox()

    def execute(message: Message, arg: object) -> TransactionState | None:
        if arg == "raise":
            raise RuntimeError("the database is away")
        return None

    def check(message: StoredMessage) -> TransactionState:
        asked([message])
        return TransactionState.COMMIT

    async def check_later(message: StoredMessage) -> TransactionState:
        return check(message)

    with TransactionProducer(
        name, namesrv=quick.namesrv, execute=execute, check=check if kind == "def" else check_later
    ) as producer:
        result = producer.send_in_transaction(Message(name, b"unknown"), None)
        assert result.state is TransactionState.UNKNOWN
        assert producer.send_in_transaction(Message(name, b"raised"), "raise").state is TransactionState.UNKNOWN
        consumer = consumer_of(quick, name, inbox)
        inbox.wait_for(2)
        consumer.shutdown()
    assert sorted(inbox.bodies) == [b"raised", b"unknown"]
    assert result.message_id in {message.message_id for message in asked.messages}
    assert {message.topic for message in asked.messages} == {name}
