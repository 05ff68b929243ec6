"""Times as people write them, to the command line or the console: ISO 8601, relative to now, epoch milliseconds."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

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
