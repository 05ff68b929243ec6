"""Servers come and go, clients come and go: nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

import contrailmq.aio as aio
from contrailmq import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
    StoredMessage,
)
from contrailmq.client.errors import ClientStateError, SendFailedError
from contrailmq.client.hooks import ClientHooks, ConsumeEvent
from contrailmq.client.transport import instance
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ConnectionClosedError
from contrailmq.wire.transport import RemotingClient
from waiting_for import until

from .fake_peer import FakePeer
from .names import fresh_name
from .waiting import Inbox


@pytest.fixture
def name() -> str:
    return fresh_name("Life")


def open_files() -> Counter[str]:
    """How many descriptors of each kind this process has: socket, anon_inode:[eventpoll], the paths of files..."""
    kinds: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            kinds[os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]] += 1
    return kinds


def one_cycle(namesrv: str, name: str) -> None:
    inbox = Inbox()
    with Producer(name, namesrv=namesrv) as producer, LitePullConsumer(f"{name}_p", namesrv=namesrv) as pull:
        pull.subscribe(name)
        with PushConsumer(name, namesrv=namesrv) as consumer:
            consumer.subscribe(name)
            consumer.listen(inbox)
            producer.send(Message(name, b"x"))
            pull.poll(timeout=0.01)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files through /proc")
def test_a_hundred_lives_leave_no_thread_no_file_and_no_instance(name: str) -> None:
    """The broker is another process, so that its files are not counted."""
    with LocalCluster(processes=True) as cluster:
        one_cycle(cluster.namesrv, name)
        gc.collect()
        threads, files = set(threading.enumerate()), open_files()
        for _ in range(100):
            one_cycle(cluster.namesrv, name)
        gc.collect()
        left = lambda: [thread.name for thread in threading.enumerate() if thread not in threads]  # noqa: E731
        until(lambda: not left(), seen=lambda: left())  # one that has nothing left to do may still be ending
        assert not instance._instances
        until(lambda: open_files() <= files, seen=lambda: open_files() - files)  # the NameServer is in this process


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files through /proc")
def test_a_hundred_lives_on_one_loop_leave_no_task_no_thread_and_no_socket(name: str) -> None:
    async def one(namesrv: str) -> None:
        async with aio.Producer(name, namesrv=namesrv, trace=True) as producer:
            await producer.send(Message(name, b"x"))
            async with aio.PushConsumer(name, namesrv=namesrv, orderly=True, trace=True) as consumer:
                consumer.subscribe(name)
                consumer.listen(Inbox())
            async with aio.Admin(namesrv=namesrv) as admin:
                await admin.topics()

    async def run(namesrv: str) -> None:
        await one(namesrv)
        threads, files = set(threading.enumerate()), open_files()
        for _ in range(100):
            await one(namesrv)
        await asyncio.sleep(0)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        left = lambda: [thread.name for thread in threading.enumerate() if thread not in threads]  # noqa: E731
        until(lambda: not left(), seen=lambda: left())  # one that has nothing left to do may still be ending
        until(lambda: open_files() <= files, seen=lambda: open_files() - files)  # the NameServer is in this process

    with LocalCluster(processes=True) as cluster:
        asyncio.run(run(cluster.namesrv))
    assert not instance._instances


@pytest.mark.parametrize("steps", range(8))
def test_an_instance_that_is_left_while_it_looks_for_a_route_ends(steps: int) -> None:
    """At each step of the lookup. Leaving cancels the lookup and who waits for it: the waiting loop must not take the
    first for a failure and go on for ever."""

    async def run() -> None:
        async with asyncio.timeout(120), FakePeer(lambda _: None) as silent:
            consumer = aio.PushConsumer("route", namesrv=silent.address)
            consumer.subscribe("Nowhere")
            left = instance.ClientInstance.acquire("route", consumer.options)
            left.consumers["route"] = consumer
            for _ in range(steps):
                await asyncio.sleep(0)
            await left.release()
            for _ in range(5):  # a connection that the peer just accepted becomes its own to close
                await asyncio.sleep(0)

    asyncio.run(run())
    assert not instance._instances


def test_a_route_that_nobody_waits_for_any_more_fails_without_a_trace_on_the_terminal() -> None:
    """As when the time of a send is over before the NameServer has said that it does not know the topic."""

    async def run() -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with FakePeer(lambda _: None) as silent:
            options = aio.Producer("route", namesrv=silent.address, request_timeout_s=0.05).options
            left = instance.ClientInstance.acquire("route", options)
            sender = asyncio.create_task(left.refresh_route("Nowhere"))
            await asyncio.sleep(0)  # it asks
            sender.cancel()
            await asyncio.wait([sender, left._route_calls["Nowhere"]])
            await left.release()
            del sender
            gc.collect()
        assert told == []

    asyncio.run(run())


def test_a_send_that_waits_for_a_connection_when_its_producer_ends_gets_our_error() -> None:
    """Not CancelledError: nobody cancelled the sender's task."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            address = f"127.0.0.1:{full.getsockname()[1]}"
            with contextlib.ExitStack() as fillers:  # a full backlog leaves a connect unanswered
                for _ in range(4):
                    filler = fillers.enter_context(socket.socket())
                    filler.setblocking(False)
                    filler.connect_ex(full.getsockname())
                client = RemotingClient()
                call = asyncio.create_task(client.invoke(address, RequestCode.HEART_BEAT))
                for _ in range(5):
                    await asyncio.sleep(0)
                await client.close()
                with pytest.raises(ConnectionClosedError, match="this client is closed"):
                    await call

    asyncio.run(run())


