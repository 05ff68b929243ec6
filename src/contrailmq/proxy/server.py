"""A gRPC server on one port: in front of a cluster (`contrailmq proxy`), or in a broker's process (`grpcServerPort`).

It keeps nothing that matters over a restart: any number of proxies can stand in front of a cluster, and clients may
change between them. One port is plain or TLS, not both.

In a broker's process, requests to that broker take no socket (`wire/joined.py`). All else is the same: the broker sees
one more client, and other brokers of the cluster are asked over the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from contrailmq.client.settings import ClientOptions
from contrailmq.message import ContrailError
from contrailmq.metrics import ExportSettings, Metrics
from contrailmq.proxy.asking import Asking
from contrailmq.proxy.cluster import Cluster
from contrailmq.proxy.figures import figures
from contrailmq.proxy.protocol import SERVICE, Wire, methods, v2
from contrailmq.proxy.remoting import RemotingProxy
from contrailmq.proxy.service import Context, Service
from contrailmq.proxy.statuses import Code, Refused, outcome, status
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.errors import ListenError
from contrailmq.wire.tls import ServerFiles, ServerTls, server_tls

_log = logging.getLogger("contrailmq.proxy")

GRPC_PORT: Final = 8081
LOOK_S: Final = 3.0
MESSAGE_BYTES_MAX: Final = 130 * 1024 * 1024
STREAMS_MAX: Final = 4096  # calls of one connection at a time; what it opens beyond that is refused
# Calls that grpcio has not handed to us yet. Beyond 1,000, its default, it ends calls of anybody, by chance: one
# connection must not bring that about.
PENDING_MAX: Final = 2 * STREAMS_MAX
GRPC_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 30_000),  # a client whose machine is gone is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.max_concurrent_streams", STREAMS_MAX),
    ("grpc.server.max_pending_requests", PENDING_MAX),
    ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_MAX),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
)


class BrokerHere(NamedTuple):
    """A broker on this loop: its address, as routes have it, and how to connect to it."""

    address: str
    join: Callable[[Connection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """With `tls` the ports take TLS only. Without `remoting_port` no remoting clients are served; 0 is a free one."""

    client: ClientOptions = field(default_factory=ClientOptions)
    host: str = "127.0.0.1"
    port: int = GRPC_PORT
    remoting_port: int | None = None
    remoting_address: str = ""  # host:port that routes lead to; empty: where the client came to
    tls: ServerFiles | None = None
    metrics: ExportSettings = field(default_factory=ExportSettings)  # probes too; none unless a kind is said
    drain_s: float = 3.0


class ProxyServer:
    def __init__(self, config: ProxyConfig, broker: BrokerHere | None = None) -> None:
        """`broker` runs in this process: requests go to it without a socket."""
        self._config = config
        self._broker = broker
        self._server: grpc.aio.Server | None = None
        self._cluster: Cluster | None = None
        self.service: Service | None = None  # while it runs
        self.remoting: RemotingProxy | None = None
        self.served: Counter[str] = Counter()  # calls, by their name
        self._not_ready = "the proxy is starting"
        self.metrics = Metrics(config.metrics, live=list, ready=self._ready_reasons)
        self._tasks: list[asyncio.Task[None]] = []
        self.port = config.port

    @property
    def address(self) -> str:
        return f"{self._config.host}:{self.port}"

    async def start(self) -> None:
        """Listen. ListenError when the port cannot be had."""
        config = self._config
        await self.metrics.start()
        self._cluster = Cluster(config.client, config.client.client_id())
        if self._broker is not None:
            self._cluster.instance.remoting.serve_here(*self._broker)
        service = self.service = Service(self._cluster)
        self._server = grpc.aio.server(options=GRPC_OPTIONS)
        self._server.add_generic_rpc_handlers((_handlers(service, self.served),))
        try:
            if config.tls is not None:
                self.port = self._server.add_secure_port(self.address, _credentials(config.tls))
            else:
                self.port = self._server.add_insecure_port(self.address)
        except (RuntimeError, OSError) as exc:
            await self._cluster.close()
            raise ListenError(self.address, str(exc)) from None
        await self._start_remoting(self._cluster)
        await self._server.start()
        await self._look_for_name_servers()
        for work in (service.renewals.run(), service.clients.run()):
            self._tasks.append(asyncio.create_task(work))
        labels = {"node_type": "proxy", "cluster": "DefaultCluster", "node_id": self.address}
        self.metrics.show(figures(self), labels)
        self._not_ready = ""

    def _ready_reasons(self) -> list[str]:
        return [self._not_ready] if self._not_ready else []

    async def _start_remoting(self, cluster: Cluster) -> None:
        config = self._config
        if config.remoting_port is None:
            return
        try:
            assert self.service is not None
            remoting = RemotingProxy(
                cluster.instance,
                asking=Asking(self.service.clients, cluster),
                host=config.host,
                port=config.remoting_port,
                advertised=config.remoting_address,
                tls=_remoting_tls(config.tls),
                client_tls=config.client.ssl_context(),
            )
            await remoting.start()
        except ContrailError:
            await self._close_half_started(cluster)
            raise
        self.remoting = remoting

    async def _close_half_started(self, cluster: Cluster) -> None:
        assert self._server is not None
        await self._server.stop(None)
        await cluster.close()

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
        self._not_ready = "the proxy is stopping"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        drain_s = self._config.drain_s
        if self.remoting is not None:
            await self.remoting.close(drain_s)
        if self._server is not None:
            await self._server.stop(drain_s)
        if self._cluster is not None:
            await self._cluster.close()
        await self.metrics.close()


def _credentials(files: ServerFiles) -> grpc.ServerCredentials:
    pair = files.key.read_bytes(), files.certificate.read_bytes()
    if files.client_ca is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials([pair], files.client_ca.read_bytes(), require_client_auth=True)


def _remoting_tls(files: ServerFiles | None) -> ServerTls | None:
    if files is None:
        return None
    said = {"certPath": str(files.certificate), "keyPath": str(files.key), "mode": "enforcing"}
    if files.client_ca is not None:
        said |= {"trustCertPath": str(files.client_ca), "need.client.auth": "require"}
    return server_tls({f"tls.server.{key}": value for key, value in said.items()})


def _handlers(service: Service, served_calls: Counter[str]) -> grpc.GenericRpcHandler:
    """Each call of the service, with its messages and with errors turned into statuses."""
    table = {}
    for method in methods():
        call = _counted(
            method.name, served_calls, getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
        )
        request, answer = getattr(v2, method.input_type.name), getattr(v2, method.output_type.name)
        if method.name == "Telemetry":
            make, served = grpc.stream_stream_rpc_method_handler, _telemetry(call)
        elif method.server_streaming:
            make, served = grpc.unary_stream_rpc_method_handler, _streamed(call, answer)
        else:
            make, served = grpc.unary_unary_rpc_method_handler, _served(call, answer)
        table[method.name] = make(served, _reader(request), answer.SerializeToString)
    return grpc.method_handlers_generic_handler(SERVICE, table)


def _counted(name: str, served: Counter[str], call: Callable[..., Any]) -> Callable[..., Any]:
    def count(request: Wire, context: Context) -> Any:
        served[name] += 1
        return call(request, context)

    return count


class _Unreadable(NamedTuple):
    """In place of a request that is no protobuf: grpcio would write a traceback into the log for each."""

    reason: str

    @property
    def status(self) -> Wire:
        return status(Code.BAD_REQUEST, f"the request cannot be read: {self.reason}")


def _reader(request: Wire) -> Callable[[bytes], Wire]:
    def read(data: bytes) -> Wire:
        try:
            return request.FromString(data)
        except DecodeError as exc:
            return _Unreadable(str(exc))

    return read


def _served(call: Callable[[Wire, Context], Awaitable[Wire]], answer: Wire) -> Any:
    async def serve(request: Wire, context: Context) -> Wire:
        if isinstance(request, _Unreadable):
            return answer(status=request.status)
        try:
            return await call(request, context)
        except ContrailError as exc:
            return answer(status=outcome(exc))
        except Exception as exc:  # noqa: BLE001 (logged, and the client hears of it)
            return answer(status=_ours(exc))

    return serve


def _streamed(call: Callable[[Wire, Context], Awaitable[None]], answer: Wire) -> Any:
    """Calls that write their answers themselves: of async generators, one in another, each answer went through two."""

    async def serve(request: Wire, context: Context) -> None:
        if isinstance(request, _Unreadable):
            await context.write(answer(status=request.status))
            return
        try:
            await call(request, context)
        except grpc.aio.BaseError:
            raise  # the stream broke under a write: grpcio ends the call
        except ContrailError as exc:
            await context.write(answer(status=outcome(exc)))
        except Exception as exc:  # noqa: BLE001 (as above)
            await context.write(answer(status=_ours(exc)))

    return serve


def _telemetry(call: Callable[[AsyncIterator[Wire], Context], AsyncIterator[Wire]]) -> Any:
    async def serve(requests: AsyncIterator[Wire], context: Context) -> AsyncIterator[Wire]:
        async with contextlib.aclosing(call(_readable(requests), context)) as commands:  # type: ignore[type-var]
            try:
                async for command in commands:
                    yield command
            except Refused as exc:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
            except ContrailError as exc:
                await context.abort(grpc.StatusCode.INTERNAL, str(exc))

    return serve


async def _readable(requests: AsyncIterator[Wire]) -> AsyncIterator[Wire]:
    async for request in requests:
        if isinstance(request, _Unreadable):
            raise Refused(Code.BAD_REQUEST, request.status.message)
        yield request


def _ours(exc: Exception) -> Wire:
    _log.error("a call ended by an error of ours, please report it", exc_info=exc)
    return status(Code.INTERNAL_SERVER_ERROR, f"an error of the proxy: {exc!r}; its log says more")
