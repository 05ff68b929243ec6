"""ROOT/checkpoint: up to when, and to where, each part of the store is known to be on the disk.

    checkpoint := physic_msg_time:i64 logics_msg_time:i64 index_msg_time:i64 master_flushed_offset:i64
                  confirm_offset:i64 logics_physical_offset:i64 zeros                     (4096 bytes, big-endian)

The times are store times of messages. After a crash, recovery begins at the last log file that starts before both the
log's and the queues' time. A field is therefore moved only after the sync that makes it true. (Apache moves the queues'
time when a unit is dispatched and may flush it before the unit: a power cut can then lose units for good.)

The file is written in place with one `pwrite` of 48 bytes, which no disk tears, and synced; a file that is missing,
short or absurd reads as zeros, which only makes recovery start earlier.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.files import Files

_FIELDS: Final = struct.Struct(">qqqqqq")
CHECKPOINT_BYTES: Final = 4096
_TIME_MAX_MS: Final = 253_402_300_800_000  # the year 10000: a later time is a damaged file
assert _FIELDS.size == 48


class CheckpointValues(NamedTuple):
    """The six fields, as read or to be written."""

    physic_msg_time_ms: int = 0
    logics_msg_time_ms: int = 0
    index_msg_time_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def synced_ms(self) -> int:
        """What was stored up to then was on the disk, with some room for clocks, as in Apache's store."""
        return max(0, min(self.physic_msg_time_ms, self.logics_msg_time_ms) - 3_000)

    @property
    def is_believable(self) -> bool:
        return all(0 <= time_ms < _TIME_MAX_MS for time_ms in self[:3]) and all(offset >= 0 for offset in self[3:])


class Checkpoint:
    """Mutable fields of the file; `flush` writes them. Owned by the store; any thread may set a field."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self.physic_msg_time_ms = 0
        self.logics_msg_time_ms = 0
        self.index_msg_time_ms = 0
        self.master_flushed_offset = 0
        self.confirm_offset = 0
        self.logics_physical_offset = 0
        self._flushed: CheckpointValues | None = None

    @property
    def values(self) -> CheckpointValues:
        return CheckpointValues(
            self.physic_msg_time_ms,
            self.logics_msg_time_ms,
            self.index_msg_time_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.logics_physical_offset,
        )

    def load(self) -> CheckpointValues:
        values = read_checkpoint(self._path, self._files)
        (
            self.physic_msg_time_ms,
            self.logics_msg_time_ms,
            self.index_msg_time_ms,
            self.master_flushed_offset,
            self.confirm_offset,
            self.logics_physical_offset,
        ) = values
        return values

    def flush(self) -> None:
        """Write and sync, if anything changed."""
        values = self.values
        if values == self._flushed:
            return
        descriptor = self._files.open(self._path, create=True)
        try:
            if self._flushed is None:
                self._files.truncate(descriptor, CHECKPOINT_BYTES)
            self._files.pwrite(descriptor, _FIELDS.pack(*values), 0)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        if self._flushed is None:
            self._files.sync_directory(self._path.parent)
        self._flushed = values


def read_checkpoint(path: Path, files: Files) -> CheckpointValues:
    """The fields; zeros for a file that is missing or cannot be one."""
    if files.exists(path) and not files.is_file(path):
        raise CorruptStoreError(path, "the checkpoint is a file, and this is not one: move it elsewhere")
    if not files.exists(path) or files.size(path) < _FIELDS.size:
        return CheckpointValues()
    descriptor = files.open(path, writable=False)
    try:
        values = CheckpointValues(*_FIELDS.unpack(files.pread(descriptor, _FIELDS.size, 0)))
    finally:
        files.close(descriptor)
    return values if values.is_believable else CheckpointValues()
