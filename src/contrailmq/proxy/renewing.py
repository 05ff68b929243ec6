"""Messages that are with a consumer who renews: prolonged while he lives, given back when he is gone.

A push consumer says how long it needs to nobody: its messages are made invisible for a minute, and before that ends
for longer and longer, three hours at most. When its process dies, or leaves, they come back after a second.

A client may show the handle that it got first although it was renewed: the newest one is looked up here. Brokers
confirm an acknowledgement by a handle that was replaced, and deliver the message again. So one request at a time is
about a message: what a client says of it waits for a renewal that is under way, and no renewal begins till then.

Each broker is asked for its own messages apart from the others': one that does not answer keeps nobody else's waiting.

What is put down here is not needed after a crash of the proxy: messages then come back when their invisible time ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
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
AT_ONCE_MAX: Final = 32  # requests of one pass, or of one client's end, that a broker has to answer


@dataclass(slots=True)
class _Held:
    client: str
    given: str  # the handle that the client was given
    group: str
    topic: str
    handle: Handle  # the one that counts
    since_ms: int
    renewed: int = 0
    failures: int = 0
    is_over: bool = False  # not renewed any more
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # the broker, by the handle that counts


class Renewals:
    """By client, then by the handle that the client was given."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        self._held: dict[str, dict[str, _Held]] = {}
        self._count = 0
        self._passes: dict[str, asyncio.Task[None]] = {}  # by broker

    def __len__(self) -> int:
        return self._count

    def hold(self, client: str, group: str, topic: str, handle: Handle) -> None:
        if self._count >= HELD_MAX:
            raise Refused(Code.TOO_MANY_REQUESTS, f"consumers hold {self._count} messages here: acknowledge some first")
        given = handle.text
        self._held.setdefault(client, {})[given] = _Held(client, given, group, topic, handle, handle.pop_time_ms)
        self._count += 1

    def newest(self, client: str, text: str) -> Handle | None:
        """The handle that counts, for one that was given out."""
        held = self._held.get(client, {}).get(text)
        return held.handle if held is not None else None

    async def settle(self, client: str, text: str, say: Callable[[Handle], Awaitable[T]]) -> T:
        """Say to the broker what becomes of a message that was given out, by the handle that counts.

        It is not renewed from now on. Without a renewal the handle that is shown counts. Refused when the handle that
        counts has expired.
        """
        held = self._held.get(client, {}).get(text)
        if held is None:
            return await say(self._consuming.live_handle(text))
        async with held.asking:
            self._consuming.check_live(held.handle)
            said = await say(held.handle)
            self.drop(client, text)
        return said

    def drop(self, client: str, text: str) -> None:
        """It is not renewed any more."""
        of_client = self._held.get(client, {})
        held = of_client.pop(text, None)
        if held is not None:
            held.is_over = True
            self._count -= 1
            if not of_client:
                del self._held[client]

    async def release(self, client: str) -> None:
        """The client is gone: others get its messages soon."""
        of_client = self._held.pop(client, {})
        self._count -= len(of_client)
        by_broker = _by_broker(of_client.values())
        await asyncio.gather(*(_each(some, self._let_go) for some in by_broker.values()))

    async def _let_go(self, held: _Held) -> None:
        async with held.asking:
            if held.is_over:
                return
            held.is_over = True
            try:
                held.handle = await self._consuming.change(held.group, held.topic, held.handle, RELEASE_MS)
            except ContrailError as exc:
                _log.info("a message of %s comes back at the end of its invisible time: %s", held.client, exc)

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(SCAN_S)
                self._begin_passes()
        finally:
            for task in self._passes.values():
                task.cancel()

    async def renew(self) -> None:
        """Until all that is due has been asked for."""
        self._begin_passes()
        await asyncio.gather(*self._passes.values())

    def _begin_passes(self) -> None:
        """One for each broker with messages that are due, unless its last one is still under way."""
        due = (held for of_client in self._held.values() for held in of_client.values() if self._is_due(held))
        for broker, some in _by_broker(due).items():
            if broker not in self._passes:
                task = self._passes[broker] = asyncio.create_task(_each(some, self._renew))
                task.add_done_callback(lambda _, broker=broker: self._passes.pop(broker))  # type: ignore[misc]

    def _is_due(self, held: _Held) -> bool:
        return held.handle.visible_ms - self._consuming.clocks.now_ms(held.handle.broker) < RENEW_BEFORE_MS

    async def _renew(self, held: _Held) -> None:
        if held.is_over or held.asking.locked():
            return
        if self._consuming.clocks.now_ms(held.handle.broker) - held.since_ms >= TOTAL_MS_MAX:
            _log.warning(
                "client %s has held a message of %s for three hours: it is given back", held.client, held.topic
            )
            self.drop(held.client, held.given)
            return
        try:
            step = LADDER_MS[min(held.renewed, len(LADDER_MS) - 1)]
            async with held.asking:
                held.handle = await self._consuming.change(held.group, held.topic, held.handle, step)
            held.renewed, held.failures = held.renewed + 1, 0
        except ContrailError as exc:
            held.failures += 1
            if held.failures >= FAILURES_MAX:
                _log.warning(
                    "a message of %s with client %s is not prolonged any more: %s", held.topic, held.client, exc
                )
                self.drop(held.client, held.given)


def _by_broker(some: Iterable[_Held]) -> dict[str, list[_Held]]:
    by_broker: defaultdict[str, list[_Held]] = defaultdict(list)
    for held in some:
        by_broker[held.handle.broker].append(held)
    return by_broker


async def _each(some: list[_Held], ask: Callable[[_Held], Awaitable[None]]) -> None:
    """AT_ONCE_MAX at a time: a broker that stands still costs one time limit for so many, not one for each."""
    left = iter(some)

    async def take() -> None:
        for held in left:
            await ask(held)

    await asyncio.gather(*(take() for _ in range(min(len(some), AT_ONCE_MAX))))
