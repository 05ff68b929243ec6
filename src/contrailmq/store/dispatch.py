"""From the log to the queues and the index, in log order.

RocketMQ polls the log every millisecond (ReputMessageService) and parses each record again. Here the appending code
calls dispatch, which goes from its mark to the confirmed end of the log. What append knew of a record is on the deque
of facts, so usually nothing is read or decoded (budget: 4 us with a unit and one key). Without facts (a BLANK, bytes of
a master, facts dropped because nobody dispatched for long) the record is read from the log. queues/derivation.py says
which records go into which queue and index. The mark moves past a record, and listeners are called, only when its unit
and its keys are in. Any step may be repeated: queues and index know what they have by physical offset. An OSError (disk
full while a queue file is made) leaves the mark, and the next call continues there. Meanwhile the store takes no puts:
unreadable messages must not pile up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container
from typing import Final

from contrailmq.message import SysFlag
from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import RecordView, view_record
from contrailmq.store.base.stats import StoreStats
from contrailmq.store.base.status import Arrival
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.files import SyncError
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.life import note_listener_error
from contrailmq.store.log.commit_log import CommitLog
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.queues.batch_consume_queue import PENDING_BYTES_MAX as BATCH_PENDING_BYTES_MAX
from contrailmq.store.queues.consume_queue import PENDING_BYTES_MAX
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.derivation import IN_NO_QUEUE, Derivation, Derived, Due
from contrailmq.store.queues.light_queues import LIGHT_MARK, LIGHT_QUEUE_ID, light_units
from contrailmq.store.queues.queue_state import DispatchFact, QueueState
from contrailmq.store.queues.queue_unit import PRE_BLANK
from contrailmq.store.queues.read_facts import BLOCK_BYTES, FactReader

_log = logging.getLogger(__name__)

NO_BOUND: Final = 1 << 62
CHUNK_MAX: Final = 256  # records per turn: longer ones gain nothing, and what waits for the lock waits longer


class Dispatcher:
    """Owns the mark. One dispatch at a time; any thread may call it."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        delay_levels: DelayLevels,
        stats: StoreStats,
        *,
        on_sync_failure: Callable[[str], None],
        on_standstill: Callable[[OSError | None], None],
    ) -> None:
        """`on_standstill` hears why dispatch cannot go on, at each try, and None when it went on."""
        self.mark = 0  # everything before this offset is dispatched
        self.stuck_reason: str | None = None  # why the newest call could not go on, if it could not
        self.listeners: list[Callable[[Arrival], None]] = []
        self.watchers: list[tuple[Container[tuple[str, int]], Callable[[Arrival], None]]] = []  # of some queues only
        self.hooks: list[Callable[[Arrival], bytes | None]] = []  # run before the unit is written
        self._log = log
        self._queues = queues
        self._index = index
        self._stats = stats
        self._on_sync_failure = on_sync_failure
        self._on_standstill = on_standstill
        self._lock = threading.Lock()
        self._dispatching = 0  # the thread that holds it
        self._with_light_queues = log.config.with_light_queues
        self._derivation = Derivation(
            delay_levels, queues.batches.holds, with_light_queues=log.config.with_light_queues
        )
        self._reader = FactReader(queues, self._derivation, is_indexed=index is not None)

    def dispatch(self, end: int, bytes_max: int = NO_BOUND) -> int:
        """Go from the mark to `end` (an end of a record, or beyond the readable log); how many records.

        With `bytes_max`, stop at the first turn after as many bytes of the log: a turn has 256 KiB, or one record.
        """
        me = threading.get_ident()
        if self._dispatching == me:
            return 0  # a listener reads: it sees what is in so far
        with self._lock:
            if self.mark >= end:
                return 0
            self._dispatching = me
            try:
                return self._run(end, min(end, self.mark + bytes_max))
            finally:
                self._dispatching = 0

    def _run(self, end: int, stop: int) -> int:
        count = 0
        try:
            if self.stuck_reason is not None:  # the units that had no room are in memory: that is no reason to go on
                self._queues.write_pending(PENDING_BYTES_MAX)
                self._queues.batches.write_pending(BATCH_PENDING_BYTES_MAX)
            while self.mark < stop:
                done = self._from_facts(end) or self._run_from_log(end)
                count += done
                if not done:
                    if not self._from_log(end):
                        break
                    count += 1
        except OSError as exc:
            self.stuck_reason = f"dispatch stopped at offset {self.mark}: {exc}"
            if isinstance(exc, SyncError):
                self._on_sync_failure(self.stuck_reason)
            else:
                self._on_standstill(exc)
            return count
        if self.mark >= stop and self.stuck_reason is not None:
            self.stuck_reason = None
            self._on_standstill(None)
        return count

    def is_dispatching_here(self) -> bool:
        """Whether the calling thread is in the middle of a dispatch: a listener calls."""
        return self._dispatching == threading.get_ident()

    def leave_out(self, topics: Container[str], destroy: Callable[[], int]) -> int:
        """Topics are deleted: what waits of them (under SYNC_FLUSH, for the sync) goes into no queue.

        It would come with offsets of the queue that is gone, and keep the first messages of a new one out. So would
        what is put or dispatched while `destroy` removes the queues: nothing is.
        """
        with self._lock, self._log.lock:
            facts = self._log.facts
            for index, fact in enumerate(list(facts)):
                state, offset, size, code, time_ms, queue_offset, hashes, sys_flag, properties = fact
                if state.topic in topics:
                    flags = sys_flag | SysFlag.TRANSACTION_PREPARED
                    facts[index] = (state, offset, size, code, time_ms, queue_offset, hashes, flags, properties)
            return destroy()

    def while_still(self, work: Callable[[], object]) -> None:
        """Do this while nothing is dispatched."""
        with self._lock:
            work()

    def forget(self) -> None:
        """The store is let go: a late read must not dispatch into files that may be another's by now."""
        with self._lock:
            self._log.facts.clear()

    def _from_facts(self, end: int) -> int:
        """Dispatch what append left, as far as it continues at the mark; how many records.

        Records go in chunks: all their units, then all their index entries, then the mark. Facts stay on the deque
        until then: a chunk that fails is repeated (queues and index pass over what they have), and whoever reads
        meanwhile sees that there is something to wait for.
        """
        facts = self._log.facts
        chunk: list[DispatchFact] = []
        mark = self.mark
        while facts and facts[0][1] < mark:
            facts.popleft()  # recovery or a read of the log was faster
        for index in range(min(len(facts), CHUNK_MAX)):
            fact = facts[index]
            following = fact[1] + fact[2]
            if fact[1] != mark or following > end:
                break
            if fact[0].is_schedule:
                fact = self._with_delivery_time(fact)
            chunk.append(fact)
            mark = following
        if not chunk:
            return 0
        self._enter(chunk)
        self.mark = mark
        for _ in chunk:
            facts.popleft()
        if self.listeners or self.watchers:
            self._tell(chunk)
        return len(chunk)

    def _enter(self, chunk: list[DispatchFact]) -> None:
        """The units and the index entries of records that follow each other."""
        if self.hooks or self._with_light_queues:
            self._enter_units(chunk)
        else:
            self._queues.append_all(chunk)
        if self._index is not None:
            self._index.put_all(chunk)

    def _enter_units(self, chunk: list[DispatchFact]) -> None:
        bits = b""
        for fact in chunk:
            state, offset, size, code, time_ms, queue_offset, _, sys_flag, properties = fact
            if self.hooks:
                bits = self._filter_bits(state, queue_offset, code, time_ms, properties)
            self._queues.append_fact(fact, bits)
            if self._with_light_queues and LIGHT_MARK in properties and not sys_flag & IN_NO_QUEUE:
                for name, light_offset in light_units(state.topic, properties):
                    self._queues.append(name, LIGHT_QUEUE_ID, light_offset, offset, size, code, time_ms)

    def _with_delivery_time(self, fact: DispatchFact) -> DispatchFact:
        """The units of SCHEDULE_TOPIC_XXXX hold the time of delivery in place of a tag's hash."""
        state, offset, size, _, time_ms, queue_offset, hashes, sys_flag, properties = fact
        code = self._derivation.waiting_code(properties, time_ms)
        return state, offset, size, code, time_ms, queue_offset, hashes, sys_flag, properties

    def _tell(self, chunk: list[DispatchFact]) -> None:
        listeners = self.listeners
        watchers = [queues for queues, _ in self.watchers if queues]  # most of the time nobody waits for anything
        before: QueueState | None = None
        is_heard = False  # whether anyone listens to the queue of the record before; most records follow one of theirs
        for state, _, _, code, time_ms, queue_offset, _, sys_flag, properties in chunk:
            if state is not before:
                before, is_heard = state, bool(listeners)
                for queues in watchers:
                    is_heard = is_heard or state.key in queues
            if sys_flag & SysFlag.TRANSACTION_PREPARED:
                continue
            if is_heard:
                self._tell_of(state, queue_offset, code, time_ms, properties)
            if self._with_light_queues and LIGHT_MARK in properties:
                for name, offset in light_units(state.topic, properties):
                    self._tell_of(QueueState(name, LIGHT_QUEUE_ID, 0), offset, code, time_ms, properties)

    def _tell_of(self, place: QueueState, queue_offset: int, code: int, time_ms: int, properties: bytes) -> None:
        if self.listeners:
            self._announce(self.listeners, place, queue_offset, code, time_ms, properties)
        for queues, listener in self.watchers:
            if place.key in queues:
                self._announce([listener], place, queue_offset, code, time_ms, properties)

    def _run_from_log(self, end: int) -> int:
        """Dispatch records at the mark that nobody left facts of (a master's bytes), as far as each is of the common
        shape and continues its queue; how many. Facts are made of them (queues/read_facts.py)."""
        file = self._log.files.find(self.mark)
        if file is None or self.hooks or self._with_light_queues:
            return 0
        position = self.mark - file.base
        limit = min(file.read_position, end - file.base, position + BLOCK_BYTES)
        if not file.hold():
            return 0  # it is being deleted: `_from_log` says how to go on
        block: bytes = file.mapping[position:limit]
        file.release()
        chunk = self._reader.read(block, self.mark, CHUNK_MAX)
        if not chunk:
            return 0
        self._enter(chunk)
        last = chunk[-1]
        self.mark = last[1] + last[2]
        if self.listeners or self.watchers:
            self._tell(chunk)
        return len(chunk)

    def _from_log(self, end: int) -> bool:
        """Read and dispatch the one thing at the mark; False when it is not (yet) a whole record or a BLANK."""
        self.mark = max(self.mark, self._log.min_offset)
        file = self._log.files.find(self.mark)
        if file is None or not file.hold():
            return False  # there is none yet; or it is being deleted, and the next call begins behind it
        try:
            return self._one_of(file, end)
        finally:
            file.release()

    def _one_of(self, file: MappedFile, end: int) -> bool:
        position = self.mark - file.base
        verdict = check_record(
            file.mapping,
            position,
            limit=file.read_position,
            physical_offset=self.mark,
            check_body_crc=False,
            check_zero_tail=False,  # it was judged when it was taken in, and may be the newest
        )
        if verdict.kind is Kind.BLANK:
            self.mark = file.end
            return True
        if verdict.kind is not Kind.WHOLE or self.mark + verdict.size_bytes > end:
            if verdict.kind is Kind.CORRUPT:
                self.stuck_reason = f"dispatch stopped at offset {self.mark}: {verdict.reason}"
            return False
        record = view_record(file.mapping, position)
        derived = self._derivation.derive(record)
        state = QueueState(record.topic_name, record.queue_id, 0)
        listeners = [*self.listeners, *(listener for queues, listener in self.watchers if state.key in queues)]
        arrival = (state, record.queue_offset, derived.tags_code, record.store_time_ms, record.properties)
        is_queued = self._enter_derived(record, derived, self._filter_bits(*arrival))
        if self._index is not None and derived.keys is not None:
            unique_key, keys, tags = derived.keys
            place = (record.physical_offset, record.store_time_ms, record.sys_flag)
            self._index.put(state.topic, keys, unique_key, *place, tags)
        self.mark += record.size_bytes
        if is_queued:
            self._announce(listeners, *arrival)
        return True

    def _enter_derived(self, record: RecordView, derived: Derived, bits: bytes) -> bool:
        """The units of a record of the log; whether it has one that is read. Of light queues nobody is told."""
        topic, queue_id, queue_offset = record.topic_name, record.queue_id, record.queue_offset
        if derived.batch is not None:
            self._queues.append_batch(topic, queue_id, derived.batch)
            return True
        if derived.due is Due.NOTHING or not self._may_queue(topic, queue_id, queue_offset, record.physical_offset):
            return False
        if derived.due is Due.EMPTY_UNIT:
            queue = self._queues.find_or_create(topic, queue_id)
            if queue_offset >= queue.max_offset:
                self._queues.extend(queue, queue_offset, PRE_BLANK, record.end)
            return False
        place = (record.physical_offset, record.size_bytes, derived.tags_code, record.store_time_ms)
        self._queues.append(topic, queue_id, queue_offset, *place, bits)
        for name, light_offset in derived.light:
            if self._queues.find_or_create(name, LIGHT_QUEUE_ID).may_hold(light_offset, record.physical_offset):
                self._queues.append(name, LIGHT_QUEUE_ID, light_offset, *place)
        return True

    def _may_queue(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """Whether a record of the log (a master's, perhaps damaged) can have the queue offset that it says."""
        queue = self._queues.find_or_create(topic, queue_id)
        if queue.begins_again(queue_offset, physical_offset):
            self._queues.delete(topic, queue_id)
            queue = self._queues.find_or_create(topic, queue_id)  # a new one, whose topic the table may lack
        if queue.may_hold(queue_offset, physical_offset):
            return True
        _log.error("%s: no message can have offset %d at %d", queue, queue_offset, physical_offset)
        return False

    def _filter_bits(self, state: QueueState, queue_offset: int, code: int, time_ms: int, properties: bytes) -> bytes:
        """Run the hooks; the filter's bit map that one of them gives, the last one's if several do."""
        bits = b""
        arrival = Arrival(state.topic, state.queue_id, queue_offset, code, time_ms, properties)
        for hook in self.hooks:
            try:
                bits = hook(arrival) or bits
            except Exception:  # noqa: BLE001 - logged and counted, and the store goes on
                note_listener_error(self._stats, hook)
        return bits

    def _announce(
        self,
        to: list[Callable[[Arrival], None]],
        state: QueueState,
        queue_offset: int,
        code: int,
        time_ms: int,
        properties: bytes,
    ) -> None:
        if to:
            arrival = Arrival(state.topic, state.queue_id, queue_offset, code, time_ms, properties)
            for listener in to:
                try:
                    listener(arrival)
                except Exception:  # noqa: BLE001 - logged and counted, and the store goes on
                    note_listener_error(self._stats, listener)
