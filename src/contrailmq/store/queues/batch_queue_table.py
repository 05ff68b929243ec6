"""All batch queues of a store, and what an inner batch is.

An inner batch is one record whose body holds the parts of a client's batch (message/batch.py) and whose sysFlag has
INNER_BATCH. Two properties belong to it: INNER_NUM, how many messages it holds (the sender's), and INNER_BASE, the
queue offset of the first (the log's, set when it is written). The queue's next offset moves on by INNER_NUM. Only
topics with queue.type=BatchCQ take them; all records of such a topic are in batch queues, ordinary ones as batches of
one.

Recovery. What the ledger says of these queues (their units' checksums) is either true, and then only records after the
ledger's newest one have to be entered, or all of them are rebuilt from the log. So a deleted, cut or damaged queue
is never trusted. In stores with such topics a crash costs a walk over headers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message import Property, decode_properties, encode_properties, tags_code
from contrailmq.message.property_text import key_of
from contrailmq.store.files import Files
from contrailmq.store.queues.batch_consume_queue import BATCH_SIZE_MAX, BatchConsumeQueue, BatchUnit
from contrailmq.store.queues.descriptors import DescriptorCache

INNER_MARK: Final = key_of(Property.INNER_NUM)  # in the properties of an inner batch
_OFFSET_DIGITS_MAX: Final = 18  # of a number that fits into 64 bits


class BatchEntry(NamedTuple):
    """What the ledger keeps of a batch queue: offsets, and the checksum of its units [first, end)."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first: int
    end: int
    checksum: int


def names_queue(name: str) -> bool:
    """Whether a directory is a queue's: its id as we write it, so that 007 is not another place of queue 7."""
    return name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name and int(name) < 2**31


def inner_count(properties: Mapping[str, str]) -> int:
    """How many messages INNER_NUM says that a record holds; 0 if it is not a count."""
    text = properties.get(Property.INNER_NUM, "")
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return count if count <= BATCH_SIZE_MAX else 0


def with_base(properties: Mapping[str, str], base_offset: int) -> bytes:
    """The properties of an inner batch as they are stored; without WAIT, which RocketMQ drops when it writes again."""
    kept = {name: value for name, value in properties.items() if name != Property.WAIT}
    kept[Property.INNER_BASE] = str(base_offset)
    return encode_properties(kept)


def unit_of(
    physical_offset: int, size_bytes: int, store_time_ms: int, queue_offset: int, properties: bytes | Mapping[str, str]
) -> BatchUnit:
    """The unit of a record in a batch topic (CommitLog.setBatchSizeIfNeeded: both properties, or a batch of one)."""
    known = decode_properties(properties) if isinstance(properties, bytes) else properties
    count, base = inner_count(known), known.get(Property.INNER_BASE, "")
    if not count or not base.isascii() or not base.isdigit() or len(base) > _OFFSET_DIGITS_MAX:
        count, base = 1, str(queue_offset)
    code = tags_code(known.get(Property.TAGS))
    return BatchUnit(physical_offset, size_bytes, code, store_time_ms, int(base), count)


