"""Bodies by their schemas: Avro and Protobuf, a registry's head, wrong ones, hostile ones. Each in its own process."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from contrailmq.console.model import schemas
from contrailmq.console.model.body_decoder import AVRO_FILE, SHOWN_CHARS_MAX, DecodedBody
from contrailmq.console.model.schemas import GIVEN_MAX, SCHEMA_BYTES_MAX, Schemas
from contrailmq.message import ContrailError

fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'contrailmq[avro]'")
pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: pip install 'contrailmq[protobuf]'")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page gives a body up after 20 s, which a busy machine may need to start its process; the rules are others."""
    monkeypatch.setattr(schemas, "_WALL_S", 300.0)


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
PROTO = b"""syntax = "proto3";
package shop;
message Order {
  int64 number = 1;
  string note = 2;
  message Line { string article = 1; }
  repeated Line lines = 3;
  map<string, int32> counts = 4;
}
message Refund { int64 number = 1; }
"""
ORDER_42 = bytes.fromhex("082a 1202c3a4 1a03 0a01 62 2207 0a03 666f6f 1007".replace(" ", ""))
SHOWN_42 = {"number": "42", "note": "ä", "lines": [{"article": "b"}], "counts": {"foo": 7}}


def shown(name: str, schema: bytes, body: bytes, message: str = "") -> DecodedBody:
    schemas = Schemas()
    schemas.give("Orders", name, schema)
    if message:
        schemas.choose("Orders", message)
    found = asyncio.run(schemas.decoded(schemas.of("Orders"), body))
    assert found is not None
    return found


def by_avro(schema: object, body: bytes) -> DecodedBody:
    return shown("orders.avsc", json.dumps(schema).encode(), body)


def avro_of(schema: object, value: object) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return data.getvalue()


VALUE = {
    "number": 42,
    "note": "ä<b>!",
    "raw": b"\xff\x00",
    "price": Decimal("12.34"),
    "at": datetime(2026, 11, 18, tzinfo=UTC),
}
AVRO = avro_of(ORDER, VALUE)


def test_an_avro_body_is_shown_with_dates_decimals_and_bytes_as_people_write_them() -> None:
    found = by_avro(ORDER, AVRO)
    assert json.loads(found.text) == {
        "number": 42,
        "note": "ä<b>!",
        "raw": "0xff00",
        "price": "12.34",
        "at": "2026-11-18 00:00:00+00:00",
    }
    assert (found.kind, found.remark, found.fault) == ("Avro", "", "")


def test_a_registrys_head_is_read_and_said_and_a_body_that_only_begins_with_0_has_none() -> None:
    headed = by_avro(ORDER, b"\0\0\0\1\2" + AVRO)
    assert (json.loads(headed.text)["number"], headed.remark) == (42, "schema 258 of a registry")
    zeros = {"type": "record", "name": "Z", "fields": [{"name": n, "type": "long"} for n in "abcdefg"]}
    bare = by_avro(zeros, avro_of(zeros, dict.fromkeys("abcdefg", 0) | {"g": 70_000}))
    assert (json.loads(bare.text)["g"], bare.remark) == (70_000, "")


def test_a_file_in_avros_own_form_needs_no_schema_and_shows_its_first_records() -> None:
    data = io.BytesIO()
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    fastavro.writer(data, fastavro.parse_schema(schema), [{"n": number} for number in range(150)], codec="deflate")
    assert data.getvalue().startswith(AVRO_FILE)
    found = asyncio.run(Schemas().decoded(None, data.getvalue()))
    assert found is not None
    assert [row["n"] for row in json.loads(found.text)] == list(range(100))
    assert found.remark == "a file with its own schema, the first 100 records"
    assert asyncio.run(Schemas().decoded(None, AVRO)) is None, "no schema, and none inside"


def descriptor_set(tmp_path: Path) -> bytes:
    (tmp_path / "shop.proto").write_bytes(PROTO)
    out = tmp_path / "shop.desc"
    command = ["-m", "grpc_tools.protoc", f"-I{tmp_path}", "--include_imports", f"--descriptor_set_out={out}"]
    subprocess.run([sys.executable, *command, "shop.proto"], check=True)
    return out.read_bytes()


def test_a_protobuf_body_is_shown_by_a_proto_file_and_by_a_descriptor_set(tmp_path: Path) -> None:
    for name, schema in (("shop.proto", PROTO), ("shop.desc", descriptor_set(tmp_path))):
        found = shown(name, schema, ORDER_42)
        assert json.loads(found.text) == SHOWN_42
        assert (found.kind, found.message) == ("Protobuf", "shop.Order"), "the first unless one is chosen"
        assert found.messages == ["shop.Order", "shop.Order.Line", "shop.Refund"]


def test_a_message_is_chosen_or_named_by_the_body_and_fields_that_it_does_not_have_are_said() -> None:
    refund = shown("shop.proto", PROTO, ORDER_42, "shop.Refund")
    assert json.loads(refund.text) == {"number": "42"}
    assert refund.remark == "the schema does not have 3 of its fields: 2, 3, 4"
    assert json.loads(shown("shop.proto", PROTO, b"").text)["number"] == "0", "a field that was not sent"
    first = shown("shop.proto", PROTO, b"\0\0\0\0\7\0" + ORDER_42)
    assert (json.loads(first.text), first.remark) == (SHOWN_42, "schema 7 of a registry")
    second = shown("shop.proto", PROTO, b"\0\0\0\0\7\2\2" + b"\x08\x2a")
    assert (json.loads(second.text), second.message) == ({"number": "42"}, "shop.Refund")


