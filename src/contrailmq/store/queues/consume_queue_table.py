"""All consume queues of a store: ROOT/consumequeue/TOPIC/QUEUEID/.

The table is the one owner of its queues. Dispatch appends through it; the put path takes the next queue offset from it;
housekeeping writes pending units out and syncs them.

Cost of an append, measured: 0.6 us when the unit follows the last one (a dictionary look-up, a pack, an in-place
extension), whatever the number of queues. Housekeeping writes a queue only when it has gathered something worth a
system call, so 20,000 queues with a message a second each do not become 20,000 writes a second; `flush` (once a minute,
and at close) writes and syncs everything and says up to where the queues are then durable. Only that goes into the
checkpoint.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message import SysFlag
from contrailmq.store.files import Files
from contrailmq.store.queues.batch_consume_queue import BATCH_UNIT_BYTES, BatchUnit
from contrailmq.store.queues.batch_queue_table import BatchQueueTable, names_queue, unit_of
from contrailmq.store.queues.consume_queue import PENDING_BYTES_MAX, ConsumeQueue
from contrailmq.store.queues.consume_queue_ext import ConsumeQueueExtTable, is_ext_address
from contrailmq.store.queues.derivation import IN_NO_QUEUE
from contrailmq.store.queues.descriptors import DescriptorCache, capacity_for, ceiling_for
from contrailmq.store.queues.light_queues import LIGHT_PREFIX
from contrailmq.store.queues.queue_state import DispatchFact
from contrailmq.store.queues.queue_unit import UNIT_BYTES, pack_unit

SYNC_TOGETHER_LEAST: Final = 256  # queues: from here on one sync of the file system is cheaper than one for each
WRITE_LEAST_BYTES: Final = 51 * UNIT_BYTES  # 20,000 queues then hold at most 20 MB in memory between two flushes
BATCH_FILE_BYTES_DEFAULT: Final = 300_000 * BATCH_UNIT_BYTES  # mapperFileSizeBatchConsumeQueue
# PREPARED and ROLLBACK have the first bit; inner batches live in queues of another format.


class Dispatched(NamedTuple):
    """The newest record that was handed to the queues."""

    physical_offset: int
    store_time_ms: int


class DamagedQueue(NamedTuple):
    """A queue whose files cannot be right; what was kept of it is consistent, the rest has to come from the log."""

    topic: str
    queue_id: int
    reason: str


class ConsumeQueueTable:
    """Every queue by (topic, queue id)."""

    def __init__(
        self,
        root: Path,
        *,
        file_bytes: int,
        files: Files,
        open_files_max: int = 0,
        ext_file_bytes: int = 0,
        with_light_queues: bool = False,
        batch_file_bytes: int = BATCH_FILE_BYTES_DEFAULT,
        batch_topics: Container[str] = frozenset(),
    ) -> None:
        """`ext_file_bytes` turns extensions on (enableConsumeQueueExt); they and batch queues lie beside `root`."""
        self._with_light_queues = with_light_queues
        self.root = root
        self._root_text = str(root)
        self.file_bytes = file_bytes
        self._files = files
        limit = files.raise_descriptor_limit()
        self._descriptors = DescriptorCache(files, open_files_max or capacity_for(limit), ceiling_for(limit))
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._counts: dict[str, int] = {}  # topic -> how many queues it has
        self.created: dict[tuple[str, int], None] = {}  # since somebody cleared it
        self._dirty: dict[ConsumeQueue, None] = {}  # have pending units
        self._unsynced: dict[ConsumeQueue, None] = {}
        self.ext: ConsumeQueueExtTable | None = None
        self._ext_root = root.with_name(root.name + "_ext")
        if ext_file_bytes:
            self.ext = ConsumeQueueExtTable(
                self._ext_root, file_bytes=ext_file_bytes, files=files, descriptors=self._descriptors
            )
        self.batches = BatchQueueTable(
            root.with_name("batch" + root.name),
            file_bytes=batch_file_bytes,
            files=files,
            descriptors=self._descriptors,
            topics=batch_topics,
            others=self._counts,
        )
        self.last_physical_offset = -1
        self.last_store_time_ms = 0

    # --- the hot path

    def append(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        size_bytes: int,
        tags_code: int,
        store_time_ms: int,
        bit_map: bytes = b"",
    ) -> None:
        """Add one unit, in log order. A record that the queue already has is skipped.

        `bit_map` goes into the extension, if those are on.
        """
        assert size_bytes > 0
        assert physical_offset >= 0
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if self.batches.holds(topic):
                unit = BatchUnit(physical_offset, size_bytes, tags_code, store_time_ms, queue_offset, 1)
                self.append_batch(topic, queue_id, unit)
                return
            queue = self.find_or_create(topic, queue_id)
        end = physical_offset + size_bytes
        if not queue.has(queue_offset, end):
            if self.ext is not None:
                tags_code = self.ext.put(topic, queue_id, tags_code, store_time_ms, bit_map)
            queue.extend(queue_offset, pack_unit(physical_offset, size_bytes, tags_code), end)
            self._note(queue, len(queue.pending))
        # Last, and the offset last of all: a flush in another thread takes them as "everything up to here is in".
        self.last_store_time_ms = store_time_ms
        self.last_physical_offset = physical_offset

    def append_fact(self, fact: DispatchFact, bit_map: bytes = b"") -> None:
        """Add the unit of a record that the log reported, if it belongs in a queue."""
        state, offset, size, code, time_ms, queue_offset, _, sys_flag, properties = fact
        if not sys_flag & IN_NO_QUEUE:
            self.append(state.topic, state.queue_id, queue_offset, offset, size, code, time_ms, bit_map)
        elif not sys_flag & SysFlag.TRANSACTION_PREPARED:
            unit = unit_of(offset, size, time_ms, queue_offset, properties)
            self.append_batch(state.topic, state.queue_id, unit)

    def append_all(self, facts: Sequence[DispatchFact]) -> None:
        """`append_fact` for each.

        The lines of `append` stand here once more, for a unit that continues its queue: 0.75 us instead of 1.4 (one
        suite runs over both, tests/store/test_consume_queue.py).
        """
        queues, pack, with_ext = self._queues, pack_unit, self.ext is not None
        for fact in facts:
            state, offset, size, code, time_ms, queue_offset, _, sys_flag, _ = fact
            queue = None if with_ext or sys_flag & IN_NO_QUEUE else queues.get(state.key)
            if queue is None or queue.max_offset != queue_offset or offset < queue.physical_max:
                self.append_fact(fact)
                continue
            pending = queue.pending
            pending += pack(offset, size, code)
            queue.max_offset = queue_offset + 1
            queue.physical_max = offset + size
            count = len(pending)
            if count == UNIT_BYTES or count >= PENDING_BYTES_MAX:
                self._note(queue, count)
            self.last_store_time_ms = time_ms
            self.last_physical_offset = offset

    def append_batch(self, topic: str, queue_id: int, unit: BatchUnit) -> None:
        """Add the unit of a record whose queue is a batch queue, in log order."""
        self.batches.append(topic, queue_id, unit)
        self.last_store_time_ms = unit.store_time_ms
        self.last_physical_offset = unit.physical_offset

    def _note(self, queue: ConsumeQueue, count: int) -> None:
        self._dirty[queue] = None
        if count >= PENDING_BYTES_MAX:
            self._write(queue)

    # --- looking

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    @property
    def with_light_queues(self) -> bool:
        """Whether records may have units in light queues: those are on, or some are there."""
        return self._with_light_queues or any(topic.startswith(LIGHT_PREFIX) for topic, _ in self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no files until its first units are written."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = ConsumeQueue(
                topic,
                queue_id,
                f"{self._root_text}/{topic}/{queue_id}",
                file_bytes=self.file_bytes,
                files=self._files,
                descriptors=self._descriptors,
            )
            self._counts[topic] = self._counts.get(topic, 0) + 1
            self.created[key] = None
        return queue

    def misplaced(self) -> list[str]:
        """Topics that have ordinary queues although batch queues are theirs."""
        return [topic for topic in sorted(self._counts) if self.batches.claims(topic)]

    def extension_code(self, topic: str, queue_id: int, address: int) -> int | None:
        """The tags code in the extension at an address, the address itself when none is there, and None for a queue
        whose extensions another program made and we do not read: whoever filters then takes every message."""
        if self.ext is None:
            directory = self._ext_root / topic / str(queue_id)
            return None if self._files.exists(directory) else address
        unit = self.ext.get(topic, queue_id, address)
        return unit.tags_code if unit is not None else address

    def clean_extension(self, queue: ConsumeQueue) -> int:
        """Remove extension files below what the queue's first unit points at; how many."""
        if self.ext is None:
            return 0
        first = queue.unit_at(queue.min_offset)
        if first is None or not is_ext_address(first.tags_code):
            return 0
        return self.ext.queue(queue.topic, queue.queue_id).delete_below(first.tags_code)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of a queue gets; 0 for a queue that never had one."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def next_offsets(self) -> dict[tuple[str, int], int]:
        return {key: queue.max_offset for key, queue in self._queues.items()} | self.batches.next_offsets()

    @property
    def physical_max(self) -> int:
        """The end of the newest record that any queue points at; -1 when there is none."""
        return max((queue.physical_max for queue in (*self._queues.values(), *self.batches)), default=-1)

    # --- housekeeping

    def write_pending(self, least_bytes: int = WRITE_LEAST_BYTES) -> int:
        """Write out the queues that have gathered at least so much; how many bytes."""
        written = 0
        for queue in list(self._dirty):
            if len(queue.pending) >= least_bytes:
                written += self._write(queue)
        return written

    def flush(self) -> Dispatched:
        """Write and sync everything; the newest record whose unit is then durable, with all before it."""
        physical_offset = self.last_physical_offset  # in this order: the time may be too new by one, never the offset
        mark = Dispatched(physical_offset, self.last_store_time_ms)
        self.write_pending(least_bytes=1)
        self.batches.write_pending()
        entries = self._descriptors.take_new_entries()
        try:
            self._sync(entries)
        except OSError:
            self._descriptors.give_back_new_entries(entries)
            raise
        return mark

    def _sync(self, entries: set[Path]) -> None:
        """What was written to queue files, and the new names in `entries`."""
        self.batches.sync()
        if len(self._unsynced) >= SYNC_TOGETHER_LEAST and self._sync_together():
            return
        for queue in list(self._unsynced):
            self._unsynced.pop(queue, None)
            try:
                queue.sync()
            except OSError:
                self._unsynced[queue] = None
                raise
        for directory in sorted(entries):
            if self._files.exists(directory):  # not deleted with its topic meanwhile
                self._files.sync_directory(directory)

    def _sync_together(self) -> bool:
        """One sync for all queues; False when there is none such, and nothing was done."""
        written = {queue: set(queue.unsynced) for queue in list(self._unsynced)}
        for queue in written:  # before the sync: what is written during it is noted again
            self._unsynced.pop(queue, None)
            queue.unsynced.clear()
        is_done = False
        try:
            is_done = self._files.sync_filesystem(self.root)
        finally:
            if not is_done:
                for queue, bases in written.items():
                    queue.unsynced |= bases
                    self._unsynced[queue] = None
        return is_done

    def settle(self, bytes_max: int) -> None:
        """Compare some files that were left in doubt at the start, before somebody reads them."""
        for queue in self:
            if bytes_max > 0 and queue.doubts:
                bytes_max -= queue.settle(bytes_max)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        for queue in (*self, *self.batches):
            queue.correct_min_offset(log_min_offset)

    def truncate_physical(self, physical_offset: int) -> int:
        """Forget every unit whose record begins at or above an offset; how many."""
        cut = 0
        for queue in self:
            if queue.physical_max > physical_offset:
                keep = queue.offset_of_physical(physical_offset)
                cut += queue.max_offset - keep
                self.truncate(queue, keep)
        return cut + sum(queue.truncate_physical(physical_offset) for queue in self.batches)

    def overwrite(self, queue: ConsumeQueue, queue_offset: int, unit: bytes) -> None:
        queue.overwrite(queue_offset, unit)
        self._unsynced[queue] = None

    def extend(self, queue: ConsumeQueue, queue_offset: int, unit: bytes, physical_end: int) -> None:
        """Append a unit that recovery has made and checked."""
        queue.extend(queue_offset, unit, physical_end)
        self._note(queue, len(queue.pending))

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """It has pending units that did not come through `append`."""
        self._dirty[queue] = None

    def truncate(self, queue: ConsumeQueue, max_offset: int) -> None:
        queue.truncate_to(max_offset)
        self._unsynced[queue] = None

    def reset(self, queue: ConsumeQueue) -> None:
        """Forget all that a queue holds; it stays in the table."""
        queue.destroy()
        self._dirty.pop(queue, None)

    def delete(self, topic: str, queue_id: int) -> bool:
        """Destroy one queue; False when there is none. The log keeps its messages until they expire."""
        queue = self._queues.pop((topic, queue_id), None)
        if queue is None:
            return self.batches.delete(topic, queue_id)
        self._dirty.pop(queue, None)
        self._unsynced.pop(queue, None)
        self.created.pop((topic, queue_id), None)
        self._counts[topic] -= 1
        if not self._counts[topic]:
            del self._counts[topic]
        queue.destroy()
        if self.ext is not None:
            self.ext.delete(topic, queue_id)
        self._files.remove_directory_if_empty(queue.directory.parent)
        return True

    def keys_of(self, topics: Container[str]) -> list[tuple[str, int]]:
        return [(queue.topic, queue.queue_id) for queue in (*self, *self.batches) if queue.topic in topics]

    def keys_ending_by(self, ends: Mapping[str, int]) -> list[tuple[str, int]]:
        """Queues of these topics that hold no message beyond that place in the log."""
        found = [queue for queue in (*self, *self.batches) if queue.topic in ends]
        return [(queue.topic, queue.queue_id) for queue in found if queue.physical_max <= ends[queue.topic]]

    def delete_topic(self, topic: str) -> int:
        """Destroy all ordinary queues of a topic; how many there were."""
        return sum(self.delete(*key) for key in [key for key in self._queues if key[0] == topic])

    def destroy(self) -> None:
        """Destroy every queue: for a store whose log is gone."""
        for topic, queue_id in [*self._queues, *((queue.topic, queue.queue_id) for queue in self.batches)]:
            self.delete(topic, queue_id)

    def close(self) -> None:
        """Close descriptors. Writing what is pending is `flush`, and may fail; this does not."""
        self._descriptors.close()

    # --- opening

    def load(self) -> list[DamagedQueue]:
        """Find every queue on disk; those whose files cannot be right are named for a rebuild."""
        self.batches.load()
        damaged: list[DamagedQueue] = []
        for topic, is_directory in self._files.list_names(self.root):
            for name, is_queue in self._files.list_names(self.root / topic) if is_directory else ():
                if not (is_queue and names_queue(name)):
                    continue  # Java skips such names too (ConsumeQueueStore.loadConsumeQueues)
                queue = self.find_or_create(topic, int(name))
                reason = queue.load()
                if reason is not None:
                    damaged.append(DamagedQueue(queue.topic, queue.queue_id, reason))
        return damaged

    def _write(self, queue: ConsumeQueue) -> int:
        self._dirty.pop(queue, None)
        try:
            written = queue.write_pending()
        except OSError:
            self._dirty[queue] = None
            raise
        self._unsynced[queue] = None
        if queue.pending:  # units that came while it was written; `append` only notes the first one
            self._dirty[queue] = None
        return written
