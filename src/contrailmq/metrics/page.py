"""The page that Prometheus scrapes, in its text format 0.0.4.

    family := "# HELP" name text, "# TYPE" name kind, sample...
    sample := name{label="value",...} number

In a label's value backslash, quote and line feed are escaped, so that no topic's or group's name can forge a line.
The loop is given back after TURN_S of work, as other long requests do: a page of 50,000 series delays nobody by more
than that. A line takes 1.5 us.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from contrailmq.metrics.instruments import OVERFLOW, Distribution, Instrument, Kind, Measured, Value, limited

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TURN_S: Final = 0.002
_BETWEEN_LOOKS: Final = 64  # series between two looks at the clock
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


async def page(table: Sequence[Measured], common: Mapping[str, str], limit: int) -> AsyncIterator[bytes]:
    """The page in pieces. `common` are labels of every series."""
    fixed = ",".join(f'{name}="{escaped(value)}"' for name, value in common.items())
    end_s = time.monotonic() + TURN_S
    lines: list[str] = []
    for measured in table:
        for number, line in enumerate(family(measured, fixed, limit)):
            lines.append(line)
            if number % _BETWEEN_LOOKS == 0 and time.monotonic() >= end_s:
                yield _encoded(lines)
                lines.clear()
                await asyncio.sleep(0)
                end_s = time.monotonic() + TURN_S
    yield _encoded(lines)


def family(measured: Measured, fixed: str, limit: int) -> Iterator[str]:
    """The lines of one instrument; nothing when it has no series."""
    instrument = measured.instrument
    name = instrument.scraped_name
    starts = [f',{label}="' if fixed or number else f'{label}="' for number, label in enumerate(instrument.labels)]
    is_first = True
    for values, figure in limited(measured, limit):
        if is_first:
            is_first = False
            yield f"# HELP {name} {instrument.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {instrument.kind.value}\n"
        if values is None:
            labels = f'{fixed},{OVERFLOW}="true"' if fixed else f'{OVERFLOW}="true"'
        else:
            labels = fixed + "".join([f'{start}{escaped(value)}"' for start, value in zip(starts, values, strict=True)])
        yield _sample(instrument, name, labels, figure)


def _sample(instrument: Instrument, name: str, labels: str, figure: Value) -> str:
    if not isinstance(figure, Distribution):
        return f"{name}{{{labels}}} {number(figure)}\n" if labels else f"{name} {number(figure)}\n"
    assert instrument.kind is Kind.HISTOGRAM
    comma = f"{labels}," if labels else ""
    ends = [*(repr(float(bound)) for bound in instrument.bounds), "+Inf"]  # 1024.0, as Java writes it: sums join by it
    counts = list(accumulate(figure.counts))
    lines = [f'{name}_bucket{{{comma}le="{end}"}} {count}\n' for end, count in zip(ends, counts, strict=True)]
    braces = f"{{{labels}}}" if labels else ""
    return "".join(lines) + f"{name}_sum{braces} {number(figure.sum)}\n{name}_count{braces} {counts[-1]}\n"


def escaped(value: str) -> str:
    """A label's value."""
    return value.translate(_ESCAPES) if '"' in value or "\\" in value or "\n" in value else value


def number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(int(value) if value.is_integer() and abs(value) < 2**53 else value)


def _encoded(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "replace")  # a lone surrogate, in a name that a file brought
