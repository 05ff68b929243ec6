"""`config/timercheck`: how far the timer store has come, in 56 bytes of a 4096-byte file.

    checkpoint := read_time_ms  log_flushed_position  queue_offset  master_queue_offset
                  state_version  version_timestamp  version_counter              (seven i64, big-endian; zeros follow)

Every slot before `read_time_ms` has been delivered, every unit before `log_flushed_position` is durable and on the
wheel, every message before `queue_offset` of the timer topic has been taken in. The file is written last, after the
commit log, the timer log and the wheel it refers to: what it says is true even after a power failure. One page is
written at once and each value is checked against the others' files when it is read, so a torn write is not believed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.base.errors import StoreIOError
from contrailmq.store.files import PAGE_BYTES, Files

_CHECKPOINT: Final = struct.Struct(">7q")


class TimerCheckpoint(NamedTuple):
    read_time_ms: int = 0
    log_flushed_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_timestamp: int = 0
    version_counter: int = 0


def encode_checkpoint(checkpoint: TimerCheckpoint) -> bytes:
    return _CHECKPOINT.pack(*checkpoint).ljust(PAGE_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> TimerCheckpoint:
    """Of a file or of a master's answer; all zeros when the bytes are too few (never written)."""
    if len(data) < _CHECKPOINT.size:
        return TimerCheckpoint()
    return TimerCheckpoint(*_CHECKPOINT.unpack_from(data))


@dataclass(slots=True)
class FlushPlan:
    """One flush: made on the owner's thread, run on any, taken note of on the owner's again."""

    log_end: int
    log_files: dict[int, int]
    slots: dict[int, bytes]
    checkpoint: TimerCheckpoint
    metrics: str
    cuts: list[int]  # positions of units whose links are cut when all else is durable
    cut_places: list[tuple[int, int]]


class TimerCheckpointFile:
    """Read once at open; written by whoever flushes."""

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self._files = files
        self._descriptor = -1

    def open(self) -> TimerCheckpoint:
        try:
            self._files.make_directory(self.path.parent)
            is_new = not self._files.exists(self.path)
            self._descriptor = self._files.open(self.path, create=True)
            if is_new:
                self._files.sync_directory(self.path.parent)
            return decode_checkpoint(self._files.pread(self._descriptor, PAGE_BYTES, 0))
        except OSError as exc:
            raise StoreIOError("open", self.path, exc) from exc

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Durable on return."""
        try:
            self._files.pwrite(self._descriptor, encode_checkpoint(checkpoint), 0)
        except OSError as exc:
            raise StoreIOError("write", self.path, exc) from exc
        try:
            self._files.sync(self._descriptor)
        except OSError as exc:
            raise StoreIOError("sync", self.path, exc) from exc

    def close(self) -> None:
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
