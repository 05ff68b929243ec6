"""Timers: from the timer topic onto the wheel, around it, and off it into the topics they are meant for.

A message with a delivery time is stored in `rmq_sys_wheel_timer` with TIMER_OUT_MS (its slot), REAL_TOPIC and
REAL_QID. Three stages move it on; `tick` runs them, on one thread, in bounded portions:

    enqueue   reads the timer topic from `queue_offset`; adds a unit to the timer log and chains it into its slot. What
              is due already is delivered at once. What is due beyond the roll window goes into a slot on the way.
    dequeue   takes the slots from `read_time_ms` up to the last tick that is over. Marks of recalled messages are read
              first; then each message is put into its real topic, or back into the timer topic when it only rolls.
    flush     every timerFlushIntervalMs: timer log, wheel, checkpoint, metrics, each synced before the next.

What holds, whatever fails
--------------------------
* Never early: a slot is taken when its tick is over.
* Never lost: a flush first makes the copies in the commit log durable, then the timer log, then the wheel, and last
  the checkpoint: none of them speaks of what a power failure could take away. A put that the store refuses for now
  is tried again, for ever (timerEnableRetryUntilSuccess is always on); one that it can never take (too long with the
  properties that the timer adds) is put without them.
* Repeated at most once per crash: what was delivered after the last flush is delivered again. A failed put repeats
  nothing: the place inside the slot is kept, and delivery goes on there.

Clock steps
-----------
Forward: the slots in between are due. Back: `read_time_ms` is ahead of the clock; a new timer whose slot lies before it
brings it back. Slots that were delivered are closed (see wheel.py), so going back repeats nothing. A stop
for longer than the wheel turns is caught up from the old read time on; new timers wait meanwhile
where their slot would still be an old one's.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

from contrailmq.message import (
    MessageError,
    Property,
    StoredMessage,
    SystemTopic,
    encode_properties,
    java_hash,
    tags_code,
)
from contrailmq.store.config import StoreConfig
from contrailmq.store.errors import StoreIOError
from contrailmq.store.files import Files
from contrailmq.store.record import CorruptRecordError, decode_record
from contrailmq.store.status import AppendResult, PutStatus
from contrailmq.store.timer.admission import effective_precision_ms, roll_window_slots, rolled_slot_time_ms
from contrailmq.store.timer.checkpoint import TimerCheckpoint, TimerCheckpointFile
from contrailmq.store.timer.log import TimerLog, TimerMagic, TimerUnit
from contrailmq.store.timer.metrics import TopicCounts, save_text
from contrailmq.store.timer.recovery import Recovered, recover
from contrailmq.store.timer.wheel import SLOTS_TOTAL, Slot, TimerWheel

log = logging.getLogger("contrailmq.store.timer")

NEVER_ON_THE_WHEEL: Final = 2**63 - 1  # TIMER_ENQUEUE_MS of a message that was due when it was taken in
CLEAN_INTERVAL_MS: Final = 30_000
CHANGED_SLOTS_MAX: Final = 65_536  # flush before the wheel's changes take more than some MB
_TIMER_PROPERTIES: Final = (Property.TIMER_ENQUEUE_MS, Property.TIMER_DEQUEUE_MS, Property.TIMER_ROLL_TIMES)
# What the store can never take, however often it is asked.
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class TimerHost(Protocol):
    """What the timer needs of the message store."""

    config: StoreConfig

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        tags_code: int,
        keys: str | None,
        unique_key: str | None,
        flag: int = ...,
        sys_flag: int = ...,
        born_time_ms: int = ...,
        born_host: bytes = ...,
        store_host: bytes = ...,
        reconsume_times: int = ...,
        prepared_transaction_offset: int = ...,
    ) -> AppendResult: ...

    def read_units(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tags code) of dispatched messages from a queue offset on."""

    def read_record(self, physical_offset: int, size_bytes: int | None = None) -> bytes | None: ...

    def read_slice(self, physical_offset: int, size_bytes: int) -> memoryview | None: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def flush(self, offset: int) -> None:
        """Make the log durable up to an offset; blocks, and raises StoreError when that cannot be."""

    @property
    def log_min_offset(self) -> int: ...

    @property
    def log_max_offset(self) -> int: ...


@dataclass(slots=True)
class DueSlot:
    """A slot under delivery: its messages in the order they were taken in, and how many are done."""

    slot: Slot
    physical_offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))
    write_times_ms: array[int] = field(default_factory=lambda: array("q"))
    magics: array[int] = field(default_factory=lambda: array("b"))
    deleted_keys: set[str] = field(default_factory=set)
    done: int = 0


