"""Tables and views of Spark's catalog over topics and stores: created, read, streamed and filled in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.sources.rocketmq import RocketMQSource
from contrailmq.testing import LocalCluster
from spark.conftest import expected

# As Spark 4.3 hands them over: the user's own twice, and what the catalog says.
CREATED = {
    "nameserver": "none:1",
    "option.nameserver": "none:1",
    "topic": "Orders",
    "option.topic": "Orders",
    "owner": "root",
    "provider": "rocketmq",
    "comment": "all orders",
    "x.y": "a table property",
    "external": "true",
    "is_managed_location": "true",
}


def test_what_the_catalog_says_of_a_table_is_no_option() -> None:
    schema = RocketMQSource(CREATED).schema()
    assert [field.name for field in schema.fields] == list(COLUMNS)
    assert all(field.nullable for field in schema.fields)
    read = RocketMQSource({}).reader(schema)._settings
    assert (read.namesrv, read.topics) == ("none:1", ("Orders",))
    said = RocketMQSource({"startingoffsets": '{"Orders": {"0": 7}}'}).reader(schema)._settings  # WITH (...)
    assert said.starting.offsets == {"Orders": {"": {0: 7}}}


def test_a_wrong_option_of_the_users_own_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="unknown option 'subscibe': did you mean subscribe?"):
        RocketMQSource({**CREATED, "subscibe": "Orders", "option.subscibe": "Orders"})
    with pytest.raises(OptionError, match="option nameServer is missing"):
        RocketMQSource({name: text for name, text in CREATED.items() if "nameserver" not in name}).schema()
    for word in ("owner", "location", "option.topic"):  # given by the user, where no catalog is
        with pytest.raises(OptionError, match=f"unknown option '{word}'"):
            RocketMQSource({"nameServer": "none:1", word: "x"})


def test_secrets_are_not_saved_in_tables() -> None:
    with pytest.raises(OptionError, match="rocketmq.secretkey would be readable .* TEMPORARY VIEW"):
        RocketMQSource({**CREATED, "option.rocketmq.accesskey": "a", "option.rocketmq.secretkey": "b"})


def test_a_table_that_was_saved_without_options_says_so() -> None:
    schema = RocketMQSource(CREATED).schema()
    schema.fields[0].metadata = {}
    for source, name in ((RocketMQSource, "nameServer"), (CommitLogSource, "path")):
        with pytest.raises(OptionError, match=f"option {name} is missing.*without columns of your own"):
            source({}).reader(schema)


def test_a_table_whose_rows_could_be_those_of_another_takes_none() -> None:
    schema = RocketMQSource({**CREATED, "option.columns": "topic,body"}).schema()
    with pytest.raises(OptionError, match="no column queueOffset.*without the option columns"):
        RocketMQSource({}).writer(schema, overwrite=False)


@pytest.fixture
def tables(spark: Any) -> Iterator[Callable[[str], Any]]:
    """Runs SQL; drops what the tests create. A view of another test would stand before a table of its name."""
    for name in ("orders", "others", "log"):
        spark.catalog.dropTempView(name)
    yield spark.sql
    for name in ("orders", "others", "log"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql("DROP VIEW IF EXISTS seen")


@pytest.mark.spark
def test_a_topic_is_a_table(tables: Callable[[str], Any], spark: Any, tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        options = f"OPTIONS (nameServer '{cluster.namesrv}', subscribe 'Orders', producerGroup 'sql')"
        tables(f"CREATE TABLE orders USING rocketmq {options} COMMENT 'all' TBLPROPERTIES ('team' = 'shop')")
        tables("INSERT INTO orders (body, tags, keys) VALUES (encode('one', 'utf-8'), 'new', 'k1')")
        tables("INSERT INTO orders (body, tags) SELECT encode(concat('n', id), 'utf-8'), 'many' FROM range(9)")
        tables(
            f"CREATE TEMPORARY VIEW seen USING rocketmq OPTIONS (nameServer '{cluster.namesrv}', subscribe 'Orders')"
        )
        for name in ("orders", "seen"):
            found = tables(f"SELECT decode(body, 'utf-8') AS text, tags, keys FROM {name}").collect()
            wanted = [("one", "new", "k1"), *((f"n{number}", "many", None) for number in range(9))]
            assert sorted(map(tuple, found)) == sorted(wanted)
        tables(f"CREATE TABLE others USING rocketmq {options.replace('Orders', 'Others')}")
        with pytest.raises(Exception, match="column 'brokerName' has no place in a message that is sent"):
            tables("INSERT INTO others SELECT * FROM orders")  # for which Spark hands over the options of orders
        with pytest.raises(Exception, match="must name the columns that it fills"):
            tables("INSERT INTO orders SELECT * FROM seen")
        with pytest.raises(Exception, match="a topic cannot be overwritten"):
            tables("INSERT OVERWRITE orders (body) VALUES (encode('two', 'utf-8'))")
        rows = spark.readStream.option("startingOffsets", "earliest").table("orders").select("tags")
        query = rows.writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        assert tables("SELECT * FROM orders").count() == 10
        assert Counter(row["tags"] for row in tables("SELECT * FROM streamed").collect()) == {"new": 1, "many": 9}


@pytest.mark.spark
@pytest.mark.parametrize("clause", ["OPTIONS (path '{store}', topics 'GoldenOrder')", "LOCATION '{store}'"])
def test_a_store_is_a_table(tables: Callable[[str], Any], golden_store: Callable[[str], str], clause: str) -> None:
    tables("CREATE TABLE log USING commitlog " + clause.format(store=golden_store("clean")))
    wanted = Counter(row["topic"] for row in expected("clean")["messages"])
    found = dict(map(tuple, tables("SELECT topic, count(*) FROM log GROUP BY topic").collect()))
    assert found["GoldenOrder"] == wanted["GoldenOrder"]
    assert (found == {"GoldenOrder": wanted["GoldenOrder"]}) == ("topics" in clause)
