"""Publishing a stream's progress as a consumer group's offsets, for tools that show lag.

A source's own `commit` comes one micro-batch late and never for the last batch of a run that ends; a listener learns of
every batch. What is published is the next offset to read. Nothing is ever read back from it: checkpoints are Spark's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from contrailmq.spark.access import Access, access_of
from contrailmq.spark.runtime.listening import add_listener
from contrailmq.spark.sources.rocketmq import offsets_of
from contrailmq.spark.sources.topic_plan import publish_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_S: Final = 10.0


class OffsetMirror(StreamingQueryListener):  # type: ignore[misc]
    """Publishes the offsets that queries of one name (or all) have reached."""

    def __init__(self, namesrv: str, group: str, query_name: str | None = None, access: Access | None = None) -> None:
        super().__init__()
        self._namesrv, self._group, self._query_name = namesrv, group, query_name
        self._access = Access() if access is None else access

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        return None

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query_name is not None and progress.name != self._query_name:
            return
        for source in progress.sources:
            if source.endOffset:
                self.publish(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        return None

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        return None

    def publish(self, end_offset: str) -> None:
        """Publish one source's end offset, if it is one of ours."""
        tree = json.loads(end_offset)
        if not isinstance(tree, dict) or "offsets" not in tree:
            return
        with self._access.open(self._namesrv, self._group, _TIMEOUT_S) as client:
            publish_offsets(client, offsets_of(tree))


def mirror_offsets(
    spark: SparkSession,
    namesrv: str,
    group: str,
    *,
    query_name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> OffsetMirror:
    """Publish the progress of this session's queries (or of the named one) as the offsets of a group.

    `options` are the source's own for keys and TLS: `{"rocketmq.accessKey": ..., "rocketmq.secretKey": ...}`.
    """
    mirror = OffsetMirror(namesrv, group, query_name, access_of(options))
    add_listener(spark, mirror)
    return mirror
