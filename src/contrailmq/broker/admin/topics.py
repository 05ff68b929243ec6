"""Topics: change (17, 18), delete (215), list (21, 305, 351), state of the queues (202), who reads them (300)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.attributes import TOPIC_ATTRIBUTES, AttributeChangeError, altered, read_changes
from contrailmq.broker.state.config_files import Json, compact, with_entries
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.keeping import TOPICS_FILE
from contrailmq.broker.state.lite_names import lite_queues
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.state.topics import Topic, TopicError, check_topic_values
from contrailmq.broker.turns import in_turns
from contrailmq.message import MessageError, MessageQueue, check_topic, pop_retry_topic, pop_retry_topic_v2
from contrailmq.wire.admin_bodies import GroupList, TopicConfigList, TopicOffset, TopicStatsTable
from contrailmq.wire.admin_requests import CreateTopic, GetAllTopicConfig, GetAllTopicConfigResponse, TopicHeader
from contrailmq.wire.bodies import TopicConfig, TopicList, decode_body, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer


class TopicAdmin:
    def __init__(self, node: BrokerNode, saver: TableSaver) -> None:
        self._node = node
        self._saver = saver
        self._changing = asyncio.Lock()  # a list is checked and put in turns: no other change comes between

    def register(self, handlers: Handlers) -> None:
        handlers.register_slow(RequestCode.UPDATE_AND_CREATE_TOPIC, self.create)
        handlers.register_slow(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.create_many)
        handlers.register_slow(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete)
        handlers.register_slow(RequestCode.GET_ALL_TOPIC_CONFIG, self.all)
        handlers.register(RequestCode.GET_TOPIC_CONFIG, self.one)
        handlers.register(RequestCode.GET_TOPIC_STATS_INFO, self.stats)
        handlers.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system)
        handlers.register(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.readers)

    async def create(self, connection: Peer, command: Command) -> bytes | None:
        self._node.refuse_on_slave()
        header = command.header(CreateTopic)
        async with self._changing:
            topic = Topic(
                header.topic,
                read_queues=header.read_queue_nums,
                write_queues=header.write_queue_nums,
                perm=header.perm,
                filter_type=header.topic_filter_type,
                sys_flag=header.topic_sys_flag or 0,
                order=header.order,
                attributes=self._altered(header.topic, header.attributes or ""),
            )
            self._check(topic)
            self._node.topics.put(topic)
        await self._kept_and_routed()
        return success(command)

    async def create_many(self, connection: Peer, command: Command) -> bytes | None:
        """All of the list, or none of it when one is not allowed."""
        self._node.refuse_on_slave()
        topics = []
        async with self._changing:
            async for config in in_turns(decode_body(command.body, TopicConfigList).topic_config_list):
                topic = _from_body(config, self._altered(config.topic_name, config.attributes))
                self._check(topic)
                topics.append(topic)
            async for topic in in_turns(topics):
                self._node.topics.put(topic)
        await self._kept_and_routed()
        return success(command)

    async def delete(self, connection: Peer, command: Command) -> bytes | None:
        """Forget topic, queues, offsets and statistics; its messages stay in the log until they expire."""
        node, name = self._node, command.header(TopicHeader).topic
        node.refuse_on_slave()
        self._check_name(name)
        async with self._changing:
            names = [name, *self._retry_topics(name)]
            queues = names + lite_queues(node.store, name)
            for one in names:
                node.topics.delete(one)
            node.delete_queues(queues)
        node.offsets.remove_topics(frozenset(queues))
        for one in names:
            node.statistics.forget(topic=one)
            node.held.release_topic(one)
        await self._saver.save(DELETED_FILE, TOPICS_FILE, OFFSETS_FILE)
        return success(command)

    def _retry_topics(self, name: str) -> list[str]:
        """Where messages wait that groups popped from this topic: they would come with those of a new one."""
        if not self._node.config.clear_retry_topic_when_delete_topic:
            return []
        found = []
        for group in sorted(self._node.offsets.groups_of_topic(name)):
            found.append(pop_retry_topic_v2(group, name))
            if not self._is_shared(group, name):
                found.append(pop_retry_topic(group, name))
        return [one for one in found if one in self._node.topics]

    def _is_shared(self, group: str, name: str) -> bool:
        """Whether others have the retry topic too: `%RETRY%a_b_c` is that of (a, b_c), of (a_b, c), and of group a_b_c,
        which pulls."""
        node, parts = self._node, f"{group}_{name}".split("_")
        pairs = (("_".join(parts[:at]), "_".join(parts[at:])) for at in range(1, len(parts)))
        return f"{group}_{name}" in node.groups or any(
            their_group in node.groups and their_topic in node.topics
            for their_group, their_topic in pairs
            if their_topic != name
        )

    async def _kept_and_routed(self) -> None:
        """Return when the topics are on disk and the NameServers have heard of them."""
        heard = asyncio.Event()
        self._node.keeping.when_registered(heard.set)
        await self._saver.save(TOPICS_FILE)
        await heard.wait()

    def _altered(self, name: str, change: str | Mapping[str, str]) -> dict[str, str]:
        """The attributes of a topic after a change; an existing one keeps what the change does not name."""
        known = self._node.topics.get(name)
        try:
            changes = read_changes(change) if isinstance(change, str) else change
            current = known.attributes if known else {}
            return altered(current, changes, known=TOPIC_ATTRIBUTES, is_new=known is None)
        except AttributeChangeError as exc:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"topic {name[:128]}: {exc}") from None

    def _check(self, topic: Topic) -> None:
        self._check_name(topic.name)
        try:
            check_topic_values(topic)
        except TopicError as exc:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None

    def _check_name(self, name: str) -> None:
        try:
            check_topic(name)
        except MessageError as exc:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
        if self._node.topics.is_system(name):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic: choose another name"
            )

    # --- reading

    async def all(self, connection: Peer, command: Command) -> bytes | None:
        """Every topic, or a page of them for clients after 5.3.3, which send where the page begins."""
        header = command.header(GetAllTopicConfig)
        version, topics = self._node.topics.version.to_json(), list(self._node.topics)
        ext = GetAllTopicConfigResponse(total_topic_num=len(topics))
        begin = header.topic_seq or 0
        count = header.max_topic_num or len(topics)
        page = topics[begin : begin + count] if header.topic_seq is not None else topics
        table: Json = {
            "dataVersion": version,
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": self._node.started_ms},
            "topicConfigTable": {},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        if header.with_deleted:
            table |= self._node.deleted.snapshot()()
        entries = [compact(topic.name) + b":" + compact(topic.to_json()) async for topic in in_turns(page)]
        return success(command, ext, with_entries(table, "topicConfigTable", entries))

    def one(self, connection: Peer, command: Command) -> bytes | None:
        name = command.header(TopicHeader).topic
        topic = self._node.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:128]}")
        return success(command, None, compact(topic.to_json()))

    def stats(self, connection: Peer, command: Command) -> bytes | None:
        node, name = self._node, command.header(TopicHeader).topic
        topic = node.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:128]}] not exist")
        node.dispatch_now()
        queues = {}
        for queue_id in range(topic.queue_limit):
            low, high = node.store.min_offset(name, queue_id), node.store.max_offset(name, queue_id)
            time_ms = node.store.store_time_at(name, queue_id, high - 1) if high > low else 0
            queues[MessageQueue(name, node.config.broker_name, queue_id)] = TopicOffset(
                last_update_timestamp=max(time_ms, 0), max_offset=high, min_offset=low
            )
        counter = node.statistics.find("TOPIC_PUT_NUMS", name)
        tps = counter.rate("minute").per_second if counter else 0.0
        return success(command, None, encode_body(TopicStatsTable.of(queues, put_tps=tps)))

    def system(self, connection: Peer, command: Command) -> bytes | None:
        return success(command, None, encode_body(TopicList(topic_list=self._node.topics.system_names())))

    def readers(self, connection: Peer, command: Command) -> bytes | None:
        """The groups that have read the topic or are subscribed to it."""
        name = command.header(TopicHeader).topic
        groups = self._node.clients.groups_subscribed_to(name) | self._node.offsets.groups_of_topic(name)
        return success(command, None, encode_body(GroupList(group_list=sorted(groups))))


def _from_body(config: TopicConfig, attributes: Mapping[str, str]) -> Topic:
    return Topic(
        config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        perm=config.perm,
        filter_type=str(config.topic_filter_type),
        sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes,
    )
