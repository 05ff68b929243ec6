"""One command: the header in both of its encodings, and its ext fields as text or as a typed struct. No I/O.

    json   := {"code":i,"extFields":{"k":"v",...},"flag":i,"language":"NAME","opaque":i,"remark":"text","version":i}
    binary := see binary_header.py

`flag` bit 0 marks a response, bit 1 a oneway request, which must never be answered. All ext values travel as strings.

Peers are sloppier than that: the C++ client sends ext values as numbers and booleans, others send the language as an
ordinal or under a name of their own, or leave members out. Parsing is therefore done twice at most: first by a C
decoder that knows the exact types (msgspec), and only when that refuses, by `_decode_json_loosely`, which forgives
everything that can be understood. Hostile input only ever costs the second, linear pass.

Decoding header and typed ext fields in one pass is cheaper than the header first and the ext fields later, and both
are cheaper than a dict of strings (`python -m bench wire` measures the three). So the codes of the hot path
(`HOT_HEADERS`) are decoded in one pass; every other code keeps its ext fields as raw JSON until somebody asks for them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from contrailmq.wire.admin_requests import GetRouteInfo
from contrailmq.wire.binary_header import decode_binary, encode_binary
from contrailmq.wire.codes import (
    LANGUAGE_CODES,
    LANGUAGES,
    OUR_LANGUAGE,
    OUR_VERSION,
    request_name,
    widen_binary_code,
)
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.requests import (
    ConsumerSendMessageBack,
    EndTransaction,
    PullMessage,
    SendMessage,
    SendMessageV2,
    UpdateConsumerOffset,
)

__all__ = [
    "BINARY",
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "JSON",
    "Command",
    "ExtValue",
    "Fields",
    "decode_header",
    "encode_header",
    "to_ext",
]

JSON: Final = 0
BINARY: Final = 1
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

ExtValue = str | int | bool | None
Fields = Mapping[str, ExtValue] | msgspec.Struct
H = TypeVar("H", bound=msgspec.Struct)

# What msgspec raises: not JSON or wrong types; text that is not UTF-8; nesting deeper than the interpreter allows.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NO_FIELDS: Final = msgspec.Raw(b"")


class _Ext:
    """Holder of decoded ext fields. A class of ours, so that no JSON member can ever be decoded into it."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, str]) -> None:
        self.fields = fields


class Command(msgspec.Struct, gc=False):
    """A request or a response as it came from the peer.

    `code` is a request code, or a response code when `is_response`. `ext` gives the ext fields as text;
    `header(SomeRequest)` gives them typed. Both are decoded when first asked for.
    """

    code: int = 0
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str = "OTHER"
    remark: str | None = None
    ext_fields: msgspec.Raw = msgspec.field(default=_NO_FIELDS, name="extFields")
    # What follows is ours: the parser overwrites it after decoding, whatever the peer's JSON said.
    body: bytes = b""
    serialize_type: int = JSON
    raw_header: bytes = b""
    _ext: _Ext | None = None

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @property
    def ext(self) -> dict[str, str]:
        """The ext fields as text; numbers and booleans of sloppy peers become text, nulls are left out."""
        if self._ext is None:
            is_binary = self.serialize_type == BINARY
            self._ext = _Ext(decode_binary(self.raw_header)[-1] if is_binary else _ext_from_json(self.raw_header))
        return self._ext.fields

    def header(self, kind: type[H]) -> H:
        """The ext fields as a typed struct; RemoteProtocolError names the field that is missing or has a wrong type."""
        fields: object = self.ext_fields
        if isinstance(fields, kind):
            return fields
        if self._ext is None and isinstance(fields, msgspec.Raw) and fields:
            try:
                decoded: H = _typed_decoder(kind).decode(fields)
                return decoded
            except UNREADABLE:
                pass  # explained, or forgiven, field by field below
        ext = self.ext
        try:
            converted: H = msgspec.convert(ext, kind, strict=False)
            return converted
        except msgspec.ValidationError:
            pass
        name = "response" if self.is_response else request_name(self.code)
        return _typed_loosely(ext, kind, name)


