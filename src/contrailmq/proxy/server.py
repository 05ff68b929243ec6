"""A gRPC server on one port: in front of a cluster (`contrailmq proxy`), or in a broker's process (`grpcServerPort`).

It keeps nothing that matters over a restart: any number of proxies can stand in front of a cluster, and clients may
change between them. Each port takes plain connections, TLS or both, as `tls.server.mode` says.

In a broker's process, requests to that broker take no socket (`wire/joined.py`). All else is the same: the broker sees
one more client, and other brokers of the cluster are asked over the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from contrailmq.client.settings import ClientOptions
from contrailmq.message import ContrailError
from contrailmq.metrics import ExportSettings, Metrics
from contrailmq.proxy.asking import Asking
from contrailmq.proxy.cluster import Cluster
from contrailmq.proxy.figures import figures
from contrailmq.proxy.members import Members
from contrailmq.proxy.protocol import SERVICE, Wire, methods, v2
from contrailmq.proxy.remoting import RemotingProxy
from contrailmq.proxy.rpc.calls import BOTH_STREAM, SERVER_STREAM, UNARY, Call, Method
from contrailmq.proxy.rpc.framing import CallError
from contrailmq.proxy.rpc.framing import Status as CallStatus
from contrailmq.proxy.rpc.port import CallPort
from contrailmq.proxy.service import Service
from contrailmq.proxy.statuses import Code, Refused, outcome, status
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.tls import ServerTls

_log = logging.getLogger("contrailmq.proxy")

GRPC_PORT: Final = 8081
LOOK_S: Final = 3.0


class BrokerHere(NamedTuple):
    """A broker on this loop: its address, as routes have it, and how to connect to it."""

    address: str
    join: Callable[[Connection], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """`tls` says what each port takes, plain only without it. Without `remoting_port` no remoting clients are served; 0
    is a free one."""

    client: ClientOptions = field(default_factory=ClientOptions)
    host: str = "127.0.0.1"
    port: int = GRPC_PORT
    remoting_port: int | None = None
    remoting_address: str = ""  # host:port that routes lead to; empty: where the client came to
    tls: ServerTls | None = None
    metrics: ExportSettings = field(default_factory=ExportSettings)  # probes too; none unless a kind is said
    drain_s: float = 3.0


class ProxyServer:
    def __init__(self, config: ProxyConfig, broker: BrokerHere | None = None) -> None:
        """`broker` runs in this process: requests go to it without a socket."""
        self._config = config
        self._broker = broker
        self._server: CallPort | None = None
        self._cluster: Cluster | None = None
        self.service: Service | None = None  # while it runs
        self.remoting: RemotingProxy | None = None
        self.members: Members | None = None  # of the broker in this process
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
        if self._broker is not None:
            asking = Asking(service.clients, self._cluster)
            self.members = Members(service.clients, self._cluster, asking, *self._broker)
            self.members.start()
        methods = _methods(service)
        self._server = CallPort(methods, self.served, host=config.host, port=config.port, tls=config.tls)
        try:
            await self._server.start()
        except ContrailError:
            await self._cluster.close()
            raise
        self.port = self._server.port
        await self._start_remoting(self._cluster)
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
                tls=config.tls,
                client_tls=config.client.ssl_context(),
            )
            await remoting.start()
        except ContrailError:
            await self._close_half_started(cluster)
            raise
        self.remoting = remoting

    async def _close_half_started(self, cluster: Cluster) -> None:
        assert self._server is not None
        await self._server.close(0)
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
            await self._server.close(drain_s)
        if self.members is not None:
            self.members.close()
        if self._cluster is not None:
            await self._cluster.close()
        await self.metrics.close()


def _methods(service: Service) -> dict[str, Method]:
    """Each call of the service by its path, with its messages and with errors turned into statuses."""
    table = {}
    for method in methods():
        name = method.name
        call = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        request, answer = getattr(v2, method.input_type.name), getattr(v2, method.output_type.name)
        kind = UNARY if not method.server_streaming else BOTH_STREAM if method.client_streaming else SERVER_STREAM
        table[f"/{SERVICE}/{name}"] = Method(
            name,
            kind,
            read=_reader(request),
            write=answer.SerializeToString,
            call=_commanding(call) if kind == BOTH_STREAM else call,
            failed=_ended if kind == BOTH_STREAM else _failed(answer),
        )
    return table


def _reader(request: Wire) -> Callable[[bytes], Wire]:
    read_message = request.FromString

    def read(data: bytes) -> Wire:
        try:
            return read_message(data)
        except DecodeError as exc:
            raise Refused(Code.BAD_REQUEST, f"the request cannot be read: {exc}") from None

    return read


def _failed(answer: Wire) -> Callable[[Exception], Wire]:
    """The answer in place of an exception: its status says what went wrong."""

    def failed(error: Exception) -> Wire:
        return answer(status=outcome(error) if isinstance(error, ContrailError) else _ours(error))

    return failed


def _ended(error: Exception) -> CallError:
    """How a Telemetry stream ends by an exception: its commands have no place for one."""
    if isinstance(error, Refused):
        return CallError(CallStatus.INVALID_ARGUMENT, str(error))
    if isinstance(error, ContrailError):
        return CallError(CallStatus.INTERNAL, str(error))
    return CallError(CallStatus.INTERNAL, _ours(error).message)


def _commanding(call: Callable[[AsyncIterator[Wire], Call], AsyncIterator[Wire]]) -> Callable[[Any, Call], Any]:
    async def command_all(requests: AsyncIterator[Wire], context: Call) -> None:
        async with contextlib.aclosing(call(requests, context)) as commands:  # type: ignore[type-var]
            async for command in commands:
                await context.write(command)

    return command_all


def _ours(exc: Exception) -> Wire:
    _log.error("a call ended by an error of ours, please report it", exc_info=exc)
    return status(Code.INTERNAL_SERVER_ERROR, f"an error of the proxy: {exc!r}; its log says more")
