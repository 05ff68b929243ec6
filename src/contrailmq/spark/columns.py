"""The columns of a message as Spark sees them, and the choice of columns that a query makes.

Spark's Python sources cannot prune columns, so the choice is an option (`columns`, `properties`, `columnStyle`), and
what is not chosen is never decoded. One table below gives name, Spark type and Arrow type; the Arrow schema must equal
what Spark derives from the DDL exactly (order, nullability, `timestamp[us, UTC]`), else the query fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PropertiesForm = Literal["map", "string", "none"]
_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())

# name -> (Spark type, Arrow type)
COLUMNS: Final[dict[str, tuple[str, pa.DataType]]] = {
    "topic": ("string", pa.string()),
    "brokerName": ("string", pa.string()),
    "queueId": ("int", pa.int32()),
    "queueOffset": ("bigint", pa.int64()),
    "physicalOffset": ("bigint", pa.int64()),
    "msgId": ("string", pa.string()),
    "tags": ("string", pa.string()),
    "keys": ("string", pa.string()),
    "body": ("binary", pa.binary()),
    "properties": ("map<string,string>", _MAP),
    "flag": ("int", pa.int32()),
    "sysFlag": ("int", pa.int32()),
    "bornTimestamp": ("timestamp", _TIME),
    "storeTimestamp": ("timestamp", _TIME),
    "bornHost": ("string", pa.string()),
    "storeHost": ("string", pa.string()),
    "reconsumeTimes": ("int", pa.int32()),
}

# A record as it stands in the log. Only the archive asks for it: no source offers it, for it repeats the others.
RECORD_COLUMN: Final = "record"

# A body as a struct, and why it is none; only with the option bodyFormat (sources/typed_bodies.py).
DATA_COLUMN: Final = "data"
DATA_ERROR_COLUMN: Final = "dataError"

# What tasks tell of their reads (sources/task_metrics.py), after all other columns.
TASK_COLUMNS: Final[dict[str, tuple[str, pa.DataType]]] = {
    "readMicros": ("bigint", pa.int64()),
    "readRetries": ("int", pa.int32()),
    "taskRetries": ("int", pa.int32()),
}

# What a message need not have. All else is never null: Spark then asks no row whether it is, which is a tenth of the
# CPU of seventeen columns, and Parquet files keep no levels for it.
_NULLABLE: Final = frozenset({"brokerName", "tags", "keys"})

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Kafka's connector's columns -> (our column, Spark type, Arrow type)
KAFKA_COLUMNS: Final[dict[str, tuple[str, str, pa.DataType]]] = {
    "key": ("keys", "binary", pa.binary()),
    "value": ("body", "binary", pa.binary()),
    "topic": ("topic", "string", pa.string()),
    "partition": ("queueId", "int", pa.int32()),
    "offset": ("queueOffset", "bigint", pa.int64()),
    "timestamp": ("storeTimestamp", "timestamp", _TIME),
    "timestampType": ("", "int", pa.int32()),
    "headers": ("properties", "array<struct<key:string,value:binary>>", _HEADERS),
}
_LOG_APPEND_TIME: Final = 1  # Kafka's number for "the broker set the time", which a store time always is


class OptionError(ContrailError):
    """An option of a source or sink is missing, unknown or has a value that cannot be understood."""


@dataclass(frozen=True, slots=True)
class View:
    """Which columns a query gets and in what form. `columns` are our names, in order, also for Kafka's style.

    `required` are those whose schema says that they are never null; of Kafka's style, as in its connector, none is.
    """

    columns: tuple[str, ...] = tuple(COLUMNS)
    properties: PropertiesForm = "map"
    is_kafka_style: bool = False
    required: frozenset[str] = frozenset(COLUMNS) - _NULLABLE
    data: tuple[str, pa.DataType] | None = None  # of the column data, as DDL and Arrow's
    has_task_metrics: bool = False

    def ddl(self) -> str:
        """The schema as Spark wants it."""
        told = [f"{name} {spark} NOT NULL" for name, (spark, _) in TASK_COLUMNS.items() if self.has_task_metrics]
        if self.is_kafka_style:
            return ", ".join([*(f"{name} {spark}" for name, (_, spark, _) in KAFKA_COLUMNS.items()), *told])
        own = (f"{name} {self._types(name)[0]}{' NOT NULL' * (name in self.required)}" for name in self.columns)
        return ", ".join([*own, *told])

    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches that reach Spark, without what tasks tell of themselves."""
        if self.is_kafka_style:
            return pa.schema([(name, arrow) for name, (_, _, arrow) in KAFKA_COLUMNS.items()])
        return self.native_schema()

    def fitted(self, schema: StructType) -> View:
        """This view with the nulls that a schema allows, which the user may have given; its columns are fixed."""
        told = TASK_COLUMNS.keys() if self.has_task_metrics else frozenset[str]()
        shown = [*self.arrow_schema().names, *told]
        if schema.names != shown:
            raise OptionError(
                f"the given schema has columns {schema.names}, the source gives {shown}: "
                "leave .schema(...) out and use the option columns"
            )
        required = frozenset(field.name for field in schema.fields if not field.nullable)
        excess = sorted(required - (frozenset() if self.is_kafka_style else View().required) - told)
        if excess:
            raise OptionError(f"the given schema says NOT NULL of {', '.join(excess)}, which may be null: leave it out")
        return replace(self, required=required)

    def native_schema(self) -> pa.Schema:
        """The schema of batches in our own columns, before any restyling."""
        return pa.schema(
            [pa.field(name, self._types(name)[1], nullable=name not in self.required) for name in self.columns]
        )

    def wants(self, *names: str) -> bool:
        return any(name in self.columns for name in names)

    def _types(self, name: str) -> tuple[str, pa.DataType]:
        if name == "properties" and self.properties == "string":
            return "string", pa.string()
        if name == DATA_COLUMN and self.data is not None:
            return self.data
        if name == DATA_ERROR_COLUMN:
            return "string", pa.string()
        return ("binary", pa.binary()) if name == RECORD_COLUMN else COLUMNS[name]


