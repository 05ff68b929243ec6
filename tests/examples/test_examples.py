"""Every example runs to its end."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "cluster.py")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_example_runs(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out


def test_the_list_of_examples_is_complete() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in PROGRAMS if f"`{path.name}`" not in listed] == []
