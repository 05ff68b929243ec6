"""What the console knows of a cluster, without a browser: lists, details, previews, samples, brokers that are away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from typer.testing import CliRunner

from contrailmq import Admin, ConsumeFromWhere, LitePullConsumer, Message, Producer, PushConsumer
from contrailmq.cli import app
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.topics import TopicKind
from contrailmq.message import ContrailError, MessageQueue, retry_topic
from contrailmq.testing import LocalCluster
from contrailmq.testing.members import ProcessMember
from free_ports import free_port
from proxy.calling import Caller
from proxy.test_in_broker import broker_with_grpc, make_topic
from proxy.test_members import entry, ids, opened, settings
from waiting_for import until, until_async

T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def ask(
    namesrv: str,
    question: Callable[[ConsoleModel], Awaitable[T]],
    *,
    is_read_only: bool = False,
    request_timeout_s: float = 3.0,
) -> T:
    """One question to a model that samples nothing by itself."""

    async def run() -> T:
        model = ConsoleModel(namesrv, is_read_only=is_read_only, request_timeout_s=request_timeout_s)
        try:
            return await question(model)
        finally:
            await model.stop()

    return asyncio.run(run())


def filled(cluster: LocalCluster, topic: str, count: int, *, queues: int = 2) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues)
    with Producer("filling", namesrv=cluster.namesrv) as producer:
        for number in range(count):
            producer.send(Message(topic, f"body {number}".encode(), keys=[f"k{number}"]))


def consumed(cluster: LocalCluster, topic: str, group: str) -> None:
    """The group has an offset at the end of every queue."""
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_group(group)
        for queue in admin.queues(topic):
            admin.set_offset(group, queue, admin.max_offset(queue))


@contextmanager
def member(cluster: LocalCluster, group: str, topic: str, expression: str) -> Iterator[PushConsumer]:
    consumer = PushConsumer(group, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(topic, expression)
    consumer.listen(lambda messages: None)
    consumer.start()
    try:
        yield consumer
    finally:
        consumer.shutdown()


# --- topics


def test_topics_are_listed_by_kind_searched_and_paged(cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        for number in range(25):
            admin.create_topic(f"Paged-{number:02}", queues=1)
        admin.create_topic("PagedFifo", queues=3, attributes={"message.type": "FIFO"})

    async def question(model: ConsoleModel) -> None:
        first = (await model.topics.page(search="pAGED-", number=1, size=10)).value
        last = (await model.topics.page(search="paged-", number=99, size=10)).value
        assert ([row.name for row in first.rows], first.row_count) == ([f"Paged-{n:02}" for n in range(10)], 25)
        assert ([row.name for row in last.rows], last.number) == ([f"Paged-{n:02}" for n in range(20, 25)], 3)
        (fifo,) = (await model.topics.page(kind=TopicKind.FIFO, search="PagedFifo")).value.rows
        assert (fifo.brokers, fifo.read_queues, fifo.permission) == (("broker-0", "broker-1"), 6, 6)
        shown = {row.name for row in (await model.topics.page(size=100)).value.rows}
        assert "TBW102" not in shown
        assert "TBW102" in {row.name for row in (await model.topics.page(kind=TopicKind.SYSTEM, size=100)).value.rows}

    ask(cluster.namesrv, question)


def test_a_topic_is_created_changed_sent_to_and_deleted(cluster: LocalCluster) -> None:
    async def question(model: ConsoleModel) -> None:
        topics = model.topics
        await topics.create("Made", queues=2, permission=6, kind="delay", is_ordered=False)
        with pytest.raises(ContrailError, match="topic Made exists"):
            await topics.create("Made", queues=2, permission=6, kind="normal", is_ordered=False)
        sent = await topics.send("Made", b"hello", tags="t", keys="a b")
        detail = (await topics.detail("Made")).value
        assert (detail.row.kind, detail.message_count) == ("delay", 1)
        assert detail.queues[sent.queue].max_offset == 1
        assert await topics.change("Made", read_queues=4, write_queues=3, permission=4) == 0
        changed = (await topics.detail("Made")).value
        assert {(c.read_queue_nums, c.write_queue_nums, c.perm) for c in changed.configs.values()} == {(4, 3, 4)}
        await topics.delete("Made")
        with pytest.raises(ContrailError, match="topic Made does not exist: look for its name"):
            await topics.detail("Made")

    ask(cluster.namesrv, question)


# --- groups


def test_a_group_shows_lag_by_queue_and_its_members_and_marks_those_who_disagree(cluster: LocalCluster) -> None:
    filled(cluster, "Watched", 12)
    consumed(cluster, "Watched", "watchers")
    filled(cluster, "Watched", 5)

    async def lag(model: ConsoleModel) -> tuple[int, int | None]:
        (row,) = (await model.groups.page(search="watchers")).value.rows
        return (await model.groups.detail("watchers")).value.lag, row.lag

    assert ask(cluster.namesrv, lag) == (5, 5)
    with member(cluster, "watchers", "Watched", "a"), member(cluster, "watchers", "Watched", "b"):

        async def odd(model: ConsoleModel) -> bool:
            detail = (await model.groups.detail("watchers")).value
            said = sorted((found.subscriptions or {}).get("Watched", "") for found in detail.members)
            return said == ["a", "b"] and detail.is_inconsistent and {m.version for m in detail.members} == {479}

        until(lambda: ask(cluster.namesrv, odd), "two members with different subscriptions")


def test_members_over_grpc_are_shown_with_what_they_subscribe_to(tmp_path: Path) -> None:
    """They are not asked for their threads: these would never answer."""

    async def main() -> None:
        async with (
            broker_with_grpc(tmp_path, free_port()) as serving,
            grpc.aio.insecure_channel(serving.address) as channel,
        ):
            await make_topic(serving, "Paid", "NORMAL")
            callers = [Caller(channel, f"over-grpc@{number}") for number in (1, 2)]
            streams = [await opened(caller, settings(entry("Paid", "a"), group="paying")) for caller in callers]
            await until_async(lambda: len(ids(serving, "paying")) == 2)
            model = ConsoleModel(serving.member.server.config.namesrv_addresses[0])
            detail = (await model.groups.detail("paying")).value
            assert [(one.client_id, one.language, one.subscriptions) for one in detail.members] == [
                (caller_id, "JAVA", {"Paid": "a"}) for caller_id in ("over-grpc@1", "over-grpc@2")
            ]
            assert not detail.is_inconsistent
            await model.stop()
            for stream in streams:
                stream.cancel()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_a_reset_does_what_its_preview_showed_even_when_more_has_come(cluster: LocalCluster) -> None:
    filled(cluster, "Moved", 10, queues=1)
    consumed(cluster, "Moved", "movers")

    async def question(model: ConsoleModel) -> None:
        back = await model.groups.preview_offset("movers", "Moved", offset=2)
        total = sum(move.end for move in back.moves)
        assert total == 10
        expected = sum(max(0, move.end - 2) for move in back.moves)
        assert sum(move.again for move in back.moves) == expected
        assert back.sentence == f"movers on Moved: {expected} messages will wait, {expected} will be consumed again"
        await model.groups.apply(back)
        assert (await model.groups.detail("movers")).value.lag == expected
        skip = await model.groups.preview_skip("movers", "Moved")
        assert sum(move.skipped for move in skip.moves) == expected
        await model.topics.send("Moved", b"later")
        await model.groups.apply(skip)
        assert (await model.groups.detail("movers")).value.lag == 1, "what came after the preview is not skipped"
        everything = await model.groups.preview("movers", "Moved", time_ms=0)
        assert sum(move.target for move in everything.moves) == 0
        with pytest.raises(ContrailError, match="offset -1 is negative"):
            await model.groups.preview_offset("movers", "Moved", offset=-1)

    ask(cluster.namesrv, question)


def test_a_reset_reaches_members_that_run(cluster: LocalCluster) -> None:
    filled(cluster, "Rerun", 6, queues=1)
    seen: list[bytes] = []
    consumer = PushConsumer("rerunners", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Rerun")
    consumer.listen(lambda messages: seen.extend(message.body for message in messages))
    consumer.start()
    try:
        until(lambda: len(seen) >= 6, "the first time")

        async def reset(model: ConsoleModel) -> None:
            await model.groups.apply(await model.groups.preview("rerunners", "Rerun", time_ms=0))

        ask(cluster.namesrv, reset)
        until(lambda: len(seen) >= 12, "the second time")
    finally:
        consumer.shutdown()


def test_a_group_with_members_is_not_deleted_and_one_without_is(cluster: LocalCluster) -> None:
    filled(cluster, "Kept", 1)
    with member(cluster, "keepers", "Kept", "*"):

        async def refused(model: ConsoleModel) -> bool:
            try:
                await model.groups.delete("keepers")
            except ContrailError as exc:
                return "has 1 members online" in str(exc)
            return False

        until(lambda: bool((admin := Admin(namesrv=cluster.namesrv)).consumers("keepers")) or not admin, "it is online")
        assert ask(cluster.namesrv, refused)
    until(lambda: Admin(namesrv=cluster.namesrv).consumers("keepers") is None, "it is gone")
    ask(cluster.namesrv, lambda model: model.groups.delete("keepers"))
    assert "keepers" not in Admin(namesrv=cluster.namesrv).groups()


# --- read-only


def test_a_read_only_model_shows_and_refuses_every_change(cluster: LocalCluster) -> None:
    filled(cluster, "Shown", 1)
    consumed(cluster, "Shown", "viewers")

    async def question(model: ConsoleModel) -> None:
        assert (await model.topics.detail("Shown")).value.message_count == 1
        preview = await model.groups.preview("viewers", "Shown", time_ms=0)
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: model.topics.create("No", queues=1, permission=6, kind="", is_ordered=False),
            lambda: model.topics.change("Shown", read_queues=9, write_queues=9, permission=6),
            lambda: model.topics.delete("Shown"),
            lambda: model.topics.send("Shown", b"x"),
            lambda: model.groups.create("No", retries=1, is_ordered=False),
            lambda: model.groups.change("viewers", retries=1, is_enabled=False),
            lambda: model.groups.apply(preview),
            lambda: model.groups.delete("viewers"),
        ]
        for change in changes:
            with pytest.raises(ContrailError, match="this console is read-only"):
                await change()

    ask(cluster.namesrv, question, is_read_only=True)
    with Admin(namesrv=cluster.namesrv) as admin:
        assert "No" not in admin.topics()
        assert admin.offset("viewers", MessageQueue("Shown", "broker-0", 0)) >= 0


# --- samples


def test_samples_count_rates_and_the_backlog_of_all_groups(cluster: LocalCluster) -> None:
    filled(cluster, "Sampled", 8)
    consumed(cluster, "Sampled", "sampling")
    filled(cluster, "Sampled", 3)

    async def question(model: ConsoleModel) -> None:
        sampler = model.sampler
        await sampler.sample()
        assert {sample.place.name for sample in sampler.overview.brokers} == {"broker-0", "broker-1"}
        assert all(sample.figures.disk_free_bytes for sample in sampler.overview.brokers)
        await sampler.sweep()
        assert sampler.lag["sampling"].last == 3
        assert sampler.overview.backlog is not None
        assert sampler.overview.backlog >= 3
        assert len(sampler.put_rate) == 1
        assert (sampler.put_latency_99.last or 0) > 0, "messages were put"
        assert (sampler.put_latency_999.last or 0) >= (sampler.put_latency_99.last or 0)

    ask(cluster.namesrv, question)


def test_a_name_server_that_is_away_is_said_within_its_time_with_its_address() -> None:
    """The port is bound and nobody listens: connections are refused. Another accepts and never answers."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ContrailError, match=address):
            ask(address, lambda model: model.topics.page())
        assert time.monotonic() - began >= 2.9, "three seconds are given"

        async def sampled(model: ConsoleModel) -> str:
            await model.sampler.sample()
            return model.sampler.overview.error

        assert address in ask(address, sampled)


