"""Typed tables through Spark: as the guide shows them, from brokers, and read back."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import contrailmq.spark
from contrailmq import Message, Producer
from contrailmq.spark.topic_tables.spec import TablesError
from contrailmq.testing import LocalCluster
from spark.test_topic_tables import order, put, rows_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark.md"

pytestmark = pytest.mark.spark


def test_the_guides_program_runs(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As it stands there, but for the paths."""
    section = DOCS.read_text().partition("### Typed tables")[2].partition("\n### ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:1]
    put(tmp_path / "store", "Orders", [*map(order, range(9)), b"bad"])
    for place in ("/data/store", "/lake", "/checkpoint"):
        block = block.replace(place, str(tmp_path / place.rpartition("/")[2]))
    exec(compile(block, "spark.md", "exec"), {})
    rows = contrailmq.spark.read_table(spark, str(tmp_path / "lake"), "Orders").collect()
    assert {row["id"]: row["customer"] for row in rows} == {n: f"c{n % 3}" for n in range(9)}
    assert Counter(row["customer"] for row in rows) == {"c0": 3, "c1": 3, "c2": 3}
    (bad,) = contrailmq.spark.read_quarantine(spark, str(tmp_path / "lake")).collect()
    assert (bad["topic"], bytes(bad["body"])) == ("Orders", b"bad")
    assert capfd.readouterr().out.count("|      c1|    3|") == 1


def test_topics_of_brokers_go_on_where_the_last_run_ended(spark: Any, tmp_path: Path) -> None:
    specs = {"Orders": {"schema": "id bigint NOT NULL, at timestamp, to struct<zip: string>", "table": "delta"}}
    with LocalCluster() as cluster:
        for begin in (0, 10):
            with Producer("orders", namesrv=cluster.namesrv) as producer:
                for n in range(begin, begin + 10):
                    body = {"id": n, "at": "2026-11-18T12:00:00Z", "to": {"zip": str(n)}}
                    producer.send(Message("Orders", json.dumps(body).encode(), keys=[f"k{n}"]))
                producer.send(Message("Orders", b"\xff"))
            done = contrailmq.spark.tables_topics(spark, cluster.namesrv, str(tmp_path), specs)
            assert (done.rows, done.quarantined) == (10, 1)
        assert contrailmq.spark.tables_topics(spark, cluster.namesrv, str(tmp_path), specs).rows == 0
        with pytest.raises(TablesError, match=r"has no topic Order \(did you mean Orders\?\): check the name"):
            contrailmq.spark.tables_topics(spark, cluster.namesrv, str(tmp_path), {**specs, "Order": {}})
    frame = contrailmq.spark.read_table(spark, str(tmp_path), "Orders")
    assert dict(frame.dtypes)["to"] == "struct<zip:string>"
    assert {(row["id"], row["to"]["zip"], row["_keys"]) for row in frame.collect()} == {
        (n, str(n), f"k{n}") for n in range(20)
    }
    assert {row["_brokerName"] for row in rows_of(tmp_path, "Orders")} == {"broker-0"}
    deltalake = pytest.importorskip("deltalake")
    table = deltalake.DeltaTable(str(tmp_path / "tables" / "Orders")).to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == list(range(20))
