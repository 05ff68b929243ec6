"""`python -m bench decode`: what each shortcut of Spark's kernels is worth, on a uniform log and on a mixed one.

Scans and decodes a log in this process, all columns, without Spark: the work of one task. Each shortcut is measured by
taking it away: the kernel then goes the general way. All ways take turns; the least CPU of the rounds counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from bench.spark import mixed, uniform, write_messages
from contrailmq.spark.decoding import decode, property_table, scan, slices
from contrailmq.spark.decoding.records import Records

_BODY_BYTES: Final = 1024
_WAYS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "all shortcuts": nullcontext,
    "without runs of one size (_equal_run)": lambda: patch.object(scan, "_equal_run", lambda *_: np.empty(0, np.int64)),
    "without rows alike (AlikeProperties)": lambda: patch.object(property_table, "_parse_alike", lambda *_: None),
    "without one topic (only_slice)": lambda: patch.object(decode, "only_slice", lambda *_: None),
    "without slices of one size": lambda: patch.object(slices, "_EQUAL_BYTES_MAX", 0),
}


def measure_decode(count: int, rounds: int, *, directory: Path | None) -> dict[str, object]:
    """CPU us a record for each log and way, with its ratio to the way that has all shortcuts."""
    figures: dict[str, object] = {"records in each log": count}
    for name, messages in (("uniform", uniform(count, _BODY_BYTES)), ("mixed", mixed(count))):
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            end = write_messages(folder, messages)
            files = sorted(Path(folder, "commitlog").iterdir())
            parts = [_range(path, end) for path in files]
            least_us = {way: float("inf") for way in _WAYS}
            for _ in range(rounds):
                for way, switch in _WAYS.items():
                    with switch():
                        least_us[way] = min(least_us[way], _cpu_s(parts, count) * 1e6 / count)
        for way, cpu_us in least_us.items():
            figures[f"{name}, {way}"] = f"{cpu_us:.2f} ({cpu_us / least_us['all shortcuts']:.2f})"
    return figures


def _range(path: Path, end: int) -> scan.Range:
    base = int(path.name)
    limit = min(end, base + path.stat().st_size)
    return scan.Range(str(path), base, base, limit, limit, is_aligned=True)


def _cpu_s(parts: list[scan.Range], count: int) -> float:
    from contrailmq.spark.columns import View

    decoder, rows = decode.Decoder(View()), 0
    begin = time.process_time()
    for part in parts:
        for item in scan.scan(part, check_crc=True):
            assert isinstance(item, Records), item
            rows += decoder.decode(item).num_rows
    spent = time.process_time() - begin
    assert rows == count, (rows, count)
    return spent
