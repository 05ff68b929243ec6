"""Pulled bytes to messages.

The body of a pull answer is records of the commit log, one after another, exactly as they lie in the file. Decoding is
one `unpack_from` for the fixed part and three slices; properties and compressed bodies are decoded when somebody looks.

    record := total:i32 magic:u32 crc:i32 queue_id:i32 flag:i32 queue_offset:i64 physical_offset:i64 sys_flag:i32
              born_ms:i64 born_host:8|20 store_ms:i64 store_host:8|20 reconsume:i32 prepared:i64
              body_len:i32 body topic_len:u8|u16 topic properties_len:i16 properties
"""

from __future__ import annotations

import struct
from typing import Final

from contrailmq.client.errors import ClientError
from contrailmq.message import StoredMessage, SysFlag

_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB  # topic length in two bytes
_V4_HEAD: Final = struct.Struct(">iIiiiqqiq8sq8siqi")  # both hosts IPv4: all but a curious few
_V4_BYTES: Final = 88
assert _V4_HEAD.size == _V4_BYTES
_SYS_FLAG_AT: Final = 36
_I32: Final = struct.Struct(">i")
_V6_FLAGS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_INNER_BATCH: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP


class ReceivedMessage(StoredMessage):
    """A stored message that came through a broker: it also knows which broker, and what the pull said of the queue.

    `reconsume_times` is the number of earlier failures; the client raises it when it retries locally.
    """

    __slots__ = ("broker_name", "consume_start_s", "max_offset", "min_offset")

    broker_name: str
    consume_start_s: float  # when the listener was last given it, on the loop's clock; 0 before that
    min_offset: int  # of its queue, when it was pulled
    max_offset: int


def decode_messages(
    body: bytes, *, broker_name: str = "", min_offset: int = 0, max_offset: int = 0
) -> list[ReceivedMessage]:
    """Every record of a pull, query or view answer. Raises ClientError when the bytes are not records.

    About 3 us a message: 60,000 messages a second leave 16 us for everything that a consumer does.
    """
    messages: list[ReceivedMessage] = []
    position, end = 0, len(body)
    unpack, topics = _V4_HEAD.unpack_from, _topics
    while position < end:
        if end - position < _V4_BYTES:
            raise _broken(position, end, "fewer bytes are left than a record's fixed part has")
        (total, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms,
         store_host, reconsume_times, prepared, body_bytes) = unpack(body, position)  # fmt: skip
        start = position + _V4_BYTES
        if sys_flag & _V6_FLAGS:
            born_host, store_ms, store_host, reconsume_times, prepared, body_bytes, start = _v6_hosts(body, position)
        if total < _V4_BYTES or position + total > end or body_bytes < 0 or start + body_bytes > end:
            raise _broken(position, end, f"its size says {total}, its body {body_bytes}")
        body_end = start + body_bytes
        if magic == _MAGIC_V1:
            topic_at = body_end + 1
            properties_at = topic_at + body[body_end]
        elif magic == _MAGIC_V2:
            topic_at = body_end + 2
            properties_at = topic_at + int.from_bytes(body[body_end:topic_at], "big")
        else:
            raise _broken(position, end, f"its magic number is {magic:#010x}")
        topic_bytes = body[topic_at:properties_at]
        topic = topics.get(topic_bytes) or _remember_topic(topic_bytes)
        message = ReceivedMessage(
            topic, body[start:body_end], body[properties_at + 2 : position + total], total, magic, crc, queue_id, flag,
            queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms, store_host, reconsume_times,
            prepared,
        )  # fmt: skip
        message.broker_name = broker_name
        message.consume_start_s = 0.0
        message.min_offset = min_offset
        message.max_offset = max_offset
        messages.append(message)
        position += total
    return messages


_topics: dict[bytes, str] = {}
_TOPICS_MAX: Final = 4096  # a cache, so it may simply start over


def _remember_topic(topic_bytes: bytes) -> str:
    if len(_topics) >= _TOPICS_MAX:
        _topics.clear()
    topic = _topics[topic_bytes] = topic_bytes.decode("utf-8", "replace")
    return topic


def _v6_hosts(body: bytes, position: int) -> tuple[bytes, int, bytes, int, int, int, int]:
    """The fields from the born host on, when a host has 16 address bytes."""
    (sys_flag,) = _I32.unpack_from(body, position + _SYS_FLAG_AT)
    born_bytes = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    store_bytes = 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8
    tail = struct.Struct(f">{born_bytes}sq{store_bytes}siqi")
    try:
        fields = tail.unpack_from(body, position + 48)
    except struct.error as exc:
        raise _broken(position, len(body), "it is cut inside its host addresses") from exc
    born_host, store_ms, store_host, reconsume_times, prepared, body_bytes = fields
    return born_host, store_ms, store_host, reconsume_times, prepared, body_bytes, position + 48 + tail.size


def _broken(position: int, end: int, reason: str) -> ClientError:
    return ClientError(f"the broker's answer of {end} bytes holds no record at byte {position}: {reason}")