def test_a_failed_start_leaves_nothing_and_can_be_repeated(cluster: LocalCluster, name: str) -> None:
    first = Producer(name, namesrv=cluster.namesrv, instance_name=name)
    second = Producer(name, namesrv=cluster.namesrv, instance_name=name)
    with first, pytest.raises(ClientStateError, match="already has a member"):
        second.start()
    with second:
        assert second.send(Message(name, b"x")).status is SendStatus.OK
    assert not instance._instances


def test_clients_of_one_instance_name_share_connections(cluster: LocalCluster, name: str) -> None:
    with (
        Producer(name, namesrv=cluster.namesrv, instance_name=name) as producer,
        Producer(f"{name}_2", namesrv=cluster.namesrv, instance_name=name) as other,
    ):
        assert producer.client_id == other.client_id
        producer.send(Message(name, b"x"))
        other.send(Message(name, b"x"))
        (shared,) = instance._instances.values()
        assert len(shared.remoting._connections) == 2  # the NameServer and the broker


def test_clients_live_through_a_broker_restart(own_cluster: LocalCluster, name: str) -> None:
    inbox = Inbox()
    with Producer(name, namesrv=own_cluster.namesrv) as producer:
        producer.send(Message(name, b"before"))
        options = {"from_where": ConsumeFromWhere.FIRST_OFFSET, "pull_retry_delay_s": 0.1}
        consumer = PushConsumer(name, namesrv=own_cluster.namesrv, **options)  # type: ignore[arg-type]
        consumer.subscribe(name)
        consumer.listen(inbox)
        consumer.start()
        inbox.wait_for(1)
        own_cluster.stop_broker()
        with pytest.raises(ContrailError) as caught:
            producer.send(Message(name, b"while down"), timeout=2.0)
        assert isinstance(caught.value, SendFailedError) or caught.value.retriable
        own_cluster.restart_broker()

        def sent() -> bool:
            try:
                producer.send(Message(name, b"after"))
            except ContrailError:
                return False
            return True

        until(sent)
        until(lambda: b"after" in inbox.bodies)
        consumer.shutdown()
    assert inbox.bodies.count(b"before") == 1


def test_a_client_of_a_closed_loop_says_so(cluster: LocalCluster, name: str) -> None:
    producer = aio.Producer(name, namesrv=cluster.namesrv)

    async def leak() -> None:
        await producer.start()

    asyncio.run(leak())
    with pytest.raises(ClientStateError, match="event loop that is closed"):
        asyncio.run(producer.send(Message(name, b"x")))
    instance._instances.clear()


