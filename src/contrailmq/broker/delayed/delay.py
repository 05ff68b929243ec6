"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, one queue per level, until their level's time is over.

A message with DELAY=n goes to queue n - 1 of that topic; REAL_TOPIC and REAL_QID name its real place, and its queue
unit holds the delivery time. All messages of a level wait equally long, so a level needs only the offset of its first
waiting message (`config/delayOffset.json`). The delivered record differs only in place and times; it keeps DELAY.

A message is due when its delay has passed in steady time (store/base/store_clock.py), at the latest one delay after
this start. Progress is saved after the copies that it refers to are durable, and journaled without a sync after each
group of copies (level_journal.py). So a kill repeats at most one group of PORTION messages, a power failure what was
delivered since the last save; neither loses any. A refused put is tried again and holds up only its own level.

A slave that stands in for its master (state/duty.py) hands what is due to other groups; its level goes on when they
have it. Its journal then names the original as the copy: that is in its log as long as the level's queue is this one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final

from contrailmq.broker.delayed.level_journal import LevelJournal
from contrailmq.broker.handlers import Handlers, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import DataVersion, Json, TableSaveError, whole_number
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.incoming import IncomingMessage, Refusal
from contrailmq.broker.state.statistics import DELAY
from contrailmq.broker.worker_job import WorkerJob
from contrailmq.message import Property, StoredMessage, SysFlag, SystemTopic, natural_number, tags_code
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.store import (
    COPY_MISSES_MAX,
    QUEUE_ID_MAX,
    TIMER_REQUESTS,
    Copier,
    Copy,
    CopyPlace,
    DelayLevels,
    GetResult,
    PutStatus,
    place_of,
)
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer

log = logging.getLogger("contrailmq.broker")

