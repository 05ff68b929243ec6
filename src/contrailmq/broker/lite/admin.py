"""What administrators ask of lite topics (200074 to 200079), as mqadmin 5.5 reads it."""

from __future__ import annotations

import heapq
from typing import Final

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.lite.registry import LiteClient, Registry
from contrailmq.broker.lite.telling import Telling
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.orders import OrderTable
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.lite_names import (
    BOUND_TO,
    PREFIX,
    QUEUE_ID,
    expiration_minutes,
    lite_queue,
    lite_queues,
    parent_and_lite,
)
from contrailmq.broker.state.topics import Topic
from contrailmq.store import LIGHT_PREFIX
from contrailmq.wire.admin_bodies import OffsetProgress, TopicOffset
from contrailmq.wire.bodies import encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.lite_bodies import (
    BrokerLiteInfo,
    ClientGroup,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLag,
    LiteTopicInfo,
    ParentTopicInfo,
)
from contrailmq.wire.lite_requests import (
    GetLiteClientInfo,
    GetLiteGroupInfo,
    GetLiteTopicInfo,
    GetParentTopicInfo,
    TriggerLiteDispatch,
)
from contrailmq.wire.peer import Peer

RETURNED_MAX: Final = 10_000


class LiteAdmin:
    def __init__(self, node: BrokerNode, registry: Registry, orders: OrderTable, telling: Telling) -> None:
        self._node = node
        self._registry = registry
        self._orders = orders
        self._telling = telling

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.GET_BROKER_LITE_INFO, self.broker)
        handlers.register(RequestCode.GET_PARENT_TOPIC_INFO, self.parent)
        handlers.register(RequestCode.GET_LITE_TOPIC_INFO, self.lite_topic)
        handlers.register(RequestCode.GET_LITE_CLIENT_INFO, self.client)
        handlers.register(RequestCode.GET_LITE_GROUP_INFO, self.group)
        handlers.register(RequestCode.TRIGGER_LITE_DISPATCH, self.dispatch)

    def broker(self, connection: Peer, command: Command) -> bytes | None:
        node = self._node
        queues = node.store.queues()
        body = BrokerLiteInfo(
            max_lmq_num=node.store.config.max_lmq_consume_queue_num,
            current_lmq_num=sum(topic.startswith(LIGHT_PREFIX) for topic, _ in queues),
            lite_subscription_count=self._registry.count,
            order_info_count=sum(place[0].startswith(PREFIX) for place in self._orders.places()),
            cq_table_size=len({topic for topic, _ in queues}),
            offset_table_size=len(node.offsets),
            event_map_size=len(self._registry.clients),
            topic_meta={topic.name: expiration_minutes(topic) for topic in node.topics if topic.is_lite},
            group_meta=self._groups(),
        )
        return success(command, None, encode_body(body))

    def parent(self, connection: Peer, command: Command) -> bytes | None:
        topic = self._topic(command.header(GetParentTopicInfo).topic)
        body = ParentTopicInfo(
            topic=topic.name,
            ttl=expiration_minutes(topic),
            lmq_num=sum(name.startswith(LIGHT_PREFIX) for name, _ in self._node.store.queues()),
            lite_topic_count=len(lite_queues(self._node.store, topic.name)),
            groups=self._groups().get(topic.name, []),
        )
        return success(command, None, encode_body(body))

    def lite_topic(self, connection: Peer, command: Command) -> bytes | None:
        header, store = command.header(GetLiteTopicInfo), self._node.store
        topic = self._topic(header.parent_topic)
        self._node.dispatch_now()
        queue = lite_queue(topic.name, header.lite_topic)
        low, high = store.min_offset(queue, QUEUE_ID), store.max_offset(queue, QUEUE_ID)
        time_ms = store.store_time_at(queue, QUEUE_ID, high - 1) if high > low else 0
        wildcards: dict[str, None] = {}
        subscribers = []
        for one in self._registry.subscribers(queue):
            if one.is_wildcard:
                wildcards[one.group] = None
            else:
                subscribers.append(ClientGroup(client_id=one.id, group=one.group))
        body = LiteTopicInfo(
            parent_topic=topic.name,
            lite_topic=header.lite_topic,
            subscriber=subscribers + [ClientGroup(client_id="*", group=group) for group in wildcards],
            topic_offset=TopicOffset(min_offset=max(low, 0), max_offset=high, last_update_timestamp=max(time_ms, 0)),
            sharding_to_broker=high > 0,  # whoever sent to it chose this broker; Apache's asks a NameServer
        )
        return success(command, None, encode_body(body))

    def client(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(GetLiteClientInfo)
        topic, group = self._topic(header.parent_topic), self._group(header.group)
        if group.attributes.get(BOUND_TO) != topic.name:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Subscription [{group.name}]-[{topic.name}] not match.")
        client = self._registry.clients.get(header.client_id)
        body = LiteClientInfo(parent_topic=topic.name, group=group.name, client_id=header.client_id)
        if client is not None:
            count = max(min(header.max_count, RETURNED_MAX), 0)
            body.lite_topic_count = len(client.queues)
            body.lite_topic_set = sorted(client.queues)[:count]
            body.last_access_time, body.last_consume_time = client.popped_ms or -1, client.consumed_ms
        return success(command, None, encode_body(body))

    def group(self, connection: Peer, command: Command) -> bytes | None:
        header, store = command.header(GetLiteGroupInfo), self._node.store
        group = self._lite_group(header.group)
        parent = group.attributes[BOUND_TO]
        self._node.dispatch_now()
        body = LiteGroupInfo(group=group.name, parent_topic=parent, lite_topic=header.lite_topic)
        if header.lite_topic:
            queue = lite_queue(parent, header.lite_topic)
            end, position = store.max_offset(queue, QUEUE_ID), self._position(group, queue)
            if not end:
                body.total_lag_count = -1
            elif position is not None:
                body.total_lag_count = end - position
                body.earliest_unconsumed_timestamp = store.store_time_at(queue, QUEUE_ID, position)
                last_ms = store.store_time_at(queue, QUEUE_ID, position - 1) if position > 0 else 0
                body.lite_topic_offset_wrapper = OffsetProgress(
                    broker_offset=end, consumer_offset=position, last_timestamp=max(last_ms, 0)
                )
            return success(command, None, encode_body(body))
        lags = self._lags(group, parent)
        count = max(min(header.top_k, RETURNED_MAX), 0)
        body.total_lag_count = sum(lag.lag_count for lag in lags)
        body.lag_count_top_k = heapq.nlargest(count, lags, key=lambda lag: lag.lag_count)
        for lag in lags[:RETURNED_MAX]:
            queue = lite_queue(parent, lag.lite_topic)
            lag.earliest_unconsumed_timestamp = store.store_time_at(queue, QUEUE_ID, self._position(group, queue) or 0)
        times = [lag.earliest_unconsumed_timestamp for lag in lags if lag.earliest_unconsumed_timestamp > 0]
        body.earliest_unconsumed_timestamp = min(times, default=-1)
        body.lag_timestamp_top_k = heapq.nsmallest(count, lags, key=lambda lag: lag.earliest_unconsumed_timestamp)
        return success(command, None, encode_body(body))

    def dispatch(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(TriggerLiteDispatch)
        group = self._lite_group(header.group)
        for client in self._registry.of_group(group.name):
            if header.client_id in (None, "", client.id):
                self._telling.tell_client(client, self._queues(client))
        return success(command)

    # ---

    def _queues(self, client: LiteClient) -> list[str]:
        return lite_queues(self._node.store, client.parent) if client.is_wildcard else list(client.queues)

    def _lags(self, group: Group, parent: str) -> list[LiteLag]:
        """Of the lite topics that the group has begun to read."""
        found = []
        for queue in lite_queues(self._node.store, parent):
            names, position = parent_and_lite(queue), self._position(group, queue)
            if names is not None and position is not None:
                lag = self._node.store.max_offset(queue, QUEUE_ID) - position
                if lag > 0:
                    found.append(LiteLag(lite_topic=names[1], lag_count=lag))
        return found

    def _position(self, group: Group, queue: str) -> int | None:
        return self._node.offsets.query(group.name, queue, QUEUE_ID)

    def _groups(self) -> dict[str, list[str]]:
        """Parent -> the groups that are bound to it."""
        found: dict[str, list[str]] = {}
        for group in self._node.groups:
            if BOUND_TO in group.attributes:
                found.setdefault(group.attributes[BOUND_TO], []).append(group.name)
        return found

    def _topic(self, name: str) -> Topic:
        topic = self._node.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name[:128]}] not exist.")
        if not topic.is_lite:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return topic

    def _group(self, name: str) -> Group:
        group = self._node.groups.get(name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name[:64]}] not exist.")
        return group

    def _lite_group(self, name: str) -> Group:
        group = self._group(name)
        if not group.attributes.get(BOUND_TO):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return group
