"""ROOT/queues.ledger: what queues and index held when they were last flushed. Apache's store ignores the file.

Recovery checks queues against the log only where it walks. Below that, a deleted or shortened queue would go unnoticed
and reuse offsets, and a flipped bit would be believed. With the ledger each queue is compared with what it held,
checksums of its files included: of a large store the newest at start (`StartBounds`), the others when first read. A
file found damaged then is named here, and the next start rebuilds it.

It is written aside and renamed, after the queues' sync and before the checkpoint, and has its own checksum. It names
the newest record that it covers, with a checksum. If that record is not there, the log was cut or restored, and the
ledger is not trusted. Nor is it if the checkpoint knows later dispatches: then Apache's broker worked here since.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from contrailmq.message.checksum import crc32
from contrailmq.store.base.checked_json import read_checked, replace_checked
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.config import START_BOUNDS
from contrailmq.store.files import Files
from contrailmq.store.index.index_file import DAMAGED, NO_CHECKSUM, IndexFile
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.queues.batch_queue_table import BatchEntry
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable, Dispatched
from contrailmq.store.recovery.checkpoint import CheckpointValues
from contrailmq.store.recovery.log_walk import LogFile

LEDGER_NAME: Final = "queues.ledger"
_RECORD_BYTES: Final = 256  # of the newest record: its place, time, offset and the checksum of its body are in there
_NO_RECORD: Final = -1


class LedgerEntry(NamedTuple):
    """One queue: offsets as far as they were in its files, and (base, CRC-32) of the files up to there."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    files: list[tuple[int, int]]


class IndexEntry(NamedTuple):
    """One index file; `checksum` (or DAMAGED) is of its content as long as `units` is its count; 0: none was taken."""

    name: str
    end_offset: int
    units: int = 0
    checksum: int = NO_CHECKSUM


class Ledger(msgspec.Struct, frozen=True):
    """State of queues and index at one flush. `physical_offset` is the newest record whose unit is in the queues."""

    physical_offset: int
    store_time_ms: int
    queues: list[LedgerEntry]
    index: list[IndexEntry]  # oldest first; the last one may have grown since
    boot_id: str = ""  # in which run of the machine it was written
    record_crc: int = _NO_RECORD  # of the record at `physical_offset`
    batches: list[BatchEntry] = []  # of batch queues
    log_min: int = -1  # where the log began, for which the queues' minimums are right

    @property
    def index_end_offset(self) -> int:
        return self.index[-1].end_offset if self.index else -1

    def is_current(self, checkpoint: CheckpointValues, log_files: Sequence[LogFile]) -> bool:
        """Whether it refers to this log, and nobody has dispatched behind its back."""
        if checkpoint.logics_physical_offset > max(0, self.physical_offset):
            return False
        is_cleaned_away = bool(log_files) and self.physical_offset < log_files[0].base
        return is_cleaned_away or record_checksum(log_files, self.physical_offset) == self.record_crc


def record_checksum(log_files: Sequence[LogFile], physical_offset: int) -> int:
    """A number for what stands at a place of the log; -1 when nothing does."""
    for file in reversed(log_files):
        if file.base <= physical_offset < file.base + file.size_bytes:
            position = physical_offset - file.base
            try:
                size_bytes = int.from_bytes(file.mapping[position : position + 4], "big", signed=True)
                data = file.mapping[position : position + min(size_bytes, _RECORD_BYTES)] if size_bytes > 0 else b""
            except ValueError:  # closed just now
                return _NO_RECORD
            return crc32(data) if data else _NO_RECORD
    return _NO_RECORD


def take_ledger(
    queues: ConsumeQueueTable,
    index: IndexService | None,
    mark: Dispatched,
    log_files: Sequence[LogFile],
    *,
    boot_id: str = "",
    checksum_bytes_max: int = START_BOUNDS.queue_bytes,
) -> Ledger:
    """Checksums that are not known yet are computed, of so many bytes at once; the next ledger gets more."""
    left = checksum_bytes_max
    entries = []
    for queue in queues:
        left -= queue.compute_checksums(left)
        entries.append(LedgerEntry(queue.topic, queue.queue_id, *queue.snapshot()))
    index_files = index.index_files if index is not None else []
    index_entries = [_index_entry(file) for file in index_files if file.entries]
    record_crc, batches = record_checksum(log_files, mark.physical_offset), queues.batches.entries()
    return Ledger(
        mark.physical_offset,
        mark.store_time_ms,
        entries,
        index_entries,
        boot_id,
        record_crc,
        batches,
        log_files[0].base if log_files else -1,
    )


def _index_entry(file: IndexFile) -> IndexEntry:
    checksum, units = file.checksum, file.checksum_count
    if file.damage:
        checksum, units = DAMAGED, file.count
    elif units != file.count:  # it is being filled: its marks vouch for it
        checksum, units = NO_CHECKSUM, 0
    return IndexEntry(file.path.name, file.end_offset, units, checksum)


def write_ledger(root: Path, ledger: Ledger, files: Files) -> None:
    replace_checked(files, root / LEDGER_NAME, ledger)


def read_ledger(root: Path, files: Files) -> Ledger | None:
    """The ledger, or None when there is none that can be believed."""
    path = root / LEDGER_NAME
    if not files.exists(path):
        return None
    if not files.is_file(path):
        raise CorruptStoreError(path, "the ledger is a file, and this is not one: remove it, it is rebuilt")
    return read_checked(files, path, Ledger)
