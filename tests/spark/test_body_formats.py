"""Avro and Protobuf bodies, with schemas of files and of a registry; and bodies that nobody should send."""

from __future__ import annotations

import datetime
import decimal
import importlib
import io
import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.spark.bodies.avro_bodies import AvroDecoder
from contrailmq.spark.bodies.formats import decoder_for, read_schema
from contrailmq.spark.bodies.json_schema import json_schema_fields
from contrailmq.spark.bodies.protobuf_bodies import compile_proto
from contrailmq.spark.bodies.registry import RegistryError, split_indexes
from contrailmq.spark.bodies.types import SchemaError, ddl_of
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.topic_tables.job import tables
from contrailmq.spark.topic_tables.spec import TablesError
from how_many import examples
from spark.file_registry import file_registry, framed, register
from spark.test_topic_tables import place, put, rows_of, stored

fastavro = pytest.importorskip("fastavro")
pytest.importorskip("grpc_tools")
ONE = LocalEngine(workers=1)
AT = datetime.datetime(2026, 11, 18, 12, 0, 0, 250_000, tzinfo=datetime.UTC)


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


def avro(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


ALL = record(
    ("b", "boolean"), ("i", "int"), ("l", "long"), ("f", "float"), ("d", "double"), ("x", "bytes"), ("s", "string"),
    ("n", ["null", "string"]), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("fx", {"type": "fixed", "name": "F", "size": 2}), ("list", {"type": "array", "items": "int"}),
    ("map", {"type": "map", "values": "long"}), ("o", record(("z", "string"), name="Inner")),
    ("again", ["null", "Inner"]),
    ("day", {"type": "int", "logicalType": "date"}), ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("m", {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}),
    ("u", {"type": "string", "logicalType": "uuid"}), ("num", ["null", "int", "double"]),
)  # fmt: skip
ROW = {
    "b": True, "i": -5, "l": 2**40, "f": 0.5, "d": 1.25, "x": b"\0\xff", "s": "é", "n": None, "e": "B", "fx": b"ab",
    "list": [1, 2], "map": {"k": 1}, "o": {"z": "y"}, "again": {"z": "w"}, "day": datetime.date(2026, 11, 18), "at": AT,
    "m": decimal.Decimal("12.30"), "u": str(uuid.UUID(int=7)), "num": 1.5,
}  # fmt: skip


def test_every_type_of_avro_is_read() -> None:
    decoder = pickle.loads(pickle.dumps(AvroDecoder(json.dumps(ALL))))
    assert ddl_of(decoder.schema) == (
        "b boolean NOT NULL, i int NOT NULL, l bigint NOT NULL, f float NOT NULL, d double NOT NULL, "
        "x binary NOT NULL, s string NOT NULL, n string, e string NOT NULL, fx binary NOT NULL, "
        "list array<int> NOT NULL, map map<string,bigint> NOT NULL, o struct<z: string NOT NULL> NOT NULL, "
        "again struct<z: string NOT NULL>, day date NOT NULL, at timestamp NOT NULL, "
        "m decimal(8,2) NOT NULL, u string NOT NULL, num double"
    )
    assert decoder.decode([avro(ALL, ROW)]) == ([ROW], {})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "is not JSON"),
        ('"string"', "is not a record"),
        (json.dumps(record(("a", ["int", "string"]))), "a union of int32 and string"),
        (json.dumps(record(("a", ["null", "Order"]))), "the Avro record Order holds itself"),
        (json.dumps(record(("a", "Nope"))), "names the type 'Nope'"),
        (json.dumps(record(("a", {"type": "array", "items": "null"}))), "values that take no bytes"),
        (json.dumps(record(("a", {"type": "array", "items": record(name="E")}))), "values that take no bytes"),
        (json.dumps(record(("a", "int"), ("A", "int"))), "differ in case only"),
    ],
)
def test_an_avro_schema_that_no_table_has_is_refused(schema: str, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        AvroDecoder(schema)


HOSTILE = [b"", b"\x01", b"\xff" * 9, b"\x02" + b"\xfe\xff\xff\xff\x7f", avro(ALL, ROW)[:-1], avro(ALL, ROW) + b"\0"]


@pytest.mark.parametrize("body", HOSTILE)
def test_a_body_that_is_not_of_the_avro_schema_has_a_reason(body: bytes) -> None:
    rows, reasons = AvroDecoder(json.dumps(ALL)).decode([body, avro(ALL, ROW)])
    assert rows == [None, ROW]
    assert reasons[0].startswith("not a record of the Avro schema: ")


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_rows_or_have_reasons(body: bytes) -> None:
    for decoder in (AvroDecoder(json.dumps(ALL)), decoder_for(_proto(), "protobuf")):
        (row,), reasons = decoder.decode([body])
        assert (row is None) == (0 in reasons)


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { OPEN = 0; PAID = 1; }
message Order {
  int64 id = 1;
  optional string note = 2;
  State state = 3;
  repeated Line lines = 4;
  map<int32, double> rates = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.StringValue maybe = 7;
  uint64 big = 8;
  message Line { string sku = 1; uint32 count = 2; }
}
message Other { string a = 1; }
"""
_made: dict[str, str] = {}


def _proto() -> str:
    """The schema of shop.Order as tasks get it, compiled once."""
    if not _made:
        import base64

        files = base64.b64encode(compile_proto({"shop.proto": PROTO}, "shop.proto")).decode()
        _made["order"] = json.dumps({"message": "shop.Order", "files": files})
    return _made["order"]


def message(name: str = "shop.Order", **fields: Any) -> Any:
    """A message as another program makes it: by the library's own JSON reader."""
    import base64

    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(json.loads(_proto())["files"])).file:
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()
    return json_format.ParseDict(fields, made).SerializeToString()


