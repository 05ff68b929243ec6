"""Streaming word count: sentences come in on one topic, counts go out on another.

    python examples/spark/word_count.py                             # a broker of its own, and three sentences
    python examples/spark/word_count.py --namesrv 127.0.0.1:9876    # the sentences on the topic Sentences of yours

Every micro-batch sends the new total of each word that it changed; `keys` is the word. With `--checkpoint DIR` the next
run counts on from where this one ended.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import contrailmq.spark
from contrailmq.message import printable

SENTENCES = ("the log is the product", "the trail is the log", "every word counts")


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


def totals(spark: Any, namesrv: str, target: str = "WordCounts") -> dict[str, int]:
    """What readers of the target know: the last total of each word."""
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("subscribe", target)
    rows = reader.load().selectExpr("keys", "cast(body as string) as count", "storeTimestamp").collect()
    return {row["keys"]: int(row["count"]) for row in sorted(rows, key=lambda row: row["storeTimestamp"])}


def main() -> None:
    from samples import given_cluster, own_cluster

    parser = argparse.ArgumentParser(description="Count the words of a topic.")
    parser.add_argument("--namesrv", help="your cluster; without it there is one in this process")
    parser.add_argument("--checkpoint", help="where the query keeps how far it is")
    given = parser.parse_args()
    place = given_cluster(given.namesrv, "Sentences") if given.namesrv else own_cluster("Sentences", SENTENCES)
    with place as (namesrv, _store), tempfile.TemporaryDirectory(prefix="word-count-") as temporary:
        spark = contrailmq.spark.session("word count")
        start(spark, namesrv, given.checkpoint or temporary).awaitTermination()
        for word, count in sorted(totals(spark, namesrv).items(), key=lambda pair: (-pair[1], pair[0])):
            print(f"{count:4} {printable(word)}")


if __name__ == "__main__":
    main()
