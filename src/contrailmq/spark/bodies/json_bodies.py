"""JSON bodies: decoded by a schema in one C call a body (msgspec), or looked at to infer one.

A body is one JSON object. Its fields are taken by name, strictly: a text is not a number, 1.5 is not a whole number, a
value out of its type's range is refused. A timestamp is text as in RFC 3339 (UTC if it has no offset), binary is
base64 text.
Fields that the schema does not name are passed over. A missing field is null, unless the schema says NOT NULL.

Inferring gives whole numbers as bigint, other numbers as double, text as string; a field of which only null or empty
lists and objects were seen is left out.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Required, TypedDict

import msgspec
import pyarrow as pa

from contrailmq.spark.bodies.rows import Row, reason
from contrailmq.spark.bodies.types import SchemaError, list_of

_FIELDS_MAX: Final = 1000  # that are inferred: objects with ids as names would make a column of each
_NAME: Final = re.compile(r"\w{1,128}")
_DEPTH_MAX: Final = 16  # of what is inferred
# What msgspec and Python raise for a body: wrong JSON, numbers of thousands of digits, invalid UTF-8, deep nesting.
_REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
_FLOAT_MAX: Final = float.fromhex("0x1.fffffep+127")  # of 32 bits
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): bool,
    pa.float32(): Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
    pa.timestamp("us", tz="UTC"): datetime.datetime,
}


class JsonDecoder:
    """Decodes JSON objects by a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def __getstate__(self) -> pa.Schema:
        return self._schema

    def __setstate__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Row]:
        return msgspec.json.Decoder(_object(list(self._schema)))

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        decode = self._decoder.decode
        rows: list[Row | None] = []
        reasons: dict[int, str] = {}
        for number, body in enumerate(bodies):
            try:
                rows.append(decode(body))
            except _REFUSALS as exc:
                rows.append(None)
                reasons[number] = reason(exc)
        return rows, reasons


def _object(fields: Sequence[pa.Field]) -> Any:
    """A dictionary with these fields and no others."""
    types = {field.name: _value(field.type) for field in fields}
    for field in fields:
        types[field.name] = types[field.name] | None if field.nullable else Required[types[field.name]]
    return TypedDict("Fields", types, total=False)  # type: ignore[operator]


def _value(arrow: pa.DataType) -> Any:
    if pa.types.is_integer(arrow):
        limit = 2 ** (arrow.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if pa.types.is_decimal(arrow):
        return decimal.Decimal
    if pa.types.is_map(arrow):
        return dict.__class_getitem__((str, _value(arrow.item_type) | None))
    if pa.types.is_list(arrow):
        return list.__class_getitem__(_value(arrow.value_type) | None)
    if pa.types.is_struct(arrow):
        return _object([arrow.field(i) for i in range(arrow.num_fields)])
    return _PLAIN[arrow]


# ------------------------------------------------------------------------------------------------------- inferring


def infer(bodies: Iterable[bytes]) -> pa.DataType:
    """The type of the objects among the bodies: a struct, in which what is not known yet is null."""
    decode, found = msgspec.json.Decoder().decode, pa.struct([])
    for body in bodies:
        try:
            value = decode(body)
        except _REFUSALS:
            continue  # its row will have the reason
        if isinstance(value, dict):
            found = merged(found, _type_of(value, 0))
    return found


def _type_of(value: Any, depth: int) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if value is None or depth >= _DEPTH_MAX:
        return pa.null()
    if isinstance(value, list):
        element = pa.null()
        for item in value:
            element = merged(element, _type_of(item, depth + 1))
        return list_of(element)
    names: dict[str, str] = {}
    for name in value:
        if _NAME.fullmatch(name):
            names.setdefault(name.lower(), name)
    return pa.struct([(name, _type_of(value[name], depth + 1)) for name in names.values()])


def merged(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """A type for values of two types. Where they cannot be joined, it is the first: others will be bad rows."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(first) and pa.types.is_list(second):
        return list_of(merged(first.value_type, second.value_type))
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        types = {first.field(i).name: first.field(i).type for i in range(first.num_fields)}
        known = {name.lower() for name in types}
        for i in range(second.num_fields):
            field = second.field(i)
            if field.name in types:
                types[field.name] = merged(types[field.name], field.type)
            elif field.name.lower() not in known:
                types[field.name] = field.type
        if len(types) > _FIELDS_MAX:
            raise SchemaError(
                f"bodies have more than {_FIELDS_MAX} fields: give a schema, perhaps with a map<string,...>"
            )
        return pa.struct(list(types.items()))
    return first


def known_fields(found: pa.DataType) -> pa.Schema:
    """The schema of what was inferred, without what is not known yet."""
    known = _known(found)
    return pa.schema([] if known is None else [known.field(i) for i in range(known.num_fields)])


def _known(arrow: pa.DataType) -> pa.DataType | None:
    if pa.types.is_null(arrow):
        return None
    if pa.types.is_list(arrow):
        element = _known(arrow.value_type)
        return None if element is None else list_of(element)
    if not pa.types.is_struct(arrow):
        return arrow
    fields = [(arrow.field(i).name, _known(arrow.field(i).type)) for i in range(arrow.num_fields)]
    known = [(name, kind) for name, kind in fields if kind is not None]
    return pa.struct(known) if known else None
