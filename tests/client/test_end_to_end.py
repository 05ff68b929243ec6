"""The blocking clients against a broker of ours, as a user writes them."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time

import pytest

import contrailmq.aio as aio
from contrailmq import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
    SqlFilter,
    StoredMessage,
)
from contrailmq.client import by_hash, split_batch
from contrailmq.client.errors import ClientStateError, NoRouteError, OffsetOutOfRangeError
from contrailmq.message import ContrailError, MessageError
from contrailmq.testing import LocalCluster
from contrailmq.wire.errors import ResponseError
from waiting_for import until

from .names import fresh_name
from .waiting import Inbox

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture
def name() -> str:
    """A topic and group of this test's own."""
    return fresh_name("Test")


def test_what_is_sent_is_received_with_everything_it_had(cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        result = producer.send(Message(name, b"paid", tags="paid", keys=["o-17"], properties={"region": "eu"}, flag=3))
        assert result.status is SendStatus.OK
        assert result.queue.topic == name
        consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST)
        consumer.subscribe(name, "paid || shipped")
        consumer.listen(inbox)
        consumer.start()
        (message,) = inbox.wait_for(1)
        consumer.shutdown()
    assert isinstance(message, StoredMessage)
    assert (message.topic, message.body, message.tags, message.keys, message.flag) == (
        name,
        b"paid",
        "paid",
        ["o-17"],
        3,
    )
    assert message.properties["region"] == "eu"
    assert message.message_id == result.message_id
    assert message.offset_message_id == result.offset_message_id
    assert (message.queue_id, message.queue_offset) == (result.queue.queue_id, result.queue_offset)


def test_a_queue_of_a_topic_that_is_not_there_yet_can_be_sent_to(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv, instance_name=name) as producer:
        known = producer.send(Message(f"{name}_known", b"x")).queue
        queue = MessageQueue(name, known.broker_name, 2)
        assert producer.send(Message(name, b"first"), queue=queue).queue == queue
        with pytest.raises(ContrailError, match="nobody"):
            producer.send(Message(name, b"x"), queue=queue._replace(broker_name="nobody"))


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("orderly", [False, True])
def test_both_kinds_of_function_listen_and_each_message_comes_once(
    cluster: LocalCluster, name: str, kind: str, orderly: bool
) -> None:
    inbox = Inbox()

    async def coroutine(messages: list[StoredMessage]) -> None:
        inbox(messages)

    with Producer(name, namesrv=cluster.namesrv) as producer:
        for start in range(0, 300, 50):
            producer.send_batch([Message(name, b"%d" % n) for n in range(start, start + 50)])
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, orderly=orderly) as consumer:
        consumer.subscribe(name)
        consumer.listen(inbox if kind == "def" else coroutine)
        got = inbox.wait_for(300)
    assert sorted(int(message.body) for message in got) == list(range(300))


def test_tags_choose_exactly(cluster: LocalCluster, name: str) -> None:
    """`Aa` and `BB` have one hash: only the client can tell them apart."""
    inbox = Inbox()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        queue = producer.send(Message(name, b"first", tags="other")).queue
        for tags in ("Aa", "BB", "last"):
            producer.send(Message(name, tags.encode(), tags=tags), queue=queue)
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, consume_threads=1) as consumer:
        consumer.subscribe(name, "Aa || last")
        consumer.listen(inbox)
        inbox.wait_for(2)
    assert inbox.bodies == [b"Aa", b"last"]  # of one queue by one thread: nothing else came before the last


def test_a_group_moves_on_past_messages_that_it_does_not_want(cluster: LocalCluster, name: str) -> None:
    """Otherwise its lag would grow for ever, and a restart would filter everything once more."""
    with Producer(name, namesrv=cluster.namesrv) as producer:
        queue = producer.send(Message(name, b"0", tags="other")).queue
        for number in range(1, 5):
            producer.send(Message(name, b"%d" % number, tags="other"), queue=queue)
    inbox = Inbox()
    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, persist_offsets_interval_s=1.0)
    consumer.subscribe(name, "wanted")
    consumer.listen(inbox)
    with consumer, Admin(namesrv=cluster.namesrv) as admin:
        until(lambda: admin.offset(name, queue) == 5, seen=lambda: admin.offset(name, queue))
    assert inbox.bodies == []


