"""Times as people write them: ISO 8601, relative to now, or epoch milliseconds."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated, Final

import typer

END_OF_TIME_MS: Final = 2**63 - 1
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_RELATIVE: Final = re.compile(r"([+-])([0-9]{1,9})([smhdw])")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,19}")
FORMS: Final = "2026-01-31T08:00, 2026-01-31T08:00:00Z, -30m, -1h, -2d, now or epoch milliseconds"


def parse_time(text: str, *, now_ms: int | None = None) -> int:
    """Epoch milliseconds of a time; ValueError names the forms. ISO 8601 without an offset is local time."""
    text = text.strip()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if text == "now":
        return now_ms
    if _MILLISECONDS.fullmatch(text):
        return min(int(text), END_OF_TIME_MS)
    if match := _RELATIVE.fullmatch(text):
        sign, count, unit = match.groups()
        span_ms = int(count) * _UNITS_MS[unit]
        return max(now_ms + (span_ms if sign == "+" else -span_ms), 0)
    try:
        return max(int(datetime.fromisoformat(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time: give {FORMS}") from None


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