# ------------------------------------------------------------------------------------------------------------ decoding

# By the three characters that follow `{"code":`, which is how every known producer's header starts. A wrong guess (a
# longer number, another order of members) costs a second decode and nothing else, because `header` checks the type.
HOT_HEADERS: Final[dict[bytes, type[msgspec.Struct]]] = {
    b"310": SendMessageV2,
    b"320": SendMessageV2,
    b"10,": SendMessage,
    b"11,": PullMessage,
    b"361": PullMessage,
    b"36,": ConsumerSendMessageBack,
    b"37,": EndTransaction,
    b"15,": UpdateConsumerOffset,
    b"105": GetRouteInfo,
}
_CODE_TEXT: Final = slice(len('{"code":'), len('{"code":310'))


def _hot_decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Command]:
    typed = msgspec.defstruct(
        f"{kind.__name__}Command",
        [("ext_fields", kind, msgspec.field(name="extFields"))],
        bases=(Command,),
        kw_only=True,
        gc=False,
    )
    assert issubclass(typed, Command)
    return msgspec.json.Decoder(typed, strict=False)


# Binary ones need no guess. Their ext fields go through MessagePack, which msgspec decodes by the same types and rules.
HOT_BINARY_DECODERS: Final = {
    int(text.strip(b",")): msgspec.msgpack.Decoder(kind, strict=False).decode for text, kind in HOT_HEADERS.items()
}
HOT_DECODERS: Final = {text: _hot_decoder(kind).decode for text, kind in HOT_HEADERS.items()}
decode_any: Final = msgspec.json.Decoder(Command).decode


@functools.cache
def _typed_decoder(kind: type[H]) -> msgspec.json.Decoder[H]:
    return msgspec.json.Decoder(kind, strict=False)


def decode_header(header: bytes, serialize_type: int) -> Command:
    """One header, without its body. RemoteProtocolError when it cannot be understood at all."""
    if serialize_type == JSON:
        try:
            command = HOT_DECODERS.get(header[_CODE_TEXT], decode_any)(header)
        except UNREADABLE:  # wrong types and missing fields are among it
            command = _decode_json_loosely(header)
        command.serialize_type = JSON
    elif serialize_type == BINARY:
        command = _decode_binary(header)
    else:
        raise RemoteProtocolError(f"serialize type {serialize_type} is unknown: 0 (JSON) and 1 (ROCKETMQ) exist")
    command.raw_header = header
    return command


class _LooseHeader(msgspec.Struct, rename="camel"):
    """Every member of any scalar type. What is an object where a scalar belongs is refused."""

    code: str | int | float | None = None
    opaque: str | int | float | None = None
    flag: str | int | float | None = None
    version: str | int | float | None = None
    language: str | int | None = None
    remark: str | int | float | bool | None = None
    ext_fields: msgspec.Raw = msgspec.Raw(b"")


_decode_loose: Final = msgspec.json.Decoder(_LooseHeader).decode


def _decode_json_loosely(header: bytes) -> Command:
    try:
        loose = _decode_loose(header)
        command = Command(
            code=int(loose.code or 0),
            opaque=int(loose.opaque or 0),
            flag=int(loose.flag or 0),
            version=int(loose.version or 0),
            language=language_name(loose.language),
            remark=None if loose.remark is None else str(loose.remark),
            ext_fields=msgspec.Raw(bytes(loose.ext_fields)),
        )
    except (*UNREADABLE, ValueError, OverflowError) as exc:
        raise RemoteProtocolError(f"header of {len(header)} bytes is not a JSON header: {exc}") from exc
    return command


def language_name(language: str | int | None) -> str:
    if isinstance(language, str):
        return language
    return LANGUAGES[language] if language is not None and 0 <= language < len(LANGUAGES) else "OTHER"


class _StrictExt(msgspec.Struct, gc=False):
    fields: dict[str, str] | None = msgspec.field(default=None, name="extFields")


