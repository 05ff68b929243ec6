"""The types of a body's fields: Arrow's, written down as Spark's DDL, and how the columns of a table follow them.

    schema := field ("," field)*        field := name [":"] type ["NOT NULL"]       name := word | `any text`
    type   := boolean | tinyint | smallint | int | bigint | float | double | decimal(p,s) | string | binary | date
            | timestamp | array<type> | map<string,type> | struct<field, ...>

A table holds wide types only: every whole number as bigint, float as double, decimals with 38 digits. So a field that
is widened in the schema (int to bigint, float to double, more digits) changes nothing in the table, and no file is
rewritten. A field that is added is a new column at the end, null in older rows. One that is removed keeps its column.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from contrailmq.spark.columns import OptionError

_TIME: Final = pa.timestamp("us", tz="UTC")
_DEPTH_MAX: Final = 32  # of nested types; Delta and Iceberg readers recurse over them
DECIMAL_DIGITS_MAX: Final = 38  # Spark's, Delta's and Iceberg's limit
_NAME_REFUSED: Final = re.compile(r"[ ,;{}()\n\t=`]")  # as Delta does
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_TOKEN: Final = re.compile(r"\s*(`[^`]*`|[A-Za-z_]\w*|\d+|[<>(),:])")
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _TIME,
}
_ALIASES: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_NAMES: Final = {arrow: name for name, arrow in _SIMPLE.items()}


class SchemaError(OptionError):
    """A schema cannot be read, or does not fit the table."""


class IncompatibleError(SchemaError):
    """A schema has a field with another type than the table's column."""


def parse_ddl(text: str) -> pa.Schema:
    """A schema from its DDL."""
    reader = _Reader(text)
    fields = reader.fields(end="", depth=0)
    check_names([field.name for field in fields])
    return pa.schema(fields)


def check_names(names: list[str]) -> None:
    """Refuse names that no table could have: Spark does not tell upper from lower case."""
    seen: dict[str, str] = {}
    for name in names:
        if not name or _NAME_REFUSED.search(name):
            raise SchemaError(
                f"the field {name!r} cannot be a column: a name has none of space , ; {{}} () = or backtick"
            )
        if name.lower() in seen:
            raise SchemaError(f"the fields {seen[name.lower()]} and {name} differ in case only: Spark cannot tell them")
        seen[name.lower()] = name


