"""What administration does to clients that run, and what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
    aio,
)
from contrailmq.client import OffsetPlace
from contrailmq.client.errors import BrokerNotFoundError
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster
from waiting_for import until

from .names import fresh_name
from .waiting import Inbox

FIRST = ConsumeFromWhere.FIRST_OFFSET
BODIES = [b"0", b"1", b"2"]


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(namesrv=cluster.namesrv) as made:
        yield made


@pytest.fixture
def name(cluster: LocalCluster, admin: Admin) -> str:
    """A topic of one queue with three messages."""
    made = fresh_name("Admin")
    admin.create_topic(made, queues=1)
    with Producer(made, namesrv=cluster.namesrv) as producer:
        for body in BODIES:
            producer.send(Message(made, body))
    return made


def test_a_push_consumer_that_runs_goes_on_where_its_offsets_were_reset_to(
    cluster: LocalCluster, admin: Admin, name: str
) -> None:
    inbox = Inbox()
    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST)
    consumer.subscribe(name)
    consumer.listen(inbox)
    with consumer:
        inbox.wait_for(3)
        assert set(admin.reset_offsets(name, name, OffsetPlace.EARLIEST).values()) == {0}
        wake(cluster, name)
        inbox.wait_for(7)
    assert sorted(inbox.bodies) == sorted([*BODIES * 2, b"3"])
    assert [row.consumer_offset for row in admin.progress(name, name)] == [4]


def wake(cluster: LocalCluster, name: str) -> None:
    """Brokers tell of a reset in answer to the next pull, and hold the present one until something arrives."""
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"3"))


def test_a_pull_consumer_that_runs_goes_on_where_its_offsets_were_reset_to(
    cluster: LocalCluster, admin: Admin, name: str
) -> None:
    bodies: list[bytes] = []
    with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
        consumer.subscribe(name)

        def polled(count: int) -> bool:
            bodies.extend(message.body for message in consumer.poll(0.1))
            return len(bodies) >= count

        until(lambda: polled(3))
        consumer.commit()
        admin.reset_offsets(name, name, OffsetPlace.EARLIEST)
        wake(cluster, name)
        until(lambda: polled(7), seen=lambda: bodies)
    assert bodies == [*BODIES * 2, b"3"]


def test_a_group_can_take_over_the_offsets_of_another(cluster: LocalCluster, admin: Admin, name: str) -> None:
    source, target = f"{name}_source", f"{name}_target"
    queue = admin.queues(name)[0]
    for group in (source, target):
        inbox = Inbox()
        consumer = PushConsumer(group, namesrv=cluster.namesrv, from_where=FIRST)
        consumer.subscribe(name)
        consumer.listen(inbox)
        with consumer:
            inbox.wait_for(3)
    admin.set_offset(source, queue, 1)
    admin.clone_offsets(source, target, name)
    assert admin.offset(target, queue) == 1


def test_what_a_consumer_does_can_be_looked_at_and_its_listener_run_once_more(
    cluster: LocalCluster, admin: Admin, name: str
) -> None:
    seen: list[bytes] = []

    def listen(messages: list[StoredMessage]) -> ConsumeResult | None:
        seen.extend(message.body for message in messages)
        if len(seen) > len(BODIES) + 1:
            raise ValueError("broken")
        return None

    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST)
    consumer.subscribe(name)
    consumer.listen(listen)
    with consumer:
        until(lambda: len(seen) == 3)
        members = admin.consumers(name)
        assert members is not None
        assert [member.client_id for member in members.connection_set] == [consumer.client_id]
        info = admin.running_info(name, consumer.client_id)
        assert name in {item.topic for item in info.subscription_set}
        picked = admin.messages_by_time(name, begin_ms=0, end_ms=2**62)[1]
        first = admin.consume_directly(name, consumer.client_id, picked)
        second = admin.consume_directly(name, consumer.client_id, picked)
    assert seen[3:] == [picked.body] * 2
    assert (first.consume_result, second.consume_result) == ("CR_SUCCESS", "CR_THROW_EXCEPTION")
    assert "broken" in (second.remark or "")
    assert [row.consumer_offset for row in admin.progress(name, name)] == [3]
    with pytest.raises(ContrailError):
        admin.consume_directly(name, "nobody@here", picked)


def test_messages_are_found_by_id_key_place_and_time(cluster: LocalCluster, admin: Admin, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        sent = producer.send(Message(name, b"wanted", keys=["key-7"]))
    until(lambda: admin.messages_by_key(name, "key-7"))
    found = [
        *admin.messages_by_key(name, "key-7"),
        *admin.messages_by_unique_key(name, sent.message_id),
        admin.message(name, sent.message_id),
        admin.message_at(sent.offset_message_id),
    ]
    assert [message.body for message in found if message is not None] == [b"wanted"] * 4
    end_ms = found[0].store_time_ms  # of the newest, by its broker's clock
    assert [message.body for message in admin.messages_by_time(name, begin_ms=0, end_ms=end_ms)] == [*BODIES, b"wanted"]
    assert admin.messages_by_time(name, begin_ms=end_ms + 1, end_ms=end_ms + 2) == []


def test_a_brokers_settings_are_read_and_changed(own_cluster: LocalCluster) -> None:
    address = own_cluster.broker_addresses[0]
    with Admin(namesrv=own_cluster.namesrv) as admin:
        assert admin.broker_config(address)["traceOn"] == "true"
        admin.update_broker_config(address, {"traceOn": "false"})
        assert admin.broker_config(address)["traceOn"] == "false"
        with pytest.raises(ContrailError, match="allowRemoteConfig=fileReservedTime"):
            admin.update_broker_config(address, {"fileReservedTime": "1"})
        with pytest.raises(ContrailError, match="maxMessageSize.*cannot be changed"):
            admin.update_broker_config(address, {"maxMessageSize": "1000"})


def test_a_pull_consumer_seeks_to_a_time_and_hears_of_new_queues(
    cluster: LocalCluster, admin: Admin, name: str
) -> None:
    told: list[int] = []
    bodies: list[bytes] = []
    queue = admin.queues(name)[0]
    consumer = LitePullConsumer(
        name, namesrv=cluster.namesrv, from_where=FIRST, auto_commit=False, topic_metadata_interval_s=0.05
    )

    def hear(topic: str, queues: list[MessageQueue]) -> None:
        told.append(len(queues))
        raise ValueError("the application's error, which is logged")

    def read(count: int) -> bool:
        bodies.extend(message.body for message in consumer.poll(0.1))
        return len(bodies) >= count

    consumer.on_topic_queues_changed(name, hear)
    consumer.assign([queue])
    with consumer:
        until(lambda: read(3))
        assert consumer.offset_for_timestamp(queue, 1) == 0
        consumer.seek_to_end(queue)
        assert consumer.poll(0.1) == []
        consumer.seek_to_timestamp(queue, 1)
        until(lambda: read(6))
        admin.create_topic(name, queues=3)
        until(lambda: told == [3])
        admin.create_topic(name, queues=4)
        until(lambda: told == [3, 4])
    assert bodies == BODIES * 2


def test_a_broker_that_went_away_before_its_topic_was_changed_is_named(own_cluster: LocalCluster) -> None:
    """It answered what it has, and the route that was looked at next lacked it (seed 886 of ten minutes)."""

    async def change() -> None:
        async with aio.Admin(namesrv=own_cluster.namesrv) as admin:
            await admin.create_topic("Left", queues=1)
            answers = [await admin.masters(), {}]

            async def masters(**_: object) -> dict[str, str]:
                return answers.pop(0) if answers else {}

            admin.masters = masters  # type: ignore[method-assign]
            await admin.update_topic("Left", read_queues=2, write_queues=2)

    with pytest.raises(BrokerNotFoundError, match="broker-0"):
        asyncio.run(change())
    with Admin(namesrv=own_cluster.namesrv) as admin:
        assert admin.topic_holders("Left")["broker-0"].write_queue_nums == 1
