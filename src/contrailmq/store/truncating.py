"""Cutting the newest part off a store's log, for good. For `contrailmq store truncate` and a slave's `--resync`.

A slave that has messages which its master has lost does not follow until somebody decides. This is the one decision:
the slave's go. `ClosedLog` is for finding out where. What is asked for is checked first (a border between two records,
inside the log), then written down (recovery/truncation.py), then done by opening the store. A kill at any point leaves
it either undecided or decided.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from contrailmq.message.codec import BLANK_BYTES, BLANK_MAGIC
from contrailmq.message.record import SIZE_AND_MAGIC, RecordView, head_struct
from contrailmq.store.base.errors import StoreError
from contrailmq.store.base.store_lock import StoreLock
from contrailmq.store.config import StoreConfig
from contrailmq.store.files import Files
from contrailmq.store.message_store import MessageStore
from contrailmq.store.recovery.log_walk import walk_over
from contrailmq.store.recovery.truncation import decide_truncation
from contrailmq.store.tools.read_only import StoreView, require_store


class TruncationError(StoreError):
    """The log cannot be cut there; nothing was changed."""


@dataclass(frozen=True, slots=True)
class TruncateReport:
    """What is cut, or would be."""

    path: str
    at: int
    log_min_offset: int
    log_max_offset: int
    messages: dict[str, int]  # topic -> how many of its records lie behind the cut
    is_done: bool

    @property
    def cut_bytes(self) -> int:
        return self.log_max_offset - self.at


class _Behind:
    """Takes the records of a walk: which borders there are around the cut, and what lies behind it."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.below = -1  # the nearest borders on both sides
        self.above = -1
        self.end = -1
        self.topics: Counter[str] = Counter()

    def take(self, record: RecordView, /) -> None:
        for border in (record.physical_offset, record.physical_offset + record.size_bytes):
            if border <= self._at:
                self.below = max(self.below, border)
            elif self.above < 0:
                self.above = border
        self.end = record.physical_offset + record.size_bytes
        if record.physical_offset >= self._at:
            self.topics[record.topic_name] += 1


def plan_truncation(config: StoreConfig, at: int) -> TruncateReport:
    """What a cut there takes; TruncationError when it cannot be made. Reads only."""
    require_store(config, Files())
    with StoreView(config) as view:
        if not view.log_files:
            raise TruncationError(f"store {config.path} has no log: there is nothing to cut")
        behind = _Behind(at)
        for file in (file for file in view.log_files if file.end > at):
            walk_over(file, behind)
        for file in reversed([file for file in view.log_files if file.end <= at]):
            if behind.end >= 0:
                break
            walk_over(file, behind)  # all after it is empty: the log ends here, or before
        is_file_begin = any(file.base == at for file in view.log_files)
        begin, end = view.log_files[0].base, max(behind.end, view.log_files[0].base)
    if not begin < at <= end:
        raise TruncationError(
            f"the log of {config.path} has the offsets {begin} to {end}, and {at} is not behind the first and up to "
            "the last: give a border of two records there; to cut all of the log give the broker an empty directory; "
            "nothing was changed"
        )
    if behind.below != at and not is_file_begin:
        raise TruncationError(
            f"offset {at} is inside a record: the borders around it are {behind.below} and {behind.above}; nothing was "
            "changed"
        )
    return TruncateReport(str(config.path), at, begin, end, dict(sorted(behind.topics.items())), is_done=False)


def truncate_store(config: StoreConfig, at: int, *, files: Files | None = None) -> TruncateReport:
    """Cut the log at `at`. StoreLockedError while somebody has the store open."""
    files = files or Files()
    plan = plan_truncation(config, at)
    lock = StoreLock(files, config.lock_path)
    lock.acquire()
    try:
        decide_truncation(config.path, files, at)
    finally:
        lock.release()
    with MessageStore(config, files=files) as store:
        end = store.log_max_offset
    assert end <= at, "a border that the log ends at, or the blank before it"
    return replace(plan, is_done=True)


class ClosedLog:
    """The log of a store that nobody has open, as it lies on the disk, for a comparison with another log.

    A context manager: it holds mappings.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._view = StoreView(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.close()

    def files(self) -> Iterator[array[int]]:
        """Where the records of each file begin, newest file first; files without a record are left out."""
        for file in reversed(self._view.log_files):
            begins = _Begins()
            walk_over(file, begins)
            if begins.offsets:
                yield begins.offsets

    def record(self, offset: int) -> bytes:
        """The record that begins at an offset which `files` gave."""
        file = next(file for file in self._view.log_files if file.base <= offset < file.end)
        position = offset - file.base
        (size_bytes,) = _SIZE.unpack_from(file.mapping, position)
        return file.mapping[position : position + size_bytes]

    def is_closed_at(self, offset: int) -> bool:
        """Whether the file's BLANK begins there, at the end of a record."""
        file = next((file for file in self._view.log_files if file.base <= offset < file.end), None)
        if file is None or file.end - offset < BLANK_BYTES:
            return False
        return bool(SIZE_AND_MAGIC.unpack_from(file.mapping, offset - file.base)[1] == BLANK_MAGIC)


_SIZE: Final = head_struct("size")


class _Begins:
    """Takes the records of a walk: where they begin. 8 bytes each: a file of a gigabyte may hold ten million."""

    def __init__(self) -> None:
        self.offsets = array("q")

    def take(self, record: RecordView, /) -> None:
        self.offsets.append(record.physical_offset)
