"""Bodies as a typed column of both sources: `.option("bodyFormat", "json").option("schema", "id bigint, name string")`.

A read with `bodyFormat` has a column `data`, a struct with the fields of the schema (`select("data.*")` spreads them).
As in Spark's own readers a mode (`bodyMode`) says what becomes of a body that cannot be decoded: PERMISSIVE, which is
the default, gives null and the reason in `dataError`; FAILFAST ends the query with an error that names the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

import pyarrow as pa

from contrailmq.message import ContrailError
from contrailmq.spark.bodies.formats import BodyFormat, check_library, decoder_for, read_schema
from contrailmq.spark.bodies.registry import AskingDecoder, Registry, compiled, decoder_of
from contrailmq.spark.bodies.rows import BodyDecoder, struct_array
from contrailmq.spark.bodies.types import type_ddl
from contrailmq.spark.columns import DATA_COLUMN, DATA_ERROR_COLUMN, OptionError, View
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.options import Options

if TYPE_CHECKING:  # the planner of a `commitlog` stream needs no client
    from contrailmq.spark.sources.topic_plan import TopicSettings

_OF_FORMATS: Final = ("schema", "message", "registry", "subject", "bodyMode")
BODY_OPTIONS: Final = ("bodyFormat", *_OF_FORMATS)
_PLACE: Final = ("topic", "queueId", "queueOffset", "body")
_Settings = TypeVar("_Settings", LogSettings, "TopicSettings")


class BadBodyError(ContrailError):
    """A body cannot be decoded, and the query is to fail then."""


class TypedBodies(NamedTuple):
    """How bodies become a column."""

    decoder: BodyDecoder
    is_permissive: bool


def typed_bodies(options: Options, topics: tuple[str, ...] | frozenset[str] | None) -> TypedBodies | None:
    """What the options say of bodies, None if they stay bytes."""
    if options.text("bodyFormat") is None:
        options.refuse(_OF_FORMATS, "without bodyFormat")
        return None
    body = cast(BodyFormat, options.choice("bodyFormat", "json", "avro", "protobuf"))
    check_library(body)
    schema, registry, message = options.text("schema"), options.text("registry"), options.text("message")
    if (schema is None) == (registry is None):
        raise OptionError("option bodyFormat needs exactly one of the options schema and registry")
    is_permissive = options.choice("bodyMode", "permissive", "failfast") == "permissive"
    if schema is not None:
        options.refuse(("subject",), "without registry")
        return TypedBodies(decoder_for(read_schema(schema, body, message), body), is_permissive)
    assert registry is not None
    subject = options.text("subject") or (f"{next(iter(topics))}-value" if topics and len(topics) == 1 else None)
    if subject is None:
        raise OptionError("option registry needs the option subject where not just one topic is read")
    latest = compiled(Registry(registry).latest(subject))
    if latest.kind != body.upper():
        raise OptionError(
            f"option bodyFormat is {body}, and the subject {subject} is of kind {latest.kind}: correct it"
        )
    return TypedBodies(AskingDecoder(registry, decoder_of(latest, message).schema, message), is_permissive)


def typed_view(view: View, bodies: TypedBodies | None) -> View:
    """A view with the columns of typed bodies."""
    if bodies is None:
        return view
    if view.is_kafka_style:
        raise OptionError("columnStyle=kafka has fixed columns: leave it or bodyFormat out")
    arrow = pa.struct(list(bodies.decoder.schema))
    added = (DATA_COLUMN, DATA_ERROR_COLUMN) if bodies.is_permissive else (DATA_COLUMN,)
    return replace(view, columns=(*view.columns, *added), data=(type_ddl(arrow), arrow))


def read_typed(
    settings: _Settings, bodies: TypedBodies | None, read: Callable[[_Settings], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What `read` gives by settings, with typed bodies where the view has them."""
    if bodies is None:
        return read(settings)
    view = settings.view
    plain: list[str] = [name for name in view.columns if name not in (DATA_COLUMN, DATA_ERROR_COLUMN)]
    needed = tuple(dict.fromkeys((*plain, *_PLACE)))
    required = view.required | (frozenset(_PLACE) & View().required)
    inner = replace(view, columns=needed, data=None, required=required)
    return (_with_data(batch, view, bodies) for batch in read(replace(settings, view=inner)))


def _with_data(batch: pa.RecordBatch, view: View, bodies: TypedBodies) -> pa.RecordBatch:
    assert view.data is not None
    rows, reasons = bodies.decoder.decode(batch.column("body").to_pylist())
    data = struct_array(rows, view.data[1], reasons)
    if reasons and not bodies.is_permissive:
        number = min(reasons)
        topic, queue, offset = (batch.column(name)[number].as_py() for name in _PLACE[:3])
        raise BadBodyError(
            f"{topic}, queue {queue}, offset {offset}: the body cannot be decoded, {reasons[number]}; with "
            "bodyMode=PERMISSIVE such rows have a null and a reason"
        )
    errors = pa.array([reasons.get(number) for number in range(batch.num_rows)], pa.string())
    made = {DATA_COLUMN: data, DATA_ERROR_COLUMN: errors}
    arrays = [made[name] if name in made else batch.column(name) for name in view.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=view.arrow_schema())
