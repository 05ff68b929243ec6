"""A store opened from its parts, with a log that is nothing but mapped files: for tests of queues, index, recovery.

`MessageStore` adds writing, flushing and threads. Leaving those out keeps the tests of recovery fast enough to try
every byte of a record, and independent of how the log is written.
"""

from __future__ import annotations

import mmap
import shutil
import tarfile
from pathlib import Path

from contrailmq.message.codec import encode_blank, encode_record
from contrailmq.message.record import read_store_time
from contrailmq.store import Files, ManualClock, RecoveryReport, StoreConfig, recover
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.recovery.checkpoint import Checkpoint
from contrailmq.store.recovery.queue_ledger import read_ledger, take_ledger, write_ledger
from contrailmq.store.recovery.recovery import load_index

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
GOLDEN_STORES = sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("store-*.tar.gz"))


def unpack_golden(name: str, directory: Path) -> Path:
    """A private copy of a golden store; its root."""
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # 3.11.4 has it
        archive.extractall(directory)
    (directory / "store" / "timerwheel").unlink(missing_ok=True)  # 38 MB that recovery does not look at
    return directory / "store"


class QuickFiles(Files):
    """Does not wait for the disk: these tests cut power by damaging files, not by forgetting pages."""

    def sync(self, descriptor: int) -> None:
        """Nothing to wait for."""

    def sync_directory(self, path: Path) -> None:
        """Nothing to wait for."""


class PlainLogFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = int(path.name)
        self.size_bytes = path.stat().st_size
        with path.open("r+b") as file:
            self.mapping = mmap.mmap(file.fileno(), self.size_bytes)


class PlainLog:
    def __init__(self, directory: Path) -> None:
        self.files = [PlainLogFile(path) for path in sorted(directory.glob("[0-9]*"))]

    def truncate_dirty_files(self, offset: int, /) -> int:
        later = [file for file in self.files if file.base > offset]
        for file in later:
            file.mapping.close()
            file.path.unlink()
            self.files.remove(file)
        return len(later)

    def store_time_of(self, physical_offset: int, _size_bytes: int) -> int:
        for file in self.files:
            if file.base <= physical_offset < file.base + file.size_bytes:
                return read_store_time(file.mapping, physical_offset - file.base)
        return -1

    def close(self) -> None:
        for file in self.files:
            file.mapping.close()


class PlainStore:
    """Log, queues and index of one directory, recovered."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.files = QuickFiles()
        self.config = StoreConfig(root, **settings).resolved(self.files)
        self.log = PlainLog(root / "commitlog")
        self.queues = ConsumeQueueTable(
            self.config.consume_queue_path,
            file_bytes=self.config.mapped_file_size_consume_queue,
            files=self.files,
            open_files_max=64,
        )
        self.index = IndexService(
            self.config.index_path,
            slots=self.config.max_hash_slot_num,
            units=self.config.max_index_num,
            files=self.files,
            clock=ManualClock(),
        )
        self.checkpoint = Checkpoint(self.config.checkpoint_path, self.files)
        self.recovery = self._recover()

    def _recover(self) -> RecoveryReport:
        was_clean_exit = not self.config.abort_path.exists()
        damaged = self.queues.load()
        checkpoint = self.checkpoint.load()
        ledger = read_ledger(self.root, self.files)
        boot_id = self.files.boot_id()
        index_damage = load_index(
            self.index, checkpoint, ledger, self.log.files, was_clean_exit=was_clean_exit, boot_id=boot_id
        )
        return recover(
            self.log,
            self.queues,
            self.index,
            checkpoint=checkpoint,
            ledger=ledger,
            was_clean_exit=was_clean_exit,
            delay_levels=DelayLevels(self.config.message_delay_level),
            damaged=damaged,
            index_damage=index_damage,
        )

    def close(self) -> None:
        """As after a clean exit."""
        mark = self.queues.flush()
        self.index.flush()
        ledger = take_ledger(self.queues, self.index, mark, self.log.files, boot_id=self.files.boot_id())
        write_ledger(self.root, ledger, self.files)
        self.checkpoint.physic_msg_time_ms = max(self.checkpoint.physic_msg_time_ms, mark.store_time_ms)
        self.checkpoint.logics_msg_time_ms = max(self.checkpoint.logics_msg_time_ms, mark.store_time_ms)
        self.checkpoint.logics_physical_offset = max(self.checkpoint.logics_physical_offset, mark.physical_offset)
        self.checkpoint.flush()
        self.config.abort_path.unlink(missing_ok=True)
        self.drop()

    def drop(self) -> None:
        """As after a crash: nothing is written."""
        self.queues.close()
        self.index.close()
        self.log.close()

    def ranges(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in self.queues}

    def units(self) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
        return {
            (queue.topic, queue.queue_id): [tuple(unit) for _, unit in queue.scan(queue.min_offset, queue.max_offset)]
            for queue in self.queues
        }


def reopened(root: Path) -> PlainStore:
    """Open, close, and open again: for what must be stable."""
    PlainStore(root).close()
    return PlainStore(root)


def queue_files(root: Path) -> dict[str, bytes]:
    """Every consume queue file, by its path below the root."""
    found = sorted((root / "consumequeue").rglob("[0-9]" * 20))
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


class LogWriter:
    """Writes commit-log files for tests, with the store's own encoder, and knows what it wrote."""

    def __init__(self, root: Path, *, file_bytes: int = 4096, first_base: int = 0) -> None:
        self.directory = root / "commitlog"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file_bytes = file_bytes
        self.end = first_base
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.records: list[tuple[str, int, int, int, int]] = []  # topic, queue id, queue offset, physical, size
        self.time_ms = 1_700_000_000_000

    def add(
        self, topic: str = "Orders", queue_id: int = 0, body: bytes = b"x" * 100, properties: bytes = b""
    ) -> tuple[int, int]:
        """One record; its physical offset and size."""
        queue_offset = self.next_offsets.get((topic, queue_id), 0)
        record = self._encode(topic, queue_id, queue_offset, body, properties)
        free = self.file_bytes - self.end % self.file_bytes
        if len(record) + 8 > free:
            self._write(encode_blank(free))
            self.end += free
            record = self._encode(topic, queue_id, queue_offset, body, properties)
        physical_offset = self.end
        self._write(record)
        self.end += len(record)
        self.next_offsets[topic, queue_id] = queue_offset + 1
        self.records.append((topic, queue_id, queue_offset, physical_offset, len(record)))
        self.time_ms += 10
        return physical_offset, len(record)

    def _encode(self, topic: str, queue_id: int, queue_offset: int, body: bytes, properties: bytes) -> bytes:
        host = bytes([127, 0, 0, 1, 0, 0, 42, 159])
        return encode_record(
            topic,
            body,
            properties,
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=self.end,
            born_host=host,
            store_host=host,
            born_time_ms=self.time_ms,
            store_time_ms=self.time_ms,
        )

    def _write(self, data: bytes) -> None:
        base = self.end - self.end % self.file_bytes
        path = self.directory / f"{base:020d}"
        if not path.exists():
            path.write_bytes(bytes(self.file_bytes))
        with path.open("r+b") as file:
            file.seek(self.end - base)
            file.write(data)

    def path_of(self, physical_offset: int) -> tuple[Path, int]:
        """The file that holds an offset, and the position in it."""
        base = physical_offset - physical_offset % self.file_bytes
        return self.directory / f"{base:020d}", physical_offset - base


def copy_store(source: Path, target: Path) -> Path:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    return target
