"""The codec's benchmark measures what it says, and says where; its figures are not judged here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import codec
from bench.__main__ import app
from bench.machine import machine


@pytest.mark.long
def test_the_codec_and_both_walks_are_measured_beside_a_bare_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "ROUNDS", 3)
    done = CliRunner().invoke(app, ["codec", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    measured = {name for name, value in found.items() if name.endswith("_cpu_us") and value > 0}
    assert measured == {"encode_cpu_us", "decode_cpu_us", "scan_cpu_us", "walk_cpu_us", "bare_crc32_cpu_us"}
    assert found["machine"] == machine()


def test_the_walk_that_is_measured_is_recoverys() -> None:
    from contrailmq.store.recovery import log_walk, recovery

    assert codec.walk is recovery.walk is log_walk.walk


def test_the_machine_is_named_by_its_cpu_and_cores(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\n\nprocessor\t: 1\nmodel name\t: Other\n")
    assert machine(told).startswith(f"Some CPU @ 2.50GHz, {os.cpu_count()} cores, Python 3.")
    assert f", {os.cpu_count()} cores, Python 3." in machine(tmp_path / "absent")
    assert not machine(tmp_path / "absent").startswith(",")
