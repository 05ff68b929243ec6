"""`ask`: SQL over a store, an archive or topics, as the view `log`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from contrailmq.spark.columns import OptionError
from contrailmq.spark.jobs.archive import read_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def ask(
    spark: SparkSession,
    sql: str,
    *,
    store: str | None = None,
    archive: str | None = None,
    namesrv: str | None = None,
    topics: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The answer to a query on the view `log`, which is made of exactly one of a store, an archive and topics.

        ask(spark, "select tags, count(*) from log group by tags", store="/data/store").show()

    `topics` (a comma list) narrows a store or an archive down, and says what to read from brokers. A store shows the
    broker's own topics too unless topics are named. `options` are the source's own, for keys and TLS among others.
    """
    if sum(given is not None for given in (store, archive, namesrv)) != 1:
        raise OptionError("ask takes exactly one of a store, an archive and a NameServer with topics")
    names = None if topics is None else [name.strip() for name in topics.split(",") if name.strip()]
    if names == []:
        raise OptionError(f"topics is {topics!r} and names none: name at least one, or leave it out")
    if archive is not None:
        if options:
            raise OptionError(f"option {next(iter(options))} has no effect on an archive: leave it out")
        frame = read_archive(spark, archive)
        frame = frame if names is None else frame.where(frame["topic"].isin(names))
    elif store is not None:
        chosen = {"includeSystemTopics": "true"} if topics is None else {"topics": topics}
        frame = spark.read.format("commitlog").options(**chosen, **(options or {})).load(store)
    else:
        if names is None:
            raise OptionError("ask takes topics when a NameServer is given: name at least one")
        reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("subscribe", topics)
        frame = reader.options(**(options or {})).load()
    frame.createOrReplaceTempView("log")
    return spark.sql(sql)
