"""Reads messages: from a queue, by place, by key, by time.

A queue read gives slices of the mapped log, never decoded: 32 cost about 15 us, or 3 when another group has just read
them (recent.py). WARM joins adjacent records into one slice. The rules are RocketMQ's
(DefaultMessageStore.getMessage): the answer to a bad offset (`_find`), a first message above the limits is given alone,
and filtered units move the reader on.

Damage (damage.py): what this process has just written is trusted. WARM, COLD and SOUND reads check
everything else (checkCrcOnRead): they note and pass over a damaged record, and remember a sound one (sound_runs.py).
A PLAIN one trusts the log; for an embedding program the store checks what it decodes and raises an error.
`lookup` and `query` return only a whole record that has that place, topic and key, so a wrong index gives no wrong
answer.

Limits: the caller's count and bytes, and 32 messages or 256 KiB for what is probably in memory, 8 or 64 KiB for what is
probably on disk (maxTransfer...): further from the end of the log than 40 % of RAM. Our own readers may ask for more
(`bulk_bytes`). A page on disk blocks the thread that touches it. So a loop reads WARM, which asks the kernel first
(residency.py), and otherwise a worker reads COLD, which copies with pread.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Sized
from functools import lru_cache
from itertools import accumulate
from operator import add
from typing import Final

from librt.strings import read_i32_be, read_i64_be

from contrailmq.message import Property, StoredMessage, tags_code
from contrailmq.message.codec import Kind, check_record, decode_record
from contrailmq.message.property_text import key_of
from contrailmq.message.record import RECORD_BYTES_MIN, read_store_time, view_record
from contrailmq.store.base.errors import StoreError
from contrailmq.store.base.stats import StoreStats
from contrailmq.store.base.status import GetResult, GetStatus, Limits, MessageFilter
from contrailmq.store.config import CONSUME_QUEUE_UNIT_BYTES, StoreConfig
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.log.commit_log import CommitLog
from contrailmq.store.log.damage import Damage, Place, body_fault, fault_of, sound_count
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.residency import Residency
from contrailmq.store.queues.batch_consume_queue import BatchConsumeQueue
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.consume_queue_ext import is_ext_address
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.light_queues import names_light_queue
from contrailmq.store.queues.queue_unit import PRE_BLANK_SIZE, Boundary, unpack_units
from contrailmq.store.queues.sound_runs import Runs, before, covers, with_run
from contrailmq.store.reading.batch_reading import read_batches
from contrailmq.store.reading.recent import BATCH_BYTES_MAX, Batch, RecentBatches

PULL_BYTES_MIN: Final = 100  # RocketMQ clamps the bytes that a request may ask for
PULL_BYTES_MAX: Final = 128 << 20
_TAGS: Final = key_of(Property.TAGS)

# The ways to read.
PLAIN: Final = 0  # slices of the mapped log
WARM: Final = 1  # the same, checked; None when that would touch pages that are not in memory
COLD: Final = 2  # copies, read with pread by the calling thread: no page of the mapping is touched
SOUND: Final = 3  # slices of records that were checked: for whoever writes them once more

AnyQueue = ConsumeQueue | BatchConsumeQueue


class Reader:
    """Any thread may read; WARM, which keeps what several groups read, is for one loop.

    With `dispatch` (an embedded store) whoever asks for a queue or a key makes up first for what puts have left; a loop
    gives none: it decides when to dispatch.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        residency: Residency,
        stats: StoreStats,
        *,
        monotonic_ms: Callable[[], int],
        dispatch: Callable[[], None] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._config = config
        self.residency = residency
        self._stats = stats
        self._monotonic_ms = monotonic_ms
        self._log = log
        self._queues = queues
        self._index = index
        memory = memory_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._distance_in_memory = memory * config.access_message_in_memory_max_ratio // 100
        self._undispatched: Sized = log.facts if dispatch is not None else ()
        self._dispatch = dispatch
        self.closed: Callable[[], StoreError] | None = None  # makes the error for reads of a closed store
        self._recent = RecentBatches()
        self.damage = Damage(config.path)

    def catch_up(self) -> None:
        """Have dispatched what embedded puts have left, before something is read that dispatch writes."""
        if self._undispatched and self._dispatch is not None:
            self._dispatch()

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue, up to date."""
        if self.closed is not None:
            raise self.closed()
        if self._undispatched and self._dispatch is not None:
            self._dispatch()
        return self._queues.get(topic, queue_id)

    def any_queue(self, topic: str, queue_id: int) -> AnyQueue | None:
        """A queue of either kind, up to date."""
        return self.queue(topic, queue_id) or self._queues.batches.get(topic, queue_id)

    # --- from a queue

    def read(
        self,
        way: int,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int = PULL_BYTES_MAX,
        bulk_bytes: int = 0,
        filter: MessageFilter | None = None,
    ) -> GetResult | None:
        """In one of the four ways; what they have in common is here. Only WARM gives None."""
        found = self._find(topic, queue_id, offset)
        if isinstance(found, GetResult):
            self._stats.note_get(0, 0)
            return found
        started_ms = self._monotonic_ms()
        limits = self._limits(max_count, max_bytes, bulk_bytes)
        answer: GetResult | None
        try:
            if way == WARM:
                answer = self._warm_slices(found, offset, limits, filter)
            elif way == COLD:
                answer = self._cold_slices(found, offset, limits, filter)
            elif way == SOUND:
                answer = self._sound_slices(found, offset, limits, filter)
            else:
                answer = self._slices(found, offset, limits, filter)
        except (ValueError, OSError) as exc:  # as of a mapping that was closed meanwhile
            if self.closed is None:
                raise
            raise self.closed() from exc
        if self.closed is not None:  # what closed under us looks as if it had no messages
            raise self.closed()
        if answer is not None:
            self._stats.note_get(answer.count, self._monotonic_ms() - started_ms)
        return answer

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Where a queue ends, 0 when there is none."""
        return queue.max_offset if (queue := self.any_queue(topic, queue_id)) is not None else 0

    def is_behind(self, topic: str, queue_id: int) -> bool:
        """Whether the log has, or may have, messages for a queue that were not dispatched to it."""
        queue = self._queues.get(topic, queue_id)
        return queue is None or queue.max_offset < self._log.next_offset(topic, queue_id)

    def is_logged(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the log has all messages of a queue before `offset`, readable by now or not."""
        return 0 <= offset <= self._log.next_offset(topic, queue_id)

    def is_cold(self, topic: str, queue_id: int, offset: int, *, by_distance: bool = False) -> bool:
        """Would reading here touch what is not in memory? `by_distance` is RocketMQ's guess instead of the truth."""
        queue = self._find(topic, queue_id, offset)
        if not isinstance(queue, ConsumeQueue):
            return False
        units = queue.read_units(offset, 1)
        if not by_distance:
            return bool(units) and self._is_place_on_disk(read_i64_be(units, 0))
        return bool(units) and self._log.max_offset - read_i64_be(units, 0) > self._distance_in_memory

    def _is_place_on_disk(self, physical_offset: int) -> bool:
        if self._log.min_offset >= self.residency.fresh_from:
            return False  # all of the log is fresh
        return not self.residency.is_resident(physical_offset)

    def _is_to_be_checked(self, physical_offset: int) -> bool:
        """By checkCrcOnRead: what was not written by this process lately, or all, or nothing."""
        checks = self._config.check_crc_on_read
        return checks == "all" or (checks == "cold" and physical_offset < self.residency.fresh_from)

    def _are_units_to_be_checked(self, units: bytes) -> bool:
        return bool(units) and self._is_to_be_checked(read_i64_be(units, 0))

    def _known_sound(self, queue: ConsumeQueue) -> Runs:
        """What need not be checked once more."""
        return () if self._config.check_crc_on_read == "all" else queue.sound

    def _is_damaged(self, queue: AnyQueue, record: memoryview, place: tuple[int, int, int], known: Runs = ()) -> bool:
        """Whether the record at (physical offset, size, queue offset) is not what its queue says; it is noted then.

        What is `known` to be sound is not looked at.
        """
        physical_offset, size, queue_offset = place
        if covers(known, queue_offset, queue_offset + 1):
            return False
        reason = fault_of(record, physical_offset, _own_topic(queue), queue.queue_id, queue_offset)
        if reason:
            self.damage.note(Place(physical_offset, size, queue.topic, queue.queue_id, queue_offset, reason))
        return bool(reason)

    def _batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        limits: Limits,
        message_filter: MessageFilter | None,
        fetch: Callable[[int, int], memoryview | None],
        *,
        is_checked: bool = True,
    ) -> GetResult:
        def sound(physical_offset: int, size_bytes: int, base_offset: int) -> memoryview | None:
            record = fetch(physical_offset, size_bytes)
            if record is None or not is_checked or not self._is_to_be_checked(physical_offset):
                return record
            return None if self._is_damaged(queue, record, (physical_offset, size_bytes, base_offset)) else record

        return read_batches(
            queue,
            offset,
            limits,
            message_filter,
            sound,
            log_end=self._log.max_offset,
            distance_in_memory=self._distance_in_memory,
        )

    def _find(self, topic: str, queue_id: int, offset: int) -> AnyQueue | GetResult:
        """The queue when it has a message there, else why it has none, in RocketMQ's order."""
        queue = self.any_queue(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(offset, 0), 0, 0)
        lowest, highest = queue.min_offset, queue.max_offset
        if lowest <= offset < highest:
            return queue
        if highest == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0), lowest, highest)
        if offset < lowest:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, self._corrected(offset, lowest), lowest, highest)
        if offset == highest:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, lowest, highest)
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, highest), lowest, highest)

    def _corrected(self, asked: int, right: int) -> int:
        """A slave may lag behind what the consumer knows: it does not correct offsets unless told to."""
        return asked if self._config.is_slave and not self._config.offset_check_in_slave else right

    def _nothing_there(self, queue: ConsumeQueue, offset: int) -> GetResult:
        per_file = queue.file_bytes // CONSUME_QUEUE_UNIT_BYTES
        following = self._corrected(offset, offset + per_file - offset % per_file)
        return GetResult(GetStatus.OFFSET_FOUND_NULL, following, queue.min_offset, queue.max_offset)

    def _limits(self, max_count: int, max_bytes: int, bulk_bytes: int) -> Limits:
        """`bulk_bytes` raises the bytes, and leaves the count to the caller."""
        config = self._config
        asked = PULL_BYTES_MAX if max_bytes > PULL_BYTES_MAX else max(max_bytes, PULL_BYTES_MIN)
        memory_bytes = config.max_transfer_bytes_on_message_in_memory
        memory_count = config.max_transfer_count_on_message_in_memory
        disk_bytes = config.max_transfer_bytes_on_message_in_disk
        disk_count = config.max_transfer_count_on_message_in_disk
        if bulk_bytes > 0:
            memory_bytes = disk_bytes = max(memory_bytes, bulk_bytes)
            memory_count = disk_count = max_count
        return (  # a third of the time that calls of min take
            asked if asked < memory_bytes else memory_bytes,
            max_count if max_count < memory_count else memory_count,
            asked if asked < disk_bytes else disk_bytes,
            max_count if max_count < disk_count else disk_count,
            max_count,
        )

    def _slices(self, queue: AnyQueue, offset: int, limits: Limits, message_filter: MessageFilter | None) -> GetResult:
        if isinstance(queue, BatchConsumeQueue):
            return self._batches(queue, offset, limits, message_filter, self.record, is_checked=False)
        if message_filter is None:
            return self._all(queue, offset, queue.read_units(offset, max(1, limits[1])), limits)
        return self._filtered(queue, offset, limits, message_filter, self.record)

    def _warm_slices(
        self, queue: AnyQueue, offset: int, limits: Limits, message_filter: MessageFilter | None
    ) -> GetResult | None:
        if isinstance(queue, BatchConsumeQueue):
            unit = queue.find(offset)
            if unit is not None and self._is_place_on_disk(unit.physical_offset):
                return None
            return self._batches(queue, offset, limits, message_filter, self.record)
        if message_filter is not None:
            if queue.doubts and queue.is_doubtful_at(offset):
                return None
            first = queue.read_units(offset, 1)
            if first and self._is_place_on_disk(read_i64_be(first, 0)):
                return None
            checks = self._are_units_to_be_checked(first)
            known = self._known_sound(queue)
            return self._filtered(queue, offset, limits, message_filter, self.record, checks=checks, known=known)
        recent = self._recent.find(queue, offset, limits)
        if recent is not None:
            return self._again(queue, recent)
        if queue.doubts and queue.is_doubtful_at(offset):
            return None  # a file has to be compared first
        units = queue.read_units(offset, max(1, limits[1]))
        if units and self._is_place_on_disk(read_i64_be(units, 0)):
            return None
        checks = self._are_units_to_be_checked(units) and not covers(
            self._known_sound(queue), offset, offset + len(units) // CONSUME_QUEUE_UNIT_BYTES
        )
        found = self._all(queue, offset, units, limits, in_runs=True, checks=checks)
        following = found.next_offset
        is_whole = found.count == following - offset and found.size_bytes <= BATCH_BYTES_MAX
        if not is_whole or not self._recent.is_wanted(queue):
            return found
        end = following if following == found.max_offset else -1
        recent = Batch(b"".join(found.slices), found.count, following, found.suggest_slave, end)
        self._recent.keep(queue, offset, limits, recent)
        return self._again(queue, recent)

    def _again(self, queue: ConsumeQueue, batch: Batch) -> GetResult:
        return GetResult(
            GetStatus.FOUND,
            batch.next_offset,
            queue.min_offset,
            queue.max_offset,
            [memoryview(batch.body)],
            len(batch.body),
            batch.suggest_slave,
            batch.messages,
        )

    def _cold_slices(
        self, queue: AnyQueue, offset: int, limits: Limits, message_filter: MessageFilter | None
    ) -> GetResult:
        if isinstance(queue, BatchConsumeQueue):
            return self._batches(queue, offset, limits, message_filter, self.cold_record)
        checks = self._are_units_to_be_checked(queue.read_units(offset, 1))
        queue.sound = before(queue.sound, offset)  # it left memory, and what follows it probably did as well
        return self._filtered(queue, offset, limits, message_filter, self.cold_record, checks=checks)

    def _sound_slices(
        self, queue: AnyQueue, offset: int, limits: Limits, message_filter: MessageFilter | None
    ) -> GetResult:
        if isinstance(queue, BatchConsumeQueue):
            return self._batches(queue, offset, limits, message_filter, self.record)
        return self._filtered(queue, offset, limits, message_filter, self.record, checks=True)

    def _all(
        self,
        queue: ConsumeQueue,
        offset: int,
        units: bytes,
        limits: Limits,
        *,
        in_runs: bool = False,
        checks: bool = False,
    ) -> GetResult:
        """The hot path: every unit counts, records are slices; `in_runs` allows slices of several."""
        if not units:
            return self._nothing_there(queue, offset)
        found = self._of_one_file(queue, offset, units, limits[0], in_runs=in_runs, checks=checks)
        if found is not None:
            return found
        if checks:
            return self._filtered(queue, offset, limits, None, self.record, checks=True)
        return self._one_by_one(queue, offset, units, limits)

    def _of_one_file(
        self, queue: ConsumeQueue, offset: int, units: bytes, bytes_max: int, *, in_runs: bool, checks: bool
    ) -> GetResult | None:
        """The usual case: all lie in one file, near the end of the log, and are sound. 0.35 us a message, less in runs.

        With `checks`, about 1 us more, once for each message.
        """
        count = len(units) // CONSUME_QUEUE_UNIT_BYTES
        if count == 1:  # the rule where consumers keep up with producers
            return self._of_one_record(queue, offset, units, checks=checks)
        places = _place_struct(count).unpack(units)
        offsets, sizes = places[0::2], places[1::2]
        total = sum(sizes)
        if total > bytes_max:  # as many as fit, and the first in any case
            ends = list(accumulate(sizes))
            count = max(1, bisect_right(ends, bytes_max))
            offsets, sizes, total = offsets[:count], sizes[:count], ends[count - 1]
        first = offsets[0]
        file = self._log.files.find(first)
        if file is None or not file.is_available:
            return None
        base, distance = file.base, self._log.max_offset - first
        end = base + file.read_position
        is_within = max(offsets) + max(sizes) <= end or max(map(add, offsets, sizes)) <= end
        if not is_within or min(offsets) != first or distance > self._distance_in_memory:
            return None
        try:
            view = file.view
            if checks:
                sound = sound_count(view, base, offsets, sizes, _own_topic(queue), queue.queue_id, offset)
                if sound < count:
                    return None
                queue.sound = with_run(queue.sound, offset, offset + count)
            slices = (
                _runs(view, base, offsets, sizes)
                if in_runs
                else [
                    view[(at := physical_offset - base) : at + size]
                    for physical_offset, size in zip(offsets, sizes, strict=True)
                ]
            )
        except ValueError:  # it began to be deleted just now
            return None
        lowest, highest = queue.min_offset, queue.max_offset
        return GetResult(GetStatus.FOUND, offset + count, lowest, highest, slices, total, False, count)

    def _of_one_record(self, queue: ConsumeQueue, offset: int, units: bytes, *, checks: bool) -> GetResult | None:
        """The same for a single unit, by the same rules."""
        physical_offset: int = read_i64_be(units, 0)
        size: int = read_i32_be(units, 8)
        record = self.record(physical_offset, size)
        if record is None or self._log.max_offset - physical_offset > self._distance_in_memory:
            return None
        if checks:
            place = (physical_offset,)
            if not sound_count(record, physical_offset, place, (size,), _own_topic(queue), queue.queue_id, offset):
                return None
            queue.sound = with_run(queue.sound, offset, offset + 1)
        return GetResult(GetStatus.FOUND, offset + 1, queue.min_offset, queue.max_offset, [record], size, False, 1)

    def _one_by_one(self, queue: ConsumeQueue, offset: int, units: bytes, limits: Limits) -> GetResult:
        """Some may be cleaned away, on disk or in another file, or the answer may become full."""
        memory_bytes, _, disk_bytes, disk_count, _ = limits
        log_end = self._log.max_offset
        cold_before = log_end - self._distance_in_memory
        slices: list[memoryview] = []
        total = base = end = 0
        view = memoryview(b"")
        following = offset
        physical_offset = 0
        take = slices.append
        try:
            for physical_offset, size, _ in unpack_units(units):  # never more units than the answer may hold
                grown = total + size
                if slices:
                    if physical_offset < cold_before:
                        if len(slices) >= disk_count or grown > disk_bytes:
                            break
                    elif grown > memory_bytes:
                        break
                following += 1
                position = physical_offset - base
                stop = position + size
                if position < 0 or stop > end:
                    file = self._log.files.find(physical_offset)
                    position = physical_offset - file.base if file is not None else 0
                    stop = position + size
                    if file is None or stop > file.read_position or not file.is_available:
                        continue  # cleaned away, or a pre-blank unit
                    base, end, view = file.base, file.read_position, file.view
                take(view[position:stop])
                total = grown
        except ValueError:  # a file began to be deleted in the middle: what was collected is good
            following = max(offset, following - 1) if slices else following
        status = GetStatus.FOUND if slices else GetStatus.MESSAGE_WAS_REMOVING
        suggest_slave = log_end - physical_offset > self._distance_in_memory
        return GetResult(status, following, queue.min_offset, queue.max_offset, slices, total, suggest_slave)

    def _filtered(
        self,
        queue: ConsumeQueue,
        offset: int,
        limits: Limits,
        message_filter: MessageFilter | None,
        fetch: Callable[[int, int], memoryview | None],
        *,
        checks: bool = False,
        known: Runs = (),
    ) -> GetResult:
        """Scan at most 16,000 bytes of units (or what the count takes) of one queue file; see `_is_damaged`."""
        memory_bytes, memory_count, disk_bytes, disk_count, max_count = limits
        scan_bytes = max(self._config.max_filter_message_size, max_count * CONSUME_QUEUE_UNIT_BYTES)
        data = queue.read_units(offset, scan_bytes // CONSUME_QUEUE_UNIT_BYTES)
        if not data:
            return self._nothing_there(queue, offset)
        log_end = self._log.max_offset
        cold_before = log_end - self._distance_in_memory
        status = GetStatus.NO_MATCHED_MESSAGE
        slices: list[memoryview] = []
        total = gone_before = physical_offset = damaged = 0
        following = offset
        for physical_offset, size, code in unpack_units(data):
            is_cold = physical_offset < cold_before
            if slices and (
                len(slices) >= (disk_count if is_cold else memory_count)
                or total + size > (disk_bytes if is_cold else memory_bytes)
            ):
                break
            following += 1
            if physical_offset < gone_before or size == PRE_BLANK_SIZE:
                continue
            if message_filter is not None and not self._may_match(
                message_filter, queue, physical_offset, size, code, None if checks else fetch
            ):
                continue
            record = fetch(physical_offset, size)
            if record is None:
                if not slices:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                gone_before = self._file_end(physical_offset)
                continue
            is_damaged = checks and self._is_damaged(queue, record, (physical_offset, size, following - 1), known)
            damaged += is_damaged
            if is_damaged or (message_filter is not None and not message_filter.match_record(record)):
                record.release()
                continue
            slices.append(record)
            total += size
            status = GetStatus.FOUND
            gone_before = 0
        if checks and len(slices) == following - offset > 0:
            queue.sound = with_run(queue.sound, offset, following)
        suggest_slave = log_end - physical_offset > self._distance_in_memory
        found = GetResult(status, following, queue.min_offset, queue.max_offset, slices, total, suggest_slave)
        found.damaged = damaged
        return found

    def _file_end(self, physical_offset: int) -> int:
        """Where the log file ends that has or had this place."""
        file_bytes = self._log.files.file_bytes
        return physical_offset - physical_offset % file_bytes + file_bytes

    def _may_match(
        self,
        message_filter: MessageFilter,
        queue: ConsumeQueue,
        physical_offset: int,
        size_bytes: int,
        code: int,
        fetch: Callable[[int, int], memoryview | None] | None,
    ) -> bool:
        """With extensions on, the unit holds an address, and the tag's code is there; unreadable counts as a match.

        Extensions have neither checksums nor syncs, so where they say no the record itself is asked for its tag.
        """
        if not is_ext_address(code):
            return message_filter.match_unit(code, None)
        ext = self._queues.ext.get(queue.topic, queue.queue_id, code) if self._queues.ext is not None else None
        if ext is None or message_filter.match_unit(ext.tags_code, ext):
            return True
        record = fetch(physical_offset, size_bytes) if fetch is not None else None
        if record is None:
            return True
        with record:
            return message_filter.match_unit(tags_code(view_record(record).find(_TAGS)), None)

    # --- by place

    def record(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        """The bytes of one record as a slice of the log."""
        file = self._log.files.find(physical_offset)
        return file.select(physical_offset - file.base, size_bytes) if file is not None else None

    def cold_record(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        """The same as a copy, read with pread by the calling thread."""
        file = self._log.files.find(physical_offset)
        data = file.pread(physical_offset - file.base, size_bytes) if file is not None else None
        return memoryview(data) if data is not None else None

    def read_record(self, physical_offset: int, size_bytes: int | None) -> bytes | None:
        """A copy of one whole record; None when no record begins there."""
        found = self._whole_at(physical_offset, size_bytes)
        if found is None:
            return None
        file, size = found
        view = file.select(physical_offset - file.base, size)
        return bytes(view) if view is not None else None

    def lookup(self, physical_offset: int) -> StoredMessage | None:
        """The message that begins at this place; None when none does."""
        data = self.read_record(physical_offset, None)
        return decode_record(data) if data is not None else None

    def is_sound(self, message: StoredMessage) -> bool:
        """Whether a message's body is the one that was stored; noted when it is not."""
        reason = body_fault(message)
        if reason:
            where = (message.physical_offset, message.size_bytes, message.topic, message.queue_id, message.queue_offset)
            self.damage.note(Place(*where, reason))
        return not reason

    def _whole_at(self, physical_offset: int, size_bytes: int | None) -> tuple[MappedFile, int] | None:
        file = self._log.files.find(physical_offset) if physical_offset >= 0 else None
        if file is None or not file.is_available:
            return None
        try:
            verdict = check_record(
                file.mapping,
                physical_offset - file.base,
                limit=file.read_position,
                physical_offset=physical_offset,
                check_body_crc=False,
            )
        except ValueError:  # closed just now
            return None
        if verdict.kind is not Kind.WHOLE or size_bytes not in (None, verdict.size_bytes):
            return None
        return file, verdict.size_bytes

    # --- by key and by time

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[StoredMessage]:
        """Messages of a topic that carry a key (or that unique id), newest first.

        Times are RocketMQ's: whole seconds from the first message of an index file on, so a message can look up to
        999 ms early. Begin a second earlier to get all of a range (golden stores: a range of just one
        message's time leaves that message out). The record's own store time is held against that: the index narrows,
        and cannot make a message of another time an answer.
        """
        if self._index is None:
            return []
        self.catch_up()
        found: list[StoredMessage] = []
        last_ms = end_ms + 999
        for physical_offset in self._index.query(topic, key, max_count, begin_ms, end_ms):
            message = self.lookup(physical_offset)
            if message is None or message.topic != topic or not _carries(message, key):
                continue
            if begin_ms <= message.store_time_ms <= last_ms:
                found.append(message)
        return found

    @property
    def is_index_doubtful(self) -> bool:
        return self._index is not None and self._index.is_doubtful

    def offset_at(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        queue = self.any_queue(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            return queue.offset_at(time_ms, boundary)
        return queue.offset_at(time_ms, self.store_time_of, boundary) if queue is not None else 0

    def store_time_of(self, physical_offset: int, size_bytes: int) -> int:
        """Store time of a record; -1 when it is no longer, or not yet, in the log."""
        record = self.record(physical_offset, size_bytes)
        if record is None or size_bytes < RECORD_BYTES_MIN:
            return -1
        return read_store_time(record)

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self.any_queue(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            batch = queue.find(offset)
            return batch.store_time_ms if batch is not None else -1
        unit = queue.unit_at(offset) if queue is not None else None
        return self.store_time_of(unit.physical_offset, unit.size_bytes) if unit is not None else -1

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of the log, or of one queue; -1 when there is none."""
        if topic is not None:
            queue = self.any_queue(topic, queue_id)
            return self.store_time_at(topic, queue_id, queue.min_offset) if queue is not None else -1
        oldest = self._whole_at(self._log.min_offset, None)
        return self.store_time_of(self._log.min_offset, oldest[1]) if oldest is not None else -1


@lru_cache(512)
def _place_struct(count: int) -> struct.Struct:
    """Physical offset and size of so many units."""
    return struct.Struct(">" + "qi8x" * count)


def _own_topic(queue: AnyQueue) -> bytes:
    """The topic that the records of a queue carry; empty for a light queue, whose records are another topic's."""
    return b"" if names_light_queue(queue.topic) else queue.topic.encode()


def _runs(view: memoryview, base: int, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> list[memoryview]:
    """Slices of the records at these places; those that follow each other are one."""
    slices: list[memoryview] = []
    begin = end = offsets[0]
    for physical_offset, size in zip(offsets, sizes, strict=True):
        if physical_offset != end:
            slices.append(view[begin - base : end - base])
            begin = physical_offset
        end = physical_offset + size
    slices.append(view[begin - base : end - base])
    return slices


def _carries(message: StoredMessage, key: str) -> bool:
    return key in message.keys or message.properties.get(Property.UNIQUE_KEY) == key
