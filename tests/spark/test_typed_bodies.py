"""Typed bodies as a column of both sources: the same decoders, and bad rows stated."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from contrailmq import Message, Producer
from contrailmq.spark.columns import OptionError, choose_view
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.sources.typed_bodies import BadBodyError, typed_bodies, typed_view
from contrailmq.testing import LocalCluster
from spark.file_registry import file_registry, framed, register
from spark.test_body_formats import V1, V2, avro
from spark.test_topic_tables import order, put

SCHEMA = "id bigint NOT NULL, customer string, amount double"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def rows_of(**options: str) -> list[dict[str, Any]]:
    """What a batch read gives, without Spark: planned here, read by a copy as a worker has it."""
    source = CommitLogSource(options)
    topics = source._options.names("topics")
    view = typed_view(choose_view(options.get("columns")), typed_bodies(source._options, tuple(topics or ())))
    reader = pickle.loads(pickle.dumps(source.reader(from_arrow_schema(view.arrow_schema()))))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.schema == view.arrow_schema() for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_bodies_are_a_column_and_bad_ones_have_a_reason(tmp_path: Path) -> None:
    put(tmp_path / "store", "Orders", [order(1), b"bad", order(2)], queues=1)
    given = {"path": str(tmp_path / "store"), "topics": "Orders", "bodyFormat": "json", "schema": SCHEMA}
    rows = rows_of(**given, columns="queueOffset")
    assert [row["data"] for row in rows] == [order(1), None, order(2)]
    assert [list(row) for row in rows] == [["queueOffset", "data", "dataError"]] * 3
    assert [row["dataError"] for row in rows] == [None, "JSON is malformed: invalid character (byte 0)", None]
    with pytest.raises(BadBodyError, match="Orders, queue 0, offset 1: the body cannot be decoded, JSON is malformed"):
        rows_of(**given, bodyMode="FAILFAST")


def test_schemas_of_a_registry_are_looked_up_by_the_tasks(tmp_path: Path) -> None:
    """The newest schema gives the columns; older bodies lack fields, and values that do not fit are bad."""
    with file_registry(tmp_path / "registry.json") as address:
        ids = [register(address, "Orders-value", json.dumps(schema)) for schema in (V1, V2)]
        bodies = [framed(ids[0], avro(V1, {"id": 1, "amount": 1.0})), framed(77, b"x")]
        bodies += [framed(ids[1], avro(V2, {"id": 2**40, "amount": 2.0, "note": "n"}))]
        put(tmp_path / "store", "Orders", bodies, queues=1)
        given = {"path": str(tmp_path / "store"), "topics": "Orders", "bodyFormat": "avro", "registry": address}
        rows = rows_of(**given)
        assert [row["data"] for row in rows] == [
            {"id": 1, "amount": 1.0, "note": None}, None, {"id": 2**40, "amount": 2.0, "note": "n"},
        ]  # fmt: skip
        assert rows[1]["dataError"] == "schema 77 is not in the registry"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schema": SCHEMA}, "option schema has no effect without bodyFormat"),
        ({"bodyFormat": "json"}, "exactly one of the options schema and registry"),
        ({"bodyFormat": "xml", "schema": SCHEMA}, "it takes json or avro or protobuf"),
        ({"bodyFormat": "json", "schema": "id integre"}, "than a type"),
        ({"bodyFormat": "json", "schema": SCHEMA, "bodyMode": "drop"}, "it takes permissive or failfast"),
        ({"bodyFormat": "json", "schema": SCHEMA, "columnStyle": "kafka"}, "columnStyle=kafka has fixed columns"),
        ({"bodyFormat": "json", "schema": SCHEMA, "subject": "x"}, "option subject has no effect without registry"),
        ({"bodyFormat": "avro", "registry": "http://127.0.0.1:1"}, "option registry needs the option subject"),
        ({"bodyFormat": "json", "schema": SCHEMA, "message": "M"}, "only Protobuf has messages"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        CommitLogSource({"path": "/nowhere", **options}).schema()


@pytest.mark.spark
def test_both_sources_give_typed_bodies_in_batch_and_as_a_stream(spark: Any, tmp_path: Path) -> None:
    """Also the guide's program, but for the path."""
    section = DOCS.read_text().partition("### Typed bodies")[2]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:1]
    put(tmp_path / "store", "Orders", [*map(order, range(5)), b"bad"])
    seen: dict[str, Any] = {"spark": spark}
    exec(compile(block.replace("/data/store", str(tmp_path / "store")), "spark.md", "exec"), seen)
    assert {(row["data"] or (None,))[0] for row in seen["frame"].collect()} == {0, 1, 2, 3, 4, None}
    typed = {"bodyFormat": "json", "schema": "id bigint, l array<struct<k: int>>, h map<string,double>, at timestamp"}
    body = {"id": 7, "l": [{"k": 1}], "h": {"a": 0.5}, "at": "2026-11-18T12:00:00Z"}
    with LocalCluster() as cluster:
        with Producer("typed", namesrv=cluster.namesrv) as producer:
            for data in (json.dumps(body).encode(), b"bad"):
                producer.send(Message("Typed", data))
        topic = {"nameServer": cluster.namesrv, "subscribe": "Typed", "columns": "topic", **typed}
        stream = spark.readStream.format("rocketmq").options(**topic, startingOffsets="earliest").load()
        writer = stream.writeStream.format("memory").queryName("typed")
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
        for frame in (spark.read.format("rocketmq").options(**topic).load(), spark.table("typed")):
            rows = sorted(frame.collect(), key=lambda row: str(row["dataError"]))
            assert rows[0]["data"] is None
            assert rows[0]["dataError"].startswith("JSON is malformed")
            assert rows[1]["data"].asDict(recursive=True) | {"at": 0} == {**body, "at": 0}