class LoopElsewhere:
    """An event loop that lives in a thread of its own."""

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self._loop

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize("kind", ["producer", "push", "lite pull", "admin"])
def test_a_client_of_another_live_loop_says_so_and_still_works_on_its_own(
    cluster: LocalCluster, name: str, kind: str
) -> None:
    """Every way in is refused, shutdown too; the client's own loop is not disturbed."""
    made: dict[str, aio.Producer | aio.PushConsumer | aio.LitePullConsumer | aio.Admin] = {
        "producer": aio.Producer(name, namesrv=cluster.namesrv),
        "push": aio.PushConsumer(name, namesrv=cluster.namesrv),
        "lite pull": aio.LitePullConsumer(name, namesrv=cluster.namesrv),
        "admin": aio.Admin(namesrv=cluster.namesrv),
    }
    client = made[kind]

    async def use() -> object:
        match client:
            case aio.Producer():
                return await client.send(Message(name, b"x"))
            case aio.PushConsumer():
                return client.subscribe(name)
            case aio.LitePullConsumer():
                return await client.poll(timeout=0.0)
            case aio.Admin():
                return await client.topics()

    with LoopElsewhere() as loop:
        asyncio.run_coroutine_threadsafe(client.start(), loop).result(120)
        for work in (use, client.shutdown):
            with pytest.raises(ClientStateError, match="another event loop"):
                asyncio.run(work())
        asyncio.run_coroutine_threadsafe(use(), loop).result(120)
        asyncio.run_coroutine_threadsafe(client.shutdown(), loop).result(120)
    assert not instance._instances


def test_an_admin_that_was_started_keeps_its_connections_and_starts_once(cluster: LocalCluster) -> None:
    admin = Admin(namesrv=cluster.namesrv)
    admin.start()
    admin.topics()
    (kept,) = instance._instances.values()
    connections = dict(kept.remoting._connections)
    admin.topics()
    assert kept.remoting._connections == connections
    with pytest.raises(ClientStateError, match="start it once"):
        admin.start()
    admin.shutdown()
    assert not instance._instances
    assert admin.topics()  # as before the start: connects for this call alone
    assert not instance._instances


def test_a_name_server_that_comes_back_empty_knows_the_routes_again_within_seconds(
    own_cluster: LocalCluster, name: str
) -> None:
    """Brokers notice by themselves; the next regular registration is 30 s away."""
    with Producer(name, namesrv=own_cluster.namesrv) as producer:
        producer.send(Message(name, b"before"))
        own_cluster.stop_name_server()
        assert producer.send(Message(name, b"without")).status is SendStatus.OK
        own_cluster.restart_name_server()

    def is_known() -> bool:
        with Admin(namesrv=own_cluster.namesrv) as admin:
            return name in admin.topics()

    until(is_known)


