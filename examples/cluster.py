"""Where the examples run: NAMESRV_ADDR when it is set, else a cluster inside this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from contrailmq.testing import LocalCluster


@contextmanager
def name_server() -> Iterator[str]:
    given = os.environ.get("NAMESRV_ADDR")
    if given:
        yield given
        return
    with LocalCluster() as cluster:
        yield cluster.namesrv
