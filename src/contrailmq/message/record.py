"""The record: RocketMQ's bytes for one stored message, as in the commit log, pull answers and Spark's tasks.

    record := size:i32 magic:i32 body_crc:i32 queue_id:i32 flag:i32 queue_offset:i64 physical_offset:i64 sys_flag:i32
              born_time:i64 born_host store_time:i64 store_host reconsume_times:i32 prepared_transaction_offset:i64
              body_length:i32 body topic_length:(i8 | i16) topic properties_length:i16 properties
    host   := ip:(4 | 16 bytes) port:i32                     (16 where the sysFlag bit of that host says IPv6)

All numbers are big-endian and signed. The topic length has two bytes under magic V2, which only topics over 127 bytes
use. With two IPv4 hosts the part up to `body_length` has 88 bytes; that common case has its own path. No other module
counts these bytes. `RecordView` reads fields in place, `read_record` makes a message; `codec` writes and checks.
"""

from __future__ import annotations

import itertools
import struct
from mmap import mmap
from typing import Final, TypeVar

from contrailmq.message.compression import SysFlag
from contrailmq.message.errors import MessageError
from contrailmq.message.model import StoredMessage
from contrailmq.message.property_text import find_decoded

Buffer = bytes | bytearray | memoryview | mmap

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB, topics over 127 bytes

HOSTS_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
_FIELDS: Final = {  # of a head with IPv4 hosts, up to the body
    "size": "i",
    "magic": "i",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_time": "q",
    "born_host": f"{HOST_V4_BYTES}s",
    "store_time": "q",
    "store_host": f"{HOST_V4_BYTES}s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_bytes": "i",
}


def head_struct(*names: str) -> struct.Struct:
    """These fields of a head with IPv4 hosts, in their order, and nothing of the others."""
    codes = (code if name in names else f"{struct.calcsize('>' + code)}x" for name, code in _FIELDS.items())
    return struct.Struct(">" + "".join(codes))


def head_fields(hosts_v6: int) -> dict[str, str]:
    """Each field of a head with its code of `struct`. These bits of the sysFlag say which hosts are IPv6."""
    wide = {"born_host": hosts_v6 & SysFlag.BORN_HOST_V6, "store_host": hosts_v6 & SysFlag.STORE_HOST_V6}
    return _FIELDS | {name: f"{HOST_V6_BYTES}s" for name, is_wide in wide.items() if is_wide}


HEADS: Final = {  # which hosts are IPv6 -> everything up to and including body_bytes
    hosts_v6: struct.Struct(">" + "".join(head_fields(hosts_v6).values()))
    for hosts_v6 in (0, int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6), int(HOSTS_V6))
}
SIZE_AND_MAGIC: Final = struct.Struct(">ii")  # with which a record begins, and what fills the end of a file
HEAD_V4: Final = HEADS[0]
HEAD_V4_BYTES: Final = 88
assert HEAD_V4.size == HEAD_V4_BYTES
assert HEADS[HOSTS_V6].size == HEAD_V4_BYTES + 24
RECORD_BYTES_MIN: Final = HEAD_V4_BYTES + 1 + 2  # empty body, topic and properties

# Where fields begin, counted from the record's first byte.
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20  # and the physical offset follows
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
STORE_TIME_AT: Final = 56  # this and what follows: where the born host is IPv4
STORE_HOST_AT: Final = 64
PREPARED_OFFSET_AT: Final = 76  # where both hosts are IPv4
BODY_BYTES_BYTES: Final = 4  # of the body's length, which is the last field of a head
BODY_BYTES_AT: Final = 84  # where both hosts are IPv4
OFFSETS: Final = slice(QUEUE_OFFSET_AT, SYS_FLAG_AT)
_PLACES: Final = dict(
    zip(_FIELDS, itertools.accumulate([struct.calcsize(">" + code) for code in ("", *_FIELDS.values())]), strict=False)
)
assert _PLACES.items() >= {
    ("magic", MAGIC_AT),
    ("body_crc", BODY_CRC_AT),
    ("queue_id", QUEUE_ID_AT),
    ("queue_offset", QUEUE_OFFSET_AT),
    ("physical_offset", PHYSICAL_OFFSET_AT),
    ("sys_flag", SYS_FLAG_AT),
    ("born_host", BORN_HOST_AT),
    ("store_time", STORE_TIME_AT),
    ("store_host", STORE_HOST_AT),
    ("prepared_transaction_offset", PREPARED_OFFSET_AT),
    ("body_bytes", BODY_BYTES_AT),
}
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")

_TOPICS_MAX: Final = 4096  # a cache of decoded names, so it may simply start over
_topics: dict[bytes, str] = {}

M = TypeVar("M", bound=StoredMessage)


