"""Bodies to rows: schemas as DDL, JSON by a schema, and bodies that nobody should send."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.spark.bodies.json_bodies import JsonDecoder, infer, known_fields
from contrailmq.spark.bodies.rows import struct_array
from contrailmq.spark.bodies.types import SchemaError, ddl_of, evolved, parse_ddl, wide
from how_many import examples

ALL = (
    "b boolean, i8 tinyint, i16 smallint, i32 int NOT NULL, i64 bigint, f float, d double, m decimal(12,2), s string, "
    "x binary, day date, at timestamp, `odd-name` string, l array<struct<k: string, v: array<int>>>, "
    "h map<string,map<string,double>>, o struct<a: int NOT NULL, `b-c`: string>"
)


def test_a_schema_as_ddl_is_the_same_after_a_round() -> None:
    assert ddl_of(parse_ddl(ALL)) == ALL
    assert ddl_of(parse_ddl("A INTEGER,B LONG ,c:Struct<d:REAL>")) == "A int, B bigint, c struct<d: float>"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "the name of a field"),
        ("id", "than a type"),
        ("id int,", "the name of a field"),
        ("id int x string", "a comma"),
        ("id decimal(39,0)", "1 to 38 digits"),
        ("id decimal(3)", "than ,"),
        ("id map<int,int>", "string as the key"),
        ("a int, A int", "differ in case only"),
        ("`a b` int", "cannot be a column"),
        ("a struct<>", "the name of a field"),
        ("a int; drop", "which is no DDL"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested deeper than 32"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_with_its_place(text: str, cause: str) -> None:
    with pytest.raises(SchemaError, match=cause):
        parse_ddl(text)


def decoded(schema: str, *bodies: bytes | Any) -> tuple[list[Any], dict[int, str]]:
    decoder = pickle.loads(pickle.dumps(JsonDecoder(parse_ddl(schema))))
    rows, reasons = decoder.decode([b if isinstance(b, bytes) else json.dumps(b).encode() for b in bodies])
    return struct_array(rows, pa.struct(list(decoder.schema)), reasons).to_pylist(), reasons


def test_every_type_is_read_from_json() -> None:
    body = {
        "b": True, "i8": -128, "i16": 32767, "i32": 1, "i64": -(2**63), "f": 0.5, "d": 1, "m": "12.30", "s": "é\n",
        "x": "AAE=", "day": "2026-11-18", "at": "2026-11-18T12:00:00.25+02:00", "odd-name": "o",
        "l": [{"k": "k", "v": [1, None]}, None], "h": {"a": {"b": 0.5}, "n": None}, "o": {"a": 1}, "unknown": {"x": []},
    }  # fmt: skip
    (row,), reasons = decoded(ALL, body)
    assert reasons == {}
    at = datetime.datetime(2026, 11, 18, 10, 0, 0, 250_000, tzinfo=datetime.UTC)
    assert row == {
        "b": True, "i8": -128, "i16": 32767, "i32": 1, "i64": -(2**63), "f": 0.5, "d": 1.0,
        "m": decimal.Decimal("12.30"), "s": "é\n", "x": b"\0\1", "day": datetime.date(2026, 11, 18), "at": at,
        "odd-name": "o", "l": [{"k": "k", "v": [1, None]}, None], "h": [("a", [("b", 0.5)]), ("n", None)],
        "o": {"a": 1, "b-c": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "body", "cause"),
    [
        ("a int", b"", "truncated"),
        ("a int", b"null", "Expected `object`, got `null`"),
        ("a int", b"[]", "Expected `object`, got `array`"),
        ("a int", b'{"a":1}{"a":2}', "trailing"),
        ("a int", b'{"a":2147483648}', "<= 2147483647 - at `$.a`"),
        ("a bigint", b'{"a":9223372036854775808}', "- at `$.a`"),
        ("a bigint", b'{"a":' + b"9" * 10_000 + b"}", "."),
        ("a bigint", b'{"a":1.5}', "Expected `int"),
        ("a bigint", b'{"a":true}', "Expected `int"),
        ("a double", b'{"a":1e999}', "out of range"),
        ("a double", b'{"a":NaN}', "JSON is malformed"),
        ("a string", b'{"a":"\xff\xfe"}', "utf-8"),
        ("a string", b'{"a":5}', "Expected `str"),
        ("a string", b"\xef\xbb\xbf{}", "JSON is malformed"),
        ("a string", b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        ("a array<int>", b'{"a":[1,"x"]}', "at `$.a[1]`"),
        ("a int NOT NULL", b'{"a":null}', "Expected `int`, got `null`"),
        ("a int NOT NULL", b"{}", "missing required field `a`"),
        ("a struct<b: int NOT NULL>", b'{"a":{}}', "missing required field `b` - at `$.a`"),
        ("a date", b'{"a":"2026-13-01"}', "Invalid"),
        ("a timestamp", b'{"a":"yesterday"}', "RFC3339"),
        ("a decimal(5,2)", b'{"a":"1.234"}', "a: "),
        ("a decimal(5,2)", b'{"a":"123456.00"}', "a: "),
        ("a binary", b'{"a":"?"}', "base64"),
    ],
)
def test_a_body_that_is_not_of_the_schema_has_a_reason_and_its_neighbours_are_rows(
    schema: str, body: bytes, cause: str
) -> None:
    good = {"a": {"array<int>": [1], "struct<b: int NOT NULL>": {"b": 1}}.get(schema[2:])}
    good = {"a": 1} if "int NOT NULL" in schema and "struct" not in schema else good
    rows, reasons = decoded(schema, good, body, good)
    assert list(reasons) == [1]
    assert cause in reasons[1]
    assert rows[1] is None
    assert None not in (rows[0], rows[2])


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abC"), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_body_is_a_row_or_has_a_reason_and_what_is_inferred_reads_it(body: bytes) -> None:
    rows, reasons = decoded("a bigint, b map<string,string>, C array<double>", body)
    assert (rows[0] is None) == (0 in reasons)
    found = known_fields(infer([body]))
    if len(found) and b"NaN" not in body and b"Infinity" not in body:
        assert parse_ddl(ddl_of(found)) == found


def test_what_is_inferred_joins_what_all_bodies_have() -> None:
    bodies = [
        {"a": 1, "l": [], "o": {}, "n": None, "A": 2, "x y": 1},
        {"a": 1.5, "l": [{"k": 1}], "o": {"z": "t"}},
        [],
        3,
    ]
    found = known_fields(infer([b"{", *(json.dumps(body).encode() for body in bodies)]))
    assert ddl_of(found) == "a double, l array<struct<k: bigint>>, o struct<z: string>"
    with pytest.raises(SchemaError, match="more than 1000 fields"):
        infer([json.dumps({f"k{n}": n for n in range(1001)}).encode()])


def test_a_table_holds_wide_types_so_that_widening_changes_nothing() -> None:
    columns = evolved(
        pa.schema([]), parse_ddl("a int, f float, m decimal(5,2), l array<smallint>, o struct<i: tinyint>")
    )
    wider = parse_ddl("a bigint, f double, m decimal(9,2), l array<int>, o struct<i: int>")
    assert evolved(columns, wider) == columns
    assert ddl_of(columns) == ("a bigint, f double, m decimal(38,2), l array<bigint>, o struct<i: bigint>")
    assert ddl_of(evolved(columns, parse_ddl("z string"))) == ddl_of(columns) + ", z string"
    for other in ("a double", "f bigint", "m decimal(9,3)", "l array<string>", "o struct<j: int>", "A int"):
        with pytest.raises(SchemaError):
            evolved(columns, parse_ddl(other))
    assert wide(pa.string()) == pa.string()
