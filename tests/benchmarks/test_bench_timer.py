"""The benchmark of timers runs its four parts, loses nothing, and prints costs beside a baseline of the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app

ARGUMENTS = ["--rounds", "2", "--rate", "500", "--seconds", "3", "--due", "300", "--pending", "2000"]


@pytest.mark.long
def test_the_bench_of_timers_delivers_everything_and_prints_its_baseline(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["timer", *ARGUMENTS, "--dir", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    for part in ("load", "load by CPU time", "levels", "levels by CPU time"):
        assert figures[f"{part}: missing or repeated, messages (0)"] == 0
        assert figures[f"{part}: early, messages (0)"] == 0
    for part in ("load", "load by CPU time"):
        assert 0 < figures[f"{part}: in, messages / s (>= 20000)"] <= 600
        assert figures[f"{part}: out, messages / s (>= 20000)"] > 0
        assert 0 <= figures[f"{part}: late, p99, ms (<= 1000)"] <= figures[f"{part}: late, most, ms"]
    assert figures["memory: pending timers"] == 2000
    assert figures["memory: opened by a new process, all that is resident, MB (<= 150)"] > 5
    parts = ("plain append", "plain dispatch")
    baseline = sum(figures[f"cost: {part}, us CPU / message"] for part in parts)
    assert abs(figures["cost: plain put (baseline), us CPU / message"] - baseline) < 0.2
    assert figures["cost: in, us CPU / message"] > 0
    assert list(tmp_path.iterdir()) == []
