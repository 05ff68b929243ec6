"""Bringing queues and index into agreement with the log.

The log is the truth. A `Reconciler` is a sink for a walk over it: for every record it knows what unit must stand in
which queue, compares, and mends what differs; and it enters into the index what the index lacks. After the walk,
`finish` cuts units that no record belongs to. Running it twice changes nothing the second time.

Units are read in blocks of 4,096 and compared as bytes, and tags are looked up by their bytes, so nothing is decoded.
A unit that is already right is mostly found so by the walk itself, which is told what to expect (`expects`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from typing import Final

from contrailmq.message import SysFlag, SystemTopic, names_directory
from contrailmq.message.record import RecordView
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.queues.batch_queue_table import BatchQueueTable
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.consume_queue_ext import is_ext_address
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.derivation import IN_NO_QUEUE, Derivation, Due, batch_unit, due_by_flag, due_of, index_keys
from contrailmq.store.queues.light_queues import LIGHT_QUEUE_ID
from contrailmq.store.queues.placeholder import may_be_emptied
from contrailmq.store.queues.queue_unit import PRE_BLANK, UNIT_BYTES, begins_again, pack_unit
from contrailmq.store.recovery.log_walk import Expected, Expects, Hole

_log = logging.getLogger(__name__)

_BLOCK_UNITS: Final = 4_096
_NEVER: Final = 2**63
_SCHEDULE: Final = SystemTopic.SCHEDULE.encode()


class _Cursor:
    """How far a walk has come in one queue, and the units that are there now."""

    __slots__ = (
        "block",
        "block_end",
        "block_first",
        "first",
        "is_begun_by_lost",
        "next_offset",
        "queue",
        "topic_bytes",
        "topic_part",
    )

    def __init__(self, queue: ConsumeQueue, topic: bytes) -> None:
        self.queue = queue
        self.topic_part = bytes((len(topic),)) + topic
        self.topic_bytes = len(self.topic_part)
        self.first = -1  # the first offset that the walk saw
        self.is_begun_by_lost = False  # and it is that of a message that is gone
        self.next_offset = -1
        self.block = b""
        self.block_first = self.block_end = 0


class Reconciler:
    """Sink of a walk. `scope` limits it to some queues; `queues_from` and `index_from` to records from an offset on.

    Below `queues_from` the units are known to be right, and below `index_from` the entries.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        delay_levels: DelayLevels,
        *,
        scope: Set[tuple[str, int]] | None = None,
        queues_from: int = 0,
        index_from: int = _NEVER,
    ) -> None:
        self._queues = queues
        self._index = index
        self._derivation = Derivation(delay_levels, queues.batches.holds, with_light_queues=queues.with_light_queues)
        self.scope = scope
        self._queues_from = queues_from
        self._index_from = index_from if index is not None else _NEVER
        self._cursors: dict[tuple[bytes, int], _Cursor | None] = {}
        self._likely: dict[int, Expected] = {}  # by queue id: of the topic seen last
        self._tagged: dict[tuple[bytes, int], Expected] = {}  # all of which the units hold tags codes
        self.units_added = 0
        self.units_corrected = 0
        self.units_cut = 0
        self.gaps: set[tuple[str, int]] = set()  # queues that lack units from before the walk

    def take(self, record: RecordView, /) -> None:
        physical_offset = record.physical_offset
        if physical_offset >= self._queues_from:
            if not record.sys_flag & IN_NO_QUEUE:  # `due_by_flag` says the same: 0.2 us less for nearly all
                try:
                    cursor = self._cursors[record.topic, record.queue_id]
                except KeyError:
                    cursor = self._cursor(record.topic, record.queue_id)
                if cursor is not None:
                    unit = pack_unit(physical_offset, record.size_bytes, self._derivation.tags_code(record))
                    self._compare(cursor, record.queue_offset, record.end, unit)
                if self._derivation.with_light_queues:
                    self._take_light(record)
            elif due_by_flag(record.sys_flag) is Due.EMPTY_UNIT:
                self._take_lost(record)
        if record.sys_flag & SysFlag.INNER_BATCH:
            self._queues.batches.was_seen = True
        if physical_offset >= self._index_from:
            self._enter(record)

    def _compare(self, cursor: _Cursor, queue_offset: int, physical_end: int, unit: bytes) -> None:
        position = (queue_offset - cursor.block_first) * UNIT_BYTES
        if queue_offset == cursor.next_offset and cursor.block[position : position + UNIT_BYTES] == unit:
            cursor.next_offset = queue_offset + 1
        elif queue_offset == cursor.next_offset == cursor.queue.max_offset:  # a kill takes what was not written
            self._queues.extend(cursor.queue, queue_offset, unit, physical_end)
            cursor.next_offset = queue_offset + 1
            self.units_added += 1
        else:
            self._place(cursor, queue_offset, physical_end, unit)

    def _take_lost(self, record: RecordView) -> None:
        """A placeholder (placeholder.py) keeps the queue offset of a message that is gone, with a pre-blank unit."""
        queue_offset, physical_offset, size_bytes = record.queue_offset, record.physical_offset, record.size_bytes
        if due_of(record, self._queues.batches.holds) is not Due.EMPTY_UNIT:
            return
        key = (record.topic, record.queue_id)
        cursor = self._cursors[key] if key in self._cursors else self._cursor(*key)
        if cursor is None or not cursor.queue.may_hold(queue_offset, physical_offset):
            return
        queue = cursor.queue
        if queue_offset >= queue.max_offset:
            self._queues.extend(queue, queue_offset, PRE_BLANK, record.end)
            self.units_added += 1
        else:
            stands = queue.read_units(queue_offset, 1)
            if not may_be_emptied(stands, physical_offset, size_bytes):
                return  # another message's: the topic was deleted and made again
            if stands != PRE_BLANK:  # the repair was interrupted
                self._queues.overwrite(queue, queue_offset, PRE_BLANK)
                cursor.block, cursor.block_end = b"", cursor.block_first
                self.units_corrected += 1
        if cursor.first < 0:
            cursor.first, cursor.is_begun_by_lost = queue_offset, True
        cursor.next_offset = max(cursor.next_offset, queue_offset + 1)

    def _take_light(self, record: RecordView) -> None:
        """The record's units in light queues."""
        unit = pack_unit(record.physical_offset, record.size_bytes, self._derivation.tags_code(record))
        for name, offset in self._derivation.light_units(record):
            key = (name.encode(), LIGHT_QUEUE_ID)
            cursor = self._cursors[key] if key in self._cursors else self._cursor(*key)
            if cursor is not None:
                self._compare(cursor, offset, record.end, unit)

    @property
    def expects(self) -> Expects | None:
        """What lets the walk find right units by itself: between the first record whose unit is to be compared and the
        first one that goes into the index. It knows nothing of light queues."""
        if self._derivation.with_light_queues:
            return None
        return Expects(self._likely, self._tagged, self._derivation.marks, self._queues_from, self._index_from)

    @property
    def take_from(self) -> int:
        """Records below this offset need not be handed over."""
        return min(self._queues_from, self._index_from)

    def finish(self, walked_from: int, holes: Sequence[Hole] = ()) -> None:
        """After the walk from `walked_from` to the end of the log: cut the units that no record belongs to.

        A unit that points into a hole stays: its message is damaged, and its offset is not given out again.
        """
        seen = self._seen()
        for queue in self._queues:
            key = (queue.topic, queue.queue_id)
            if self.scope is not None and key not in self.scope:
                continue
            cursor = seen.get(key)
            if cursor is not None:
                keep = cursor.next_offset
            elif queue.physical_max > walked_from:
                keep = queue.offset_of_physical(walked_from)
            else:
                continue
            while holes and keep < queue.max_offset and self._is_in_hole(queue, keep, holes):
                keep += 1
            if keep < queue.max_offset:
                self.units_cut += queue.max_offset - keep
                self._queues.truncate(queue, keep)

    def set_minimums(self) -> None:
        """After a walk over the whole log: the first record seen of a queue is its minimum, exactly."""
        seen = self._seen()
        for queue in self._queues:
            key = (queue.topic, queue.queue_id)
            if self.scope is None or key in self.scope:
                cursor = seen.get(key)
                queue.min_offset = cursor.first if cursor is not None else queue.max_offset
                if cursor is not None and cursor.is_begun_by_lost:
                    units = queue.scan(cursor.first, queue.max_offset)
                    queue.min_offset = next((at for at, unit in units if not unit.is_pre_blank), queue.max_offset)

    # --- leaves

    def _is_in_hole(self, queue: ConsumeQueue, queue_offset: int, holes: Sequence[Hole]) -> bool:
        unit = queue.unit_at(queue_offset)
        return unit is not None and any(hole.begin <= unit.physical_offset < hole.end for hole in holes)

    def _seen(self) -> dict[tuple[str, int], _Cursor]:
        """By queue, those of which the walk met a record; one with an impossible offset is none."""
        cursors = (cursor for cursor in self._cursors.values() if cursor and cursor.first >= 0)
        return {(cursor.queue.topic, cursor.queue.queue_id): cursor for cursor in cursors}

    def _cursor(self, topic: bytes, queue_id: int) -> _Cursor | None:
        name = topic.decode("utf-8", "replace")
        is_wanted = names_directory(name) if self.scope is None else (name, queue_id) in self.scope
        if self._queues.batches.holds(name):  # a batch queue: recovery does them by themselves
            is_wanted, self._queues.batches.was_seen = False, True
        cursor = _Cursor(self._queues.find_or_create(name, queue_id), topic) if is_wanted else None
        self._cursors[topic, queue_id] = cursor
        if cursor is not None and topic != _SCHEDULE:  # its units hold no tags
            self._tagged[topic, queue_id] = cursor
        return cursor

    def _place(self, cursor: _Cursor, queue_offset: int, physical_end: int, unit: bytes) -> None:
        """Everything but "the same unit is there already, in the block at hand"."""
        queue = cursor.queue
        if not queue.may_hold(queue_offset, physical_end - int.from_bytes(unit[8:12], "big")):
            _log.error(
                "%s: no message can have offset %d, which the log says before %d", queue, queue_offset, physical_end
            )
            return
        if cursor.first < 0:
            self._begin(cursor, queue_offset)
        elif begins_again(queue_offset, cursor.next_offset):
            self._queues.reset(queue)
            cursor.first = cursor.next_offset = 0
            cursor.block, cursor.block_end = b"", cursor.block_first
        elif queue_offset < cursor.next_offset:
            return  # an offset given out twice: the first one stays, as in ConsumeQueue.putMessagePositionInfo
        cursor.next_offset = queue_offset + 1
        if queue_offset >= queue.max_offset:
            if queue_offset > queue.max_offset > 0:
                self.gaps.add((queue.topic, queue.queue_id))
            self._queues.extend(queue, queue_offset, unit, physical_end)
            self.units_added += 1
            return
        if not cursor.block_first <= queue_offset < cursor.block_end:
            cursor.block = queue.read_units(queue_offset, _BLOCK_UNITS)
            cursor.block_first, cursor.block_end = queue_offset, queue_offset + len(cursor.block) // UNIT_BYTES
        position = (queue_offset - cursor.block_first) * UNIT_BYTES
        stands = cursor.block[position : position + UNIT_BYTES]
        if stands != unit and not self._differs_by_extension(queue, stands, unit):
            self._queues.overwrite(queue, queue_offset, unit)
            self.units_corrected += 1

    def _differs_by_extension(self, queue: ConsumeQueue, stands: bytes, unit: bytes) -> bool:
        """The same record, but the tags code stands in an extension whose address is here instead."""
        address, code = (int.from_bytes(one[12:], "big", signed=True) for one in (stands, unit))
        if stands[:12] != unit[:12] or not is_ext_address(address):
            return False
        return self._queues.extension_code(queue.topic, queue.queue_id, address) in (code, None)

    def _begin(self, cursor: _Cursor, queue_offset: int) -> None:
        """The first record of this queue in the walk: nothing above it in the log may stand before it in the queue."""
        queue = cursor.queue
        cursor.first = queue_offset
        if queue_offset < queue.min_offset:
            # The queue claims that older messages are gone, but the log has them: it starts too late. Begin again.
            self._queues.reset(queue)
        if queue_offset > queue.max_offset or (queue_offset > 0 and not self._precedes(queue, queue_offset)):
            self.gaps.add((queue.topic, queue.queue_id))

    def _precedes(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether the unit before an offset is a believable predecessor (or gone with the cleaned part of the log)."""
        if queue_offset <= queue.min_offset or queue_offset > queue.max_offset:
            return queue_offset <= queue.min_offset
        unit = queue.unit_at(queue_offset - 1)
        return unit is not None and unit.is_valid and not unit.is_pre_blank

    def _enter(self, record: RecordView) -> None:
        assert self._index is not None
        if (keys := index_keys(record)) is not None:
            place = (record.physical_offset, record.store_time_ms, record.sys_flag)
            self._index.put(record.topic_name, keys.keys, keys.unique_key, *place, tags=keys.tags)


class BatchSink:
    """Enters the records of a walk that belong in batch queues, from a place of the log on."""

    def __init__(self, table: BatchQueueTable, *, begin: int) -> None:
        self._table = table
        self._begin = begin

    def take(self, record: RecordView, /) -> None:
        if record.physical_offset < self._begin or due_of(record, self._table.holds) is not Due.BATCH_UNIT:
            return
        self._table.append(record.topic_name, record.queue_id, batch_unit(record))