def test_a_broker_that_hangs_leaves_a_note_beside_what_the_other_says_and_one_that_died_is_missed() -> None:
    with LocalCluster(brokers=2, processes=True) as broken:
        filled(broken, "Half", 20)
        consumed(broken, "Half", "halves")
        address = broken.broker_addresses[1]
        hanging = broken._members[1]
        assert isinstance(hanging, ProcessMember)

        def is_forgotten() -> bool:
            return "broker-1" not in Admin(namesrv=broken.namesrv).masters()

        async def question(model: ConsoleModel) -> None:
            await model.sampler.sample()
            os.kill(hanging.process_id, signal.SIGSTOP)
            seen = await model.topics.page()
            assert "Half" in {row.name for row in seen.value.rows}
            assert len(seen.notes) == 1
            assert seen.notes[0].startswith(f"broker-1 at {address} did not answer: ")
            detail = await model.topics.detail("Half")
            assert {queue.broker_name for queue in detail.value.queues} == {"broker-0"}
            group = await model.groups.detail("halves")
            assert {row.queue.broker_name for row in group.value.progress} == {"broker-0"}
            assert any(address in note for note in group.notes)
            await model.sampler.sample()
            assert [sample.place.name for sample in model.sampler.overview.brokers] == ["broker-0"]
            assert any(address in note for note in model.sampler.overview.notes)
            os.kill(hanging.process_id, signal.SIGCONT)
            await asyncio.to_thread(broken.kill_broker, 1)
            await asyncio.to_thread(until, is_forgotten, "the NameServer forgets the broker")
            model.asking.forget_places()
            await model.sampler.sample()
            (note,) = model.sampler.overview.gone
            assert note.startswith(f"broker-1 at {address} is no longer registered, since about ")

        ask(broken.namesrv, question, request_timeout_s=4.0)


