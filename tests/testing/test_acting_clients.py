"""Clients of a group that has lost its master, while its slave stands in: transactions, orderly consumers, offsets."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.client.errors import SendFailedError
from contrailmq.client.producing.selectors import by_hash
from contrailmq.testing import LocalCluster
from waiting_for import LIMIT_S, until

pytestmark = pytest.mark.servers

ACTING = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "brokerHeartbeatInterval": "100",
    "syncBrokerMemberGroupPeriod": "100",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "300",
}


def test_a_half_message_of_the_dead_master_is_asked_about_by_another_and_committed_once() -> None:
    """Half messages on both masters; while one is dead the producer begins to answer."""
    asked: Counter[bytes] = Counter()
    has_decided = False
    got: Counter[bytes] = Counter()

    def check(message: StoredMessage) -> TransactionState:
        asked[message.body] += 1
        return TransactionState.COMMIT if has_decided else TransactionState.UNKNOWN

    def take(messages: list[StoredMessage]) -> None:
        got.update(message.body for message in messages)

    with LocalCluster(brokers=2, slaves=1, config=ACTING) as cluster:
        with Producer("p", namesrv=cluster.namesrv) as producer:  # the topic is on both
            for _ in range(32):
                producer.send(Message("T", b"plain"))
        transactions = TransactionProducer(
            "tp", namesrv=cluster.namesrv, execute=lambda message, arg: TransactionState.UNKNOWN, check=check
        )
        consumer = PushConsumer("g", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("T")
        consumer.listen(take)
        with transactions, consumer:
            wanted = {b"%d" % number for number in range(16)}
            brokers = {
                transactions.send_in_transaction(Message("T", body), None).queue.broker_name for body in sorted(wanted)
            }
            assert brokers == {"broker-0", "broker-1"}
            cluster.wait_until_replicated()
            cluster.kill_broker(0)
            has_decided = True
            until(lambda: wanted <= set(got))
            slave = cluster.broker(cluster.slave_index(0))
            until(lambda: not slave.transactions.pending())
            assert {body: got[body] for body in wanted} == dict.fromkeys(wanted, 1)
            assert wanted <= set(asked)
            cluster.restart_broker(0)
            until(lambda: not cluster.broker(0).transactions.pending())
            assert {body: got[body] for body in wanted} == dict.fromkeys(wanted, 1)


def test_a_master_that_hangs_is_stood_in_for_before_its_connection_is_given_up() -> None:
    """Its connections stay, and nothing comes on them. The slave waited for haHousekeepingInterval to end its own."""
    of_links = {
        "brokerNotActiveTimeoutMillis": "1000",
        "haSendHeartbeatInterval": "200",
        "haHousekeepingInterval": str(int(10 * LIMIT_S * 1000)),
    }
    with LocalCluster(slaves=1, processes=True, config=ACTING | of_links) as cluster:
        with Producer("p", namesrv=cluster.namesrv) as producer:
            producer.send(Message("T", b"before"))
        cluster.wait_until_replicated()
        address = cluster.broker_addresses[cluster.slave_index()]

        def said() -> dict[str, str]:
            with Admin(namesrv=cluster.namesrv) as admin:
                return dict(admin.broker_stats(address))

        assert said()["isActingMaster"] == "false"
        os.kill(cluster.broker_process_id(0), signal.SIGSTOP)
        try:
            until(lambda: said()["isActingMaster"] == "true")
            assert said()["haIsFollowing"] == "true"
        finally:
            os.kill(cluster.broker_process_id(0), signal.SIGCONT)
        until(lambda: said()["isActingMaster"] == "false")


def test_a_send_to_a_chosen_queue_waits_for_the_master_while_its_slave_stands_in() -> None:
    """The slave refused it, which ended the send at once; so did the master while it learnt from its slave."""
    with LocalCluster(slaves=1, config=ACTING) as cluster:
        with Producer("p", namesrv=cluster.namesrv) as producer:
            queue = producer.send(Message("T", b"before")).queue
        cluster.wait_until_replicated()
        slave = cluster.slave_index()
        until(lambda: "T" in cluster.broker(slave).node.topics)
        cluster.kill_broker(0)
        with Admin(namesrv=cluster.namesrv) as admin:
            until(lambda: admin.route("T").brokers[0].addresses == {0: cluster.broker_addresses[slave]})
        with Producer("p", namesrv=cluster.namesrv, send_timeout_s=LIMIT_S) as producer:
            began_s = time.monotonic()
            with pytest.raises(SendFailedError, match="broker-0 is a slave .*start the master of broker-0"):
                producer.send(Message("T", b"too early"), queue=queue, timeout=1.0)
            assert time.monotonic() - began_s >= 0.99
            sending = [
                producer.send_async(Message("T", b"one"), queue=queue),
                producer.send_async(Message("T", b"selected"), selector=by_hash, arg="k"),
                producer.send_async(Message("T", b"any")),
            ]
            with ThreadPoolExecutor() as threads:
                batch = [Message("T", b"first of two"), Message("T", b"second of two")]
                sending.append(threads.submit(producer.send_batch, batch, queue=queue))
                sending.append(threads.submit(producer.send, Message("T", b"blocking"), queue=queue))
                cluster.restart_broker(0)
            assert {send.result(LIMIT_S).status for send in sending} == {SendStatus.OK}
        with Admin(namesrv=cluster.namesrv) as admin:
            there = admin.messages_by_time("T", begin_ms=0, end_ms=2**62)
        sent = ("before", "one", "selected", "any", "first of two", "second of two", "blocking")
        assert Counter(message.body.decode() for message in there) == Counter(sent)


def test_an_orderly_group_reads_and_commits_at_the_slave_and_goes_on_at_the_master() -> None:
    """It locks its queues at the slave. Its successor, at the returned master, gets what came later alone."""
    got: list[bytes] = []

    def reading(cluster: LocalCluster) -> PushConsumer:
        consumer = PushConsumer("g", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, orderly=True)
        consumer.subscribe("T")
        consumer.listen(lambda messages: got.extend(message.body for message in messages))
        return consumer

    with LocalCluster(slaves=1, config=ACTING) as cluster:
        with Producer("p", namesrv=cluster.namesrv) as producer:
            first = producer.send(Message("T", b"0")).queue
            queue = MessageQueue("T", first.broker_name, first.queue_id)
            for number in range(1, 20):
                producer.send(Message("T", b"%d" % number), queue=queue)
        cluster.wait_until_replicated()
        slave = cluster.broker(cluster.slave_index())
        until(lambda: "T" in slave.node.topics)
        cluster.kill_broker(0)
        with reading(cluster):
            until(lambda: len(got) == 20)
        assert got == [b"%d" % number for number in range(20)]
        assert slave.node.offsets.stored("T@g", queue.queue_id) == 20
        cluster.restart_broker(0)
        assert cluster.broker(0).node.offsets.stored("T@g", queue.queue_id) == 20, "before it serves"
        with reading(cluster), Producer("p", namesrv=cluster.namesrv) as producer:
            producer.send(Message("T", b"new"), queue=queue)
            until(lambda: len(got) > 20)
        assert got[20:] == [b"new"]
