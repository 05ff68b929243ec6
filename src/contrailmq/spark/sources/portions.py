"""Portions instead of rows: a source that only says what to read, and the task that uses it reads it.

Rows that a Python source gives pass through the JVM, and back into Python where files are written: twice the
copying for nothing. With the option `emit=portions` a source gives one row for each of its partitions, which holds the
function and the arguments that read it. They are pickled, by this application for its own tasks; they never leave it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from contrailmq.spark.columns import OptionError, View
from contrailmq.spark.options import Options

EMIT_OPTION: Final = "emit"
PORTION_COLUMN: Final = "portion"
PORTION_DDL: Final = f"{PORTION_COLUMN} binary"
_SCHEMA: Final = pa.schema([(PORTION_COLUMN, pa.binary())])


def emits_portions(options: Options, view: View) -> bool:
    """Whether a source is to give portions: of whole messages, or as `pieces` of the columns that are chosen."""
    emitted = options.choice(EMIT_OPTION, "rows", "portions", "pieces")
    if emitted == "rows":
        return False
    if emitted == "portions" and view != View():
        raise OptionError("emit=portions gives whole messages: drop the options columns, properties and columnStyle")
    return True


def pack_portion(read: Callable[..., Iterator[pa.RecordBatch]], *arguments: object) -> Iterator[pa.RecordBatch]:
    """The one row of a partition. `read` must be a function of a module."""
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps((read, arguments))], pa.binary())], schema=_SCHEMA)


def read_portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that portions stand for."""
    for batch in batches:
        for packed in batch.column(PORTION_COLUMN).to_pylist():
            read, arguments = pickle.loads(packed)
            yield from read(*arguments)
