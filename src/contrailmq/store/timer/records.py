"""Timer messages as the log holds them, read without decoding more of them than is needed (see store/log/copying.py).

`RecordReader` keeps the disk away from the caller's thread: a page that is not in memory would stop it, and with it
everybody on its loop.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import lru_cache
from typing import Final, NamedTuple

from contrailmq.message import Property, StoredMessage, SystemTopic, natural_number
from contrailmq.message.codec import MAGIC_V1, CorruptRecordError, decode_record
from contrailmq.store.base.status import Copy
from contrailmq.store.log.copying import (
    FRONT_BYTES,
    REAL_TOPIC,
    TAIL_MAX,
    UNUSUAL_FLAGS,
    Copier,
    front_of,
    property_key,
    split,
    topic_part,
    value_of,
)
from contrailmq.store.log.damage import body_fault
from contrailmq.store.log.residency import CHUNK_BYTES
from contrailmq.store.timer.admission import TimerRefusal, requested_time_ms
from contrailmq.store.timer.host import TimerHost

_log = logging.getLogger(__name__)

_FILE_BYTES_MAX: Final = 1 << 40  # more than a file of the log has
_TOPIC: Final = topic_part(SystemTopic.TIMER)
_OUT_MS: Final = property_key(Property.TIMER_OUT_MS)
_DELETE_KEY: Final = property_key(Property.TIMER_DELETE_UNIQUE_KEY)
_OUT_MS_BYTES: Final = _OUT_MS.encode()
_REAL_TOPIC_BYTES: Final = REAL_TOPIC.encode()
_DELETE_KEY_BYTES: Final = _DELETE_KEY[1:].encode()  # wherever it stands
_PROPERTIES_AT: Final = len(_TOPIC) + 2  # behind the body
_SEPARATOR: Final = 2
_DELAY_SECONDS: Final = Property.TIMER_DELAY_SECONDS.encode() + b"\x01"
_DELAY_MS: Final = Property.TIMER_DELAY_MS.encode() + b"\x01"
_DELIVER_MS: Final = Property.TIMER_DELIVER_MS.encode() + b"\x01"
_REQUEST_KEY: Final = b"TIMER_DEL"  # what all three begin with
_DIGITS_MAX: Final = 15  # of a time or delay that was admitted: 30,000 years
_STORE_TIME: Final = struct.Struct(">56xq")
OF_A_TIMER: Final = (Property.TIMER_ENQUEUE_MS, Property.TIMER_DEQUEUE_MS, Property.TIMER_ROLL_TIMES)


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
    parts = split(record, _TOPIC)
    if parts is None or parts[1] != physical_offset:
        return _decoded_request(reader, physical_offset, size_bytes)
    text = parts[5]
    at = text.rfind(_OUT_MS)
    out_ms, topic = _known_wish(text[at:]) if 0 <= at >= len(text) - TAIL_MAX else (0, "")
    if not out_ms or not topic:
        out_ms, topic = _wish(text)
    return _tuple(TimerRequest, (physical_offset, size_bytes, out_ms, topic, _DELETE_KEY in text))


def read_wishes(reader: RecordReader, units: Sequence[tuple[int, int, int]]) -> list[bytes]:
    """Of each message its properties from TIMER_OUT_MS to the end, where that says all that `read_request` would.

    Messages of one topic and one slot have the same, so what becomes of them is looked up once. Empty for a message
    that has to be looked at by itself: a mark, one that is gone or not of the usual form.
    """
    wishes: list[bytes] = []
    span, start, end = memoryview(b""), 0, 0
    for physical_offset, size_bytes, _ in units:
        if physical_offset < start or physical_offset + size_bytes > end:
            span, start, end = reader.span(physical_offset)
        at = physical_offset - start
        wish = b""
        if physical_offset + size_bytes <= end and size_bytes >= FRONT_BYTES:
            size, magic, _, own_offset, sys_flag, body_length = front_of(span, at)
            is_own = size == size_bytes and own_offset == physical_offset
            if is_own and magic == MAGIC_V1 and body_length >= 0 and not sys_flag & UNUSUAL_FLAGS:
                rest = span[at + FRONT_BYTES + body_length : at + size].tobytes()
                out = rest.rfind(_OUT_MS_BYTES)
                if out >= 0 and rest.startswith(_TOPIC) and rest.find(_DELETE_KEY_BYTES) < 0:
                    wish = rest[out:]
        wishes.append(wish)
    return wishes


def own_times(reader: RecordReader, offsets: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """When each of these messages is to be delivered, to the millisecond; 0 where that is not known.

    A delay counts from the time at which the message was stored: that is never before the time at which it was
    admitted. One that has rolled was stored again, and seems to be due later than its slot says.
    """
    times: list[int] = []
    span, start, end = memoryview(b""), 0, 0
    for physical_offset, size_bytes in zip(offsets, sizes, strict=True):
        if physical_offset < start or physical_offset + size_bytes > end:
            span, start, end = reader.span(physical_offset)
        at = physical_offset - start
        if physical_offset + size_bytes > end or size_bytes < FRONT_BYTES:
            times.append(0)
            continue
        size, magic, _, _, sys_flag, body_length = front_of(span, at)
        if size != size_bytes or magic != MAGIC_V1 or sys_flag & UNUSUAL_FLAGS or not 0 <= body_length <= size:
            times.append(_decoded_time(span[at : at + size_bytes]))
            continue
        rest = span[at + FRONT_BYTES + body_length : at + size].tobytes()
        key = rest.find(_REQUEST_KEY)
        if key >= 0 and rest.startswith(_DELIVER_MS, key) and rest.find(_REQUEST_KEY, key + 1) < 0:
            times.append(max(_number_at(rest, key, len(_DELIVER_MS)), 0))
        else:
            times.append(_time_in(rest, span, at))
    return times


def _time_in(rest: bytes, span: memoryview, at: int) -> int:
    """Of what follows the body of the record at `at`."""
    for key, unit_ms in ((_DELAY_SECONDS, 1000), (_DELAY_MS, 1)):
        delay = _number_at(rest, rest.rfind(key), len(key))
        if delay >= 0:
            (store_time_ms,) = _STORE_TIME.unpack_from(span, at)
            assert isinstance(store_time_ms, int)
            return store_time_ms + delay * unit_ms
    return max(_number_at(rest, rest.rfind(_DELIVER_MS), len(_DELIVER_MS)), 0)


def _number_at(rest: bytes, at: int, key_length: int) -> int:
    """The number after a key that was found there; -1 if there is none."""
    if at < 0 or (at != _PROPERTIES_AT and rest[at - 1] != _SEPARATOR):
        return -1
    at += key_length
    end = rest.find(b"\x02", at)
    text = rest[at:] if end < 0 else rest[at:end]
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else -1


def _decoded_time(record: memoryview) -> int:
    try:
        message = decode_record(record)
    except CorruptRecordError:
        return 0
    asked = requested_time_ms(message.properties, message.store_time_ms)
    return 0 if isinstance(asked, TimerRefusal) else max(asked, 0)


def says_all(wish: bytes) -> bool:
    """Whether messages with this wish all go the same way."""
    return _REAL_TOPIC_BYTES in wish


def _wish(text: str) -> tuple[int, str]:
    """TIMER_OUT_MS and REAL_TOPIC of a text, or of the end of one that has both."""
    out = value_of(text, _OUT_MS)
    out_ms = natural_number(out or "") or 0
    return out_ms, value_of(text, REAL_TOPIC) or ""


_known_wish: Final = lru_cache(maxsize=4096)(_wish)


def _decoded_request(reader: RecordReader, physical_offset: int, size_bytes: int) -> TimerRequest | None:
    message = read_timer(reader, physical_offset, size_bytes)
    if message is None:
        return None
    properties = message.properties
    out_ms = natural_number(properties.get(Property.TIMER_OUT_MS, "")) or 0
    is_mark = Property.TIMER_DELETE_UNIQUE_KEY in properties
    return TimerRequest(physical_offset, size_bytes, out_ms, properties.get(Property.REAL_TOPIC, ""), is_mark)


def read_timer(reader: RecordReader, physical_offset: int, size_bytes: int) -> StoredMessage | None:
    """The timer message that a unit points at; None when it is gone or damaged, or the place is another message's."""
    record = reader.view(physical_offset, size_bytes)
    if record is None:
        return None
    try:
        message = decode_record(record)
    except CorruptRecordError:
        return None
    if fault := body_fault(message):
        _log.error("the timer message at physical offset %d is damaged and not delivered: %s", physical_offset, fault)
        return None
    return message if message.topic == SystemTopic.TIMER and message.physical_offset == physical_offset else None


