"""`contrailmq bench ...`: what things cost here. Each benchmark prints its settings, and a baseline of the same run."""

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


@app.command("codec")
def codec(
    body_bytes: Annotated[int, typer.Option(help="Body of the record.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Encode, decode and walk records in memory, on one core; baseline: a bare CRC-32 of the bodies."""
    from contrailmq.cli.bench_codec import run_codec_benchmark

    show("record codec, CPU microseconds per record", run_codec_benchmark(body_bytes), as_json=as_json)


@app.callback()
def _bench() -> None:
    """Measure: CPU microseconds per message and ratios to a baseline."""