def test_sql_filters_choose_by_properties(cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        for amount in (5, 15, 25):
            producer.send(Message(name, b"%d" % amount, properties={"amount": str(amount), "region": "eu"}))
    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST)
    consumer.subscribe(name, SqlFilter("region = 'eu' AND amount > 10"))
    consumer.listen(inbox)
    consumer.start()
    inbox.wait_for(2)
    consumer.shutdown()
    assert sorted(inbox.bodies) == [b"15", b"25"]


def test_a_broken_sql_filter_stops_the_start(cluster: LocalCluster, name: str) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(name)
    consumer = PushConsumer(name, namesrv=cluster.namesrv)
    consumer.subscribe(name, SqlFilter("amount >"))
    consumer.listen(Inbox())
    with pytest.raises(ResponseError, match="CHECK_CLIENT_CONFIG"):
        consumer.start()


def test_compressed_bodies_arrive_as_they_were(cluster: LocalCluster, name: str) -> None:
    from contrailmq.message import Compression

    inbox = Inbox()
    body = b"abc" * 5000
    for kind in Compression:
        with Producer(f"{name}_{kind.name}", namesrv=cluster.namesrv, compression=kind) as producer:
            producer.send(Message(name, body))
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
        consumer.subscribe(name)
        consumer.listen(inbox)
        got = inbox.wait_for(len(Compression))
    assert [message.body for message in got] == [body] * len(Compression)
    assert all(len(message.stored_body) < 500 for message in got)


def test_all_ways_of_sending(cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"plain"))
        queue = producer.queues(name)[1]
        assert producer.send(Message(name, b"to a queue"), queue=queue).queue == queue
        producer.send_oneway(Message(name, b"oneway"))
        futures = [producer.send_async(Message(name, b"async%d" % n)) for n in range(20)]
        assert {future.result(120).status for future in futures} == {SendStatus.OK}
        batch = producer.send_batch([Message(name, b"batch%d" % n) for n in range(3)])
        assert len(batch.message_id.split(",")) == 3
        by_key = {producer.send(Message(name, b"k"), selector=by_hash, arg="order-7").queue for _ in range(5)}
        assert len(by_key) == 1
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, consume_batch_size=8) as consumer:
        consumer.subscribe(name)
        consumer.listen(inbox)
        inbox.wait_for(31)
    assert len(inbox.bodies) == 31
    assert b"oneway" in inbox.bodies


def test_a_long_list_is_cut_into_batches_that_fit(cluster: LocalCluster, name: str) -> None:
    messages = [Message(name, b"x" * 50_000) for _ in range(60)]
    with Producer(name, namesrv=cluster.namesrv) as producer:
        results = [producer.send_batch(batch) for batch in split_batch(messages)]
        assert len(results) == 3
        with pytest.raises(MessageError, match="split_batch"):
            producer.send_batch([Message(name, b"x" * 1_500_000) for _ in range(3)])


def test_order_is_kept_within_a_queue_also_when_the_listener_fails(cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    failed: set[bytes] = set()

    def stumble(messages: list[StoredMessage]) -> ConsumeResult | None:
        body = messages[0].body
        if body.endswith(b"7") and body not in failed:
            failed.add(body)
            if len(failed) % 2:
                raise ValueError("first time")
            return ConsumeResult.RETRY
        inbox(messages)
        return None

    with Producer(name, namesrv=cluster.namesrv) as producer:
        for n in range(100):
            producer.send(Message(name, b"%d:%d" % (n % 4, n)), selector=by_hash, arg=n % 4)
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, orderly=True, suspend_s=0.01) as consumer:
        consumer.subscribe(name)
        consumer.listen(stumble)
        got = inbox.wait_for(100)
    assert len(failed) == 10
    for queue_id in {message.queue_id for message in got}:
        offsets = [message.queue_offset for message in got if message.queue_id == queue_id]
        assert offsets == sorted(set(offsets))


