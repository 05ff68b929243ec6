"""Administration of topics and of queues' offsets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from contrailmq.client.admin.admin_session import AdminSession
from contrailmq.client.errors import BrokerNotFoundError, ClientError, number
from contrailmq.client.transport.routes import subscribe_queues
from contrailmq.message import MessageQueue, check_topic, is_system_topic
from contrailmq.wire.admin_bodies import GroupList, TopicOffset, TopicStatsTable
from contrailmq.wire.bodies import KVTable, TopicConfig, TopicConfigWrapper, TopicList, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.header import ExtValue
from contrailmq.wire.lite_bodies import LiteTopicInfo, ParentTopicInfo

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"  # the NameServer's namespace of order topics


class AdminTopics(AdminSession):
    """Topics."""

    async def topics(self) -> list[str]:
        """All topics that the NameServer routes, %RETRY% and %DLQ% ones included, sorted."""
        answer = await self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(answer.body, TopicList).topic_list)

    async def system_topics(self) -> list[str]:
        """Those of `topics` that brokers keep for themselves; each cluster and broker has one of its name."""
        info = await self.cluster()
        clusters = set(info.cluster_addr_table)
        own = clusters | set(info.broker_addr_table) | {f"{cluster}_REPLY_TOPIC" for cluster in clusters}
        return [topic for topic in await self.topics() if is_system_topic(topic) or topic in own]

    async def topic_configs(self, *, broker: str | None = None) -> dict[str, dict[str, TopicConfig]]:
        """Settings of all topics, by broker name and topic."""
        masters = await self.masters(broker=broker)
        return {name: await self._all_topics(address) for name, address in masters.items()}

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The topic's settings, by broker name."""
        configs: dict[str, TopicConfig] = {}
        for name, address in (await self._topic_readers(topic)).items():
            answer = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": self._name(topic)})
            configs[name] = decode_body(answer.body, TopicConfig)
        return configs

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        permission: int = 6,
        order: bool = False,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic or change it, on one broker, a cluster, or everywhere. `queues` counts those per broker."""
        check_topic(topic)
        config = TopicConfig(
            topic_name=self._name(topic),
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=permission,
            order=order,
        )
        masters = await self.masters(broker=broker, cluster=cluster)
        if order:
            await self._keep_order(topic, dict.fromkeys(masters, config))
        for address in masters.values():
            await self._put_topic(address, config, attributes)

    async def topic_holders(
        self, topic: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, TopicConfig]:
        """The topic's settings by broker name, as the brokers say it; empty when none of them has it.

        Unlike `topic_config`, which asks the brokers that the NameServer names, it finds a topic whose route is not
        known yet.
        """
        configs: dict[str, TopicConfig] = {}
        for name, address in (await self.masters(broker=broker, cluster=cluster)).items():
            answer = await self._ask(
                address,
                RequestCode.GET_TOPIC_CONFIG,
                {"topic": self._name(topic)},
                accept=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
            )
            if answer.code == ResponseCode.SUCCESS:
                configs[name] = decode_body(answer.body, TopicConfig)
        return configs

    async def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change only what is given, on each broker that has the topic; returns the new settings by broker name.

        Messages in queues beyond `read_queues` stay in the log and cannot be read until there are as many again:
        `AdminGroups.unread_beyond` counts them.
        """
        held = await self.topic_holders(topic, broker=broker, cluster=cluster)
        if not held:
            raise ClientError(f"topic {topic} does not exist: create it, or look for its name in the list of topics")
        changes: dict[str, object] = {
            "read_queue_nums": read_queues,
            "write_queue_nums": write_queues,
            "perm": permission,
            "order": order,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        changed = {name: msgspec.structs.replace(config, **given) for name, config in held.items()}
        masters = await self.masters(broker=broker, cluster=cluster)
        if gone := sorted(changed.keys() - masters.keys()):  # since they were asked; nothing is changed yet
            raise BrokerNotFoundError(", ".join(gone))
        if order is not None or write_queues is not None:
            await self._keep_order(topic, await self.topic_holders(topic) | changed)
        for name, config in changed.items():
            await self._put_topic(masters[name], config, attributes)
        return changed

    async def put_topic_config(
        self, config: TopicConfig, *, broker: str, attributes: Mapping[str, str | None] | None = None
    ) -> None:
        """Create a topic on one broker or change it, from its full settings; an attribute of None is removed.

        What the NameServers say of order topics stays as it is.
        """
        check_topic(config.topic_name)
        await self._put_topic((await self.masters(broker=broker))[broker], config, attributes)

    async def _put_topic(self, address: str, config: TopicConfig, attributes: Mapping[str, str | None] | None) -> None:
        ext: dict[str, ExtValue] = {
            "topic": config.topic_name,
            "defaultTopic": "TBW102",
            "readQueueNums": config.read_queue_nums,
            "writeQueueNums": config.write_queue_nums,
            "perm": config.perm,
            "topicFilterType": str(config.topic_filter_type),
            "topicSysFlag": config.topic_sys_flag,
            "order": config.order,
        }
        if attributes:
            said = (f"-{name}" if value is None else f"+{name}={value}" for name, value in attributes.items())
            ext["attributes"] = ",".join(said)
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    async def _keep_order(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Let the NameServers' list of order topics say what the brokers will say.

        It comes first: with each registration the brokers take from it which topics are in order.
        """
        ordered = {name: config.write_queue_nums for name, config in configs.items() if config.order}
        if ordered:
            value = ";".join(f"{name}:{queues}" for name, queues in ordered.items())
            await self.put_kv(ORDER_TOPICS, self._name(topic), value)
        elif await self.get_kv(ORDER_TOPICS, self._name(topic)) is not None:
            await self.delete_kv(ORDER_TOPICS, self._name(topic))

    async def delete_topic(self, topic: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete a topic at the brokers, then at the NameServers; at one broker it stays with the others."""
        ext: dict[str, ExtValue] = {"topic": self._name(topic)}
        for address in (await self.masters(broker=broker, cluster=cluster)).values():
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, ext)
        if broker is not None and await self.topic_holders(topic):
            return
        await self._tell_namesrvs(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)
        self._connected().routes.pop(self._name(topic), None)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Smallest and next offset of each queue, and when it was last written."""
        stats: dict[MessageQueue, TopicOffset] = {}
        for address in (await self._topic_readers(topic)).values():
            answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": self._name(topic)})
            stats.update(decode_body(answer.body, TopicStatsTable).queues)
        return dict(sorted(stats.items()))

    async def lite_parent(self, topic: str) -> dict[str, ParentTopicInfo]:
        """What a topic of type LITE holds, by broker name: how many lite topics, and its groups."""
        ext: dict[str, ExtValue] = {"topic": self._name(topic)}
        found = {}
        for name, address in (await self._topic_readers(topic)).items():
            answer = await self._ask(address, RequestCode.GET_PARENT_TOPIC_INFO, ext)
            found[name] = decode_body(answer.body, ParentTopicInfo)
        return found

    async def lite_topic(self, topic: str, lite_topic: str) -> dict[str, LiteTopicInfo]:
        """Offsets and subscribers of one lite topic of a topic, by broker name."""
        ext: dict[str, ExtValue] = {"parentTopic": self._name(topic), "liteTopic": lite_topic}
        found = {}
        for name, address in (await self._topic_readers(topic)).items():
            answer = await self._ask(address, RequestCode.GET_LITE_TOPIC_INFO, ext)
            found[name] = decode_body(answer.body, LiteTopicInfo)
        return found

    async def topic_groups(self, topic: str) -> list[str]:
        """The groups that consume the topic."""
        groups: set[str] = set()
        for address in (await self._topic_readers(topic)).values():
            answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": self._name(topic)})
            groups.update(decode_body(answer.body, GroupList).group_list)
        return sorted(groups)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues that can be read."""
        return subscribe_queues(self._name(topic), await self.route(topic))

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._queue_number(queue, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return await self._queue_number(queue, RequestCode.GET_MAX_OFFSET)

    async def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        """The first message stored at or after the time."""
        return await self._queue_number(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the queue's first message was stored, in epoch milliseconds; -1 when it is empty."""
        return await self._queue_number(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, field="timestamp")

    # The NameServers' key-value settings.
    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        await self._tell_namesrvs(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

    async def get_kv(self, namespace: str, key: str) -> str | None:
        try:
            answer = await self._ask_namesrv(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        except ResponseError as exc:
            if exc.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return answer.ext.get("value")

    async def delete_kv(self, namespace: str, key: str) -> None:
        await self._tell_namesrvs(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def list_kv(self, namespace: str) -> dict[str, str]:
        try:
            answer = await self._ask_namesrv(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        except ResponseError as exc:
            if exc.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return decode_body(answer.body, KVTable).table

    async def topic_table(self, address: str) -> TopicConfigWrapper:
        """All that one broker says of its topics, static ones included."""
        answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_body(answer.body, TopicConfigWrapper)

    async def _all_topics(self, address: str) -> dict[str, TopicConfig]:
        return (await self.topic_table(address)).topic_config_table

    async def _queue_number(
        self, queue: MessageQueue, code: RequestCode, *, field: str = "offset", timestamp: int | None = None
    ) -> int:
        ext: dict[str, ExtValue] = {"topic": self._name(queue.topic), "queueId": queue.queue_id}
        if timestamp is not None:
            ext["timestamp"] = timestamp
        answer = await self._ask(await self._queue_reader(queue), code, ext)
        return number(answer.ext, field)
