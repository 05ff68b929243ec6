"""The `contrailmq` command. Each sub-command lives in its own file and imports what it needs when it runs.

To add one: write `cli/<name>.py` with a function (or a typer app) that imports heavy modules inside its body, so that
`contrailmq --help` stays quick, and add one line below.
"""

from __future__ import annotations

import typer

from contrailmq._version import __version__
from contrailmq.cli import admin, bench, pipeline, store
from contrailmq.cli.broker import broker
from contrailmq.cli.demo import demo
from contrailmq.cli.namesrv import namesrv
from contrailmq.cli.up import up

__all__ = ["app", "main"]

app = typer.Typer(
    name="contrailmq",
    help="RocketMQ for Python and Spark: broker, NameServer, tools and pipelines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"contrailmq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """RocketMQ for Python and Spark: broker, NameServer, tools and pipelines."""


app.command("up")(up)
app.command("namesrv")(namesrv)
app.command("broker")(broker)
app.command("demo")(demo)
app.add_typer(admin.app, name="admin")
app.add_typer(store.app, name="store")
app.add_typer(bench.app, name="bench")
app.add_typer(pipeline.app, name="pipeline")


def main() -> None:
    """Entry point of the `contrailmq` script and of `python -m contrailmq`."""
    app()
