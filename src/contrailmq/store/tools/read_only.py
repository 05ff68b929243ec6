"""A store opened for looking only: nothing that goes through here can change a byte.

`inspect` and `verify` must be safe on the only copy of somebody's data, also when it is damaged, so they do not run
recovery. `ReadOnlyFiles` opens descriptors and mappings for reading and refuses every call that writes; `StoreView` is
log, queues, index and checkpoint as they are.
"""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from contrailmq.message import SysFlag
from contrailmq.message.record import RecordView
from contrailmq.store.base.errors import StoreError, StoreIOError
from contrailmq.store.base.store_lock import owner_of
from contrailmq.store.config import StoreConfig, size_below
from contrailmq.store.files import Files
from contrailmq.store.index.index_file import IndexFile, index_file_bytes
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable, DamagedQueue
from contrailmq.store.queues.descriptors import file_base
from contrailmq.store.recovery.checkpoint import CheckpointValues, read_checkpoint
from contrailmq.store.recovery.queue_ledger import Ledger, read_ledger


class ReadOnlyFiles(Files):
    """The door to the operating system with the writing side bricked up."""

    def open(self, path: Path | str, *, writable: bool = True, create: bool = False) -> int:
        return super().open(path, writable=False, create=False)

    def map(self, descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
        return super().map(descriptor, size_bytes, writable=False)

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._refuse("pwrite")

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._refuse("truncate")

    def allocate(self, descriptor: int, size_bytes: int, position: int = 0) -> None:
        self._refuse("allocate")

    def rename(self, source: Path, target: Path) -> None:
        self._refuse("rename")

    def unlink(self, path: Path | str) -> None:
        self._refuse("unlink")

    def remove_directory(self, path: Path) -> None:
        self._refuse("remove_directory")

    def make_directory(self, path: Path, *, durable: bool = True) -> list[Path]:
        self._refuse("make_directory")

    def _refuse(self, operation: str) -> NoReturn:
        raise AssertionError(f"{operation} on a store that is open for reading only")


class ReadOnlyLogFile:
    """One log file, mapped for reading."""

    def __init__(self, path: Path, base: int, size_bytes: int, files: Files) -> None:
        self.path = path
        self.base = base
        self.size_bytes = size_bytes
        descriptor = files.open(path, writable=False)
        try:
            self.mapping = files.map(descriptor, size_bytes, writable=False)
        finally:
            files.close(descriptor)

    @property
    def end(self) -> int:
        return self.base + self.size_bytes


def require_store(config: StoreConfig, files: Files) -> None:
    """Raises StoreError for a directory that is not a store: it has no directory for the commit log."""
    if not files.exists(config.path):
        raise StoreError(f"there is no store at {config.path}: give the directory that holds commitlog/")
    if not any(files.exists(path) for path in config.commit_log_paths):
        missing = " and ".join(str(path) for path in config.commit_log_paths)
        raise StoreError(
            f"{config.path} is not a store: {missing} is missing; give the directory that holds commitlog/, or with -c "
            "the broker.conf whose storePathCommitLog names it"
        )


class StoreView:
    """Everything of a store directory, as it is. A context manager: it holds mappings and descriptors."""

    def __init__(self, config: StoreConfig) -> None:
        self.files = ReadOnlyFiles()
        try:
            self._open(config)
        except OSError as exc:
            raise StoreIOError("looking at the store", config.path, exc) from exc

    def _open(self, config: StoreConfig) -> None:
        require_store(config, self.files)
        self.config = config.resolved(self.files)
        self.problems: list[str] = []  # what could not be opened at all
        self.owner_pid = owner_of(self.files, self.config.lock_path)  # 0: nobody has it open, -1: somebody
        self.was_clean_exit = bool(self.owner_pid) or not self.files.exists(self.config.abort_path)
        self.log_files = self._open_log()
        self.queues = ConsumeQueueTable(
            self.config.consume_queue_path,
            file_bytes=self.config.mapped_file_size_consume_queue,
            files=self.files,
            open_files_max=self.config.open_files_max,
            ext_file_bytes=size_below(self.files, self.config.consume_queue_ext_path, depth=3),
            with_light_queues=self.config.with_light_queues,
            batch_file_bytes=self.config.mapper_file_size_batch_consume_queue,
        )
        self.damaged_queues = [queue for queue in self.queues.load() if not self._has_new_file(queue)]
        self._ordinary_ends: dict[str, int] = {}  # by topic, where the newest message in its ordinary queues ends
        for queue in self.queues:
            self._ordinary_ends[queue.topic] = max(queue.physical_max, self._ordinary_ends.get(queue.topic, -1))
        self.index_files = self._open_index()
        self.checkpoint: CheckpointValues = read_checkpoint(self.config.checkpoint_path, self.files)
        self.ledger: Ledger | None = read_ledger(self.config.path, self.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def log_bytes(self) -> int:
        return sum(file.size_bytes for file in self.log_files)

    def is_of_an_ended_batch_topic(self, record: RecordView) -> bool:
        """Whether an inner batch stands in the log of a topic that was deleted since, and made again with ordinary
        queues: they hold later messages. No batch queue is due for it."""
        if not record.sys_flag & SysFlag.INNER_BATCH:
            return False
        topic = record.topic_name
        return not self.queues.batches.holds(topic) and record.physical_offset < self._ordinary_ends.get(topic, -1)

    def close(self) -> None:
        self.queues.close()
        for index_file in self.index_files:
            index_file.close()
        for file in self.log_files:
            self.files.unmap(file.mapping)

    def _open_log(self) -> list[ReadOnlyLogFile]:
        found: list[ReadOnlyLogFile] = []
        for directory in self.config.commit_log_paths:
            for path in self.files.list_directory(directory):
                if not self.files.is_file(path):
                    continue  # lost+found, for example: opening the store skips it too
                base = file_base(path.name)
                if base is None:
                    self.problems.append(f"commit log: {path.name} is not a log file")
                    continue
                size_bytes = self.files.size(path)
                if size_bytes != self.config.mapped_file_size_commit_log:
                    if self._is_being_made(path):
                        continue
                    expected = self.config.mapped_file_size_commit_log
                    self.problems.append(f"commit log: {path.name} has {size_bytes} bytes, the others {expected}")
                if size_bytes:
                    found.append(ReadOnlyLogFile(path, base, size_bytes, self.files))
        found.sort(key=lambda file: file.base)
        for before, after in itertools.pairwise(found):
            if after.base != before.end:
                self.problems.append(f"commit log: there is a gap from {before.end} to {after.base}")
        return found

    def _is_being_made(self, path: Path) -> bool:
        """Whether a file may not have its size yet: the newest of its directory, in a store in use."""
        return bool(self.owner_pid) and path.name == max(other.name for other in self.files.list_directory(path.parent))

    def _has_new_file(self, queue: DamagedQueue) -> bool:
        """Whether the newest file of a queue was made just now: it had no size yet, and may have it by now."""
        paths = self.files.list_directory(self.config.consume_queue_path / queue.topic / str(queue.queue_id))
        if not paths or not self._is_being_made(max(paths)):
            return False
        return self.files.size(max(paths)) in (0, self.config.mapped_file_size_consume_queue)

    def _open_index(self) -> list[IndexFile]:
        found: list[IndexFile] = []
        slots, units = self.config.max_hash_slot_num, self.config.max_index_num
        for path in self.files.list_directory(self.config.index_path):
            if not path.name.isdigit():
                continue
            size_bytes = self.files.size(path)
            if size_bytes != index_file_bytes(slots, units):
                if self._is_being_made(path):
                    continue
                self.problems.append(
                    f"index: {path.name} has {size_bytes} bytes, {slots} slots and {units} units take "
                    f"{index_file_bytes(slots, units)}"
                )
                continue
            index_file = IndexFile(path, slots=slots, units=units, files=self.files)
            index_file.load()
            found.append(index_file)
        return found
