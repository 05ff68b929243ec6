"""Messages that are with a consumer who renews: no renewal crosses what the consumer says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import pytest

from contrailmq.message import Message
from contrailmq.proxy import renewing
from contrailmq.proxy.server import ProxyServer
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from proxy.calling import Caller, proxy_of, topic
from proxy.test_consuming import filled, gathered, receive, seconds

LIMIT_S: Final = 120


async def until(is_so: Callable[[], bool], limit_s: float = 30) -> None:
    """Look again in each pass of the loop."""
    async with asyncio.timeout(limit_s):
        while not is_so():  # noqa: ASYNC110 - what other tasks bring about
            await asyncio.sleep(0.005)


class HeldAnswers:
    """What the broker answers to changes reaches the proxy when `go` is set."""

    def __init__(self, server: ProxyServer) -> None:
        assert server.service is not None
        self.go, self.changed = asyncio.Event(), 0
        self._consuming = server.service._consuming
        self._change = self._consuming.change
        self._consuming.change = self._held  # type: ignore[method-assign]

    async def _held(self, *args: Any) -> Any:
        changed = await self._change(*args)
        self.changed += 1
        await self.go.wait()
        return changed


CALLS: Final = {
    "AckMessage": lambda handle: {"entries": [{"message_id": "id", "receipt_handle": handle}]},
    "ChangeInvisibleDuration": lambda handle: {
        "message_id": "id",
        "receipt_handle": handle,
        "invisible_duration": seconds(60),
    },
    "ForwardMessageToDeadLetterQueue": lambda handle: {"message_id": "id", "receipt_handle": handle},
}


@pytest.mark.parametrize("call", CALLS)
def test_what_crosses_a_renewal_counts_for_the_renewed_message(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The broker has renewed it and the proxy has not heard of that: the old handle counts no more."""
    name, group = f"crossing-{call}", f"crossers-{call}"
    filled(cluster, name, Message(name, b"once"))
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)  # each look prolongs
    monkeypatch.setattr(renewing, "LADDER_MS", (2_000,))  # a renewed message that is not done comes again soon

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            caller = Caller(channel, "crossing@1")
            [got] = await gathered(caller, name, group, 1, auto_renew=True)
            fields = CALLS[call](got.system_properties.receipt_handle)
            answers = HeldAnswers(server)
            renewal = asyncio.create_task(server.service.renewals.renew())
            await until(lambda: answers.changed == 1)
            asked = asyncio.create_task(caller.call(call, group=topic(group), topic=topic(name), **fields))
            await until(lambda: server.served[call] == 1)
            answers.go.set()
            answer = await asked
            assert answer.status.code == Code.OK, answer
            await renewal
            assert len(server.service.renewals) == 0
            assert await receive(caller, name, group) == []

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_renewal_leaves_a_message_alone_that_is_being_acknowledged(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's broker would renew an acknowledged message, and it would come again."""
    filled(cluster, "acked-first", Message("acked-first", b"once"))
    monkeypatch.setattr(renewing, "RENEW_BEFORE_MS", 3_600_000)

    async def main() -> None:
        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            renewals, consuming = server.service.renewals, server.service._consuming
            caller = Caller(channel, "acking@1")
            [got] = await gathered(caller, "acked-first", "first-ackers", 1, auto_renew=True)
            given, answers, go = got.system_properties.receipt_handle, HeldAnswers(server), asyncio.Event()

            async def slow(handle: Any) -> None:
                await go.wait()
                await consuming.acknowledge("first-ackers", "acked-first", handle)

            acknowledged = asyncio.create_task(renewals.settle("acking@1", given, slow))
            await asyncio.sleep(0)  # it holds the handle now
            renewal = asyncio.create_task(renewals.renew())
            await asyncio.sleep(0)
            go.set()
            answers.go.set()
            await asyncio.gather(acknowledged, renewal)
            assert answers.changed == 0
            assert len(renewals) == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
