"""A bare gRPC client for tests: what is sent and answered is seen as it is on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from contrailmq.client.settings import ClientOptions
from contrailmq.proxy.protocol import SERVICE, methods, v2
from contrailmq.proxy.server import ProxyConfig, ProxyServer

KINDS = {method.name: method for method in methods()}


class Caller:
    """One client of a proxy, by its id."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str = "test@1@0@x") -> None:
        self.channel, self.address = channel, ""
        self._channel, self._metadata = channel, (("x-mq-client-id", client_id),) if client_id else ()

    async def call(self, name: str, *, timeout_s: float = 30, **fields: Any) -> Any:
        method = KINDS[name]
        ask = self._channel.unary_unary(
            f"/{SERVICE}/{name}", _maker(method.input_type).SerializeToString, _maker(method.output_type).FromString
        )
        return await ask(_maker(method.input_type)(**fields), metadata=self._metadata, timeout=timeout_s)

    async def stream(self, name: str, *, timeout_s: float = 30, **fields: Any) -> list[Any]:
        method = KINDS[name]
        ask = self._channel.unary_stream(
            f"/{SERVICE}/{name}", _maker(method.input_type).SerializeToString, _maker(method.output_type).FromString
        )
        answers = ask(_maker(method.input_type)(**fields), metadata=self._metadata, timeout=timeout_s)
        return [answer async for answer in answers]

    def telemetry(self) -> Any:
        """The open stream: `write` and `read`."""
        command = v2.TelemetryCommand
        ask = self._channel.stream_stream(f"/{SERVICE}/Telemetry", command.SerializeToString, command.FromString)
        return ask(metadata=self._metadata)


def _maker(kind: Any) -> Any:
    return getattr(v2, kind.name)


@asynccontextmanager
async def proxy_of(namesrv: str, **settings: Any) -> AsyncIterator[ProxyServer]:
    server = ProxyServer(ProxyConfig(client=ClientOptions(namesrv=namesrv), port=0, drain_s=0.1, **settings))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def caller_of(namesrv: str, client_id: str = "test@1@0@x") -> AsyncIterator[Caller]:
    """A client with a proxy of its own in front of the cluster."""
    async with proxy_of(namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
        caller = Caller(channel, client_id)
        caller.address = server.address
        yield caller


def topic(name: str) -> Any:
    return v2.Resource(name=name)


def message(name: str, body: bytes = b"body", **system: Any) -> Any:
    made = v2.Message(topic=topic(name), body=body)
    for key, value in ({"message_id": "0100", "body_encoding": 1, "message_type": 1} | system).items():
        field = getattr(made.system_properties, key) if not isinstance(value, int | str | float | bool) else None
        if field is None:
            setattr(made.system_properties, key, value)
        elif isinstance(value, list):
            field.extend(value)
        else:
            field.CopyFrom(value)
    return made
