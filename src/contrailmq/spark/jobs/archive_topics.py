"""`archive` of topics: what brokers hold of them into an archive, by a stream that ends when it has caught up.

The stream's checkpoint is in the archive (`_checkpoint`), so one directory is all that a later run needs to go on
from. How far it got is read from there by a dry run, which asks the brokers for the rest and needs no Spark. Commits
tell whose checkpoint that is: without it, or with an old copy of it, a run would repeat messages or pass them over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from contrailmq.spark.access import job_access
from contrailmq.spark.jobs.archive import NAMELESS_QUERY, archive_stream, check_target
from contrailmq.spark.jobs.manifest import ArchiveError, Manifest
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.sources.topic_plan import TopicSettings, find_queues

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT: Final = "_checkpoint"  # Spark and the manifest ignore names that begin with an underscore
_TIMEOUT_S: Final = 20.0


def archive_topics(
    spark: SparkSession, namesrv: str, topics: str, target: str, *, options: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Append what topics (a comma list) gained since the last run to the archive at `target`, exactly once.

    `options` are the source's own for keys and TLS: `{"rocketmq.accessKey": ..., "rocketmq.secretKey": ...}`.
    """
    check_target(target)
    manifest = Manifest(target)
    check_checkpoint(manifest, target)
    source = spark.readStream.format("rocketmq").options(**(options or {})).option("nameServer", namesrv)
    source = source.option("startingOffsets", "earliest").option("subscribe", topics)
    before = manifest.load()
    writer = archive_stream(source, target, str(Path(target, CHECKPOINT).absolute()))
    writer.trigger(availableNow=True).start().awaitTermination()
    after = manifest.load()
    new, _ = before.changes_to(after)
    return {"rows": after.rows - before.rows, "files": len(new), "version": after.version}


def topics_to_archive(
    namesrv: str, topics: str, target: str, *, options: Mapping[str, str] | None = None
) -> dict[str, int]:
    """What `archive_topics` would add now, by offsets: nothing is read or written."""
    check_target(target)
    access, away_timeout_s = job_access(options)
    check_checkpoint(Manifest(target), target)
    settings = TopicSettings(namesrv, access, topics=tuple(name.strip() for name in topics.split(",")))
    done = archived_offsets(target)

    def waiting() -> int:
        queues = find_queues(client, settings, ())
        begins = [done.get((q.topic, q.broker_name, q.queue_id), client.min_offset(q)) for q in queues]
        return sum(max(0, client.max_offset(queue) - begin) for queue, begin in zip(queues, begins, strict=True))

    with access.open(namesrv, "contrailmq_spark", _TIMEOUT_S) as client:
        rows = Patience(client, away_timeout_s).call(waiting)
    return {"rows": rows, "files": 0, "version": Manifest(target).head().version}


def check_checkpoint(manifest: Manifest, target: str) -> None:
    """Refuse to go on with another checkpoint than the archive was written with.

    Spark would begin again: with another query's id all is archived again. With the same id a batch in the archive was
    planned, and a batch that Spark finished is in the archive; if not, one of the two is an old copy, and what only the
    other knows would be skipped. Queries with their checkpoints elsewhere may have written to the archive, too.
    """
    manifest.check_commits()
    done, folder = manifest.head(), Path(target, CHECKPOINT)
    if NAMELESS_QUERY in done.batches:
        return  # the checkpoint has an id, the archive none to compare it with
    owners = [query for query, place in done.checkpoints.items() if place == CHECKPOINT]
    query = _query_of(folder)
    if owners and query not in owners:
        raise ArchiveError(
            f"{target} holds {sum(done.batches[owner] + 1 for owner in owners)} batches of topics, but {folder} is not "
            "their checkpoint: all would be archived again; restore it from a backup, or give another directory"
        )
    held = done.batches.get(query or "", -1) + 1
    finished, planned = (max(_numbers(folder / name), default=-1) + 1 for name in ("commits", "offsets"))
    if query is not None and not finished <= held <= planned:
        raise ArchiveError(
            f"{folder} has {planned} batches planned and {finished} finished, {target} holds {held}: one of them is an "
            "old copy, messages would be skipped; restore both from one backup, or give another directory"
        )


def _query_of(checkpoint: Path) -> str | None:
    """The id of the query that a checkpoint belongs to, None when it does not tell."""
    try:
        return str(json.loads((checkpoint / "metadata").read_bytes())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _numbers(folder: Path) -> list[int]:
    """The batches that a log of Spark's has a file for."""
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def archived_offsets(target: str) -> dict[tuple[str, str, int], int]:
    """Next offsets by (topic, broker, queue) after the newest batch that the archive's stream finished."""
    finished = _numbers(Path(target, CHECKPOINT, "commits"))
    if not finished:
        return {}
    # Spark's offset log: a version, a line about the batch, then a line of JSON for each source.
    lines = Path(target, CHECKPOINT, "offsets", str(max(finished))).read_text().splitlines()
    tree = json.loads(lines[2])["offsets"]
    return {
        (topic, broker, int(queue_id)): int(offset)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