def test_every_type_of_protobuf_is_read(tmp_path: Path) -> None:
    (tmp_path / "shop.proto").write_text(PROTO)
    decoder = pickle.loads(pickle.dumps(decoder_for(read_schema(str(tmp_path / "shop.proto"), "protobuf"), "protobuf")))
    assert ddl_of(decoder.schema) == (
        "id bigint, note string, state string, lines array<struct<sku: string, count: bigint>>, "
        "rates map<string,double>, at timestamp, maybe string, big decimal(20,0)"
    )
    full = message(
        id=7, note="", state="PAID", lines=[{"sku": "a", "count": 4_000_000_000}], rates={"3": 0.5},
        at="2026-11-18T12:00:00.25Z", maybe="x", big=str(2**64 - 1),
    )  # fmt: skip
    rows, reasons = decoder.decode([full, b"", b"\xff", full[:-1]])
    assert rows[0] == {
        "id": 7, "note": "", "state": "PAID", "lines": [{"sku": "a", "count": 4_000_000_000}], "rates": [("3", 0.5)],
        "at": round(AT.timestamp() * 1_000_000), "maybe": "x", "big": decimal.Decimal(2**64 - 1),
    }  # fmt: skip
    assert rows[1] == {
        "id": 0, "note": None, "state": "OPEN", "lines": [], "rates": [], "at": None, "maybe": None,
        "big": decimal.Decimal(0),
    }  # fmt: skip
    assert list(reasons) == [2, 3]
    assert reasons[2].startswith("not a shop.Order: ")


def test_a_proto_that_cannot_be_a_schema_is_refused(tmp_path: Path) -> None:
    for text, cause in (
        ("syntax = 'proto3'; message A { A a = 1; }", "the message A holds itself"),
        ("syntax = 'proto3'; message A { Nope a = 1; }", "protoc does not take"),
    ):
        (tmp_path / "a.proto").write_text(text)
        with pytest.raises(SchemaError, match=cause):
            decoder_for(read_schema(str(tmp_path / "a.proto"), "protobuf"), "protobuf")
    (tmp_path / "a.desc").write_bytes(b"\xff\xff")
    with pytest.raises(SchemaError, match="no descriptor set"):
        decoder_for(read_schema(str(tmp_path / "a.desc"), "protobuf"), "protobuf")
    with pytest.raises(SchemaError, match="there is no file"):
        read_schema(str(tmp_path / "b.desc"), "protobuf")