def test_everybody_gets_everything_when_broadcasting(
    cluster: LocalCluster, name: str, tmp_path: os.PathLike[str]
) -> None:
    inboxes = [Inbox(), Inbox()]
    consumers = []
    for number, inbox in enumerate(inboxes):
        consumer = PushConsumer(
            name,
            namesrv=cluster.namesrv,
            from_where=FIRST,
            model=MessageModel.BROADCASTING,
            instance_name=f"member{number}",
            local_offset_dir=tmp_path,
        )
        consumer.subscribe(name)
        consumer.listen(inbox)
        consumer.start()
        consumers.append(consumer)
    with Producer(name, namesrv=cluster.namesrv) as producer:
        for n in range(20):
            producer.send(Message(name, b"%d" % n))
    for inbox in inboxes:
        assert len(inbox.wait_for(20)) == 20
    for consumer in consumers:
        consumer.shutdown()


def test_a_topic_that_is_created_later_is_found_within_seconds(cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
        consumer.subscribe(name)
        consumer.listen(inbox)
        with Producer(name, namesrv=cluster.namesrv) as producer:
            producer.send(Message(name, b"new"))
        assert len(inbox.wait_for(1)) == 1


def test_a_second_consumer_takes_over_where_the_first_stopped(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        for start in range(0, 1000, 100):
            producer.send_batch([Message(name, b"%d" % n) for n in range(start, start + 100)])
    first, second = Inbox(), Inbox()
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
        consumer.subscribe(name)
        consumer.listen(first)
        first.wait_for(200)
    with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
        consumer.subscribe(name)
        consumer.listen(second)
        until(lambda: len({*first.bodies, *second.bodies}) == 1000)
    assert len({*first.bodies, *second.bodies}) == 1000
    assert len(first.bodies) + len(second.bodies) == 1000, "a graceful shutdown repeats nothing"


def test_members_share_queues_and_inherit_them(cluster: LocalCluster, name: str) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(name, queues=8)
    consumers = []
    for _ in range(3):  # the broker tells them of each other: their timers do not ring in time
        consumer = PushConsumer(name, namesrv=cluster.namesrv, rebalance_interval_s=3600.0)
        consumer.subscribe(name)
        consumer.listen(Inbox())
        consumer.start()
        consumers.append(consumer)
    shares = lambda: sorted(len(consumer.queues) for consumer in consumers)  # noqa: E731
    until(lambda: shares() == [2, 3, 3], seen=lambda: shares())
    owned = [queue for consumer in consumers for queue in consumer.queues]
    assert len(owned) == len(set(owned)) == 8
    consumers.pop().shutdown()
    consumers.pop().shutdown()
    until(lambda: shares() == [8], seen=lambda: shares())
    consumers.pop().shutdown()


def test_a_new_group_can_begin_at_a_point_in_time(cluster: LocalCluster, name: str) -> None:
    with Admin(namesrv=cluster.namesrv) as admin, Producer(name, namesrv=cluster.namesrv) as producer:
        admin.create_topic(name, queues=1)
        queue = producer.send(Message(name, b"old")).queue
        old_ms = time.time_ns() // 1_000_000
        until(lambda: time.time_ns() // 1_000_000 > old_ms + 10)
        since_ms = time.time_ns() // 1_000_000
        until(lambda: admin.search_offset(queue, since_ms) == 1)
        producer.send(Message(name, b"new"))
    for ask_ms, bodies in ((since_ms, [b"new"]), (1, [b"old", b"new"])):
        inbox = Inbox()
        consumer = PushConsumer(
            f"{name}_{ask_ms}",
            namesrv=cluster.namesrv,
            from_where=ConsumeFromWhere.TIMESTAMP,
            consume_timestamp_ms=ask_ms,
        )
        consumer.subscribe(name)
        consumer.listen(inbox)
        with consumer:
            inbox.wait_for(len(bodies))
        assert inbox.bodies == bodies


def test_lite_pull_polls_commits_and_seeks(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        queue = producer.queues(name)[0]
        for n in range(50):
            producer.send(Message(name, b"%d" % n), queue=queue)
    with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST, auto_commit=False) as pull:
        pull.subscribe(name)
        got: list[StoredMessage] = []
        while len(got) < 50:
            batch = pull.poll(timeout=120.0)
            assert batch, f"only {len(got)} came"
            got += batch
        assert [int(message.body) for message in got] == list(range(50))
        pull.commit()
        assert pull.committed(queue) == 50
        pull.seek(queue, 40)
        assert int(pull.poll(timeout=120.0)[0].body) == 40
        pull.seek_to_begin(queue)
        assert int(pull.poll(timeout=120.0)[0].body) == 0
        pull.seek_to_end(queue)
        assert pull.poll(timeout=0.2) == []
        with pytest.raises(OffsetOutOfRangeError, match="0 to 50"):
            pull.seek(queue, 51)
        with pytest.raises(ClientStateError, match="not assigned"):
            pull.seek(MessageQueue("Other", "broker-a", 0), 0)
        with pytest.raises(ClientStateError, match="exclude"):
            pull.assign([queue])


def test_a_lite_pull_consumer_can_be_iterated_over(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send_batch([Message(name, b"%d" % n) for n in range(10)])
    with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
        pull.subscribe(name)
        assert [int(message.body) for message in itertools.islice(pull, 10)] == list(range(10))

    async def read() -> list[int]:
        async with aio.LitePullConsumer(f"{name}_a", namesrv=cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe(name)
            bodies: list[int] = []
            async for message in consumer:
                bodies.append(int(message.body))
                if len(bodies) == 10:
                    break
            return bodies

    assert asyncio.run(read()) == list(range(10))


def test_assigned_queues_are_read_without_a_group_and_can_be_paused(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"x"))
        queues = producer.queues(name)
        for queue in queues:
            producer.send(Message(name, b"%d" % queue.queue_id), queue=queue)
    with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
        pull.assign(queues[:1])
        assert pull.assignment == queues[:1]
        assert {message.queue_id for message in pull.poll(timeout=120.0)} == {queues[0].queue_id}
        pull.pause(queues[:1])
        pull.resume(queues[:1])
        assert pull.fetch_queues(name) == queues


def test_auto_commit_at_shutdown_but_not_after_an_exception(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        queue = producer.queues(name)[0]
        for n in range(5):
            producer.send(Message(name, b"%d" % n), queue=queue)

    def read(fail: bool) -> list[int]:
        with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
            pull.subscribe(name)
            bodies = [int(message.body) for message in pull.poll(timeout=120.0)]
            if fail:
                raise KeyError("handler broke")
            return bodies

    with pytest.raises(KeyError):
        read(fail=True)
    assert read(fail=False) == [0, 1, 2, 3, 4]
    with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
        pull.subscribe(name)
        assert pull.poll(timeout=0.5) == []


def test_requests_are_replied_to(cluster: LocalCluster, name: str) -> None:
    from contrailmq.client import create_reply

    with (
        Producer(name, namesrv=cluster.namesrv) as producer,
        Producer(f"{name}_r", namesrv=cluster.namesrv) as answerer,
    ):
        producer.send(Message(name, b"warm up", tags="no"))
        consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST)
        consumer.subscribe(name, "ask")

        def answer(messages: list[StoredMessage]) -> None:
            for message in messages:
                answerer.send(create_reply(message, message.body.upper()))

        consumer.listen(answer)
        consumer.start()
        assert producer.request(Message(name, b"hello", tags="ask"), timeout=120.0).body == b"HELLO"
        with pytest.raises(TimeoutError, match="no consumer replied"):
            producer.request(Message(name, b"nobody", tags="silence"), timeout=3.0)
        consumer.shutdown()


def test_many_threads_share_one_producer(cluster: LocalCluster, name: str) -> None:
    ids: list[str] = []
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"create"))

        def work() -> None:
            ids.extend(producer.send(Message(name, b"x")).message_id for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(ids)) == 400


class Unhandled(Exception):
    """What goes wrong between a poll and its commit."""


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_leaving_a_pull_consumer_by_an_exception_commits_nothing_that_was_polled(
    cluster: LocalCluster, name: str, face: str
) -> None:
    def blocking() -> None:
        with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
            pull.subscribe(name)
            assert pull.poll(timeout=120.0)
            raise Unhandled

    async def on_a_loop() -> None:
        async with aio.LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
            pull.subscribe(name)
            assert await pull.poll(timeout=120.0)
            raise Unhandled

    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"comes again"))
    with pytest.raises(Unhandled):
        blocking() if face == "blocking" else asyncio.run(on_a_loop())
    with LitePullConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as pull:
        pull.subscribe(name)
        assert [message.body for message in pull.poll(timeout=120.0)] == [b"comes again"]


