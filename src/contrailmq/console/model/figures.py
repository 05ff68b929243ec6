"""What a broker says of itself (GET_BROKER_RUNTIME_INFO), as numbers. Apache's brokers and ours have the same keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CAPACITY: Final = re.compile(r"Total : ([0-9.]+) ?([KMGTPE]?)i?B, Free : ([0-9.]+) ?([KMGTPE]?)i?B")
_BUCKET: Final = re.compile(r"\[([^\]]+)\]:(\d+)")
_UNITS: Final = ["", "K", "M", "G", "T", "P", "E"]


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at one broker. None where the broker does not say."""

    version: str
    put_total: int
    get_total: int
    put_per_s: float  # as the broker counts it, over the last 10 s
    get_per_s: float
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    disk_ratio: float | None
    log_end: int | None
    behind_flush: str
    put_latency: str
    put_latency_99_ms: float | None
    put_latency_999_ms: float | None
    boot_ms: int


def figures_of(table: Mapping[str, str]) -> Figures:
    total, free = _capacity(table.get("commitLogDirCapacity", ""))
    return Figures(
        version=table.get("brokerVersionDesc", ""),
        put_total=_integer(table.get("msgPutTotalTodayNow")) or 0,
        get_total=_integer(table.get("msgGetTotalTodayNow")) or 0,
        put_per_s=_first(table.get("putTps", "")),
        get_per_s=_first(table.get("getTransferredTps", "")),
        disk_total_bytes=total,
        disk_free_bytes=free,
        disk_ratio=_decimal(table.get("commitLogDiskRatio")),
        log_end=_integer(table.get("commitLogMaxOffset")),
        behind_flush=table.get("remainHowManyDataToFlush", ""),
        put_latency=put_latency(table),
        put_latency_99_ms=_decimal(table.get("putLatency99")),
        put_latency_999_ms=_decimal(table.get("putLatency999")),
        boot_ms=_integer(table.get("bootTimestamp")) or 0,
    )


def put_latency(table: Mapping[str, str]) -> str:
    """The 99th percentile of puts: as the broker says it, or the bucket that it falls into; empty when unknown."""
    said = table.get("putLatency99")
    if said and _first(said) > 0:
        return f"{_first(said):g} ms"
    buckets = [(str(name), int(count)) for name, count in _BUCKET.findall(table.get("putMessageDistributeTime", ""))]
    total = sum(count for _, count in buckets)
    seen = 0
    for name, count in buckets:
        seen += count
        if total and seen >= 0.99 * total:
            return name
    return ""


def _capacity(text: str) -> tuple[int | None, int | None]:
    match = _CAPACITY.search(text)
    if match is None:
        return None, None
    total, total_unit, free, free_unit = match.groups()
    return _bytes(total, total_unit), _bytes(free, free_unit)


def _bytes(number: str, unit: str) -> int | None:
    try:
        return round(float(number) * (1 << 10 * _UNITS.index(unit)))
    except ValueError:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _decimal(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _first(text: str) -> float:
    """Rates come as three numbers: over 10 s, a minute and ten."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0