def test_pull_consumers_that_stopped_leave_their_lag_behind(cluster: LocalCluster) -> None:
    """A group that nobody runs keeps its row, with the lag that grows."""
    filled(cluster, "Quiet", 4, queues=1)
    with LitePullConsumer("quiet", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as pull:
        pull.subscribe("Quiet")
        got: list[object] = []
        until(lambda: bool(got.extend(pull.poll(timeout=1.0)) or len(got) >= 4), "all of them")
        pull.commit()
    filled(cluster, "Quiet", 2, queues=1)

    async def row(model: ConsoleModel) -> tuple[int | None, int]:
        (found,) = (await model.groups.page(search="quiet")).value.rows
        return found.lag, found.member_count

    until(lambda: ask(cluster.namesrv, row) == (2, 0), "its lag without members")


def test_a_groups_own_retry_topic_is_not_one_of_the_topics_that_it_consumes(cluster: LocalCluster) -> None:
    filled(cluster, "Retried", 1, queues=1)
    with member(cluster, "retrying", "Retried", "*"), Admin(namesrv=cluster.namesrv) as admin:
        topics = {retry_topic("retrying"), "Retried"}
        until(lambda: {row.queue.topic for row in admin.progress("retrying")} == topics, "it has offsets in both")

        async def row(model: ConsoleModel) -> int:
            (found,) = (await model.groups.page(search="retrying")).value.rows
            return found.topic_count

        assert ask(cluster.namesrv, row) == 1
        listed = CliRunner().invoke(app, ["admin", "group", "list", "--json", "-n", cluster.namesrv])
        assert {"group": "retrying", "topics": 1} in [
            {name: row[name] for name in ("group", "topics")} for row in json.loads(listed.output)
        ]
