"""A master and its slave as processes, after mixed messages and restarts of both: equal logs, queues and answers."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from broker.harness import send_fields
from contrailmq import Admin, Message, Producer, SendStatus, TransactionProducer, TransactionState
from contrailmq.message import encode_properties
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.requests import QueryMessage
from contrailmq.wire.transport import RemotingClient
from replica_trial import queue_files, whole_log
from waiting_for import until

pytestmark = [pytest.mark.servers, pytest.mark.kills]

BATCH = 40
SETTINGS = {
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 3000),
    "messageDelayLevel": "1s 2s",
    "slaveReadEnable": "true",
}


class Mixture:
    """Sends messages of every kind; each has a key of its own and a body that names it."""

    def __init__(self, cluster: LocalCluster, rng: random.Random) -> None:
        self._cluster, self._namesrv, self._rng = cluster, cluster.namesrv, rng
        self.count = 0
        self.visible: Counter[str] = Counter()  # messages that each topic has in the end, at least
        self.bodies: dict[str, tuple[str, bytes]] = {}  # key -> topic, body

    def create_topics(self) -> None:
        with Admin(namesrv=self._namesrv) as admin:
            for topic in ("Single", "Bulk", "Later", "Deal"):
                admin.create_topic(topic, queues=4)
            admin.create_topic("Inner", queues=2, attributes={"queue.type": "BatchCQ"})
        with Producer("first", namesrv=self._namesrv) as producer:  # the slave has it before it is told of the topic
            message = self._message("Inner")
            assert producer.send(message).status is SendStatus.OK
            self._sent("Inner", [message])

    def send(self, count: int) -> None:
        """So many messages; a batch counts for what is in it."""
        until = self.count + count

        def execute(message: Message, arg: object) -> TransactionState:
            return TransactionState.COMMIT if arg else TransactionState.ROLLBACK

        with (
            Producer("mixture", namesrv=self._namesrv) as producer,
            TransactionProducer(
                "deals", namesrv=self._namesrv, execute=execute, check=lambda _: TransactionState.ROLLBACK
            ) as deals,
        ):
            while self.count < until:
                kind = self._rng.choices(["single", "batch", "inner", "level", "timer", "deal"], [30, 8, 5, 4, 2, 3])[0]
                self._send_one(kind, producer, deals)

    def _send_one(self, kind: str, producer: Producer, deals: TransactionProducer) -> None:
        rng = self._rng
        if kind == "batch":
            batch = [self._message("Bulk") for _ in range(rng.randrange(2, 2 * BATCH))]
            assert producer.send_batch(batch).status is SendStatus.OK
            self._sent("Bulk", batch)
        elif kind == "inner":
            batch = [self._message("Inner") for _ in range(rng.randrange(2, 2 * BATCH))]
            self._send_inner(batch)
            self._sent("Inner", batch, found_by=batch[:1])
        elif kind == "deal":
            is_committed = rng.random() < 0.6
            message = self._message("Deal")
            deals.send_in_transaction(message, is_committed)
            self._sent("Deal", [message], is_visible=is_committed)
        else:
            wish = {"single": {}, "level": {"delay_level": rng.randrange(1, 3)}, "timer": {"delay": 1.0}}[kind]
            topic = rng.choice(["Single", "Single", "Inner"]) if kind == "single" else "Later"
            message = self._message(topic, **wish)
            assert producer.send(message).status is SendStatus.OK
            self._sent(topic, [message])

    def _send_inner(self, batch: list[Message]) -> None:
        """Kept as one record: the batch has an id of its own. It is found by that."""
        batch_id = batch[0].keys[0]
        parts = [BatchPart(0, message.body, encode_properties({"KEYS": message.keys[0]})) for message in batch]
        fields = send_fields("Inner", properties={"UNIQ_KEY": batch_id}, e=self._rng.randrange(2), m="true")

        async def send() -> None:
            client = RemotingClient()
            address = self._cluster.broker_addresses[0]
            answer = await client.invoke(address, RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(parts), 30.0)
            assert (answer.code, answer.ext["batchUniqId"]) == (0, batch_id), answer.remark
            await client.close()

        asyncio.run(send())

    def _message(self, topic: str, **wish: object) -> Message:
        rng = self._rng
        key = f"key-{rng.randrange(2**64)}"
        return Message(
            topic,
            rng.randbytes(rng.choice([1, 10, 100, 400])),
            tags=rng.choice(["", "paid", "shipped"]),
            keys=[key, f"shared-{rng.randrange(50)}"],
            properties={"region": rng.choice(["eu", "us", "\u00e4\u00f6"])},
            **wish,
        )

    def _sent(
        self, topic: str, messages: list[Message], *, is_visible: bool = True, found_by: list[Message] | None = None
    ) -> None:
        self.count += len(messages)
        if is_visible:
            self.visible[topic] += len(messages)
            self.bodies |= {message.keys[0]: (topic, message.body) for message in found_by or messages}


def restart(cluster: LocalCluster, rng: random.Random) -> None:
    """One or both, by a stop or a kill, and either is back first."""
    members = rng.sample([0, cluster.slave_index()], rng.randrange(1, 3))
    for index in members:
        rng.choice([cluster.stop_broker, cluster.kill_broker])(index)
    for index in rng.sample(members, len(members)):
        cluster.restart_broker(index)


def wait_until_delivered(cluster: LocalCluster, mixture: Mixture) -> None:
    """Delays and transactions write to the log by themselves, until every message is in its topic."""
    with Admin(namesrv=cluster.namesrv) as admin:
        for topic, count in mixture.visible.items():
            ends = lambda topic=topic: [admin.max_offset(queue) for queue in admin.queues(topic)]  # noqa: E731
            until(lambda ends=ends, count=count: sum(ends()) >= count, f"{count} messages in {topic}", seen=ends)


async def check_answers(cluster: LocalCluster, mixture: Mixture, rng: random.Random) -> None:
    """Both brokers answer a query alike, and with the message that was sent."""
    client = RemotingClient()
    try:
        for key in rng.sample(sorted(mixture.bodies), min(300, len(mixture.bodies))):
            topic, body = mixture.bodies[key]
            ext = QueryMessage(topic=topic, key=key, max_num=32, begin_timestamp=0, end_timestamp=2**62)
            ours, theirs = [
                await client.invoke(cluster.broker_addresses[index], RequestCode.QUERY_MESSAGE, ext)
                for index in (0, cluster.slave_index())
            ]
            assert ours.body == theirs.body
            assert body in bytes(ours.body), key
    finally:
        await client.close()


def check_stores(cluster: LocalCluster, mixture: Mixture, rng: random.Random) -> None:
    """Once both are stopped: their files, and what a store answers that opens them."""
    paths = [cluster.store_path / name for name in ("broker-0", "broker-0-slave-1")]
    ours, theirs = map(whole_log, paths)
    assert ours == theirs
    for folder in ("consumequeue", "batchconsumequeue"):
        our_topics, their_topics = ({topic.name for topic in (path / folder).iterdir()} for path in paths)
        assert our_topics == their_topics, folder
        our_queues, their_queues = (queue_files(path, folder) for path in paths)
        assert our_queues.keys() == their_queues.keys()
        assert our_queues == their_queues
        assert our_queues
    with (
        MessageStore(StoreConfig(paths[0])) as master,
        MessageStore(StoreConfig(paths[1], broker_role="SLAVE")) as slave,
    ):
        assert master.queues() == slave.queues()
        for shared in range(50):
            for topic in mixture.visible:
                answers = [
                    [(found.physical_offset, found.body) for found in store.query(topic, f"shared-{shared}", 64)]
                    for store in (master, slave)
                ]
                assert answers[0] == answers[1]
        for key in rng.sample(sorted(mixture.bodies), min(2000, len(mixture.bodies))):
            topic, body = mixture.bodies[key]
            answers = [[found.body for found in store.query(topic, key)] for store in (master, slave)]
            assert answers[0] == answers[1]
            assert any(body in found for found in answers[0])


@pytest.mark.parametrize(("count", "parts"), [(3000, 3), pytest.param(200_000, 12, marks=pytest.mark.long)])
def test_logs_queues_and_answers_are_equal_after_mixed_messages_and_restarts_of_both(
    tmp_path: Path, count: int, parts: int
) -> None:
    """Somebody is started again after each part."""
    seed = int(os.environ.get("CONTRAILMQ_SEED") or random.randrange(2**32))
    print(f"seed {seed}: CONTRAILMQ_SEED={seed} sends the same again")
    rng = random.Random(seed)
    with LocalCluster(slaves=1, processes=True, store=tmp_path, config=SETTINGS) as cluster:
        mixture = Mixture(cluster, rng)
        mixture.create_topics()
        for _ in range(parts):
            mixture.send(count // parts)
            restart(cluster, rng)
        mixture.send(BATCH)
        wait_until_delivered(cluster, mixture)
        cluster.wait_until_replicated()
        asyncio.run(check_answers(cluster, mixture, rng))
        cluster.stop_broker(0)
        cluster.stop_broker(cluster.slave_index())
        check_stores(cluster, mixture, rng)
        print(f"{mixture.count} messages of {dict(mixture.visible)}, {len(whole_log(tmp_path / 'broker-0'))} bytes")