def timer_copier() -> Copier:
    """Of messages that never rolled: one that did has these properties, and they are replaced."""
    return Copier(SystemTopic.TIMER, unwanted=OF_A_TIMER)


def due_copies(
    copier: Copier,
    reader: RecordReader,
    offsets: Sequence[int],
    sizes: Sequence[int],
    additions: Iterable[bytes],
    deleted_keys: Collection[str] = (),
) -> list[Copy]:
    """Due messages as they go into their real topics, up to one that is gone, recalled, or has to be decoded."""

    def records() -> Iterator[memoryview]:
        for record in map(reader.view, offsets, sizes):
            if record is None:
                return
            yield record

    def is_wanted(topic: str, unique_key: str | None) -> bool:
        return not is_recalled(unique_key, topic, deleted_keys)

    copies, places = copier.copies(records(), additions, is_wanted if deleted_keys else None)
    for count, ((_, own_offset), physical_offset) in enumerate(zip(places, offsets, strict=False)):
        if own_offset != physical_offset:
            return copies[:count]  # the place is another message's by now
    return copies


def is_recalled(unique_key: str | None, topic: str, deleted_keys: Collection[str]) -> bool:
    """By the unique key alone (5.5.0) or with its topic (`topic+key`, before and with appendTopicForTimerDeleteKey)."""
    return bool(unique_key) and (unique_key in deleted_keys or f"{topic}+{unique_key}" in deleted_keys)


