"""One file of the commit log: a fixed size, a mapping, three positions.

    0 <= flushed <= committed <= wrote <= size        (committed means something only with a write buffer)

Append moves `wrote`, a sync moves `flushed`. With a write buffer (write_buffer_pool.py) append fills the buffer and
`commit` copies it to the file with pwrite; only committed bytes may be read then. Readers look at `read_position` only.
Readers get memoryviews of the mapping, which cannot be closed while one is alive: the interpreter counts them. Work on
the descriptor (sync, commit, pread in a worker) uses `hold()` and `release()`. `destroy` refuses new readers and
removes the file when nobody is left. RocketMQ unmaps by force after an interval; here only the name goes then, so
nothing faults. A file written through its mapping needs real blocks (`ensure_allocated`), or a full disk is a SIGBUS.
Files of `allocation.py` have them; those found at start may be sparse (Apache's are).
"""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from typing import Final

from contrailmq.store.files import PAGE_BYTES, Files

FILE_NAME_DIGITS: Final = 20


def file_name(base: int) -> str:
    """RocketMQ's name of the file that starts at this offset: twenty digits."""
    assert base >= 0
    return f"{base:0{FILE_NAME_DIGITS}d}"


class ByCall:
    """Takes bytes like a mapping, and writes them with pwrite; readers of the mapping see them at once.

    For SYNC_FLUSH. A store to a mapping makes the whole folio dirty, and in a file that was written ahead a folio has
    up to a megabyte, all of which the next sync writes; a call makes only the blocks dirty that it touched.
    """

    __slots__ = ("_descriptor", "_files")

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor

    def __setitem__(self, where: slice, data: bytes | memoryview) -> None:
        self._files.pwrite(self._descriptor, data, where.start)


