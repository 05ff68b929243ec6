"""`contrailmq bench store|recover` run and print their figures with settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app


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
    result = CliRunner().invoke(app, ["bench", *arguments, "--dir", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output[result.output.index("{") :])
    for name in wanted:
        (value,) = [value for key, value in printed.items() if key.startswith(name + ",")]
        assert value >= 0
    assert printed["body_bytes"] == 1024
    assert "load" in printed["machine"]
    assert re.fullmatch(r"Python 3\.\S+ \(.+\), hot modules (plain Python|compiled)", printed["python"])
    assert list(tmp_path.iterdir()) == []