NESTED = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
NULLS = {"type": "record", "name": "L", "fields": [{"name": "l", "type": {"type": "array", "items": "null"}}]}
COUNT_2_60 = bytes.fromhex("80808080808080802000")


@pytest.mark.parametrize(
    ("name", "schema", "body", "said"),
    [
        ("o.avsc", json.dumps(ORDER).encode(), b"\x54", "the body does not fit the schema: "),
        ("o.avsc", json.dumps(ORDER).encode(), AVRO + b"x", "the body does not fit the schema: 1 of 22 bytes are left"),
        ("o.avsc", json.dumps(ORDER).encode(), b"", "the body does not fit the schema: "),
        ("o.avsc", b"{", AVRO, "it is no Avro schema: Expecting property name"),
        ("o.avsc", b'{"type": "record"}', AVRO, "it is no Avro schema: "),
        ("o.avsc", b'"Unknown"', AVRO, "it is no Avro schema: Unknown"),
        ("o.avsc", b"[" * 100_000, AVRO, "it is no Avro schema: "),
        ("o.avsc", b"\xff\xfe", AVRO, "it is no Avro schema: "),
        ("o.avsc", json.dumps(NESTED).encode(), b"\2" * 3_000_000, "nested too deep"),
        ("o.avsc", json.dumps(NULLS).encode(), COUNT_2_60, "it takes more than "),
        ("o.avsc", b'"long"', AVRO_FILE + b"garbage", ""),
        ("o.proto", PROTO, b"\xff\xff\xff", "the body is no shop.Order: "),
        ("o.proto", PROTO, b"\0\0\0\0\7\x08", "the body begins as a registry's, and ends before its message"),
        ("o.proto", PROTO, b"\0\0\0\0\7\2\x08", "the body names message [4], which the schema does not have"),
        ("o.proto", b"message {", b"", "protoc does not take it: 1:9: Expected message name."),
        ("o.proto", b'syntax="proto3"; import "/etc/passwd"; message A {}', b"", "protoc does not take it: "),
        ("o.proto", b'syntax="proto3"; import "../x"; message A {}', b"", "protoc does not take it: 1:18: "),
        ("o.proto", b'syntax="proto3";', b"", "the schema has no message ''"),
        ("o.desc", b"", b"", "the descriptor set is empty"),
        ("o.desc", b"\xff" * 50, b"", "it is no descriptor set: "),
        ("o.desc", PROTO, b"", "it is no descriptor set: "),
    ],
    ids=lambda value: str(value)[:40],  # whole bodies do not fit into the environment of the process that reads them
)  # fmt: skip
def test_what_is_wrong_or_hostile_is_one_sentence(name: str, schema: bytes, body: bytes, said: str) -> None:
    found = shown(name, schema, body)
    assert said in found.fault
    assert found.fault
    assert (found.text, found.fault.count("\n")) == ("", 0)


def test_long_texts_are_cut_and_this_is_said() -> None:
    found = by_avro("string", avro_of("string", "x" * 200_000))
    assert (len(found.text), found.remark) == (SHOWN_CHARS_MAX, ", the first 64 KiB")


def test_files_of_a_directory_are_found_by_topic_and_one_that_is_given_goes_before_them(tmp_path: Path) -> None:
    (tmp_path / "Orders.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "notes.txt").write_text("no schema")
    (tmp_path / "base.proto").write_text('syntax = "proto3"; message Base { int32 n = 1; }')
    (tmp_path / "%DLQ%x.proto").write_text('syntax = "proto3"; import "base.proto"; message X { Base b = 1; }')
    schemas = Schemas(tmp_path)
    order = schemas.of("Orders")
    assert order is not None
    assert order.name == "Orders.avsc"
    for topic in ("notes", "Other", "../Orders", "", "Orders.avsc"):
        assert schemas.of(topic) is None
    found = asyncio.run(schemas.decoded(schemas.of("%DLQ%x"), b"\x0a\x02\x08\x05"))
    assert found is not None
    assert json.loads(found.text) == {"b": {"n": 5}}, "imports are read from the directory"
    schemas.give("Orders", "../../new.avsc", b'"long"')
    given = schemas.of("Orders")
    assert given is not None
    assert (given.name, str(given.path)) == ("../../new.avsc", "given.avsc"), "its name is shown, and no path"
    with pytest.raises(ContrailError, match="there is no directory .*none with schemas: check --schema-dir"):
        Schemas(tmp_path / "none")


def test_what_is_no_schema_by_name_or_size_is_refused_and_the_oldest_given_ones_are_forgotten() -> None:
    schemas = Schemas()
    with pytest.raises(ContrailError, match=r"orders\.exe is no schema by its name: give one of \.avsc, \.proto"):
        schemas.give("T", "orders.exe", b"")
    with pytest.raises(ContrailError, match=f"a schema has at most {SCHEMA_BYTES_MAX}"):
        schemas.give("T", "orders.avsc", b" " * (SCHEMA_BYTES_MAX + 1))
    for number in range(GIVEN_MAX + 1):
        schemas.give(f"T{number}", "orders.avsc", b'"long"')
    assert (schemas.of("T0"), schemas.of("T1") is None) == (None, False)


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fastavro", "google", "grpc_tools"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def test_without_the_libraries_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{source}")
    assert by_avro(ORDER, AVRO).fault.endswith("pip install 'contrailmq[avro]'")
    assert shown("shop.proto", PROTO, ORDER_42).fault.endswith("pip install 'contrailmq[protobuf]'")
