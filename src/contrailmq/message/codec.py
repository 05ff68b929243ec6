"""Writes and checks the records of the commit log. Layout and reading: `contrailmq.message.record`.

    blank  := size:i32 magic:i32                             (ends a log file; size counts to the end of the file)

A record may end with a property that checks all of it (enabledAppendPropCRC, MessageDecoder.createCrc32):

    crc_property := "__CRC32#" 0x01 ten digits 0x02          (CRC-32 of all bytes before it, & 0x7FFFFFFF, decimal,
                                                              least significant digit first, padded with zeros)

`check_record` checks any bytes in bounded time and never raises. Pass `decode_record` only records that passed.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from contrailmq.message import (
    BODY_BYTES_MAX,
    LONG_TOPIC_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    ContrailError,
    MessageError,
    Property,
    StoredMessage,
    SysFlag,
)
from contrailmq.message.batch import BatchPart, encode_batch, split_batch
from contrailmq.message.checksum import crc32
from contrailmq.message.record import (
    BODY_BYTES_BYTES,
    HEAD_V4_BYTES,
    HEADS,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    Buffer,
    head_struct,
    read_record,
)

__all__ = [
    "BLANK_BYTES",
    "BLANK_MAGIC",
    "CRC_PROPERTY_BYTES",
    "MAGIC_V1",
    "MAGIC_V2",
    "BatchPart",
    "Buffer",
    "CorruptRecordError",
    "Kind",
    "Scan",
    "Verdict",
    "body_crc",
    "check_record",
    "decode_record",
    "encode_batch",
    "encode_blank",
    "encode_record",
    "scan_records",
    "split_batch",
    "unwrap_inner_batch",
]

BLANK_MAGIC: Final = -875286124  # 0xCBD43194
SECTOR_BYTES: Final = 512  # what a disk writes whole or not at all
BLANK_BYTES: Final = 8
CRC_PROPERTY_BYTES: Final = 20
_CRC_PROPERTY_NAME: Final = b"__CRC32#\x01"
RECORD_SLACK_BYTES: Final = 64 * 1024  # a record may exceed maxMessageSize by this (CommitLog since 4.9.4)

_front_of: Final = head_struct("size", "magic", "body_crc", "physical_offset", "sys_flag", "body_bytes").unpack_from
_LENGTH: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


class CorruptRecordError(ContrailError):
    """Bytes that should be a record are not one. `verdict` says what is wrong, `position` where."""

    def __init__(self, verdict: Verdict, position: int) -> None:
        super().__init__(f"no whole record at {position}: {verdict.kind.value}, {verdict.reason}")
        self.verdict, self.position = verdict, position


class Kind(enum.Enum):
    """What is at a position of the log."""

    WHOLE = "whole"
    BLANK = "blank"  # the rest of this file is unused
    NOTHING = "nothing"  # unwritten space
    TORN = "torn"  # a record begins here but its bytes end too soon
    CORRUPT = "corrupt"


class Verdict(NamedTuple):
    """What `check_record` found. `size_bytes` is the record's (or blank's) own claim where it is believable, else 0."""

    kind: Kind
    size_bytes: int
    reason: str


_WHOLE: Final = ""


def encode_record(
    topic: str,
    body: bytes,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_host: bytes,
    store_host: bytes,
    born_time_ms: int,
    store_time_ms: int,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    long_topics: bool = True,
    with_record_crc: bool = False,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> bytes:
    """One record. `long_topics` allows magic V2; the IPv6 bits are set from the hosts, as the store of RocketMQ does.

    Raises `MessageError` naming the field, its size and the limit; nothing half-built is ever returned.
    """
    try:
        topic_bytes = topic.encode()
    except (UnicodeEncodeError, AttributeError) as exc:
        raise MessageError(
            f"topic {topic!r} cannot be encoded as UTF-8 ({exc}): give another name", field="topic"
        ) from exc
    magic = MAGIC_V1 if len(topic_bytes) <= TOPIC_BYTES_MAX else MAGIC_V2
    if with_record_crc and properties and properties[-1] != 2:
        properties += b"\x02"  # otherwise the last value would swallow the CRC property
    properties_length = len(properties) + (CRC_PROPERTY_BYTES if with_record_crc else 0)
    _check_sizes(topic_bytes, len(body), properties_length, long_topics=long_topics, body_bytes_max=body_bytes_max)
    if len(born_host) != 8 or len(store_host) != 8 or sys_flag & HOSTS_V6:
        sys_flag |= _host_bit("born_host", born_host, sys_flag, SysFlag.BORN_HOST_V6)
        sys_flag |= _host_bit("store_host", store_host, sys_flag, SysFlag.STORE_HOST_V6)
    head = HEADS[sys_flag & HOSTS_V6]
    topic_length = len(topic_bytes).to_bytes(1 if magic == MAGIC_V1 else 2, "big")
    size = head.size + len(body) + len(topic_length) + len(topic_bytes) + 2 + properties_length
    try:
        packed = head.pack(
            size, magic, body_crc(body), queue_id, flag, queue_offset, physical_offset, sys_flag, born_time_ms,
            born_host, store_time_ms, store_host, reconsume_times, prepared_transaction_offset, len(body),
        )  # fmt: skip
    except struct.error as exc:
        raise MessageError(
            f"a number of the record does not fit its field ({exc}): queue_id={queue_id} flag={flag} "
            f"queue_offset={queue_offset} physical_offset={physical_offset} sys_flag={sys_flag}",
            field="record",
        ) from exc
    record = b"".join((packed, body, topic_length, topic_bytes, properties_length.to_bytes(2, "big"), properties))
    return record + encode_crc_property(crc32(record) & 0x7FFFFFFF) if with_record_crc else record


def _host_bit(field: str, host: bytes, sys_flag: int, bit: int) -> int:
    """The bit that says that a host is IPv6, or 0. Packing would pad or cut what has another length."""
    size = len(host)
    if size == 20:
        return bit
    if size != 8:
        raise MessageError(
            f"{field}: {size} bytes, it takes 8 (IPv4) or 20 (IPv6): make it with encode_host",
            field=field,
            size=size,
            limit=8 if size < 20 else 20,
        )
    if sys_flag & bit:
        raise MessageError(
            f"{field}: 8 bytes, but sys_flag {sys_flag:#x} says IPv6 ({bit:#x}), which takes 20: clear the bit",
            field=field,
            size=8,
            limit=20,
        )
    return 0


def _check_sizes(
    topic: bytes, body_length: int, properties_length: int, *, long_topics: bool, body_bytes_max: int
) -> None:
    """The size rules, in the reference's order (MessageExtEncoder)."""
    topic_bytes_max = LONG_TOPIC_BYTES_MAX if long_topics else TOPIC_BYTES_MAX
    if (
        0 < len(topic) <= topic_bytes_max
        and body_length <= body_bytes_max
        and properties_length <= PROPERTIES_BYTES_MAX
    ):
        return
    for field, size, limit, remedy in (
        ("properties", properties_length, PROPERTIES_BYTES_MAX, "move data into the body"),
        ("body", body_length, body_bytes_max, "split it or raise maxMessageSize"),
        ("topic", len(topic), topic_bytes_max, "shorten it"),
    ):
        if size > limit:
            raise MessageError(
                f"{field}: {size} bytes, the limit is {limit}: {remedy}", field=field, size=size, limit=limit
            )
    if not topic:
        raise MessageError("topic: 0 bytes, a record needs at least 1: name one", field="topic", size=0, limit=1)


