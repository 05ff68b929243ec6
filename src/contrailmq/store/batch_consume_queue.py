"""Batch consume queues, read only: ROOT/batchconsumequeue/ of topics with queue.type=BatchCQ (RocketMQ 5.x).

    unit := physical_offset:i64 size_bytes:i32 tags_code:i64 store_time:i64 base_offset:i64 batch_size:i16
            compacted_offset:i32 reserved:i32                                        (big-endian, 46 bytes)

A unit stands for one record that holds a whole batch: the messages base_offset .. base_offset + batch_size - 1. Queue
offsets are therefore not places; a message is found by searching the base offsets, which only ever increase.
ContrailMQ reads these queues (inspect, verify, a look-up by offset) and writes none: inner batches are a setting of
Apache's topics, and their records are whole in the log either way.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.descriptors import file_base
from contrailmq.store.files import Files

_UNIT: Final = struct.Struct(">qiqqqhii")
BATCH_UNIT_BYTES: Final = 46
assert _UNIT.size == BATCH_UNIT_BYTES


class BatchUnit(NamedTuple):
    """One record of a batch topic."""

    physical_offset: int
    size_bytes: int
    tags_code: int
    store_time_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int
    reserved: int

    @property
    def is_valid(self) -> bool:
        return self.physical_offset >= 0 and self.size_bytes > 0 and self.base_offset >= 0 and self.batch_size > 0


class BatchConsumeQueue:
    """All units of one queue, as they were when it was loaded."""

    def __init__(self, topic: str, queue_id: int, directory: Path, files: Files) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._bases: list[int] = []  # first queue offset of each unit, for the search
        self._units: list[BatchUnit] = []
        for path in files.list_directory(directory):
            if file_base(path.name) is not None:
                self._load(path, files)

    def _load(self, path: Path, files: Files) -> None:
        size_bytes = files.size(path)
        descriptor = files.open(path, writable=False)
        try:
            data = files.pread(descriptor, size_bytes - size_bytes % BATCH_UNIT_BYTES, 0)
        finally:
            files.close(descriptor)
        for fields in _UNIT.iter_unpack(data):
            unit = BatchUnit(*fields)
            if not unit.is_valid:
                break
            self._bases.append(unit.base_offset)
            self._units.append(unit)

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[BatchUnit]:
        return iter(self._units)

    @property
    def min_offset(self) -> int:
        return self._units[0].base_offset if self._units else 0

    @property
    def max_offset(self) -> int:
        """The offset that the next message gets."""
        return self._units[-1].base_offset + self._units[-1].batch_size if self._units else 0

    def find(self, queue_offset: int) -> BatchUnit | None:
        """The unit whose batch holds an offset."""
        number = bisect_right(self._bases, queue_offset) - 1
        if number < 0:
            return None
        unit = self._units[number]
        return unit if queue_offset < unit.base_offset + unit.batch_size else None


def load_batch_queues(root: Path, files: Files) -> dict[tuple[str, int], BatchConsumeQueue]:
    """Every batch queue of a store."""
    queues: dict[tuple[str, int], BatchConsumeQueue] = {}
    for topic in files.list_directory(root):
        for directory in files.list_directory(topic) if not files.is_file(topic) else []:
            if directory.name.isascii() and directory.name.isdigit():
                queue_id = int(directory.name)
                queues[topic.name, queue_id] = BatchConsumeQueue(topic.name, queue_id, directory, files)
    return queues
