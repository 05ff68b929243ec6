"""Change streams: a table that holds the newest row of each key (keys.py says which that is).

A key's hash decides its bucket. Tasks write what changed to files of a bucket that nobody lists (`changes/`); then a
task for each bucket with changes reads them and the bucket's rows, keeps the newest of each key, and writes the bucket
anew. The commit that lists the new files lists the old ones no more. Buckets without changes stay as they are. Rows of
a key that was deleted are gone; a later message of it makes a row again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contrailmq.spark.jobs.manifest import ArchivedFile
from contrailmq.spark.topic_tables.keys import DELETED_COLUMN, LOG_COLUMN, newest
from contrailmq.spark.topic_tables.row_files import TopicPlan, sorted_rows, write_file
from contrailmq.spark.topic_tables.table_manifest import CHANGES, table_folder


class Merge(NamedTuple):
    """The work of one task: what changed in a bucket, and its files so far."""

    target: str
    plan: TopicPlan
    bucket: str
    changes: tuple[str, ...]
    current: tuple[ArchivedFile, ...]


def is_change(file: ArchivedFile) -> bool:
    """Whether a file holds changes that are still to be merged."""
    return file.path.startswith(f"{CHANGES}/")


def plan_merges(
    target: str, written: Sequence[ArchivedFile], files: Sequence[ArchivedFile], plans: Mapping[str, TopicPlan]
) -> list[Merge]:
    """A merge for each bucket that has changes among the files written; `files` are those that count so far."""
    by_bucket: dict[tuple[str, str], list[str]] = {}
    for file in filter(is_change, written):
        by_bucket.setdefault((file.topic, file.path.split("/")[2]), []).append(file.path)
    return [
        Merge(
            target,
            plans[topic],
            bucket,
            tuple(sorted(paths)),
            tuple(file for file in files if file.path.startswith(f"{table_folder(topic)}/{bucket}/")),
        )
        for (topic, bucket), paths in sorted(by_bucket.items())
    ]


def merge(work: Merge) -> list[ArchivedFile]:
    """Write a bucket anew; gives its file, none if every key was deleted."""
    target, plan = Path(work.target), work.plan
    schema = plan.schema().append(pa.field(DELETED_COLUMN, pa.bool_())).append(pa.field(LOG_COLUMN, pa.int64()))
    paths = [*(file.path for file in work.current), *work.changes]
    # Columns that a file does not have yet are null; so are those of changes in rows that were merged before.
    rows = pa.concat_tables([pq.read_table(target / path, schema=schema, partitioning=None) for path in paths])
    kept = rows.take(pa.array(newest(rows, plan.key)))
    kept = kept.filter(pc.invert(pc.fill_null(kept[DELETED_COLUMN], False))).drop_columns([DELETED_COLUMN, LOG_COLUMN])
    if not len(kept):
        return []
    ordered = sorted_rows(kept, plan.sort_by or plan.key)
    return [write_file(target, f"{table_folder(plan.topic)}/{work.bucket}", plan.topic, ordered)]
