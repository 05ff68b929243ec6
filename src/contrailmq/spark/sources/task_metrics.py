"""What only tasks know of a read, as columns beside the rows (option `taskMetrics`).

Spark has no way for a task of a Python source to tell anything but rows. So each batch of rows carries, in its first
row, how long it took and how often brokers had to be asked again, and a task's first row how often Spark had to repeat
the task. `contrailmq.spark.observed` adds them up by Spark's own `observe`, which shows the sums in `lastProgress`, and
drops the columns. What a task spent on a read that brought no row is not told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from contrailmq.spark.columns import TASK_COLUMNS, View, choose_view
from contrailmq.spark.options import Options
from contrailmq.spark.runtime.patience import Patience

TASK_METRICS_OPTION: Final = "taskMetrics"


def view_of(options: Options) -> View:
    """The columns that the options of a read choose."""
    view = choose_view(options.text("columns"), options.text("properties"), options.text("columnStyle"))
    return replace(view, has_task_metrics=options.flag(TASK_METRICS_OPTION, default=False))


def told_by_task(batches: Iterator[pa.RecordBatch], view: View) -> Iterator[pa.RecordBatch]:
    """The batches of a task of Spark's, with the columns if the view has them."""
    if not view.has_task_metrics:
        return batches
    from pyspark import TaskContext

    context = TaskContext.get()
    return with_task_metrics(batches, attempt=0 if context is None else context.attemptNumber(), required=view.required)


def with_task_metrics(
    batches: Iterator[pa.RecordBatch], *, attempt: int, required: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    """The batches with the columns. `attempt` is 0 for a task's first one; those in `required` are never null."""
    told_retries, told_attempt, began_s = Patience.waits_in_process, False, time.perf_counter()
    fields = [pa.field(name, kind, nullable=name not in required) for name, (_, kind) in TASK_COLUMNS.items()]
    for batch in batches:
        micros = round((time.perf_counter() - began_s) * 1e6)
        so_far = Patience.waits_in_process
        figures = (micros, so_far - told_retries, 0 if told_attempt else attempt)
        if batch.num_rows:
            columns = [
                _first_only(value, batch.num_rows, field.type) for value, field in zip(figures, fields, strict=True)
            ]
            told_retries, told_attempt = so_far, True
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema([*batch.schema, *fields]))
            began_s = time.perf_counter()


def _first_only(value: int, rows: int, kind: pa.DataType) -> pa.Array:
    values = np.zeros(rows, dtype=np.int64)
    values[0] = value
    return pa.array(values).cast(kind)
