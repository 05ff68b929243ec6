"""The benchmark of the console opens its pages over its topics in chromium, and counts the broker's CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WHEN = ("empty cache", "opened again")
ARGUMENTS = ["--topics", "30", "--groups", "3", "--visits", "1", "--seconds", "0.5"]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
def test_the_bench_of_the_console_measures_pages_starts_and_questions(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'contrailmq[dev]'")
    result = CliRunner().invoke(app, ["console", *ARGUMENTS, "--dir", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["topics; groups"] == "30; 3"
    for page in ("/", "/topics", "/groups"):
        first, again = (float(figures[f"{page}, {when}: median; most, s"].split("; ")[0]) for when in WHEN)
        assert first > 0 < again
    with_console = float(figures["up with the console: ready s; MB"].split("; ")[1])
    assert with_console > float(figures["up, no console: ready s; MB"].split("; ")[1]) > 10
    for state in ("broker's CPU, % of a core: alone", "with a browser on the first page"):
        assert 0 <= figures[state] <= 200
    assert list(tmp_path.iterdir()) == []


def test_without_chromium_the_bench_of_the_console_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = CliRunner().invoke(app, ["console"])
    assert result.exit_code == 1
    assert result.output.strip() == "error: chromium is not installed: apt-get install chromium"
