"""Request-reply: SEND_REPLY_MESSAGE (324) and its V2 (325).

A reply names the client that waits for it (REPLY_TO_CLIENT). It is pushed to that client's connection (326), which
must have heartbeated as a producer, and its answer is awaited; then the reply is also stored, when
storeReplyMessageEnable says so. The sender gets success only if the push succeeded and the stored reply is as safe
as a send would be.
"""

from __future__ import annotations

from typing import Final

from contrailmq.broker.handlers import Handlers, Refused
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.send import SendHeader, SendProcessor
from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.message import Property, decode_host, encode_properties, offset_message_id
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import PushReplyMessage, SendMessage, SendMessageResponse, SendMessageV2

PUSH_TIMEOUT_S: Final = 10.0


class ReplyProcessor:
    def __init__(self, node: BrokerNode, send: SendProcessor) -> None:
        self._node = node
        self._send = send

    def register(self, handlers: Handlers) -> None:
        handlers.register_slow(RequestCode.SEND_REPLY_MESSAGE, self._reply_v1)
        handlers.register_slow(RequestCode.SEND_REPLY_MESSAGE_V2, self._reply_v2)

    async def _reply_v1(self, connection: Peer, command: Command) -> bytes | None:
        return await self._reply(connection, command, command.header(SendMessage))

    async def _reply_v2(self, connection: Peer, command: Command) -> bytes | None:
        return await self._reply(connection, command, command.header(SendMessageV2))

    async def _reply(self, connection: Peer, command: Command, header: SendHeader) -> bytes | None:
        node = self._node
        topic = self._send.writable_topic(header)
        queue_id = header.queue_id if 0 <= header.queue_id < topic.queue_limit else 0
        message = self._send.incoming(connection, command, header, topic, queue_id)
        error = await self._push(message, header)
        physical_offset, queue_offset, end_offset = -1, 0, 0
        if node.config.store_reply_message_enable:
            result = node.put(message)
            if result.status.is_stored:
                physical_offset, queue_offset = result.physical_offset, result.queue_offset
                end_offset = physical_offset + result.size_bytes
                node.after_append(wants_flush=node.store.config.is_sync_flush)
        await node.keeping.kept(topic.name)
        ext = SendMessageResponse(
            msg_id=offset_message_id(node.store_host, physical_offset) if physical_offset >= 0 else "0",
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=message.unique_key,
            msg_region=node.config.region_id,
            trace_on=node.config.trace_on,
        )
        if error:
            return encode_response(command, ResponseCode.SYSTEM_ERROR, ext, remark=error)
        return node.acknowledging.confirm(connection, command, end_offset, ext=ext)

    async def _push(self, message: IncomingMessage, header: SendHeader) -> str:
        """Hand the reply to its client; returns why that failed, or nothing."""
        client_id = message.properties.get(Property.REPLY_TO_CLIENT)
        if not client_id:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the reply has no property {Property.REPLY_TO_CLIENT}: nobody waits for it"
            )
        client = self._node.clients.find_producer(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._node.now_ms()
        born, store = decode_host(message.born_host), decode_host(message.store_host)
        push = PushReplyMessage(
            producer_group=header.producer_group,
            topic=message.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=message.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_time_ms,
            flag=message.flag,
            born_host=str(born),
            store_host=str(store),
            store_timestamp=now_ms,
            properties=encode_properties({**message.properties, Property.PUSH_REPLY_TIME: str(now_ms)}).decode(),
            reconsume_times=message.reconsume_times,
            unit_mode=header.unit_mode,
        )
        try:
            answer = await client.connection.invoke(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, message.body, PUSH_TIMEOUT_S
            )
        except WireError as exc:
            return f"push reply message to {client_id} fail: {exc}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: it answered {answer.code} {answer.remark or ''}"
        return ""
