"""Archive a store's log as Parquet, then ask it in SQL.

    python examples/spark/archive_and_ask.py                                         # a store of its own
    python examples/spark/archive_and_ask.py contrailmq-data/broker-a /tmp/archive   # that of `contrailmq up`, or any

It archives twice: the second time only what the log gained since is added, and every message is in the archive exactly
once. The broker may be running.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import contrailmq.spark
from contrailmq.spark.runtime.engine import SparkEngine

QUESTION = """
    select topic, date, count(*) as messages, sum(length(body)) as bytes, count(distinct tags) as tags
    from log group by topic, date order by messages desc
"""


def run(spark: Any, store: str, archive: str) -> list[Any]:
    """Bring the archive up to date and answer the question."""
    done = contrailmq.spark.archive(store, archive, SparkEngine(spark))
    print(f"archived {done.rows} messages, files: {done.files}")
    contrailmq.spark.read_archive(spark, archive).createOrReplaceTempView("log")
    answer: list[Any] = spark.sql(QUESTION).collect()
    return answer


def main() -> None:
    from samples import own_cluster

    if len(sys.argv) not in (1, 3):
        sys.exit("give a store directory and an archive directory, or neither")
    if len(sys.argv) == 3:
        show(*sys.argv[1:])
        return
    orders = [f"order {number}" for number in range(20)]
    with own_cluster("Orders", orders) as (_, store), tempfile.TemporaryDirectory(prefix="archive-") as archive:
        show(store, archive)


def show(store: str, archive: str) -> None:
    spark = contrailmq.spark.session("archive and ask")
    run(spark, store, archive)
    for row in run(spark, store, archive):
        print(row.asDict())


if __name__ == "__main__":
    main()
