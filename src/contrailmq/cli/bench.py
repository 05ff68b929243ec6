"""`contrailmq bench send|pull|pop`: what clients cost here, with settings and a baseline of the same run.

The benchmarks of development are in `bench/` of the source tree.
"""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

app = typer.Typer(help="Measure: CPU microseconds per message and ratios to a baseline.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def show(title: str, figures: dict[str, object], *, as_json: bool) -> None:
    """One column of names and one of values, or JSON."""
    if as_json:
        typer.echo(json_text.dumps(figures))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)


@app.callback()
def _bench() -> None:
    """Measure: CPU microseconds per message and ratios to a baseline."""


Namesrv = Annotated[
    str | None, typer.Option("-n", "--namesrv", help="Use this cluster; without it a broker process is started.")
]


@app.command("send")
def send(
    count: Annotated[int, typer.Option(help="Messages of each measurement.")] = 20_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    namesrv: Namesrv = None,
    as_json: AsJson = False,
) -> None:
    """Producers through a broker: many in flight, one by one, batches."""
    from contrailmq.cli.bench_clients import measure_send

    show("producers", measure_send(namesrv, count=count, body_bytes=body_bytes), as_json=as_json)


@app.command("pull")
def pull(
    count: Annotated[int, typer.Option(help="Messages of each measurement.")] = 20_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    namesrv: Namesrv = None,
    as_json: AsJson = False,
) -> None:
    """Consumers through a broker: push with both kinds of listener, poll."""
    from contrailmq.cli.bench_clients import measure_pull

    show("consumers", measure_pull(namesrv, count=count, body_bytes=body_bytes), as_json=as_json)


@app.command("pop")
def pop(
    count: Annotated[int, typer.Option(help="Messages of each measurement.")] = 20_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    namesrv: Namesrv = None,
    as_json: AsJson = False,
) -> None:
    """Consumers by POP: push, and receive with an acknowledgement of each message."""
    from contrailmq.cli.bench_pop import measure_pop

    show("consumers by POP", measure_pop(namesrv, count=count, body_bytes=body_bytes), as_json=as_json)
