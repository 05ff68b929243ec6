"""A large JSON object of small objects, cut into slices that are decoded one by one. Pure.

    table := '{' entry { ',' entry } '}'            entry := string ':' object, with objects in it at most one deep

The C decoder holds the interpreter's lock from the first byte to the last, so 16 MiB in one call stop every thread for
a third of a second, whichever thread called. A slice of 256 topics takes about a millisecond. Cutting is done by one
regular expression that matches as many entries; its repetitions are possessive, so it reads each byte once, and it
looks no further than SLICE_BYTES_MAX. What it does not match (names without quotes, deeper objects, an entry that is
larger than a slice may be) is not cut: the caller decodes the whole, or refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

SLICE_ENTRIES: Final = 256
SLICE_BYTES_MAX: Final = 256 * 1024  # 256 topics have 40 KiB; nothing but escapes takes 10 ms

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT_OBJECT: Final = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_OBJECT: Final = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _FLAT_OBJECT + rb")*+\}"
_ENTRY: Final = _STRING + rb"\s*+:\s*+" + _OBJECT + rb"\s*+"
_SLICE: Final = re.compile(rb"%b(?:,\s*+%b){0,%d}+" % (_ENTRY, _ENTRY, SLICE_ENTRIES - 1), re.DOTALL)
_BETWEEN: Final = re.compile(rb",\s*")
_OPENING: Final = re.compile(rb"\s*:\s*\{\s*")
_SPACE_BYTES_MAX: Final = 1024  # between two marks
_SEARCHED_BYTES: Final = 1024 * 1024  # at once: 2 ms at worst


class Cut(NamedTuple):
    """Where the inside of a table lies, and where its slices do."""

    start: int
    end: int
    slices: list[tuple[int, int]]

    def rest(self, data: bytes) -> bytes:
        """The data with an empty table in its place."""
        return data[: self.start] + data[self.end :]


def cut_table(data: bytes, name: bytes, give_way: Callable[[], None]) -> Cut | None:
    """The first table of that name, cut; None when there is none, or it is not of the form above.

    `give_way` is called after every slice, and after every MiB that was searched for the name.
    """
    start = _table_start(data, b'"%b"' % name, give_way)
    if start is None:
        return None
    position = start
    slices: list[tuple[int, int]] = []
    while match := _SLICE.match(data, position, position + SLICE_BYTES_MAX):
        give_way()
        slices.append(match.span())
        position = match.end()
        between = _BETWEEN.match(data, position, position + _SPACE_BYTES_MAX)
        if between is None:
            break
        position = between.end()
    if data[position : position + 1] != b"}" or (slices and position != slices[-1][1]):
        return None
    return Cut(start, position, slices)


def _table_start(data: bytes, quoted_name: bytes, give_way: Callable[[], None]) -> int | None:
    """The place after the table's brace and the spaces that follow it."""
    searched = 0
    while searched < len(data):
        end = searched + _SEARCHED_BYTES
        found = data.find(quoted_name, searched, end + len(quoted_name) - 1)
        if found < 0:
            searched = end
            give_way()
            continue
        searched = found + len(quoted_name)
        opening = _OPENING.match(data, searched, searched + _SPACE_BYTES_MAX)
        if opening is not None:
            return opening.end()
    return None


def slices_of(data: bytes, cut: Cut) -> Iterator[bytes]:
    """Each slice as a table of its own."""
    for start, end in cut.slices:
        yield b"{" + data[start:end] + b"}"
