"""Schemas from a registry with Confluent's API, and bodies that begin with the id of theirs.

    body := 0x00  schema_id:u32  [message_indexes]  payload        (big-endian; indexes for Protobuf only)

A schema never changes under its id, so it is asked for once. Only the driver of a job asks; tasks get what was found.
A registry that does not answer stops the job before anything is written. An id that it does not know makes bad rows.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from contrailmq.message import ContrailError
from contrailmq.spark.bodies.avro_bodies import AvroDecoder
from contrailmq.spark.bodies.json_bodies import JsonDecoder
from contrailmq.spark.bodies.json_schema import json_schema_fields
from contrailmq.spark.bodies.protobuf_bodies import ProtobufDecoder, compile_proto, message_at
from contrailmq.spark.bodies.rows import BodyDecoder, Row
from contrailmq.spark.bodies.types import SchemaError

MAGIC: Final = 0
HEAD_BYTES: Final = 5
_TIMEOUT_S: Final = 20.0
_REFERENCES_MAX: Final = 100
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024  # a schema has kilobytes
_NOT_FOUND: Final = 404


class RegistryError(ContrailError):
    """A registry does not answer, or not as one."""

    retriable = True


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema as the registry has it: its kind, its text, and the texts that it refers to, by name."""

    kind: str  # AVRO, JSON or PROTOBUF
    text: str
    references: dict[str, str] = {}


