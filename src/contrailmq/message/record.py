"""The record: RocketMQ's bytes for one stored message, as the commit log, pull answers and Spark's tasks have them.

    record := size:i32 magic:i32 body_crc:i32 queue_id:i32 flag:i32 queue_offset:i64 physical_offset:i64 sys_flag:i32
              born_time:i64 born_host store_time:i64 store_host reconsume_times:i32 prepared_transaction_offset:i64
              body_length:i32 body topic_length:(i8 | i16) topic properties_length:i16 properties
    host   := ip:(4 | 16 bytes) port:i32                     (16 where the sysFlag bit of that host says IPv6)

Everything is big-endian and signed. The topic length is one byte under magic V1 and two under V2, which is used for
topics over 127 bytes only. With both hosts IPv4 the part up to and including `body_length` has 88 bytes; that is the
common case and has its own path. Two host families and two magics make the header classes of `HEADS`.

Here is the layout and its reading, which stores and clients share. Writing records and judging damaged ones is the
store's (`contrailmq.store.record`).
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Final, TypeVar

from contrailmq.message.compression import SysFlag
from contrailmq.message.errors import MessageError
from contrailmq.message.model import StoredMessage

Buffer = bytes | bytearray | memoryview | mmap

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB, topics over 127 bytes

HOSTS_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
HEADS: Final = {  # which hosts are IPv6 -> everything up to and including body_length
    0: struct.Struct(">iiiiiqqiq8sq8siqi"),
    SysFlag.BORN_HOST_V6: struct.Struct(">iiiiiqqiq20sq8siqi"),
    SysFlag.STORE_HOST_V6: struct.Struct(">iiiiiqqiq8sq20siqi"),
    HOSTS_V6: struct.Struct(">iiiiiqqiq20sq20siqi"),
}
HEAD_V4: Final = HEADS[0]
HEAD_V4_BYTES: Final = 88
assert HEAD_V4.size == HEAD_V4_BYTES
assert HEADS[HOSTS_V6].size == HEAD_V4_BYTES + 24
_I16: Final = struct.Struct(">h")

_TOPICS_MAX: Final = 4096  # a cache of decoded names, so it may simply start over
_topics: dict[bytes, str] = {}

M = TypeVar("M", bound=StoredMessage)


def read_record(kind: type[M], buffer: Buffer, position: int = 0) -> M:
    """The record at `position` as a message of that class. Raises MessageError for lengths that cannot be.

    Checks no CRC; properties and compressed bodies stay bytes until somebody looks. This is most of what receiving a
    message costs a client, hence the named fields: a call with `*fields` takes a third longer.
    """
    try:
        (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms,
         store_host, reconsume_times, prepared, body_bytes) = HEAD_V4.unpack_from(buffer, position)  # fmt: skip
        body = position + HEAD_V4_BYTES
        if sys_flag & HOSTS_V6:
            head = HEADS[sys_flag & HOSTS_V6]
            (*_, born_host, store_ms, store_host, reconsume_times, prepared, body_bytes) = head.unpack_from(
                buffer, position
            )
            body = position + head.size
        body_end = body + body_bytes
        if magic == MAGIC_V1:
            topic = body_end + 1
            topic_end = topic + buffer[body_end]
        elif magic == MAGIC_V2:
            topic = body_end + 2
            topic_end = topic + _I16.unpack_from(buffer, body_end)[0]
        else:
            raise _malformed(position, f"its magic number is {magic & 0xFFFFFFFF:#010x}")
        end = position + size
        properties_length = (buffer[topic_end] << 8) + buffer[topic_end + 1]
        if not body <= body_end < topic <= topic_end or topic_end + 2 + properties_length != end or end > len(buffer):
            raise _malformed(position, f"its size says {size}, its body {body_bytes}")
    except (struct.error, IndexError, OverflowError) as exc:
        raise _malformed(position, f"it is cut at {len(buffer)}") from exc
    name, content, properties = buffer[topic:topic_end], buffer[body:body_end], buffer[topic_end + 2 : end]
    if not (isinstance(name, bytes) and isinstance(content, bytes) and isinstance(properties, bytes)):  # of a view
        name, content, properties = bytes(name), bytes(content), bytes(properties)
    return kind(
        _topics.get(name) or _remember_topic(name), content, properties, size, magic, crc, queue_id, flag,
        queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms, store_host, reconsume_times, prepared,
    )  # fmt: skip


def _remember_topic(name: bytes) -> str:
    if len(_topics) >= _TOPICS_MAX:
        _topics.clear()
    topic = _topics[name] = name.decode("utf-8", "replace")
    return topic


def _malformed(position: int, reason: str) -> MessageError:
    return MessageError(f"there is no record at byte {position}: {reason}", field="record")
