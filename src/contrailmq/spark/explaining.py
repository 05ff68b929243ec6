"""`explain(frame)`: Spark's plan of a frame, and what our sources leave out of their reads.

Spark 4.3 has no place for that in its own `.explain()`. But a plan holds the options of each source in it, and a source
made of them again says what it would read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from contrailmq.spark.columns import OptionError
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.sources.rocketmq import RocketMQSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCES = {source.name(): source for source in (CommitLogSource, RocketMQSource)}


def explain(frame: DataFrame, mode: str = "simple") -> None:
    """Print the plan as `frame.explain(mode=...)` does, and below it a line for each read of ours."""
    lines = pruned(frame)
    frame.explain(mode=mode)
    print("== Pruned reads ==")
    print("\n".join(lines or ["none of contrailmq's sources"]))


def pruned(frame: DataFrame) -> list[str]:
    """What each of our sources in a frame's plan reads, and leaves out. It looks into stores and asks brokers."""
    if not hasattr(frame, "_jdf"):
        raise OptionError("a frame of Spark Connect does not show its plan's options: explain it in a classic session")
    return [source.reader(schema).pruned() for source, schema in _reads(frame)]


def _reads(frame: DataFrame) -> Iterator[tuple[CommitLogSource | RocketMQSource, StructType]]:
    if frame.isStreaming:
        raise OptionError("a stream reads other parts in every batch: explain a batch read with the same options")
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation":
            source = _SOURCES.get(leaf.table().name().lower())
            if source is not None:
                options = dict(leaf.options().asCaseSensitiveMap())
                yield source(options), StructType.fromJson(json.loads(leaf.schema().json()))
