"""A large JSON object of small objects, cut into slices that are decoded one by one. Pure.

    table := '{' entry { ',' entry } '}'            entry := string ':' object, with objects in it at most one deep

The C decoder holds the interpreter's lock from the first byte to the last, so 16 MiB in one call stop every thread for
a third of a second, whichever thread called. A slice of 256 topics takes about a millisecond. Cutting is done by one
regular expression that matches as many entries; its repetitions are possessive, so it reads each byte once. What it
does not match (names without quotes, deeper objects) is not cut: the caller decodes the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

SLICE_ENTRIES: Final = 256

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT_OBJECT: Final = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
_OBJECT: Final = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _FLAT_OBJECT + rb")*+\}"
_ENTRY: Final = _STRING + rb"\s*+:\s*+" + _OBJECT + rb"\s*+"
_SLICE: Final = re.compile(rb"%b(?:,\s*+%b){0,%d}+" % (_ENTRY, _ENTRY, SLICE_ENTRIES - 1), re.DOTALL)
_BETWEEN: Final = re.compile(rb",\s*")


class Cut(NamedTuple):
    """Where the inside of a table lies, and where its slices do."""

    start: int
    end: int
    slices: list[tuple[int, int]]

    def rest(self, data: bytes) -> bytes:
        """The data with an empty table in its place."""
        return data[: self.start] + data[self.end :]


def cut_table(data: bytes, name: bytes) -> Cut | None:
    """The first table of that name, cut; None when there is none, or it is not of the form above."""
    found = re.search(rb'"%b"\s*:\s*\{\s*' % re.escape(name), data)
    if found is None:
        return None
    position = found.end()
    slices: list[tuple[int, int]] = []
    while match := _SLICE.match(data, position):
        slices.append(match.span())
        between = _BETWEEN.match(data, match.end())
        position = match.end()
        if between is None:
            break
        position = between.end()
    if data[position : position + 1] != b"}" or (slices and position != slices[-1][1]):
        return None
    return Cut(found.end(), position, slices)


def slices_of(data: bytes, cut: Cut) -> Iterator[bytes]:
    """Each slice as a table of its own."""
    for start, end in cut.slices:
        yield b"{" + data[start:end] + b"}"