def choose_view(columns: str | None = None, properties: str | None = None, style: str | None = None) -> View:
    """A view from option texts: `columns` a comma list, `properties` map, string or none, `style` native or kafka."""
    form = (properties or "map").lower()
    if form not in ("map", "string", "none"):
        raise OptionError(f"option properties is {properties!r}: it takes map, string or none")
    if (style or "native").lower() not in ("native", "kafka"):
        raise OptionError(f"option columnStyle is {style!r}: it takes native or kafka")
    if (style or "").lower() == "kafka":
        if columns or properties:
            raise OptionError("columnStyle=kafka has fixed columns: drop the options columns and properties, or select")
        ours = tuple(dict.fromkeys(ours for ours, _, _ in KAFKA_COLUMNS.values() if ours))
        return View(ours, "map", is_kafka_style=True, required=frozenset())
    by_lower = {name.lower(): name for name in COLUMNS}
    chosen: list[str] = []
    for text in (columns or ",".join(COLUMNS)).split(","):
        name = by_lower.get(text.strip().lower())
        if name is None:
            raise OptionError(f"option columns names {text.strip()!r}, which is not one of {', '.join(COLUMNS)}")
        if name not in chosen and not (name == "properties" and form == "none"):
            chosen.append(name)
    if not chosen:
        raise OptionError("option columns leaves no column: name at least one")
    return View(tuple(chosen), form)  # type: ignore[arg-type]


def styled(batch: pa.RecordBatch, view: View) -> pa.RecordBatch:
    """A batch of our columns in the view's style."""
    if not view.is_kafka_style:
        return batch
    arrays: list[pa.Array] = []
    for name, (ours, _, arrow) in KAFKA_COLUMNS.items():
        if name == "timestampType":
            arrays.append(pa.array([_LOG_APPEND_TIME] * batch.num_rows, arrow))
        elif name == "headers":
            maps = batch.column(ours)
            pairs = pa.StructArray.from_arrays([maps.keys, maps.items.cast(pa.binary())], names=["key", "value"])
            arrays.append(pa.ListArray.from_arrays(maps.offsets, pairs))
        else:
            arrays.append(batch.column(ours).cast(arrow))
    return pa.RecordBatch.from_arrays(arrays, schema=view.arrow_schema())
