"""Protobuf bodies: one message each, decoded by its descriptor (a set as `protoc --descriptor_set_out` gives it).

Numbers without a sign take the next wider type (uint64 a decimal), enums are text by their names, Timestamp is a
timestamp, and the wrappers (StringValue ...) are values that may be null. A field without presence has its default
where it was not sent, as for every reader of Protobuf; others are null. Refused are messages that hold themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.bodies.rows import Row, reason
from contrailmq.spark.bodies.types import SchemaError, check_names, list_of

_NAMES_OF_TYPES: Final[dict[str, pa.DataType]] = {
    "DOUBLE": pa.float64(), "FLOAT": pa.float32(), "INT64": pa.int64(), "SINT64": pa.int64(), "SFIXED64": pa.int64(),
    "UINT64": pa.decimal128(20, 0), "FIXED64": pa.decimal128(20, 0), "INT32": pa.int32(), "SINT32": pa.int32(),
    "SFIXED32": pa.int32(), "UINT32": pa.int64(), "FIXED32": pa.int64(), "BOOL": pa.bool_(), "STRING": pa.string(),
    "BYTES": pa.binary(), "ENUM": pa.string(),
}  # fmt: skip
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_Convert = Callable[[Any], Any]


class ProtobufDecoder:
    """Decodes messages of one type. `files` is a serialized FileDescriptorSet, imports first."""

    def __init__(self, files: bytes, message: str | None = None) -> None:
        self._files, self._message = files, message
        self._fields = _fields(self._descriptor)

    @property
    def schema(self) -> pa.Schema:
        return self._fields

    def __getstate__(self) -> tuple[bytes, str | None, pa.Schema]:
        return self._files, self._message, self._fields

    def __setstate__(self, state: tuple[bytes, str | None, pa.Schema]) -> None:
        self._files, self._message, self._fields = state

    @cached_property
    def _descriptor(self) -> Any:
        return _find(self._files, self._message)

    @cached_property
    def _class(self) -> Any:
        from google.protobuf import message_factory

        return message_factory.GetMessageClass(self._descriptor)

    @cached_property
    def _convert(self) -> _Convert:
        return _message_to_dict(self._descriptor)

    def decode(self, bodies: Sequence[bytes]) -> tuple[list[Row | None], dict[int, str]]:
        from google.protobuf.message import DecodeError

        make, convert = self._class, self._convert
        rows: list[Row | None] = []
        reasons: dict[int, str] = {}
        for number, body in enumerate(bodies):
            try:
                message = make()
                message.ParseFromString(body)
                rows.append(convert(message))
            except (DecodeError, ValueError, UnicodeError, OverflowError) as exc:
                rows.append(None)
                reasons[number] = f"not a {self._descriptor.full_name}: {reason(exc)}"
        return rows, reasons


def check_protobuf() -> None:
    """Refuse to go on without the library."""
    try:
        import google.protobuf  # noqa: F401
    except ImportError as exc:
        raise SchemaError(
            "Protobuf bodies need protobuf: pip install 'contrailmq[protobuf]', on Spark's workers too (pip install "
            "protobuf)"
        ) from exc


def compile_proto(sources: dict[str, str], name: str) -> bytes:
    """A descriptor set of one of several .proto texts, which are given by the names that they import each other by."""
    with TemporaryDirectory() as folder:
        for file, text in sources.items():
            path = Path(folder, file)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise SchemaError(f"the .proto file {file!r} is outside its directory: name it without ..")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return compile_file(Path(folder, name))


def compile_file(path: Path) -> bytes:
    """A descriptor set of a .proto file and what it imports, from its directory on."""
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError as exc:
        raise SchemaError(
            "a schema as .proto needs grpcio-tools where the job is started: pip install 'contrailmq[protobuf]', or "
            "give a descriptor set (protoc --include_imports --descriptor_set_out=orders.desc orders.proto)"
        ) from exc
    known = Path(grpc_tools.__file__).parent / "_proto"
    with TemporaryDirectory() as folder:
        out = Path(folder, "found.desc")
        words = ["protoc", f"-I{path.parent}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*words, path.name]) != 0 or not out.exists():
            raise SchemaError(f"protoc does not take {path.name}, as it says above: correct it, and give its imports")
        return out.read_bytes()


def message_at(files: bytes, indexes: Sequence[int]) -> str:
    """The name of a message by its place in the last file of a set: the third, and of those inside it the first."""
    check_protobuf()
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(files).file[-1]
    held, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if not 0 <= index < len(held):
            raise SchemaError(f"it names message {list(indexes)} of {file.name}, which has no such one")
        names.append(held[index].name)
        held = held[index].nested_type
    return ".".join(names)


def _find(files: bytes, message: str | None) -> Any:
    check_protobuf()
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(files)
        for file in found.file:
            pool.Add(file)
        if not found.file:
            raise SchemaError("the descriptor set is empty: make it with protoc --include_imports --descriptor_set_out")
        return pool.FindMessageTypeByName(message or message_at(files, [0]))
    except KeyError as exc:
        held = [f"{file.package}.{m.name}".lstrip(".") for file in found.file for m in file.message_type]
        raise SchemaError(f"the descriptor set has no message {message!r}: it has {', '.join(held)}") from exc
    except (DecodeError, TypeError) as exc:
        raise SchemaError(f"the file is no descriptor set with all of its imports ({reason(exc)})") from exc


def _fields(descriptor: Any) -> pa.Schema:
    arrow = _struct(descriptor, ())
    check_names([arrow.field(i).name for i in range(arrow.num_fields)])
    return pa.schema([arrow.field(i) for i in range(arrow.num_fields)])


def _struct(descriptor: Any, outer: tuple[str, ...]) -> pa.DataType:
    if descriptor.full_name in outer:
        raise SchemaError(f"the message {descriptor.full_name} holds itself: a table has no such type")
    inner = (*outer, descriptor.full_name)
    return pa.struct([pa.field(field.name, _type(field, inner)) for field in descriptor.fields if _has_fields(field)])


def _has_fields(field: Any) -> bool:
    """Whether a field has a column: a message without fields has none."""
    kind = field.message_type
    return kind is None or bool(kind.fields) or kind.full_name in _WRAPPERS


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        return pa.map_(pa.string(), _single(field.message_type.fields_by_name["value"], outer))
    single = _single(field, outer)
    return list_of(single) if field.is_repeated else single


def _single(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    kind = field.message_type
    if kind is None:
        return _NAMES_OF_TYPES[_name_of_type(field)]
    if kind.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if kind.full_name in _WRAPPERS:
        return _single(kind.fields_by_name["value"], outer)
    return _struct(kind, outer)


def _name_of_type(field: Any) -> str:
    from google.protobuf import descriptor_pb2

    return str(descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _message_to_dict(descriptor: Any) -> _Convert:
    parts = [(field.name, _getter(field)) for field in descriptor.fields if _has_fields(field)]

    def convert(message: Any) -> Row:
        return {name: get(message) for name, get in parts}

    return convert


def _getter(field: Any) -> _Convert:
    name = field.name
    if _is_map(field):
        item, is_text = _converter(field.message_type.fields_by_name["value"]), _key_is_text(field)
        return lambda message: [
            (key if is_text else str(key).lower() if isinstance(key, bool) else str(key), item(value))
            for key, value in getattr(message, name).items()
        ]
    convert = _converter(field)
    if field.is_repeated:
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _key_is_text(field: Any) -> bool:
    return _name_of_type(field.message_type.fields_by_name["key"]) == "STRING"


def _converter(field: Any) -> _Convert:
    """How one value of a field becomes one of a row."""
    kind = field.message_type
    if kind is not None and kind.full_name == _TIMESTAMP:
        return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
    if kind is not None and kind.full_name in _WRAPPERS:
        inner = _converter(kind.fields_by_name["value"])
        return lambda value: inner(value.value)
    if kind is not None:
        return _message_to_dict(kind)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda value: names.get(value, str(value))
    if _name_of_type(field) in ("UINT64", "FIXED64"):
        from decimal import Decimal

        return Decimal
    return lambda value: value
