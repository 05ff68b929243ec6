"""Consumer groups: the list, lag per queue, members and their subscriptions, and moving offsets with a preview."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from contrailmq.client import OffsetPlace, QueueProgress
from contrailmq.client.admin.admin_offsets import OffsetPlan
from contrailmq.console.model.asking import Asking, BrokerPlace, Seen
from contrailmq.console.model.caching import Cached
from contrailmq.console.model.paging import ROWS, Page, paged
from contrailmq.message import ContrailError, dlq_topic, is_system_group, retry_topic
from contrailmq.wire.admin_bodies import (
    ConsumerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicStatsTable,
)
from contrailmq.wire.bodies import SubscriptionData, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode

LIST_AGE_S: Final = 10.0
MEMBERS_ASKED_MAX: Final = 64  # of a group, for their own subscriptions: each is a round trip through a broker


@dataclass(frozen=True, slots=True)
class GroupRow:
    name: str
    brokers: tuple[str, ...]
    lag: int | None = None  # None: not asked, or nothing consumed yet
    topic_count: int = 0  # without its own retry topic
    member_count: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    client_id: str
    address: str
    language: str
    version: int
    subscriptions: dict[str, str] | None = None  # topic -> expression, as the member says it; None: it did not say
    is_odd: bool = False  # its subscriptions differ from those of another member


@dataclass(frozen=True, slots=True)
class GroupDetail:
    name: str
    configs: dict[str, SubscriptionGroupConfig]
    progress: list[QueueProgress]
    members: list[Member]
    connection: ConsumerConnection | None
    retry_count: int  # messages in its retry topic that wait
    dead_letter_count: int

    @property
    def lag(self) -> int:
        return sum(row.lag for row in self.progress)

    @property
    def topics(self) -> list[str]:
        own = {row.queue.topic for row in self.progress}
        if self.connection is not None:
            own |= set(self.connection.subscription_table)
        return sorted(topic for topic in own if topic != retry_topic(self.name))

    @property
    def is_inconsistent(self) -> bool:
        return any(member.is_odd for member in self.members)


class Groups:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._list = Cached(self._ask_list, max_age_s=LIST_AGE_S)

    def forget(self) -> None:
        self._asking.forget_places()
        self._list.forget()

    # --- looking

    async def all(self) -> Seen[list[str]]:
        seen = await self._list.get()
        return Seen(list(seen.value), seen.notes)

    async def page(
        self, *, search: str = "", with_system: bool = False, number: int = 1, size: int = ROWS
    ) -> Seen[Page[GroupRow]]:
        """Only the groups of the page are asked for lag and members."""
        seen = await self._list.get()
        names = [name for name in seen.value if with_system or not is_system_group(name)]
        cut = paged(names, number=number, size=size, search=search)
        rows = await asyncio.gather(*(self._row(name, seen.value[name]) for name in cut.rows))
        notes = dict.fromkeys((*seen.notes, *(note for _, row_notes in rows for note in row_notes)))
        return Seen(Page([row for row, _ in rows], cut.number, cut.row_count), tuple(notes))

    async def detail(self, group: str) -> Seen[GroupDetail]:
        seen = await self._list.get()
        if group not in seen.value:
            self.forget()
            seen = await self._list.get()
        progress, connection = await asyncio.gather(self._asking.progress_seen(group), self._connection(group))
        if group not in seen.value and not progress.value and connection.value is None:
            raise no_such_group(group)
        members, dead = await asyncio.gather(
            self._members(group, connection.value),
            self._count(dlq_topic(group)),
        )
        detail = GroupDetail(
            name=group,
            configs=seen.value.get(group, {}),
            progress=progress.value,
            members=members.value,
            connection=connection.value,
            retry_count=sum(row.lag for row in progress.value if row.queue.topic == retry_topic(group)),
            dead_letter_count=dead,
        )
        notes = (*seen.notes, *progress.notes, *connection.notes, *members.notes)
        return Seen(detail, tuple(dict.fromkeys(notes)))

    # --- acting

    async def preview(self, group: str, topic: str, *, time_ms: int) -> OffsetPlan:
        """What it means to go on at a time: the first message stored at or after it."""
        return await self._asking.plan_offsets(group, topic, time_ms)

    async def preview_offset(self, group: str, topic: str, *, offset: int, queue: str = "") -> OffsetPlan:
        """Go on at an offset, in one queue (`broker:3`) or in all. Where a queue is shorter, at its end."""
        return await self._asking.plan_offset(group, topic, offset, queue=queue)

    async def preview_skip(self, group: str, topic: str) -> OffsetPlan:
        """Leave out everything that waits now."""
        return await self._asking.plan_offsets(group, topic, OffsetPlace.LATEST)

    async def apply(self, preview: OffsetPlan) -> None:
        """Move to what the preview showed, not to what it would show now."""
        await self._asking.move_offsets(preview.group, preview.targets)

    async def create(self, group: str, *, retries: int, is_ordered: bool) -> None:
        if await self._asking.group_config(group):
            raise ContrailError(f"group {group} exists: open it in the list")
        config = SubscriptionGroupConfig(group_name=group, retry_max_times=retries, consume_message_orderly=is_ordered)
        await self._asking.create_group(config)
        self.forget()

    async def change(self, group: str, *, retries: int, is_enabled: bool) -> None:
        for name, config in (await self._asking.group_config(group)).items():
            changed = msgspec.structs.replace(config, retry_max_times=retries, consume_enable=is_enabled, attributes={})
            await self._asking.create_group(changed, broker=name)
        self.forget()

    async def delete(self, group: str) -> None:
        """With its offsets. Refused while members are online: they would go on without a group."""
        connection = await self._connection(group)
        if connection.value is not None and connection.value.connection_set:
            count = len(connection.value.connection_set)
            raise ContrailError(f"group {group} has {count} members online: stop them, then delete it")
        await self._asking.delete_group(group)
        self.forget()

    # --- asking

    async def _ask_list(self) -> Seen[dict[str, dict[str, SubscriptionGroupConfig]]]:
        async def on(place: BrokerPlace) -> dict[str, SubscriptionGroupConfig]:
            answer = await self._asking.ask_place(place, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            return decode_body(answer.body, SubscriptionGroupWrapper).subscription_group_table

        seen = await self._asking.of_each(await self._asking.readable_places(), on)
        groups: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for place, table in seen.value.items():
            for group, config in table.items():
                groups.setdefault(group, {})[place.name] = config
        return Seen(dict(sorted(groups.items())), seen.notes)

    async def _row(self, group: str, configs: dict[str, SubscriptionGroupConfig]) -> tuple[GroupRow, tuple[str, ...]]:
        progress, connection = await asyncio.gather(self._asking.progress_seen(group), self._connection(group))
        found = connection.value
        row = GroupRow(
            name=group,
            brokers=tuple(sorted(configs)),
            lag=sum(item.lag for item in progress.value) if progress.value else None,
            topic_count=len({item.queue.topic for item in progress.value} - {retry_topic(group)}),
            member_count=len(found.connection_set) if found else 0,
            model=str(found.message_model).lower() if found else "",
        )
        return row, (*progress.notes, *connection.notes)

    async def _connection(self, group: str) -> Seen[ConsumerConnection | None]:
        async def on(place: BrokerPlace) -> ConsumerConnection | None:
            accept = (int(ResponseCode.SUCCESS), int(ResponseCode.CONSUMER_NOT_ONLINE))
            answer = await self._asking.ask_place(
                place, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}, accept=accept
            )
            return decode_body(answer.body, ConsumerConnection) if answer.code == ResponseCode.SUCCESS else None

        seen = await self._asking.of_each(await self._asking.readable_places(), on)
        merged: ConsumerConnection | None = None
        for found in seen.value.values():
            if found is None:
                continue
            if merged is None:
                merged = found
                continue
            known = {item.client_id for item in merged.connection_set}
            merged.connection_set += [item for item in found.connection_set if item.client_id not in known]
            merged.subscription_table = found.subscription_table | merged.subscription_table
        return Seen(merged, seen.notes)

    async def _members(self, group: str, connection: ConsumerConnection | None) -> Seen[list[Member]]:
        """Members with their own subscriptions, which brokers do not keep apart: each member is asked."""
        if connection is None:
            return Seen([])
        online = sorted(connection.connection_set, key=lambda item: item.client_id)
        said = await asyncio.gather(
            *(self._subscriptions(group, item.client_id) for item in online[:MEMBERS_ASKED_MAX])
        )
        said += [None] * (len(online) - len(said))
        usual = _usual([texts for texts in said if texts is not None])
        retry = retry_topic(group)
        members = [
            Member(
                item.client_id,
                item.client_addr,
                item.language,
                item.version,
                {topic: text for topic, text in texts.items() if topic != retry} if texts is not None else None,
                is_odd=texts is not None and texts != usual,
            )
            for item, texts in zip(online, said, strict=True)
        ]
        silent = sum(texts is None for texts in said)
        notes = (f"{silent} of {len(online)} members did not say what they subscribe to",) if silent else ()
        return Seen(members, notes)

    async def _subscriptions(self, group: str, client_id: str) -> dict[str, str] | None:
        try:
            info = await self._asking.running_info(group, client_id)
        except ContrailError:  # a note says how many did not answer
            return None
        return {data.topic: expression(data) for data in info.subscription_set}

    async def _count(self, topic: str) -> int:
        """Messages in a topic that may not exist."""

        async def on(place: BrokerPlace) -> int:
            accept = (int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST), int(ResponseCode.SYSTEM_ERROR))
            answer = await self._asking.ask_place(
                place, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, accept=accept
            )
            if answer.code != ResponseCode.SUCCESS:
                return 0
            return sum(
                item.max_offset - item.min_offset for item in decode_body(answer.body, TopicStatsTable).queues.values()
            )

        return sum((await self._asking.of_each(await self._asking.readable_places(), on)).value.values())


def expression(data: SubscriptionData) -> str:
    """What a subscription takes, as one would write it."""
    kind = data.expression_type
    return data.sub_string or "*" if kind in (None, "TAG") else f"{kind}: {data.sub_string}"


def _usual(said: list[dict[str, str]]) -> dict[str, str]:
    """What most members subscribe to."""
    return max(said, key=said.count) if said else {}


def no_such_group(group: str) -> ContrailError:
    return ContrailError(f"group {group} does not exist: look for its name in the list of groups")
