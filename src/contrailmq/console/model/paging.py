"""Lists are searched and cut into pages here, so that a browser never gets thousands of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

ROWS: Final = 20
ROWS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, and how many there are of them in all."""

    rows: list[T]
    number: int  # from 1
    row_count: int


def paged(
    rows: Sequence[T], *, number: int, size: int = ROWS, search: str = "", name: Callable[[T], str] = str
) -> Page[T]:
    """A page of the rows whose name has the text in it; a number past the end gives the last page."""
    text = search.strip().casefold()
    found = [row for row in rows if text in name(row).casefold()] if text else rows
    size = max(1, min(size, ROWS_MAX))
    last = max(1, -(-len(found) // size))
    number = max(1, min(number, last))
    return Page(list(found[(number - 1) * size : number * size]), number, len(found))
