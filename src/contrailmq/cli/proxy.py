"""`contrailmq proxy`: the gRPC API of RocketMQ 5 in front of any cluster, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.logs import FILE_MIB, FILES_KEPT, File, FileMib, FilesKept, Json, Level, LogLevel, LogSettings

if TYPE_CHECKING:
    import asyncio

    from contrailmq.proxy.server import ProxyServer


def proxy(
    namesrv: Annotated[
        str | None, typer.Option("-n", "--namesrv", help="host:port;host:port of the NameServers (or NAMESRV_ADDR).")
    ] = None,
    host: Annotated[str, typer.Option("--listen", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="gRPC port; 0 takes a free one.")] = 8081,
    certificate: Annotated[
        Path | None, typer.Option("--tls-cert", help="PEM file with the certificate: the port takes TLS only.")
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
    """Serve RocketMQ 5's gRPC clients until SIGINT or SIGTERM. Prints a line with `ready` once it accepts."""
    from contrailmq.cli.logs import failed, start_logging
    from contrailmq.cli.serving import run_until_stopped
    from contrailmq.client.settings import ClientOptions
    from contrailmq.message import ContrailError
    from contrailmq.wire.acl import AclCredentials
    from contrailmq.wire.properties import SettingsError

    try:
        if (certificate is None) != (key is None):
            raise SettingsError("TLS takes --tls-cert and --tls-key together")
        try:
            from contrailmq.proxy.server import ProxyConfig, ProxyServer
        except ImportError as exc:
            raise SettingsError(f"{exc}: the gRPC API needs grpcio, pip install 'contrailmq[grpc]'") from None
        signer = AclCredentials(access_key, secret_key) if access_key else None
        client = ClientOptions(namesrv=namesrv, credentials=signer)
        config = ProxyConfig(client=client, host=host, port=port, certificate=certificate, key=key)
        start_logging(LogSettings(log_level, log_file, log_file_mib, log_files, log_json))
        run_until_stopped(lambda stopped: _serve(ProxyServer(config), stopped))
    except (ContrailError, OSError) as exc:
        failed(str(exc), is_json=log_json)
        raise typer.Exit(1) from exc


async def _serve(server: ProxyServer, stopped: asyncio.Event) -> None:
    await server.start()
    typer.echo(f"ready proxy {server.address}")
    await stopped.wait()
    await server.stop()
