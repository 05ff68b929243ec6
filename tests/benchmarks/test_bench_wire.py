"""The benchmarks of the wire and the NameServer run and print what they promise; their figures are not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import wire
from bench.__main__ import app


def figures(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.output)
    return found


@pytest.mark.long
def test_the_wire_is_measured_in_cpu_time_beside_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "COUNT", 128)
    found = figures("wire")
    measured = [value for name, value in found.items() if name.endswith("_cpu_us")]
    assert len(measured) == 8
    assert all(isinstance(value, float) and value > 0 for value in measured)
    assert "json_loads_of_the_header_cpu_us" in found


@pytest.mark.long
def test_the_name_server_is_measured_from_another_process() -> None:
    found = figures("namesrv", "--seconds", "0.3", "--rounds", "2", "--topics", "20", "--connections", "4")
    assert found["settings"] == "20 topics, 4 connections, 8 requests each on their way, 2 rounds of 0.3 s"
    for what in ("requests/s, median", "CPU us/request", "resident MB", "start to first answer, s"):
        value = found[f"contrailmq: {what}"]
        assert isinstance(value, int | float)
        assert value >= 0
    assert len(str(found["contrailmq: requests/s, rounds"]).split()) == 2


def test_a_folder_without_apaches_jars_is_an_error_that_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["namesrv", "--rocketmq-lib", str(tmp_path)])
    assert done.exit_code == 1
    assert "holds no rocketmq-namesrv jar" in done.output