class BatchQueueTable:
    """Every batch queue by (topic, queue id). `topics` are those whose queue.type is BatchCQ, as the owner says."""

    def __init__(
        self,
        root: Path,
        *,
        file_bytes: int,
        files: Files,
        descriptors: DescriptorCache,
        topics: Container[str] = frozenset(),
        others: Container[str] = frozenset(),
    ) -> None:
        """`others` are topics that have ordinary queues: those are used until recovery/queue_kinds.py moves them."""
        self.root = root
        self.topics = topics
        self._others = others
        self.was_seen = False  # a record that belongs here was met where nothing could be done about it
        self._file_bytes = file_bytes
        self._files = files
        self._descriptors = descriptors
        self._queues: dict[tuple[str, int], BatchConsumeQueue] = {}
        self._names: set[str] = set()  # topics that have queues here

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[BatchConsumeQueue]:
        return iter(list(self._queues.values()))

    def holds(self, topic: str) -> bool:
        """Whether the records of a topic are in batch queues."""
        return topic in self._names or (topic in self.topics and topic not in self._others)

    def claims(self, topic: str) -> bool:
        """Whether they belong there, wherever they are."""
        return topic in self._names or topic in self.topics

    @property
    def is_mixed(self) -> bool:
        """Whether a topic has queues here and ordinary ones."""
        return any(topic in self._others for topic in self._names)

    def get(self, topic: str, queue_id: int) -> BatchConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def find_or_create(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = BatchConsumeQueue(
                topic,
                queue_id,
                f"{self.root}/{topic}/{queue_id}",
                file_bytes=self._file_bytes,
                files=self._files,
                descriptors=self._descriptors,
            )
            self._names.add(topic)
        return queue

    def append(self, topic: str, queue_id: int, unit: BatchUnit) -> None:
        """Add the unit of a record, in log order; one that is there already is skipped."""
        queue = self.find_or_create(topic, queue_id)
        if queue.begins_again(unit):
            queue.reset()
        queue.append(unit)

    def next_offsets(self) -> dict[tuple[str, int], int]:
        return {key: queue.max_offset for key, queue in self._queues.items()}

    # --- housekeeping

    def write_pending(self, least_bytes: int = 1) -> int:
        """Write out the queues that have gathered at least so much; how many bytes."""
        return sum(queue.write_pending() for queue in self if queue.pending_bytes >= least_bytes)

    def sync(self) -> None:
        """What was written; the names of new files are the descriptors' business."""
        for queue in self:
            queue.sync()

    def clean(self, log_min_offset: int) -> int:
        """Remove files whose records are gone; how many."""
        deleted = 0
        for queue in self:
            deleted += queue.delete_files_below(log_min_offset)
            queue.correct_min_offset(log_min_offset)
        return deleted

    def delete(self, topic: str, queue_id: int) -> bool:
        """Destroy one queue; False when there is none."""
        queue = self._queues.pop((topic, queue_id), None)
        if queue is None:
            return False
        queue.destroy()
        if not any(key[0] == topic for key in self._queues):
            self._names.discard(topic)
            self._files.remove_directory_if_empty(self.root / topic)
        return True

    def entries(self) -> list[BatchEntry]:
        """For the ledger, after a flush."""
        return [
            BatchEntry(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, *queue.checksum())
            for queue in self
        ]

    # --- opening

    def load(self) -> None:
        for topic, is_directory in self._files.list_names(self.root):
            for name, is_queue in self._files.list_names(self.root / topic) if is_directory else ():
                if is_queue and names_queue(name):
                    self.find_or_create(topic, int(name)).load()

    def agrees_with(self, entries: Sequence[BatchEntry]) -> bool:
        """Whether these queues hold what the ledger says, and no others are there."""
        return {(entry.topic, entry.queue_id) for entry in entries} >= self._queues.keys() and all(
            entry.first == entry.end or self._entry_agrees(entry) for entry in entries
        )

    def _entry_agrees(self, entry: BatchEntry) -> bool:
        queue = self.get(entry.topic, entry.queue_id)
        return queue is not None and queue.agrees_with(entry.first, entry.end, entry.checksum)

    def keep_only(self, entries: Sequence[BatchEntry]) -> None:
        """Cut what the ledger does not know of. The log says what follows; the rest is of a file that was removed, and
        that a power cut brought back."""
        for entry in entries:
            queue = self.get(entry.topic, entry.queue_id)
            if queue is not None and entry.first == entry.end:
                queue.reset()
            elif queue is not None and entry.end < queue.end:
                queue.truncate(entry.end)

    def reset(self) -> None:
        """Empty every queue: they are rebuilt from the log."""
        for queue in self:
            queue.reset()

    def keep_maximums(self, entries: Sequence[BatchEntry]) -> None:
        """A queue whose messages are all gone still must not give out an offset twice."""
        for entry in entries:
            queue = self.find_or_create(entry.topic, entry.queue_id)
            if queue.end == queue.first and queue.max_offset < entry.max_offset:
                queue.start_at(entry.max_offset)
