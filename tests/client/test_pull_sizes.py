"""Clients that ask for more than 32 messages: what a broker of ours gives, and one that gives RocketMQ's 32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrailmq import ConsumeFromWhere, LitePullConsumer, Message, MessageQueue, Producer, PushConsumer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.message import StoredMessage
from contrailmq.testing import LocalCluster

from .waiting import Inbox

COUNT = 300
BODIES = [b"%d" % number for number in range(COUNT)]


@pytest.fixture(scope="module", params=["4096", "32"])
def most(request: pytest.FixtureRequest) -> Iterator[tuple[LocalCluster, int]]:
    """A cluster with messages in one queue, and how many of them a pull brings.

    With pullCountMax=32 the broker gives as much as one that does not know our field.
    """
    with LocalCluster(config={"pullCountMax": request.param}) as cluster:
        with Producer("p", namesrv=cluster.namesrv) as producer:
            first = producer.send(Message("T", BODIES[0]))
            producer.send_batch([Message("T", body) for body in BODIES[1:]], queue=first.queue)
        yield cluster, min(COUNT, int(request.param))


def queue_of(reader: QueueReader) -> MessageQueue:
    return max(reader.queues("T"), key=reader.max_offset)


def test_the_plain_reader_gets_as_much_as_it_asks_for(most: tuple[LocalCluster, int]) -> None:
    cluster, count = most
    with QueueReader(namesrv=cluster.namesrv) as reader:
        queue = queue_of(reader)
        assert reader.pull(queue, 0, max_count=1000).next_offset == count
        assert reader.pull(queue, 0, max_count=20).next_offset == 20


def test_a_polling_consumer_gets_every_message_in_its_order(most: tuple[LocalCluster, int]) -> None:
    cluster, _ = most
    first = ConsumeFromWhere.FIRST_OFFSET
    with LitePullConsumer("lite", namesrv=cluster.namesrv, from_where=first, pull_batch_size=1000) as consumer:
        consumer.subscribe("T")
        got: list[StoredMessage] = []
        while len(got) < COUNT:
            polled = consumer.poll(timeout=120.0)
            assert polled
            got += polled
    assert [message.body for message in got] == BODIES


def test_a_push_consumer_gets_every_message(most: tuple[LocalCluster, int]) -> None:
    cluster, _ = most
    inbox = Inbox()
    consumer = PushConsumer(
        "push", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, pull_batch_size=1000, orderly=True
    )
    consumer.subscribe("T")
    consumer.listen(inbox)
    with consumer:
        got = inbox.wait_for(COUNT)
    assert [message.body for message in got] == BODIES
