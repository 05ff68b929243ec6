"""A gRPC server on one port, in front of a cluster: `contrailmq proxy`.

It keeps nothing that matters over a restart: any number of proxies can stand in front of a cluster, and clients may
change between them. One port is plain or TLS, not both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from contrailmq.client.settings import ClientOptions
from contrailmq.message import ContrailError
from contrailmq.proxy.cluster import Cluster
from contrailmq.proxy.protocol import SERVICE, Wire, methods, v2
from contrailmq.proxy.service import Context, Service
from contrailmq.proxy.statuses import Code, Refused, outcome, status
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ListenError

_log = logging.getLogger("contrailmq.proxy")

GRPC_PORT: Final = 8081
LOOK_S: Final = 3.0
MESSAGE_BYTES_MAX: Final = 130 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),  # a client whose machine is gone is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """`certificate` and `key` are PEM files: with them the port takes TLS only."""

    client: ClientOptions = field(default_factory=ClientOptions)
    host: str = "127.0.0.1"
    port: int = GRPC_PORT
    certificate: Path | None = None
    key: Path | None = None
    drain_s: float = 3.0


class ProxyServer:
    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self._server: grpc.aio.Server | None = None
        self._cluster: Cluster | None = None
        self.service: Service | None = None  # while it runs
        self._tasks: list[asyncio.Task[None]] = []
        self.port = config.port

    @property
    def address(self) -> str:
        return f"{self._config.host}:{self.port}"

    async def start(self) -> None:
        """Listen. ListenError when the port cannot be had."""
        config = self._config
        self._cluster = Cluster(config.client, config.client.client_id())
        service = self.service = Service(self._cluster)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_handlers(service),))
        try:
            if config.certificate is not None and config.key is not None:
                pair = config.key.read_bytes(), config.certificate.read_bytes()
                self.port = self._server.add_secure_port(self.address, grpc.ssl_server_credentials([pair]))
            else:
                self.port = self._server.add_insecure_port(self.address)
        except (RuntimeError, OSError) as exc:
            await self._cluster.close()
            raise ListenError(self.address, str(exc)) from None
        await self._server.start()
        await self._look_for_name_servers()
        for work in (service.renewals.run(), service.clients.run()):
            self._tasks.append(asyncio.create_task(work))

    async def _look_for_name_servers(self) -> None:
        """Say it at the start when none answers: a misspelt address would show in failed calls only."""
        assert self._cluster is not None
        servers = self._cluster.instance.name_servers
        try:
            await servers.invoke(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=LOOK_S)
        except ContrailError as exc:
            _log.warning("no NameServer of %s answers: calls fail until one does (%s)", servers.text, exc)

    async def stop(self) -> None:
        """Answer what was asked for, then close; streams that wait are ended after `drain_s`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(self._config.drain_s)
        if self._cluster is not None:
            await self._cluster.close()


def _handlers(service: Service) -> grpc.GenericRpcHandler:
    """Each call of the service, with its messages and with errors turned into statuses."""
    table = {}
    for method in methods():
        call = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
        request, answer = getattr(v2, method.input_type.name), getattr(v2, method.output_type.name)
        if method.name == "Telemetry":
            make, served = grpc.stream_stream_rpc_method_handler, _telemetry(call)
        elif method.server_streaming:
            make, served = grpc.unary_stream_rpc_method_handler, _streamed(call, answer)
        else:
            make, served = grpc.unary_unary_rpc_method_handler, _served(call, answer)
        table[method.name] = make(served, request.FromString, answer.SerializeToString)
    return grpc.method_handlers_generic_handler(SERVICE, table)


def _served(call: Callable[[Wire, Context], Awaitable[Wire]], answer: Wire) -> Any:
    async def serve(request: Wire, context: Context) -> Wire:
        try:
            return await call(request, context)
        except ContrailError as exc:
            return answer(status=outcome(exc))
        except Exception as exc:  # noqa: BLE001 (logged, and the client hears of it)
            return answer(status=_ours(exc))

    return serve


def _streamed(call: Callable[[Wire, Context], AsyncIterator[Wire]], answer: Wire) -> Any:
    async def serve(request: Wire, context: Context) -> AsyncIterator[Wire]:
        async with contextlib.aclosing(call(request, context)) as parts:  # type: ignore[type-var]
            try:
                async for part in parts:
                    yield part
            except ContrailError as exc:
                yield answer(status=outcome(exc))
            except Exception as exc:  # noqa: BLE001 (as above)
                yield answer(status=_ours(exc))

    return serve


def _telemetry(call: Callable[[AsyncIterator[Wire], Context], AsyncIterator[Wire]]) -> Any:
    async def serve(requests: AsyncIterator[Wire], context: Context) -> AsyncIterator[Wire]:
        async with contextlib.aclosing(call(requests, context)) as commands:  # type: ignore[type-var]
            try:
                async for command in commands:
                    yield command
            except Refused as exc:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
            except ContrailError as exc:
                await context.abort(grpc.StatusCode.INTERNAL, str(exc))

    return serve


def _ours(exc: Exception) -> Wire:
    _log.error("a call ended by an error of ours, please report it", exc_info=exc)
    return status(Code.INTERNAL_SERVER_ERROR, f"an error of the proxy: {exc!r}; its log says more")
