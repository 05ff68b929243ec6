"""Topics: the list with search and pages, one topic in detail, and what can be done to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from contrailmq.aio import Producer
from contrailmq.client.results import SendResult
from contrailmq.console.model.asking import MASTER_ID, Asking, BrokerPlace, Seen
from contrailmq.console.model.caching import Cached
from contrailmq.console.model.paging import ROWS, Page, paged
from contrailmq.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    ContrailError,
    Message,
    MessageQueue,
    is_system_topic,
)
from contrailmq.wire.admin_bodies import GroupList, ProducerTable, TopicOffset, TopicStatsTable
from contrailmq.wire.bodies import TopicConfig, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ResponseError

LIST_AGE_S: Final = 10.0
SENDER_GROUP: Final = "contrailmq_console"


class TopicKind(StrEnum):
    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    kind: str
    brokers: tuple[str, ...]
    read_queues: int  # of all brokers
    write_queues: int
    permission: int  # that all brokers give
    is_ordered: bool


@dataclass(frozen=True, slots=True)
class ProducerRow:
    group: str
    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class TopicDetail:
    row: TopicRow
    configs: dict[str, TopicConfig]  # by broker name
    queues: dict[MessageQueue, TopicOffset]
    groups: list[str]
    producers: list[ProducerRow]  # of the topic's brokers: nobody says which topic a producer sends to
    put_per_s: float

    @property
    def message_count(self) -> int:
        return sum(max(0, queue.max_offset - queue.min_offset) for queue in self.queues.values())


class Topics:
    """Answers of the brokers, at most ten seconds old."""

    def __init__(self, asking: Asking, settings: dict[str, object]) -> None:
        self._asking = asking
        self._settings = settings
        self._list = Cached(self._ask_list, max_age_s=LIST_AGE_S)

    def forget(self) -> None:
        self._asking.forget_places()
        self._list.forget()

    # --- looking

    async def all(self) -> Seen[list[TopicRow]]:
        """Every topic, sorted by name."""
        return Seen(list((await self._list.get()).value[0].values()), (await self._list.get()).notes)

    async def page(
        self, *, search: str = "", kind: str = "", number: int = 1, size: int = ROWS
    ) -> Seen[Page[TopicRow]]:
        """`kind` is a `TopicKind`, or empty for all that people made."""
        seen = await self.all()
        hidden = () if kind else (TopicKind.RETRY, TopicKind.DEAD_LETTER, TopicKind.SYSTEM)
        rows = [row for row in seen.value if (row.kind == kind if kind else row.kind not in hidden)]
        return Seen(paged(rows, number=number, size=size, search=search, name=lambda row: row.name), seen.notes)

    async def put_rates(self, topics: list[str]) -> dict[str, float]:
        """Messages a second that came in over the last minute, of each topic."""
        rates = await asyncio.gather(*(self._put_rate(topic) for topic in topics))
        return dict(zip(topics, rates, strict=True))

    async def detail(self, topic: str) -> Seen[TopicDetail]:
        rows, configs = (await self._list.get()).value
        if topic not in rows:
            self.forget()
            rows, configs = (await self._list.get()).value
        row = rows.get(topic)
        if row is None:
            raise ContrailError(f"topic {topic} does not exist: look for its name in the list of topics")
        places = [place for place in await self._asking.readable_places() if place.name in row.brokers]
        queues, groups, producers, rate = await asyncio.gather(
            self._asking.of_each(places, lambda place: self._queues_on(place, topic)),
            self._asking.of_each(places, lambda place: self._groups_on(place, topic)),
            self._asking.of_each(places, self._producers_on),
            self._put_rate(topic),
        )
        detail = TopicDetail(
            row=row,
            configs={name: topics[topic] for name, topics in configs.items() if topic in topics},
            queues=dict(sorted(item for table in queues.value.values() for item in table.items())),
            groups=sorted({group for found in groups.value.values() for group in found}),
            producers=_distinct([row for found in producers.value.values() for row in found]),
            put_per_s=rate,
        )
        return Seen(detail, tuple(dict.fromkeys((*queues.notes, *groups.notes, *_known(producers.notes)))))

    # --- acting

    async def create(self, topic: str, *, queues: int, permission: int, kind: str, is_ordered: bool) -> None:
        if await self._asking.topic_holders(topic):
            raise ContrailError(f"topic {topic} exists: open it in the list to change it")
        attributes = {"message.type": kind.upper()} if kind and kind != TopicKind.NORMAL else None
        await self._asking.create_topic(
            topic, queues=queues, permission=permission, order=is_ordered, attributes=attributes
        )
        self.forget()

    async def change(self, topic: str, *, read_queues: int, write_queues: int, permission: int) -> int:
        """Returns how many messages that some group has not consumed can no longer be read: see `unreachable`."""
        held = await self._asking.topic_holders(topic)
        unread = 0
        for name in held:
            unread += await self._asking.unread_beyond(topic, read_queues, broker=name)
        await self._asking.update_topic(
            topic, read_queues=read_queues, write_queues=write_queues, permission=permission
        )
        self.forget()
        return unread

    async def unreachable(self, topic: str, read_queues: int) -> int:
        """How many messages that some group has not consumed lie in queues beyond that number."""
        held = await self._asking.topic_holders(topic)
        return sum([await self._asking.unread_beyond(topic, read_queues, broker=name) for name in held])

    async def delete(self, topic: str) -> None:
        await self._asking.delete_topic(topic)
        self.forget()

    async def send(
        self, topic: str, body: bytes, *, tags: str = "", keys: str = "", properties: dict[str, str] | None = None
    ) -> SendResult:
        return await self.send_message(
            Message(topic, body, tags=tags or None, keys=keys.split(), properties=properties or {})
        )

    async def send_message(self, message: Message) -> SendResult:
        self._asking.require_writing()
        await self._asking.route(message.topic)  # somebody may have deleted it: a send would create it again
        async with Producer(SENDER_GROUP, namesrv=self._asking.options.namesrv, **self._settings) as producer:  # type: ignore[arg-type]
            return await producer.send(message)

    # --- asking

    async def _ask_list(self) -> Seen[tuple[dict[str, TopicRow], dict[str, dict[str, TopicConfig]]]]:
        places = await self._asking.readable_places()
        seen = await self._asking.of_each(places, lambda place: self._asking._all_topics(place.address))
        configs = {place.name: table for place, table in seen.value.items()}
        own = {place.cluster for place in places} | {place.name for place in places}
        own |= {f"{place.cluster}_REPLY_TOPIC" for place in places}
        held: dict[str, dict[str, TopicConfig]] = {}
        for name, table in configs.items():
            for topic, config in table.items():
                held.setdefault(topic, {})[name] = config
        rows = {topic: _row(topic, held[topic], is_own=topic in own) for topic in sorted(held)}
        return Seen((rows, configs), seen.notes)

    async def _put_rate(self, topic: str) -> float:
        async def on(place: BrokerPlace) -> float:
            try:
                return (await self._asking.stats_item(place.address, "TOPIC_PUT_NUMS", topic)).stats_minute.tps
            except ResponseError:  # nothing was counted yet
                return 0.0

        row = (await self._list.get()).value[0].get(topic)
        masters = [
            place
            for place in await self._asking.places()
            if place.broker_id == MASTER_ID and row is not None and place.name in row.brokers
        ]
        return sum((await self._asking.of_each(masters, on)).value.values())

    async def _queues_on(self, place: BrokerPlace, topic: str) -> dict[MessageQueue, TopicOffset]:
        answer = await self._asking.ask_place(place, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        return decode_body(answer.body, TopicStatsTable).queues

    async def _groups_on(self, place: BrokerPlace, topic: str) -> list[str]:
        answer = await self._asking.ask_place(place, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        return decode_body(answer.body, GroupList).group_list

    async def _producers_on(self, place: BrokerPlace) -> list[ProducerRow]:
        answer = await self._asking.ask_place(place, RequestCode.GET_ALL_PRODUCER_INFO)
        return [
            ProducerRow(group, item.client_id, item.remote_ip.removeprefix("/"), item.language, item.version)
            for group, items in decode_body(answer.body, ProducerTable).data.items()
            for item in items
        ]


def kind_of(topic: str, attributes: dict[str, str], *, is_own: bool) -> str:
    if topic.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if topic.startswith(DLQ_PREFIX):
        return TopicKind.DEAD_LETTER
    if is_own or is_system_topic(topic):
        return TopicKind.SYSTEM
    said = attributes.get("message.type", "").lower()
    return said if said in set(TopicKind) else TopicKind.NORMAL


def _row(topic: str, configs: dict[str, TopicConfig], *, is_own: bool) -> TopicRow:
    first = next(iter(configs.values()))
    permission = 7
    for config in configs.values():
        permission &= config.perm
    return TopicRow(
        name=topic,
        kind=kind_of(topic, first.attributes, is_own=is_own),
        brokers=tuple(sorted(configs)),
        read_queues=sum(config.read_queue_nums for config in configs.values()),
        write_queues=sum(config.write_queue_nums for config in configs.values()),
        permission=permission,
        is_ordered=any(config.order for config in configs.values()),
    )


def _distinct(rows: list[ProducerRow]) -> list[ProducerRow]:
    """A producer is connected to every broker that it sends to."""
    return sorted(
        {(row.group, row.client_id): row for row in rows}.values(), key=lambda row: (row.group, row.client_id)
    )


def _known(notes: tuple[str, ...]) -> tuple[str, ...]:
    """Brokers before 4.9.3 do not list producers; that is no fault worth a note."""
    return tuple(note for note in notes if "not supported" not in note)
