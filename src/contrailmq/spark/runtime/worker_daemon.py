"""The processes from which Spark forks Python workers: `pyspark.daemon` with a warm start and a quiet end.

Spark ends idle workers after a minute, and each new one imports pyspark's worker, pyarrow, pandas and our sources: up
to a second of CPU. Here they are imported once, before the first fork (`warm`). Linux only: elsewhere system libraries
do not survive a fork. Of the imported ones only pyarrow's allocator has a thread, and it is made for forks.

Spark closes the sockets of workers that still want to write, and `pyspark.daemon` prints a traceback for each. Here
such a worker just ends. Spark forks the workers of tasks by `spark.python.daemon.module`, but those that make a source
or plan a read by the name `pyspark.daemon`. In a home of ours (`environment.spark_home`) that name leads here too; in
the user's own home the sources call `end_quietly`, and `pyspark_contrailmq` does so where Spark looks for sources.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

_SOURCES: Final = ("contrailmq.spark.sources.commitlog", "contrailmq.spark.sources.rocketmq")
_TASKS: Final = "pyspark.worker"
_PLANS_STREAMS: Final = "pyspark.sql.streaming.python_streaming_source_runner"
_LOOKS_FOR_SOURCES: Final = "pyspark.sql.worker.lookup_data_sources"  # and needs none
_TASKS_NEED: Final = (
    "pyspark.sql.worker.plan_data_source_read",
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
    """In a process of Spark's that makes or plans a read: say nothing when nobody listens any more. Elsewhere nothing.

    Such a process is forked by `pyspark.daemon`, or is a stream's own.
    """
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == "pyspark.daemon":
        _quieten(main)
    if main.__spec__ is not None and main.__spec__.name == _PLANS_STREAMS:
        sys.excepthook = _say_unless_nobody_listens


def _say_unless_nobody_listens(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)


def serve() -> None:
    """Be the daemon for the workers that the command line names, until Spark ends it."""
    daemon = _daemon_of_pyspark()
    _quieten(daemon)
    warm(sys.argv[1] if len(sys.argv) > 1 else _TASKS)
    daemon.manager()


def warm(worker: str) -> None:
    """Import what workers of this kind need, and keep the collector from walking it in each (task_process.py)."""
    if sys.platform == "linux" and worker.startswith("pyspark.") and worker != _LOOKS_FOR_SOURCES:
        for name in (worker, *_SOURCES, *(_TASKS_NEED if worker == _TASKS else ())):
            with contextlib.suppress(Exception):  # it fails again, with an error, in the worker that needs it
                importlib.import_module(name)
        gc.collect()
        gc.freeze()


def _daemon_of_pyspark() -> ModuleType:
    """`pyspark.daemon` from where pyspark is installed, also if a home of ours gives that name to this module."""
    import pyspark

    place = Path(pyspark.__file__).resolve().with_name("daemon.py")
    if not place.is_file():  # in the zip of a home that the user chose: there the name is pyspark's own
        return importlib.import_module("pyspark.daemon")
    spec = importlib.util.spec_from_file_location("pyspark.daemon", place)
    assert spec is not None
    assert spec.loader is not None
    daemon = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = daemon
    spec.loader.exec_module(daemon)
    return daemon


def _quieten(daemon: ModuleType) -> None:
    setattr(daemon, "traceback", _Traceback)  # noqa: B010  a module's name, which mypy knows as the real one


if __name__ == "__main__":
    serve()
