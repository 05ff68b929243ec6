"""Timer messages as the log holds them, read without decoding more than needed.

`RecordReader` keeps the disk away from the caller's thread: a page that is not in memory would block it, and
with it the whole loop.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Final, NamedTuple

from contrailmq.message import (
    MessageError,
    Property,
    StoredMessage,
    SystemTopic,
    decode_properties,
    natural_number,
)
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.message.property_text import find, key_of
from contrailmq.message.record import HEAD_V4_BYTES, HOSTS_V6, MAGIC_V1, head_struct, view_record
from contrailmq.store.base.status import Copy
from contrailmq.store.log.copying import Copier
from contrailmq.store.log.damage import body_fault
from contrailmq.store.log.residency import CHUNK_BYTES
from contrailmq.store.timer.admission import TIMER_REQUESTS, TimerRefusal, requested_time_ms
from contrailmq.store.timer.host import TimerHost

_log = logging.getLogger(__name__)

_FILE_BYTES_MAX: Final = 1 << 40  # more than a file of the log has
_TOPIC: Final = SystemTopic.TIMER.encode()
_TOPIC_PART: Final = bytes((len(_TOPIC),)) + _TOPIC
_front_of: Final = head_struct("size", "magic", "physical_offset", "sys_flag", "body_bytes").unpack_from
_OUT_MS: Final = key_of(Property.TIMER_OUT_MS)
_REAL_TOPIC: Final = key_of(Property.REAL_TOPIC)
_DELETE_KEY: Final = key_of(Property.TIMER_DELETE_UNIQUE_KEY)
_DELIVER_MS: Final = key_of(Property.TIMER_DELIVER_MS)
_DELAYS: Final = b"TIMER_DELAY_"  # what the names of both delays begin with
_TIME_MAX_MS: Final = 10**15  # no time that was admitted is later: 30,000 years
_DIGITS_MAX: Final = 15
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
    try:
        view = view_record(record)
    except MessageError:
        return None
    if view.physical_offset != physical_offset or view.size_bytes != size_bytes or view.topic != _TOPIC:
        return None
    out_ms = natural_number(view.find(_OUT_MS) or "") or 0
    topic, is_mark = view.find(_REAL_TOPIC) or "", find(view.properties, _DELETE_KEY) is not None
    return TimerRequest(physical_offset, size_bytes, out_ms, topic, is_mark)


def read_wishes(reader: RecordReader, units: Sequence[tuple[int, int, int]]) -> list[bytes]:
    """Of each message when and where to it is to be delivered, as its properties say it.

    Messages of one topic and one slot have the same, so what becomes of them is looked up once. Empty for a message
    that has to be looked at by itself: a mark, one that is gone, or that does not say both.
    """
    wishes: list[bytes] = []
    span, start, end = memoryview(b""), 0, 0
    for physical_offset, size_bytes, _ in units:
        if physical_offset < start or physical_offset + size_bytes > end:
            span, start, end = reader.span(physical_offset)
        wish = b""
        if physical_offset + size_bytes <= end:
            properties = _plain_properties(span, physical_offset - start, physical_offset, size_bytes)
            out, topic = find(properties, _OUT_MS), find(properties, _REAL_TOPIC)
            if out and topic and _DELETE_KEY not in properties:
                wish = b"%b\x01%b" % (out, topic)
        wishes.append(wish)
    return wishes


def _plain_properties(span: memoryview, position: int, physical_offset: int, size_bytes: int) -> bytes:
    """Of the timer message that a unit means, if it has the common form; otherwise empty, and its view is asked.

    Half of what a view takes, and nearly all timers have that form: 0.8 us less for each.
    """
    if size_bytes < HEAD_V4_BYTES:
        return b""
    size, magic, own_offset, sys_flag, body_bytes = _front_of(span, position)
    is_own = size == size_bytes and own_offset == physical_offset
    if not is_own or magic != MAGIC_V1 or sys_flag & HOSTS_V6 or not 0 <= body_bytes <= size:
        return b""
    rest = span[position + HEAD_V4_BYTES + body_bytes : position + size].tobytes()
    return rest[len(_TOPIC_PART) + 2 :] if rest.startswith(_TOPIC_PART) else b""


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
        time_ms = 0
        if physical_offset + size_bytes <= end:
            position = physical_offset - start
            properties = _plain_properties(span, position, physical_offset, size_bytes)
            if properties and _DELAYS not in properties:
                time = find(properties, _DELIVER_MS) or b""
                if time.isdigit() and len(time) <= _DIGITS_MAX:
                    time_ms = int(time)
            if not time_ms:
                time_ms = _viewed_time(span[position : position + size_bytes])
        times.append(time_ms)
    return times


def _viewed_time(record: memoryview) -> int:
    """`requested_time_ms`, and 0 for what it refuses."""
    try:
        view = view_record(record)
    except MessageError:
        return 0
    known = decode_properties(view.properties)
    if view.size_bytes != len(record) or not any(name in known for name in TIMER_REQUESTS):
        return 0
    asked = requested_time_ms(known, view.store_time_ms)
    return asked if not isinstance(asked, TimerRefusal) and 0 < asked < _TIME_MAX_MS else 0


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


def out_ms_of(message: StoredMessage) -> int:
    """The begin of the tick in which a timer message is due; 0 when it does not say."""
    return natural_number(message.properties.get(Property.TIMER_OUT_MS, "")) or 0


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