def test_blocking_calls_work_in_a_thread_that_runs_a_loop(cluster: LocalCluster, name: str) -> None:
    async def inside() -> SendStatus:
        with Producer(name, namesrv=cluster.namesrv) as producer:
            return producer.send(Message(name, b"x")).status

    assert asyncio.run(inside()) is SendStatus.OK


def test_a_blocking_call_on_the_clients_own_loop_says_why_it_cannot_be(cluster: LocalCluster, name: str) -> None:
    seen: list[BaseException] = []
    done = threading.Event()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"x"))

        async def listener(messages: list[StoredMessage]) -> None:
            try:
                producer.send(Message(name, b"y"))
            except ClientStateError as exc:
                seen.append(exc)
            done.set()

        with PushConsumer(name, namesrv=cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe(name)
            consumer.listen(listener)
            assert done.wait(120)
    assert "would wait for itself" in str(seen[0])


def test_a_forked_child_gets_a_clear_error_and_can_make_its_own_client(cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"x"))
        pid = os.fork()
        if pid == 0:
            os._exit(_in_the_child(producer, cluster.namesrv, name))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert producer.send(Message(name, b"parent")).status is SendStatus.OK


def _in_the_child(inherited: Producer, namesrv: str, name: str) -> int:
    """An exit code: 0 when the inherited client refuses with the remedy, and following the remedy works."""
    try:
        inherited.send(Message(name, b"child"))
    except ClientStateError as exc:
        if "after the fork" not in str(exc):
            return 2
    else:
        return 1
    with Producer(f"{name}_child", namesrv=namesrv) as own:
        return 0 if own.send(Message(name, b"own")).status is SendStatus.OK else 3


def test_states_are_guarded(cluster: LocalCluster, name: str) -> None:
    producer = Producer(name, namesrv=cluster.namesrv)
    with pytest.raises(ClientStateError, match="not running"):
        producer.send(Message(name, b"x"))
    producer.shutdown()
    with producer, pytest.raises(ClientStateError, match="start it once"):
        producer.start()
    producer.shutdown()
    with pytest.raises(ClientStateError, match="not running"):
        producer.send(Message(name, b"x"))
    with pytest.raises(ClientStateError, match="make a new one"):
        producer.start()


def test_errors_name_cause_and_remedy(name: str, cluster: LocalCluster) -> None:
    with Producer(name, namesrv="127.0.0.1:1") as lost, pytest.raises(ContrailError, match="none of the NameServers"):
        lost.send(Message(name, b"x"))
    with Producer(name, namesrv=cluster.namesrv) as producer:
        with pytest.raises(MessageError, match="empty"):
            producer.send(Message(name, b""))
        with pytest.raises(MessageError, match="broker's own"):
            producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
    with LitePullConsumer(name, namesrv=cluster.namesrv) as pull, pytest.raises(NoRouteError, match="create the topic"):
        pull.fetch_queues(f"{name}_missing")
