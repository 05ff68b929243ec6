"""Messages that a consumer could not handle: CONSUMER_SEND_MSG_BACK (36), the retry ladder and the dead letters.

    level of the copy := the request's level, or 3 + reconsumeTimes when that is 0
    dead letter       := the request's level is negative, or reconsumeTimes has reached the group's limit

The copy goes to `%RETRY%group` with DELAY set, and the delay part brings it back when its time has come; a dead letter
goes to `%DLQ%group` at once. Beside what the reference writes, a dead letter says where it came from
(DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID), so that it can be sent again to its own topic.

The copy says WAIT=false, as the reference's does, and yet its consumer is answered under SYNC_FLUSH when it is durable,
and under SYNC_MASTER when slaves have it: it goes on past the message then, and a power cut must not take both.
"""

from __future__ import annotations

import random
from typing import Final

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.send import MAX_RECONSUME_VERSION, put_rewritten
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.message import Property, dlq_topic, retry_topic
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import ConsumerSendMessageBack

FIRST_RETRY_LEVEL: Final = 3  # 10 s with the default levels


class RetryProcessor:
    """Serves send-back."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._random = random.Random()

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)

    def send_back(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(ConsumerSendMessageBack)
        group = node.groups.find_or_create(header.group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group[:64]}: create it or enable autoCreateSubscriptionGroup",
            )
        if not node.config.is_writable or node.is_slave:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{node.config.broker_name}] is not writable: send elsewhere"
            )
        if group.retry_queues <= 0:
            return success(command)
        if node.replicas.shortage:
            raise Refused(ResponseCode.SYSTEM_ERROR, node.replicas.shortage)
        message = self._copy(header, group, command.version)
        result = put_rewritten(node, message)
        key = f"{message.properties[Property.RETRY_TOPIC]}@{group.name}"
        node.statistics.counter("SNDBCK_PUT_NUMS", key).add(1)
        node.after_append(wants_flush=node.store.config.is_sync_flush)
        return node.acknowledging.confirm(
            connection,
            command,
            result.physical_offset + result.size_bytes,
            topics=(retry_topic(group.name), dlq_topic(group.name)),
            groups=(group.name,),
        )

    def _copy(self, header: ConsumerSendMessageBack, group: Group, version: int) -> IncomingMessage:
        node = self._node
        stored = node.store.lookup_sound(header.offset)
        if stored is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}: no message begins there, or it was deleted",
            )
        retry = node.topics.create_for_group(
            retry_topic(group.name), queues=group.retry_queues, is_unit=bool(header.unit_mode)
        )
        # A group that was given more queues keeps its retry topic: beyond that nobody would look for the copy.
        queue_id = self._random.randrange(max(min(group.retry_queues, retry.read_queues), 1))
        message = IncomingMessage.copy_of(stored, topic=retry.name, queue_id=queue_id, store_host=node.store_host)
        properties = message.properties
        properties.setdefault(Property.RETRY_TOPIC, stored.topic)
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, stored.offset_message_id)
        properties[Property.WAIT] = "false"
        limit = group.retry_max_times
        if header.max_reconsume_times is not None and version >= MAX_RECONSUME_VERSION:
            limit = header.max_reconsume_times
        if header.delay_level < 0 or stored.reconsume_times >= limit:
            dead = node.topics.create_for_group(dlq_topic(group.name), queues=1)
            message.topic, message.queue_id = dead.name, 0
            properties.pop(Property.DELAY, None)
            properties[Property.DLQ_ORIGIN_TOPIC] = properties[Property.RETRY_TOPIC]
            properties[Property.DLQ_ORIGIN_MESSAGE_ID] = properties[Property.ORIGIN_MESSAGE_ID]
            node.statistics.note_dead_letter(group.name, properties[Property.RETRY_TOPIC])
        else:
            properties[Property.DELAY] = str(header.delay_level or FIRST_RETRY_LEVEL + stored.reconsume_times)
        message.reconsume_times = stored.reconsume_times + 1
        return message
