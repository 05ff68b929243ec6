"""Archive a store's log as Parquet, then ask it in SQL.

    python examples/spark/archive_and_ask.py /data/store /data/archive

Run it again: only what the log gained since is added, and every message is in the archive exactly once.
"""

from __future__ import annotations

import sys
from typing import Any

import contrailmq.spark
from contrailmq.spark.engine import SparkEngine

QUESTION = """
    select topic, date, count(*) as messages, sum(length(body)) as bytes, count(distinct tags) as tags
    from log group by topic, date order by messages desc
"""


def run(spark: Any, store: str, archive: str) -> list[Any]:
    """Bring the archive up to date and answer the question."""
    done = contrailmq.spark.archive(store, archive, SparkEngine(spark))
    print(f"archived {done.rows} messages in {done.files} files")
    contrailmq.spark.read_archive(spark, archive).createOrReplaceTempView("log")
    answer: list[Any] = spark.sql(QUESTION).collect()
    return answer


if __name__ == "__main__":
    for row in run(contrailmq.spark.session("archive and ask"), *sys.argv[1:3]):
        print(row.asDict())
