"""The README's programs run as they stand there."""

from __future__ import annotations

import builtins
import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from waiting_for import until

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readmes_send_and_receive_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`input` is the moment at which a reader looks at the output: here the test does."""
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    printed = io.StringIO()
    looks: list[str] = []

    def look(prompt: str) -> str:
        until(lambda: "[b'" in printed.getvalue(), "the message is printed", seen=printed.getvalue)
        looks.append(prompt)
        return ""

    monkeypatch.setattr(builtins, "input", look)
    with redirect_stdout(printed):
        exec(compile(block[1], str(README), "exec"), {"__name__": "__main__"})
    assert len(looks) == 1


def test_the_readmes_pytest_example_passes(tmp_path: Path) -> None:
    """In a run of its own, with nothing but the file: the fixture comes with the package."""
    (block,) = [
        part for part in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "def test_" in part
    ]
    (tmp_path / "test_orders.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
