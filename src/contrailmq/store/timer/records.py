"""Timer messages as the log holds them, read and copied without decoding more of them than is needed.

    text := 0x02 properties                so that every property, the first too, begins with 0x02 name 0x01

A delivered message is its record once more, with another place and two more properties. So head and body are taken
over as bytes, the property string gets its addition at the end, and only five values are looked up in it: 6 us where
decoding and encoding took 25. What is not of the usual form (IPv6 hosts, a long topic, a message that rolled before)
is None here, and takes the way through `decode_record`.

`RecordReader` keeps the disk away from the caller's thread: a page that is not in memory would stop it, and with it
everybody on its loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import lru_cache
from typing import Final, NamedTuple

from contrailmq.message import Property, StoredMessage, SysFlag, SystemTopic, decode_properties, tags_code
from contrailmq.store.record import MAGIC_V1, CorruptRecordError, decode_record
from contrailmq.store.residency import CHUNK_BYTES
from contrailmq.store.status import Copy

_FRONT: Final = struct.Struct(">ii20xqi44xi")  # size, magic, physical_offset, sys_flag, body_length
_FRONT_BYTES: Final = 88
assert _FRONT.size == _FRONT_BYTES
_UNUSUAL_FLAGS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH
_FILE_BYTES_MAX: Final = 1 << 40  # more than a file of the log has
_TOPIC: Final = SystemTopic.TIMER.encode()
_TOPIC_PART: Final = bytes((len(_TOPIC),)) + _TOPIC
_TOPIC_BYTES: Final = len(_TOPIC_PART)


def _key(name: str) -> bytes:
    return b"\x02" + name.encode() + b"\x01"


_OUT_MS: Final = _key(Property.TIMER_OUT_MS)
_REAL_TOPIC: Final = _key(Property.REAL_TOPIC)
_DELETE_KEY: Final = _key(Property.TIMER_DELETE_UNIQUE_KEY)
_REAL_QUEUE_ID: Final = _key(Property.REAL_QUEUE_ID)
_TAGS: Final = _key(Property.TAGS)
_KEYS: Final = _key(Property.KEYS)
_UNIQUE_KEY: Final = _key(Property.UNIQUE_KEY)
_COPIED: Final = tuple((key, len(key)) for key in (_REAL_TOPIC, _REAL_QUEUE_ID, _TAGS, _KEYS, _UNIQUE_KEY))
_ENQUEUE_MS: Final = _key(Property.TIMER_ENQUEUE_MS)
_DEQUEUE_MS: Final = _key(Property.TIMER_DEQUEUE_MS)
_ROLL_TIMES: Final = _key(Property.TIMER_ROLL_TIMES)
_CRC32: Final = _key(Property.CRC32)


Parts = tuple[int, int, bytes]  # of a record of the timer topic: where its body ends, its flags, `text` (see above)


def split(record: memoryview, physical_offset: int) -> Parts | None:
    """None when it is no timer message of the usual form that lies there."""
    size, magic, own_offset, sys_flag, body_length = _FRONT.unpack_from(record)
    if size != len(record) or magic != MAGIC_V1 or own_offset != physical_offset or sys_flag & _UNUSUAL_FLAGS:
        return None
    body_end = _FRONT_BYTES + body_length
    start = body_end + _TOPIC_BYTES + 2
    if body_length < 0 or start > size or record[body_end : start - 2] != _TOPIC_PART:
        return None
    return body_end, sys_flag, b"\x02" + record[start:]


def value_of(text: bytes, key: bytes) -> bytes | None:
    """The value behind a key, as `decode_properties` finds it: of two equal names the last that has a value."""
    start = text.rfind(key)
    if start < 0:
        return None
    start += len(key)
    end = text.find(b"\x02", start)
    value = text[start:] if end < 0 else text[start:end]
    if not value:
        found = decode_properties(text).get(key[1:-1].decode())
        return None if found is None else found.encode()
    return value


def copy_for_delivery(record: memoryview, parts: Parts, addition: bytes) -> Copy | None:
    """The record as it goes into its real topic; None when it has to be decoded for that."""
    body_end, sys_flag, text = parts
    if text[-1] != 2 or _ENQUEUE_MS in text or _DEQUEUE_MS in text or _ROLL_TIMES in text or _CRC32 in text:
        return None
    values: list[bytes | None] = []
    find, rfind = text.find, text.rfind
    for key, key_bytes in _COPIED:  # `value_of`, without five calls
        start = rfind(key)
        if start < 0:
            values.append(None)
        else:
            start += key_bytes
            end = find(b"\x02", start)
            values.append(text[start:end] if end > start else value_of(text, key))
    topic, queue_id, tags, keys, unique_key = values
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    tags_text, code = (None, 0) if tags is None else _tags(tags)
    return _tuple(
        Copy,
        (
            _topic(topic),
            int(queue_id),
            bytearray(record[:body_end]),
            text[1:] + addition,
            code,
            None if keys is None else str(keys, "utf-8", "replace"),
            None if unique_key is None else str(unique_key, "utf-8", "replace"),
            tags_text,
            sys_flag,
        ),
    )


class TimerRequest(NamedTuple):
    """What a message of the timer topic asks for."""

    physical_offset: int
    size_bytes: int
    out_ms: int
    topic: str
    is_mark: bool


def read_request(reader: RecordReader, physical_offset: int, size_bytes: int) -> TimerRequest | None:
    """None when the place is not a timer message's any more."""
    record = reader.view(physical_offset, size_bytes)
    if record is None:
        return None
    parts = split(record, physical_offset)
    if parts is None:
        return _decoded_request(reader, physical_offset, size_bytes)
    text = parts[2]
    out, topic = value_of(text, _OUT_MS), value_of(text, _REAL_TOPIC)
    return _tuple(
        TimerRequest,
        (
            physical_offset,
            size_bytes,
            int(out) if out is not None and out.isdigit() else 0,
            "" if topic is None else _topic(topic),
            _DELETE_KEY in text,
        ),
    )