class _Reader:
    """Reads one DDL from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    def fields(self, *, end: str, depth: int) -> list[pa.Field]:
        found = []
        while True:
            name = self._take()
            if not (name.startswith("`") or _WORD.fullmatch(name)):
                raise self._error("the name of a field")
            if self._peek() == ":":
                self._take()
            arrow = self.type(depth)
            is_required = self._peek().lower() == "not"
            if is_required and (self._take(), self._take().lower())[1] != "null":
                raise self._error("NULL after NOT")
            found.append(pa.field(name.strip("`"), arrow, nullable=not is_required))
            following = self._take()
            if following == end:
                return found
            if following != ",":
                raise self._error(f"a comma or {end or 'the end'}")

    def type(self, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise SchemaError(f"the schema is nested deeper than {_DEPTH_MAX} levels: flatten it")
        word = self._take().lower()
        word = _ALIASES.get(word, word)
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word == "decimal":
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = list_of(self.type(depth + 1))
            self._expect(">")
            return element
        if word == "map":
            self._expect("<")
            if self._take().lower() != "string":
                raise self._error("string as the key of a map")
            self._expect(",")
            value = self.type(depth + 1)
            self._expect(">")
            return pa.map_(pa.string(), value)
        if word == "struct":
            self._expect("<")
            fields = self.fields(end=">", depth=depth + 1)
            check_names([field.name for field in fields])
            return pa.struct(fields)
        raise self._error(f"a type ({', '.join(_SIMPLE)}, decimal(p,s), array<>, map<string,>, struct<>)")

    def _decimal(self) -> pa.DataType:
        self._expect("(")
        digits = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not (0 < digits <= DECIMAL_DIGITS_MAX and scale <= digits):
            raise SchemaError(
                f"decimal({digits},{scale}): it has 1 to {DECIMAL_DIGITS_MAX} digits, and a scale up to that"
            )
        return pa.decimal128(digits, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdecimal():
            raise self._error("a number")
        return int(token)

    def _expect(self, sign: str) -> None:
        if self._take() != sign:
            raise self._error(sign)

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._place)
        return found[1] if found else ""

    def _take(self) -> str:
        found = _TOKEN.match(self._text, self._place)
        if found is None:
            if self._text[self._place :].strip():
                raise SchemaError(f"the schema has {self._text[self._place :].strip()[:20]!r}, which is no DDL")
            return ""
        self._place = found.end()
        return found[1]

    def _error(self, wanted: str) -> SchemaError:
        before = self._text[: self._place][-40:]
        return SchemaError(
            f"the schema ends with or has something else after {before!r} than {wanted}: {self._text!r:.200}"
        )


def ddl_of(schema: pa.Schema) -> str:
    """A schema as DDL; `parse_ddl` gives the same schema again."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def type_ddl(arrow: pa.DataType) -> str:
    """A type as DDL."""
    if arrow in _NAMES:
        return _NAMES[arrow]
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_map(arrow):
        return f"map<string,{type_ddl(arrow.item_type)}>"
    if pa.types.is_list(arrow):
        return f"array<{type_ddl(arrow.value_type)}>"
    assert pa.types.is_struct(arrow), arrow
    return f"struct<{', '.join(_field_ddl(arrow.field(i), ': ') for i in range(arrow.num_fields))}>"


def _field_ddl(field: pa.Field, between: str) -> str:
    name = field.name if _WORD.fullmatch(field.name) else f"`{field.name}`"
    return f"{name}{between}{type_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}"


def list_of(element: pa.DataType) -> pa.DataType:
    """A list as Spark and Parquet name its parts."""
    return pa.list_(pa.field("element", element))


def wide(arrow: pa.DataType) -> pa.DataType:
    """The type of a table's column for a field."""
    if pa.types.is_integer(arrow):
        return pa.int64()
    if pa.types.is_floating(arrow):
        return pa.float64()
    if pa.types.is_decimal(arrow):
        return pa.decimal128(DECIMAL_DIGITS_MAX, arrow.scale)
    if pa.types.is_map(arrow):
        return pa.map_(pa.string(), wide(arrow.item_type))
    if pa.types.is_list(arrow):
        return list_of(wide(arrow.value_type))
    if pa.types.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return pa.struct([pa.field(field.name, wide(field.type)) for field in fields])
    return arrow


def has_short_decimal(schema: pa.Schema) -> bool:
    """Whether a field, or a part of one, is a decimal of fewer digits than a table's."""
    return any(_is_short_decimal(field.type) for field in schema)


def _is_short_decimal(arrow: pa.DataType) -> bool:
    if pa.types.is_decimal(arrow):
        return bool(arrow.precision < DECIMAL_DIGITS_MAX)
    if pa.types.is_map(arrow):
        return _is_short_decimal(arrow.item_type)
    return any(_is_short_decimal(arrow.field(i).type) for i in range(arrow.num_fields))


def evolved(columns: pa.Schema, declared: pa.Schema) -> pa.Schema:
    """A table's columns with those that a schema adds. A field with another type than its column is an error."""
    check_names([*columns.names, *(name for name in declared.names if name not in columns.names)])
    found = list(columns)
    for field in declared:
        if field.name not in columns.names:
            found.append(pa.field(field.name, wide(field.type)))
        elif wide(field.type) != columns.field(field.name).type:
            raise IncompatibleError(
                f"field {field.name} is {type_ddl(field.type)}, and the table has it as "
                f"{type_ddl(columns.field(field.name).type)}"
            )
    return pa.schema(found)
