"""Times of the command line: `--since` and `--until`."""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.client.admin.times import END_OF_TIME_MS, FORMS, parse_time


def span(since_ms: int | None, until_ms: int | None) -> tuple[int, int]:
    """Begin and end of a time span of which either side may be left open."""
    return since_ms or 0, END_OF_TIME_MS if until_ms is None else until_ms


def _option(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None


Since = Annotated[
    int | None,
    typer.Option("--since", "--begin-ms", parser=_option, metavar="TIME", help=f"from this time on: {FORMS}"),
]
Until = Annotated[
    int | None,
    typer.Option("--until", "--end-ms", parser=_option, metavar="TIME", help="up to this time, in the same forms"),
]
