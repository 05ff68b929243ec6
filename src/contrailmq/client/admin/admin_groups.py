"""Administration of groups: settings, members, progress, offsets."""

from __future__ import annotations

import enum
from typing import NamedTuple

from contrailmq.client.admin.admin_topics import AdminTopics
from contrailmq.client.errors import ClientError, number
from contrailmq.message import ContrailError, MessageQueue, check_group, retry_topic
from contrailmq.wire.admin_bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from contrailmq.wire.bodies import TopicList, decode_body, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.header import ExtValue


class OffsetPlace(enum.Enum):
    """Ends of a queue, for resetting offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"


class QueueProgress(NamedTuple):
    """How far a group is in one queue. `lag` counts messages that it has not consumed."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_time_ms: int

    @property
    def lag(self) -> int:
        return max(0, self.broker_offset - self.consumer_offset)


class AdminGroups(AdminTopics):
    """Consumer and producer groups."""

    async def groups(self) -> list[str]:
        """All consumer groups that any broker knows, sorted."""
        return sorted({group for configs in (await self.group_configs()).values() for group in configs})

    async def group_configs(self, *, broker: str | None = None) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Settings of all groups, by broker name and group."""
        configs: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for name, address in (await self._readable(broker=broker)).items():
            answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            configs[name] = decode_body(answer.body, SubscriptionGroupWrapper).subscription_group_table
        return configs

    async def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """The group's settings, by broker name; empty when no broker knows it."""
        name = self._name(group)
        return {broker: configs[name] for broker, configs in (await self.group_configs()).items() if name in configs}

    async def create_group(
        self, config: SubscriptionGroupConfig | str, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Create a group or change it, from its full settings or just its name."""
        if isinstance(config, str):
            config = SubscriptionGroupConfig(group_name=self._name(config))
        check_group(config.group_name)
        for address in (await self.masters(broker=broker, cluster=cluster)).values():
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))

    async def delete_group(
        self, group: str, *, clean_offsets: bool = True, broker: str | None = None, cluster: str | None = None
    ) -> None:
        ext: dict[str, ExtValue] = {
            "groupName": self._name(group),
            "cleanOffset": clean_offsets,
            "removeOffset": clean_offsets,
        }
        for address in (await self.masters(broker=broker, cluster=cluster)).values():
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def group_topics(self, group: str) -> list[str]:
        """The topics that the group consumes or has offsets of."""
        topics: set[str] = set()
        for address in (await self._readable()).values():
            answer = await self._ask(address, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": self._name(group)})
            topics.update(decode_body(answer.body, TopicList).topic_list)
        return sorted(topics)

    # Members.
    async def consumers(self, group: str) -> ConsumerConnection | None:
        """The group's members and subscriptions as the brokers see them; None when nobody is online."""
        merged: ConsumerConnection | None = None
        for address in (await self._readable()).values():
            answer = await self._ask(
                address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                {"consumerGroup": self._name(group)},
                accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
            )
            if answer.code != ResponseCode.SUCCESS:
                continue
            found = decode_body(answer.body, ConsumerConnection)
            if merged is None:
                merged = found
                continue
            known = {connection.client_id for connection in merged.connection_set}
            merged.connection_set += [item for item in found.connection_set if item.client_id not in known]
        return merged

    async def producers(self, group: str) -> list[str]:
        """Client ids of the group's producers that are connected."""
        ids: set[str] = set()
        for address in (await self.masters()).values():
            answer = await self._ask(
                address,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                {"producerGroup": self._name(group)},
                accept=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR),
            )
            if answer.code == ResponseCode.SUCCESS:
                ids.update(item.client_id for item in decode_body(answer.body, ProducerConnection).connection_set)
        return sorted(ids)

    async def all_producers(self, *, broker: str | None = None) -> dict[str, list[ProducerInfo]]:
        """Every producer that is connected, by group. Brokers before 4.9.3 cannot say."""
        found: dict[str, dict[str, ProducerInfo]] = {}
        for address in (await self.masters(broker=broker)).values():
            answer = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
            for group, producers in decode_body(answer.body, ProducerTable).data.items():
                found.setdefault(group, {}).update((item.client_id, item) for item in producers)
        return {group: [members[name] for name in sorted(members)] for group, members in sorted(found.items())}

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """What one member says of itself."""
        ext: dict[str, ExtValue] = {
            "consumerGroup": self._name(group),
            "clientId": client_id,
            "jstackEnable": False,
        }
        last: ContrailError | None = None
        for address in (await self.masters()).values():
            try:
                answer = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            except ResponseError as exc:
                last = exc
                continue
            return decode_body(answer.body, ConsumerRunningInfo)
        assert last is not None
        raise last

    # Progress and offsets.
    async def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """How far the group is, queue by queue.

        While a master is away its slave is asked. Brokers list topics where the group has an offset. What waits in its
        retry topic counts without one too.
        """
        ext: dict[str, ExtValue] = {"consumerGroup": self._name(group)}
        if topic is not None:
            ext["topic"] = self._name(topic)
        retry = retry_topic(self._name(group))
        rows: list[QueueProgress] = []
        for address in (await self._readable()).values():
            found = await self._progress_on(address, ext)
            if topic is None and not any(row.queue.topic == retry for row in found):
                found += [row for row in await self._progress_on(address, ext | {"topic": retry}) if row.lag > 0]
            rows += found
        return sorted(rows)

    async def _progress_on(self, address: str, ext: dict[str, ExtValue]) -> list[QueueProgress]:
        answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, ext)
        return [
            QueueProgress(queue, item.broker_offset, item.consumer_offset, item.last_timestamp)
            for queue, item in decode_body(answer.body, ConsumeStats).queues.items()
        ]

    async def lag(self, group: str, topic: str | None = None) -> int:
        """Messages that the group has not consumed."""
        return sum(row.lag for row in await self.progress(group, topic))

    async def unread_beyond(self, topic: str, queues: int, *, broker: str | None = None) -> int:
        """Messages in the queues from number `queues` on that can be read and that some group has not consumed.

        Only groups that have an offset in the topic or subscribe to it count; without any, every message does.
        """
        readable = {
            name: range(queues, config.read_queue_nums)
            for name, config in (await self.topic_holders(topic, broker=broker)).items()
        }
        stats = {
            queue: item
            for queue, item in (await self.topic_stats(topic)).items()
            if queue.queue_id in readable.get(queue.broker_name, ())
        }
        if not any(item.max_offset > item.min_offset for item in stats.values()):
            return 0
        consumed: dict[MessageQueue, int] = {}
        for group in await self.topic_groups(topic):
            for row in await self.progress(group, topic):
                consumed[row.queue] = min(row.consumer_offset, consumed.get(row.queue, row.consumer_offset))
        return sum(
            max(0, item.max_offset - max(item.min_offset, consumed.get(queue, 0))) for queue, item in stats.items()
        )

    async def offset(self, group: str, queue: MessageQueue) -> int:
        """The group's stored offset of a queue, -1 when there is none."""
        ext: dict[str, ExtValue] = {
            "consumerGroup": self._name(group),
            "topic": self._name(queue.topic),
            "queueId": queue.queue_id,
            "setZeroIfNotFound": False,
        }
        answer = await self._ask(
            await self._queue_master(queue),
            RequestCode.QUERY_CONSUMER_OFFSET,
            ext,
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        return number(answer.ext, "offset") if answer.code == ResponseCode.SUCCESS else -1

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store an offset. Members that run do not notice: use `reset_offsets` for them."""
        if offset < 0:
            raise ClientError(f"offset {offset} for {queue} cannot be stored: it must not be negative")
        ext: dict[str, ExtValue] = {
            "consumerGroup": self._name(group),
            "topic": self._name(queue.topic),
            "queueId": queue.queue_id,
            "commitOffset": offset,
        }
        await self._ask(await self._queue_master(queue), RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def reset_offsets(self, group: str, topic: str, to: int | OffsetPlace) -> dict[MessageQueue, int]:
        """Let the group continue at a time (epoch milliseconds) or an end, running members included.

        Returns the new offset of each queue. When nobody is online the stored offsets are changed.
        """
        targets = {queue: await self._target(queue, to) for queue in await self.queues(topic)}
        if await self.consumers(group) is None:
            for queue, offset in targets.items():
                await self.set_offset(group, queue, offset)
            return targets
        moved: dict[MessageQueue, int] = {}
        for queue, offset in targets.items():
            moved.update(await self._reset_running(group, queue, offset))
        return moved

    async def _reset_running(self, group: str, queue: MessageQueue, offset: int) -> dict[MessageQueue, int]:
        ext: dict[str, ExtValue] = {
            "group": self._name(group),
            "topic": queue.topic,
            "timestamp": -1,
            "isForce": True,
            "queueId": queue.queue_id,
            "offset": offset,
        }
        answer = await self._ask(await self._queue_master(queue), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        return decode_body(answer.body, ResetOffsetBody).offsets if answer.body else {queue: offset}

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Give another group the same offsets of a topic; an error when the source has none."""
        offsets = {queue: await self.offset(source, queue) for queue in await self.queues(topic)}
        known = {queue: offset for queue, offset in offsets.items() if offset >= 0}
        if not known:
            raise ClientError(f"group {source} has no offsets of topic {topic}: there is nothing to clone")
        for queue, offset in known.items():
            await self.set_offset(target, queue, offset)

    async def _target(self, queue: MessageQueue, to: int | OffsetPlace) -> int:
        if to is OffsetPlace.EARLIEST:
            return await self.min_offset(queue)
        if to is OffsetPlace.LATEST:
            return await self.max_offset(queue)
        assert isinstance(to, int)
        return await self.search_offset(queue, to)
