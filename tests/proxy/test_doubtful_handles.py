"""Handles that were replaced and nobody told the proxy: brokers confirm acknowledgements by them, and do nothing.

A confirmed acknowledgement counts all the same. Where the proxy cannot know the handle that counts, it refuses.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
import pytest

from contrailmq import Admin, Producer
from contrailmq.message import Message
from contrailmq.proxy import renewing
from contrailmq.proxy.server import ProxyServer
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from contrailmq.wire.errors import ConnectionClosedError
from proxy.calling import Caller, proxy_of, topic
from proxy.test_consuming import acknowledge, filled, gathered, receive, seconds

LIMIT_S: Final = 120
STEP_MS: Final = 2_000  # a renewed message that is not done comes again soon


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs
    monkeypatch.setattr(renewing, "LADDER_MS", (STEP_MS,))


class LostAnswers:
    """The connection breaks while the proxy waits for the broker's answer to a change, which has taken effect or not.
    Later changes are answered."""

    def __init__(self, server: ProxyServer, *, has_effect: bool) -> None:
        assert server.service is not None
        self._consuming = server.service._consuming
        self._change = self._consuming.change
        self._has_effect = has_effect
        self._consuming.change = self._lost  # type: ignore[method-assign]

    async def _lost(self, *args: Any, **fields: Any) -> Any:
        self._consuming.change = self._change  # type: ignore[method-assign]
        if self._has_effect:
            await self._change(*args, **fields)
        raise ConnectionClosedError("127.0.0.1:1", "the connection broke")


@contextmanager
def stopped(process_id: int) -> Iterator[Callable[[], None]]:
    """Until what is given is called."""
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield lambda: os.kill(process_id, signal.SIGCONT)
    finally:
        os.kill(process_id, signal.SIGCONT)


def test_a_renewal_that_is_answered_late_gives_the_handle_that_counts() -> None:
    """The broker stands still for longer than a request may take, and then renews."""

    async def main(cluster: LocalCluster) -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            caller, instance = Caller(channel, "late@1"), server.service._cluster.instance
            [got] = await gathered(caller, "late", "late", 1, auto_renew=True)
            instance.options = replace(instance.options, request_timeout_s=0.2)
            with stopped(cluster.broker_process_id()) as go_on:
                renewal = asyncio.create_task(server.service.renewals.renew())
                await asyncio.wait({renewal}, timeout=1.0)  # five times as long as any other request may take
                go_on()
                await renewal
            assert await acknowledge(caller, "late", "late", got.system_properties.receipt_handle) == [Code.OK]
            assert await receive(caller, "late", "late") == []

    with LocalCluster(processes=True) as cluster:
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic("late", queues=1)
        with Producer("filling", namesrv=cluster.namesrv) as producer:
            producer.send(Message("late", b"once"))
        asyncio.run(asyncio.wait_for(main(cluster), LIMIT_S))


@pytest.mark.parametrize("has_effect", [True, False])
def test_an_acknowledgement_is_confirmed_only_if_it_counts_after_a_renewal_without_an_answer(
    cluster: LocalCluster, has_effect: bool
) -> None:
    name = f"lost-{has_effect}"
    filled(cluster, name, Message(name, b"once"))

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            caller = Caller(channel, "lost@1")
            [got] = await gathered(caller, name, name, 1, auto_renew=True)
            LostAnswers(server, has_effect=has_effect)
            await server.service.renewals.renew()
            handle = got.system_properties.receipt_handle
            said = [await acknowledge(caller, name, name, handle) for _ in range(2)]
            again = [one.body for one in await receive(caller, name, name)]
            refused = [[Code.INVALID_RECEIPT_HANDLE]] * 2, [b"once"]
            assert (said, again) == (refused if has_effect else ([[Code.OK]] * 2, []))

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@pytest.mark.parametrize("auto_renew", [True, False])
def test_a_consumer_s_own_change_without_an_answer_leaves_no_handle_that_is_confirmed_in_vain(
    cluster: LocalCluster, auto_renew: bool
) -> None:
    """Its call ends with an error, and it acknowledges what it still has."""
    name = f"own-change-{auto_renew}"
    filled(cluster, name, Message(name, b"once"))

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            caller = Caller(channel, "own@1")
            [got] = await gathered(caller, name, name, 1, auto_renew=auto_renew)
            handle = got.system_properties.receipt_handle
            LostAnswers(server, has_effect=True)
            changed = await caller.call(
                "ChangeInvisibleDuration",
                group=topic(name),
                topic=topic(name),
                message_id="id",
                receipt_handle=handle,
                invisible_duration=seconds(2),
            )
            assert changed.status.code == Code.PROXY_TIMEOUT, changed
            assert await acknowledge(caller, name, name, handle) == [Code.INVALID_RECEIPT_HANDLE]
            assert [one.body for one in await receive(caller, name, name)] == [b"once"]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_an_acknowledgement_after_the_client_has_left_counts_while_nobody_else_has_the_message(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "left-and-done"
    filled(cluster, name, Message(name, b"once"))
    monkeypatch.setattr(renewing, "RELEASE_MS", STEP_MS)

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            caller = Caller(channel, "leaving@1")
            [got] = await gathered(caller, name, name, 1, auto_renew=True)
            left = await caller.call("NotifyClientTermination", group=topic(name))
            assert left.status.code == Code.OK
            assert await acknowledge(caller, name, name, got.system_properties.receipt_handle) == [Code.OK]
            assert await receive(caller, name, name) == []

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_an_acknowledgement_after_the_client_has_left_is_refused_when_another_has_the_message(
    cluster: LocalCluster,
) -> None:
    name = "left-too-soon"
    filled(cluster, name, Message(name, b"once"))

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            caller, other = Caller(channel, "left@1"), Caller(channel, "other@2")
            [got] = await gathered(caller, name, name, 1, auto_renew=True)
            await caller.call("NotifyClientTermination", group=topic(name))
            [again] = await gathered(other, name, name, 1)
            for who, one, code in ((caller, got, Code.INVALID_RECEIPT_HANDLE), (other, again, Code.OK)):
                assert await acknowledge(who, name, name, one.system_properties.receipt_handle) == [code]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_what_a_client_had_is_forgotten_when_its_handles_say_themselves_that_they_are_over(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "left-and-forgotten"
    filled(cluster, name, *[Message(name, b"held") for _ in range(3)])
    monkeypatch.setattr(renewing, "RELEASED_MAX", 2)

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            renewals, consuming = server.service.renewals, server.service._consuming
            await gathered(Caller(channel, "many@1"), name, name, 3, auto_renew=True)
            await renewals.release("many@1")
            assert len(renewals._released) == 2
            monkeypatch.setattr(consuming.clocks, "now_ms", lambda broker: 1 << 60)
            await renewals.renew()
            assert not renewals._released

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
