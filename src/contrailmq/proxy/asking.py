"""What administrators ask of gRPC consumers: at the remoting port of the proxy that these are connected to, or at the
broker in whose process that proxy runs, which passes it on (`members`).

    307 GET_CONSUMER_RUNNING_INFO  what the threads of a client do          a command on its Telemetry stream
    309 CONSUME_MESSAGE_DIRECTLY   let a client consume one message now     the same, with the message from its broker

Subscriptions are known here. So a client is asked for its threads only where the question does not say that nobody
wants them (jstackEnable=false): many clients never answer, and an administrator asks each member of a group.
"""

from __future__ import annotations

import uuid
from typing import Final

from contrailmq.client.records import decode_messages
from contrailmq.message import ContrailError, parse_offset_message_id
from contrailmq.proxy.clients import Clients
from contrailmq.proxy.cluster import Cluster
from contrailmq.proxy.describing import running_info
from contrailmq.proxy.messages import delivered
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.proxy.statuses import Code, Refused
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult
from contrailmq.wire.bodies import encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command

ASKED: Final = (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
REQUEST_S: Final = 3.0
DONE: Final = "CR_SUCCESS"
LATER: Final = "CR_LATER"


class Asking:
    """Asks clients for others."""

    def __init__(self, clients: Clients, cluster: Cluster) -> None:
        self._clients, self._cluster = clients, cluster

    async def answer(self, connection: Connection, command: Command) -> None:
        try:
            client = command.ext.get("clientId", "")
            group = command.ext.get("consumerGroup", "")
            settings = self._clients.settings_of(client, group)
            if settings is None:
                raise Refused(Code.PROXY_TIMEOUT, f"no gRPC consumer {client!r} of group {group!r} is connected here")
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                stack = await self._stack(client) if command.ext.get("jstackEnable") != "false" else None
                body = encode_body(running_info(settings, stack=stack))
            else:
                body = await self._consumed(client, command.ext)
            connection.reply(encode_response(command, ResponseCode.SUCCESS, body=body))
        except ContrailError as exc:
            connection.reply(encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(exc)))

    async def _stack(self, client: str) -> str:
        nonce = str(uuid.uuid4())
        asked = v2.PrintThreadStackTraceCommand(nonce=nonce)
        answer = await self._clients.ask(client, v2.TelemetryCommand(print_thread_stack_trace_command=asked), nonce)
        _check(answer, client)
        return str(answer.thread_stack_trace.thread_stack_trace)

    async def _consumed(self, client: str, ext: dict[str, str]) -> bytes:
        topic, broker = ext.get("topic", ""), ext.get("brokerName", "")
        message_id = ext.get("msgId", "")
        _, _, offset = parse_offset_message_id(message_id)
        found = await self._cluster.instance.call(
            await self._cluster.master(broker, topic),
            RequestCode.VIEW_MESSAGE_BY_ID,
            {"offset": offset, "topic": topic, "bname": broker},
            timeout_s=REQUEST_S,
        )
        messages = decode_messages(found.body, broker_name=broker)
        if not messages:
            raise Refused(Code.MESSAGE_NOT_FOUND, f"broker {broker} has no message {message_id}")
        nonce = str(uuid.uuid4())
        asked = v2.VerifyMessageCommand(nonce=nonce, message=delivered(messages[0], topic))
        answer = await self._clients.ask(client, v2.TelemetryCommand(verify_message_command=asked), nonce)
        is_done = answer.status.code in (0, Code.OK)
        said = ConsumeMessageDirectlyResult(
            consume_result=DONE if is_done else LATER, remark=None if is_done else _said(answer)
        )
        return encode_body(said)


def _check(answer: Wire, client: str) -> None:
    if answer.status.code not in (0, Code.OK):
        raise Refused(Code.NOT_IMPLEMENTED, f"client {client} answered {_said(answer)}")


def _said(answer: Wire) -> str:
    return f"{answer.status.code} {answer.status.message}".strip()
