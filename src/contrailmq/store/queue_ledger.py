"""ROOT/queues.ledger: what queues and index held when they were last flushed.

Apache's store has no such file and ignores it. It closes a hole: queues are checked against the log only where recovery
walks, so a queue directory that was deleted, or lost its last units, below that point would go unnoticed; its next
message would get an offset that was already given out. A unit with a flipped bit would be believed. With it each queue
is compared with what it held, checksums of its files included: 20 bytes a message are read instead of the log.

It is written beside and renamed (so it is whole or old), after the queues' sync and before the checkpoint, and carries
its own checksum. It is believed only when the checkpoint does not know of later dispatches: otherwise Apache's broker
worked here since, and may have deleted topics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from contrailmq.message.checksum import crc32
from contrailmq.store.checkpoint import CheckpointValues
from contrailmq.store.consume_queue_table import ConsumeQueueTable, Dispatched
from contrailmq.store.files import Files
from contrailmq.store.index import IndexService

LEDGER_NAME: Final = "queues.ledger"
CHECKSUM_BYTES_MAX: Final = 1 << 30  # read at once at most, to make or to check: a second, and 50 million messages
_CRC_BYTES: Final = 8  # hexadecimal, before the JSON


class LedgerEntry(NamedTuple):
    """One queue: offsets as far as they were in its files, and (base, CRC-32) of the files up to there."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    files: list[tuple[int, int]]


class IndexEntry(NamedTuple):
    name: str
    end_offset: int


class Ledger(msgspec.Struct, frozen=True):
    """State of queues and index at one flush. `physical_offset` is the newest record whose unit is in the queues."""

    physical_offset: int
    store_time_ms: int
    queues: list[LedgerEntry]
    index: list[IndexEntry]  # oldest first; the last one may have grown since
    boot_id: str = ""  # in which run of the machine it was written

    @property
    def index_end_offset(self) -> int:
        return self.index[-1].end_offset if self.index else -1

    def is_current(self, checkpoint: CheckpointValues) -> bool:
        return checkpoint.logics_physical_offset <= self.physical_offset


def take_ledger(
    queues: ConsumeQueueTable, index: IndexService | None, mark: Dispatched, *, boot_id: str = ""
) -> Ledger:
    left = CHECKSUM_BYTES_MAX
    entries = []
    for queue in queues:
        left -= queue.compute_checksums(left)
        entries.append(LedgerEntry(queue.topic, queue.queue_id, *queue.snapshot()))
    index_files = index.index_files if index is not None else []
    index_entries = [IndexEntry(file.path.name, file.end_offset) for file in index_files if file.entries]
    return Ledger(mark.physical_offset, mark.store_time_ms, entries, index_entries, boot_id)


def write_ledger(root: Path, ledger: Ledger, files: Files) -> None:
    body = msgspec.json.encode(ledger)
    beside = root / (LEDGER_NAME + ".new")
    descriptor = files.open(beside, create=True)
    try:
        files.truncate(descriptor, 0)
        files.pwrite(descriptor, f"{crc32(body):08x}".encode() + body, 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(beside, root / LEDGER_NAME)
    files.sync_directory(root)


def read_ledger(root: Path, files: Files) -> Ledger | None:
    """The ledger, or None when there is none that can be believed."""
    path = root / LEDGER_NAME
    if not files.exists(path):
        return None
    descriptor = files.open(path, writable=False)
    try:
        data = files.pread(descriptor, files.size(path), 0)
    finally:
        files.close(descriptor)
    body = data[_CRC_BYTES:]
    if data[:_CRC_BYTES] != f"{crc32(body):08x}".encode():
        return None
    try:
        return msgspec.json.decode(body, type=Ledger)
    except msgspec.DecodeError:
        return None
