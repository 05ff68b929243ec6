"""Frames: cutting a byte stream into commands, and commands into bytes. No I/O.

    frame := length:i32  type_and_header_length:u32  header  body          (big-endian)
    length            = 4 + header bytes + body bytes: what follows the length word
    top byte of word  = serialize type of the header (0 JSON, 1 ROCKETMQ binary); low 24 bits = header bytes

A stream that breaks these rules cannot be trusted further: the parser hands out what came whole before the violation
and then raises, and whoever owns the connection closes it.

What parsing a frame and answering it cost: `python -m bench wire`.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from librt.strings import read_i16_be, read_i32_be

from contrailmq.wire.binary_header import BEGINNING_BYTES, BinaryReply, packed_fields, read_beginning
from contrailmq.wire.codes import LANGUAGE_CODES, OUR_LANGUAGE, OUR_VERSION
from contrailmq.wire.errors import LocalProtocolError, RemoteProtocolError
from contrailmq.wire.header import (
    BINARY,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    HOT_BINARY_DECODERS,
    HOT_DECODERS,
    JSON,
    UNREADABLE,
    Command,
    Fields,
    decode_any,
    decode_header,
    encode_header,
    language_name,
    to_ext,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "HEADER_BYTES_MAX",
    "FrameParser",
    "ReplyTemplate",
    "encode_request",
    "encode_response",
    "escape",
    "response_code",
]

FRAME_BYTES_MAX: Final = (
    16 * 1024 * 1024
)  # with the length word; Java's default of com.rocketmq.remoting.frameMaxLength
HEADER_BYTES_MAX: Final = 0xFFFFFF  # 24 bits
ANSWERED_HEADER_BYTES_MAX: Final = 4 * 1024 * 1024  # see `FrameParser`; 40 ms at worst
LARGE_BYTES: Final = 1024 * 1024  # frames above it are worth not copying twice: 16 MiB take 8 ms each time

_PREFIX: Final = struct.Struct(">iI")
_PREFIX_BYTES: Final = 8
assert _PREFIX.size == _PREFIX_BYTES
_BINARY_BEGINNING: Final = struct.Struct(">hBhii")  # code, language, version, opaque, flag


class FrameParser:
    """Turns any chunking of a stream into commands. One per connection and direction.

    Holds at most one unfinished frame, so never more than FRAME_BYTES_MAX plus one chunk.

    Of a frame whose header is longer than `header_bytes_max`, and not than ANSWERED_HEADER_BYTES_MAX, only what an
    answer needs is decoded: such frames come in `too_long`, and the stream goes on.
    """

    __slots__ = (
        "_buffer",
        "_commands_max",
        "_frame_bytes_max",
        "_header_bytes_max",
        "_wanted_bytes",
        "error",
        "has_more",
        "too_long",
    )

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        commands_max: int = 1 << 62,
    ) -> None:
        self._buffer = bytearray()
        self._wanted_bytes = 0
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._commands_max = commands_max
        self.error: RemoteProtocolError | None = None  # set once the stream is broken
        self.has_more = False  # `commands_max` ended the last call: call again, with b"" if nothing came
        self.too_long: list[tuple[Command, int]] = []  # with the bytes of their headers; the owner empties it

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    @property
    def wanted_bytes(self) -> int:
        """The size of the unfinished frame, as far as it is known; meant for when something is buffered."""
        return self._wanted_bytes

    def feed(self, data: bytes) -> list[Command]:
        """Every command that is whole now, at most `commands_max`. RemoteProtocolError when the stream is broken.

        When good commands precede the violation they are returned first, `error` is set, and the next call raises.
        """
        if self.error is not None:
            raise self.error
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted_bytes:
                return []
        self.has_more = False
        commands: list[Command] = []
        try:
            if self._buffer:
                data = self._take_large(commands) if self._wanted_bytes > LARGE_BYTES else bytes(self._buffer)
                self._buffer.clear()
            rest = self._cut(data, commands)
        except RemoteProtocolError as exc:
            self.error = exc
            if not commands:
                raise
            return commands
        if rest < len(data):
            self._buffer += memoryview(data)[rest:]
        return commands

    def take_begun(self, bytes_min: int) -> tuple[Command, bytes, int] | None:
        """The unfinished frame, if it is so large and its header came: the command without its body, what came of the
        body, and how many bytes do not belong to this parser any more: they follow, and the owner receives them.

        None when there is no such frame. RemoteProtocolError when its header is broken.
        """
        wanted, came = self._wanted_bytes, len(self._buffer)
        if wanted < bytes_min or came < _PREFIX_BYTES:
            return None
        _length, word = _PREFIX.unpack_from(self._buffer, 0)
        body_start = _PREFIX_BYTES + (word & HEADER_BYTES_MAX)
        if came < body_start or body_start - _PREFIX_BYTES > self._header_bytes_max:
            return None
        commands: list[Command] = []
        try:
            self._cut_head(body_start, commands)
        except RemoteProtocolError as exc:
            self.error = exc
            raise
        begun = bytes(memoryview(self._buffer)[body_start:])
        self._buffer = bytearray()
        return commands[0], begun, wanted - came

    def _take_large(self, commands: list[Command]) -> bytes:
        """Append the command that the buffer begins with and is whole; return what follows it. One copy of the body."""
        _length, word = _PREFIX.unpack_from(self._buffer, 0)
        body_start, end = _PREFIX_BYTES + (word & HEADER_BYTES_MAX), self._wanted_bytes
        self._cut_head(body_start, commands)
        with memoryview(self._buffer) as view:
            if commands:
                commands[0].body = bytes(view[body_start:end])
            return bytes(view[end:])

    def _cut_head(self, body_start: int, commands: list[Command]) -> None:
        """Append the command that the buffer begins with, without its body."""
        _length, word = _PREFIX.unpack_from(self._buffer, 0)
        with memoryview(self._buffer) as view:
            self._cut(_PREFIX.pack(body_start - 4, word) + view[_PREFIX_BYTES:body_start], commands)

    def _cut(self, data: bytes, commands: list[Command]) -> int:
        """Append the whole commands of `data`; return where the unfinished one starts."""
        limit, size, position = self._frame_bytes_max - 4, len(data), 0
        hot_decoders, header_limit = HOT_DECODERS, self._header_bytes_max
        header_max = max(header_limit, ANSWERED_HEADER_BYTES_MAX)
        count_max = self._commands_max
        while size - position >= _PREFIX_BYTES:
            if len(commands) >= count_max:
                self.has_more, self._wanted_bytes = True, 0
                return position
            length: int = read_i32_be(data, position)
            word: int = read_i32_be(data, position + 4)
            header_bytes, serialize_type = word & HEADER_BYTES_MAX, word >> 24 & 0xFF
            if not 4 <= length <= limit or header_bytes > length - 4 or header_bytes > header_max:
                raise _bad_lengths(length, header_bytes, limit, header_limit)
            end = position + 4 + length
            if end > size:
                self._wanted_bytes = end - position
                return position
            body_start = position + _PREFIX_BYTES + header_bytes
            header = data[position + _PREFIX_BYTES : body_start]
            if header_bytes > header_limit:
                self.too_long.append((_beginning(header, serialize_type, header_limit), header_bytes))
                position = end
                continue
            try:
                if serialize_type == JSON:  # what decode_header does, without the call
                    command = hot_decoders.get(header[8:11], decode_any)(header)
                    command.serialize_type = JSON
                    command.raw_header = header
                else:
                    hot = _hot_binary(header) if serialize_type == BINARY else None
                    command = decode_header(header, serialize_type) if hot is None else hot
            except UNREADABLE:
                command = decode_header(header, JSON)
            command.body = data[body_start:end]
            commands.append(command)
            position = end
        if size - position >= 4:  # a lie is told as soon as the length is known
            length = read_i32_be(data, position)
            if not 4 <= length <= limit:
                raise _bad_lengths(length, 0, limit, header_limit)
        self._wanted_bytes = _PREFIX_BYTES
        return position


def _hot_binary(header: bytes) -> Command | None:
    """A request of the hot path, its ext fields typed; None for any other header, and for one with something wrong."""
    if len(header) < BEGINNING_BYTES:
        return None
    code, language, version, opaque, flag = read_beginning(header)
    decode = HOT_BINARY_DECODERS.get(code)
    if decode is None or flag & FLAG_RESPONSE:
        return None
    try:
        typed: Any = decode(packed_fields(header))  # in the place of a Raw, as HOT_DECODERS have it
    except UNREADABLE:
        return None
    return Command(code, opaque, flag, version, language_name(language), None, typed, b"", BINARY, header)


def _beginning(header: bytes, serialize_type: int, header_limit: int) -> Command:
    """Code, opaque and flag of a header that is too long to be decoded."""
    if serialize_type not in (JSON, BINARY):
        return decode_header(b"", serialize_type)  # says that it is unknown
    if serialize_type == BINARY:
        code, _language, _version, opaque, flag = _BINARY_BEGINNING.unpack_from(header)
        return Command(code=code, opaque=opaque, flag=flag, serialize_type=serialize_type)
    try:
        read = decode_any(header)  # the ext fields are stepped over
    except UNREADABLE:
        raise _bad_lengths(len(header) + 4, len(header), FRAME_BYTES_MAX, header_limit) from None
    return Command(code=read.code, opaque=read.opaque, flag=read.flag)


def _bad_lengths(length: int, header_bytes: int, limit: int, header_limit: int) -> RemoteProtocolError:
    if length < 4:
        return RemoteProtocolError(f"frame length {length} is below 4, the header word: not a RocketMQ peer?")
    if length > limit:
        return RemoteProtocolError(
            f"frame length {length} is above the limit of {limit} bytes: not a RocketMQ peer, or TLS on a plain port?"
        )
    if header_bytes > length - 4:
        return RemoteProtocolError(f"header length {header_bytes} does not fit a frame of {length} bytes")
    return RemoteProtocolError(f"header length {header_bytes} is above the limit of {header_limit} bytes")


def encode_request(
    code: int,
    ext: Fields | None = None,
    body: bytes = b"",
    *,
    opaque: int,
    is_oneway: bool = False,
    remark: str | None = None,
    serialize_type: int = JSON,
    body_bytes: int | None = None,
    language: str = OUR_LANGUAGE,
    version: int = OUR_VERSION,
) -> bytes:
    """A whole request frame. LocalProtocolError when it exceeds the frame limit or has no binary form.

    With `body_bytes` the frame announces a body of that size which the caller sends right after these bytes. `language`
    and `version` are those of the client in whose name it is sent.
    """
    header = encode_header(
        code,
        to_ext(ext) if ext is not None else {},
        opaque=opaque,
        flag=FLAG_ONEWAY if is_oneway else 0,
        remark=remark,
        serialize_type=serialize_type,
        language=language,
        version=version,
    )
    return _frame(header, body, serialize_type, body_bytes)


def encode_response(
    request: Command,
    code: int = 0,
    ext: Fields | None = None,
    body: bytes = b"",
    remark: str | None = None,
    *,
    body_bytes: int | None = None,
) -> bytes:
    """A whole response frame in the request's serialize type.

    With `body_bytes` the frame announces a body of that size which the caller sends right after these bytes (slices of
    a mapped file, which are never joined).
    """
    header = encode_header(
        code,
        to_ext(ext) if ext is not None else {},
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        serialize_type=request.serialize_type,
    )
    return _frame(header, body, request.serialize_type, body_bytes)


def _frame(header: bytes, body: bytes, serialize_type: int, body_bytes: int | None = None) -> bytes:
    header_bytes = len(header)
    length = 4 + header_bytes + (len(body) if body_bytes is None else body_bytes)
    if header_bytes > HEADER_BYTES_MAX or length > FRAME_BYTES_MAX - 4:
        raise LocalProtocolError(
            f"frame of {length + 4} bytes exceeds the limit of {FRAME_BYTES_MAX}: send less in one request"
        )
    return _PREFIX.pack(length, serialize_type << 24 | header_bytes) + header + body


_CODE_AT: Final = _PREFIX_BYTES + len(b'{"code":')  # every JSON header of ours begins so


def response_code(frame: bytes) -> int:
    """The code of a whole response that was encoded here."""
    if frame[4] == BINARY:
        return read_i16_be(frame, _PREFIX_BYTES)
    if frame[_CODE_AT] == 0x30:  # "0": SUCCESS has no further digits
        return 0
    return int(frame[_CODE_AT : frame.index(b",", _CODE_AT)])


_PLAIN: Final = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-.,:;%|+=/@# ")


def escape(text: str | bytes) -> bytes:
    """`text` as it stands between the quotes of a JSON string."""
    raw = text if isinstance(text, bytes) else text.encode()
    if raw.isalnum() or _PLAIN.issuperset(raw):
        return raw
    return json.dumps(raw.decode(), ensure_ascii=True)[1:-1].encode()


class ReplyTemplate:
    """A response whose ext fields are known in advance, so that answering is one bytes-formatting operation.

        SENT = ReplyTemplate({"queueId": int, "msgId": bytes, "queueOffset": int}, {"TRACE_ON": "true"})
        data = SENT.render(request, (queue_id, message_id, queue_offset))

    Values come in the order of `fields`: an int, or bytes that are already safe inside a JSON string (see `escape`).
    """

    __slots__ = ("_binary", "_format")

    def __init__(
        self, fields: dict[str, type[int] | type[bytes]], fixed: dict[str, str] | None = None, *, code: int = 0
    ) -> None:
        constants = fixed or {}
        self._binary = BinaryReply(
            tuple(fields),
            constants,
            code=code,
            flag=FLAG_RESPONSE,
            language_code=LANGUAGE_CODES[OUR_LANGUAGE],
            version=OUR_VERSION,
        )
        parts = [f'"{name}":"{"%d" if kind is int else "%b"}"' for name, kind in fields.items()]
        constant = [f'"{name}":"{escape(value).decode()}"'.replace("%", "%%") for name, value in constants.items()]
        ext = f'"extFields":{{{",".join(parts + constant)}}},' if parts or constant else ""
        self._format = (
            f'{{"code":{code},{ext}"flag":{FLAG_RESPONSE},'
            f'"language":"{OUR_LANGUAGE}","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION}}}'
        ).encode()

    def render(self, request: Command, values: tuple[int | bytes, ...], *, body_bytes: int = 0) -> bytes:
        """The response up to its body; a body of `body_bytes` is sent by the caller right after it."""
        if request.serialize_type != JSON:
            return self._render_binary(request, values, body_bytes)
        header = self._format % (*values, request.opaque)
        header_bytes = len(header)
        return _PREFIX.pack(4 + header_bytes + body_bytes, header_bytes) + header

    def _render_binary(self, request: Command, values: tuple[int | bytes, ...], body_bytes: int) -> bytes:
        return self._binary.frame(request.opaque, [_unescaped(value) for value in values], body_bytes)


def _unescaped(value: int | bytes) -> bytes:
    """A value of a template as it stands in a binary header."""
    if isinstance(value, int):
        return str(value).encode()
    return value if b"\\" not in value else str(json.loads(b'"%b"' % value)).encode()