def encode_blank(free_bytes: int) -> bytes:
    """What ends a file whose last `free_bytes` stay unused."""
    assert free_bytes >= BLANK_BYTES  # the roll-over rule keeps 8 bytes free in every file
    return SIZE_AND_MAGIC.pack(free_bytes, BLANK_MAGIC)


def encode_crc_property(crc: int) -> bytes:
    """The property that checks a whole record: `crc` is already masked to 31 bits."""
    assert 0 <= crc <= 0x7FFFFFFF
    return _CRC_PROPERTY_NAME + str(crc)[::-1].ljust(10, "0").encode() + b"\x02"


def body_crc(body: bytes | memoryview) -> int:
    """The body checksum as stored: CRC-32 without its top bit, 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF if body else 0


# -------------------------------------------------------------------------------------------------------------- judge


def check_record(
    buffer: Buffer,
    position: int = 0,
    *,
    limit: int | None = None,
    physical_offset: int | None = None,
    check_body_crc: bool = True,
    check_record_crc: bool = False,
    check_zero_tail: bool = True,
) -> Verdict:
    """Judge the bytes at `position`, which run to `limit` (by default the end of the buffer).

    Follows CommitLog.checkMessageAndReturnSize, and is stricter where that costs nothing: lengths may not be negative,
    and with `physical_offset` given the record must say that it lies there, so that an old record that survived a
    truncation is not taken for a new one.

    With `check_record_crc` (forceVerifyPropCRC) a record that carries the checksum of the whole is judged by it, any
    other by the checksum of its body. There we differ from Apache, which takes a record without the property for bad:
    its recovery would erase everything that was stored before enabledAppendPropCRC was set.

    Without `check_zero_tail` a record may end in zeros: of bytes that came over a network no page was lost.
    """
    if position < 0:
        return Verdict(Kind.CORRUPT, 0, f"position {position} is before the first byte")
    end = len(buffer) if limit is None else min(limit, len(buffer))
    left = end - position
    if left < BLANK_BYTES:
        rest = bytes(buffer[position:end]) if left > 0 else b""
        kind = Kind.TORN if any(rest) else Kind.NOTHING
        return Verdict(kind, 0, f"{max(left, 0)} bytes are left, a record needs {RECORD_BYTES_MIN}")
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        if BLANK_BYTES <= size <= left:
            return Verdict(Kind.BLANK, size, "end of file")
        return Verdict(Kind.CORRUPT, 0, f"a blank of {size} bytes where {left} are left")
    if magic not in (MAGIC_V1, MAGIC_V2):
        if size == 0 and magic == 0:
            return Verdict(Kind.NOTHING, 0, "unwritten space")
        return Verdict(Kind.CORRUPT, 0, f"magic {magic & 0xFFFFFFFF:#010x} is not that of a record")
    if size < RECORD_BYTES_MIN:
        return Verdict(Kind.CORRUPT, 0, f"size {size} is below the smallest record's {RECORD_BYTES_MIN}")
    if size > left:
        return Verdict(Kind.TORN, size, f"a record of {size} bytes where {left} are left")
    reason = _fault(
        buffer, position, size, magic, end, physical_offset, check_body_crc, check_record_crc, check_zero_tail
    )
    return Verdict(Kind.CORRUPT if reason else Kind.WHOLE, size, reason)


def _fault(
    buffer: Buffer,
    position: int,
    size: int,
    magic: int,
    limit: int,
    physical_offset: int | None,
    check_body_crc: bool,
    check_record_crc: bool,
    check_zero_tail: bool,
) -> str:
    """What is wrong inside a record of believable size and magic; empty when nothing is."""
    _, _, crc, own_offset, sys_flag, _ = _front_of(buffer, position)
    head_size = HEADS[sys_flag & HOSTS_V6].size
    end = position + size
    width = 1 if magic == MAGIC_V1 else 2
    body = position + head_size
    if body + width + 2 > end:
        return f"its header does not fit into {size} bytes"
    body_length: int = _LENGTH.unpack_from(buffer, body - BODY_BYTES_BYTES)[0]
    topic = body + body_length + width
    if body_length < 0 or topic + 2 > end:
        return f"body length {body_length} does not fit into {size} bytes"
    topic_length: int = buffer[topic - 1] if width == 1 else _I16.unpack_from(buffer, topic - 2)[0]
    properties = topic + topic_length + 2
    if topic_length < 0 or (width == 1 and topic_length > TOPIC_BYTES_MAX) or properties > end:
        return f"topic length {topic_length} does not fit into {size} bytes"
    properties_length: int = _I16.unpack_from(buffer, properties - 2)[0]
    if properties + properties_length != end:
        return f"its parts have {properties + properties_length - position} bytes, its size says {size}"
    if check_zero_tail and (
        not buffer[properties - 3]
        or (properties_length and not buffer[end - 1] and not _is_followed(buffer, end, limit, own_offset + size))
    ):
        # The body checksum ends before topic and properties. A page of them that never reached the disk reads as zeros,
        # and a topic or a property string of ours never ends in one. Java takes such a record for whole.
        return "its topic or properties end in zero bytes, as after a lost write"
    if physical_offset is not None and own_offset != physical_offset:
        return f"it says physical offset {own_offset} but lies at {physical_offset}"
    if check_record_crc and _has_crc_property(buffer, properties, end):
        return _crc_property_fault(buffer, position, end)
    if check_body_crc and body_length and crc32(buffer[body : body + body_length]) & 0x7FFFFFFF != crc:
        return f"body checksum differs from the stored {crc}"
    return _WHOLE


def _is_followed(buffer: Buffer, end: int, limit: int, following_offset: int) -> bool:
    """Whether the next record, or the file's BLANK, begins in the sector in which this one ends.

    Then that sector was written after both, so a zero at the end is the sender's (a broker before 5.2 wrote no last
    separator, and a value may end in NUL) and not a lost write's.
    """
    if end % SECTOR_BYTES == 0 or end + BLANK_BYTES > limit:
        return False
    _, magic = SIZE_AND_MAGIC.unpack_from(buffer, end)
    if magic == BLANK_MAGIC:
        return True
    if magic not in (MAGIC_V1, MAGIC_V2) or end + RECORD_BYTES_MIN > limit:
        return False
    own_offset: int = _front_of(buffer, end)[3]
    return own_offset == following_offset


def _has_crc_property(buffer: Buffer, properties: int, end: int) -> bool:
    """Whether a record ends in its checksum, or in what damage left of it: most of the name, or the digits behind a
    sector that was lost and reads as zeros."""
    if end - properties < CRC_PROPERTY_BYTES:
        return False
    stored = bytes(buffer[end - CRC_PROPERTY_BYTES : end])
    alike = sum(a == b for a, b in zip(stored, _CRC_PROPERTY_NAME, strict=False))
    left = stored.lstrip(b"\0")
    is_cut = len(left) < CRC_PROPERTY_BYTES and left[-1:] == b"\x02" and left[-11:-1].isdigit()
    return is_cut or alike > len(_CRC_PROPERTY_NAME) // 2


def _crc_property_fault(buffer: Buffer, position: int, end: int) -> str:
    stored = bytes(buffer[end - CRC_PROPERTY_BYTES : end])
    crc = crc32(buffer[position : end - CRC_PROPERTY_BYTES]) & 0x7FFFFFFF
    return _WHOLE if stored == encode_crc_property(crc) else f"record checksum differs from the computed {crc}"


class Scan(NamedTuple):
    """A walk over records: where each begins, how long each is, and what ended the walk at `position`."""

    positions: list[int]
    sizes: list[int]
    position: int
    verdict: Verdict


def scan_records(
    buffer: Buffer, position: int, limit: int, *, base_offset: int | None, check_body_crc: bool = True
) -> Scan:
    """Walk whole records from `position` to the first thing that is not one, or to `limit`.

    `base_offset` is the physical offset of the buffer's first byte (None: do not compare). The loop handles the common
    shape (V1, IPv4) inline and leaves every doubt to `check_record`: 1 us per record besides the checksum.
    """
    positions: list[int] = []
    sizes: list[int] = []
    unpack, checksum = _front_of, crc32
    while True:
        if position + RECORD_BYTES_MIN <= limit:
            size, magic, crc, own_offset, sys_flag, body_bytes = unpack(buffer, position)
            end = position + size
            if (
                magic == MAGIC_V1
                and not sys_flag & HOSTS_V6
                and size >= RECORD_BYTES_MIN
                and end <= limit
                and (base_offset is None or own_offset == base_offset + position)
            ):
                body = position + HEAD_V4_BYTES
                body_end = body + body_bytes
                if body <= body_end <= end - 3:
                    properties = body_end + 3 + buffer[body_end]
                    if (
                        properties <= end
                        and buffer[body_end] < 128
                        and buffer[properties - 3]
                        and buffer[end - 1]
                        and (buffer[properties - 2] << 8) + buffer[properties - 1] == end - properties
                        and (
                            not check_body_crc
                            or body_end == body
                            or checksum(buffer[body:body_end]) & 0x7FFFFFFF == crc
                        )
                    ):
                        positions.append(position)
                        sizes.append(size)
                        position = end
                        continue
        verdict = check_record(
            buffer,
            position,
            limit=limit,
            physical_offset=None if base_offset is None else base_offset + position,
            check_body_crc=check_body_crc,
        )
        if verdict.kind is not Kind.WHOLE:
            return Scan(positions, sizes, position, verdict)
        positions.append(position)
        sizes.append(verdict.size_bytes)
        position += verdict.size_bytes


# ------------------------------------------------------------------------------------------------------------- decode


def decode_record(buffer: Buffer, position: int = 0) -> StoredMessage:
    """The record at `position` as a message. Raises `CorruptRecordError` for lengths that cannot be; checks no CRC."""
    try:
        return read_record(StoredMessage, buffer, position)
    except MessageError as exc:
        raise CorruptRecordError(check_record(buffer, position), position) from exc


# ------------------------------------------------------------------------------------------------------ inner batches


def unwrap_inner_batch(message: StoredMessage) -> Sequence[StoredMessage]:
    """The messages inside an inner-batch record (topics with queue.type=BatchCQ), or the message itself.

    Raises `MessageError` for a body that is not a batch and for an INNER_BASE that is not a number.
    """
    if not message.sys_flag & SysFlag.INNER_BATCH:
        return [message]
    stored_base = message.properties.get(Property.INNER_BASE, message.queue_offset)
    try:
        base = int(stored_base)
    except ValueError:
        raise MessageError(
            f"{Property.INNER_BASE} is {str(stored_base)[:64]!r}: the first queue offset of an inner batch is a number",
            field=f"properties[{Property.INNER_BASE}]",
        ) from None
    return [
        StoredMessage(
            message.topic,
            part.body,
            part.properties,
            len(part.body),
            message.magic,
            body_crc(part.body),
            message.queue_id,
            part.flag,
            base + index,
            message.physical_offset,
            message.sys_flag & ~(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED),
            message.born_time_ms,
            message.born_host_bytes,
            message.store_time_ms,
            message.store_host_bytes,
            message.reconsume_times,
            message.prepared_transaction_offset,
        )
        for index, part in enumerate(split_batch(message.body))
    ]
