"""What brokers ask of their clients.

    39  CHECK_TRANSACTION_STATE       oneway   a producer of the group looks up what became of a transaction
    40  NOTIFY_CONSUMER_IDS_CHANGED   oneway   rebalance now
    220 RESET_CONSUMER_CLIENT_OFFSET  oneway   begin elsewhere
    221 GET_CONSUMER_STATUS_FROM_CLIENT        offsets in memory
    307 GET_CONSUMER_RUNNING_INFO              what the consumer is doing
    309 CONSUME_MESSAGE_DIRECTLY               run the listener on this message
    326 PUSH_REPLY_MESSAGE_TO_CLIENT           a reply to a request of ours

Handlers run on the loop between messages, so they hand over and return; only 309 waits for a listener.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from contrailmq.client.errors import ClientError
from contrailmq.client.records import ReceivedMessage, decode_messages
from contrailmq.message import ContrailError, MessageError, Property, encode_host, encode_properties
from contrailmq.wire.admin_bodies import ConsumerStatusBody, ResetOffsetBody
from contrailmq.wire.bodies import decode_body, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.requests import PushReplyMessage

if TYPE_CHECKING:
    from contrailmq.client.transport.instance import ClientInstance, ConsumerMember

_log = logging.getLogger("contrailmq.client")


def register_handlers(instance: ClientInstance) -> None:
    """Serve the seven codes in the name of the instance's members."""
    handlers = _Handlers(instance)
    remoting = instance.remoting
    remoting.register(RequestCode.CHECK_TRANSACTION_STATE, handlers.check_transaction)
    remoting.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, handlers.members_changed)
    remoting.register(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, handlers.reset_offsets)
    remoting.register(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, handlers.consumer_status)
    remoting.register(RequestCode.GET_CONSUMER_RUNNING_INFO, handlers.running_info)
    remoting.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, handlers.consume_directly)
    remoting.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, handlers.push_reply)


class _Handlers:
    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    def check_transaction(self, connection: Connection, command: Command) -> None:
        messages = _records(command)
        if not messages:
            return
        message = messages[0]
        check = self._instance.transaction_checks.get(message.properties.get(Property.PRODUCER_GROUP, ""))
        if check is None:
            _log.warning("a transaction check came for a group without a producer here: %r", message)
            return
        check(message, command.ext, connection.address)

    def members_changed(self, connection: Connection, command: Command) -> None:
        consumer = self._instance.consumers.get(command.ext.get("consumerGroup", ""))
        if consumer is not None:
            consumer.request_rebalance()

    def reset_offsets(self, connection: Connection, command: Command) -> None:
        consumer = self._instance.consumers.get(command.ext.get("group", ""))
        if consumer is None:
            return
        try:
            offsets = decode_body(command.body, ResetOffsetBody).offsets
        except ContrailError as exc:
            _log.warning("a reset of offsets cannot be read: %s", exc)
            return
        self._instance.spawn(consumer.reset_offsets(command.ext.get("topic", ""), offsets), "reset-offsets")

    def consumer_status(self, connection: Connection, command: Command) -> bytes:
        consumer = self._consumer(command, "group")
        if consumer is None:
            return _unknown_group(command)
        offsets = consumer.offsets_of(command.ext.get("topic", ""))
        return encode_response(command, body=encode_body(ConsumerStatusBody.of(offsets)))

    def running_info(self, connection: Connection, command: Command) -> bytes:
        consumer = self._consumer(command, "consumerGroup")
        if consumer is None:
            return _unknown_group(command)
        return encode_response(command, body=encode_body(consumer.running_info()))

    async def consume_directly(self, connection: Connection, command: Command) -> bytes:
        consumer = self._consumer(command, "consumerGroup")
        messages = _records(command)
        if consumer is None or not messages:
            return _unknown_group(command)
        message = messages[0]
        message.broker_name = command.ext.get("brokerName", "")
        try:
            result = await consumer.consume_directly(message)
        except ClientError as exc:  # no listener: the caller must not wait in vain
            return encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(exc))
        return encode_response(command, body=encode_body(result))

    def push_reply(self, connection: Connection, command: Command) -> bytes:
        reply = _reply_message(command)
        waiting = self._instance.replies.pop(reply.properties.get(Property.CORRELATION_ID, ""), None)
        if waiting is None:
            _log.warning("a reply came for nobody, it may be late: %r", reply)
        elif not waiting.done():
            waiting.set_result(reply)
        return encode_response(command)

    def _consumer(self, command: Command, key: str) -> ConsumerMember | None:
        return self._instance.consumers.get(command.ext.get(key, ""))


def _records(command: Command) -> list[ReceivedMessage]:
    try:
        return decode_messages(command.body)
    except ClientError as exc:
        _log.warning("request %d of a broker holds no record: %s", command.code, exc)
        return []


def _unknown_group(command: Command) -> bytes:
    group = command.ext.get("consumerGroup") or command.ext.get("group", "")
    return encode_response(command, ResponseCode.SYSTEM_ERROR, remark=f"no consumer of group {group!r} in this client")


def _reply_message(command: Command) -> ReceivedMessage:
    """A reply is not a record: its fields are the request's ext fields."""
    header = command.header(PushReplyMessage)
    arrived_ms = time.time_ns() // 1_000_000
    properties = (header.properties or "").encode() + encode_properties({Property.ARRIVE_TIME: str(arrived_ms)})
    message = ReceivedMessage(
        topic=header.topic,
        stored_body=command.body,
        encoded_properties=properties,
        size_bytes=len(command.body),
        magic=0,
        body_crc=0,
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=-1,
        physical_offset=0,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_timestamp,
        born_host_bytes=_host(header.born_host),
        store_time_ms=header.store_timestamp,
        store_host_bytes=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
    )
    message.broker_name, message.consume_start_s, message.min_offset, message.max_offset = "", 0.0, 0, 0
    return message


def _host(text: str) -> bytes:
    ip, _, port = text.lstrip("/").rpartition(":")
    try:
        return encode_host(ip.strip("[]"), int(port))
    except (MessageError, ValueError):
        return encode_host("0.0.0.0", 0)
