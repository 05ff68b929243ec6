"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FIRST_RELEASE: Final = 213  # the number that 4.0.0 sends; a patch adds 2, a minor release 20, a major one 200


def number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def per_second(value: float) -> str:
    return f"{number(value)}/s"


def size(value: float | None) -> str:
    if value is None:
        return "unknown"
    for unit in _SIZES:
        if abs(value) < 1024 or unit == _SIZES[-1]:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def moment(time_ms: int) -> str:
    """Local time of the console's machine."""
    if time_ms <= 0:
        return "never"
    try:
        return datetime.fromtimestamp(time_ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"  # somebody's broken clock


def permission(value: int) -> str:
    words = [word for bit, word in ((4, "read"), (2, "write")) if value & bit]
    return " and ".join(words) or "none"


def release(version: int) -> str:
    """A client's version as it is called, from the number that it sends."""
    past = version - _FIRST_RELEASE
    if past < 0:
        return f"before 4.0 ({version})"
    return f"{4 + past // 200}.{past % 200 // 20}.{past % 20 // 2}"