FILE_NAME: Final = "delayOffset.json"
POLL_MS: Final = 100  # how often an idle level is looked at; a waiting message is delivered at its own time
READING_MS: Final = 2  # how soon to look again while a worker reads
ESCAPE_MS: Final = 10  # how soon to look again while messages are on their way to another group
PORTION: Final = 128  # messages per tick: about 1 ms of the loop
PORTION_BYTES: Final = 4 << 20  # of them: what a worker holds in memory for one level
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class DelayService:
    """Delivers delayed messages. `offsets[level]` is the queue offset of the first one that waits."""

    name = "delay levels"

    def __init__(self, node: BrokerNode, worker: Executor, readers: Executor) -> None:
        """`worker` saves, `readers` read what is not in memory."""
        self._node = node
        self._readers = readers
        self._reading: dict[
            int, tuple[int, Future[GetResult]]
        ] = {}  # level -> (from which offset, what a worker reads)
        self._store = node.store
        self._copier = Copier(SystemTopic.SCHEDULE)
        self._job = WorkerJob(worker)
        self._path = node.config_path / FILE_NAME
        self._journal = LevelJournal(node.store.files, node.store, node.config_path)
        self._last_copy: CopyPlace | None = None  # that this life has made
        self._version = DataVersion(timestamp=node.now_ms())
        self._saved: dict[int, int] = {}
        self._saved_text = ""
        self._saved_ms = node.store.store_clock.steady_ms()
        self.levels = DelayLevels(node.store.config.message_delay_level)
        self.offsets: dict[int, int] = {}
        self._turn = 0  # the level that comes first in the next tick, counted from 0
        self.delivered = 0
        self.undeliverable = 0
        self.interval_ms = POLL_MS

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.GET_ALL_DELAY_OFFSET, self.all_offsets)

    # --- on the way in

    def rewrite(self, message: IncomingMessage) -> Refusal | None:
        """Send a message with a delay level to its level's queue. A level beyond the last counts as the last."""
        properties = message.properties
        level = _number(properties.get(Property.DELAY))
        if level <= 0 or message.topic == SystemTopic.HALF or message.sys_flag & SysFlag.TRANSACTION_PREPARED:
            return None
        level = min(level, len(self.levels.delays_ms))
        for name in TIMER_REQUESTS:
            properties.pop(name, None)
        properties[Property.DELAY] = str(level)
        properties[Property.REAL_TOPIC] = message.topic
        properties[Property.REAL_QUEUE_ID] = str(message.queue_id)
        message.topic, message.queue_id = SystemTopic.SCHEDULE, level - 1
        return None

    # --- life

    def start(self) -> None:
        """Go on where an earlier run stopped, within what the queues still hold.

        A slave's offsets stay its master's: they may be ahead of its queues. But after a cut of its log other messages
        will stand there, which nobody has delivered.
        """
        self._reading.clear()
        config_files.load(self._path, self._read_table)
        in_file = dict(self.offsets)
        used = {queue_id + 1 for topic, queue_id in self._store.queues() if topic == SystemTopic.SCHEDULE}
        for level in used:
            self.offsets.setdefault(level, 0)
        if self._node.is_log_cut:
            self.offsets = {level: min(offset, self._end_of(level)) for level, offset in self.offsets.items()}
        if self._node.duty is not Duty.FOLLOW:
            known = used | set(range(1, len(self.levels.delays_ms) + 1))  # each tick goes over all up to the highest
            self.offsets = {
                level: self._within_queue(level, offset) for level, offset in self.offsets.items() if level in known
            }
        if any(offset > self.offsets.get(level, 0) for level, offset in in_file.items()):
            self._save_set_back()
        self._take_journal()
        self._note_saved(dict(self.offsets), self.text())

    def _take_journal(self) -> None:
        """Continue after what an earlier run delivered since its last save, and put that into the table."""
        noted = {level: min(offset, self._end_of(level)) for level, offset in self._journal.open().items()}
        ahead = {level: offset for level, offset in noted.items() if offset > self.offsets.get(level, 0)}
        if ahead and not self._node.never_delivers:
            log.info(
                "delay levels go on where a crash stopped them, ahead of %s: %s",
                self._path,
                ", ".join(f"level {level} at {offset}" for level, offset in sorted(ahead.items())),
            )
            self.offsets |= ahead
            try:
                self._save(self._store.log_max_offset, self._snapshot())
            except TableSaveError as exc:  # a full disk: the journal stays as it is, and goes on
                log.error("%s", exc)
                return
        self._journal.clear()

    def _save_set_back(self) -> None:
        """The file has it too, before the queues grow again: a start after a kill would believe the old offset, and
        pass over the messages that stand before it by then."""
        try:
            self._save(self._store.log_max_offset, self.text())
        except TableSaveError as exc:  # a full disk: the next start sets them back again
            self._node.are_positions_unsaved = True
            log.error("%s", exc)

    def _end_of(self, level: int) -> int:
        return self._store.max_offset(SystemTopic.SCHEDULE, level - 1)

    def _read_table(self, data: Json) -> None:
        table = data.get("offsetTable", {})
        if not isinstance(table, dict):
            raise ValueError("delay offsets without an offsetTable")
        offsets = {int(level): whole_number(offset) for level, offset in table.items()}
        self._version.read(data.get("dataVersion"))
        self.offsets = offsets

    def stop(self) -> None:
        self._job.wait()
        if self._node.duty is Duty.FOLLOW:
            self._journal.close()
            return  # its file is its master's
        try:
            self._save(self._store.log_max_offset, self._snapshot())
            self._journal.clear()
        finally:
            self._journal.close()

    def crash(self) -> None:
        """Let go of the files as they are, as a killed process does."""
        self._journal.close()

    def tick(self, now_ms: int) -> None:
        """Deliver a portion of what is due by steady time; sets `interval_ms` to when the next one is."""
        if self._node.duty is Duty.FOLLOW:
            return
        next_ms = now_ms + POLL_MS
        left = PORTION
        levels = self._highest_level
        for turn in range(levels):
            level = (self._turn + turn) % levels + 1
            count, due_ms = self._deliver_level(level, now_ms, left)
            left -= count
            next_ms = min(next_ms, due_ms)
            if left <= 0:
                self._turn = level % levels  # a level with more than its share must not starve the next one
                next_ms = now_ms
                break
        self.interval_ms = max(next_ms - now_ms, 0)
        if left < PORTION:
            self._node.after_append(wants_flush=self._store.config.is_sync_flush)
        self._save_when_due(now_ms)

    def pending(self) -> dict[int, int]:
        """Level -> messages that wait, also where no tick has come by yet."""
        levels = range(1, self._highest_level + 1)
        counts = {level: self._end_of(level) - self.offsets.get(level, 0) for level in levels}
        return {level: count for level, count in counts.items() if count > 0}

    @property
    def _highest_level(self) -> int:
        return max(len(self.levels.delays_ms), *self.offsets, 0)

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO: `offset,max` of every level, as the reference shows them."""
        offsets = {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.max_offset(SystemTopic.SCHEDULE, level - 1)}"
            for level, offset in sorted(self.offsets.items())
        }
        return offsets | {f"delayPending_{level}": str(count) for level, count in sorted(self.pending().items())}

    # --- master and slave

    def all_offsets(self, connection: Peer, command: Command) -> bytes | None:
        """GET_ALL_DELAY_OFFSET (45): what was saved last, so that no slave counts copies that it may not have yet."""
        return success(command, None, self._saved_text.encode())

    def follow(self, text: str) -> bool:
        """A slave takes over its master's offsets, for the day it is a master itself; False when it has them.

        ValueError: not readable. The caller saves `text()`.
        """
        data = config_files.parse(text)
        table = data.get("offsetTable")
        if not isinstance(table, dict):
            raise ValueError("delay offsets without an offsetTable")
        offsets = {int(level): int(offset) for level, offset in table.items()}
        version = DataVersion(timestamp=0)
        version.read(data.get("dataVersion"))
        if offsets == self.offsets and version.parts == self._version.parts:
            return False
        self._version = version
        self.offsets = offsets
        self._note_saved(dict(offsets), self.text())
        return True

    def take_over(self, offsets: Mapping[int, int]) -> None:
        """A master learns how far a slave has come that stood in for it, whose log is a part of this one. Blocks."""
        ahead = {level: offset for level, offset in offsets.items() if offset > self.offsets.get(level, 0)}
        if ahead:
            self.offsets |= {level: self._within_queue(level, offset) for level, offset in ahead.items()}
            text = self._snapshot()
            self._save(self._store.log_max_offset, text)
            self._note_saved(dict(self.offsets), text)

    # --- delivering

    def _deliver_level(self, level: int, now_ms: int, max_count: int) -> tuple[int, int]:
        """(messages done, when to look at this level again)."""
        queue_id = level - 1
        if self._store.max_offset(SystemTopic.SCHEDULE, queue_id) <= self.offsets.get(level, 0):
            return 0, now_ms + POLL_MS
        offset = self.offsets[level] = self._within_queue(level, self.offsets.get(level, 0))
        due_count = 0
        next_ms = now_ms
        for physical_offset, size_bytes, code in self._store.read_units(
            SystemTopic.SCHEDULE, queue_id, offset, max_count
        ):
            next_ms = self._due_ms(level, physical_offset, size_bytes, code)
            if next_ms > now_ms:
                break
            due_count += 1
        if not due_count:
            return 0, next_ms
        return self._deliver_next(level, due_count, now_ms)

    def _deliver_next(self, level: int, count: int, now_ms: int) -> tuple[int, int]:
        """Deliver up to `count` messages that are due, as slices of the log: they are copied in groups, as bytes."""
        offset = self.offsets[level]
        found = self._find(level, offset, count)
        if found is None:
            return 0, now_ms + READING_MS
        if self._node.duty is Duty.ESCAPE:
            return self._hand_over(level, found, count), now_ms + ESCAPE_MS
        is_refused = False
        try:
            at = misses = 0
            while at < len(found.slices) and not is_refused:
                copies, offsets = self._copies(found.slices[at:]) if misses < COPY_MISSES_MAX else ([], [])
                written = self._store.append_copies(copies) if copies else 0
                if copies:
                    misses = 0 if written else misses + 1
                if written:
                    self._note(copies[:written])
                    self._last_copy = place_of(copies[written - 1])
                    self.offsets[level] = offsets[written - 1] + 1
                    at += written
                if at < len(found.slices) and (not copies or written < len(copies)):
                    is_refused = not self._deliver_one(level, found.slices[at])
                    at += 1
        finally:
            found.release()
        if not is_refused:  # some may have been cleaned away
            self.undeliverable += found.damaged
            self.offsets[level] = max(self.offsets[level], min(found.next_offset, offset + count))
        if self.offsets[level] > offset and self._last_copy is not None:
            # At once, not when the tick ends: on a machine that is short of processors a kill may come long after.
            self._journal.note(self.offsets, self._last_copy)
        return self.offsets[level] - offset, now_ms + POLL_MS if is_refused else now_ms

    def _hand_over(self, level: int, found: GetResult, count: int) -> int:
        """As `_deliver_next`, to other groups: as many as they have by now."""
        begin = self.offsets[level]
        messages: list[StoredMessage] = []
        try:
            for record in found.slices:
                with contextlib.suppress(CorruptRecordError):  # get_slices_sound has told of it, and counts it
                    messages.append(decode_record(record))
        finally:
            found.release()
        assert self._node.elsewhere is not None, "a slave that acts has somewhere to hand messages to"
        arrived = self._node.elsewhere.hand_over([(message, 0) for message in messages])
        if arrived:
            last = messages[arrived - 1]
            self.offsets[level] = last.queue_offset + 1
            self._last_copy = CopyPlace(last.physical_offset, last.store_time_ms)
            self.delivered += arrived
        if arrived == len(messages):
            self.undeliverable += found.damaged
            self.offsets[level] = max(self.offsets[level], min(found.next_offset, begin + count))
        if self.offsets[level] > begin and self._last_copy is not None:
            self._journal.note(self.offsets, self._last_copy)
        return self.offsets[level] - begin

    def _copies(self, records: Sequence[memoryview]) -> tuple[list[Copy], list[int]]:
        """Copies, and the queue offsets of the originals, up to one that is not simply copied."""
        copies, places = self._copier.copies(records)
        for count, copy in enumerate(copies):
            if copy[0] == SystemTopic.HALF:
                del copies[count:]
                break
        return copies, [queue_offset for queue_offset, _ in places]

    def _find(self, level: int, offset: int, count: int) -> GetResult | None:
        """Messages of a level; None while a worker is reading them."""
        reading = self._reading.get(level)
        if reading is None:
            if not self._store.is_cold(SystemTopic.SCHEDULE, level - 1, offset):
                return self._store.get_slices_sound(
                    SystemTopic.SCHEDULE, level - 1, offset, count, bulk_bytes=PORTION_BYTES
                )
            read = partial(self._store.get_slices_cold, bulk_bytes=PORTION_BYTES)
            reading = self._reading[level] = (
                offset,
                self._readers.submit(read, SystemTopic.SCHEDULE, level - 1, offset, count),
            )
        begin, future = reading
        if not future.done():
            return None
        del self._reading[level]
        return future.result() if begin == offset else None

    def _note(self, copies: Sequence[Copy]) -> None:
        self.delivered += len(copies)
        for topic in {copy.topic for copy in copies}:
            sizes = [copy.record_bytes for copy in copies if copy.topic == topic]
            self._node.statistics.note_put(topic, len(sizes), sum(sizes), DELAY)

    def _deliver_one(self, level: int, record: memoryview) -> bool:
        """One that did not go with the others; False when the store cannot take it now."""
        try:
            message = decode_record(record)
        except CorruptRecordError as exc:  # passed by the next one, or by next_offset
            log.error("a delayed message of level %d after offset %d is lost: %s", level, self.offsets[level], exc)
            self.undeliverable += 1
            return True
        if not self._deliver(message):
            return False
        self.offsets[level] = message.queue_offset + 1
        return True

    def _within_queue(self, level: int, offset: int) -> int:
        first = self._store.min_offset(SystemTopic.SCHEDULE, level - 1)
        return max(first, min(offset, self._store.max_offset(SystemTopic.SCHEDULE, level - 1)))

    def _due_ms(self, level: int, physical_offset: int, size_bytes: int, code: int) -> int:
        """In steady time."""
        if code < 0:  # the address of a queue extension, not a time
            message = self._read(physical_offset, size_bytes)
            code = 0 if message is None else self.levels.deliver_time_ms(level, message.store_time_ms)
        clock, delay_ms = self._store.store_clock, self.levels.deliver_time_ms(level, 0)
        due_ms = clock.stored_ms(physical_offset, code - delay_ms) + delay_ms
        if physical_offset < clock.opened_at:
            # Where nobody knows how its time is to be read (Apache's): no more than its delay once more.
            return min(due_ms, clock.opened_ms + delay_ms)
        return due_ms

    def _read(self, physical_offset: int, size_bytes: int) -> StoredMessage | None:
        record = self._store.read_record(physical_offset, size_bytes)
        if record is None:
            return None
        try:
            return decode_record(record)
        except CorruptRecordError:
            return None

    def _deliver(self, message: StoredMessage) -> bool:
        """Put one message where it belongs; False when the store cannot take it now."""
        properties = message.properties
        topic, queue = properties.get(Property.REAL_TOPIC), properties.get(Property.REAL_QUEUE_ID)
        if not topic or topic == SystemTopic.HALF or _number(queue) > QUEUE_ID_MAX:
            log.error("delayed message %s is meant for %s: dropped", message.offset_message_id, (topic, queue))
            self.undeliverable += 1
            return True
        result = self._store.append(
            topic,
            max(_number(queue), 0),
            message.stored_body,
            message.encoded_properties,
            tags_code=tags_code(properties.get(Property.TAGS)),
            keys=properties.get(Property.KEYS),
            unique_key=properties.get(Property.UNIQUE_KEY),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_time_ms=message.born_time_ms,
            born_host=message.born_host_bytes,
            store_host=message.store_host_bytes,
            reconsume_times=message.reconsume_times,
        )
        if result.status.is_stored:
            self.delivered += 1
            self._last_copy = CopyPlace(result.physical_offset, result.store_time_ms)
            self._node.statistics.note_put(topic, 1, result.size_bytes, DELAY)
            return True
        if result.status in _HOPELESS:
            log.error("delayed message %s can not be stored again: %s", message.offset_message_id, result.reason)
            self.undeliverable += 1
            return True
        return False

    # --- saving

    def _save_when_due(self, now_ms: int) -> None:
        try:
            is_free = self._job.poll()
        except TableSaveError as exc:  # a full disk: a crash now repeats more, nothing is lost
            log.error("%s", exc)
            return
        if not is_free or 0 <= now_ms - self._saved_ms < self._store.config.flush_delay_offset_interval:
            return
        self._saved_ms = now_ms
        if self.offsets != self._saved:
            log_end, offsets, text = self._store.log_max_offset, dict(self.offsets), self._snapshot()
            self._job.start(lambda: self._save(log_end, text), lambda: self._note_saved(offsets, text))

    def _note_saved(self, offsets: dict[int, int], text: str) -> None:
        self._saved, self._saved_text = offsets, text

    def _snapshot(self) -> str:
        self._version.advance(self._node.now_ms())
        return self.text()

    def text(self) -> str:
        """The file as of now. The caller makes the copies durable before it is saved."""
        table = {str(level): offset for level, offset in sorted(self.offsets.items())}
        return config_files.pretty({"dataVersion": self._version.to_json(), "offsetTable": table})

    def _save(self, log_end: int, text: str) -> None:
        """Blocks. The copies first: an offset on disk says that everything before it was delivered."""
        self._store.flush(log_end)
        config_files.save(self._path, text)


def _number(text: str | None) -> int:
    return natural_number(text or "") or 0
