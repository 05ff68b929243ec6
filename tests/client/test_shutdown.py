"""Shutdown in the middle of everything: cancelled, on a full disk, beside calls of other threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import contrailmq.aio as aio
from contrailmq import (
    Admin,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.client.blocking.loop_thread import LoopThread
from contrailmq.client.errors import ClientStateError, OffsetNotStoredError
from contrailmq.client.offset_store import LocalOffsetStore
from contrailmq.client.transport import instance
from contrailmq.testing import LocalCluster
from waiting_for import until, until_async

from .names import fresh_name
from .waiting import Inbox


@pytest.fixture
def name() -> str:
    return fresh_name("Shutdown")


def our_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("contrailmq")]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_shutdown_that_is_cancelled_leaves_the_group_all_the_same(
    cluster: LocalCluster, name: str, kind: str, orderly: bool
) -> None:
    release = threading.Event()

    async def work() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang(messages: list[StoredMessage]) -> None:
            loop.call_soon_threadsafe(begun.set)
            release.wait(120)

        async def hang_on_the_loop(messages: list[StoredMessage]) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with aio.Producer(name, namesrv=cluster.namesrv) as producer:
            await producer.send(Message(name, b"x"))
        consumer = aio.PushConsumer(
            name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, orderly=orderly
        )
        consumer.subscribe(name)
        consumer.listen(hang if kind == "def" else hang_on_the_loop)
        await consumer.start()
        await begun.wait()
        shutdown = asyncio.create_task(consumer.shutdown())
        await asyncio.sleep(0)
        shutdown.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shutdown
        release.set()
        await until_async(lambda: not our_tasks(), "what was cancelled ends", seen=our_tasks)

    asyncio.run(asyncio.wait_for(work(), 120))
    assert not instance._instances
    with Admin(namesrv=cluster.namesrv) as admin:
        until(lambda: admin.consumers(name) is None)


def test_a_listener_that_shuts_its_consumer_down_waits_for_itself_only_so_long(
    cluster: LocalCluster, name: str
) -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def listen(messages: list[StoredMessage]) -> None:
            await consumer.shutdown()
            ended.set()

        async with aio.Producer(name, namesrv=cluster.namesrv) as producer:
            await producer.send(Message(name, b"x"))
        consumer = aio.PushConsumer(
            name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, shutdown_wait_s=0.1
        )
        consumer.subscribe(name)
        consumer.listen(listen)
        await consumer.start()
        async with asyncio.timeout(120):
            await ended.wait()
        await until_async(lambda: not our_tasks(), "what was cancelled ends", seen=our_tasks)

    asyncio.run(work())
    assert not instance._instances


def test_shutdowns_of_two_threads_both_wait_for_the_listener_and_its_offset(cluster: LocalCluster, name: str) -> None:
    begun, release = threading.Event(), threading.Event()

    def listen(messages: list[StoredMessage]) -> None:
        begun.set()
        release.wait(120)

    with Admin(namesrv=cluster.namesrv) as admin, Producer(name, namesrv=cluster.namesrv) as producer:
        admin.create_topic(name, queues=1)
        queue = producer.send(Message(name, b"x")).queue
        consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe(name)
        consumer.listen(listen)
        consumer.start()
        assert begun.wait(120)
        both = [threading.Thread(target=consumer.shutdown, daemon=True) for _ in range(2)]
        both[0].start()
        until(lambda: not consumer.is_running)
        both[1].start()
        both[1].join(0.2)
        assert [thread.is_alive() for thread in both] == [True, True]
        release.set()
        for thread in both:
            thread.join(120)
        assert [thread.is_alive() for thread in both] == [False, False]
        assert admin.offset(name, queue) == 1


def test_offsets_that_cannot_be_written_are_written_when_there_is_room_again(
    cluster: LocalCluster, name: str, tmp_path: Path
) -> None:
    """A directory is where the new file should be: as on a full disk, every write fails, also for root."""
    blocked = tmp_path / f"10.0.0.1@{name}" / name / "offsets.json.tmp"
    blocked.mkdir(parents=True)
    inbox = Inbox()

    async def consume() -> None:
        consumer = aio.PushConsumer(
            name,
            namesrv=cluster.namesrv,
            model=MessageModel.BROADCASTING,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            client_ip="10.0.0.1",
            instance_name=name,
            local_offset_dir=tmp_path,
            persist_offsets_interval_s=0.01,
        )
        consumer.subscribe(name)
        consumer.listen(inbox)
        async with consumer:
            await asyncio.to_thread(inbox.wait_for, 1)
            store = consumer._store
            assert isinstance(store, LocalOffsetStore)
            assert await store.persist(list(dict(store.table.items()))) != []
            blocked.rmdir()
            await until_async(store.path.exists)

    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"x"))
        asyncio.run(consume())
    assert not instance._instances


def test_a_commit_that_did_not_reach_the_broker_is_an_error(own_cluster: LocalCluster, name: str) -> None:
    with Producer(name, namesrv=own_cluster.namesrv) as producer:
        queue = producer.send(Message(name, b"x")).queue
    consumer = LitePullConsumer(
        name, namesrv=own_cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False
    )
    consumer.assign([queue])
    with consumer:
        assert [message.body for message in consumer.poll()] == [b"x"]
        own_cluster.stop_broker()
        with pytest.raises(OffsetNotStoredError) as caught:
            consumer.commit()
        assert (caught.value.queues, caught.value.retriable) == ([queue], True)
        with pytest.raises(OffsetNotStoredError):
            consumer.commit({queue: 1})
        own_cluster.restart_broker()
        until(lambda: committed(consumer, queue) == 1)


def committed(consumer: LitePullConsumer, queue: MessageQueue) -> int:
    try:
        consumer.commit()
    except OffsetNotStoredError:
        return -1
    return consumer.committed(queue)


def test_a_transaction_that_runs_at_shutdown_can_still_use_other_clients(cluster: LocalCluster, name: str) -> None:
    begun, sent = threading.Event(), threading.Event()
    with Producer(f"{name}_other", namesrv=cluster.namesrv) as other:

        def execute(message: Message, arg: object) -> TransactionState:
            begun.set()
            until(lambda: not producer._client._life.is_running)  # shutdown has begun
            other.queues(name)  # on the loop that all blocking clients share
            sent.set()
            return TransactionState.COMMIT

        producer = TransactionProducer(
            name, namesrv=cluster.namesrv, execute=execute, check=lambda _: TransactionState.COMMIT
        )
        producer.start()
        sender = threading.Thread(target=lambda: producer.send_in_transaction(Message(name, b"x")), daemon=True)
        sender.start()
        assert begun.wait(120)
        ending = threading.Thread(target=producer.shutdown, daemon=True)
        ending.start()
        ending.join(120)
        assert not ending.is_alive()
        assert sent.is_set()
        sender.join(120)


def test_a_call_that_comes_after_the_last_shutdown_gets_our_error() -> None:
    async def nothing() -> None: ...

    thread = LoopThread.acquire()
    thread.release()
    for call in (thread.run, thread.submit):
        with pytest.raises(ClientStateError, match="shut down by another thread"):
            call(nothing())
