"""What gRPC puts into HTTP/2: messages with their prefixes, time limits, statuses and metadata.

message := compressed:u8 length:u32 bytes               (big-endian; any number of them in the data of a stream)
timeout := digits unit                                  (at most 8 digits; H M S m u n: hours to nanoseconds)
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

from contrailmq.wire.http2.hpack import REGULAR, Field, indexed, literal

__all__ = [
    "MESSAGE_BYTES_MAX",
    "UNPACKED_BYTES_MAX",
    "CallError",
    "MessageReader",
    "Status",
    "error_block",
    "metadata_of",
    "packed",
    "seconds_of",
    "trailers",
    "unpacked",
]

MESSAGE_BYTES_MAX: Final = 130 * 1024 * 1024  # RocketMQ's proxy takes as much
# Unpacking 16 MiB keeps the loop busy for 40 ms; clients of RocketMQ compress bodies and not messages.
UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
PREFIX_BYTES: Final = 5
_PREFIX: Final = struct.Struct(">BI")
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_DIGITS_MAX: Final = 8


class Status(IntEnum):
    """gRPC's own codes, of which we use these."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """A call ends with this status of gRPC."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Part(NamedTuple):
    is_packed: bool
    message: bytes


class MessageReader:
    """Messages that are spread over frames, or several of one frame."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: list[bytes] = []
        self.held_bytes = 0
        self.wanted_bytes = 0  # of the message that is not whole, with its prefix; 0 while that is not known

    def feed(self, data: bytes, start: int, end: int) -> list[Part]:
        """The messages that are whole now. CallError when one is larger than it may be."""
        found: list[Part] = []
        self._chunks.append(data[start:end])
        self.held_bytes += end - start
        while self.held_bytes >= PREFIX_BYTES:
            if self.wanted_bytes == 0:
                self._join()
                size = int.from_bytes(self._chunks[0][1:PREFIX_BYTES], "big")
                if size > self._bytes_max:
                    raise CallError(
                        Status.RESOURCE_EXHAUSTED,
                        f"a message of {size} bytes, the limit is {self._bytes_max}: send less at once",
                    )
                self.wanted_bytes = PREFIX_BYTES + size
            if self.held_bytes < self.wanted_bytes:
                break
            self._join()
            whole, size = self._chunks[0], self.wanted_bytes
            found.append(Part(_flag(whole[0]), whole[PREFIX_BYTES:size]))
            self._chunks = [whole[size:]] if len(whole) > size else []
            self.held_bytes -= size
            self.wanted_bytes = 0
        return found

    def _join(self) -> None:
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]


def _flag(first: int) -> bool:
    if first > 1:
        raise CallError(Status.INTERNAL, f"a message begins with {first}: 0 (plain) and 1 (compressed) exist")
    return first == 1


def packed(message: bytes) -> bytes:
    """With its prefix."""
    return _PREFIX.pack(0, len(message)) + message


def unpacked(message: bytes) -> bytes:
    """What gzip made of it. CallError when it is none, or becomes too large."""
    stream = zlib.decompressobj(_GZIP_BITS)
    try:
        whole = stream.decompress(message, UNPACKED_BYTES_MAX)
    except zlib.error as exc:
        raise CallError(Status.INTERNAL, f"a message is no gzip: {exc}") from None
    if stream.unconsumed_tail:
        text = f"a compressed message is larger than {UNPACKED_BYTES_MAX} bytes: send it uncompressed, or less at once"
        raise CallError(Status.RESOURCE_EXHAUSTED, text)
    if not stream.eof:
        raise CallError(Status.INTERNAL, f"a gzip message of {len(message)} bytes is not whole")
    return whole


def seconds_of(text: str) -> float:
    """A time limit of `grpc-timeout`."""
    digits, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (digits.isascii() and digits.isdecimal()) or len(digits) > _DIGITS_MAX:
        raise CallError(Status.INTERNAL, f"grpc-timeout is {text[:40]!r}: up to 8 digits and one of H M S m u n")
    return int(digits) * unit


def metadata_of(fields: list[Field]) -> list[tuple[str, str | bytes]]:
    """What a client says besides the call; values of keys in `-bin` are bytes."""
    said: list[tuple[str, str | bytes]] = []
    for field in fields:
        name = field.name
        if field.kind != REGULAR or name.startswith("grpc-") or name in ("content-type", "te"):
            continue
        if name.endswith("-bin"):
            said += [(name, _binary(part)) for part in field.value.split(",")]
        else:
            said.append((name, field.value))
    return said


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text.strip().rstrip("=") + "=" * (-len(text.strip().rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise CallError(Status.INTERNAL, f"metadata {text[:40]!r} is no base64") from None


def trailers(status: Status, text: str) -> bytes:
    """The fields that end an answer."""
    block = literal("grpc-status", str(int(status)))
    return block + literal("grpc-message", _percent_encoded(text)) if text else block


def error_block(http_status: int, status: Status, text: str) -> bytes:
    """The fields of an answer that is nothing but its end."""
    first = indexed(8) if http_status == 200 else literal(":status", str(http_status))
    accepted = literal("grpc-accept-encoding", "identity,gzip") if status == Status.UNIMPLEMENTED else b""
    return first + literal("content-type", "application/grpc") + accepted + trailers(status, text)


def _percent_encoded(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return "".join([chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in data])


HEAD_BLOCK: Final = indexed(8) + literal("content-type", "application/grpc")
OK_BLOCK: Final = trailers(Status.OK, "")