def test_nothing_acknowledged_is_lost_over_restarts_of_broker_and_consumer(
    own_cluster: LocalCluster, name: str
) -> None:
    """A producer keeps sending while the broker restarts twice and consumers come and go."""
    acknowledged: list[bytes] = []
    inbox = Inbox()
    stop = threading.Event()

    def produce() -> None:
        with Producer(name, namesrv=own_cluster.namesrv, send_timeout_s=1.0) as producer:
            for number in itertools.count():
                if stop.is_set():
                    return
                body = b"%d" % number
                try:
                    producer.send(Message(name, body))
                except ContrailError:
                    stop.wait(0.02)
                    continue
                acknowledged.append(body)

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(2):
        goal = len(acknowledged) + 200
        until(lambda goal=goal: len(acknowledged) >= goal)
        with PushConsumer(
            name, namesrv=own_cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, pull_retry_delay_s=0.1
        ) as consumer:
            consumer.subscribe(name)
            consumer.listen(inbox)
            seen = len(inbox.bodies) + 100
            until(lambda seen=seen: len(inbox.bodies) >= seen)
            own_cluster.stop_broker()
            own_cluster.restart_broker()
    stop.set()
    thread.join()
    with PushConsumer(name, namesrv=own_cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
        consumer.subscribe(name)
        consumer.listen(inbox)
        until(lambda: set(acknowledged) <= set(inbox.bodies), seen=lambda: set(acknowledged) - set(inbox.bodies))


def test_shutdown_waits_for_a_running_listener_and_commits_its_message(cluster: LocalCluster, name: str) -> None:
    began, release = threading.Event(), threading.Event()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        queue = producer.send(Message(name, b"slow")).queue
    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(name)

    def slow(messages: object) -> None:
        began.set()
        release.wait(120)

    consumer.listen(slow)
    consumer.start()
    assert began.wait(120)
    stopper = threading.Thread(target=consumer.shutdown)
    stopper.start()
    release.set()
    stopper.join(120)
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.offset(name, queue) == 1


def test_a_namespace_keeps_names_apart_and_out_of_sight(cluster: LocalCluster, name: str) -> None:
    inbox, outside = Inbox(), Inbox()
    options = {"namesrv": cluster.namesrv, "from_where": ConsumeFromWhere.FIRST_OFFSET}
    with Producer(name, namesrv=cluster.namesrv, namespace="prod") as producer:
        result = producer.send(Message(name, b"inside"))
        assert result.queue.topic == name
    with Producer(name, namesrv=cluster.namesrv) as producer:
        producer.send(Message(name, b"outside"))
    with PushConsumer(name, namespace="prod", **options) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(name)
        consumer.listen(inbox)
        (message,) = inbox.wait_for(1)
        assert (message.topic, message.body) == (name, b"inside")
        assert all(queue.topic == name for queue in consumer.queues)
    with PushConsumer(name, **options) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(name)
        consumer.listen(outside)
        outside.wait_for(1)
    assert (inbox.bodies, outside.bodies) == ([b"inside"], [b"outside"])
    with Admin(namesrv=cluster.namesrv) as admin:
        assert f"prod%{name}" in admin.topics()


def test_traces_are_written_in_rocketmqs_format(cluster: LocalCluster, name: str) -> None:
    inbox, traces = Inbox(), Inbox()
    with Producer(name, namesrv=cluster.namesrv, trace=True) as producer:
        result = producer.send(Message(name, b"x", keys=["k"]))
        with PushConsumer(
            name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, trace=True
        ) as consumer:
            consumer.subscribe(name)
            consumer.listen(inbox)
            inbox.wait_for(1)
    with PushConsumer(f"{name}_t", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as reader:
        reader.subscribe("RMQ_SYS_TRACE_TOPIC")
        reader.listen(traces)
        mine = lambda: [m.body for m in traces.messages if result.message_id in m.keys]  # noqa: E731
        until(lambda: len(b"".join(mine()).split(b"\x02")) >= 4, seen=lambda: mine())
    records = sorted(line.split(b"\x01")[0] for line in b"".join(mine()).split(b"\x02") if line)
    assert records == [b"Pub", b"SubAfter", b"SubBefore"]


def test_a_pull_consumer_has_traces_and_hooks_too(cluster: LocalCluster, name: str) -> None:
    class Watch(ClientHooks):
        def __init__(self) -> None:
            self.seen: list[object] = []

        def filter_pulled(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
            return [message for message in messages if message.body != b"unwanted"]

        def before_consume(self, event: ConsumeEvent) -> None:
            self.seen.append([message.body for message in event.messages])

        def after_consume(self, event: ConsumeEvent) -> None:
            assert event.outcome is not None
            self.seen.append(event.outcome.result)

    watch = Watch()
    with Producer(name, namesrv=cluster.namesrv) as producer, Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(name, queues=1)
        producer.send(Message(name, b"unwanted"))
        wanted = producer.send(Message(name, b"wanted"))
        with LitePullConsumer(
            name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, trace=True, hooks=watch
        ) as consumer:
            consumer.subscribe(name)
            assert [message.body for message in consumer.poll(20.0)] == [b"wanted"]
        assert watch.seen == [[b"wanted"], ConsumeResult.SUCCESS]
        assert admin.offset(name, wanted.queue) == 2
        kinds: set[bytes] = set()

        def has_traces() -> bool:
            for trace in admin.messages_by_key("RMQ_SYS_TRACE_TOPIC", wanted.message_id):
                kinds.update(line.partition(b"\x01")[0] for line in trace.body.split(b"\x02") if line)
            return kinds >= {b"SubBefore", b"SubAfter"}

        until(has_traces, seen=lambda: kinds)


def test_a_consumer_that_ends_while_the_broker_restarts_still_stores_its_offsets(
    own_cluster: LocalCluster, name: str
) -> None:
    inbox = Inbox()
    with Producer(name, namesrv=own_cluster.namesrv) as producer:
        queue = producer.send(Message(name, b"x")).queue
    consumer = PushConsumer(
        name,
        namesrv=own_cluster.namesrv,
        from_where=ConsumeFromWhere.FIRST_OFFSET,
        persist_offsets_interval_s=60.0,
    )
    consumer.subscribe(name)
    consumer.listen(inbox)
    consumer.start()
    inbox.wait_for(1)
    own_cluster.stop_broker()
    stopper = threading.Thread(target=consumer.shutdown)
    stopper.start()
    own_cluster.restart_broker()
    stopper.join(120)
    with Admin(namesrv=own_cluster.namesrv) as admin:
        until(lambda: name in admin.topics())
        assert admin.offset(name, queue) == 1
