"""`contrailmq console`: the web console of a cluster, ours or Apache's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from contrailmq.cli.admin.secured import tls_flags, tls_of_flags
from contrailmq.cli.logs import FILE_MIB, FILES_KEPT, File, FileMib, FilesKept, Json, Level, LogLevel, LogSettings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from contrailmq.console.model.pipeline import ArchiveFacts
    from contrailmq.console.passwords import PasswordHash

PORT: Final = 8080


def console(
    namesrv: Annotated[
        str | None, typer.Option("-n", "--namesrv", envvar="NAMESRV_ADDR", help="NameServers, host:port;host:port")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the console; 0 takes a free one.")] = PORT,
    listen: Annotated[str, typer.Option("--listen", metavar="ADDR", help="Address to listen on.")] = "127.0.0.1",
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="A name by which browsers call it, besides localhost and numbers."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="Ask for the password whose hash is in this file.")
    ] = None,
    set_password: Annotated[
        Path | None, typer.Option("--set-password", metavar="FILE", help="Ask for a password, write its hash, and end.")
    ] = None,
    archives: Annotated[
        list[str] | None,
        typer.Option("--archive", metavar="DIR", help="Show how far this archive is; may be repeated."),
    ] = None,
    schema_dir: Annotated[
        Path | None,
        typer.Option("--schema-dir", metavar="DIR", help="Schemas of bodies, by topic: Orders.avsc, Orders.proto."),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS with the cluster.")] = False,
    tls_ca: Annotated[Path | None, typer.Option("--tls-ca", help="CA that signed the servers' certificates.")] = None,
    log_level: Level = LogLevel.INFO,
    log_file: File = None,
    log_file_mib: FileMib = FILE_MIB,
    log_files: FilesKept = FILES_KEPT,
    log_json: Json = False,
) -> None:
    """Serve the web console until SIGINT or SIGTERM. Prints a line that begins with `ready` once it accepts."""
    from contrailmq.cli.logs import failed, start_logging
    from contrailmq.cli.serving import run_until_stopped
    from contrailmq.message import ContrailError

    try:
        if set_password is not None:
            _write_password(set_password)
            return
        password = _password(password_file, listen)
        if not (namesrv or "").strip("; "):
            raise ContrailError("no NameServer address: add -n host:9876 or set NAMESRV_ADDR")
        start_logging(LogSettings(log_level, log_file, log_file_mib, log_files, log_json))
        tls_flags(tls=tls, ca=tls_ca, certificate=None, key=None, password="", server_name="")
        from contrailmq.console.server import ConsoleOptions

        client, reader = dict(tls_of_flags.get()), _archive_reader(archives)
        options = ConsoleOptions(
            namesrv or "", listen, port, read_only, password, tuple(names or ()), client, reader, schema_dir
        )
        run_until_stopped(lambda stopped: _serve(options, stopped))
    except ContrailError as exc:
        failed(str(exc), is_json=log_json)
        raise typer.Exit(1) from exc
    except OSError as exc:
        failed(_cannot_listen(listen, port, exc), is_json=log_json)
        raise typer.Exit(1) from exc


def _cannot_listen(listen: str, port: int, exc: OSError) -> str:
    return f"the console cannot listen on {listen} port {port}: {exc.strerror or exc}; choose another with --port"


async def _serve(options: object, stopped: asyncio.Event) -> None:
    from contrailmq.cli.serving import settle_memory
    from contrailmq.console.server import ConsoleOptions, ConsoleServer

    assert isinstance(options, ConsoleOptions)
    server = ConsoleServer(options)

    def ready() -> None:
        settle_memory()
        typer.echo(f"ready console {server.url}")

    await server.serve(stopped, on_ready=ready)


def _password(file: Path | None, listen: str) -> PasswordHash | None:
    """Without one the console is for this machine alone: whoever reaches it may change the cluster."""
    from contrailmq.console.passwords import PasswordError, read_password_file

    if file is not None:
        return read_password_file(file)
    import ipaddress

    try:
        is_local = listen == "localhost" or ipaddress.ip_address(listen).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise PasswordError(
            f"the console would be open to everybody who reaches {listen}: write a password with "
            "`contrailmq console --set-password FILE`, and give it as --password-file FILE"
        )
    return None


def _archive_reader(directories: list[str] | None) -> Callable[[], list[ArchiveFacts]] | None:
    """Reads the manifests each time it is called: an archive grows. Needs no Spark."""
    if not directories:
        return None
    from contrailmq.console.model.pipeline import ArchiveFacts
    from contrailmq.message import ContrailError
    from contrailmq.spark.jobs.manifest import Manifest

    def facts(directory: str) -> ArchiveFacts:
        manifest = Manifest(directory)
        try:
            manifest.check_archive()
            state = manifest.newest()
        except (ContrailError, OSError) as exc:
            return ArchiveFacts(directory, fault=str(exc))
        return ArchiveFacts(directory, state.rows, len(state.files), state.version, state.offsets)

    return lambda: [facts(directory) for directory in directories]


def _write_password(file: Path) -> None:
    from contrailmq.console.passwords import write_password_file

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    write_password_file(file, password)
    typer.echo(f"the password's hash is in {file}: start with --password-file {file}")
