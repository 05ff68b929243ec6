"""Subscription groups: change (200, 225), delete (207), list (201, 352), forbid (353), what they read (343, 345)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from contrailmq.broker.filters import Subscription
from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.attributes import GROUP_ATTRIBUTES, AttributeChangeError, altered
from contrailmq.broker.state.config_files import Json, compact, with_entries
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.groups import Group, GroupError, check_group_values
from contrailmq.broker.state.keeping import GROUPS_FILE, TOPICS_FILE
from contrailmq.broker.state.lite_names import BOUND_TO
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.turns import in_turns
from contrailmq.message import MessageError, check_group, retry_topic
from contrailmq.wire.admin_bodies import GroupForbidden, SubscriptionOfGroup
from contrailmq.wire.admin_requests import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroup,
    GetAllSubscriptionGroupResponse,
    GroupHeader,
    QuerySubscription,
    UpdateGroupForbidden,
)
from contrailmq.wire.bodies import SubscriptionData, TopicList, encode_body, loads_fastjson
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer


class GroupAdmin:
    def __init__(self, node: BrokerNode, saver: TableSaver) -> None:
        self._node = node
        self._saver = saver
        self._changing = asyncio.Lock()  # a list is checked and put in turns: no other change comes between

    def register(self, handlers: Handlers) -> None:
        handlers.register_slow(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.create)
        handlers.register_slow(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.create_many)
        handlers.register_slow(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete)
        handlers.register_slow(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbid)
        handlers.register_slow(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all)
        handlers.register(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.one)
        handlers.register(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of)
        handlers.register(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription_of)

    async def create(self, connection: Peer, command: Command) -> bytes | None:
        self._node.refuse_on_slave()
        async with self._changing:
            self._node.groups.put(self._checked(loads_fastjson(command.body)))
        await self._saver.save(GROUPS_FILE)
        return success(command)

    async def create_many(self, connection: Peer, command: Command) -> bytes | None:
        """All of the list, or none of it when one is not allowed."""
        self._node.refuse_on_slave()
        body = loads_fastjson(command.body)
        entries = body.get("groupConfigList") if isinstance(body, dict) else None
        if not isinstance(entries, list):
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body has no list groupConfigList")
        async with self._changing:
            groups = [self._checked(entry) async for entry in in_turns(entries)]
            async for group in in_turns(groups):
                self._node.groups.put(group)
        await self._saver.save(GROUPS_FILE)
        return success(command)

    async def delete(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(DeleteSubscriptionGroup)
        node.refuse_on_slave()
        known = node.groups.get(header.group_name)
        is_of_lite_topics = known is not None and BOUND_TO in known.attributes
        async with self._changing:
            node.groups.delete(header.group_name)
        if header.clean_offset or header.remove_offset or is_of_lite_topics:
            node.offsets.remove_group(header.group_name)
        node.statistics.forget(group=header.group_name)
        if node.topics.delete(retry_topic(header.group_name)):
            node.delete_queues([retry_topic(header.group_name)])
            node.held.release_topic(retry_topic(header.group_name))
        await self._saver.save(DELETED_FILE, GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE)
        return success(command)

    async def forbid(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(UpdateGroupForbidden)
        if header.readable is not None:
            node.refuse_on_slave()
            node.groups.set_readable(header.group, header.topic, is_readable=header.readable)
            await self._saver.save(GROUPS_FILE)
        is_readable = not node.groups.is_forbidden(header.group, header.topic)
        body = GroupForbidden(group=header.group, topic=header.topic, readable=is_readable)
        return success(command, None, encode_body(body))

    def _checked(self, data: object) -> Group:
        if not isinstance(data, Mapping):
            raise Refused(ResponseCode.INVALID_PARAMETER, "the body is not a SubscriptionGroupConfig object")
        try:
            group = Group.from_json(data)
            check_group(group.name)
            check_group_values(group)
            known = self._node.groups.get(group.name)
            current = known.attributes if known else {}
            attributes = altered(current, group.attributes, known=GROUP_ATTRIBUTES, is_new=known is None)
        except (GroupError, MessageError, AttributeChangeError) as exc:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from None
        return group.with_attributes(attributes)

    # --- reading

    async def all(self, connection: Peer, command: Command) -> bytes | None:
        """Every group, or a page of them for clients after 5.3.3, which send where the page begins."""
        header = command.header(GetAllSubscriptionGroup)
        table: Json = {
            "dataVersion": self._node.groups.version.to_json(),
            "forbiddenTable": self._node.groups.forbidden(),
            "subscriptionGroupTable": {},
        }
        groups = list(self._node.groups)
        ext = GetAllSubscriptionGroupResponse(total_group_num=len(groups))
        begin = header.group_seq or 0
        count = header.max_group_num or len(groups)
        page = groups[begin : begin + count] if header.group_seq is not None else groups
        entries = [compact(group.name) + b":" + compact(group.to_json()) async for group in in_turns(page)]
        return success(command, ext, with_entries(table, "subscriptionGroupTable", entries))

    def one(self, connection: Peer, command: Command) -> bytes | None:
        name = command.header(GroupHeader).group
        group = self._node.groups.get(name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:64]}")
        return success(command, None, compact(group.to_json()))

    def topics_of(self, connection: Peer, command: Command) -> bytes | None:
        name = command.header(GroupHeader).group
        topics = self._node.offsets.topics_of_group(name)
        body = TopicList(broker_addr=self._node.address, topic_list=sorted(topics))
        return success(command, None, encode_body(body))

    def subscription_of(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(QuerySubscription)
        subscription = self._node.clients.subscription(header.group, header.topic or "")
        body = SubscriptionOfGroup(
            group=header.group,
            topic=header.topic or "",
            subscription_data=None if subscription is None else subscription_body(subscription),
        )
        return success(command, None, encode_body(body))


def subscription_body(subscription: Subscription) -> SubscriptionData:
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        sub_version=subscription.version,
        expression_type=subscription.expression_type,
        tags_set=list(subscription.tags),
        code_set=list(subscription.codes),
    )
