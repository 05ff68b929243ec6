"""`archive` of topics: what brokers hold of them into an archive, by a stream that ends when it has caught up.

The stream's checkpoint lies in the archive (`_checkpoint`), so one directory is all that a later run needs to go on
from. How far it got is read from there by a dry run, which asks the brokers for the rest and needs no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from contrailmq.spark.access import PREFIX, parse_access
from contrailmq.spark.jobs.archive import archive_stream
from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.topic_plan import TopicSettings, find_queues

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINT: Final = "_checkpoint"  # Spark and the manifest ignore names that begin with an underscore
_TIMEOUT_S: Final = 20.0


def archive_topics(
    spark: SparkSession, namesrv: str, topics: str, target: str, *, options: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Append what topics (a comma list) gained since the last run to the archive at `target`, exactly once.

    `options` are the source's own for keys and TLS: `{"rocketmq.accessKey": ..., "rocketmq.secretKey": ...}`.
    """
    source = spark.readStream.format("rocketmq").options(**(options or {})).option("nameServer", namesrv)
    source = source.option("startingOffsets", "earliest").option("subscribe", topics)
    manifest = Manifest(target)
    manifest.check_commits()
    before = manifest.load()
    writer = archive_stream(source, target, str(Path(target, _CHECKPOINT).absolute()))
    writer.trigger(availableNow=True).start().awaitTermination()
    after = manifest.load()
    files = after.files[len(before.files) :]
    return {"rows": sum(file.rows for file in files), "files": len(files), "version": after.version}


def topics_to_archive(
    namesrv: str, topics: str, target: str, *, options: Mapping[str, str] | None = None
) -> dict[str, int]:
    """What `archive_topics` would add now, by offsets: nothing is read or written."""
    access = parse_access({name.removeprefix(PREFIX): value for name, value in (options or {}).items()})
    Manifest(target).check_commits()
    settings = TopicSettings(namesrv, access, topics=tuple(name.strip() for name in topics.split(",")))
    done = archived_offsets(target)
    with access.open(namesrv, "contrailmq_spark", _TIMEOUT_S) as client:
        queues = find_queues(client, settings, ())
        begins = [done.get((q.topic, q.broker_name, q.queue_id), client.min_offset(q)) for q in queues]
        rows = sum(max(0, client.max_offset(queue) - begin) for queue, begin in zip(queues, begins, strict=True))
    return {"rows": rows, "files": 0, "version": Manifest(target).head().version}


def archived_offsets(target: str) -> dict[tuple[str, str, int], int]:
    """Next offsets by (topic, broker, queue) after the newest batch that the archive's stream finished."""
    finished = [int(path.name) for path in Path(target, _CHECKPOINT, "commits").glob("*") if path.name.isdecimal()]
    if not finished:
        return {}
    # Spark's offset log: a version, a line about the batch, then a line of JSON for each source.
    lines = Path(target, _CHECKPOINT, "offsets", str(max(finished))).read_text().splitlines()
    tree = json.loads(lines[2])["offsets"]
    return {
        (topic, broker, int(queue_id)): int(offset)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
