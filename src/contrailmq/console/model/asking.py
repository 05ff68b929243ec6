"""How the console asks a cluster: every broker for itself, so that one that is away leaves a note and no hole.

`Asking` is an `Admin` whose requests go through the budget for polls. An answer is a `Seen`: the value, and a note for
each broker that could not be asked. Only when no NameServer answers is there an error instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, Unpack

from contrailmq.aio import Admin
from contrailmq.client import QueueProgress
from contrailmq.client.settings import ClientSettings
from contrailmq.console.model.budget import Budget
from contrailmq.console.model.caching import Cached
from contrailmq.message import ContrailError, retry_topic
from contrailmq.wire.bodies import ClusterInfo
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Command, ExtValue

T = TypeVar("T")
R = TypeVar("R")

TIMEOUT_S: Final = 3.0  # of one request: so long after a click one learns that nobody answers
MASTER_ID: Final = 0
CLUSTER_AGE_S: Final = 2.0
# Requests that change nothing: all that a read-only console sends. What is not listed is refused before it is sent.
LOOKING: Final = frozenset(
    {
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_TIMER_METRICS,
    }
)


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What the brokers that answered say, and a sentence for each one that did not."""

    value: T
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class BrokerPlace:
    """One process: a broker's name, its id (0 is the master) and its address."""

    name: str
    broker_id: int
    address: str
    cluster: str = ""

    @property
    def label(self) -> str:
        return self.name if self.broker_id == MASTER_ID else f"{self.name} (slave {self.broker_id})"


class Asking(Admin):
    """An administrator that lives with brokers that are away."""

    def __init__(self, *, namesrv: str, is_read_only: bool = False, **settings: Unpack[ClientSettings]) -> None:
        settings.setdefault("request_timeout_s", TIMEOUT_S)
        super().__init__(namesrv=namesrv, **settings)
        self.is_read_only = is_read_only
        self.budget = Budget()
        self._places = Cached(self._ask_places, max_age_s=CLUSTER_AGE_S)

    @property
    def namesrv_addresses(self) -> list[str]:
        return self._connected().name_servers.addresses

    def require_writing(self) -> None:
        """Raises when this console may only look."""
        if self.is_read_only:
            raise ContrailError("this console is read-only: start it without --read-only to change something")

    def forget_places(self) -> None:
        self._places.forget()

    async def places(self) -> list[BrokerPlace]:
        """Every broker that the NameServer knows, sorted by name and id."""
        return await self._places.get()

    async def _ask_places(self) -> list[BrokerPlace]:
        info: ClusterInfo = await self.cluster()
        clusters = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
        return sorted(
            BrokerPlace(name, broker_id, address, clusters.get(name, ""))
            for name, data in info.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        )

    async def readable_places(self) -> list[BrokerPlace]:
        """Of each broker name the one with the lowest id: the master, or while it is away its slave."""
        first: dict[str, BrokerPlace] = {}
        for place in await self.places():
            first.setdefault(place.name, place)
        return list(first.values())

    async def of_each(
        self, places: Iterable[BrokerPlace], question: Callable[[BrokerPlace], Awaitable[T]]
    ) -> Seen[dict[BrokerPlace, T]]:
        """Ask all of them at once."""
        asked = list(places)
        answers = await asyncio.gather(*(self._or_note(place, question) for place in asked))
        values = {place: answer[0] for place, answer in zip(asked, answers, strict=True) if len(answer) == 1}
        return Seen(values, tuple(answer[1] for answer in answers if len(answer) == 2))

    async def _or_note(
        self, place: BrokerPlace, question: Callable[[BrokerPlace], Awaitable[T]]
    ) -> tuple[T] | tuple[None, str]:
        try:
            return (await question(place),)
        except ContrailError as exc:
            return None, f"{place.label} at {place.address} did not answer: {exc}"

    async def ask_place(
        self,
        place: BrokerPlace,
        code: RequestCode,
        ext: dict[str, ExtValue] | None = None,
        body: bytes = b"",
        *,
        accept: tuple[int, ...] = (0,),
    ) -> Command:
        return await self._ask(place.address, code, ext, body, accept=accept)

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, ExtValue] | None = None,
        body: bytes = b"",
        *,
        accept: tuple[int, ...] = (0,),
    ) -> Command:
        if code not in LOOKING:
            self.require_writing()
        await self.budget.turn(address)
        began_s = time.monotonic()
        is_answered = False
        try:
            answer = await super()._ask(address, code, ext, body, accept=accept)
            is_answered = True
            return answer
        finally:
            self.budget.spent(address, time.monotonic() - began_s, is_answered=is_answered)

    # What `Admin` asks of all brokers or none.
    async def progress_seen(self, group: str) -> Seen[list[QueueProgress]]:
        """As `Admin.progress`, with notes."""
        retry = retry_topic(group)

        async def on(place: BrokerPlace) -> list[QueueProgress]:
            found = await self._progress_on(place.address, {"consumerGroup": group})
            if not any(row.queue.topic == retry for row in found):
                more = await self._progress_on(place.address, {"consumerGroup": group, "topic": retry})
                found += [row for row in more if row.lag > 0]
            return found

        seen = await self.of_each(await self.readable_places(), on)
        return Seen(sorted(row for rows in seen.value.values() for row in rows), seen.notes)
