"""`contrailmq namesrv`: a NameServer in the foreground, with RocketMQ's own properties files and keys."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.logs import FILE_MIB, FILES_KEPT, File, FileMib, FilesKept, Json, Level, LogLevel, LogSettings

if TYPE_CHECKING:
    import asyncio

    from contrailmq.namesrv import NameServer


def namesrv(
    config_file: Annotated[
        Path | None, typer.Option("-c", "--config-file", help="A properties file with RocketMQ's keys.")
    ] = None,
    print_config: Annotated[bool, typer.Option("-p", "--print-config", help="Print every setting and exit.")] = False,
    address: Annotated[str | None, typer.Option("-n", "--namesrv-addr", help="host:port to listen on.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; beats file and environment.")
    ] = None,
    log_level: Level = LogLevel.INFO,
    log_file: File = None,
    log_file_mib: FileMib = FILE_MIB,
    log_files: FilesKept = FILES_KEPT,
    log_json: Json = False,
) -> None:
    """Run a NameServer until SIGINT or SIGTERM. Prints a line that begins with `ready` once it accepts."""
    from contrailmq.cli.logs import failed, start_logging
    from contrailmq.cli.serving import gathered_settings, run_until_stopped
    from contrailmq.message import ContrailError
    from contrailmq.namesrv import NameServer, NamesrvConfig
    from contrailmq.wire.errors import ConnectError
    from contrailmq.wire.properties import SettingsError, format_properties
    from contrailmq.wire.tls import server_tls
    from contrailmq.wire.transport import split_address

    flags: dict[str, str] = {}
    try:
        if address:
            try:
                host, port = split_address(address)
            except ConnectError:
                raise SettingsError(f"-n is {address!r}: it takes host:port, with a port of 0 to 65535") from None
            flags.update(bindAddress=host, listenPort=str(port))
        properties, outdone = gathered_settings(
            file=config_file, flags=flags, settings=settings or [], keys=NamesrvConfig.environment_keys()
        )
        if config_file is not None:  # changes of settings are written there, as RocketMQ does: a restart reads them
            properties["configStorePath"] = str(config_file.resolve())
        config, unknown = NamesrvConfig.from_properties(properties)
        warnings = [*outdone, *unknown]
        if print_config:
            for warning in warnings:
                typer.echo(f"warning: {warning}", err=True)
            typer.echo(format_properties(config.to_properties()), nl=False)
            return
        server = NameServer(config, tls=server_tls(properties))
        start_logging(LogSettings(log_level, log_file, log_file_mib, log_files, log_json))
        for warning in warnings:
            logging.getLogger("contrailmq").warning("%s", warning)
        run_until_stopped(lambda stopped: _serve(server, stopped))
    except (ContrailError, OSError) as exc:
        failed(str(exc), is_json=log_json)
        raise typer.Exit(1) from exc


async def _serve(server: NameServer, stopped: asyncio.Event) -> None:
    await server.start()
    typer.echo(f"ready namesrv {server.address}")
    await stopped.wait()
    await server.stop()
