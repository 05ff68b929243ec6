"""Windowed totals: orders come in as JSON, the total of each region and minute goes out.

    python examples/spark/order_totals.py --namesrv 127.0.0.1:9876

An order is {"region": "eu", "amount": 12.5, "at": "2026-11-15T12:00:03Z"}. A total is sent once, when no order for its
minute can come any more (ten seconds of lateness are waited for).
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import contrailmq.spark


def start(spark: Any, namesrv: str, checkpoint: str, *, source: str = "Orders", target: str = "OrderTotals") -> Any:
    """Start the query over all there is."""
    orders = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("from_json(cast(body as string), 'region string, amount double, at timestamp') as o")
        .select("o.*")
    )
    totals = (
        orders.withWatermark("at", "10 seconds")
        .groupBy("region", minutes())
        .sum("amount")
        .selectExpr("region", "window.start as minute", "`sum(amount)` as total")
    )
    return (
        totals.selectExpr(
            "region as tags",
            "date_format(minute, 'yyyy-MM-dd HH:mm') as keys",
            "to_json(struct(region, minute, total)) as body",
        )
        .writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


def minutes() -> Any:
    """One-minute windows of the order's own time."""
    from pyspark.sql import functions

    return functions.window("at", "1 minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--checkpoint", default=None)
    arguments = parser.parse_args()
    spark = contrailmq.spark.session("order totals")
    start(spark, arguments.namesrv, arguments.checkpoint or tempfile.mkdtemp(prefix="totals-")).awaitTermination()


if __name__ == "__main__":
    main()
