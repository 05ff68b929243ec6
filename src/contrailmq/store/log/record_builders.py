"""Builders: the bytes of records whose places in the log are known.

`CommitLog._write` gives `Draft`s their places and turns them into facts for dispatch. One call of a builder then makes
the bytes of all of them. A builder decides nothing: offsets, limits and files are the log's.

    builder := (content, facts) -> bytes        content has at least as many messages as there are facts, in their order

    plain_records    V1, both hosts IPv4, no record checksum: nearly all records
    copied_records   records of the log once more, at another place
    encoded_records  everything else, by the reference encoder
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be

from contrailmq.message import Property
from contrailmq.message.checksum import crc32
from contrailmq.message.codec import CRC_PROPERTY_BYTES, MAGIC_V1, encode_record
from contrailmq.message.property_text import without
from contrailmq.message.record import HOST_V4_BYTES, QUEUE_ID_AT, QUEUE_OFFSET_AT, STORE_TIME_AT
from contrailmq.store.base.status import Copy
from contrailmq.store.config import StoreConfig
from contrailmq.store.queues.queue_state import DispatchFact, QueueState

Shared = tuple[int, bytes, bytes, int, int]
"""What records that come together share: born time (ms), born host, store host, reconsume times, prepared transaction
offset"""

Plain = tuple[Shared, list[int], list[bytes]]
"""what they share, their flags and their bodies"""

_CRC: Final = Property.CRC32.encode()
_I16: Final = struct.Struct(">h").pack
_I32_INTO: Final = struct.Struct(">i").pack_into
_I64_INTO: Final = struct.Struct(">q").pack_into
_TWO_I64_INTO: Final = struct.Struct(">qq").pack_into


def plain_records(content: Plain, facts: list[DispatchFact]) -> bytes:
    """ValueError when a number does not fit. 0.1 us less for each than packing heads and joining all of it."""
    (born_time_ms, born_host, store_host, reconsume_times, prepared), flags, bodies = content
    records = BytesWriter()
    for number, fact in enumerate(facts):
        state, offset, size, _, store_time_ms, queue_offset, _, sys_flag, properties = fact
        body = bodies[number]
        write_i32_be(records, size)
        write_i32_be(records, MAGIC_V1)
        write_i32_be(records, crc32(body) & 0x7FFFFFFF)
        write_i32_be(records, state.queue_id)
        write_i32_be(records, flags[number])
        write_i64_be(records, queue_offset)
        write_i64_be(records, offset)
        write_i32_be(records, sys_flag)
        write_i64_be(records, born_time_ms)
        records.write(born_host)
        write_i64_be(records, store_time_ms)
        records.write(store_host)
        write_i32_be(records, reconsume_times)
        write_i64_be(records, prepared)
        write_i32_be(records, len(body))
        records.write(body)
        records.write(state.topic_part)
        write_i16_be(records, len(properties))
        records.write(properties)
    return records.getvalue()


def copied_records(copies: Sequence[Copy], facts: list[DispatchFact]) -> bytes:
    """Copies know where they are when this returns: see `copying.place_of`."""
    pieces: list[bytes | bytearray] = []
    for copy, (state, offset, size, _, store_time_ms, queue_offset, _, _, properties) in zip(
        copies, facts, strict=False
    ):
        record = copy[2]
        _I32_INTO(record, 0, size)
        _I32_INTO(record, QUEUE_ID_AT, state.queue_id)
        _TWO_I64_INTO(record, QUEUE_OFFSET_AT, queue_offset, offset)
        _I64_INTO(record, STORE_TIME_AT, store_time_ms)
        pieces += (record, state.topic_part, _I16(len(properties)), properties)
    return b"".join(pieces)


class Encoding:
    """How a log encodes records that are not plain: long topics, IPv6 hosts, record checksums."""

    __slots__ = ("_body_bytes_max", "_long_topics", "with_record_crc")

    def __init__(self, config: StoreConfig) -> None:
        self.with_record_crc = config.enabled_append_prop_crc
        self._long_topics = config.auto_message_version_on_topic_len
        self._body_bytes_max = config.max_message_size

    def kept(self, properties: bytes) -> bytes:
        """A sender's own CRC property is not ours: RocketMQ drops it before it writes the true one."""
        if self.with_record_crc and _CRC in properties:
            return without(properties, (_CRC,))
        return properties

    def added_bytes(self, state: QueueState, properties: bytes, shared: Shared) -> int:
        """How much longer a record is than a plain one."""
        added = len(shared[1]) + len(shared[2]) - 2 * HOST_V4_BYTES + self.crc_bytes(properties)
        return added if state.topic_part else added + 1

    def crc_bytes(self, properties: bytes) -> int:
        """What the record checksum adds to these properties."""
        return CRC_PROPERTY_BYTES + (properties[-1:] not in (b"", b"\x02")) if self.with_record_crc else 0

    def encode(self, shared: Shared, flag: int, body: bytes, fact: DispatchFact) -> bytes:
        """MessageError when a number does not fit."""
        born_time_ms, born_host, store_host, reconsume_times, prepared = shared
        state, offset, _, _, store_time_ms, queue_offset, _, sys_flag, properties = fact
        return encode_record(
            state.topic,
            body,
            properties,
            queue_id=state.queue_id,
            queue_offset=queue_offset,
            physical_offset=offset,
            born_host=born_host,
            store_host=store_host,
            born_time_ms=born_time_ms,
            store_time_ms=store_time_ms,
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared,
            long_topics=self._long_topics,
            with_record_crc=self.with_record_crc,
            body_bytes_max=self._body_bytes_max,
        )


def encoded_records(content: tuple[Encoding, Plain], facts: list[DispatchFact]) -> bytes:
    encoding, (shared, flags, bodies) = content
    records = [encoding.encode(shared, flags[number], bodies[number], fact) for number, fact in enumerate(facts)]
    return b"".join(records)
