"""Messages that are with a consumer who renews: prolonged while he lives, given back when he is gone.

A push consumer says how long it needs to nobody: its messages are made invisible for a minute, and before that ends
for longer and longer, three hours at most. When its process dies, or leaves, they come back after a second.

A client may show the handle that it got first although it was renewed: the newest one is looked up here. Brokers
confirm an acknowledgement by a handle that was replaced, and deliver the message again. So one request at a time is
about a message: what a client says of it waits for a renewal that is under way, and no renewal begins till then.

Whoever hears no answer to a change does not know which handle counts. So a renewal waits for its answer until the
message's time is over. If the answer is lost, with its connection for example, the old handle is asked to be kept
longer before anything else is said by it: the broker refuses that if it counts no more, and the client hears so. When a
client is gone its handles stay known until they say themselves that they are over, for what it said before. So do those
of consumers who do not renew, if a change was not answered.

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
from contrailmq.proxy.handles import Handle, parse_handle
from contrailmq.proxy.statuses import Code, Refused
from contrailmq.wire.errors import ConnectError, ResponseError

_log = logging.getLogger("contrailmq.proxy")
T = TypeVar("T")

INVISIBLE_MS: Final = 60_000
SCAN_S: Final = 5.0
RENEW_BEFORE_MS: Final = 10_000
LADDER_MS: Final = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
TOTAL_MS_MAX: Final = 3 * 3_600_000
FAILURES_MAX: Final = 3
RELEASE_MS: Final = 1_000
CERTAIN_MS: Final = 10_000  # of a change that finds out whether a handle counts
HELD_MAX: Final = 200_000  # messages of all clients
RELEASED_MAX: Final = 200_000  # of those that are gone: the newest
ANSWER_S: Final = 3.0  # a renewal waits at least for so long
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
    is_doubtful: bool = False  # a change of it was not answered: another handle may count
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # the broker, by the handle that counts


class Renewals:
    """By client, then by the handle that the client was given."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        self._held: dict[str, dict[str, _Held]] = {}
        self._released: dict[tuple[str, str], _Held] = {}  # by client and the handle that it was given; oldest first
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
        held = self._find(client, text)
        if held is None:
            return await say(self._consuming.live_handle(text))
        async with held.asking:
            await self._make_certain(held)
            said = await say(held.handle)
            self.drop(client, text)
        return said

    async def change(
        self, client: str, group: str, topic: str, text: str, invisible_ms: int, *, suspends: bool = False
    ) -> Handle:
        """Say that others may have a message in `invisible_ms`, as `settle` does; the handle that counts then."""
        held = self._find(client, text)
        if held is None:
            handle = self._consuming.live_handle(text)
            held = _Held(client, text, group, topic, handle, handle.pop_time_ms, is_over=True)
        async with held.asking:
            try:
                await self._make_certain(held)
                await self._change(held, invisible_ms, suspends=suspends)
            finally:
                if held.is_over and held.is_doubtful:
                    self._remember([held])
            self.drop(client, text)
        return held.handle

    def _find(self, client: str, text: str) -> _Held | None:
        return self._held.get(client, {}).get(text) or self._released.get((client, text))

    async def _make_certain(self, held: _Held) -> None:
        """That its handle counts. Refused when it has expired, an error when it counts no more or nobody knows."""
        self._consuming.check_live(held.handle)
        if held.is_doubtful:
            await self._change(held, CERTAIN_MS)

    async def _change(
        self, held: _Held, invisible_ms: int, *, timeout_s: float | None = None, suspends: bool = False
    ) -> None:
        """Have the broker change when it is due. Whoever is cancelled or hears no answer leaves it doubtful."""
        was_doubtful, held.is_doubtful = held.is_doubtful, True
        try:
            held.handle = await self._consuming.change(
                held.group, held.topic, held.handle, invisible_ms, timeout_s=timeout_s, suspends=suspends
            )
            held.is_doubtful = False
        except (ResponseError, ConnectError):
            held.is_doubtful = was_doubtful
            raise

    def drop(self, client: str, text: str) -> None:
        """It is not renewed any more."""
        of_client = self._held.get(client, {})
        held = of_client.pop(text, None)
        self._released.pop((client, text), None)
        if held is not None:
            held.is_over = True
            self._count -= 1
            if not of_client:
                del self._held[client]

    async def release(self, client: str) -> None:
        """The client is gone: others get its messages soon."""
        of_client = self._held.pop(client, {})
        self._count -= len(of_client)
        self._remember(of_client.values())
        by_broker = _by_broker(of_client.values())
        await asyncio.gather(*(_each(some, self._let_go) for some in by_broker.values()))

    def _remember(self, some: Iterable[_Held]) -> None:
        """Until their handles say themselves that they are over."""
        for held in some:
            self._released[held.client, held.given] = held
        while len(self._released) > RELEASED_MAX:
            del self._released[next(iter(self._released))]

    def _forget_released(self) -> None:
        now_ms = self._consuming.clocks.now_ms
        for place, held in list(self._released.items()):
            if parse_handle(held.given).visible_ms > now_ms(held.handle.broker):
                break
            del self._released[place]

    async def _let_go(self, held: _Held) -> None:
        async with held.asking:
            if held.is_over:
                return
            held.is_over = True
            try:
                await self._change(held, RELEASE_MS)
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
        self._forget_released()
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
            left_ms = held.handle.visible_ms - self._consuming.clocks.now_ms(held.handle.broker)
            async with held.asking:
                await self._change(held, step, timeout_s=max(left_ms / 1000, ANSWER_S))
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