class _LooseExt(msgspec.Struct, gc=False):
    fields: dict[str, str | int | float | bool | None] | None = msgspec.field(default=None, name="extFields")


_decode_strict_ext: Final = msgspec.json.Decoder(_StrictExt).decode
_decode_loose_ext: Final = msgspec.json.Decoder(_LooseExt).decode


def _ext_from_json(header: bytes) -> dict[str, str]:
    if not header:
        return {}
    try:
        return _decode_strict_ext(header).fields or {}
    except UNREADABLE:
        pass  # numbers, booleans or nulls among the values
    try:
        loose = _decode_loose_ext(header).fields or {}
    except UNREADABLE as exc:
        raise RemoteProtocolError(f"extFields must be an object of strings: {exc}") from exc
    return {name: _text(value) for name, value in loose.items() if value is not None}


def _text(value: str | float | bool) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _typed_loosely(ext: Mapping[str, str], kind: type[H], request: str) -> H:
    """Field by field: says which one is at fault. Booleans follow Java: what is not `true` is false."""
    values: dict[str, object] = {}
    for field in _fields_of(kind):
        text = ext.get(field.encode_name)
        if text is None or (text == "" and field.type is not str and field.type != str | None):
            if field.required:
                raise RemoteProtocolError(
                    f"{request}: ext field {field.encode_name} is missing: it is required", field=field.encode_name
                )
            continue
        try:
            values[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError as exc:
            if field.type is bool or field.type == bool | None:
                values[field.name] = False
                continue
            raise RemoteProtocolError(
                f"{request}: ext field {field.encode_name} is {text[:64]!r}: {exc}", field=field.encode_name
            ) from exc
    return kind(**values)


def _decode_binary(header: bytes) -> Command:
    """Any of them; `frame` decodes the hot ones to typed fields at once."""
    code, language, version, opaque, flag, remark, ext = decode_binary(header)
    command = Command(
        code=code if flag & FLAG_RESPONSE else widen_binary_code(code),
        opaque=opaque,
        flag=flag,
        version=version,
        language=language_name(language),
        remark=remark,
        serialize_type=BINARY,
    )
    command._ext = _Ext(ext)
    return command


# ------------------------------------------------------------------------------------------------------------ encoding

_json_text: Final = msgspec.json.Encoder().encode
_OUR_LANGUAGE_JSON: Final = _json_text(OUR_LANGUAGE)


def to_ext(fields: Fields) -> dict[str, str]:
    """Ext fields ready to send: every value as text, None left out (C++ and Go readers refuse anything but strings)."""
    pairs: Iterable[tuple[str, ExtValue]]
    if isinstance(fields, msgspec.Struct):
        values = msgspec.structs.astuple(fields)
        pairs = zip(fields.__struct_encode_fields__, values, strict=True)
    else:
        pairs = fields.items()
    return {
        name: value if value.__class__ is str else str(value) if value.__class__ is int else _text(value)
        for name, value in pairs
        if value is not None
    }


def encode_header(
    code: int,
    ext: Mapping[str, str],
    *,
    opaque: int,
    flag: int,
    remark: str | None = None,
    serialize_type: int = JSON,
    language: str = OUR_LANGUAGE,
    version: int = OUR_VERSION,
) -> bytes:
    """The header's bytes. LocalProtocolError when it has no binary form."""
    if serialize_type == BINARY:
        return encode_binary(
            code,
            ext,
            opaque=opaque,
            flag=flag,
            remark=remark,
            language_code=LANGUAGE_CODES.get(language, LANGUAGE_CODES["OTHER"]),
            version=version,
        )
    assert serialize_type == JSON
    # Members in Java's (alphabetical) order and without white space; null members are left out.
    return b'{"code":%d,%b"flag":%d,"language":%b,"opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}' % (
        code,
        b'"extFields":%b,' % _json_text(ext) if ext else b"",
        flag,
        _OUR_LANGUAGE_JSON if language is OUR_LANGUAGE else _json_text(language),
        opaque,
        b'"remark":%b,' % _json_text(remark) if remark is not None else b"",
        version,
    )
