from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.harness import Bench
from contrailmq.wire.peer_warnings import peer_warnings


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings about peers are bounded for a process: no test uses up what another one looks for."""
    monkeypatch.setattr(peer_warnings, "_periods", {})
