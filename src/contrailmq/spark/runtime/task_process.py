"""The Python processes that Spark runs tasks in: what is worth doing once in each.

Spark keeps them for the next task and collects garbage after every one (`pyspark/daemon.py`). With pyarrow, NumPy and
pandas imported that walks half a million objects of which none is garbage: 50 ms of CPU for each task, as much as
reading 10,000 messages. Frozen, they are not walked any more, and only what tasks leave behind is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa

_is_frozen = False


def freezing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; after the last of the process's first task, when everything is imported, it is frozen."""
    yield from batches
    freeze()


def freeze() -> None:
    """Freeze what this process holds, once and only in a process that Spark started for tasks."""
    global _is_frozen
    from pyspark import TaskContext

    if not _is_frozen and TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
        _is_frozen = True
