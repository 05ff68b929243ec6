"""A journal of deliveries: how far a service has come, so that a crash repeats little.

    entry := size:i32  crc:i32  run:i64  number:i32  copy_offset:i64  copy_time_ms:i64  payload       (big-endian)

`crc` covers what follows it, `number` counts the entries of a run from 0, `payload` is the service's. The files that
RocketMQ uses (`delayOffset.json`, `timercheck`) need several syncs and are written every second or ten. So a service
also writes an entry here after each group of copies: one `pwrite`, no sync. It survives a kill, so a kill repeats only
the group that it interrupted. A power failure may keep the journal and take the end of the log. So an entry names a
witness, the last copy before it, by place and store time, and counts only if that record is there (`stands`).
Otherwise an older entry or the saved file counts: a repeat, never a loss. The witness also exposes the journal of
another store, since no record gets an old store time.

Runs go to two files in turn. The previous run stays until the new one has grown, because with the write buffer pool the
newest copies may not be in the log file yet. A service clears the journal when it opens, after saving what it took, and
when it stops; a stopped broker therefore honours what an operator changes in RocketMQ's files. A group costs 25 us for
18 delay levels, or 7 us for timers and 0.05 us for each. A journal that cannot be written is reported once.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from contrailmq.message.checksum import crc32
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.store.files import Files

log = logging.getLogger("contrailmq.store")

_HEAD: Final = struct.Struct(">iIqiqq")
HEAD_BYTES: Final = 36
assert _HEAD.size == HEAD_BYTES
_CRC_END: Final = 8  # the checksum covers everything after it
RUN_BYTES_MAX: Final = 1 << 20  # of a file that is kept when a run begins in it
_NAMES: Final = (".0", ".1")


class CopyPlace(NamedTuple):
    """A record that was written to the log: a witness."""

    physical_offset: int
    store_time_ms: int


class Entry(NamedTuple):
    copy: CopyPlace
    payload: bytes


Run = Sequence[Entry]


class EntryPlace(NamedTuple):
    """Where an entry goes or would go. Later entries are at greater places."""

    run: int
    number: int


class RecordSource(Protocol):
    """What is asked for the witnesses."""

    def read_record(self, physical_offset: int, size_bytes: int | None = None) -> bytes | None: ...


def stands(store: RecordSource, place: CopyPlace) -> bool:
    """Whether that very record is in the log."""
    record = store.read_record(place.physical_offset)
    try:
        message = None if record is None else decode_record(record)
    except CorruptRecordError:
        return False
    return message is not None and (message.physical_offset, message.store_time_ms) == place


class Journal:
    """Two files, `path` with .0 and .1 appended. Owner: one service, on one thread."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._paths = [path.with_name(path.name + suffix) for suffix in _NAMES]
        self._descriptors: list[int] = []
        self._run = 0
        self._newest_run = 0  # that has an entry
        self._number = 0
        self._position = 0
        self._is_failing = False
        self.unread: OSError | None = None  # why a file that was there when it was opened could not be read

    # --- life

    def open(self, *, after_run: int = 0) -> list[Run]:
        """The runs of an earlier life, the newest first. Without a disk that takes it, nothing is kept or found.

        `after_run` is one that an earlier life began, where somebody remembers that: new ones get greater numbers.
        """
        found: dict[int, Run] = {}
        self.unread = None
        is_there = False
        try:
            self._files.make_directory(self._paths[0].parent)
            for path in self._paths:
                is_there = self._files.exists(path)
                self._descriptors.append(self._files.open(path, create=True))
                found |= self._read(self._descriptors[-1])
        except OSError as exc:
            self.unread = exc if is_there else None
            self._fail(exc)
            self.close()
        self._newest_run = max(found, default=0)
        self._run = max(self._newest_run, after_run)
        self.restart()
        return [found[run] for run in sorted(found, reverse=True)]

    def clear(self) -> None:
        """Forget everything, durably: what it said is saved elsewhere.

        The newest run goes last. A kill in between would else leave the one before, which would count as the newest.
        """
        newest = self._newest_run % len(_NAMES)
        try:
            for _, descriptor in sorted(enumerate(self._descriptors), key=lambda file: file[0] == newest):
                if self._files.size(descriptor):
                    self._files.truncate(descriptor, 0)
                    self._files.sync(descriptor)
        except OSError as exc:
            self._fail(exc)
        self.restart()

    def sync(self) -> None:
        """Make durable what was written so far; OSError when the disk refuses. Blocks; any thread may call it."""
        for path in self._paths:
            try:
                descriptor = self._files.open(path)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            try:
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)

    def close(self) -> None:
        """Let go of the files as they are."""
        while self._descriptors:
            self._files.close(self._descriptors.pop())

    # --- writing

    def restart(self) -> None:
        """The next entry begins a run."""
        self._run += 1
        self._number = self._position = 0

    def append(self, copy: CopyPlace, payload: bytes) -> bool:
        """Add an entry; False when the disk does not take it."""
        if not self._descriptors:
            return False
        descriptor = self._descriptors[self._run % len(_NAMES)]
        entry = _encode(self._run, self._number, copy, payload)
        try:
            if not self._number and self._files.size(descriptor) > RUN_BYTES_MAX:
                self._files.truncate(descriptor, 0)
            self._files.pwrite(descriptor, entry, self._position)
        except OSError as exc:
            self._fail(exc)
            return False
        self._newest_run = self._run
        self._number += 1
        self._position += len(entry)
        if self._is_failing:
            self._is_failing = False
            log.info("deliveries are written to %s again", self._paths[0].parent)
        return True

    @property
    def run_bytes(self) -> int:
        return self._position

    @property
    def place(self) -> EntryPlace:
        """Of the next entry."""
        return EntryPlace(self._run, self._number)

    @property
    def newest_run(self) -> int:
        """The number of the newest run that has an entry; 0 when none has."""
        return self._newest_run

    def _fail(self, error: OSError) -> None:
        if not self._is_failing:
            log.error(
                "%s is not written: %s; until it is, a crash repeats what was delivered since the last save: free or "
                "mend the disk",
                self._paths[self._run % len(_NAMES)],
                error,
            )
        self._is_failing = True

    def _read(self, descriptor: int) -> dict[int, Run]:
        data = self._files.pread(descriptor, self._files.size(descriptor), 0)
        found: dict[int, list[Entry]] = {}
        for run, entry in _entries(data):
            found.setdefault(run, []).append(entry)
        return dict(found)


def _encode(run: int, number: int, copy: CopyPlace, payload: bytes) -> bytes:
    size = HEAD_BYTES + len(payload)
    entry = _HEAD.pack(size, 0, run, number, *copy) + payload
    crc = crc32(entry[_CRC_END:]) & 0xFFFFFFFF
    return _HEAD.pack(size, crc, run, number, *copy) + payload


def _entries(data: bytes) -> Iterator[tuple[int, Entry]]:
    """The run that begins a file, up to what is torn or of an older one."""
    position = expected = 0
    first_run = -1
    while position + HEAD_BYTES <= len(data):
        size, crc, run, number, copy_offset, copy_time_ms = _HEAD.unpack_from(data, position)
        if not HEAD_BYTES <= size <= len(data) - position:
            return
        if crc32(data[position + _CRC_END : position + size]) & 0xFFFFFFFF != crc or number != expected:
            return
        first_run = run if first_run < 0 else first_run
        if run != first_run:
            return
        yield run, Entry(CopyPlace(copy_offset, copy_time_ms), data[position + HEAD_BYTES : position + size])
        position += size
        expected += 1