class RecordView:
    """A record as it lies in a buffer, nothing of it decoded: its head as numbers, its texts as UTF-8.

    The buffer must outlive the view only for the body and for what few ask for; topic and properties are bytes of its
    own, because all ask for them.
    """

    __slots__ = (
        "body_at",
        "body_crc",
        "body_end",
        "buffer",
        "physical_offset",
        "position",
        "properties",
        "queue_id",
        "queue_offset",
        "size_bytes",
        "store_time_ms",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        buffer: Buffer,
        position: int,
        size_bytes: int,
        body_crc: int,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        store_time_ms: int,
        body_at: int,
        body_end: int,
        topic: bytes,
        properties: bytes,
    ) -> None:
        """For callers that have checked the record and know its parts; others use `view_record`."""
        self.buffer = buffer
        self.position = position
        self.size_bytes = size_bytes
        self.body_crc = body_crc
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.sys_flag = sys_flag
        self.store_time_ms = store_time_ms
        self.body_at = body_at
        self.body_end = body_end
        self.topic = topic
        self.properties = properties

    @property
    def end(self) -> int:
        """The physical offset after it."""
        return self.physical_offset + self.size_bytes

    @property
    def topic_name(self) -> str:
        return _topics.get(self.topic) or _remember_topic(self.topic)

    @property
    def body(self) -> bytes:
        """As stored: perhaps compressed."""
        return bytes(self.buffer[self.body_at : self.body_end])

    @property
    def born_time_ms(self) -> int:
        time_ms: int = _I64.unpack_from(self.buffer, self.position + BORN_HOST_AT - _I64.size)[0]
        return time_ms

    @property
    def prepared_transaction_offset(self) -> int:
        offset: int = _I64.unpack_from(self.buffer, self.body_at - BODY_BYTES_BYTES - _I64.size)[0]
        return offset

    def find(self, key: bytes) -> str | None:
        """The value of a property (see property_text.py)."""
        return find_decoded(self.properties, key)


def view_record(buffer: Buffer, position: int = 0) -> RecordView:
    """The record at `position`, seen in place. Raises MessageError for lengths that cannot be; checks no CRC."""
    head, body, body_end, topic, topic_end = _parts(buffer, position)
    size = head[0]
    return RecordView(
        buffer, position, size, head[2], head[3], head[5], head[6], head[7], head[10], body, body_end,
        bytes(buffer[topic:topic_end]), bytes(buffer[topic_end + 2 : position + size]),
    )  # fmt: skip


def read_store_time(buffer: Buffer, position: int = 0) -> int:
    """When the record at `position` was stored: the place depends on the family of the born host alone."""
    (sys_flag,) = _I32.unpack_from(buffer, position + SYS_FLAG_AT)
    wider = HOST_V6_BYTES - HOST_V4_BYTES if sys_flag & SysFlag.BORN_HOST_V6 else 0
    time_ms: int = _I64.unpack_from(buffer, position + STORE_TIME_AT + wider)[0]
    return time_ms


_Head = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]


def _parts(buffer: Buffer, position: int) -> tuple[_Head, int, int, int, int]:
    """The head of the record at `position`; where its body and its topic begin and end."""
    try:
        head: _Head = HEAD_V4.unpack_from(buffer, position)
        size, magic, sys_flag = head[0], head[1], head[7]
        body = position + HEAD_V4_BYTES
        if sys_flag & HOSTS_V6:
            wider = HEADS[sys_flag & HOSTS_V6]
            head = wider.unpack_from(buffer, position)
            body = position + wider.size
        body_end = body + head[14]
        if magic == MAGIC_V1:
            topic = body_end + 1
            topic_end = topic + buffer[body_end]
        elif magic == MAGIC_V2:
            topic = body_end + 2
            topic_end = topic + _I16.unpack_from(buffer, body_end)[0]
        else:
            raise _malformed(position, f"its magic number is {magic & 0xFFFFFFFF:#010x}")
        end = position + size
        properties_bytes = (buffer[topic_end] << 8) + buffer[topic_end + 1]
        if not body <= body_end < topic <= topic_end or topic_end + 2 + properties_bytes != end or end > len(buffer):
            raise _malformed(position, f"its size says {size}, its body {head[14]}")
    except (struct.error, IndexError, OverflowError) as exc:
        raise _malformed(position, f"it is cut at {len(buffer)}") from exc
    return head, body, body_end, topic, topic_end


def read_record(kind: type[M], buffer: Buffer, position: int = 0) -> M:
    """The record at `position` as a message of that class. Raises MessageError for lengths that cannot be.

    Checks no CRC; properties and compressed bodies stay bytes until somebody looks. This is most of what receiving a
    message costs a client, hence the named fields: a call with `*fields` takes a third longer.
    """
    head, body, body_end, topic, topic_end = _parts(buffer, position)
    (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms,
     store_host, reconsume_times, prepared, _) = head  # fmt: skip
    end = position + size
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
