"""`python -m bench store|recover` run and print their figures with settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.store import Figure, _told


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["store", "--count", "320", "--sync-count", "10"], {"append", "get of 32 as slices", "put_many of 100"}),
        (
            ["recover", "--mebibytes", "1", "--queues", "20"],
            {"open after a kill", "open after a clean exit", "clean start with 20 queues"},
        ),
    ],
)
def test_a_bench_prints_its_figures_and_settings(arguments: list[str], wanted: set[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output[result.output.index("{") :])
    for name in wanted:
        (value,) = [value for key, value in printed.items() if key.startswith(name + ",")]
        assert value >= 0
    assert printed["body_bytes"] == 1024
    assert "load" in printed["machine"]
    assert re.fullmatch(r"Python 3\.\S+ \(.+\), hot modules (plain Python|compiled)", printed["python"])
    assert list(tmp_path.iterdir()) == []


def test_a_bench_marks_the_targets_that_were_missed() -> None:
    figures = [
        Figure("put", 12.5, "us", "<= 12"),
        Figure("put_many", 8.0, "us", "<= 8"),
        Figure("  shared", 19.9, "messages / sync", ">= 20"),
        Figure("start", 9.0, "s", "<= 3 with 20,000"),
        Figure("bare", 99.0, "us"),
    ]
    assert _told({}, figures)["MISSED"] == ["put: 12.50, not <= 12 us", "shared: 19.90, not >= 20 messages / sync"]
    assert _told({}, figures[1:2])["missed"] == "no target"
