"""Windowed totals: orders come in as JSON, the total of each region and minute goes out.

    python examples/spark/order_totals.py                             # a broker of its own, and four orders
    python examples/spark/order_totals.py --namesrv 127.0.0.1:9876    # the orders on the topic Orders of yours

An order is {"region": "eu", "amount": 12.5, "at": "2026-11-15T12:00:03Z"}. A total is sent once, when no order for its
minute can come any more (ten seconds of lateness are waited for).
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import contrailmq.spark
from contrailmq.message import printable

# The last one moves the time on: the totals of 12:00 are sent then, that of 12:05 still waits.
ORDERS = (
    '{"region": "eu", "amount": 10.0, "at": "2026-11-15T12:00:03Z"}',
    '{"region": "eu", "amount": 2.5, "at": "2026-11-15T12:00:59Z"}',
    '{"region": "us", "amount": 7.0, "at": "2026-11-15T12:00:10Z"}',
    '{"region": "eu", "amount": 1.0, "at": "2026-11-15T12:05:00Z"}',
)


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


def sent(spark: Any, namesrv: str, target: str = "OrderTotals") -> list[str]:
    """The totals that went out."""
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("subscribe", target)
    return sorted(row[0] for row in reader.load().selectExpr("cast(body as string)").collect())


def main() -> None:
    from samples import given_cluster, own_cluster

    parser = argparse.ArgumentParser(description="Sum up orders by region and minute.")
    parser.add_argument("--namesrv", help="your cluster; without it there is one in this process")
    parser.add_argument("--checkpoint", help="where the query keeps how far it is")
    given = parser.parse_args()
    place = given_cluster(given.namesrv, "Orders") if given.namesrv else own_cluster("Orders", ORDERS)
    with place as (namesrv, _store), tempfile.TemporaryDirectory(prefix="totals-") as temporary:
        spark = contrailmq.spark.session("order totals")
        start(spark, namesrv, given.checkpoint or temporary).awaitTermination()
        for total in sent(spark, namesrv):
            print(printable(total))


if __name__ == "__main__":
    main()
