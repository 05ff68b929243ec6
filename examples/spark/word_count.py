"""Streaming word count: sentences come in on one topic, counts go out on another.

    contrailmq up &
    python examples/spark/word_count.py --namesrv 127.0.0.1:9876

Every micro-batch sends the new total of each word that it changed; `keys` is the word.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import contrailmq.spark


def start(spark: Any, namesrv: str, checkpoint: str, *, source: str = "Sentences", target: str = "WordCounts") -> Any:
    """Start the query that counts all there is; use another trigger to keep it running."""
    sentences = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    counts = (
        sentences.selectExpr("explode(split(lower(cast(body as string)), '\\\\W+')) as word")
        .where("word <> ''")
        .groupBy("word")
        .count()
    )

    def publish(frame: Any, batch_id: int) -> None:
        """Spark gives changed totals to foreachBatch only; the key makes a repeated batch known to readers."""
        rows = frame.selectExpr("word as keys", "cast(count as string) as body", f"concat({batch_id}, '-', word) as id")
        writer = rows.write.format("rocketmq").option("nameServer", namesrv).option("topic", target)
        writer.option("dedupKeyColumn", "id").mode("append").save()

    writer = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    return writer.foreachBatch(publish).trigger(availableNow=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--checkpoint", default=None)
    arguments = parser.parse_args()
    spark = contrailmq.spark.session("word count")
    start(spark, arguments.namesrv, arguments.checkpoint or tempfile.mkdtemp(prefix="word-count-")).awaitTermination()


if __name__ == "__main__":
    main()
