"""The README's first program runs as it stands there."""

from __future__ import annotations

import builtins
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from client.waiting import wait_until

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readmes_send_and_receive_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`input` is the moment at which a reader looks at the output: here the test does."""
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    printed = io.StringIO()
    seen: list[bool] = []

    def look(prompt: str) -> str:
        seen.append(wait_until(lambda: "[b'" in printed.getvalue()))
        return ""

    monkeypatch.setattr(builtins, "input", look)
    with redirect_stdout(printed):
        exec(compile(block[1], str(README), "exec"), {"__name__": "__main__"})
    assert seen == [True], printed.getvalue()
