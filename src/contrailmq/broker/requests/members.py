"""Producers and consumers as requests.

Heartbeat (34), leaving (35), members of a group (38), order locks (41, 42), and the check of a subscription before it
is used (46).

When a group's members or topics change, every member is asked to rebalance (40). Changes of one wakeup are sent once: a
restart of a thousand consumers is a thousand heartbeats, and must not be a million notifications.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from contrailmq.broker.filters import (
    SQL92,
    TAG,
    SqlError,
    Subscription,
    parse_subscription,
    unusable_subscription,
)
from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.client_bound import ClientBoundError
from contrailmq.broker.state.connections import BROADCASTING, Client
from contrailmq.message import MessageError, MessageQueue, check_topic, retry_topic
from contrailmq.wire.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    MessageQueueBody,
    SubscriptionData,
    decode_body,
    encode_body,
)
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.requests import ConsumerGroup, HeartBeatResponse, UnregisterClient

log = logging.getLogger("contrailmq.broker")


class MemberProcessor:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._changed: set[str] = set()
        self.on_left: Callable[[str, Peer], None] = lambda group, connection: None  # a member that said goodbye

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.HEART_BEAT, self.heartbeat)
        handlers.register(RequestCode.UNREGISTER_CLIENT, self.unregister)
        handlers.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.members)
        handlers.register(RequestCode.LOCK_BATCH_MQ, self.lock)
        handlers.register(RequestCode.UNLOCK_BATCH_MQ, self.unlock)
        handlers.register(RequestCode.CHECK_CLIENT_CONFIG, self.check_client)

    # --- heartbeat

    def heartbeat(self, connection: Peer, command: Command) -> bytes | None:
        node = self._node
        data = decode_body(command.body, HeartbeatData)
        client = Client(connection, data.client_id, command.language, command.version, node.monotonic_ms())
        is_changed = True
        refused: ClientBoundError | None = None
        for consumer in data.consumer_data_set:
            try:
                is_changed = self._consumer(client, consumer, data)
            except ClientBoundError as exc:  # the client's other groups go on
                refused = exc
        for producer in data.producer_data_set:
            node.clients.register_producer(producer.group_name, client)
        if refused is not None:
            raise refused
        is_v2 = data.heartbeat_fingerprint != 0
        answer = success(
            command, HeartBeatResponse(is_support_heart_beat_v2=True, is_sub_change=is_changed if is_v2 else True)
        )
        groups = [consumer.group_name for consumer in data.consumer_data_set]
        return node.answer_when_routed(connection, command, answer, topics=map(retry_topic, groups), groups=groups)

    def _consumer(self, client: Client, data: ConsumerData, heartbeat: HeartbeatData) -> bool:
        """Register one group of a heartbeat; True when the client's fingerprint is not the one that is known."""
        node, name = self._node, data.group_name
        group = node.groups.find_or_create(name)
        if group is None:
            peer_warnings.warn("group unknown and not created", f"{name[:64]!r} of client {client.client_id[:64]}")
            return True
        self._create_retry_topic(name, group.retry_queues, is_unit=data.unit_mode)
        subscriptions: list[Subscription] | None = None
        if not heartbeat.without_sub:
            subscriptions = [self._subscription(name, entry) for entry in data.subscription_data_set]
        if node.clients.register_consumer(
            name,
            client,
            consume_type=str(data.consume_type),
            message_model=str(data.message_model),
            from_where=str(data.consume_from_where),
            subscriptions=subscriptions,
        ):
            self.members_changed(name)
        live = node.clients.consumer_group(name)
        assert live is not None
        known, live.fingerprint = live.fingerprint, heartbeat.heartbeat_fingerprint
        return known not in (0, heartbeat.heartbeat_fingerprint)

    def _create_retry_topic(self, group: str, queues: int, *, is_unit: bool) -> None:
        name = retry_topic(group)
        if self._node.is_slave or name in self._node.topics:
            return
        try:
            check_topic(name)
        except MessageError as exc:
            peer_warnings.warn("group without a retry topic", f"{group[:64]!r}: {exc}")
            return
        self._node.topics.create_for_group(name, queues=queues, is_unit=is_unit)

    def _subscription(self, group: str, data: SubscriptionData) -> Subscription:
        """Parse once: a heartbeat every 30 s brings the same subscription again."""
        kind = data.expression_type or TAG
        known = self._node.clients.subscription(group, data.topic)
        if known is not None and (known.version, known.expression, known.expression_type) == (
            data.sub_version,
            data.sub_string,
            kind,
        ):
            return known
        try:
            return parse_subscription(data.topic, data.sub_string, kind, version=data.sub_version)
        except SqlError as exc:
            return unusable_subscription(data.topic, data.sub_string, kind, version=data.sub_version, error=str(exc))

    def check_client(self, connection: Peer, command: Command) -> bytes | None:
        """Whether a subscription can be used, asked before a consumer starts."""
        data = decode_body(command.body, CheckClientBody) if command.body else CheckClientBody()
        wanted = data.subscription_data
        if wanted is None or (wanted.expression_type or TAG) == TAG:
            return success(command)
        if wanted.expression_type == SQL92 and not self._node.config.enable_property_filter:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the broker does not filter by SQL92: enablePropertyFilter=false")
        try:
            parse_subscription(wanted.topic, wanted.sub_string, wanted.expression_type)
        except SqlError as exc:
            raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(exc)) from None
        return success(command)

    # --- leaving

    def unregister(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(UnregisterClient)
        if header.producer_group:
            self._node.clients.unregister_producer(header.producer_group, connection)
        if header.consumer_group and self._node.clients.unregister_consumer(header.consumer_group, connection):
            self.on_left(header.consumer_group, connection)
            self.members_changed(header.consumer_group)
        return success(command)

    def disconnected(self, connection: Peer) -> None:
        """The connection is gone, and with it everything that was registered on it."""
        for group in self._node.clients.drop_connection(connection):
            self.members_changed(group)

    def expire(self, now_ms: int) -> None:
        """Drop silent clients and close their connections. `now_ms` is monotonic, as all times of clients and locks."""
        silent, changed = self._node.clients.expire(now_ms)
        for group in changed:
            self.members_changed(group)
        for connection in silent:
            connection.close("no heartbeat for longer than channelExpiredTimeout")
        self._node.locks.expire(now_ms)

    # --- members

    def members(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(ConsumerGroup)
        group = self._node.clients.consumer_group(header.consumer_group)
        if group is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group[:64]}")
        return success(command, None, encode_body(ConsumerList(consumer_id_list=group.client_ids())))

    def members_changed(self, group: str) -> None:
        if not self._changed:
            self._node.call_soon(self.notify)
        self._changed.add(group)

    def notify(self) -> None:
        """Tell the members of every changed group to rebalance."""
        changed, self._changed = self._changed, set()
        node = self._node
        if not node.config.notify_consumer_ids_changed_enable:
            return
        for name in sorted(changed):
            live = node.clients.consumer_group(name)
            config = node.groups.get(name)
            if live is None or live.message_model == BROADCASTING or (config and not config.notify_ids_changed):
                continue
            for client in list(live.members.values()):
                try:
                    client.connection.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})
                except WireError as exc:
                    log.info("consumer %s did not learn of a change: %s", client.client_id, exc)

    # --- order locks

    def lock(self, connection: Peer, command: Command) -> bytes | None:
        data = decode_body(command.body, LockBatchBody)
        granted = self._node.locks.lock(
            data.consumer_group, data.client_id, map(_queue, data.mq_set), self._node.monotonic_ms()
        )
        bodies = [MessageQueueBody(broker_name=q.broker_name, queue_id=q.queue_id, topic=q.topic) for q in granted]
        return success(command, None, encode_body(LockedQueues(queues=bodies)))

    def unlock(self, connection: Peer, command: Command) -> bytes | None:
        data = decode_body(command.body, LockBatchBody)
        self._node.locks.unlock(data.consumer_group, data.client_id, map(_queue, data.mq_set))
        return success(command)


def _queue(body: MessageQueueBody) -> MessageQueue:
    return MessageQueue(body.topic, body.broker_name, body.queue_id)
