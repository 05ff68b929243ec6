"""`contrailmq proxy`: one address in front of any cluster, for gRPC and remoting clients, in the foreground."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from contrailmq.cli.logs import FILE_MIB, FILES_KEPT, File, FileMib, FilesKept, Json, Level, LogLevel, LogSettings

if TYPE_CHECKING:
    import asyncio

    from contrailmq.metrics import ExportSettings
    from contrailmq.proxy.server import ProxyServer

REMOTING_PORT: Final = 8080  # RocketMQ's


def proxy(
    namesrv: Annotated[
        str | None, typer.Option("-n", "--namesrv", help="host:port;host:port of the NameServers (or NAMESRV_ADDR).")
    ] = None,
    host: Annotated[str, typer.Option("--listen", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="gRPC port; 0 takes a free one.")] = 8081,
    remoting_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port for remoting clients (8080 if it is free); 0 takes a free one."),
    ] = None,
    no_remoting: Annotated[bool, typer.Option("--no-remoting", help="Serve no remoting clients.")] = False,
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where routes lead remoting clients; else where they came to.")
    ] = "",
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve /metrics, /live and /ready there; 0 takes a free port.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--tls-cert", help="PEM file with the certificate: the ports take TLS only.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file with its private key.")] = None,
    access_key: Annotated[str, typer.Option(help="With brokers that check signatures (ACL).")] = "",
    secret_key: Annotated[
        str, typer.Option(envvar="ROCKETMQ_SECRET_KEY", help="Of the access key; better from the environment.")
    ] = "",
    log_level: Level = LogLevel.INFO,
    log_file: File = None,
    log_file_mib: FileMib = FILE_MIB,
    log_files: FilesKept = FILES_KEPT,
    log_json: Json = False,
) -> None:
    """Serve gRPC and remoting clients until SIGINT or SIGTERM. Prints a line with `ready` once it accepts."""
    from contrailmq.cli.logs import failed, start_logging
    from contrailmq.cli.serving import run_until_stopped
    from contrailmq.client.settings import ClientOptions
    from contrailmq.message import ContrailError
    from contrailmq.wire.acl import AclCredentials
    from contrailmq.wire.properties import SettingsError
    from contrailmq.wire.tls import server_tls

    try:
        if (certificate is None) != (key is None):
            raise SettingsError("TLS takes --tls-cert and --tls-key together")
        try:
            from contrailmq.proxy.server import ProxyConfig, ProxyServer
        except ImportError as exc:
            raise SettingsError(f"{exc}: the gRPC API needs protobuf, pip install 'contrailmq[grpc]'") from None
        signer = AclCredentials(access_key, secret_key) if access_key else None
        client = ClientOptions(namesrv=namesrv, credentials=signer)
        files = {"certPath": str(certificate), "keyPath": str(key), "mode": "enforcing"} if certificate else {}
        tls = server_tls({f"tls.server.{name}": value for name, value in files.items()})
        start_logging(LogSettings(log_level, log_file, log_file_mib, log_files, log_json))
        config = ProxyConfig(
            client=client, host=host, port=port, tls=tls, remoting_address=advertise, metrics=_page(metrics_port),
            remoting_port=None if no_remoting else _chosen_port(host, remoting_port),
        )  # fmt: skip
        run_until_stopped(lambda stopped: _serve(ProxyServer(config), stopped))
    except (ContrailError, OSError) as exc:
        failed(str(exc), is_json=log_json)
        raise typer.Exit(1) from exc


async def _serve(server: ProxyServer, stopped: asyncio.Event) -> None:
    await server.start()
    remoting = f" remoting {server.remoting.address}" if server.remoting is not None else ""
    typer.echo(f"ready proxy {server.address}{remoting}")
    await stopped.wait()
    await server.stop()


def _page(port: int | None) -> ExportSettings:
    from contrailmq.metrics import ExporterKind, ExportSettings

    return ExportSettings() if port is None else ExportSettings(ExporterKind.PROM, port=port)


def _chosen_port(host: str, named: int | None) -> int | None:
    """Nobody asked for the usual port, so where it is taken (by a console, often) only that is said."""
    if named is not None:
        return named
    try:
        socket.create_server((host, REMOTING_PORT)).close()
    except OSError as exc:
        logging.getLogger("contrailmq").warning(
            "no remoting: port %d cannot be had (%s); --remoting-port names another", REMOTING_PORT, exc.strerror
        )
        return None
    return REMOTING_PORT
