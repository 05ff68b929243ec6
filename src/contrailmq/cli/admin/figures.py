"""RocketMQ's figures and settings as values: brokers send them as texts, some of them as sentences."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Final

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")  # "04" is an hour, not a number
_FLOAT: Final = re.compile(r"-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?")
_DURATION: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds ]")
_SIZE: Final = r"([0-9]+(?:\.[0-9]+)?) (B|[KMGTPE]i?B)"
_CAPACITY: Final = re.compile(rf"Total : {_SIZE}, Free : {_SIZE}\.")
_BUCKETS: Final = re.compile(r"(?:\[[^\]]+\]:\d+ ?)+")
_UNITS: Final = "BKMGTPE"


def setting(text: str) -> object:
    """A number or a boolean where the text is one, else the text."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def figure(text: str) -> object:
    """A run-time figure: a duration in seconds, a size in bytes, rates and places as a list, counts by bucket."""
    if not text.strip():
        return None
    if match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = map(int, match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match := _CAPACITY.fullmatch(text):
        total, total_unit, free, free_unit = match.groups()
        return {"total_bytes": _bytes(total, total_unit), "free_bytes": _bytes(free, free_unit)}
    if match := re.fullmatch(_SIZE, text):
        return _bytes(*match.groups())
    if _BUCKETS.fullmatch(text):
        return {name: int(count) for name, count in re.findall(r"\[([^\]]+)\]:(\d+)", text)}
    if text.startswith("[{") or text == "[]":  # a list of ours
        with contextlib.suppress(ValueError):
            return json.loads(text)
    parts = [setting(part) for part in re.split(r"[ ,]+", text.strip())]
    if len(parts) > 1 and all(isinstance(part, int | float) for part in parts):
        return parts
    return setting(text)


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * (1 << 10 * _UNITS.index(unit[0])))
