"""SEND_MESSAGE_V2 frames by one bytes-formatting operation.

Nine of a send's fourteen ext fields are the same for every message of a topic on a broker. They are written once; a
message then costs one `%` and one small JSON string: 2.3 us instead of 4.5 us for encoding a map, on a producer's
hottest path.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from contrailmq.wire.codes import OUR_LANGUAGE, OUR_VERSION, RequestCode
from contrailmq.wire.errors import LocalProtocolError
from contrailmq.wire.frame import FRAME_BYTES_MAX

_PREFIX: Final = struct.Struct(">iI")  # as in wire.frame: length of the rest, then header length with type 0 (JSON)
_to_json: Final = msgspec.json.Encoder().encode


class SendTemplate:
    """Frames of one kind of send, to one topic on one broker."""

    __slots__ = ("_format",)

    def __init__(
        self,
        code: RequestCode,
        *,
        group: str,
        topic: str,
        default_topic: str,
        default_queues: int,
        broker_name: str,
        is_batch: bool,
    ) -> None:
        def text(value: str) -> str:
            return _to_json(value).decode().replace("%", "%%")

        self._format: Final = (
            f'{{"code":{int(code)},"extFields":{{"a":{text(group)},"b":{text(topic)},"c":{text(default_topic)},'
            f'"d":"{default_queues}","e":"%d","f":"%d","g":"%d","h":"%d","i":%b,"j":"0","k":"false",'
            f'"m":"{"true" if is_batch else "false"}","n":{text(broker_name)}}},"flag":0,"language":"{OUR_LANGUAGE}",'
            f'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION}}}'
        ).encode()

    def render(
        self,
        body: bytes,
        properties: bytes,
        *,
        queue_id: int,
        sys_flag: int,
        born_ms: int,
        flag: int,
        opaque: int,
    ) -> bytes:
        """The whole frame."""
        header = self._format % (queue_id, sys_flag, born_ms, flag, _to_json(properties.decode()), opaque)
        length = 4 + len(header) + len(body)
        if length > FRAME_BYTES_MAX - 4:
            raise LocalProtocolError(f"frame of {length + 4} bytes exceeds the limit of {FRAME_BYTES_MAX}: send less")
        return b"".join((_PREFIX.pack(length, len(header)), header, body))
