"""Only plain sources can be simulated: compiled modules reach past the doors that `patches.py` exchanges."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrailmq._compiled import build

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if build.compiled:
        skip = pytest.mark.skip(reason="hot modules are compiled: make test-plain runs these")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(skip)
