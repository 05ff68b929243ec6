"""`tables` over a store, in a process that kills itself before its n-th change to the file system.

python killed_tables.py STORE TARGET CONFIG N      # prints how many changes there were if it lives
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.topic_tables.job import tables
from contrailmq.spark.topic_tables.spec import read_specs

CHANGES = ("os.link", "os.remove", "os.mkdir", "os.rename")


def main(store: str, target: str, config: str, place: str) -> None:
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        is_change = event in CHANGES or (event == "open" and "/_schemas/" in str(arguments[0]))
        # A file of rows is written by Arrow, which Python does not see, and then opened to be synced.
        if is_change or (event == "open" and str(arguments[0]).startswith(target)):
            if seen == int(place):
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    specs = read_specs(config)
    sys.addaudithook(watch)
    tables(store, target, LocalEngine(workers=1), specs)
    print(seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