class MappedFile:
    """Positions are owned by the single writer (`wrote`), the committer (`committed`) and the flusher (`flushed`)."""

    __slots__ = (
        "_files",
        "_guard",
        "_holds",
        "_is_allocated",
        "base",
        "committed",
        "descriptor",
        "first_unavailable_ms",
        "flushed",
        "is_available",
        "is_locked_in_memory",
        "mapping",
        "path",
        "size_bytes",
        "store_time_ms",
        "target",
        "view",
        "write_buffer",
        "wrote",
    )

    def __init__(
        self,
        files: Files,
        path: Path,
        size_bytes: int,
        *,
        descriptor: int,
        is_allocated: bool = False,
        write_buffer: mmap.mmap | None = None,
    ) -> None:
        """Takes over `descriptor`. The positions start at 0."""
        self._files = files
        self.path = path
        self.base = int(path.name)
        self.size_bytes = size_bytes
        self.descriptor = descriptor
        self.mapping = files.map(descriptor, size_bytes, writable=True)
        self.view = memoryview(self.mapping)  # of readers; ValueError once the file is being destroyed
        self.write_buffer = write_buffer
        # where append puts its bytes
        self.target: mmap.mmap | ByCall = self.mapping if write_buffer is None else write_buffer
        self.wrote = self.committed = self.flushed = 0
        self.store_time_ms = 0  # store time of the last append; 0 after a load
        self.is_available = True
        self.is_locked_in_memory = False
        self.first_unavailable_ms = -1
        self._is_allocated = is_allocated
        self._guard = threading.Lock()
        self._holds = 0

    @classmethod
    def open(cls, files: Files, path: Path, size_bytes: int) -> MappedFile:
        """An existing file of full size; all positions at its end until recovery says where the data ends."""
        descriptor = files.open(path)
        try:
            file = cls(files, path, size_bytes, descriptor=descriptor)
        except OSError:
            files.close(descriptor)
            raise
        file.set_positions(size_bytes)
        return file

    @property
    def end(self) -> int:
        """The offset just after this file."""
        return self.base + self.size_bytes

    @property
    def is_full(self) -> bool:
        return self.wrote == self.size_bytes

    @property
    def read_position(self) -> int:
        return self.wrote if self.write_buffer is None else self.committed

    def set_positions(self, position: int) -> None:
        assert 0 <= position <= self.size_bytes
        self.wrote = self.committed = self.flushed = position

    # --- reading

    def select(self, position: int, size_bytes: int) -> memoryview | None:
        """The readable bytes [position, position + size), or None when they are not all there or the file is going."""
        end = position + size_bytes
        if position < 0 or end > self.read_position or not self.is_available:
            return None
        try:
            return self.view[position:end]
        except ValueError:  # released by destroy just now
            return None

    def pread(self, position: int, size_bytes: int) -> bytes | None:
        """As `select`, but copied from the disk by the calling thread, without touching the mapping."""
        if position < 0 or position + size_bytes > self.read_position or not self.hold():
            return None
        try:
            data = self._files.pread(self.descriptor, size_bytes, position)
        finally:
            self.release()
        return data if len(data) == size_bytes else None

    # --- writing

    def write_by_call(self) -> None:
        """Append with pwrite instead of through the mapping, unless there is a write buffer."""
        if self.write_buffer is None:
            self.target = ByCall(self._files, self.descriptor)

    def ensure_allocated(self) -> None:
        """Give the file real blocks before it is written through its mapping; OSError when the disk is full."""
        if not self._is_allocated:
            self._files.allocate(self.descriptor, self.size_bytes)
            self._is_allocated = True

    def commit(self, least_pages: int) -> bool:
        """Copy the write buffer's new bytes to the file; True when something moved."""
        buffer = self.write_buffer
        position = self.wrote
        if buffer is None or not _is_due(position, self.committed, least_pages, self.size_bytes) or not self.hold():
            return False
        try:
            view = memoryview(buffer)
            self._files.pwrite(self.descriptor, view[self.committed : position], self.committed)
            view.release()
        finally:
            self.release()
        self.committed = position
        return True

    def detach_write_buffer(self) -> mmap.mmap | None:
        """Give the buffer back once every byte of a full file is committed."""
        buffer = self.write_buffer
        if buffer is None or self.committed != self.size_bytes:
            return None
        self.write_buffer, self.target = None, self.mapping
        return buffer

    def flush(self, least_pages: int) -> int:
        """Sync what is readable, if at least that many pages are due (0: whatever there is); the flushed position.

        The position is read before the sync, so nothing that arrives meanwhile is counted. An OSError leaves `flushed`
        where it was, and the caller must treat it as final.
        """
        position = self.read_position
        if not _is_due(position, self.flushed, least_pages, self.size_bytes):
            return self.flushed
        if not self.hold():
            self.flushed = position  # being destroyed: nobody will read it
            return position
        try:
            self._files.sync(self.descriptor)
        finally:
            self.release()
        self.flushed = position
        return position

    def cut(self, position: int) -> None:
        """Make `position` the end of the data, and make sure that nothing after it looks like a record.

        RocketMQ leaves old bytes past the end; a later, shorter log can line up with one of those records and bring
        it back at the next recovery. Eight zero bytes (no size, no magic) stop every reader, Apache's included.
        """
        self.set_positions(position)
        zeros = bytes(min(8, self.size_bytes - position))
        if zeros and self.view[position : position + len(zeros)] != zeros:
            self._files.pwrite(self.descriptor, zeros, position)
            self._files.sync(self.descriptor)

    # --- lifetime

    def hold(self) -> bool:
        """Keep the descriptor open until `release`; False when the file is being destroyed."""
        with self._guard:
            if not self.is_available:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        with self._guard:
            assert self._holds > 0
            self._holds -= 1
            if not self._holds and not self.is_available:
                self._close_descriptor()

    def destroy(self, now_ms: int, *, force_after_ms: int) -> bool:
        """Remove the file; False while someone uses it (call again later; after the interval its name goes anyway)."""
        if self.first_unavailable_ms < 0:
            self.first_unavailable_ms = now_ms
        is_forced = now_ms - self.first_unavailable_ms >= force_after_ms
        if not self.close() and not is_forced:
            return False
        self._files.unlink(self.path)
        return True

    def close(self) -> bool:
        """Unmap and close; False while someone uses it. New readers are refused from the first call on.

        A view keeps the mapping and not the descriptor: nobody might come back for that when the view is gone.
        """
        with self._guard:
            self.is_available = False
            self.view.release()
            if self._holds:
                return False
            self._close_descriptor()
            return self.mapping.closed or self._files.unmap(self.mapping)

    def _close_descriptor(self) -> None:
        if self.descriptor >= 0:
            self._files.close(self.descriptor)
            self.descriptor = -1


def _is_due(position: int, done: int, least_pages: int, size_bytes: int) -> bool:
    """RocketMQ's page rule: whole pages between both ends, not the byte difference in pages."""
    if position == size_bytes and position > done:
        return True
    if least_pages > 0:
        return position // PAGE_BYTES - done // PAGE_BYTES >= least_pages
    return position > done