class Registry:
    """Asks one registry. A user and password may be in its address."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SchemaError(f"the registry {address!r} is not an address: give http://host:8081")
        place = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self._address = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
        user = f"{urllib.parse.unquote(parts.username or '')}:{urllib.parse.unquote(parts.password or '')}"
        self._signed = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if parts.username else {}

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of an id, None if the registry does not know it."""
        found = self._get(f"/schemas/ids/{schema_id}")
        return None if found is None else self._read(found)

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject."""
        found = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if found is None:
            raise SchemaError(f"the registry {self._address} has no subject {subject!r}: register its schema first")
        return self._read(found)

    def _read(self, found: dict[str, Any]) -> RegisteredSchema:
        texts: dict[str, str] = {}
        left = list(found.get("references", []))
        while left:
            wanted = left.pop()
            if wanted["name"] in texts:
                continue
            if len(texts) >= _REFERENCES_MAX:
                raise SchemaError(f"a schema refers to more than {_REFERENCES_MAX} others: register it as one")
            subject, version = urllib.parse.quote(wanted["subject"], safe=""), int(wanted["version"])
            part = self._get(f"/subjects/{subject}/versions/{version}")
            if part is None:
                raise SchemaError(f"the registry {self._address} lacks version {version} of {wanted['subject']!r}")
            texts[wanted["name"]] = part["schema"]
            left += part.get("references", [])
        return RegisteredSchema(found.get("schemaType", "AVRO"), found["schema"], texts)

    def _get(self, path: str) -> dict[str, Any] | None:
        import urllib.error  # 30 ms of every worker that asks no registry
        import urllib.request

        request = urllib.request.Request(self._address + path, headers=self._signed)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                found = json.loads(answer.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as exc:
            if exc.code == _NOT_FOUND:
                return None
            raise RegistryError(
                f"the registry {self._address} answers {exc.code} to {path}: nothing was written; check address "
                "and password, then run again"
            ) from exc
        except (OSError, ValueError) as exc:
            raise RegistryError(
                f"the registry {self._address} does not answer ({exc}): nothing was written; start it or correct the "
                "address, then run again"
            ) from exc
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise RegistryError(f"the registry {self._address} answers {path} with something else than a schema")
        return found


class RegistryDecoder:
    """Decodes bodies that begin with the id of their schema. `refused` has reasons for ids whose rows are bad."""

    def __init__(
        self,
        schemas: dict[int, RegisteredSchema],
        refused: dict[int, str],
        fields: pa.Schema,
        message: str | None = None,
    ) -> None:
        self._schemas, self._refused, self._fields, self._message = schemas, refused, fields, message
        self._decoders: dict[tuple[int, tuple[int, ...]], BodyDecoder] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._fields

    def __getstate__(self) -> tuple[Any, ...]:
        return self._schemas, self._refused, self._fields, self._message

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._schemas, self._refused, self._fields, self._message = state
        self._decoders = {}

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        rows: list[Row | None] = [None] * len(bodies)
        reasons: dict[int, str] = {}
        groups: dict[tuple[int, tuple[int, ...]], list[tuple[int, bytes]]] = {}
        for number, body in enumerate(bodies):
            try:
                schema_id, payload = split_head(body)
                known = self._schemas.get(schema_id)
                if schema_id in self._refused or known is None:
                    raise SchemaError(self._refused.get(schema_id, f"schema {schema_id} is not in the registry"))
                indexes: tuple[int, ...] = ()
                if known.kind == "PROTOBUF":
                    indexes, payload = split_indexes(payload)
                groups.setdefault((schema_id, indexes), []).append((number, payload))
            except SchemaError as exc:
                reasons[number] = str(exc)
        for group, members in groups.items():
            try:
                decoder = self._decoder(*group)
            except SchemaError as exc:
                reasons |= {number: str(exc) for number, _ in members}
                continue
            found, faults = decoder.decode([payload for _, payload in members])
            for place, (number, _) in enumerate(members):
                rows[number] = found[place]
                if place in faults:
                    reasons[number] = f"schema {group[0]}: {faults[place]}"
        return rows, reasons

    def _decoder(self, schema_id: int, indexes: tuple[int, ...]) -> BodyDecoder:
        key = (schema_id, indexes)
        if key not in self._decoders:
            self._decoders[key] = decoder_of(self._schemas[schema_id], self._message, indexes)
        return self._decoders[key]


class AskingDecoder(RegistryDecoder):
    """Asks the registry itself, once for each id that it meets: for reads without a job that could ask before."""

    def __init__(self, address: str, fields: pa.Schema, message: str | None = None) -> None:
        super().__init__({}, {}, fields, message)
        self._address = address

    def __getstate__(self) -> tuple[Any, ...]:
        return self._address, self._fields, self._message

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        address, fields, message = state
        super().__setstate__(({}, {}, fields, message))
        self._address = address

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        heads = {body[:HEAD_BYTES] for body in bodies if len(body) >= HEAD_BYTES and body[0] == MAGIC}
        for number in {split_head(head)[0] for head in heads} - self._schemas.keys() - self._refused.keys():
            found = Registry(self._address).schema(number)
            if found is None:
                continue  # it has a reason, and may be there with the next batch
            try:
                self._schemas[number] = compiled(found)
            except SchemaError as exc:
                self._refused[number] = f"schema {number}: {exc}"
        return super().decode(bodies)


def split_head(body: bytes) -> tuple[int, bytes]:
    """The id of a body's schema, and what follows."""
    if len(body) < HEAD_BYTES:
        raise SchemaError(f"{len(body)} bytes are too few for a schema's id: 5 are needed")
    if body[0] != MAGIC:
        raise SchemaError(f"the first byte is 0x{body[0]:02x}, not 0: it was not written with a registry")
    return int.from_bytes(body[1:HEAD_BYTES], "big"), body[HEAD_BYTES:]


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of a Protobuf message in its file, and what follows. A single 0 stands for the first message."""
    count, place = _zigzag(data, 0)
    if count == 0:
        return (0,), data[place:]
    if not 0 < count <= len(data):
        raise SchemaError(f"it claims {count} message indexes in {len(data)} bytes")
    indexes = []
    for _ in range(count):
        index, place = _zigzag(data, place)
        indexes.append(index)
    return tuple(indexes), data[place:]


def _zigzag(data: bytes, place: int) -> tuple[int, int]:
    """A number with a sign from its varint, and where it ends."""
    value = shift = 0
    while True:
        if place >= len(data) or shift > 35:
            raise SchemaError("the message indexes are cut short")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place


def decoder_of(
    schema: RegisteredSchema, message: str | None = None, indexes: tuple[int, ...] | None = None
) -> BodyDecoder:
    """The decoder of what was written by a schema, as `compiled` gave it.

    A Protobuf file has many messages; rows are those of one, the first unless it is named.
    """
    if schema.kind == "AVRO":
        return AvroDecoder(schema.text)
    if schema.kind == "JSON":
        return JsonDecoder(json_schema_fields(schema.text))
    if schema.kind == "PROTOBUF":
        files = base64.b64decode(schema.text)
        wanted = message or message_at(files, (0,))
        found = wanted if indexes is None else message_at(files, indexes)
        if found != wanted:
            raise SchemaError(f"it holds a {found}, and the rows are of {wanted}")
        return ProtobufDecoder(files, wanted)
    raise SchemaError(f"the registry has a schema of kind {schema.kind}: AVRO, JSON and PROTOBUF are known")


def compiled(schema: RegisteredSchema) -> RegisteredSchema:
    """A schema as tasks need it: of Protobuf a descriptor set, in base64, of Avro one text with what it refers to."""
    if schema.kind == "PROTOBUF":
        sources = {**schema.references, "registered.proto": schema.text}
        files = compile_proto(sources, "registered.proto")
        return RegisteredSchema("PROTOBUF", base64.b64encode(files).decode())
    if schema.references:
        raise SchemaError(f"a schema of kind {schema.kind} refers to others: register it as one")
    return schema
