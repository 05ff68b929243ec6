"""Shows one body by its schema, as a program of its own: `python -m contrailmq.console.model.body_decoder < task`.

Bodies and schemas come from anybody. A few bytes can claim a list of 2^60 nulls, nest a million records or unpack to
gigabytes, and then the libraries fill the memory or overrun their stack, in C, where no exception is raised. So they
run in a process with little memory and a few seconds. `schemas.py` starts it and says how it ended.

    body := avro_file | [0x00 schema_id:u32 [message_indexes]] payload         (a registry's head; indexes for Protobuf)

A file in Avro's own form holds its schema. Any other body needs one, and must fit it to the last byte. One that begins
with 0 is read as if it had a registry's head, and if that does not fit, without.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

AVRO_FILE: Final = b"Obj\x01"  # how a file in Avro's own form begins
KINDS: Final = {".avsc": "Avro", ".proto": "Protobuf", ".desc": "Protobuf", ".pb": "Protobuf", ".binpb": "Protobuf"}
SAID: Final = "said"  # the file that standard error goes to: protoc complains there, past Python
CPU_S: Final = 4  # a body of four megabytes takes one
MEMORY_BYTES: Final = 256 << 20  # of addresses; Python with either library takes 30 MiB of them
SHOWN_CHARS_MAX: Final = 64 * 1024  # as for text and hex
_RECORDS_MAX: Final = 100  # of a file in Avro's own form
_REASON_CHARS_MAX: Final = 300  # a reason may quote the body
_HEAD_BYTES: Final = 5


class DecodeTask(msgspec.Struct):
    """A body and the path of its schema, which is empty for a file in Avro's own form."""

    body: bytes
    path: str = ""
    message: str = ""  # of a Protobuf schema; empty for the one that the body names, or the first


class DecodedBody(msgspec.Struct):
    """A body as JSON, or the reason why there is none."""

    kind: str = ""  # Avro or Protobuf
    text: str = ""
    remark: str = ""  # what is to be known beside the text
    fault: str = ""
    message: str = ""  # which message of a Protobuf schema was taken
    messages: list[str] = []  # all that the schema has


