"""Avro bodies: one record each, without a file's header, decoded by the schema that wrote it (fastavro).

Types of Avro become the nearest of ours: enums are text, `fixed` is binary, a union with null is a field that may be
null, a union of numbers is the widest of them. Logical types are dates, timestamps and decimals; others are read as
what they are stored as (a uuid as text, a time as a number). Refused are other unions, recursive records, and lists of
values that take no bytes: eight bytes could claim to be a list of 2^60 of them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.bodies.rows import Row, reason
from contrailmq.spark.bodies.types import DECIMAL_DIGITS_MAX, SchemaError, check_names, list_of

_TIME: Final = pa.timestamp("us", tz="UTC")
_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_NUMBERS: Final = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]  # each holds those before it, or nearly
_LOGICAL: Final = {"date": pa.date32(), "timestamp-millis": _TIME, "timestamp-micros": _TIME}
_REFUSALS: Final = (
    ValueError,
    EOFError,
    LookupError,
    ArithmeticError,
    TypeError,
    struct.error,
    RecursionError,
    StopIteration,
)


class AvroDecoder:
    """Decodes records by the JSON text of their schema."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fields = _Reader().record_schema(_tree(text))

    @property
    def schema(self) -> pa.Schema:
        return self._fields

    def __getstate__(self) -> tuple[str, pa.Schema]:
        return self._text, self._fields

    def __setstate__(self, state: tuple[str, pa.Schema]) -> None:
        self._text, self._fields = state

    @cached_property
    def _parsed(self) -> Any:
        return check_avro().parse_schema(_plain(_tree(self._text)))

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        read, schema = check_avro().schemaless_reader, self._parsed
        rows: list[Row | None] = []
        reasons: dict[int, str] = {}
        for number, body in enumerate(bodies):
            data = BytesIO(body)
            try:
                row = read(data, schema, None)
                if data.tell() != len(body):
                    raise ValueError(f"{len(body) - data.tell()} of {len(body)} bytes are left after the record")
                rows.append(row)
            except _REFUSALS as exc:
                rows.append(None)
                reasons[number] = f"not a record of the Avro schema: {reason(exc)}"
        return rows, reasons


def check_avro() -> Any:
    """The library."""
    try:
        import fastavro
    except ImportError as exc:
        raise SchemaError(
            "Avro bodies need fastavro: pip install 'contrailmq[avro]', on Spark's workers too (pip install fastavro)"
        ) from exc
    return fastavro


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise SchemaError(f"the Avro schema is not JSON ({exc})") from exc


def _plain(tree: Any) -> Any:
    """A schema without logical types that have no type of ours: fastavro would make other objects of them."""
    if isinstance(tree, list):
        return [_plain(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {
        name: _plain(part) if name in ("type", "items", "values", "fields") else part for name, part in tree.items()
    }
    if kept.get("logicalType") not in (*_LOGICAL, "decimal"):
        kept.pop("logicalType", None)
    return kept


class _Reader:
    """Types from an Avro schema; knows the named ones that it has met."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}  # None while a type is being read

    def record_schema(self, tree: Any) -> pa.Schema:
        if not isinstance(tree, dict) or tree.get("type") != "record":
            raise SchemaError("the Avro schema is not a record: a row has named fields")
        arrow = self._record(tree, "")
        names = [arrow.field(i).name for i in range(arrow.num_fields)]
        check_names(names)
        return pa.schema([arrow.field(i) for i in range(arrow.num_fields)])

    def _type(self, tree: Any, space: str) -> pa.DataType:
        if isinstance(tree, list):
            return self._union(tree, space)[0]
        if isinstance(tree, str):
            return self._by_name(tree, space)
        kind = tree.get("type") if isinstance(tree, dict) else None
        if isinstance(kind, dict | list):
            return self._type(kind, space)
        if kind in ("record", "error"):
            return self._record(tree, space)
        if kind == "enum":
            return self._remember(tree, space, pa.string())
        if kind == "fixed":
            return self._remember(tree, space, _logical(tree) or pa.binary())
        if kind in ("array", "map"):
            item = self._type(tree["items" if kind == "array" else "values"], space)
            if kind == "map":
                return pa.map_(pa.string(), item)
            if pa.types.is_null(item) or (pa.types.is_struct(item) and not item.num_fields):
                raise SchemaError("the Avro schema has a list of values that take no bytes: leave it out")
            return list_of(item)
        if not isinstance(kind, str):
            raise SchemaError(f"the Avro schema has {str(tree)[:80]!r}, which is no type")
        return _logical(tree) or self._by_name(kind, space)

    def _by_name(self, name: str, space: str) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        for full in (name, f"{space}.{name}"):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise SchemaError(f"the Avro record {name} holds itself: a table has no such type")
                return found
        raise SchemaError(f"the Avro schema names the type {name!r}, which it does not define")

    def _record(self, tree: dict[str, Any], space: str) -> pa.DataType:
        space = tree.get("namespace", space)
        self._remember(tree, space, None)
        fields = []
        for field in tree.get("fields", []):
            arrow, may_be_null = self._union(field["type"], space) if isinstance(field["type"], list) else (
                self._type(field["type"], space), False
            )  # fmt: skip
            if not pa.types.is_null(arrow):
                fields.append(pa.field(field["name"], arrow, nullable=may_be_null))
        found = pa.struct(fields)
        self._remember(tree, space, found)
        return found

    def _remember(self, tree: dict[str, Any], space: str, arrow: Any) -> Any:
        space, name = tree.get("namespace", space), tree["name"]
        self._named[name if "." in name or not space else f"{space}.{name}"] = arrow
        return arrow

    def _union(self, branches: list[Any], space: str) -> tuple[pa.DataType, bool]:
        """The type of a union, and whether it may be null."""
        types = [self._type(branch, space) for branch in branches]
        found = list(dict.fromkeys(arrow for arrow in types if not pa.types.is_null(arrow)))
        if len(found) > 1 and all(arrow in _NUMBERS for arrow in found):
            found = [max(found, key=_NUMBERS.index)]
        if len(found) > 1:
            raise SchemaError(f"the Avro schema has a union of {' and '.join(map(str, found))}: a column has one type")
        return (found[0] if found else pa.null()), len(found) < len(types)


def _logical(tree: dict[str, Any]) -> pa.DataType | None:
    if tree.get("logicalType") == "decimal":
        digits, scale = int(tree.get("precision", 0)), int(tree.get("scale", 0))
        if not (0 < digits <= DECIMAL_DIGITS_MAX and 0 <= scale <= digits):
            raise SchemaError(
                f"the Avro schema has a decimal of {digits} digits: at most {DECIMAL_DIGITS_MAX} are possible"
            )
        return pa.decimal128(digits, scale)
    return _LOGICAL.get(str(tree.get("logicalType")))