_tuple: Final = tuple.__new__  # what a NamedTuple's constructor ends in: 0.4 us less


class RecordReader:
    """Reads records without ever waiting for a disk: from the mapped log, or from copies that a worker has read.

    Owner: one stage of the timer. Call `prepare` for what is needed next; when it says True, `view` has all of it.
    """

    def __init__(self, store: TimerHost, workers: Executor) -> None:
        self._store = store
        self._workers = workers
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
        is_resident = self._store.is_resident
        if all(is_resident(chunk * CHUNK_BYTES) for chunk in {offset // CHUNK_BYTES for offset in offsets}):
            return True
        self.cold_reads += len(offsets)
        wanted = list(zip(offsets, sizes, strict=True))
        self._fetching = self._workers.submit(
            lambda: {offset: self._store.read_cold(offset, size_bytes) for offset, size_bytes in wanted}
        )
        return self._fetching.done() and self.prepare(offsets, sizes)

    def view(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        """The record's bytes; None when they are gone."""
        if self._copies and physical_offset in self._copies:
            return self._copies[physical_offset]
        end = physical_offset + size_bytes
        if physical_offset < self._span_start or end > self._span_end:
            self._span_from(physical_offset)
            if end > self._span_end:
                return None
        assert self._span is not None
        return self._span[physical_offset - self._span_start : end - self._span_start]

    def span(self, physical_offset: int) -> tuple[memoryview, int, int]:
        """Bytes of the log with this place in them, and where they begin and end; none when they are gone."""
        if self._copies and physical_offset in self._copies:
            copy = self._copies[physical_offset] or memoryview(b"")
            return copy, physical_offset, physical_offset + len(copy)
        if not self._span_start <= physical_offset < self._span_end:
            self._span_from(physical_offset)
        return self._span or memoryview(b""), self._span_start, self._span_end

    def _span_from(self, physical_offset: int) -> None:
        self.release()
        self._span = self._store.read_log(physical_offset, _FILE_BYTES_MAX)
        if self._span is not None:
            self._span_start, self._span_end = physical_offset, physical_offset + len(self._span)

    def release(self) -> None:
        """Let go of the log's file, so that it can be removed. The views must be gone."""
        if self._span is not None:
            self._span.release()
            self._span = None
        self._span_start = self._span_end = 0
