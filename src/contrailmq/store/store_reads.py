"""What a store answers: messages by queue, by place, by key, by time; offsets and times of queues.

`MessageStore` is a `StoreReads` that also writes. An embedded put does not dispatch each message (one by one that costs
twice as much as in chunks); whoever reads makes up for it first: the reader calls `_catch_up`, which brings queues and
index up to everything that is confirmed. So a message can be read, by any thread, as soon as its put has returned, or
when it is committed or flushed where the put does not wait for that (putting.py).
Driven by a loop, reading never dispatches: the loop decides when.
"""

from __future__ import annotations

from contrailmq.message import StoredMessage
from contrailmq.store.config import StoreConfig
from contrailmq.store.consume_queue_table import ConsumeQueueTable
from contrailmq.store.damage import Place
from contrailmq.store.dispatch import Dispatcher
from contrailmq.store.life import StoreLife, while_open
from contrailmq.store.mapped_file_queue import MappedFileQueue
from contrailmq.store.queue_unit import Boundary, unpack_units
from contrailmq.store.reading import PULL_BYTES_MAX, Reader, check_body, decode_found
from contrailmq.store.record import decode_record
from contrailmq.store.status import MessageFilter, Messages, Read, WarmRead


class StoreReads(StoreLife):
    """The reading half of MessageStore, which sets these attributes."""

    config: StoreConfig
    _reader: Reader
    _dispatcher: Dispatcher
    _queues: ConsumeQueueTable
    _log_files: MappedFileQueue
    # Bound to the reader's own methods, because pulls go through them.
    get_slices: Read  # as `get`, but slices of the mapped log, not decoded
    get_slices_warm: WarmRead  # the same; None when that would touch pages that are not in memory: let a worker call
    get_slices_cold: Read  # this one, which gives copies that the calling thread reads from the disk
    get_slices_sound: Read  # as `get_slices`, all of them checked: for whoever writes them once more

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
        self._reader.catch_up()
        both = (*self._queues, *self._queues.batches)
        return {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in both}

    @while_open
    def physical_end(self, topic: str) -> int:
        """Where in the log the newest message of a topic's queues ends; -1 when they hold none."""
        self._reader.catch_up()
        both = (*self._queues, *self._queues.batches)
        return max((queue.physical_max for queue in both if queue.topic == topic), default=-1)

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
        queue = self._reader.any_queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    @while_open
    def read_units(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tags code) of a queue's messages from an offset on; fewer where a file ends."""
        queue = self._reader.queue(topic, queue_id)
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
