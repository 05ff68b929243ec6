"""The body of REGISTER_BROKER in its two encodings, checked before any of it is used. Pure.

plain       RegisterBrokerBody as JSON; a sender below version 37 sends the bare topic wrapper
compressed  zlib of:  version  topics  filters  [mappings]
            version  := i32 length, DataVersion JSON             filters  := i32 length, JSON array
            topics   := i32 count, then each: i32 length, text "name read write perm filterType [attributesJson]"
            mappings := i32 count, then each: i32 length, JSON          (senders from version 413 on)

A registration may fill a frame (16 MiB, about 100,000 topics), also when inflated. All but light ones (`is_light`) are
read in a worker thread in slices of at most 256 topics (slices.py), because the decoder holds the interpreter's lock.
The worker also builds the route entries, so that entering a registration is a few operations on whole tables.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from contrailmq.message import DLQ_PREFIX, LONG_TOPIC_BYTES_MAX, RETRY_PREFIX, TOPIC_BYTES_MAX
from contrailmq.namesrv.slices import SLICE_ENTRIES, cut_table, slices_of
from contrailmq.wire.bodies import QueueData, RegisterBrokerBody, TopicConfig, TopicConfigWrapper, TopicQueueMapping
from contrailmq.wire.body_bounds import FREE_BYTES, check_json
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.fastjson import decode_body
from contrailmq.wire.frame import FRAME_BYTES_MAX

__all__ = ["TOPICS_MAX", "ReadRegistration", "check_crc", "give_way", "is_light", "read_registration"]

T = TypeVar("T")
_I32: Final = struct.Struct(">i")
_VERSION_WITH_BODY: Final = 37  # V3_0_11
_VERSION_WITH_MAPPINGS: Final = 413  # V5_0_0
_INFLATED_BYTES_MAX: Final = FRAME_BYTES_MAX  # what the same registration could have without compression
TOPICS_MAX: Final = 100_000  # as many as a plain registration can have
_ITEMS_MAX: Final = 2 * TOPICS_MAX + 100  # a plain topic has two objects, itself and its attributes,
_MEMBERS_MAX: Final = 10 * TOPICS_MAX  # nine members, and 164 bytes: so the bounds are met together
_COMMAS_MAX: Final = 50_000  # in what is decoded at once; 256 topics have some 2,500
QUEUES_MAX: Final = 65_536  # of one topic
FILTER_SERVERS_MAX: Final = 1_024
_REMEDY: Final = "set enableSplitRegistration=true or compressedRegister=true in the broker"
_ZLIB_FIRST_BYTE: Final = 0x78
_WAY_S: Final = 0.0002  # waking up takes a quarter of it; 100,000 topics give way 900 times


def check_crc(body: bytes, expected: int | None) -> None:
    """RemoteProtocolError unless the body has this CRC-32 (without its top bit); 0 and None mean not checked."""
    if expected and zlib.crc32(body) & 0x7FFFFFFF != expected:
        raise RemoteProtocolError(f"crc32 not match: header says {expected}, body of {len(body)} bytes differs")


def is_light(body: bytes) -> bool:
    """Whether decoding takes no longer than other requests do."""
    return len(body) <= FREE_BYTES and body[:1] != bytes([_ZLIB_FIRST_BYTE])


class ReadRegistration(NamedTuple):
    """What a broker says about itself: its queues by topic, and the body without the topics."""

    body: RegisterBrokerBody
    queues: dict[str, QueueData]


def give_way() -> None:
    """Let other threads run; without it they wait for the switch interval, 5 ms.

    A thread that only lets go of the interpreter's lock has it again before another has woken up, hence the sleep.
    """
    time.sleep(_WAY_S)


def read_registration(
    body: bytes,
    *,
    is_compressed: bool,
    version: int,
    to_queues: Callable[[TopicConfig], QueueData],
    after_slice: Callable[[int], None] | None = None,
) -> ReadRegistration:
    """Decode and check. An empty body is a registration without topics. RemoteProtocolError says what is wrong.

    `after_slice` hears how many topics were decoded at once.
    """
    if not body:
        return ReadRegistration(RegisterBrokerBody(), {})
    taker = _Taker(to_queues, after_slice)
    # The newest Java broker deflates the body and still says compressed=false: its first byte tells.
    if is_compressed or body[0] == _ZLIB_FIRST_BYTE:
        found = _decode_compressed(_inflate(body), taker, has_mappings=version >= _VERSION_WITH_MAPPINGS)
    else:
        check_json(
            body,
            bytes_max=FRAME_BYTES_MAX,
            items_max=_ITEMS_MAX,
            members_max=_MEMBERS_MAX,
            remedy=_REMEDY,
            give_way=give_way,
        )
        found = _decode_plain(body, taker, is_bare=version < _VERSION_WITH_BODY)
    taker.end_slice()
    if len(found.filter_server_list) > FILTER_SERVERS_MAX:
        raise RemoteProtocolError(
            f"registration has {len(found.filter_server_list)} filter servers, the limit is {FILTER_SERVERS_MAX}"
        )
    return ReadRegistration(found, taker.queues)


class _Taker:
    """Makes queues of topics, and counts slices."""

    def __init__(
        self, to_queues: Callable[[TopicConfig], QueueData], after_slice: Callable[[int], None] | None
    ) -> None:
        self.queues: dict[str, QueueData] = {}
        self._to_queues = to_queues
        self._after_slice = after_slice
        self._in_slice = 0

    def take(self, topic: str, config: TopicConfig) -> None:
        _check_topic(topic, config)
        self.queues[topic] = self._to_queues(config)
        self._in_slice += 1
        if self._in_slice >= SLICE_ENTRIES:
            self.end_slice()

    def end_slice(self) -> None:
        if self._in_slice:
            if self._after_slice is not None:
                self._after_slice(self._in_slice)
            self._in_slice = 0
            give_way()


def _check_topic(topic: str, config: TopicConfig) -> None:
    """Only what would do harm here: which characters a name may have is the broker's to say."""
    limit = LONG_TOPIC_BYTES_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_BYTES_MAX
    if len(topic) > limit:
        raise RemoteProtocolError(
            f"registration has a topic {topic[:64]!r}... of {len(topic)} characters, the limit is {limit}"
        )
    for key, count in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
        if not 0 <= count <= QUEUES_MAX:
            shown = count if abs(count) < 2**64 else f"a number of {count.bit_length()} bits"
            raise RemoteProtocolError(
                f"registration has {key} {shown} for topic {topic[:64]!r}: it takes 0 to {QUEUES_MAX}"
            )


