"""Which parts of the log are in memory.

A page that is not stops the thread that touches it until the disk has answered: on a broker's loop that is everybody.
How far a place lies behind the end of the log says little after a restart, beside other programs, or when somebody
dropped the cache. So the kernel is asked (mincore), for a megabyte or two at a time and once a second for each; in
between it is a dictionary look-up.

What this process itself wrote lately is taken for resident without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from contrailmq.store.files import Files
from contrailmq.store.log.commit_log import CommitLog

CHUNK_BYTES: Final = 1 << 20
FRESH_BYTES: Final = 64 << 20  # written this lately: still there
VALID_MS: Final = 1_000
KNOWN_MAX: Final = 65_536


class Residency:
    """Used by whoever reads for a loop; owner: the Reader."""

    def __init__(self, files: Files, log: CommitLog, monotonic_ms: Callable[[], int]) -> None:
        self._files = files
        self._log = log
        self._monotonic_ms = monotonic_ms
        self._known: dict[int, int] = {}  # chunk -> until when it and the next one count as resident
        self._opened_at = 0

    def opened(self) -> None:
        """The log was recovered: what lies before its end was written by an earlier process."""
        self._opened_at = self._log.max_offset

    @property
    def fresh_from(self) -> int:
        return max(self._opened_at, self._log.max_offset - FRESH_BYTES)

    def is_resident(self, physical_offset: int) -> bool:
        """Can an answer that begins here be made without the disk? The chunk and the one behind it are looked at."""
        chunk = physical_offset // CHUNK_BYTES
        now_ms = self._monotonic_ms()
        if self._known.get(chunk, 0) > now_ms or physical_offset >= self.fresh_from:
            return True
        if not self._are_pages_resident(chunk * CHUNK_BYTES, (chunk + 2) * CHUNK_BYTES):
            return False
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[chunk] = now_ms + VALID_MS
        return True

    def _are_pages_resident(self, start: int, end: int) -> bool:
        start, end = max(start, self._log.min_offset), min(end, self._log.max_offset)
        while start < end:
            file = self._log.files.find(start)
            if file is None or not file.is_available:
                break
            size = min(end, file.base + file.read_position) - start
            if size <= 0:
                break
            try:
                if not self._files.is_resident(file.mapping, start - file.base, size):
                    return False
            except ValueError:  # being deleted just now: nothing of it will be touched
                break
            start += size
        return True
