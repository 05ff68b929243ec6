"""What every decoder of bodies gives: rows or reasons, and the Arrow column that is made of them.

A decoder never raises for a body, whatever it holds: a body that cannot be decoded has a reason instead of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

Row = dict[str, Any]
_REASON_CHARS_MAX: Final = 500  # a reason may quote the body
# What Arrow raises for values that a type does not hold.
_REFUSALS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, UnicodeError)


class BodyDecoder(Protocol):
    """Decodes bodies by one schema. It is pickled to the tasks."""

    @property
    def schema(self) -> pa.Schema:
        """The fields that rows have."""

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        """A row for each body, or None and a reason under its number."""


class RefusingDecoder:
    """Decodes nothing: of a topic whose schema nobody knows."""

    schema = pa.schema([])

    def __init__(self, text: str) -> None:
        self._text = text

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        return [None] * len(bodies), dict.fromkeys(range(len(bodies)), self._text)


def reason(exc: BaseException) -> str:
    """An error as the reason of a row."""
    text = str(exc) or type(exc).__name__
    return text.splitlines()[0][:_REASON_CHARS_MAX]


def struct_array(rows: list[Row | None], arrow: pa.DataType, reasons: dict[int, str]) -> pa.StructArray:
    """Rows as a column of structs. Rows with values that the type does not hold become null and get a reason."""
    try:
        return pa.array(rows, arrow)
    except _REFUSALS:
        for number, row in enumerate(rows):  # one of them is at fault: find out which
            try:
                pa.array([row], arrow)
            except _REFUSALS as exc:
                reasons[number] = _named(row or {}, arrow) or reason(exc)
                rows[number] = None
    return pa.array(rows, arrow)


def _named(row: Row, arrow: pa.DataType) -> str | None:
    """Which field of a row is at fault."""
    for place in range(arrow.num_fields):
        field = arrow.field(place)
        try:
            pa.array([row.get(field.name)], field.type)
        except _REFUSALS as exc:
            return f"{field.name}: {reason(exc)}"
    return None
