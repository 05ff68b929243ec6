"""Frames of HTTP/2 (RFC 9113, 4 and 6): their kinds, flags and errors, and those that we send.

frame := length:u24 kind:u8 flags:u8 stream:u32 payload          (big-endian; the highest bit of `stream` is nothing)
"""

from __future__ import annotations

import struct
from typing import Final

HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16 * 1024  # of a payload: the least that HTTP/2 allows, and what we take and send
WINDOW_MAX: Final = 0x7FFF_FFFF
WINDOW_BEFORE: Final = 65_535  # of streams and connections, before anybody has said another one
STREAM_MASK: Final = 0x7FFF_FFFF
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Kinds.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
NAMES: Final = (
    *("DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS"),
    *("PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"),
)

# Flags.
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

# Settings.
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

# Errors.
NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

HEAD: Final = struct.Struct(">IBI")  # (length << 8 | kind), flags, stream
assert HEAD.size == HEAD_BYTES
_NUMBER: Final = struct.Struct(">IBII")
_SETTING: Final = struct.Struct(">HI")
SETTING_BYTES: Final = _SETTING.size
SETTINGS_ACK: Final = HEAD.pack(SETTINGS, ACK, 0)


class Http2Error(Exception):
    """What a peer did, and the connection ends by it: `code` is one of the errors above."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code: int = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(key, value) for key, value in values.items()]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """FRAME_SIZE_ERROR when they are not whole."""
    if len(payload) % SETTING_BYTES:
        raise Http2Error(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes, a setting has {SETTING_BYTES}")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    return _NUMBER.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def reset(stream_id: int, code: int) -> bytes:
    return _NUMBER.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    said = text.encode("utf-8", "replace")
    return frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + said)
