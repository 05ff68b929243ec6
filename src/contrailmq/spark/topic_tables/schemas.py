"""The schema of each table before a run: as given, or inferred from what is to be read; checked against the table.

What messages hold is looked at in a pass of its own (`survey`), by the tasks, and only where it decides something: for
a topic without a schema until some of its messages were seen, and for topics that evolve with their messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.spark.bodies.json_bodies import JsonDecoder, infer, known_fields, merged
from contrailmq.spark.bodies.types import IncompatibleError, SchemaError, ddl_of, evolved, parse_ddl
from contrailmq.spark.topic_tables.row_files import TopicPlan
from contrailmq.spark.topic_tables.spec import (
    DATE_COLUMN,
    PLACE,
    TablesError,
    TableSpec,
    fixed_choices,
    is_path,
)
from contrailmq.spark.topic_tables.stored import StoredTable, load_table, save_table

_SAMPLE_ROWS: Final = 1000  # of a topic in each part that is looked at


class Question(NamedTuple):
    """What to find out of a topic. `is_sample`: its first messages do."""

    is_sample: bool


class Survey(NamedTuple):
    """What messages of a topic hold."""

    fields: pa.DataType

    def joined(self, other: Survey) -> Survey:
        return Survey(merged(self.fields, other.fields))


Surveys = dict[str, Survey]
Look = Callable[[Mapping[str, Question]], Surveys]  # runs `survey` where the messages are


def questions(target: Path, specs: Mapping[str, TableSpec]) -> dict[str, Question]:
    """The topics whose messages must be looked at before they are decoded."""
    found = {}
    for topic, spec in specs.items():
        if spec.schema is None and (spec.evolve or load_table(target, topic) is None):
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
                seen = Survey(infer(bodies.to_pylist()))
                found[topic] = found[topic].joined(seen) if topic in found else seen
        if not any(left.values()):
            break
    return found


def joined(parts: Iterable[Surveys]) -> Surveys:
    """What several tasks found, in their order."""
    found: Surveys = {}
    for part in parts:
        for topic, seen in part.items():
            found[topic] = found[topic].joined(seen) if topic in found else seen
    return found


def make_plans(target: Path, specs: Mapping[str, TableSpec], seen: Surveys) -> dict[str, TopicPlan]:
    """Plans of all topics that have a schema by now; what is new of a table is stored first."""
    plans = {}
    for topic, spec in specs.items():
        try:
            plan = _plan(target, topic, spec, seen.get(topic))
        except SchemaError as exc:
            raise TablesError(f"table {topic}: {exc}; {_remedy(exc)}") from exc
        if plan is not None:
            plans[topic] = plan
    return plans


def _remedy(exc: SchemaError) -> str:
    if isinstance(exc, IncompatibleError):
        return "nothing was written: give the field another name, or begin another table in another directory"
    return "nothing was written: correct the schema"


def _plan(target: Path, topic: str, spec: TableSpec, seen: Survey | None) -> TopicPlan | None:
    stored = load_table(target, topic)
    fixed = fixed_choices(spec)
    if stored is not None and stored.fixed != fixed:
        raise TablesError(
            f"table {topic} was begun with {_shown(stored.fixed)}, and {_shown(fixed)} is given: give the same again, "
            "or another directory"
        )
    declared = _declared(spec, stored, seen)
    if declared is None:
        return None
    columns = evolved(pa.schema([]) if stored is None else stored.schema(), declared)
    _check_columns(topic, spec, columns)
    now = StoredTable(fixed, ddl_of(columns), ddl_of(declared))
    if now != stored:
        save_table(target, topic, now)
    return TopicPlan(topic, JsonDecoder(declared), columns, spec.partition_by, spec.sort_by)


def _declared(spec: TableSpec, stored: StoredTable | None, seen: Survey | None) -> pa.Schema | None:
    """The schema of bodies, None if nothing tells it yet."""
    if spec.schema is not None:
        return parse_ddl(_schema_text(spec.schema))
    known = None if stored is None else parse_ddl(stored.declared)
    if seen is None:
        return known
    found = known_fields(seen.fields)
    if known is None:
        return found if len(found) else None
    return pa.schema([*known, *(field for field in found if field.name.lower() not in _lower(known.names))])


def _lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}


def _schema_text(schema: str) -> str:
    return Path(schema).read_text() if is_path(schema) else schema


def _shown(fixed: msgspec.Struct) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in msgspec.structs.asdict(fixed).items())


def _check_columns(topic: str, spec: TableSpec, columns: pa.Schema) -> None:
    """Refuse fields with the names of a table's own columns, and a layout by columns that are not there."""
    own = {name.lower() for name in (*PLACE, DATE_COLUMN)}
    taken = [name for name in columns.names if name.lower() in own]
    if taken:
        raise SchemaError(f"the field {taken[0]} has the name of a column that every table has")
    there = {**{name: arrow for name, (_, arrow) in PLACE.items()}, DATE_COLUMN: pa.date32()}
    there |= {field.name: field.type for field in columns}
    for option, names in (("partition_by", spec.partition_by), ("sort_by", spec.sort_by)):
        for name in names:
            if name not in there:
                raise SchemaError(f"{option} names {name!r}, which is not a column: there are {', '.join(there)}")
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