def test_a_schema_of_json_schema_gives_columns() -> None:
    text = {
        "type": "object", "required": ["id", "n"], "properties": {
            "id": {"type": "integer"}, "n": {"type": ["null", "number"]},
            "at": {"type": "string", "format": "date-time"}, "l": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
    }  # fmt: skip
    assert ddl_of(json_schema_fields(json.dumps(text))) == (
        "id bigint NOT NULL, n double, at timestamp, l array<string>, m map<string,boolean>"
    )
    for wrong, cause in (
        ({"type": "string"}, "not of an object"),
        ({"$ref": "#/x"}, "a \\$ref at"),
        ({}, "no type at"),
    ):
        with pytest.raises(SchemaError, match=cause):
            json_schema_fields(json.dumps(wrong))


def test_tables_of_avro_and_protobuf_by_files(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    (tmp_path / "order.avsc").write_text(json.dumps(ALL))
    (tmp_path / "shop.proto").write_text(PROTO)
    put(store, "Avro", [avro(ALL, {**ROW, "l": n}) for n in range(5)] + HOSTILE[1:])
    put(store, "Proto", [message(id=n) for n in range(1, 6)] + [b"\xff"])
    specs = {
        "Avro": {"body": "avro", "schema": str(tmp_path / "order.avsc")},
        "Proto": {"body": "protobuf", "schema": str(tmp_path / "shop.proto"), "message": "shop.Order"},
    }
    done = tables(str(store), str(target), ONE, specs)
    assert (done.tables, done.quarantined) == ({"Avro": 5, "Proto": 5}, len(HOSTILE))
    rows = rows_of(target, "Avro")
    assert sorted(row["l"] for row in rows) == list(range(5))
    assert (rows[0]["at"], rows[0]["m"], rows[0]["again"], rows[0]["map"]) == (AT, ROW["m"], {"z": "w"}, [("k", 1)])
    assert sorted(row["id"] for row in rows_of(target, "Proto")) == [1, 2, 3, 4, 5]


V1 = record(("id", "int"), ("amount", "double"))
V2 = record(("id", "long"), ("amount", "double"), ("note", ["null", "string"]))
V3 = record(("id", "string"), ("amount", "double"))


def test_schemas_of_a_registry_evolve_the_table_and_bad_ids_are_bad_rows(tmp_path: Path) -> None:
    with file_registry(tmp_path / "registry.json") as address:
        check_evolution(address, tmp_path)


def check_evolution(address: str, folder: Path) -> None:
    store, target = folder / "store", folder / "lake"
    ids = [register(address, "Orders-value", json.dumps(schema)) for schema in (V1, V2, V3)]
    spec = {"Orders": {"body": "avro", "registry": address}}
    put(store, "Orders", [framed(ids[0], avro(V1, {"id": n, "amount": 0.5})) for n in range(3)])
    assert tables(str(store), str(target), ONE, spec).rows == 3
    bodies = [framed(ids[1], avro(V2, {"id": 2**40, "amount": 1.0, "note": "n"}))]
    bodies += [framed(ids[2], avro(V3, {"id": "x", "amount": 1.0})), framed(99, b"x"), b"\x01abcdef", b"\0\0", b""]
    bodies += [framed(ids[0], b"\x02"), framed(ids[0], avro(V1, {"id": 3, "amount": 0.5}))]
    put(store, "Orders", bodies, queues=1, queue=3)
    put(store, "Orders", [b"{}"], queues=1, queue=4)
    done = tables(str(store), str(target), ONE, spec)
    assert (done.rows, done.quarantined) == (2, 7)
    assert {row["id"]: row.get("note") for row in rows_of(target, "Orders")} == {
        0: None,
        1: None,
        2: None,
        3: None,
        2**40: "n",
    }
    reasons = {place(row): row["reason"] for row in rows_of(target, None)}
    assert [reasons[3, n] for n in (1, 2, 3, 4, 5)] == [
        f"schema {ids[2]}: field id is string, and the table has it as bigint",
        "schema 99 is not in the registry",
        "the first byte is 0x01, not 0: it was not written with a registry",
        "2 bytes are too few for a schema's id: 5 are needed",
        "0 bytes are too few for a schema's id: 5 are needed",
    ]
    assert reasons[3, 6].startswith(f"schema {ids[0]}: not a record of the Avro schema")
    assert len(reasons) + 5 == len(stored(store, "Orders"))


def test_a_registry_that_is_away_stops_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    store, target, held = tmp_path / "store", tmp_path / "lake", tmp_path / "registry.json"
    with file_registry(held) as address:
        number = register(address, "Orders-value", json.dumps(V1))
    spec: dict[str, Any] = {"Orders": {"body": "avro", "registry": address}}
    put(store, "Orders", [framed(number, avro(V1, {"id": n, "amount": 0.5})) for n in range(3)])
    with pytest.raises(
        RegistryError, match=f"the registry {address} does not answer .*: nothing was written; start it"
    ):
        tables(str(store), str(target), ONE, spec)
    with file_registry(held, int(address.rpartition(":")[2])):
        assert tables(str(store), str(target), ONE, spec).rows == 3
    put(store, "Orders", [framed(number, avro(V1, {"id": 3, "amount": 0.5}))])
    assert tables(str(store), str(target), ONE, spec).rows == 1  # its schemas are known: nobody is asked


def test_an_incompatible_schema_of_a_registry_stops_the_run_if_it_is_to(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    with file_registry(tmp_path / "registry.json") as address:
        ids = [register(address, "Orders-value", json.dumps(schema)) for schema in (V1, V3)]
        put(store, "Orders", [framed(ids[0], avro(V1, {"id": 1, "amount": 1.0}))])
        put(store, "Orders", [framed(ids[1], avro(V3, {"id": "x", "amount": 1.0}))])
        spec = {"body": "avro", "registry": address, "incompatible": "stop"}
        with pytest.raises(
            TablesError, match="schema 2 of the registry: field id is string, and the table has it as bigint"
        ):
            tables(str(store), str(target), ONE, {"Orders": spec})
        assert not list(target.glob("tables/**/*.parquet"))
        assert tables(str(store), str(target), ONE, {"Orders": {**spec, "incompatible": "quarantine"}}).rows == 1


def test_protobuf_and_json_of_a_registry(tmp_path: Path) -> None:
    with file_registry(tmp_path / "registry.json") as address:
        check_protobuf_and_json(address, tmp_path)


def check_protobuf_and_json(address: str, folder: Path) -> None:
    """With a schema that refers to another, and messages that are not the first of their file."""
    store, target = folder / "store", folder / "lake"
    common = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
    order = 'syntax = "proto3"; package shop; import "common.proto"; message First { Money m = 1; } '
    order += "message Other { string a = 1; }"
    shape = {"type": "object", "properties": {"id": {"type": "integer"}}}
    register(address, "common", common, "PROTOBUF")
    refers = [{"name": "common.proto", "subject": "common", "version": 1}]
    proto = register(address, "Proto-value", order, "PROTOBUF", refers)
    plain = register(address, "Json-value", json.dumps(shape), "JSON")
    put(
        store,
        "Proto",
        [framed(proto, b"\x00\x0a\x02\x08\x2a"), framed(proto, b"\x02\x02\x0a\x01x"), framed(proto, b"\x80")],
    )
    put(store, "Json", [framed(plain, b'{"id": 5}'), framed(plain, b'{"id": "x"}'), framed(proto, b"\0")])
    specs = {"Proto": {"body": "protobuf", "registry": address}, "Json": {"body": "json", "registry": address}}
    done = tables(str(store), str(target), ONE, specs)
    assert done.tables == {"Json": 1, "Proto": 1}
    assert [row["m"] for row in rows_of(target, "Proto")] == [{"cents": 42}]
    assert sorted(row["reason"] for row in rows_of(target, None)) == sorted(
        [
            "it holds a shop.Other, and the rows are of shop.First",
            f"schema {proto}: it is of kind PROTOBUF, and bodies are json",
            f"schema {plain}: Expected `int | null`, got `str` - at `$.id`",
            "the message indexes are cut short",
        ]
    )


def test_message_indexes_are_bounded() -> None:
    assert split_indexes(b"\0rest") == ((0,), b"rest")
    assert split_indexes(b"\x04\x02\x04rest") == ((1, 2), b"rest")
    for data in (b"", b"\x80", b"\xff" * 10, b"\x02", b"\xfe\xff\xff\xff\x0f"):
        with pytest.raises(SchemaError):
            split_indexes(data)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"body": "avro"}, "the schema of avro bodies cannot be inferred"),
        ({"body": "avro", "schema": "x.avsc", "registry": "http://x"}, "a schema and a registry are given"),
        ({"schema": "id int", "message": "M"}, "message is for protobuf bodies"),
        ({"registry": "nowhere"}, "is not an address: give http://host:8081"),
        ({"body": "avro", "schema": "none.avsc"}, "there is no file .*none.avsc"),
        ({"body": "protobuf", "schema": "message A {}"}, "is no file: give a .proto file"),
    ],
)
def test_a_schema_that_is_given_wrongly_is_refused(tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    put(tmp_path / "store", "Orders", [{"id": 1}])
    with pytest.raises(TablesError, match=text):
        tables(str(tmp_path / "store"), str(tmp_path / "lake"), ONE, {"Orders": spec})


def test_a_library_that_is_missing_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(
        SchemaError, match=r"Avro bodies need fastavro: pip install 'contrailmq\[avro\]', on Spark's workers"
    ):
        importlib.import_module("contrailmq.spark.bodies.formats").check_library("avro")


def test_a_topic_of_which_nothing_can_be_inferred_goes_to_the_quarantine(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [b"x", b"{}", b"[]"])
    assert tables(str(store), str(target), ONE, {"Orders": {}}).quarantined == 3
    put(store, "Orders", [{"id": 1}])
    assert tables(str(store), str(target), ONE, {"Orders": {}}).rows == 1
