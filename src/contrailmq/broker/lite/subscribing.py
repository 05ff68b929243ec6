"""LITE_SUBSCRIPTION_CTL (200071): proxies say which lite topics their clients read.

    PARTIAL_ADD      some more, from where the offset option says; of an exclusive group, others lose them
    PARTIAL_REMOVE   some less
    COMPLETE_ADD     all that there are: at the start, every 30 s, and so after a restart of this broker
    COMPLETE_REMOVE  the client is gone

The last PARTIAL_ADD of an exclusive group wins: who loses a lite topic is told by NOTIFY_UNSUBSCRIBE_LITE, and again
when it says in a COMPLETE_ADD that it has it, since it may have said so before it heard. The reference would have both
read it then. A client that nothing was heard of for liteSubscriptionCheckTimeoutMills is gone.
"""

from __future__ import annotations

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.lite.registry import LiteClient, Registry
from contrailmq.broker.lite.telling import Telling
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.orders import OrderTable
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.lite_names import (
    BOUND_TO,
    QUEUE_ID,
    is_lite_name,
    lite_queue,
    lite_queues,
    parent_and_lite,
)
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.fastjson import decode_body
from contrailmq.wire.header import Command
from contrailmq.wire.lite_bodies import (
    ACTIONS,
    COMPLETE_ADD,
    COMPLETE_REMOVE,
    MAX_VALUE,
    MIN_VALUE,
    OFFSET,
    PARTIAL_ADD,
    POLICY,
    TAIL_N,
    TIMESTAMP,
    LiteSubscription,
    LiteSubscriptionCtl,
    OffsetOption,
)
from contrailmq.wire.lite_requests import NotifyUnsubscribeLite
from contrailmq.wire.peer import Peer

_FIRST = OffsetOption(type=POLICY, value=MIN_VALUE)


