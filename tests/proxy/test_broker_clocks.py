"""A proxy whose clock differs from the brokers': what a handle is worth is the broker's to say, by its own clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Final

import grpc
import pytest

from contrailmq.message import Message
from contrailmq.proxy import clock, renewing
from contrailmq.proxy.handles import BrokerClocks, parse_handle
from contrailmq.proxy.server import ProxyServer
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from proxy.calling import Caller, proxy_of
from proxy.test_consuming import acknowledge, filled, gathered, receive, seconds

LIMIT_S: Final = 60
AHEAD_S: Final = 180
INVISIBLE_S: Final = 120
TRIP_S: Final = 0.02
CLOCKS: Final = {"behind": -3600, "ahead": 3600}


def run(
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: int,
    work: Callable[[ProxyServer, Caller], Awaitable[None]],
) -> None:
    """With a proxy whose clock is that much ahead of the brokers'."""
    wrong = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead_s * 1_000_000_000)
    monkeypatch.setattr(clock, "time", wrong)

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            await work(server, Caller(channel, "clocks@1"))

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_receive_gets_what_is_there_and_waits_for_what_comes(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """A broker takes a receive that was born longer ago than it waits for one that its client gave up."""
    name = f"clock-{clock}"
    filled(cluster, name, Message(name, b"here"))

    async def work(server: ProxyServer, caller: Caller) -> None:
        async with asyncio.timeout(LIMIT_S / 2):
            [got] = await gathered(caller, name, f"{clock}-readers", 1)
        assert got.body == b"here"
        began_s = time.monotonic()
        assert await receive(caller, name, f"{clock}-readers") == []
        assert time.monotonic() - began_s > 4

    run(cluster, monkeypatch, CLOCKS[clock], work)


def test_a_prompt_acknowledgement_counts_at_a_proxy_that_is_ahead(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster, "clock-prompt", Message("clock-prompt", b"prompt"))

    async def work(server: ProxyServer, caller: Caller) -> None:
        [got] = await gathered(caller, "clock-prompt", "prompt", 1, invisible_duration=seconds(INVISIBLE_S))
        handle = got.system_properties.receipt_handle
        assert await acknowledge(caller, "clock-prompt", "prompt", handle) == [Code.OK]

    run(cluster, monkeypatch, AHEAD_S, work)


def test_a_late_acknowledgement_is_refused_at_a_proxy_that_is_behind(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster, "clock-late", Message("clock-late", b"late"))

    async def work(server: ProxyServer, caller: Caller) -> None:
        [got] = await gathered(caller, "clock-late", "late", 1, invisible_duration=seconds(INVISIBLE_S))
        handle = parse_handle(got.system_properties.receipt_handle)
        expired = handle._replace(pop_time_ms=handle.pop_time_ms - 1000 * INVISIBLE_S - 1000).text
        assert await acknowledge(caller, "clock-late", "late", expired) == [Code.INVALID_RECEIPT_HANDLE]

    run(cluster, monkeypatch, -AHEAD_S, work)


@pytest.mark.parametrize("clock", CLOCKS)
def test_messages_are_renewed_when_their_broker_s_time_has_come(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    name = f"clock-due-{clock}"
    filled(cluster, name, Message(name, b"due"))

    async def work(server: ProxyServer, caller: Caller) -> None:
        assert server.service is not None
        renewals = server.service.renewals
        [got] = await gathered(caller, name, f"{clock}-due", 1, auto_renew=True)
        given = got.system_properties.receipt_handle
        for before_ms, is_due in ((10_000, False), (60_001, True)):
            monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", before_ms)
            await renewals.renew()
            newest = renewals.newest("clocks@1", given)
            assert newest is not None
            assert (newest.text != given) == is_due

    run(cluster, monkeypatch, CLOCKS[clock], work)


def test_the_time_at_a_broker_is_told_by_its_last_pops() -> None:
    async def main() -> None:
        loop, clocks = asyncio.get_running_loop(), BrokerClocks()
        began_ms = clock.now_ms()
        assert began_ms <= clocks.now_ms("unknown") <= clock.now_ms()
        now_s = loop.time()

        def is_told(name: str, at_the_pop_ms: int) -> bool:
            """As much later than the pop as the loop's clock says, and at most by the trip later."""
            passed_ms = clocks.now_ms(name) - at_the_pop_ms
            return 0 <= passed_ms <= (loop.time() - now_s + TRIP_S) * 1000 + 1

        for name, ahead_s in (("even", 0.0), ("ahead", 1e6)):
            pop_time_ms = int((now_s + ahead_s) * 1000)
            clocks.popped(name, pop_time_ms, sent_s=now_s - TRIP_S, received_s=now_s)
            assert is_told(name, pop_time_ms)
        clocks.popped("waited", 5_000_000, sent_s=now_s - 20, received_s=now_s)  # the pop was at the end of the wait
        assert is_told("waited", 5_000_000)

    asyncio.run(main())
