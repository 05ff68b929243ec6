"""JSON Schema, as registries hold it for JSON bodies, to the fields of a row. Rules for values are not checked."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.bodies.types import SchemaError, check_names, list_of

_PLAIN: Final = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
_FORMATS: Final = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
_DEPTH_MAX: Final = 32


def json_schema_fields(text: str) -> pa.Schema:
    """The fields of an object by its JSON Schema."""
    try:
        tree = json.loads(text)
    except ValueError as exc:
        raise SchemaError(f"the JSON Schema is not JSON ({exc})") from exc
    arrow = _type(tree, "$", 0)
    if not pa.types.is_struct(arrow):
        raise SchemaError("the JSON Schema is not of an object with properties: a row has named fields")
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    check_names([field.name for field in fields])
    return pa.schema(fields)


def _type(tree: Any, where: str, depth: int) -> pa.DataType:
    kinds = _kinds(tree, where)
    if depth > _DEPTH_MAX:
        raise SchemaError(f"the JSON Schema is nested deeper than {_DEPTH_MAX} levels: flatten it")
    if len(kinds) != 1:
        raise SchemaError(f"the JSON Schema has {' and '.join(kinds) or 'no type'} at {where}: a column has one type")
    kind = kinds[0]
    if kind == "array":
        return list_of(_type(tree.get("items"), f"{where}[]", depth + 1))
    if kind == "object":
        if not tree.get("properties"):
            return pa.map_(pa.string(), _type(tree.get("additionalProperties"), f"{where}.*", depth + 1))
        required = set(tree.get("required", []))
        return pa.struct(
            [
                pa.field(
                    name,
                    _type(part, f"{where}.{name}", depth + 1),
                    nullable=name not in required or "null" in _raw_kinds(part),
                )
                for name, part in tree["properties"].items()
            ]
        )
    if kind not in _PLAIN:
        raise SchemaError(f"the JSON Schema has type {kind!r} at {where}, which no column has")
    return _FORMATS.get(str(tree.get("format")), pa.string()) if kind == "string" else _PLAIN[kind]


def _raw_kinds(tree: Any) -> list[str]:
    kinds = tree.get("type", []) if isinstance(tree, dict) else []
    return [kinds] if isinstance(kinds, str) else [str(kind) for kind in kinds]


def _kinds(tree: Any, where: str) -> list[str]:
    if isinstance(tree, dict) and "$ref" in tree:
        raise SchemaError(f"the JSON Schema has a $ref at {where}: write it out")
    kinds = [kind for kind in _raw_kinds(tree) if kind != "null"]
    return ["number"] if set(kinds) == {"integer", "number"} else kinds
