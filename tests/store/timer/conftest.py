"""Descriptors are for the tests that come after, too: Spark's gateway works with numbers below 1,024 alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timer_host import MADE


@pytest.fixture(autouse=True)
def _no_files_stay_open() -> Iterator[None]:
    yield
    for timer in MADE:
        timer.crash()
    MADE.clear()
