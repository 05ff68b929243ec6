"""The garbage collector as it is set in a server, for tests that measure how long a loop is held."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from contrailmq.cli.serving import GC_THRESHOLD, settle_memory


@contextmanager
def collector_of_a_server() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    settle_memory()  # what the other tests have left is not looked at
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
