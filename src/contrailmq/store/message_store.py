"""MessageStore: the store as a whole. RocketMQ's DefaultMessageStore, embedded or under a broker.

* **Embedded** (`Drive.EMBEDDED`): `put` and `put_many` return when the message is durable as configured and readable;
  any number of threads may call them. Trouble with the disk is an exception, a refused message a status.
* **By a loop** (`Drive.LOOP`): `append` writes and returns, never waiting for a disk; the loop calls `dispatch` after a
  batch of appends and `request_flush` when someone waits for durability, and learns of it through `on_durable`.

`open` takes the directory's lock, loads log, queues and index, recovers, and starts the worker threads. `close` undoes
that in reverse and removes the abort file only if everything reached the disk. `abandon` drops everything as a crash
would, for tests. When the store takes no writes, `unwritable_reason` says why (writability.py).

An embedded put does not dispatch each message, because chunks cost half as much. A reader first calls `_catch_up`,
which dispatches everything confirmed, so any thread can read a message as soon as its put has returned. Two kinds
become readable later: with the write buffer pool, messages that are not committed yet; under SYNC_FLUSH, messages that
did not wait for the flush (WAIT=false). Driven by a loop, reading never dispatches.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from contrailmq.message import StoredMessage
from contrailmq.message.codec import decode_record
from contrailmq.message.identity import encode_address
from contrailmq.message.record import RecordView
from contrailmq.store.base.clock import Clock, SystemClock
from contrailmq.store.base.clock_file import ClockFile
from contrailmq.store.base.errors import StoreError, StoreIOError, StoreReadOnlyError
from contrailmq.store.base.stats import Durations, StoreStats
from contrailmq.store.base.status import (
    Arrival,
    MessageFilter,
    Messages,
    Read,
    WarmRead,
)
from contrailmq.store.base.store_clock import StoreClock
from contrailmq.store.base.store_lock import StoreLock, finish_interrupted, remove_abort_file, write_abort_file
from contrailmq.store.config import START_BOUNDS, StartBounds, StoreConfig
from contrailmq.store.dispatch import NO_BOUND
from contrailmq.store.files import Files
from contrailmq.store.life import StoreLife, while_open
from contrailmq.store.log.damage import Place
from contrailmq.store.log.flush import FlushFailedError
from contrailmq.store.opening import load_and_recover, settle_truncation
from contrailmq.store.parts import Hooks, build_parts
from contrailmq.store.putting import Putter
from contrailmq.store.queues.batch_consume_queue import BatchConsumeQueue
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.queue_unit import Boundary, unpack_units
from contrailmq.store.reading.decoded import check_body, decode_found
from contrailmq.store.reading.one_record import view_sound
from contrailmq.store.reading.reader import COLD, PLAIN, PULL_BYTES_MAX, SOUND, WARM, Reader
from contrailmq.store.recovery.queue_kinds import unify_queues
from contrailmq.store.replication.replica import Replica
from contrailmq.store.upkeep.ground import GroundWatch
from contrailmq.store.writability import Writability, explained

_log = logging.getLogger(__name__)


class Drive(enum.Enum):
    """Who dispatches what was appended."""

    EMBEDDED = "embedded"
    LOOP = "loop"


class MessageStore:
    """A store directory. Thread-safe; a context manager.

    with MessageStore(StoreConfig(path)) as store:
        put = store.put(Message("Orders", b"..."))
        for message in store.get("Orders", 0, put.queue_offset): ...
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        drive: Drive = Drive.EMBEDDED,
        batch_topics: Container[str] = frozenset(),
        bounds: StartBounds = START_BOUNDS,
    ) -> None:
        """`batch_topics` are those with queue.type=BatchCQ; it is asked again each time."""
        self.config = config
        self.files = files or Files()
        self.clock = clock or SystemClock()
        self._drive = drive
        self._bounds = bounds
        self._commit_listeners: list[Callable[[], None]] = []
        try:
            config = self.config = config.resolved(self.files)
        except OSError as exc:
            raise StoreIOError("looking at the store", config.path, exc) from exc
        self.store_clock = StoreClock(self.clock, ClockFile(self.files, config.path), is_slave=config.is_slave)
        self.stats = StoreStats(self.store_clock.steady_ms(), self.files.mapped)
        parts = self._parts = build_parts(
            config,
            self.files,
            self.clock,
            self.store_clock,
            self.stats,
            self._hooks(),
            dispatch_before_reads=self._catch_up if drive is Drive.EMBEDDED else None,
            batch_topics=batch_topics,
            bounds=bounds,
        )
        self._log_files, self._log, self._allocator = parts.log_files, parts.log, parts.allocator
        self._pool, self._committer, self._flusher = parts.pool, parts.committer, parts.flusher
        self._queues, self._index, self.checkpoint = parts.queues, parts.index, parts.checkpoint
        self._dispatcher, self._reader, self._housekeeping = parts.dispatcher, parts.reader, parts.housekeeping
        self._retention = parts.retention
        self.new_queues = parts.queues.created  # who dispatches may look at it, and clears it
        self._lock = StoreLock(self.files, config.lock_path)
        self._ground = GroundWatch(self.files, self._log_files, config.lock_path, on_lost=self._lose)
        self._facts = self._log.facts
        self._life = StoreLife(config.path, self.stats, self._forked, parts.dispatcher.is_dispatching_here)
        self._writability = Writability(config, self.files, self._log, self._life, lambda: self._dispatcher.mark)
        self._putter = self._new_putter()
        self.replica = Replica(  # a slave's way in
            config, self._log, self._writability.check_replica, lambda: self._queues.last_physical_offset
        )
        # Bound without another layer: these are the hottest calls there are. Those of the log leave a record neither
        # durable nor dispatched.
        self.put, self.put_many = self._putter.put, self._putter.put_many
        self.put_inner_batch = self._putter.put_inner_batch
        self.append, self.append_batch = self._log.append, self._log.append_batch
        self.append_copies = self._log.append_copies
        self._bind_reads(parts.reader)
        self._shut()

    def _hooks(self) -> Hooks:
        return Hooks(
            on_failure=lambda cause: self._writability.sync_failed(cause),
            on_commit=self._on_commit,
            on_flushed=self._on_flushed,
            on_disk_full=lambda reason: self._writability.set_disk_full(reason),
            on_standstill=lambda error: self._writability.stand_still(error),
        )

    def _bind_reads(self, reader: Reader) -> None:
        """To the reader itself, because pulls go through it."""
        self.reader = reader
        read: Any = reader.read
        self.get_slices: Read = partial(read, PLAIN)  # as `get`, but slices of the mapped log, not decoded
        self.get_slices_warm: WarmRead = partial(read, WARM)  # None: that would touch pages that are not in memory
        self.get_slices_cold: Read = partial(read, COLD)  # copies, which the calling thread reads from the disk
        self.get_slices_sound: Read = partial(read, SOUND)  # all of them checked: for whoever writes them once more

    def _new_putter(self) -> Putter:
        return Putter(
            self.config,
            self.store_clock,
            self._log,
            self._flusher,
            self._committer,
            self._dispatcher,
            self.stats,
            store_host=encode_address(self.config.store_host_address),
            confirm_offset=lambda: self._confirmed_offset,
            on_refusal=self._writability.raise_if_unusable,
        )

    # --- life

    def open(self) -> Self:
        """Lock, load, recover, start. StoreLockedError, CorruptStoreError, StoreIOError: it then holds nothing."""
        config = self.config
        if self._life.was_opened:
            raise StoreError(f"store {config.path} was opened before: make a new MessageStore to open it again")
        self._life.entered()
        if config.unused_keys:
            _log.info("settings of RocketMQ's without effect here: %s", ", ".join(config.unused_keys))
        try:
            self.files.make_directory(config.path)
            self._lock.acquire()
            finish_interrupted(config.path, self.files)
            self.recovery = load_and_recover(config, self.files, self._parts, self._bounds)
            self._reader.residency.opened()
            self._start()
        except OSError as exc:
            self._undo_open()
            raise explained("opening the store", exc, config, self.files) from exc
        except BaseException:  # Ctrl-C in a long recovery, too: what was opened is closed, then whoever called decides
            self._undo_open()
            raise
        return self

    def _undo_open(self) -> None:
        self._stop_threads()
        self._drop()
        self._life.left()
        self._shut()

    def _start(self) -> None:
        self._dispatcher.mark = self._log_files.max_offset
        last_time_ms = self._log.last_time_ms = self.recovery.last_store_time_ms
        self.store_clock.opened(self._log.lock, lambda: self._log_files.wrote_offset, last_store_time_ms=last_time_ms)
        self._allocator.start()
        self._log.start_writing(self._queues.next_offsets())
        if self._committer is not None:
            self._committer.start()
        self._flusher.start()
        self._housekeeping.add_task(self._sample, early=True)
        self._housekeeping.add_task(self.store_clock.keep)
        self._housekeeping.start()
        write_abort_file(self.files, self.config.abort_path)
        if not self.recovery.is_vouched_for:
            # Until the first flush a minute from now a kill would make the next start feed the index from the log.
            self._housekeeping.persist()
        settle_truncation(self.config, self.files, self._parts)
        self._ground.start(self._lock.descriptor)
        self._life.is_open = True
        self._reader.closed = None
        self._writability.opened()

    def _shut(self) -> None:
        """From here on nobody reads or writes."""
        self._life.is_open = False
        self._reader.closed = self._life.closed_error
        self._writability.shut()

    def _forked(self) -> None:
        self._reader.closed = self._life.closed_error
        self._writability.forked()

    def close(self) -> None:
        """Make everything durable and let go of the directory. Idempotent; trouble is logged, and recovered later.

        A listener cannot call it (StoreError). In a forked child it does nothing: the store is the parent's.
        """
        if not self._life.is_open:
            return
        self._life.check_not_in_listener("close")
        self._ground.tick()  # what took the place of our files must not get our last words
        self._shut()
        self._log.stop_writing()
        self._stop_threads()
        try:
            if not self._writability.is_final and self._persist_all():
                self.store_clock.closed()
                remove_abort_file(self.files, self.config.abort_path)
        except (OSError, FlushFailedError) as exc:
            _log.error("store %s was not closed cleanly, the next start will recover it: %s", self.config.path, exc)
        finally:
            self._drop()
            self._life.left()

    def abandon(self) -> None:
        """Drop the store as a killed process would: nothing is flushed, the abort file stays. For tests."""
        if self._life.is_open:
            self._life.check_not_in_listener("abandon")
            self._shut()
            self._log.stop_writing()
            self._stop_threads()
            self._drop()
            self._life.left()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop_threads(self) -> None:
        self._ground.stop()
        self._housekeeping.stop()
        if self._committer is not None:
            self._committer.stop()
        self._flusher.stop()
        self._allocator.stop()

    def _persist_all(self) -> bool:
        """The last flush of log, queues, index and checkpoint; False when something was left undispatched."""
        while self._flusher.durable_offset < self._log_files.wrote_offset:
            if not self._flusher.flush(0):
                break
        self._dispatcher.dispatch(self._confirmed_offset)
        if self._index is not None:
            self._index.flush()
        self._housekeeping.persist()
        return self._dispatcher.mark >= self._log_files.max_offset

    def _drop(self) -> None:
        self._dispatcher.forget()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._log_files.close()
        if self._pool is not None:
            self._pool.close()
        self._lock.release()

    # --- may it be written? writability.py

    @property
    def writable(self) -> bool:
        return not self._writability.reason

    @property
    def unwritable_reason(self) -> str:
        return self._writability.reason

    @property
    def standstill_reason(self) -> str:
        """Why dispatch cannot go on; empty when it can. A loop then calls `dispatch` again, once a second."""
        return self._writability.standstill_reason

    @property
    def lost_reason(self) -> str:
        """Why the files under the store are not its own any more; empty while they are."""
        return self._writability.lost_reason

    def set_disk_full(self, reason: str | None) -> None:
        """Cleaning found the disk above the warning level (or, with None, below it again)."""
        self._life.check_not_closed()
        self._writability.set_disk_full(reason)

    def _lose(self, cause: str) -> None:
        self._writability.lose(cause)
        self._housekeeping.stand_down()

    # --- by a loop: nothing here waits for a disk

    @while_open
    def dispatch(self, bytes_max: int = NO_BOUND) -> int:
        """Bring queues and index up to the confirmed end of the log, and tell listeners; how many records."""
        return self._dispatcher.dispatch(self._confirmed_offset, bytes_max)

    @property
    @while_open
    def dispatched_offset(self) -> int:
        """Queues and index hold everything before this offset."""
        self._reader.catch_up()
        return self._dispatcher.mark

    @property
    @while_open
    def appended_offset(self) -> int:
        """The end of what was appended: the next record begins there, or in the next file."""
        return self._log_files.wrote_offset

    @property
    @while_open
    def durable_offset(self) -> int:
        return self._log_files.flushed_where

    @property
    def flush_count(self) -> int:
        """How many syncs of the log moved the durable offset."""
        return self._flusher.flush_count

    @property
    def flush_times(self) -> Durations:
        """How long these took."""
        return self._flusher.flush_times

    @while_open
    def request_flush(self) -> None:
        """Wake the flush thread (and the committer): someone waits for durability."""
        if self._committer is not None and not self.config.is_sync_flush:
            self._committer.request()
        else:
            self._flusher.request()

    @while_open
    def flush(self, offset: int | None = None) -> None:
        """Make the log durable up to an offset (all of it by default), in this thread. Raises StoreReadOnlyError."""
        self._writability.check_not_lost()
        end = self._log_files.wrote_offset if offset is None else offset
        try:
            while not self._flusher.wait(end, self.config.sync_flush_timeout / 1000):
                _log.warning("the log is not durable up to %d yet: the disk is slow", end)
        except FlushFailedError as exc:
            raise StoreReadOnlyError(self.config.path, cause=str(exc)) from exc

    def on_durable(self, listener: Callable[[int], None]) -> None:
        """Called by the flushing thread with the durable offset when it grew, with -1 when a sync failed (final)."""
        self._life.check_not_closed()
        self._flusher.add_listener(self._life.guarded(listener))

    def on_committed(self, listener: Callable[[], None]) -> None:
        """Called by the committing thread when the write buffer pool made more of the log readable."""
        self._life.check_not_closed()
        self._commit_listeners.append(self._life.guarded(listener))

    def add_arrival_listener(
        self, listener: Callable[[Arrival], None], *, queues: Container[tuple[str, int]] | None = None
    ) -> None:
        """Called by whoever dispatches, after a message became readable.

        With `queues`, only for those (topic, queue) that are in it then. It is asked, unless it says that it is empty,
        once for messages that follow each other and became readable together: telling costs 0.7 us each.
        """
        self._life.check_not_closed()
        self._putter.lag_max = 0
        if queues is None:
            self._dispatcher.listeners.append(listener)
        else:
            self._dispatcher.watchers.append((queues, listener))

    def add_dispatcher(self, hook: Callable[[Arrival], bytes | None]) -> None:
        """Called for each record before its unit is written; the bytes that it gives, a filter's bit map, go into the
        unit's extension (enableConsumeQueueExt), where `MessageFilter.match_unit` finds them."""
        self._life.check_not_closed()
        self._putter.lag_max = 0
        self._dispatcher.hooks.append(hook)

    def _on_commit(self) -> None:
        if self._drive is Drive.EMBEDDED and len(self._facts) >= self._putter.lag_max:
            self._catch_up()
        for listener in self._commit_listeners:
            listener()

    def _on_flushed(self, offset: int) -> None:
        # Messages that nobody waited for (WAIT=false) become readable when a flush has covered them: tell who listens.
        if self._putter.lag_max == 0 and self._drive is Drive.EMBEDDED and offset >= 0:
            self._catch_up()

    # --- what is stored

    @property
    @while_open
    def confirm_offset(self) -> int:
        """What may be shown to readers: under SYNC_FLUSH only what is durable, otherwise what is in the files."""
        return self._confirmed_offset

    @property
    def _confirmed_offset(self) -> int:
        if self.config.is_sync_flush and not self.config.read_un_committed:
            return self._log_files.flushed_where
        return self._log_files.max_offset

    def _catch_up(self) -> None:
        """Bring queues and index up to the confirmed end of the log."""
        self._dispatcher.dispatch(self._confirmed_offset)

    @while_open
    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        *,
        max_bytes: int = PULL_BYTES_MAX,
        filter: MessageFilter | None = None,
    ) -> Messages:
        """Messages of a queue from an offset on, decoded; see `status` and `next_offset` when it is empty.

        CorruptStoreError when one of them is damaged, body included; it names the message.
        """
        found = self.get_slices(topic, queue_id, offset, max_count, max_bytes=max_bytes, filter=filter)
        return decode_found(found, self.config.path, f"{topic}/{queue_id} from offset {offset} on", from_offset=offset)

    @while_open
    def is_cold(self, topic: str, queue_id: int, offset: int, *, by_distance: bool = False) -> bool:
        """Would `get_slices` touch pages that are not in memory, or far back? Let a worker call the cold one."""
        return self._reader.is_cold(topic, queue_id, offset, by_distance=by_distance)

    @while_open
    def lookup(self, physical_offset: int) -> StoredMessage | None:
        """The message whose record begins at this place of the log. CorruptStoreError when its body is damaged."""
        message = self._reader.lookup(physical_offset)
        if message is not None:
            check_body(message, self.config.path)
        return message

    @while_open
    def lookup_sound(self, physical_offset: int) -> StoredMessage | None:
        """The same; None when its body is damaged, which is noted: for a broker, which goes on without it."""
        message = self._reader.lookup(physical_offset)
        return message if message is not None and self._reader.is_sound(message) else None

    @while_open
    def view_sound(self, physical_offset: int) -> RecordView | None:
        """The record that begins there, over a copy of its bytes; None as for `lookup_sound`."""
        return view_sound(self._reader, self._log_files, physical_offset)

    @while_open
    def read_record(self, physical_offset: int, size_bytes: int | None = None) -> bytes | None:
        """The bytes of the record that begins there (and has this size); None when there is none, or a damaged one."""
        record = self._reader.read_record(physical_offset, size_bytes)
        return record if record is not None and self._reader.is_sound(decode_record(record)) else None

    @while_open
    def damaged_places(self) -> list[Place]:
        """The damaged records that reads have passed over since the store was opened, 1,000 of them at most."""
        return self._reader.damage.places()

    @while_open
    def is_resident(self, physical_offset: int) -> bool:
        """Whether the log is in memory there, and for a megabyte on."""
        return self._reader.residency.is_resident(physical_offset)

    @while_open
    def read_cold(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        """The log's bytes there, unchecked, as a copy that the calling thread reads from the disk."""
        return self._reader.cold_record(physical_offset, size_bytes)

    @while_open
    def read_log(self, offset: int, max_bytes: int) -> memoryview | None:
        """Raw readable bytes from an offset on, within one file (replication); None when there are none."""
        file = self._log_files.find(offset)
        if file is None or offset - file.base >= file.read_position:
            return None
        position = offset - file.base
        return file.select(position, min(max_bytes, file.read_position - position))

    @while_open
    def query(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[StoredMessage]:
        """Messages of a topic that carry this key or unique id, newest first, at most 64.

        CorruptStoreError when the body of one is damaged; `max_count` and the times lead around it.
        """
        found = self._reader.query(topic, key, max_count, begin_ms, end_ms)
        for message in found:
            check_body(message, self.config.path)
        return found

    @while_open
    def query_sound(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[StoredMessage]:
        """The same without those whose body is damaged, which are noted: for a broker."""
        return list(filter(self._reader.is_sound, self._reader.query(topic, key, max_count, begin_ms, end_ms)))

    @property
    @while_open
    def is_index_doubtful(self) -> bool:
        """Whether a query may have to compare a whole index file first: let a worker ask."""
        return self._reader.is_index_doubtful

    @while_open
    def offset_at(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """The queue offset of the first message stored at or after a time (UPPER: the last at or before it)."""
        return self._reader.offset_at(topic, queue_id, time_ms, boundary)

    @while_open
    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        return self._reader.store_time_at(topic, queue_id, offset)

    @while_open
    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message, of the log or of one queue; -1 when there is none."""
        return self._reader.earliest_time(topic, queue_id)

    @while_open
    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(min, max) offsets of every queue; max is the offset that the next message gets."""
        return {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in self._all_queues()}

    def _all_queues(self) -> list[ConsumeQueue | BatchConsumeQueue]:
        self._reader.catch_up()
        return [*self._queues, *self._queues.batches]

    @while_open
    def has_batch_queues(self, topic: str) -> bool:
        """Whether the messages of a topic are in batch queues (queue.type=BatchCQ)."""
        return self._queues.batches.holds(topic)

    @while_open
    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._reader.any_queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    @while_open
    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.max_offset(topic, queue_id)

    @while_open
    def read_units(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tags code) of a queue's records from the one with an offset on; fewer where a file
        ends. A record holds one message, but for inner batches."""
        queue = self._reader.any_queue(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            return queue.places(offset, max_count)
        return [] if queue is None else list(unpack_units(queue.read_units(offset, max_count)))

    @property
    @while_open
    def log_min_offset(self) -> int:
        return self._log_files.min_offset

    @property
    @while_open
    def log_max_offset(self) -> int:
        """End of the readable log."""
        return self._log_files.max_offset

    # --- administration

    def set_batch_topics(self, topics: Container[str]) -> None:
        """Which topics have queue.type=BatchCQ; it is asked again each time.

        One with ordinary queues keeps those until `unify_queues`, or until the store is opened again.
        """
        self._life.check_not_closed()
        self._queues.batches.topics = topics

    @while_open
    def unify_queues(self) -> None:
        """Give topics that turned out to be batch topics batch queues in place of ordinary ones. Let a worker call it.

        Trouble is reported as that of housekeeping, and the next call tries again.
        """
        if self._queues.misplaced():
            self._housekeeping.in_turn(self._unify_queues)

    def _unify_queues(self) -> None:
        persist = self._housekeeping.persist
        self._dispatcher.while_still(lambda: unify_queues(self._queues, self._log_files, persist))

    @while_open
    def delete_topics(self, topics: Sequence[str]) -> int:
        """Destroy the queues of these topics; how many queues. Their messages stay in the log until it is cleaned.

        On return that is on the disk, as a crash would bring them back from the log. (Of a loop: it will be at once.)
        """
        self._reader.catch_up()
        names = set(topics)
        return self._destroy(lambda: [*self._log.keys_of(names), *self._queues.keys_of(names)], names)

    @while_open
    def delete_queues_before(self, ends: Mapping[str, int]) -> int:
        """Destroy queues of these topics without a message beyond that place in the log; how many. Up to there it is
        dispatched.
        """
        return self._destroy(lambda: self._queues.keys_ending_by(ends))

    @while_open
    def clean_expired_queues(self) -> int:
        """Destroy queues whose newest message is gone from the log, system topics excepted; how many."""
        self._reader.catch_up()
        return self._destroy(self._retention.expired_queues)

    def _destroy(self, find: Callable[[], Sequence[tuple[str, int]]], topics: Container[str] = ()) -> int:
        def destroy() -> int:
            self._log.forget_queues(keys := set(find()))
            return sum([self._queues.delete(*key) for key in keys])

        count = self._dispatcher.leave_out(topics, destroy)
        if count and self._drive is Drive.EMBEDDED:
            self.flush()
            self._housekeeping.persist_in_turn()
        elif count:
            self.request_flush()
            self._housekeeping.persist_soon()
        return count

    @while_open
    def delete_expired_files_now(self) -> None:
        """Delete log files past their time at the next rounds of housekeeping, at whatever hour."""
        self._retention.delete_now()

    @while_open
    def tick(self) -> None:
        """One round of housekeeping, now, and a look at whether the files are still there."""
        self._ground.tick()
        self._housekeeping.tick()

    @while_open
    def runtime_info(self) -> dict[str, str]:
        """RocketMQ's run-time keys of a store."""
        self._count_puts()
        return self.stats.runtime_info(self.store_clock.steady_ms()) | {
            "commitLogDiskRatio": str(self.files.disk_usage(self.config.commit_log_paths[0]).used_ratio),
            "consumeQueueDiskRatio": str(self.files.disk_usage(self.config.consume_queue_path).used_ratio),
            "commitLogMinOffset": str(self._log_files.min_offset),
            "commitLogMaxOffset": str(self._log_files.max_offset),
            "damagedRecords": str(self._reader.damage.count),
        }

    def _sample(self) -> None:
        self._count_puts()
        self.stats.sample(self.store_clock.steady_ms())
        if self._drive is Drive.LOOP:
            return
        self.store_clock.look()  # a loop does that itself, not between a message and its put
        if self._facts or self._dispatcher.stuck_reason is not None:
            self._catch_up()

    def _count_puts(self) -> None:
        states = self._log.states
        self.stats.put_count = sum(state.put_count for state in states)
        self.stats.put_bytes = sum(state.put_bytes for state in states)
