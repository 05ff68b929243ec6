"""The schema of each table before a run: as given, or inferred from what is to be read; checked against the table.

What messages hold is looked at in a pass of its own (`survey`), by the tasks, and only where it decides something: for
a topic without a schema until some of its messages were seen, for topics that evolve with their messages, and for the
ids of schemas that a registry has. Only the driver asks the registry; what it answered is stored with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.spark.bodies.formats import decoder_for, read_schema
from contrailmq.spark.bodies.json_bodies import infer, known_fields, merged
from contrailmq.spark.bodies.registry import (
    HEAD_BYTES,
    MAGIC,
    RegisteredSchema,
    Registry,
    RegistryDecoder,
    compiled,
    decoder_of,
    split_head,
)
from contrailmq.spark.bodies.rows import BodyDecoder, RefusingDecoder
from contrailmq.spark.bodies.types import IncompatibleError, SchemaError, ddl_of, evolved, parse_ddl
from contrailmq.spark.topic_tables.keys import DELETED_COLUMN, LOG_COLUMN
from contrailmq.spark.topic_tables.row_files import TopicPlan
from contrailmq.spark.topic_tables.spec import DATE_COLUMN, PLACE, TablesError, TableSpec, fixed_choices
from contrailmq.spark.topic_tables.stored import StoredTable, load_table, save_table

_OWN: Final = frozenset(name.lower() for name in (*PLACE, DATE_COLUMN, DELETED_COLUMN, LOG_COLUMN))
_SAMPLE_ROWS: Final = 1000  # of a topic in each part that is looked at


class Question(NamedTuple):
    """What to find out of a topic: the ids of schemas, else its fields. `is_sample`: its first messages do."""

    is_sample: bool
    is_of_ids: bool = False


class Survey(NamedTuple):
    """What messages of a topic hold."""

    fields: pa.DataType = pa.null()
    ids: frozenset[int] = frozenset()

    def joined(self, other: Survey) -> Survey:
        return Survey(merged(self.fields, other.fields), self.ids | other.ids)


Surveys = dict[str, Survey]


def questions(target: Path, specs: Mapping[str, TableSpec]) -> dict[str, Question]:
    """The topics whose messages must be looked at before they are decoded."""
    found = {}
    for topic, spec in specs.items():
        if spec.registry is not None:
            found[topic] = Question(is_sample=False, is_of_ids=True)
        elif spec.schema is None and (spec.evolve or load_table(target, topic) is None):
            found[topic] = Question(is_sample=not spec.evolve)
    return found


def survey(batches: Iterable[pa.RecordBatch], asked: Mapping[str, Question]) -> Surveys:
    """Look at the messages of one task, at no more than are needed."""
    found: Surveys = {}
    left = {topic: _SAMPLE_ROWS if question.is_sample else 2**63 for topic, question in asked.items()}
    for batch in batches:
        topics = batch.column("topic")
        for topic in topics.unique().to_pylist():
            if left.get(topic, 0) > 0:
                bodies = batch.column("body").filter(pc.equal(topics, topic)).slice(0, min(left[topic], 2**31))
                left[topic] -= len(bodies)
                seen = _seen(bodies, asked[topic])
                found[topic] = found[topic].joined(seen) if topic in found else seen
        if not any(left.values()):
            break
    return found


def _seen(bodies: pa.BinaryArray, question: Question) -> Survey:
    if not question.is_of_ids:
        return Survey(infer(bodies.to_pylist()))
    heads = pc.binary_slice(bodies, 0, HEAD_BYTES).unique().to_pylist()
    return Survey(ids=frozenset(split_head(h)[0] for h in heads if len(h) == HEAD_BYTES and h[0] == MAGIC))


def joined(parts: Iterable[Surveys]) -> Surveys:
    """What several tasks found, in their order."""
    found: Surveys = {}
    for part in parts:
        for topic, seen in part.items():
            found[topic] = found[topic].joined(seen) if topic in found else seen
    return found


def make_plans(target: Path, specs: Mapping[str, TableSpec], seen: Surveys) -> dict[str, TopicPlan]:
    """Plans of all topics; what is new of a table is stored first."""
    plans = {}
    for topic, spec in specs.items():
        try:
            plans[topic] = _plan(target, topic, spec, seen.get(topic))
        except SchemaError as exc:
            raise TablesError(f"table {topic}: {exc}; {_remedy(exc)}") from exc
    return plans


def _remedy(exc: SchemaError) -> str:
    if isinstance(exc, IncompatibleError):
        return "nothing was written: give the field another name, or begin another table in another directory"
    return "nothing was written: correct the schema"


def _plan(target: Path, topic: str, spec: TableSpec, seen: Survey | None) -> TopicPlan:
    stored = load_table(target, topic)
    fixed = fixed_choices(spec)
    if stored is not None and stored.fixed != fixed:
        raise TablesError(
            f"table {topic} was begun with {_shown(stored.fixed)}, and {_shown(fixed)} is given: give the same again, "
            "or another directory"
        )
    if spec.registry is not None:
        now, decoder = _by_registry(spec, stored or StoredTable(fixed, "", ""), seen or Survey())
    else:
        declared = _declared(spec, stored, seen)
        if declared is None:
            return _nothing_but_bad(topic, RefusingDecoder("no schema is known, and the first messages show no field"))
        decoder = decoder_for(declared, spec.body)
        columns = evolved(pa.schema([]) if stored is None else stored.schema(), decoder.schema)
        now = StoredTable(fixed, ddl_of(columns), declared)
    if not now.columns:
        return _nothing_but_bad(topic, decoder)
    _check_columns(spec, now.schema())
    if now != stored:
        save_table(target, topic, now)
    return _topic_plan(topic, decoder, now.schema(), spec)


def _nothing_but_bad(topic: str, decoder: BodyDecoder) -> TopicPlan:
    """The plan of a topic without any schema that could be read: all of its rows are bad."""
    return TopicPlan(topic, decoder, pa.schema([]), (), ())


def _topic_plan(topic: str, decoder: BodyDecoder, columns: pa.Schema, spec: TableSpec) -> TopicPlan:
    delete = tuple((name, tuple(values)) for name, values in spec.delete.items())
    return TopicPlan(topic, decoder, columns, spec.partition_by, spec.sort_by, spec.key, delete, spec.buckets)


def _declared(spec: TableSpec, stored: StoredTable | None, seen: Survey | None) -> str | None:
    """The schema of bodies as text, None if nothing tells it yet."""
    if spec.schema is not None:
        return read_schema(spec.schema, spec.body, spec.message)
    if seen is None:
        return None if stored is None else stored.declared
    found = pa.schema([field for field in known_fields(seen.fields) if field.name.lower() not in _OWN])
    if stored is None:
        return ddl_of(found) if len(found) else None
    known = parse_ddl(stored.declared)
    return ddl_of(pa.schema([*known, *(field for field in found if field.name.lower() not in _lower(known.names))]))


def _by_registry(spec: TableSpec, stored: StoredTable, seen: Survey) -> tuple[StoredTable, BodyDecoder]:
    """The table with the schemas of new ids, each in its turn, and the decoder of all."""
    assert spec.registry is not None
    registry, columns = Registry(spec.registry), stored.schema()
    schemas = {int(number): schema for number, schema in stored.schemas.items()}
    refused = {int(number): text for number, text in stored.refused.items()}
    unknown: dict[int, str] = {}  # not stored: one day the registry may have them
    for number in sorted(seen.ids - schemas.keys()):
        found = registry.schema(number)
        if found is None:
            unknown[number] = f"schema {number} is not in the registry"
            continue
        schemas[number] = found
        try:
            schemas[number], columns = _next_schema(spec, found, columns)
        except SchemaError as exc:
            if spec.incompatible == "stop":
                raise type(exc)(f"schema {number} of the registry: {exc}") from exc
            refused[number] = f"schema {number}: {exc}"
    texts = {str(number): schema for number, schema in sorted(schemas.items())}
    faults = {str(number): text for number, text in sorted(refused.items())}
    now = StoredTable(stored.fixed, ddl_of(columns), "", texts, faults)
    return now, RegistryDecoder(schemas, {**refused, **unknown}, columns, spec.message)


def _next_schema(spec: TableSpec, found: RegisteredSchema, columns: pa.Schema) -> tuple[RegisteredSchema, pa.Schema]:
    """A schema as tasks need it, and the columns with those that it adds."""
    if found.kind != spec.body.upper():
        raise SchemaError(f"it is of kind {found.kind}, and bodies are {spec.body}")
    ready = compiled(found)
    after = evolved(columns, decoder_of(ready, spec.message).schema)
    _check_columns(spec, after)
    return ready, after


def _lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}


def _shown(fixed: msgspec.Struct) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in msgspec.structs.asdict(fixed).items())


def _check_columns(spec: TableSpec, columns: pa.Schema) -> None:
    """Refuse fields with the names of a table's own columns, and a layout by columns that are not there."""
    taken = [name for name in columns.names if name.lower() in _OWN]
    if taken:
        raise SchemaError(f"the field {taken[0]} has the name of a column that every table has")
    there = {**{name: arrow for name, (_, arrow) in PLACE.items()}, DATE_COLUMN: pa.date32()}
    there |= {field.name: field.type for field in columns}
    for option, names in (
        ("partition_by", spec.partition_by),
        ("sort_by", spec.sort_by),
        ("key", spec.key),
        ("delete", spec.delete),
    ):
        for name in names:
            if name not in there or (option in ("key", "delete") and name not in columns.names):
                raise SchemaError(f"{option} names {name!r}, which is not a column: there are {', '.join(there)}")
    for name in spec.key:
        if there[name] not in (pa.string(), pa.int64(), pa.bool_(), pa.date32()):
            raise SchemaError(f"key names {name!r}, a {there[name]}: it takes text, whole numbers, booleans, dates")
    for name in spec.partition_by:
        kind = there[name]
        if not (
            pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or kind == pa.date32()
        ):
            raise SchemaError(
                f"partition_by names {name!r}, which is {kind}: it takes text, whole numbers, booleans, dates"
            )
        if name in PLACE and name not in ("_brokerName", "_queueId", "_tags"):
            raise SchemaError(f"partition_by names {name!r}, which differs in every row: name a coarser column")
