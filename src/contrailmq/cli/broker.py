"""`contrailmq broker`: one broker in the foreground, with RocketMQ's own properties files and keys."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from contrailmq.cli.logs import FILE_MIB, FILES_KEPT, File, FileMib, FilesKept, Json, Level, LogLevel, LogSettings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from contrailmq.broker import BrokerServer

NO_NAME_SERVER: Final = "no NameServer is set, so no client finds this broker: -n HOST:9876 (namesrvAddr) names one"


def broker(
    config_file: Annotated[
        Path | None, typer.Option("-c", "--config-file", help="A properties file with RocketMQ's keys (broker.conf).")
    ] = None,
    print_config: Annotated[bool, typer.Option("-p", "--print-config", help="Print every setting and exit.")] = False,
    namesrv: Annotated[
        str | None, typer.Option("-n", "--namesrv-addr", help="NameServers, host:port, several joined by ';'.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; beats file and environment.")
    ] = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Replace a live broker of the same name and id at another address.")
    ] = False,
    resync: Annotated[
        bool, typer.Option("--resync", help="A slave: cut off what the master does not have, and follow.")
    ] = False,
    log_level: Level = LogLevel.INFO,
    log_file: File = None,
    log_file_mib: FileMib = FILE_MIB,
    log_files: FilesKept = FILES_KEPT,
    log_json: Json = False,
) -> None:
    """Run a broker until SIGINT or SIGTERM. Prints a line that begins with `ready` once it accepts."""
    from contrailmq.broker.config import environment_keys, read_configs
    from contrailmq.broker.server import BrokerServer
    from contrailmq.cli.logs import failed, start_logging
    from contrailmq.cli.serving import gathered_settings, run_until_stopped, set_flags, tell_what_runs
    from contrailmq.message import ContrailError
    from contrailmq.wire.tls import client_tls, server_tls

    try:
        properties, outdone = gathered_settings(
            file=config_file,
            flags=({"namesrvAddr": namesrv} if namesrv else {}) | set_flags(takeover=takeover, resync=resync),
            settings=settings or [],
            keys=environment_keys(),
        )
        config, store_config, unknown = read_configs(properties)
        warnings = [*outdone, *unknown]
        if print_config:
            for warning in warnings:
                typer.echo(f"warning: {warning}", err=True)
            _print(config.to_properties(), store_config)
            return
        start_logging(LogSettings(log_level, log_file, log_file_mib, log_files, log_json))
        tell_what_runs()
        if not config.namesrv_addresses:
            warnings.append(NO_NAME_SERVER)
        for warning in warnings:
            logging.getLogger("contrailmq").warning("%s", warning)
        tls, outward = server_tls(properties), client_tls(properties)
        run_until_stopped(
            lambda stopped: _serve(BrokerServer(config, store_config, tls=tls, client_tls=outward), properties, stopped)
        )
    except BrokenPipeError:  # of `-p | head`: the reader has had enough
        raise
    except (ContrailError, OSError) as exc:
        failed(str(exc), is_json=log_json)
        raise typer.Exit(1) from exc


async def _serve(server: BrokerServer, properties: Mapping[str, str], stopped: asyncio.Event) -> None:
    import asyncio

    from contrailmq.cli.grpc_beside import GrpcBeside
    from contrailmq.cli.serving import settle_memory

    await server.start()
    settle_memory()
    typer.echo(f"ready broker {server.config.broker_name} {server.address}")
    grpc = GrpcBeside(properties)
    await grpc.start(server)
    waits = [asyncio.ensure_future(event.wait()) for event in (stopped, server.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await grpc.stop()
    await server.stop()
    if server.failed.is_set():
        raise typer.Exit(1)


def _print(broker_properties: dict[str, str], store_config: object) -> None:
    """Every setting in RocketMQ's form, and as comments where ours differ from RocketMQ's defaults and why."""
    from contrailmq.broker.config import DIFFERENCES, store_properties
    from contrailmq.store import StoreConfig
    from contrailmq.wire.properties import format_properties

    assert isinstance(store_config, StoreConfig)
    for key, (theirs, ours, reason) in sorted(DIFFERENCES.items()):
        typer.echo(f"# {key}: {ours} here, {theirs} in RocketMQ: {reason}")
    values = broker_properties | store_properties(store_config)
    typer.echo(format_properties(values), nl=False)