def _decode_plain(body: bytes, taker: _Taker, *, is_bare: bool) -> RegisterBrokerBody:
    mappings: dict[str, TopicQueueMapping] = {}
    if len(body) > FREE_BYTES:
        body = _cut_out(body, b"topicConfigTable", dict[str, TopicConfig], taker.take, taker.end_slice)
        body = _cut_out(
            body, b"topicQueueMappingInfoMap", dict[str, TopicQueueMapping], mappings.__setitem__, taker.end_slice
        )
        check_json(body, commas_max=_COMMAS_MAX, remedy=_REMEDY)
    if is_bare:
        found = RegisterBrokerBody(topic_config_serialize_wrapper=decode_body(body, TopicConfigWrapper))
    else:
        found = decode_body(body, RegisterBrokerBody)
    wrapper = found.topic_config_serialize_wrapper
    for topic, config in wrapper.topic_config_table.items():
        taker.take(topic, config)
    wrapper.topic_config_table = {}
    if mappings:
        wrapper.topic_queue_mapping_info_map = mappings
    return found


def _cut_out(
    body: bytes, name: bytes, kind: type[dict[str, T]], take: Callable[[str, T], None], end_slice: Callable[[], None]
) -> bytes:
    """Take the entries of a table slice by slice; the body without them. One that cannot be cut stays."""
    cut = cut_table(body, name, give_way)
    if cut is None:
        return body
    for piece in slices_of(body, cut):
        check_json(piece, commas_max=_COMMAS_MAX, remedy=_REMEDY)
        for key, value in decode_body(piece, kind).items():
            take(key, value)
        end_slice()
    return cut.rest(body)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, _INFLATED_BYTES_MAX)
    except zlib.error as exc:
        raise RemoteProtocolError(f"registration of {len(body)} bytes is not zlib: {exc}") from exc
    if not inflater.eof:
        raise RemoteProtocolError(f"registration is cut short, or inflates beyond {_INFLATED_BYTES_MAX} bytes")
    return data


class _Reader:
    """Length-prefixed pieces, each checked against what is left."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._data)

    def number(self) -> int:
        if len(self._data) - self._position < 4:
            raise RemoteProtocolError(f"registration ends at byte {self._position} where a number is due")
        value: int = _I32.unpack_from(self._data, self._position)[0]
        if value < 0:
            raise RemoteProtocolError(f"registration has the length {value} at byte {self._position}")
        self._position += 4
        return value

    def count(self, what: str) -> int:
        value = self.number()
        if value > TOPICS_MAX:
            raise RemoteProtocolError(
                f"registration has {value} {what}, the limit is {TOPICS_MAX}: set enableSplitRegistration=true"
            )
        return value

    def json(self) -> bytes:
        piece = self.piece()
        check_json(piece, commas_max=_COMMAS_MAX)
        return piece

    def piece(self) -> bytes:
        size_bytes = self.number()
        start, end = self._position, self._position + size_bytes
        if end > len(self._data):
            raise RemoteProtocolError(f"registration has a piece of {size_bytes} bytes at byte {start}, beyond its end")
        self._position = end
        return self._data[start:end]


def _decode_compressed(data: bytes, taker: _Taker, *, has_mappings: bool) -> RegisterBrokerBody:
    reader = _Reader(data)
    wrapper = TopicConfigWrapper(topic_queue_mapping_info_map={})
    wrapper.data_version = decode_body(reader.json(), type(wrapper.data_version))
    for _ in range(reader.count("topics")):
        config = _topic_config(reader.piece())
        taker.take(config.topic_name, config)
    filters = [] if reader.is_at_end else decode_body(reader.json(), list[str])
    if has_mappings and not reader.is_at_end:
        for _ in range(reader.count("mappings")):
            mapping = decode_body(reader.json(), TopicQueueMapping)
            assert wrapper.topic_queue_mapping_info_map is not None
            wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
    return RegisterBrokerBody(filter_server_list=filters, topic_config_serialize_wrapper=wrapper)


def _topic_config(piece: bytes) -> TopicConfig:
    try:
        parts = piece.decode().split(" ", 5)
        name, read, write, perm, filter_type = parts[:5]
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except (UnicodeDecodeError, ValueError) as exc:
        raise RemoteProtocolError(f"registration has no topic in {piece[:80]!r}: {exc}") from exc
    if len(parts) == 6 and parts[5]:
        attributes = parts[5].encode()
        check_json(attributes, commas_max=_COMMAS_MAX)
        config.attributes = decode_body(attributes, dict[str, str])
    return config
