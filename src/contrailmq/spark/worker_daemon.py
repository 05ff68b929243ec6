"""The processes from which Spark forks its local workers: `pyspark.daemon`, but for how workers begin and end.

Spark ends a worker that had nothing to do for a minute, and `pyspark.daemon` forks a new one that knows nothing yet: it
imports pyspark's worker, pyarrow, pandas and our sources, half a second to a second of CPU for each. Here they are
imported once, before the first fork (`warm`). `pyspark.daemon` does not, lest a library start a thread whose locks a
fork would leave taken; of ours only pyarrow's allocator has one, and it is made for forks. Only on Linux: the system
libraries of others are not.

When a session stops, or a plan has been told, Spark closes the sockets of workers that still want to say something. A
TCP socket swallows that, a Unix socket does not, and `pyspark.daemon` prints a traceback for each such worker into the
terminal of whoever runs the session. A worker that nobody listens to any more just ends. A task whose socket broke
fails on the other side in any case.

Workers of tasks are forked by this module (`spark.python.daemon.module`). Those that plan a read always come from
`pyspark.daemon`; they import our sources, which call `end_quietly`. So does the one that looks for sources: it imports
every module named `pyspark_*`, hence `pyspark_contrailmq`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import traceback
from types import ModuleType
from typing import Final

_TASKS_NEED: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "contrailmq.spark.commitlog",
    "contrailmq.spark.rocketmq",
    "contrailmq.spark.sending",
    "pandas",  # which pyarrow looks for when it makes its first scalar
)


class _Traceback:
    """What `pyspark.daemon` uses of the module `traceback`."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


def end_quietly() -> None:
    """In a process that `pyspark.daemon` forked: say nothing when nobody listens any more. Elsewhere nothing."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == "pyspark.daemon":
        _quieten(main)


def warm() -> None:
    """Import what tasks of ours need, and keep the collector from walking it in every worker (task_process.py)."""
    if sys.platform == "linux":
        for name in _TASKS_NEED:
            with contextlib.suppress(Exception):  # it fails again, and is told, in the task that needs it
                importlib.import_module(name)
        gc.collect()
        gc.freeze()


def _quieten(daemon: ModuleType) -> None:
    setattr(daemon, "traceback", _Traceback)  # noqa: B010  a module's name, which mypy knows as the real one


if __name__ == "__main__":
    import pyspark.daemon

    _quieten(pyspark.daemon)
    warm()
    pyspark.daemon.manager()
