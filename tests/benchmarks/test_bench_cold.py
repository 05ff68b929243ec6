"""The benchmark of a consumer far behind really evicts, really reads, and compares with the same sends alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cold import measure_cold


@pytest.mark.long
def test_producers_are_measured_alone_and_beside_a_consumer_of_evicted_files(tmp_path: Path) -> None:
    figures = measure_cold(mebibytes=4, rounds=1, seconds=0.2, directory=tmp_path)
    assert int(str(figures["evicted for each round, MiB"])) >= 4
    assert float(str(figures["cold consumer, MB/s read"])) > 0
    alone, beside = (
        float(str(figures[f"send {part}, p50 / p99 us"]).split(" / ")[1]) for part in ("alone", "cold consumer")
    )
    assert abs(float(str(figures["p99 beside the cold consumer / alone"])) - beside / alone) < 0.02
