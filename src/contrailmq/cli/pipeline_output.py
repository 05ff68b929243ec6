"""What the commands of `contrailmq pipeline` print: a table, or one JSON document.

Rows of a query may hold anything that Spark knows. They become values that JSON knows first, for the table too: bytes
as text where they are text, else as hex; times in UTC with their offset; NaN and the infinities as Spark's own JSON
writes them. A name that comes twice gets a number, so that no column hides another.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from contrailmq.cli.pipeline_metrics import note_found

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, Row, StructType

Shown = dict[str, Any]


def print_found(found: Shown | Sequence[Shown], as_json: bool, *, title: str) -> None:
    note_found(found)
    if as_json:
        typer.echo(json.dumps(found, default=_plain, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table

    from contrailmq.message import printable

    rows = [found] if isinstance(found, dict) else found
    # What messages hold is not markup: a tag of "[/x]" would be an error, one of ":smile:" a picture.
    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False)
    if not rows:
        console.print(f"{title}: nothing" if title else "nothing")
        return
    if title:
        console.print(title, style="italic")
    table = Table()
    for name in rows[0]:
        table.add_column(printable(name), overflow="fold")
    for row in rows:
        table.add_row(*(printable(_cell(value)) for value in row.values()))
    console.print(table)


def answer_rows(rows: Iterable[Row], schema: StructType) -> list[Shown]:
    """Rows of a query as values that JSON knows, each column by a name of its own."""
    show = _shown_as(schema)
    return [show(row) for row in rows]


def _shown_as(kind: DataType) -> Callable[[Any], Any]:
    """How values of a type are shown."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, StructType):
        names = _apart(kind.names)
        fields = [_shown_as(field.dataType) for field in kind.fields]
        return _unless_null(
            lambda row: {name: show(value) for name, show, value in zip(names, fields, row, strict=True)}
        )
    if isinstance(kind, ArrayType):
        element = _shown_as(kind.elementType)
        return _unless_null(lambda values: [element(value) for value in values])
    if isinstance(kind, MapType):
        key, value = _shown_as(kind.keyType), _shown_as(kind.valueType)
        return _unless_null(lambda pairs: {_cell(key(name)): value(found) for name, found in pairs.items()})
    if isinstance(kind, TimestampType):  # PySpark gives an instant as local time, without saying so
        return _unless_null(lambda moment: moment.astimezone(UTC).isoformat())
    return _plain


def _unless_null(show: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else show(value)


def _apart(names: Sequence[str]) -> list[str]:
    """Names of which none is there twice: `a, a` are `a` and `a (2)`."""
    seen: Counter[str] = Counter()
    apart: list[str] = []
    for name in names:
        seen[name] += 1
        apart.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return apart


def _cell(value: object) -> str:
    """A value as one text."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return "" if value is None else str(_plain(value))


def _plain(value: object) -> object:
    """Bytes as text where they are text, else as hex; times as ISO text; the rest as JSON has it, or as text."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, int | float | str) else str(value)