class _Fault(Exception):
    """Its text is for the page."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=DecodeTask)
    sys.stdout.buffer.write(msgspec.json.encode(decoded(task)))


def decoded(task: DecodeTask) -> DecodedBody:
    """What the page shows. Raises nothing."""
    found = DecodedBody("Avro" if _is_avro_file(task) else KINDS[Path(task.path).suffix])
    try:
        if _is_avro_file(task):
            _read_avro_file(task, found)
        elif found.kind == "Avro":
            _read_avro(task, found)
        else:
            _read_protobuf(task, found)
    except _Fault as exc:
        found.fault = str(exc)
    except MemoryError:
        found.fault = f"it takes more than {MEMORY_BYTES >> 20} MiB of memory"
    except Exception as exc:  # noqa: BLE001  two libraries raise what they like, and the page shows one sentence
        found.fault = _reason(exc)
    if len(found.text) > SHOWN_CHARS_MAX:
        found.text = found.text[:SHOWN_CHARS_MAX]
        found.remark += ", the first 64 KiB"
    return found


def _is_avro_file(task: DecodeTask) -> bool:
    return task.body.startswith(AVRO_FILE)


# --- Avro


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise _Fault("this needs fastavro, which is not installed: pip install 'contrailmq[avro]'") from None
    return fastavro


def _read_avro_file(task: DecodeTask, found: DecodedBody) -> None:
    records = list(islice(_fastavro().reader(BytesIO(task.body)), _RECORDS_MAX + 1))
    found.text = _json(records[:_RECORDS_MAX])
    found.remark = "a file with its own schema"
    if len(records) > _RECORDS_MAX:
        found.remark += f", the first {_RECORDS_MAX} records"


def _read_avro(task: DecodeTask, found: DecodedBody) -> None:
    library = _fastavro()
    try:
        schema = library.parse_schema(json.loads(Path(task.path).read_bytes()))
    except Exception as exc:  # noqa: BLE001  as above
        raise _Fault(f"it is no Avro schema: {_reason(exc)}") from None
    reasons = []
    for payload, found.remark in _payloads(task.body):
        data = BytesIO(payload)
        try:
            value = library.schemaless_reader(data, schema, None)
        except MemoryError:
            raise
        except Exception as exc:  # noqa: BLE001  as above
            reasons.append(_reason(exc))
            continue
        if data.tell() == len(payload):
            found.text = _json(value)
            return
        reasons.append(f"{len(payload) - data.tell()} of {len(payload)} bytes are left")
    found.remark = ""
    raise _Fault(f"the body does not fit the schema: {reasons[-1]}")


def _payloads(body: bytes) -> Iterator[tuple[bytes, str]]:
    """What may be the record, with a remark."""
    if body[:1] == b"\0" and len(body) >= _HEAD_BYTES:
        yield body[_HEAD_BYTES:], _of_registry(body)
    yield body, ""


def _of_registry(body: bytes) -> str:
    return f"schema {int.from_bytes(body[1:_HEAD_BYTES], 'big')} of a registry"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    """Bytes as hex; dates, decimals and uuids as they are written."""
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)


# --- Protobuf


def _read_protobuf(task: DecodeTask, found: DecodedBody) -> None:
    try:
        from google.protobuf import json_format, message_factory
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet
    except ImportError:
        raise _Fault("this needs protobuf, which is not installed: pip install 'contrailmq[protobuf]'") from None
    path = Path(task.path)
    files = _file_set(_compiled(path) if path.suffix == ".proto" else path.read_bytes())
    found.messages = list(_names(files.file[-1].message_type, files.file[-1].package))
    payload, named = task.body, ""
    if payload[:1] == b"\0":  # no message begins so: there is no field 0
        found.remark, (named, payload) = _of_registry(payload), _named(payload[_HEAD_BYTES:], files.file[-1])
    found.message = task.message or named or next(iter(found.messages), "")
    message = message_factory.GetMessageClass(_descriptor(files, found.message))()
    try:
        message.ParseFromString(payload)
    except DecodeError as exc:
        raise _Fault(f"the body is no {found.message}: {_reason(exc)}") from None
    found.text = json_format.MessageToJson(
        message, preserving_proto_field_name=True, ensure_ascii=False, always_print_fields_with_no_presence=True
    )
    fields: Any = UnknownFieldSet(message)
    if unknown := sorted({field.field_number for field in fields}):
        said = f"the schema does not have {len(unknown)} of its fields: {', '.join(map(str, unknown[:10]))}"
        found.remark = f"{found.remark}, {said}" if found.remark else said


def _compiled(path: Path) -> bytes:
    """A descriptor set of a .proto file and what it imports, from its directory and from Protobuf itself."""
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        raise _Fault(
            "a .proto file needs grpcio-tools, which is not installed: pip install 'contrailmq[protobuf]', or give "
            "what protoc --include_imports --descriptor_set_out=orders.desc orders.proto writes"
        ) from None
    out = Path("compiled.desc")
    places = [f"-I{path.parent}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    if protoc.main(["protoc", *places, "--include_imports", f"--descriptor_set_out={out}", str(path)]) != 0:
        said = Path(SAID).read_text(errors="replace").splitlines()
        complaint = next((line for line in said if line.startswith(f"{path}:")), "without a place in it")
        raise _Fault(f"protoc does not take it: {complaint.removeprefix(f'{path}:')[:_REASON_CHARS_MAX]}")
    return out.read_bytes()


def _file_set(data: bytes) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
    except DecodeError as exc:
        raise _Fault(f"it is no descriptor set: {_reason(exc)}") from None
    if not files.file:
        raise _Fault("the descriptor set is empty: make it with protoc --include_imports --descriptor_set_out")
    return files


def _names(held: Any, outer: str) -> Iterator[str]:
    """The messages of a file, those inside others too."""
    for message in held:
        name = f"{outer}.{message.name}".lstrip(".")
        if not message.options.map_entry:
            yield name
            yield from _names(message.nested_type, name)


def _named(data: bytes, file: Any) -> tuple[str, bytes]:
    """The message that a registry's head names by its place in the file, and what follows the head."""
    count, data = _zigzag(data)
    indexes = [0]  # a count of 0 stands for the first message
    if count:
        if not 0 < count <= len(data):
            raise _Fault("the body begins as a registry's, and ends before its message")
        indexes = []
        for _ in range(count):
            index, data = _zigzag(data)
            indexes.append(index)
    held, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if not 0 <= index < len(held):
            raise _Fault(f"the body names message {indexes}, which the schema does not have")
        names.append(held[index].name)
        held = held[index].nested_type
    return ".".join(names), data


def _zigzag(data: bytes) -> tuple[int, bytes]:
    """A number with a sign from its varint, and what follows."""
    value = 0
    for place, byte in enumerate(data[:_HEAD_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), data[place + 1 :]
    raise _Fault("the body begins as a registry's, and ends before its message")


def _descriptor(files: Any, name: str) -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except KeyError:
        raise _Fault(f"the schema has no message {name!r}") from None
    except TypeError as exc:
        raise _Fault(f"it is no descriptor set with all of its imports: {_reason(exc)}") from None


def _reason(exc: BaseException) -> str:
    text = str(exc).strip() or type(exc).__name__
    return text.splitlines()[0][:_REASON_CHARS_MAX]


if __name__ == "__main__":
    main()