@dataclass(slots=True)
class FlushPlan:
    """One flush: made on the owner's thread, run on any, taken note of on the owner's again."""

    log_end: int
    log_files: dict[int, int]
    slots: dict[int, bytes]
    checkpoint: TimerCheckpoint
    metrics: str


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


class TimerStore:
    """Owner of the wheel, the timer log and the checkpoint. `open` after the message store, `close` before it."""

    def __init__(self, store: TimerHost, files: Files, *, slots_total: int = SLOTS_TOTAL) -> None:
        config = store.config
        self._store = store
        self._files = files
        self.config = config
        self.precision_ms = effective_precision_ms(config)
        self._window_ms = roll_window_slots(config) * self.precision_ms
        self.wheel = TimerWheel(
            files, config.path / "timerwheel", precision_ms=self.precision_ms, slots_total=slots_total
        )
        directory = config.path / "timerlog"
        found = next((files.size(path) for path in files.list_directory(directory)), 0)
        # As for the log's and the queues' files: those that exist say how large they are.
        self.log = TimerLog(files, directory, file_bytes=found or config.mapped_file_size_timer_log)
        self._checkpoint_file = TimerCheckpointFile(files, config.path / "config" / "timercheck")
        self._metrics_path = config.path / "config" / "timermetrics"
        self.metrics = TopicCounts("timingCount")
        self.stats = TimerStats()
        self.read_time_ms = 0
        self.queue_offset = 0
        self.master_queue_offset = 0
        self.saved_checkpoint = TimerCheckpoint()  # what a slave is told: no copies that it may not have yet
        self._retake_until = 0
        self._due: DueSlot | None = None
        self._walk: Iterator[Slot] | None = None  # over the slots up to _walk_end_ms; nothing is put there any more
        self._walk_end_ms = 0
        self._counting: Iterator[TimerUnit] | None = None
        self._last_flush_ms = 0
        self._last_clean_ms = 0
        self._version = (0, 0, 0)

    # --- life

    def open(self, now_ms: int) -> Recovered:
        """Load, and replay what the wheel may lack. Raises StoreError when a file is not what it should be."""
        self.wheel.open()
        self.log.open()
        checkpoint = self._checkpoint_file.open()
        if not self.metrics.load(self._metrics_path):
            self.metrics = TopicCounts("timingCount", now_ms)
        found = recover(self._store, self.wheel, self.log, checkpoint, now_ms)
        self.read_time_ms, self.queue_offset = found.read_time_ms, found.queue_offset
        self._retake_until = found.retake_until
        self.master_queue_offset = checkpoint.master_queue_offset
        self._version = (checkpoint.state_version, checkpoint.version_timestamp, checkpoint.version_counter)
        self._last_flush_ms = self._last_clean_ms = now_ms
        self.flush(now_ms)
        return found

    def close(self, now_ms: int) -> None:
        self.flush(now_ms)
        self.crash()

    def crash(self) -> None:
        """Let go of the files as they are: what a killed process does."""
        self.wheel.close()
        self.log.close()
        self._checkpoint_file.close()

    # --- the stages

    def tick(self, now_ms: int, max_count: int = 1000) -> bool:
        """Move on by at most `max_count` messages per stage; True when there is more to do at once."""
        enqueued = 0 if self.config.timer_stop_enqueue else self.enqueue(now_ms, max_count)
        dequeued = 0
        if not self.config.timer_stop_dequeue and not self.config.is_slave:
            dequeued = self.dequeue(now_ms, max_count)
        self.log.write()
        return enqueued >= max_count or dequeued >= max_count

    def next_due_ms(self, now_ms: int) -> int:
        """When the next tick is over: the time at which `tick` should be called again when it had nothing to do."""
        return (now_ms // self.precision_ms + 1) * self.precision_ms

    def enqueue(self, now_ms: int, max_count: int) -> int:
        """Take messages in from the timer topic; the count."""
        write_time_ms = now_ms // self.precision_ms * self.precision_ms
        # What was cleaned away under us is gone.
        begin = self.queue_offset = max(self.queue_offset, self._store.min_offset(SystemTopic.TIMER, 0))
        end = begin + max_count
        if self.config.is_slave:
            end = min(end, self.master_queue_offset)
        while self.queue_offset < end and self.wheel.changed_count < CHANGED_SLOTS_MAX:
            units = self._store.read_units(SystemTopic.TIMER, 0, self.queue_offset, min(end - self.queue_offset, 256))
            if not units or not self._take_in_all(units, now_ms, write_time_ms):
                break
        return self.queue_offset - begin

    def _take_in_all(self, units: list[tuple[int, int, int]], now_ms: int, write_time_ms: int) -> bool:
        for physical_offset, size_bytes, _ in units:
            message = self._read(physical_offset, size_bytes)
            if message is None:
                self.stats.missing += 1
            elif not self._take_in(message, now_ms, write_time_ms):
                return False
            self.queue_offset += 1
        return True

    def _take_in(self, message: StoredMessage, now_ms: int, write_time_ms: int) -> bool:
        """Put one message on the wheel or deliver it; False when that has to wait."""
        properties = message.properties
        text = properties.get(Property.TIMER_OUT_MS, "")
        out_ms = int(text) if text.isascii() and text.isdigit() else 0
        is_mark = Property.TIMER_DELETE_UNIQUE_KEY in properties
        if out_ms < self.read_time_ms and (self.config.is_slave or self.queue_offset < self._retake_until):
            return True  # the master, or we before units were lost, have delivered it
        if out_ms < write_time_ms and not self.config.is_slave:
            return is_mark or self._deliver(message, now_ms, NEVER_ON_THE_WHEEL, TimerMagic.DEFAULT)
        write_time_ms = min(write_time_ms, out_ms)
        rolled = rolled_slot_time_ms(out_ms, write_time_ms, window_ms=self._window_ms, precision_ms=self.precision_ms)
        slot_time_ms = out_ms if rolled is None else rolled
        if slot_time_ms - self.read_time_ms >= self.wheel.span_ms:
            return False  # its place may still hold a slot of the last lap: deliver that first
        if self._due is not None and slot_time_ms <= self._due.slot.time_ms:
            return False  # the clock went back while this slot was delivered: that first
        if slot_time_ms < self.read_time_ms:
            self._go_back_to(slot_time_ms)
        magic = TimerMagic.DEFAULT | (0 if rolled is None else TimerMagic.ROLL) | (TimerMagic.DELETE if is_mark else 0)
        topic = properties.get(Property.REAL_TOPIC, "")
        slot = self.wheel.get(slot_time_ms)
        previous = -1 if slot.is_empty else slot.last_position
        position = self.log.append(
            TimerUnit(
                previous,
                magic,
                write_time_ms,
                slot_time_ms - write_time_ms,
                message.physical_offset,
                message.size_bytes,
                _topic_hash(topic),
            )
        )
        change = -1 if is_mark else 1
        self.wheel.chain(slot, position, change=change)
        self.metrics.add(topic, change, now_ms)
        self.stats.enqueued += 1
        return True

    def _go_back_to(self, slot_time_ms: int) -> None:
        """The clock was set back: look again at slots from there on. What was delivered is closed."""
        log.warning(
            "the clock went back: timers are read from %d again, which is %d ms before the last slot delivered",
            slot_time_ms,
            self.read_time_ms - slot_time_ms,
        )
        self.read_time_ms = slot_time_ms
        self._walk = None

    def dequeue(self, now_ms: int, max_count: int) -> int:
        """Deliver slots whose tick is over; the count of messages done."""
        end_ms = now_ms // self.precision_ms * self.precision_ms
        done = 0
        while done < max_count:
            if self._due is None and not self._find_due(end_ms):
                break
            assert self._due is not None
            count, is_finished = self._deliver_slot(self._due, now_ms, max_count - done)
            done += count
            if not is_finished:
                break
            self.wheel.shut(self._due.slot)
            self.read_time_ms = self._due.slot.time_ms + self.precision_ms
            self._due = None
        return done

    def _find_due(self, end_ms: int) -> bool:
        """Load the next slot with timers before `end_ms`; without one, the read time is `end_ms`."""
        if self.read_time_ms >= end_ms:
            return False
        if self._walk is None or self._walk_end_ms != end_ms:
            self._walk, self._walk_end_ms = self.wheel.occupied(self.read_time_ms, end_ms), end_ms
        slot = next(self._walk, None)
        if slot is None:
            self._walk = None
            self.read_time_ms = end_ms
            return False
        self.read_time_ms = slot.time_ms
        self._due = self._load(slot)
        return True

    def _load(self, slot: Slot) -> DueSlot:
        """Walk the slot's chain from its end; marks first, messages in the order they came."""
        due = DueSlot(slot)
        position = slot.last_position
        while position >= 0:
            unit = self.log.read(position)
            if unit is None or unit.slot_time_ms != slot.time_ms:
                log.error("timer log: no unit of slot %d at position %d: its chain ends here", slot.time_ms, position)
                break
            if unit.is_delete and not unit.is_roll:
                mark = self._read(unit.physical_offset, unit.size_bytes)
                if mark is not None:
                    due.deleted_keys.add(mark.properties.get(Property.TIMER_DELETE_UNIQUE_KEY, ""))
                    self.metrics.add(mark.properties.get(Property.REAL_TOPIC, ""), 1, slot.time_ms)
            else:
                due.physical_offsets.append(unit.physical_offset)
                due.sizes.append(unit.size_bytes)
                due.write_times_ms.append(unit.write_time_ms)
                due.magics.append(unit.magic)
            if position == slot.first_position:
                break
            position = unit.previous
        for column in (due.physical_offsets, due.sizes, due.write_times_ms, due.magics):
            column.reverse()
        return due

    def _deliver_slot(self, due: DueSlot, now_ms: int, max_count: int) -> tuple[int, bool]:
        """Deliver from where it stands; (count, whether the slot is done)."""
        count = 0
        while due.done < len(due.sizes):
            if count >= max_count:
                return count, False
            at = due.done
            message = self._read(due.physical_offsets[at], due.sizes[at])
            if message is None:
                self.stats.missing += 1
            elif due.deleted_keys and _is_recalled(message, due.deleted_keys):
                self.stats.recalled += 1
                self.metrics.add(message.properties.get(Property.REAL_TOPIC, ""), -1, now_ms)
            elif self._deliver(message, now_ms, due.write_times_ms[at], due.magics[at]):
                change = 1 if due.magics[at] & TimerMagic.DELETE else -1
                self.metrics.add(message.properties.get(Property.REAL_TOPIC, ""), change, now_ms)
            else:
                return count, False
            due.done += 1
            count += 1
        return count, True

    # --- one message

    def _read(self, physical_offset: int, size_bytes: int) -> StoredMessage | None:
        """The timer message that a unit points at; None when it is gone, or the place is another message's by now."""
        record = self._store.read_slice(physical_offset, size_bytes)
        if record is None:
            return None
        try:
            message = decode_record(record)
        except CorruptRecordError:
            return None
        finally:
            record.release()
        return message if message.topic == SystemTopic.TIMER and message.physical_offset == physical_offset else None

    def _deliver(self, message: StoredMessage, now_ms: int, enqueue_ms: int, magic: int) -> bool:
        """Put a due message where it belongs; False when the store cannot take it now."""
        properties = dict(message.properties)
        for name in (*_TIMER_PROPERTIES, Property.CRC32):
            properties.pop(name, None)
        is_roll = bool(magic & TimerMagic.ROLL)
        added = {Property.TIMER_ENQUEUE_MS: str(enqueue_ms), Property.TIMER_DEQUEUE_MS: str(now_ms)}
        if is_roll:
            rolls = message.properties.get(Property.TIMER_ROLL_TIMES, "0")
            added[Property.TIMER_ROLL_TIMES] = str(int(rolls) + 1)
        status = self._put(message, properties | added, is_roll=is_roll)
        if status in _HOPELESS:
            status = self._put(message, properties, is_roll=is_roll)
        if status.is_stored:
            if is_roll:
                self.stats.rolled += 1
            else:
                self.stats.delivered += 1
            return True
        if status in _HOPELESS:
            self.stats.undeliverable += 1
            log.error("timer message %s can not be stored again: %s", message.offset_message_id, status.name)
            return True
        self.stats.refused += 1
        return False

    def _put(self, message: StoredMessage, properties: dict[str, str], *, is_roll: bool) -> PutStatus:
        topic, queue = properties.get(Property.REAL_TOPIC), properties.get(Property.REAL_QUEUE_ID, "")
        if topic is None or not (queue.isascii() and queue.isdigit()):
            return PutStatus.MESSAGE_ILLEGAL
        try:
            encoded = encode_properties(properties)
        except MessageError:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        result = self._store.append(
            SystemTopic.TIMER if is_roll else topic,
            0 if is_roll else int(queue),
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
        return result.status

    # --- flow control and figures

    def is_congested(self, out_ms: int) -> bool:
        """Whether the slot of that time holds more timers than timerCongestNumEachSlot."""
        return self.wheel.get(out_ms).timers > self.config.timer_congest_num_each_slot

    def behind_messages(self) -> int:
        """Messages of the timer topic that were not taken in yet (timerOffsetBehind)."""
        return max(0, self._store.max_offset(SystemTopic.TIMER, 0) - self.queue_offset)

    def behind_ms(self, now_ms: int) -> int:
        """How late delivery is (timerReadBehind)."""
        return max(0, now_ms // self.precision_ms * self.precision_ms - self.read_time_ms)

    def recount(self, max_units: int) -> bool:
        """Count what is on the wheel, a portion per call, and set the metrics right at the end; True when done.

        What changes meanwhile may be missed: the next recount finds it.
        """
        if self._counting is None:
            self._counting = self._count_units()
        for _ in range(max_units):
            if next(self._counting, None) is None:
                self._counting = None
                return True
        return False

    def _count_units(self) -> Iterator[TimerUnit]:
        counts: dict[str, int] = {}
        topics = {java_hash(topic): topic for topic in self.metrics.counts}
        for slot in self.wheel.all_slots():
            position = -1 if slot.is_empty or slot.time_ms < self.read_time_ms else slot.last_position
            while position >= 0 and (unit := self.log.read(position)) is not None:
                topic = topics.get(unit.topic_hash)
                if topic is None:
                    message = self._read(unit.physical_offset, unit.size_bytes)
                    topic = "" if message is None else message.properties.get(Property.REAL_TOPIC, "")
                    topics[unit.topic_hash] = topic
                counts[topic] = counts.get(topic, 0) + (-1 if unit.is_delete else 1)
                position = -1 if position == slot.first_position else unit.previous
                yield unit
        counts.pop("", None)
        self.metrics.replace(counts, self.metrics.timestamp)

    # --- following a master

    def follow(self, checkpoint: TimerCheckpoint) -> None:
        """A slave learns how far its master has come: it takes in up to there and delivers nothing."""
        self.master_queue_offset = checkpoint.queue_offset
        self.read_time_ms = max(self.read_time_ms, checkpoint.read_time_ms)
        self._version = (checkpoint.state_version, checkpoint.version_timestamp, checkpoint.version_counter)

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """As of now: what a flush saves."""
        master = self.master_queue_offset if self.config.is_slave else self.queue_offset
        return TimerCheckpoint(self.read_time_ms, self.log.end, self.queue_offset, master, *self._version)

    # --- flushing

    def flush(self, now_ms: int) -> None:
        """All of a flush, here and now."""
        plan = self.begin_flush(now_ms)
        self.run_flush(plan)
        self.end_flush(plan)

    def is_flush_due(self, now_ms: int) -> bool:
        elapsed_ms = now_ms - self._last_flush_ms
        return not 0 <= elapsed_ms < self.config.timer_flush_interval_ms or (
            self.wheel.changed_count >= CHANGED_SLOTS_MAX
        )

    def begin_flush(self, now_ms: int) -> FlushPlan:
        self._last_flush_ms = now_ms
        if not 0 <= now_ms - self._last_clean_ms < CLEAN_INTERVAL_MS:
            self._last_clean_ms = now_ms
            self.log.delete_before(self._store.log_min_offset)
        self.log.write()
        state, _, counter = self._version
        self._version = (state, now_ms, counter + 1)
        return FlushPlan(
            self._store.log_max_offset,
            self.log.take_unsynced(),
            self.wheel.take_changes(),
            self.checkpoint,
            self.metrics.to_json(),
        )

    def run_flush(self, plan: FlushPlan) -> None:
        """The slow part. Each step only after the one before is durable: a crash between them loses nothing."""
        self._store.flush(plan.log_end)
        self.log.sync(plan.log_files)
        self.wheel.write_slots(plan.slots)
        self._checkpoint_file.write(plan.checkpoint)
        try:
            save_text(self._files, self._metrics_path, plan.metrics)
        except OSError as exc:
            raise StoreIOError("write", self._metrics_path, exc) from exc

    def end_flush(self, plan: FlushPlan) -> None:
        self.saved_checkpoint = plan.checkpoint
        self.wheel.forget(plan.slots)

    def drop_flush(self, plan: FlushPlan) -> None:
        """A write of it failed (a full disk): the next flush does all of it again. A failed sync is final instead."""
        self.log.give_back_unsynced(plan.log_files)


_topic_hash: Final = lru_cache(maxsize=4096)(java_hash)


def _is_recalled(message: StoredMessage, deleted_keys: set[str]) -> bool:
    """By the unique key alone (5.5.0) or with its topic (`topic+key`, before and with appendTopicForTimerDeleteKey)."""
    unique_key = message.properties.get(Property.UNIQUE_KEY)
    if not unique_key or Property.TIMER_DELETE_UNIQUE_KEY in message.properties:
        return False
    return unique_key in deleted_keys or f"{message.properties.get(Property.REAL_TOPIC)}+{unique_key}" in deleted_keys
