"""Delivers the messages of a slot into their real topics, or back into the timer topic to roll.

Most messages are copied in groups, as bytes (see store/log/copying.py). These go one by one: a message that was
recalled, rolls, or has an unusual form; and one that the store refuses, so that the refusal concerns that message alone
and repeats nothing before it.

A slave that stands in for its master hands them to another broker instead (`elsewhere`). That takes a while, so a
portion is offered again and again, and counts as far as the other broker has it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

from contrailmq.message import (
    MessageError,
    Property,
    StoredMessage,
    SystemTopic,
    encode_properties,
    natural_number,
    tags_code,
)
from contrailmq.store.base.journal import CopyPlace
from contrailmq.store.base.status import Copy, PutStatus
from contrailmq.store.log.copying import COPY_MISSES_MAX, QUEUE_ID_MAX, place_of
from contrailmq.store.timer.due import DueSlot, Portion
from contrailmq.store.timer.host import Elsewhere, TimerHost
from contrailmq.store.timer.log import TimerMagic
from contrailmq.store.timer.records import (
    OF_A_TIMER,
    RecordReader,
    due_copies,
    is_recalled,
    out_ms_of,
    read_timer,
    timer_copier,
)
from contrailmq.store.timer.wheel_time import WheelTime

log = logging.getLogger("contrailmq.store.timer")

ROLLED_MAX: Final = 16_384  # rolled messages that are remembered: about 5 MB
NEVER_ON_THE_WHEEL: Final = 2**63 - 1  # TIMER_ENQUEUE_MS of a message that was due when it was taken in
_DEFAULT_MAGIC: Final = bytes((TimerMagic.DEFAULT,))
# What the store can never take, however often it is asked.
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


@dataclass(slots=True)
class TimerStats:
    """Since the start, but for `undeliverable`, which should stay 0 for ever."""

    enqueued: int = 0
    delivered: int = 0
    rolled: int = 0
    recalled: int = 0
    missing: int = 0  # their record was cleaned away before they were due
    undeliverable: int = 0
    refused: int = 0  # puts that had to be tried again
    repeated_rolls: int = 0  # copies that an earlier crash had left of a message that rolls
    puts: dict[str, tuple[int, int]] = field(default_factory=dict)  # see `take_puts`

    def note_put(self, topic: str, size_bytes: int) -> None:
        count, total_bytes = self.puts.get(topic, (0, 0))
        self.puts[topic] = count + 1, total_bytes + size_bytes

    def take_puts(self) -> dict[str, tuple[int, int]]:
        """What was delivered into this store since the last call: messages and bytes of each topic."""
        taken, self.puts = self.puts, {}
        return taken


class Delivery:
    """Owner: TimerStore. `count(slot_time_ms, topic, change)` is called with how many wait less."""

    def __init__(
        self,
        store: TimerHost,
        reader: RecordReader,
        stats: TimerStats,
        count: Callable[[int, str, int], None],
        wheel_time: WheelTime,
    ) -> None:
        self._store = store
        self._wheel_time = wheel_time
        self._reader = reader
        self._stats = stats
        self._count = count
        self._copier = timer_copier()
        self.elsewhere: Elsewhere | None = None  # None: into this store
        self.last_copy: CopyPlace | None = None  # that this life has made; of what went elsewhere, the original
        self._rolled: dict[tuple[object, ...], None] = {}  # messages that had rolled and were put since the start

    def read_marks(self, due: DueSlot) -> bool:
        """Which messages of the slot were recalled; False while a worker is reading that."""
        if not due.mark_offsets:
            return True
        if not self._reader.prepare(due.mark_offsets, due.mark_sizes):
            return False
        for physical_offset, size_bytes in zip(due.mark_offsets, due.mark_sizes, strict=True):
            mark = read_timer(self._reader, physical_offset, size_bytes)
            key = None if mark is None else mark.properties.get(Property.TIMER_DELETE_UNIQUE_KEY)
            if mark is not None and key is not None:  # one without a key has no effect: see put_back.py
                due.deleted_keys.add(key)
                due.unused_marks[mark.properties.get(Property.REAL_TOPIC, "")] += 1
        due.mark_offsets, due.mark_sizes = [], []
        return True

    def give_back_marks(self, due: DueSlot) -> None:
        """All of the slot is done: what its marks counted out and did not find is counted in again."""
        for topic, count in due.unused_marks.items():
            if count:
                self._count(due.time_ms, topic, count)

    def deliver(self, due: DueSlot, now_ms: int, max_count: int) -> int:
        """Deliver what is ready of a slot, from where delivery stopped; the count."""
        # More may have become ready while a worker reads: it is asked for the same ones again.
        end = due.asked_end or min(due.done + max_count, due.ready_count)
        due.asked_end = 0
        if due.done == end:
            return 0
        portion = due.portion(end)
        if not self._reader.prepare(portion.physical_offsets, portion.sizes):
            due.asked_end = end
            return 0
        try:
            if self.elsewhere is not None:
                return self._hand_over(self.elsewhere, due, portion)
            return self._deliver_all(due, portion, now_ms)
        finally:
            self._reader.release()

    def _deliver_all(self, due: DueSlot, portion: Portion, now_ms: int) -> int:
        at, end, misses = 0, len(portion.sizes), 0
        while at < end:
            # A log that takes no copies (with a checksum in each record) is not asked about every message.
            copies = self._copies(due, portion, at, now_ms) if misses < COPY_MISSES_MAX else []
            written = self._store.append_copies(copies) if copies else 0
            if copies:
                misses = 0 if written else misses + 1
            if written:
                self._note_written(copies[:written])
                for topic, count in Counter([copy[0] for copy in copies[:written]]).items():
                    self._count(due.time_ms, topic, -count)
                due.done += written
                at += written
            if (not copies or written < len(copies)) and at < end:
                if not self._deliver_one(due, portion, at, now_ms):
                    break
                due.done += 1
                at += 1
        return at

    def _note_written(self, copies: Sequence[Copy]) -> None:
        self._stats.delivered += len(copies)
        self.last_copy = place_of(copies[-1])
        for copy in copies:
            self._stats.note_put(copy.topic, copy.record_bytes)

    def _copies(self, due: DueSlot, portion: Portion, begin: int, now_ms: int) -> list[Copy]:
        """The next messages of the portion, up to one that is not simply delivered."""
        magics = portion.magics[begin:]
        end = begin + len(magics) - len(magics.lstrip(_DEFAULT_MAGIC))  # up to one that rolls
        times_ms = portion.write_times_ms[begin:end]
        additions = {time_ms: _addition(time_ms, now_ms) for time_ms in set(times_ms)}
        return due_copies(
            self._copier,
            self._reader,
            portion.physical_offsets[begin:end],
            portion.sizes[begin:end],
            [additions[time_ms] for time_ms in times_ms],
            due.deleted_keys,
        )

    def _deliver_one(self, due: DueSlot, portion: Portion, at: int, now_ms: int) -> bool:
        """Deal with one message of the portion, whatever it is; False when the store cannot take it now."""
        message = read_timer(self._reader, portion.physical_offsets[at], portion.sizes[at])
        if message is None or _is_dropped(message, due):
            self._note_dropped(due, message)
            return True
        topic = message.properties.get(Property.REAL_TOPIC, "")
        if not self.put(message, now_ms, portion.write_times_ms[at], portion.magics[at]):
            return False
        self._count(due.time_ms, topic, 1 if portion.magics[at] & TimerMagic.DELETE else -1)
        return True

    def _note_dropped(self, due: DueSlot, message: StoredMessage | None) -> None:
        """One that is gone, or was recalled."""
        if message is None:
            self._stats.missing += 1
            return
        topic = message.properties.get(Property.REAL_TOPIC, "")
        self._stats.recalled += 1
        if due.unused_marks[topic] > 0:
            due.unused_marks[topic] -= 1
            due.used_marks.append(topic)  # it was counted out when its mark was taken in
        else:
            self._count(due.time_ms, topic, -1)

    def _hand_over(self, elsewhere: Elsewhere, due: DueSlot, portion: Portion) -> int:
        """As `_deliver_all`, to another broker; one that rolls goes there with its time, which is the end of its tick
        (TIMER_OUT_MS is the begin)."""
        found = [
            read_timer(self._reader, *place) for place in zip(portion.physical_offsets, portion.sizes, strict=True)
        ]
        sent = [
            (at, message) for at, message in enumerate(found) if message is not None and not _is_dropped(message, due)
        ]
        rolls, tick_ms = TimerMagic.ROLL, self._wheel_time.precision_ms
        arrived = elsewhere.hand_over(
            [(message, out_ms_of(message) + tick_ms if portion.magics[at] & rolls else 0) for at, message in sent]
        )
        count = sent[arrived][0] if arrived < len(sent) else len(found)
        for message in found[:count]:
            if message is None or _is_dropped(message, due):
                self._note_dropped(due, message)
            else:
                self._note_arrived(message)
                self._count(due.time_ms, message.properties.get(Property.REAL_TOPIC, ""), -1)
        due.done += count
        return count

    def _note_arrived(self, message: StoredMessage) -> None:
        self._stats.delivered += 1
        self.last_copy = CopyPlace(message.physical_offset, message.store_time_ms)

    # --- what comes too late for its slot

    def put_late(self, reader: RecordReader, units: Sequence[tuple[int, int, int]], now_ms: int) -> int:
        """Put messages that were never on the wheel; how many, from the first on, 0 when the store takes none now."""
        if self.elsewhere is not None:
            return self._hand_over_late(self.elsewhere, reader, units)
        additions = repeat(_addition(NEVER_ON_THE_WHEEL, now_ms))
        copies = due_copies(self._copier, reader, [unit[0] for unit in units], [unit[1] for unit in units], additions)
        written = self._store.append_copies(copies) if copies else 0
        if written:
            self._note_written(copies[:written])
            return written
        message = read_timer(reader, units[0][0], units[0][1])
        if message is None:
            self._stats.missing += 1
            return 1
        return int(self.put(message, now_ms, NEVER_ON_THE_WHEEL, TimerMagic.DEFAULT))

    def _hand_over_late(self, elsewhere: Elsewhere, reader: RecordReader, units: Sequence[tuple[int, int, int]]) -> int:
        found = [read_timer(reader, unit[0], unit[1]) for unit in units]
        sent = [message for message in found if message is not None]
        arrived = elsewhere.hand_over([(message, 0) for message in sent])
        count = found.index(sent[arrived]) if arrived < len(sent) else len(found)
        for message in found[:count]:
            if message is None:
                self._stats.missing += 1
            else:
                self._note_arrived(message)
        return count

    # --- one message

    def put(self, message: StoredMessage, now_ms: int, enqueue_ms: int, magic: int) -> bool:
        """Put a due message where it belongs; False when the store cannot take it now."""
        identity = _rolled_identity(message)
        if identity is not None and identity in self._rolled:
            self._stats.repeated_rolls += 1
            return True
        if not self._put_once(message, now_ms, enqueue_ms, magic):
            return False
        if identity is not None:
            if len(self._rolled) >= ROLLED_MAX:
                del self._rolled[next(iter(self._rolled))]
            self._rolled[identity] = None
        return True

    def _put_once(self, message: StoredMessage, now_ms: int, enqueue_ms: int, magic: int) -> bool:
        properties = dict(message.properties)
        for name in (*OF_A_TIMER, Property.CRC32):
            properties.pop(name, None)
        is_roll = bool(magic & TimerMagic.ROLL)
        added = {Property.TIMER_ENQUEUE_MS: str(enqueue_ms), Property.TIMER_DEQUEUE_MS: str(now_ms)}
        if is_roll:
            rolls = natural_number(message.properties.get(Property.TIMER_ROLL_TIMES, "")) or 0
            added[Property.TIMER_ROLL_TIMES] = str(rolls + 1)
            moved_ms = self._wheel_time.shifts_ms[0] - self._wheel_time.shift_ms(message.physical_offset)
            if moved_ms:  # the clock was set meanwhile: the copy is stored under another shift
                added[Property.TIMER_OUT_MS] = str(out_ms_of(message) + moved_ms)
        status = self._put(message, properties | added, is_roll=is_roll)
        if status in _HOPELESS:
            status = self._put(message, properties, is_roll=is_roll)
        if status.is_stored:
            if is_roll:
                self._stats.rolled += 1
            else:
                self._stats.delivered += 1
            return True
        if status in _HOPELESS:
            self._stats.undeliverable += 1
            log.error("timer message %s can not be stored again: %s", message.offset_message_id, status.name)
            return True
        self._stats.refused += 1
        return False

    def _put(self, message: StoredMessage, properties: dict[str, str], *, is_roll: bool) -> PutStatus:
        topic, queue_id = (
            properties.get(Property.REAL_TOPIC),
            natural_number(properties.get(Property.REAL_QUEUE_ID, "")),
        )
        if not topic or queue_id is None or queue_id > QUEUE_ID_MAX:
            return PutStatus.MESSAGE_ILLEGAL
        try:
            encoded = encode_properties(properties)
        except MessageError:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        result = self._store.append(
            SystemTopic.TIMER if is_roll else topic,
            0 if is_roll else queue_id,
            message.stored_body,
            encoded,
            tags_code=tags_code(properties.get(Property.TAGS)),
            keys=properties.get(Property.KEYS),
            unique_key=properties.get(Property.UNIQUE_KEY),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_time_ms=message.born_time_ms,
            born_host=message.born_host_bytes,
            store_host=message.store_host_bytes,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        if result.status.is_stored:
            self.last_copy = CopyPlace(result.physical_offset, result.store_time_ms)
            if not is_roll:
                self._stats.note_put(topic, result.size_bytes)
        return result.status


def _addition(enqueue_ms: int, now_ms: int) -> bytes:
    return b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (enqueue_ms, now_ms)


def _rolled_identity(message: StoredMessage) -> tuple[object, ...] | None:
    """Of a message that has rolled: equal for the copies that crashes left of it, and for no other message.

    A crash after a message was put to roll, and before the next flush, puts it again: two copies then wait in its next
    slot, and each further crash would repeat both. So one life puts one of them. A message that was sent twice has two
    times of birth. Without a unique key (every client sets one) nothing is known, and every copy is put.
    """
    properties = message.properties
    rolls, unique_key = properties.get(Property.TIMER_ROLL_TIMES), properties.get(Property.UNIQUE_KEY)
    if rolls is None or not unique_key:
        return None
    place = (properties.get(Property.REAL_TOPIC), properties.get(Property.REAL_QUEUE_ID))
    return (
        unique_key,
        rolls,
        message.born_time_ms,
        message.born_host_bytes,
        properties.get(Property.TIMER_OUT_MS),
        place,
    )


def _is_dropped(message: StoredMessage, due: DueSlot) -> bool:
    """Whether it was recalled."""
    properties = message.properties
    return (
        bool(due.deleted_keys)
        and Property.TIMER_DELETE_UNIQUE_KEY not in properties
        and is_recalled(properties.get(Property.UNIQUE_KEY), properties.get(Property.REAL_TOPIC, ""), due.deleted_keys)
    )