class LiteSubscribing:
    def __init__(self, node: BrokerNode, registry: Registry, orders: OrderTable, telling: Telling) -> None:
        self._node = node
        self._registry = registry
        self._orders = orders
        self._telling = telling

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.LITE_SUBSCRIPTION_CTL, self.control)

    def control(self, connection: Peer, command: Command) -> bytes | None:
        if self._node.is_slave:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is a slave (brokerId {self._node.config.broker_id}): subscribe at its master",
            )
        entries = decode_body(command.body, LiteSubscriptionCtl).subscription_set if command.body else []
        if not entries:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty: name a subscription"
            )
        for entry in entries:
            self._change(entry, connection)
        self._node.offset_journal.note()
        return success(command)

    def _change(self, entry: LiteSubscription, connection: Peer) -> None:
        client_id, group_name, topic = entry.client_id or "", entry.group or "", entry.topic or ""
        if not (client_id.strip() and group_name.strip() and topic.strip()):
            return  # LiteSubscriptionCtlProcessor passes over these
        if entry.action not in ACTIONS:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"action {entry.action!r}: use one of {', '.join(ACTIONS)}")
        known = self._registry.clients.get(client_id)
        if entry.action == COMPLETE_REMOVE:
            if known is not None:
                self._registry.leave(known)
            return
        names = list(dict.fromkeys(entry.lite_topic_set or []))
        if entry.action not in (PARTIAL_ADD, COMPLETE_ADD):
            if known is not None:
                self._remove(known, {lite_queue(topic, name) for name in names})
            return
        group = self._group(group_name, topic)
        if bad := [name for name in names if not is_lite_name(name)]:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION, f"lite topic {bad[0][:64]!r}: use letters, digits, _ and - only"
            )
        queues = [lite_queue(topic, name) for name in names]
        is_wildcard = "lite.sub.wildcard" in group.attributes
        if is_wildcard and entry.action == PARTIAL_ADD:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"subscribe lite operation is not supported for this group: {group.name} has all lite topics "
                "(lite.sub.wildcard)",
            )
        self._check_room(0 if is_wildcard else sum(known is None or queue not in known.queues for queue in queues))
        client = self._client(client_id, group, topic, connection, is_wildcard=is_wildcard)
        if entry.action == PARTIAL_ADD:
            self._add(client, group, queues, entry.offset_option)
        elif not is_wildcard:
            self._set(client, group, queues)

    def _group(self, name: str, topic: str) -> Group:
        group = self._node.groups.get(name)
        if group is None or not group.consume_enable:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"Consumer group is not allowed to consume: {name[:64]} does not exist, or has consumeEnable=false",
            )
        if group.attributes.get(BOUND_TO) != topic:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"group {name} is bound to {group.attributes.get(BOUND_TO)}, not to {topic[:128]} ({BOUND_TO})",
            )
        return group

    def _check_room(self, more: int) -> None:
        limit = self._node.config.max_lite_subscription_count
        if more and self._registry.count + more > limit:
            raise Refused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"lite subscription quota exceeded {limit}: {self._registry.count} there are, {more} more are wanted "
                "(maxLiteSubscriptionCount)",
            )

    def _client(self, client_id: str, group: Group, topic: str, connection: Peer, *, is_wildcard: bool) -> LiteClient:
        client = self._registry.clients.get(client_id)
        if client is not None and (client.group, client.parent, client.is_wildcard) != (group.name, topic, is_wildcard):
            self._registry.leave(client)
            client = None
        if client is None:
            client = LiteClient(client_id, group.name, topic, connection, is_wildcard=is_wildcard)
            self._registry.join(client)
            if is_wildcard:
                self._telling.tell_client(client, lite_queues(self._node.store, topic))
        client.connection, client.seen_ms = connection, self._node.monotonic_ms()
        return client

    # --- what a client has

    def _add(self, client: LiteClient, group: Group, queues: list[str], option: OffsetOption | None) -> None:
        is_exclusive = group.attributes.get("lite.sub.model") == "Exclusive"
        for queue in queues:
            if is_exclusive:
                for other in [one for one in self._registry.members(queue, group.name).values() if one is not client]:
                    self._evict(other, queue, group)
            self.move(group.name, queue, option)
            self._registry.add(client, queue)
        self._telling.tell_client(client, queues)

    def _set(self, client: LiteClient, group: Group, queues: list[str]) -> None:
        for queue in client.queues.difference(queues):
            self._registry.remove(client, queue)
        is_exclusive = group.attributes.get("lite.sub.model") == "Exclusive"
        added = []
        for queue in queues:
            if is_exclusive and any(one is not client for one in self._registry.members(queue, group.name).values()):
                self._notify(client, queue)
            elif self._registry.add(client, queue):
                added.append(queue)
        self._telling.tell_client(client, added)

    def _remove(self, client: LiteClient, queues: set[str]) -> None:
        group = self._node.groups.get(client.group)
        client.seen_ms = self._node.monotonic_ms()
        is_reset = group is not None and group.attributes.get("lite.sub.reset.offset.unsubscribe") == "true"
        for queue in queues:
            if self._registry.remove(client, queue) and is_reset:
                self.move(client.group, queue, _FIRST)

    def _evict(self, other: LiteClient, queue: str, group: Group) -> None:
        self._registry.remove(other, queue)
        self._notify(other, queue)
        if group.attributes.get("lite.sub.reset.offset.exclusive") == "true":
            self.move(group.name, queue, _FIRST)

    def _notify(self, client: LiteClient, queue: str) -> None:
        found = parent_and_lite(queue)
        if found is not None and client.connection.is_open:
            header = NotifyUnsubscribeLite(lite_topic=found[1], consumer_group=client.group, client_id=client.id)
            client.connection.oneway(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, header)

    def move(self, group: str, queue: str, option: OffsetOption | None) -> None:
        """Where the group goes on in a lite topic; what was in flight there counts no more."""
        node = self._node
        if option is None or not option.type:
            return
        node.dispatch_now()
        low, high = node.store.min_offset(queue, QUEUE_ID), node.store.max_offset(queue, QUEUE_ID)
        known = node.offsets.query(group, queue, QUEUE_ID)
        target: int | None = None
        if option.type == POLICY and option.value in (MIN_VALUE, MAX_VALUE):
            target = low if option.value == MIN_VALUE else high
        elif option.type == OFFSET:
            target = option.value
        elif option.type == TAIL_N and known is not None:  # before where the group is (resetOffset of the reference)
            target = known - option.value
        elif option.type == TIMESTAMP:  # the reference does nothing here
            target = node.store.offset_at(queue, QUEUE_ID, option.value)
        if target is not None and (target := min(max(target, low), high)) != known:
            node.offsets.take_reset(group, queue, QUEUE_ID)
            node.offsets.commit(group, queue, QUEUE_ID, target)
            self._orders.drop((queue, group, QUEUE_ID))

    def expire(self) -> None:
        """Let go of clients that nothing was heard of."""
        node = self._node
        since_ms = node.monotonic_ms() - node.config.lite_subscription_check_timeout_mills
        for client in [one for one in self._registry.clients.values() if one.seen_ms < since_ms]:
            self._registry.leave(client)
