"""Clients: who is connected (203, 204, 328), and questions passed on to one of them (223, 307, 309)."""

from __future__ import annotations

import asyncio
from typing import Final

from contrailmq.broker.admin.groups import subscription_body
from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.connections import Client
from contrailmq.message import MessageError, MessageQueue, parse_offset_message_id
from contrailmq.wire.admin_bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumerStatusBody,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from contrailmq.wire.bodies import decode_body, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RequestTimeoutError, WireError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import (
    ConsumeMessageDirectly,
    ConsumerGroup,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    ProducerGroup,
)

RELAY_TIMEOUT_S: Final = 10.0
RELAY_VERSION: Final = 62  # V3_1_8_SNAPSHOT: older clients do not know the questions


class ClientAdmin:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumers)
        handlers.register(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producers)
        handlers.register(RequestCode.GET_ALL_PRODUCER_INFO, self.all_producers)
        handlers.register_slow(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.status)
        handlers.register_slow(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info)
        handlers.register_slow(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    def consumers(self, connection: Peer, command: Command) -> bytes | None:
        name = command.header(ConsumerGroup).consumer_group
        live = self._node.clients.consumer_group(name)
        if live is None:
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:64]}] not online")
        body = ConsumerConnection(
            connection_set=[_connection(client) for client in live.members.values()],
            consume_from_where=live.from_where,
            consume_type=live.consume_type,
            message_model=live.message_model,
            subscription_table={topic: subscription_body(entry) for topic, entry in live.subscriptions.items()},
        )
        return success(command, None, encode_body(body))

    def producers(self, connection: Peer, command: Command) -> bytes | None:
        name = command.header(ProducerGroup).producer_group
        clients = self._node.clients.producers(name)
        if not clients:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:64]}] not exist")
        body = ProducerConnection(connection_set=[_connection(client) for client in clients])
        return success(command, None, encode_body(body))

    def all_producers(self, connection: Peer, command: Command) -> bytes | None:
        booted_ms = self._node.now_ms() - self._node.monotonic_ms()
        table = {
            group: [
                ProducerInfo(
                    client_id=client.client_id,
                    language=client.language,
                    last_update_timestamp=booted_ms + client.seen_ms,
                    remote_ip=f"/{client.address}",
                    version=client.version,
                )
                for client in clients
            ]
            for group, clients in self._node.clients.producer_groups().items()
        }
        return success(command, None, encode_body(ProducerTable(data=table)))

    # --- passed on

    async def running_info(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(GetConsumerRunningInfo)
        client = self._find(header.consumer_group, header.client_id)
        return await self._relay(command, client, RequestCode.GET_CONSUMER_RUNNING_INFO, header, b"")

    async def consume_directly(self, connection: Peer, command: Command) -> bytes | None:
        """Have one consumer consume one message now; the message is found by its offset id."""
        node, header = self._node, command.header(ConsumeMessageDirectly)
        client = self._find(header.consumer_group, header.client_id or "")
        try:
            _, _, offset = parse_offset_message_id(header.msg_id or "")
        except MessageError as exc:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id!r} is not an offset id: {exc}") from None
        record = node.store.read_record(offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no message begins at {offset}, or it was deleted")
        topic, group = node.topics.get(header.topic or ""), node.groups.get(header.consumer_group)
        header.broker_name = node.config.broker_name
        header.topic_sys_flag = topic.sys_flag if topic else 0
        header.group_sys_flag = group.sys_flag if group else 0
        return await self._relay(command, client, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record)

    def _find(self, group: str, client_id: str) -> Client:
        live = self._node.clients.consumer_group(group)
        client = live.find(client_id) if live else None
        if client is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:64]}> <{client_id[:128]}> not online")
        if client.version < RELAY_VERSION:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the client {client_id} is version {client.version}, too old to be asked"
            )
        return client

    async def _relay(self, command: Command, client: Client, code: int, ext: Fields, body: bytes) -> bytes:
        try:
            answer = await client.connection.invoke(code, ext, body, RELAY_TIMEOUT_S)
        except RequestTimeoutError as exc:
            raise Refused(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {client.client_id}: {exc}") from None
        except WireError as exc:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"consumer {client.client_id}: {exc}") from None
        return encode_response(command, answer.code, answer.ext, answer.body, answer.remark)

    async def status(self, connection: Peer, command: Command) -> bytes | None:
        """The offsets that the consumers of a group hold in memory, asked of one of them or of all."""
        header = command.header(GetConsumerStatus)
        live = self._node.clients.consumer_group(header.group)
        if live is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]")
        asked = [
            client
            for client in live.members.values()
            if not header.client_addr or client.client_id == header.client_addr
        ]
        question = GetConsumerStatus(topic=header.topic, group=header.group)
        answers = await asyncio.gather(*(self._status_of(client, question) for client in asked))
        clients = {client.client_id: offsets for client, offsets in zip(asked, answers, strict=True)}
        return success(command, None, encode_body(ConsumerStatusBody.of_clients(clients)))

    async def _status_of(self, client: Client, question: GetConsumerStatus) -> dict[MessageQueue, int]:
        try:
            answer = await client.connection.invoke(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, b"", RELAY_TIMEOUT_S / 2
            )
        except WireError:
            return {}
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return {}
        return decode_body(answer.body, ConsumerStatusBody).offsets


def _connection(client: Client) -> ClientConnection:
    return ClientConnection(
        client_addr=client.address, client_id=client.client_id, language=client.language, version=client.version
    )
