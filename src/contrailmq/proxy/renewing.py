"""Messages that are with a consumer who renews: prolonged while he lives, given back when he is gone.

A push consumer says how long it needs to nobody: its messages are made invisible for a minute, and before that ends
for longer and longer, three hours at most. When its process dies, or leaves, they come back after a second.

A client may show the handle that it got first although it was renewed: the newest one is looked up here. Brokers
confirm an acknowledgement by a handle that was replaced, and deliver the message again. So one request at a time is
about a message: what a client says of it waits for a renewal that is under way, and no renewal begins till then.

What is put down here is not needed after a crash of the proxy: messages then come back when their invisible time ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from contrailmq.message import ContrailError
from contrailmq.proxy.consuming import Consuming
from contrailmq.proxy.handles import Handle
from contrailmq.proxy.statuses import Code, Refused

_log = logging.getLogger("contrailmq.proxy")
T = TypeVar("T")

INVISIBLE_MS: Final = 60_000
SCAN_S: Final = 5.0
RENEW_BEFORE_MS: Final = 10_000
LADDER_MS: Final = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
TOTAL_MS_MAX: Final = 3 * 3_600_000
FAILURES_MAX: Final = 3
RELEASE_MS: Final = 1_000
HELD_MAX: Final = 200_000  # messages of all clients


@dataclass(slots=True)
class _Held:
    group: str
    topic: str
    handle: Handle
    since_ms: int
    renewed: int = 0
    failures: int = 0
    is_settled: bool = False  # the client has said what becomes of it
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # the broker, by the handle that counts


class Renewals:
    """By client, then by the handle that the client was given."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        self._held: dict[str, dict[str, _Held]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, client: str, group: str, topic: str, handle: Handle) -> None:
        if self._count >= HELD_MAX:
            raise Refused(Code.TOO_MANY_REQUESTS, f"consumers hold {self._count} messages here: acknowledge some first")
        self._held.setdefault(client, {})[handle.text] = _Held(group, topic, handle, handle.pop_time_ms)
        self._count += 1

    def newest(self, client: str, text: str) -> Handle | None:
        """The handle that counts, for one that was given out."""
        held = self._held.get(client, {}).get(text)
        return held.handle if held is not None else None

    async def settle(self, client: str, text: str, say: Callable[[Handle], Awaitable[T]]) -> T:
        """Say to the broker what becomes of a message that was given out, by the handle that counts.

        It is not renewed from now on. Without a renewal the handle that is shown counts. Refused when it has expired.
        """
        held = self._held.get(client, {}).get(text)
        if held is None:
            return await say(self._consuming.live_handle(text))
        async with held.asking:
            said = await say(held.handle)
            held.is_settled = True
        self.drop(client, text)
        return said

    def drop(self, client: str, text: str) -> None:
        """It is not renewed any more."""
        of_client = self._held.get(client)
        if of_client is not None and of_client.pop(text, None) is not None:
            self._count -= 1
            if not of_client:
                del self._held[client]

    async def release(self, client: str) -> None:
        """The client is gone: others get its messages soon."""
        of_client = self._held.pop(client, {})
        self._count -= len(of_client)
        for held in of_client.values():
            try:
                async with held.asking:
                    if not held.is_settled:
                        held.handle = await self._consuming.change(held.group, held.topic, held.handle, RELEASE_MS)
            except ContrailError as exc:
                _log.info("a message of %s comes back at the end of its invisible time: %s", client, exc)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SCAN_S)
            await self.renew()

    async def renew(self) -> None:
        for client, of_client in list(self._held.items()):
            for text, held in list(of_client.items()):
                at_ms = self._consuming.clocks.now_ms(held.handle.broker)
                if held.handle.visible_ms - at_ms < RENEW_BEFORE_MS and not held.asking.locked():
                    await self._renew(client, text, held, at_ms)

    async def _renew(self, client: str, text: str, held: _Held, at_ms: int) -> None:
        if at_ms - held.since_ms >= TOTAL_MS_MAX:
            _log.warning("client %s has held a message of %s for three hours: it is given back", client, held.topic)
            self.drop(client, text)
            return
        try:
            step = LADDER_MS[min(held.renewed, len(LADDER_MS) - 1)]
            async with held.asking:
                held.handle = await self._consuming.change(held.group, held.topic, held.handle, step)
            held.renewed, held.failures = held.renewed + 1, 0
        except ContrailError as exc:
            held.failures += 1
            if held.failures >= FAILURES_MAX:
                _log.warning("a message of %s with client %s is not prolonged any more: %s", held.topic, client, exc)
                self.drop(client, text)
