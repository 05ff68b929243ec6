"""The processes from which Spark forks its local workers, as `pyspark.daemon` has them, but for how workers end.

When a session stops, or a plan has been told, Spark closes the sockets of workers that still want to say something. A
TCP socket swallows that, a Unix socket does not, and `pyspark.daemon` prints a traceback for each such worker into the
terminal of whoever runs the session. A worker that nobody listens to any more just ends. A task whose socket broke
fails on the other side in any case.

Workers of tasks are forked by this module (`spark.python.daemon.module`). Those that plan a read always come from
`pyspark.daemon`; they import our sources, which call `end_quietly`. So does the one that looks for sources: it imports
every module named `pyspark_*`, hence `pyspark_contrailmq`.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType


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


def _quieten(daemon: ModuleType) -> None:
    setattr(daemon, "traceback", _Traceback)  # noqa: B010  a module's name, which mypy knows as the real one


if __name__ == "__main__":
    import pyspark.daemon

    _quieten(pyspark.daemon)
    pyspark.daemon.manager()
