"""What a user asks for: which topics become tables, how bodies are read, and how each table is laid out.

[Orders]                                   # a section of the file for each topic
body = "json"                              # json, avro or protobuf
schema = "id bigint NOT NULL, at timestamp, amount decimal(12,2)"       # or the path of a file with it
table = "delta"                            # parquet, delta or iceberg
partition_by = ["_date", "region"]
sort_by = ["customer"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa

from contrailmq.message import ContrailError
from contrailmq.spark.bodies.formats import BodyFormat, is_path

TableFormat = Literal["parquet", "delta", "iceberg"]
_TIME: Final = pa.timestamp("us", tz="UTC")
DATE_COLUMN: Final = "_date"  # the day of the store time (UTC), if a table is partitioned by it
# A table's own columns -> those of a message. No field of a body may have such a name.
PLACE: Final[dict[str, tuple[str, pa.DataType]]] = {
    "_brokerName": ("brokerName", pa.string()),
    "_queueId": ("queueId", pa.int32()),
    "_queueOffset": ("queueOffset", pa.int64()),
    "_msgId": ("msgId", pa.string()),
    "_tags": ("tags", pa.string()),
    "_keys": ("keys", pa.string()),
    "_storeTimestamp": ("storeTimestamp", _TIME),
}
QUARANTINE: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("msgId", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("storeTimestamp", _TIME),
        ("reason", pa.string()),
        ("body", pa.binary()),
    ]
)
# What is read of a message.
READ_COLUMNS: Final = ("topic", *(source for source, _ in PLACE.values()), "physicalOffset", "body")


class TablesError(ContrailError):
    """Tables cannot be kept as asked."""


class TableSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one topic becomes a table."""

    body: BodyFormat = "json"
    schema: str | None = None  # or a file with it (formats.py); None: of the registry, or inferred from JSON
    message: str | None = None  # of Protobuf
    registry: str | None = None  # bodies begin with the id of a schema that it has
    incompatible: Literal["quarantine", "stop"] = "quarantine"  # rows of such a schema of the registry
    evolve: bool = False  # of an inferred schema: add the fields that later messages have
    table: TableFormat = "parquet"
    partition_by: tuple[str, ...] = (DATE_COLUMN,)
    sort_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()  # of a change stream: the table holds the newest row of each key
    delete: dict[str, list[str | int | bool]] = {}  # fields, and their values that delete the key
    buckets: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16  # a bucket of keys is rewritten if one of them changes


class FixedChoices(msgspec.Struct, frozen=True):
    """What cannot change once a table has rows."""

    body: str
    partition_by: tuple[str, ...]
    key: tuple[str, ...] = ()
    buckets: int = 0


def fixed_choices(spec: TableSpec) -> FixedChoices:
    return FixedChoices(spec.body, spec.partition_by, spec.key, spec.buckets if spec.key else 0)


_Specs = Annotated[dict[str, TableSpec], msgspec.Meta(min_length=1)]


def read_specs(path: str | Path) -> dict[str, TableSpec]:
    """Specs by topic from a TOML file. Paths of schemas are relative to it."""
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except tomllib.TOMLDecodeError as exc:
        raise TablesError(f"{path} is not TOML: {exc}") from exc
    return make_specs(tree, str(path), Path(path).parent)


def make_specs(tree: Mapping[str, Any], where: str, folder: Path = Path()) -> dict[str, TableSpec]:
    """Specs from plain values, checked."""
    try:
        found = msgspec.convert(tree, _Specs)
    except msgspec.ValidationError as exc:
        raise TablesError(f"{where} says of a table what cannot be: {exc}") from exc
    for topic, spec in found.items():
        if spec.key and spec.partition_by == (DATE_COLUMN,):  # nobody asked for it
            spec = found[topic] = msgspec.structs.replace(spec, partition_by=())
        _check(topic, spec)
        if spec.schema is not None and is_path(spec.schema, spec.body):
            found[topic] = msgspec.structs.replace(spec, schema=str(folder / spec.schema))
    return found


def _check(topic: str, spec: TableSpec) -> None:
    if spec.evolve and (spec.schema is not None or spec.registry is not None):
        raise TablesError(f"table {topic}: evolve is for inferred schemas, and one is given: change that instead")
    if spec.schema is not None and spec.registry is not None:
        raise TablesError(f"table {topic}: a schema and a registry are given: leave one of them out")
    if spec.body != "json" and spec.schema is None and spec.registry is None:
        raise TablesError(f"table {topic}: the schema of {spec.body} bodies cannot be inferred: give it, or a registry")
    if spec.message is not None and spec.body != "protobuf":
        raise TablesError(f"table {topic}: message is for protobuf bodies, and they are {spec.body}: leave it out")
    if spec.key and spec.partition_by:
        raise TablesError(f"table {topic}: a table with a key is laid out by its key: leave partition_by out")
    if spec.delete and not spec.key:
        raise TablesError(f"table {topic}: delete is for tables with a key: name it as key, or leave delete out")
    for name, columns in (("partition_by", spec.partition_by), ("sort_by", spec.sort_by), ("key", spec.key)):
        if len(set(columns)) < len(columns):
            raise TablesError(f"table {topic}: {name} names a column twice: {', '.join(columns)}")
