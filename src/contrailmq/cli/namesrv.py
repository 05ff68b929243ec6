"""`contrailmq namesrv`: a NameServer in the foreground, with RocketMQ's own properties files and keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
) -> None:
    """Run a NameServer until SIGINT or SIGTERM. Prints a line that begins with `ready` once it accepts."""
    from contrailmq.message import ContrailError
    from contrailmq.namesrv import NameServer, NamesrvConfig
    from contrailmq.wire.properties import format_properties
    from contrailmq.wire.tls import server_tls

    try:
        properties = _properties(config_file, address, settings or [])
        config, warnings = NamesrvConfig.from_properties(properties)
        for warning in warnings:
            typer.echo(f"warning: {warning}", err=True)
        if print_config:
            typer.echo(format_properties(config.to_properties()), nl=False)
            return
        _run(NameServer(config, tls=server_tls(properties)))
    except ContrailError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(1) from exc


def _properties(config_file: Path | None, address: str | None, settings: list[str]) -> dict[str, str]:
    import os

    from contrailmq.namesrv import NamesrvConfig
    from contrailmq.wire.properties import SettingsError, environment_settings, merge, read_properties
    from contrailmq.wire.transport import split_address

    flags: dict[str, str] = {}
    if address:
        host, port = split_address(address)
        flags.update(bindAddress=host, listenPort=str(port))
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError(f"--set {text!r} has no =: write --set key=value")
        flags[key] = value
    return merge(
        flags=flags,
        environment=environment_settings(os.environ, NamesrvConfig.keys()),
        file=read_properties(config_file) if config_file is not None else {},
    )


def _run(server: NameServer) -> None:
    import asyncio
    import logging
    import signal

    from contrailmq.wire.transport import new_event_loop

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    async def serve() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        await server.start()
        typer.echo(f"ready namesrv {server.address}")
        await stopped.wait()
        await server.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
