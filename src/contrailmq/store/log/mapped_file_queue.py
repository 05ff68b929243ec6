"""The commit log as a row of files of one size: finding, flushing, cutting, deleting.

The list of files is replaced as a whole, never changed in place, so readers need no lock: whoever took it keeps a
consistent picture. Writers of the list (roll-over, cleaning, recovery) take `_guard`.

Names are start offsets (20 digits); file k follows file k-1 without a gap. Several directories are possible
(storePathCommitLog as a list): file number base / size goes to the writable directory of that number, round robin.
"""

from __future__ import annotations

import errno
import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrailmq.store.base.clock import Clock
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.files import Files
from contrailmq.store.log.mapped_file import FILE_NAME_DIGITS, MappedFile, file_name

_log = logging.getLogger(__name__)

TRUNCATE_FORCE_MS: Final = 0  # at start nobody reads: a file beyond the end goes at once
_ZEROS: Final = bytes(1 << 18)


class MappedFileQueue:
    """`flushed_where` and `committed_where` are log offsets; the flusher and the committer own them."""

    def __init__(self, files: Files, clock: Clock, directories: tuple[Path, ...], file_bytes: int) -> None:
        assert file_bytes > 0
        self._files_layer = files
        self._clock = clock
        self.directories = directories
        self.file_bytes = file_bytes
        self.files: tuple[MappedFile, ...] = ()
        self.flushed_where = 0
        self.committed_where = 0
        self.store_time_ms = 0  # store time of the newest data that a thorough flush covered
        self._guard = threading.Lock()

    # --- opening

    def load(self, *, is_slave: bool = False) -> None:
        """Take up the files that exist. One empty last file is removed; any other odd size stops the start."""
        found: list[Path] = []
        for directory in self.directories:
            self._files_layer.make_directory(directory)
            found += [path for path in self._files_layer.list_directory(directory) if self._files_layer.is_file(path)]
        found.sort(key=lambda path: path.name)
        files: list[MappedFile] = []
        for index, path in enumerate(found):
            if len(path.name) != FILE_NAME_DIGITS or not path.name.isdigit():
                raise CorruptStoreError(path, "a commit-log file has a name of 20 digits: move this file elsewhere")
            size_bytes = self._files_layer.size(path)
            if size_bytes == 0 and index == len(found) - 1:
                self._files_layer.unlink(path)
                self._files_layer.sync_directory(path.parent)
                continue
            if size_bytes != self.file_bytes:
                raise self._odd_size(found, path, size_bytes)
            files.append(MappedFile.open(self._files_layer, path, self.file_bytes))
        if is_slave:
            self._drop_unused(files)
        self.files = tuple(files)
        for before, after in itertools.pairwise(files):
            if before.end != after.base:
                _log.error("%s: the log has a gap before this file (expected %s)", after.path, file_name(before.end))

    def _drop_unused(self, files: list[MappedFile]) -> None:
        """Remove what was made for the begin of a slave's log and never used: files of zeros from offset 0 on, with a
        gap or nothing behind them. An empty slave begins with its master's newest file, wherever that is."""
        unused = [file for number, file in enumerate(files) if file.base == number * self.file_bytes]
        if not all(_is_zero(file) for file in unused):
            return
        for file in reversed(unused):  # newest first: what a crash leaves is found again
            _log.warning("%s: made for a log that does not begin here, nothing but zeros: removed", file.path)
            file.destroy(self._clock.monotonic_ms(), force_after_ms=TRUNCATE_FORCE_MS)
            self._files_layer.sync_directory(file.path.parent)
            files.remove(file)

    def _odd_size(self, found: list[Path], path: Path, size_bytes: int) -> CorruptStoreError:
        """The error for a file of another size than we go by: its own fault, or that of the one we took ours from."""
        by_name = int(found[1].name) - int(found[0].name) if len(found) > 1 and found[1].name.isdigit() else 0
        if size_bytes == by_name:
            first_bytes = self._files_layer.size(found[0])
            if first_bytes == self.file_bytes:
                return CorruptStoreError(
                    found[0],
                    f"has {first_bytes} bytes, but the next file begins {by_name} bytes behind it: restore the file, "
                    f"or cut it to {by_name} bytes",
                )
        return CorruptStoreError(
            path,
            f"has {size_bytes} bytes, mappedFileSizeCommitLog is {self.file_bytes}: "
            "set the size it was written with, or restore the file",
        )

    def path_of(self, base: int, is_usable: Callable[[Path], bool] = lambda _: True) -> Path:
        """Where the file of this base lies or is to be made."""
        usable = [directory for directory in self.directories if is_usable(directory)] or list(self.directories)
        return usable[base // self.file_bytes % len(usable)] / file_name(base)

    def add(self, file: MappedFile) -> None:
        with self._guard:
            assert not self.files or file.base == self.files[-1].end, "log files follow each other"
            self.files = (*self.files, file)

    # --- where things are

    @property
    def last(self) -> MappedFile | None:
        files = self.files
        return files[-1] if files else None

    @property
    def min_offset(self) -> int:
        """Start of the first file that may be read; -1 when there is none. A file being deleted does not count."""
        files = self.files
        if not files:
            return -1
        return files[0].base if files[0].is_available else files[0].end

    @property
    def max_offset(self) -> int:
        """End of the readable data. It lies in an earlier file while the write buffer of that one is not committed to
        its end: what was appended behind it may be in its file already, but nobody may be told of it yet."""
        files = self.files
        if not files:
            return 0
        number = len(files) - 1
        while number and files[number - 1].write_buffer is not None and files[number - 1].committed < self.file_bytes:
            number -= 1
        return files[number].base + files[number].read_position

    @property
    def wrote_offset(self) -> int:
        """End of the appended data, committed or not."""
        last = self.last
        return last.base + last.wrote if last else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds this offset, also when it is beyond the data but inside the last file."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].base) // self.file_bytes
        if 0 <= index < len(files) and files[index].base <= offset < files[index].base + self.file_bytes:
            return files[index]
        return next((file for file in files if file.base <= offset < file.end), None)  # only across a gap

    # --- moving marks

    def flush(self, least_pages: int) -> bool:
        """Sync from `flushed_where` on, file by file; True when it moved. OSError: see MappedFile.flush."""
        start = self.flushed_where
        while (file := self._at_mark(self.flushed_where)) is not None:
            store_time_ms = file.store_time_ms
            where = file.base + file.flush(least_pages)
            moved = where > self.flushed_where
            self.flushed_where = max(where, self.flushed_where)
            if moved and least_pages == 0:
                self.store_time_ms = store_time_ms
            if not moved or where < file.end:
                break
        return self.flushed_where > start

    def commit(self, least_pages: int) -> list[MappedFile]:
        """Copy write buffers to their files; the files that moved."""
        moved: list[MappedFile] = []
        while (file := self._at_mark(self.committed_where)) is not None:
            if file.write_buffer is None:
                self.committed_where = file.base + file.wrote
            elif file.commit(least_pages):
                moved.append(file)
                self.committed_where = file.base + file.committed
            if self.committed_where < file.end or file is self.last:
                break
        return moved

    def _at_mark(self, where: int) -> MappedFile | None:
        files = self.files
        if not files:
            return None
        if files[-1].base <= where < files[-1].end:  # nearly always
            return files[-1]
        return files[0] if where < files[0].base else self.find(where)

    # --- removing

    def truncate_dirty_files(self, offset: int) -> int:
        """Cut the log at `offset`: later files go, the one that holds it ends there. How many files were removed."""
        kept: list[MappedFile] = []
        removed: list[MappedFile] = []
        for file in self.files:
            if file.end <= offset:
                kept.append(file)
            elif file.base <= offset:
                file.cut(offset - file.base)
                kept.append(file)
            else:
                removed.append(file)
        with self._guard:
            self.files = tuple(kept)
        for file in reversed(removed):  # newest first: a crash in the middle leaves no gap
            file.destroy(self._clock.monotonic_ms(), force_after_ms=TRUNCATE_FORCE_MS)
            self._files_layer.sync_directory(file.path.parent)
        self.flushed_where = self.committed_where = offset
        return len(removed)

    def delete_expired(
        self, *, reserved_ms: int, force_after_ms: int, count_max: int, at_once: bool = False
    ) -> list[Path]:
        """Remove the oldest files past their time (any age with `at_once`), never the last one; what was removed.

        Stops at a file that is still in use; `retry_first` takes that one up again.
        """
        removed: list[Path] = []
        while len(removed) < count_max and len(self.files) > 1:
            file = self.files[0]
            if not at_once and self._clock.now_ms() < self._files_layer.mtime_ms(file.path) + reserved_ms:
                break
            if not self._remove_first(file, force_after_ms):
                break
            removed.append(file.path)
        return removed

    def retry_first(self, *, force_after_ms: int) -> bool:
        """Second round for a first file that was in use when it was to be deleted; True when it is gone."""
        files = self.files
        if len(files) < 2 or files[0].is_available:
            return False
        return self._remove_first(files[0], force_after_ms)

    def _remove_first(self, file: MappedFile, force_after_ms: int) -> bool:
        try:
            gone = file.destroy(self._clock.monotonic_ms(), force_after_ms=force_after_ms)
        except OSError as exc:
            if exc.errno != errno.ENOENT:
                _log.warning("%s: cannot delete: %s", file.path, exc)
                return False
            gone = True
        if gone:
            with self._guard:
                self.files = tuple(other for other in self.files if other is not file)
            self._files_layer.sync_directory(file.path.parent)
        return gone

    def close(self) -> None:
        """Unmap everything that no reader uses; views that are still out keep their mapping alive."""
        with self._guard:
            for file in self.files:
                file.close()
            self.files = ()


def _is_zero(file: MappedFile) -> bool:
    steps = range(0, file.size_bytes, len(_ZEROS))
    return all(_ZEROS.startswith(file.mapping[begin : begin + len(_ZEROS)]) for begin in steps)
