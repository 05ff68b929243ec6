"""The three forms of bodies, and how a schema is given for each: as text or by the path of a file.

| body | schema |
| json | DDL, or a file with it (.ddl, .sql, .txt) |
| avro | the JSON of an Avro schema, or a file with it (.avsc, .json) |
| protobuf | a .proto file, which is compiled here, or a descriptor set (.desc, .pb, .binpb) |

What was read is one text (`declared`), by which tasks decode and which is stored beside a table.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final, Literal

import msgspec

from contrailmq.spark.bodies.avro_bodies import AvroDecoder, check_avro
from contrailmq.spark.bodies.json_bodies import JsonDecoder
from contrailmq.spark.bodies.protobuf_bodies import ProtobufDecoder, check_protobuf, compile_file
from contrailmq.spark.bodies.rows import BodyDecoder
from contrailmq.spark.bodies.types import SchemaError, ddl_of, parse_ddl

BodyFormat = Literal["json", "avro", "protobuf"]
_SUFFIXES: Final[dict[str, tuple[str, ...]]] = {
    "json": (".ddl", ".sql", ".txt"),
    "avro": (".avsc", ".json"),
    "protobuf": (".proto", ".desc", ".pb", ".binpb"),
}


class _Descriptor(msgspec.Struct):
    """A Protobuf schema as text."""

    message: str | None
    files: str  # a descriptor set in base64


def is_path(schema: str, body: str) -> bool:
    """Whether a schema is named by a file."""
    return Path(schema).suffix in _SUFFIXES[body]


def read_schema(schema: str, body: BodyFormat, message: str | None = None) -> str:
    """What a user gave as schema, as one text. A file is read here."""
    if body != "protobuf" and message is not None:
        raise SchemaError(f"a message is named, and bodies are {body}: only Protobuf has messages")
    if body == "protobuf":
        if not is_path(schema, body):
            raise SchemaError(f"the schema {schema[:80]!r} is no file: give a .proto file or a descriptor set (.desc)")
        path = _existing(schema)
        files = compile_file(path) if path.suffix == ".proto" else path.read_bytes()
        return msgspec.json.encode(_Descriptor(message, base64.b64encode(files).decode())).decode()
    text = _existing(schema).read_text() if is_path(schema, body) else schema
    return ddl_of(parse_ddl(text)) if body == "json" else text


def _existing(schema: str) -> Path:
    path = Path(schema)
    if not path.is_file():
        raise SchemaError(f"there is no file {schema}: check the path of the schema")
    return path


def decoder_for(declared: str, body: BodyFormat) -> BodyDecoder:
    """The decoder of bodies by what `read_schema` gave."""
    if body == "json":
        return JsonDecoder(parse_ddl(declared))
    if body == "avro":
        return AvroDecoder(declared)
    descriptor = msgspec.json.decode(declared, type=_Descriptor)
    return ProtobufDecoder(base64.b64decode(descriptor.files), descriptor.message)


def check_library(body: BodyFormat) -> None:
    """Refuse to begin without what a form of bodies needs."""
    if body == "avro":
        check_avro()
    if body == "protobuf":
        check_protobuf()
