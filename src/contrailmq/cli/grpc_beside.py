"""The gRPC API in a broker's process: started when the broker serves, and never a reason for it to stop.

`grpcServerPort` turns it on. Loading it takes 0.1 s of CPU and 7 MB (grpcio took 9 MB more), so it comes after the line
`ready` and has one of its own, `ready grpc HOST:PORT`. What keeps it from starting is one line of the log.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import typer

from contrailmq.message import ContrailError
from contrailmq.wire.properties import SettingsError
from contrailmq.wire.tls import client_tls, server_tls

if TYPE_CHECKING:
    from contrailmq.broker import BrokerServer
    from contrailmq.proxy.server import ProxyServer

log = logging.getLogger("contrailmq")

KEY: Final = "grpcServerPort"
GRPC_PORT: Final = 8081  # RocketMQ's
PORT_MAX: Final = 65_535


def is_installed() -> bool:
    """Whether the extra is there; looking does not load it."""
    try:
        return importlib.util.find_spec("google.protobuf") is not None
    except ModuleNotFoundError:  # there is no `google` at all
        return False


def grpc_port_of_up(
    properties: Mapping[str, str], named: int | None, *, broker_port: int, brokers: int
) -> dict[str, str]:
    """The setting of `contrailmq up`, from what is set and what was named (0: no gRPC).

    Its brokers take this port and those above it. Nobody asked for the usual one, so where it is taken that is said and
    the rest starts. Brokers on free ports have none unless one is named.
    """
    port = _named_port(properties, named, brokers=brokers)
    if port is None:
        port = _usual_port() if broker_port else 0
        host = properties.get("bindAddress", "127.0.0.1")
        port = port if all(_can_be_had(host, port + number) for number in range(brokers if port else 0)) else 0
    return {KEY: str(port)}


def grpc_port_for_files(properties: Mapping[str, str], named: int | None, brokers: int) -> dict[str, str]:
    """The same for settings that are only written: nothing is started, and no port is looked at."""
    port = _named_port(properties, named, brokers=brokers)
    return {KEY: str(_usual_port() if port is None else port)}


def grpc_port_of(properties: Mapping[str, str], number: int) -> dict[str, str]:
    """The setting of one of several brokers: each takes the port after the one before it."""
    first = properties.get(KEY, "0")
    return {KEY: str(int(first) + number)} if first.isdecimal() and int(first) else {}


def _named_port(properties: Mapping[str, str], named: int | None, *, brokers: int) -> int | None:
    """The first port that somebody asked for; 0: none is wanted."""
    text = str(named) if named is not None else properties.get(KEY, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) + brokers > PORT_MAX:
        raise SettingsError(f"grpcServerPort={text}: a port is needed, with {brokers} of them up to {PORT_MAX}")
    return int(text)


def _usual_port() -> int:
    if is_installed():
        return GRPC_PORT
    log.info("no gRPC: pip install 'contrailmq[grpc]' brings it, --no-grpc leaves this line out")
    return 0


def _can_be_had(host: str, port: int) -> bool:
    try:
        socket.create_server((host, port)).close()
    except OSError as exc:
        log.warning("no gRPC: port %d cannot be had (%s); --grpc-port names another", port, exc.strerror)
        return False
    return True


class GrpcBeside:
    """`start`, then `stop`; without a port each does nothing."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._server: ProxyServer | None = None

    async def start(self, broker: BrokerServer) -> str:
        """Say `ready grpc HOST:PORT`, the address; it is empty when there is none, and the log has said why."""
        config = broker.config
        if config.grpc_server_port == 0:
            return ""
        remedy = f"the broker goes on; grpcServerPort={config.grpc_server_port} asked for it"
        if not config.namesrv_addresses:
            log.error("gRPC is not served: it asks a NameServer for routes, and namesrvAddr names none; %s", remedy)
            return ""
        try:
            server = await asyncio.get_running_loop().run_in_executor(None, self._made, broker)
            await server.start()
        except ImportError as exc:
            log.error("gRPC is not served: %s: pip install 'contrailmq[grpc]' brings it; %s", exc, remedy)
            return ""
        except (ContrailError, OSError) as exc:
            log.error("gRPC is not served: %s; %s", exc, remedy)
            return ""
        except Exception:  # a fault of this part must not stop the broker
            log.exception("gRPC is not served, by an error of ours, please report it; %s", remedy)
            return ""
        self._server = server
        typer.echo(f"ready grpc {server.address}")
        return server.address

    async def stop(self) -> None:
        """Before the broker stops, so that what was asked for is answered."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    def _made(self, broker: BrokerServer) -> ProxyServer:
        """In a thread: loading must not keep the broker from answering."""
        from contrailmq.client.settings import ClientOptions
        from contrailmq.proxy.server import BrokerHere, ProxyConfig, ProxyServer

        config = broker.config
        client = ClientOptions(
            namesrv=";".join(config.namesrv_addresses),
            tls=client_tls(self._properties) or False,
            instance_name=f"grpc-{config.broker_name}-{broker.port}",
        )
        settings = ProxyConfig(
            client=client,
            host=config.bind_address,
            port=config.grpc_server_port,
            tls=server_tls(self._properties),
        )
        return ProxyServer(settings, BrokerHere(broker.address, broker.join))