def _decoded_request(reader: RecordReader, physical_offset: int, size_bytes: int) -> TimerRequest | None:
    message = read_timer(reader, physical_offset, size_bytes)
    if message is None:
        return None
    properties = message.properties
    text = properties.get(Property.TIMER_OUT_MS, "")
    out_ms = int(text) if text.isascii() and text.isdigit() else 0
    is_mark = Property.TIMER_DELETE_UNIQUE_KEY in properties
    return TimerRequest(physical_offset, size_bytes, out_ms, properties.get(Property.REAL_TOPIC, ""), is_mark)


def read_timer(reader: RecordReader, physical_offset: int, size_bytes: int) -> StoredMessage | None:
    """The timer message that a unit points at; None when it is gone, or the place is another message's by now."""
    record = reader.view(physical_offset, size_bytes)
    if record is None:
        return None
    try:
        message = decode_record(record)
    except CorruptRecordError:
        return None
    return message if message.topic == SystemTopic.TIMER and message.physical_offset == physical_offset else None


_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less


@lru_cache(maxsize=4096)
def _topic(value: bytes) -> str:
    return str(value, "utf-8", "replace")


@lru_cache(maxsize=4096)
def _tags(value: bytes) -> tuple[str, int]:
    text = str(value, "utf-8", "replace")
    return text, tags_code(text)


class RecordReader:
    """Reads records without ever waiting for a disk: from the mapped log, or from copies that a worker has read.

    Owner: one stage of the timer. Call `prepare` for what is needed next; when it says True, `view` has all of it.
    """

    def __init__(
        self,
        workers: Executor,
        *,
        is_resident: Callable[[int], bool],
        read_log: Callable[[int, int], memoryview | None],
        read_cold: Callable[[int, int], memoryview | None],
    ) -> None:
        self._workers = workers
        self._is_resident = is_resident
        self._read_log = read_log
        self._read_cold = read_cold
        self._copies: dict[int, memoryview | None] = {}
        self._fetching: Future[dict[int, memoryview | None]] | None = None
        self._span: memoryview | None = None  # of the mapped log, from _span_start to the end of its file
        self._span_start = 0
        self._span_end = 0
        self.cold_reads = 0  # records that a worker had to read

    @property
    def is_waiting(self) -> bool:
        """Whether a worker is reading."""
        return self._fetching is not None and not self._fetching.done()

    def prepare(self, offsets: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether these records can be read now. If not, a worker has begun: ask again for the same ones."""
        if self._fetching is not None:
            if not self._fetching.done():
                return False
            self._copies, self._fetching = self._fetching.result(), None
        if self._copies:
            if all(offset in self._copies for offset in offsets):
                return True
            self._copies = {}
        if all(self._is_resident(chunk * CHUNK_BYTES) for chunk in {offset // CHUNK_BYTES for offset in offsets}):
            return True
        self.cold_reads += len(offsets)
        wanted = list(zip(offsets, sizes, strict=True))
        self._fetching = self._workers.submit(
            lambda: {offset: self._read_cold(offset, size_bytes) for offset, size_bytes in wanted}
        )
        return self._fetching.done() and self.prepare(offsets, sizes)

    def view(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        """The record's bytes; None when they are gone."""
        if self._copies and physical_offset in self._copies:
            return self._copies[physical_offset]
        end = physical_offset + size_bytes
        if physical_offset < self._span_start or end > self._span_end:
            self.release()
            self._span = self._read_log(physical_offset, _FILE_BYTES_MAX)
            if self._span is None:
                return None
            self._span_start, self._span_end = physical_offset, physical_offset + len(self._span)
            if end > self._span_end:
                return None
        assert self._span is not None
        return self._span[physical_offset - self._span_start : end - self._span_start]

    def release(self) -> None:
        """Let go of the log's file, so that it can be removed. The views must be gone."""
        if self._span is not None:
            self._span.release()
            self._span = None
        self._span_start = self._span_end = 0
