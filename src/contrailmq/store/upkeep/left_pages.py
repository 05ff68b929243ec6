"""Pages of the log that this process has left behind.

A page of a mapped file counts as this process's memory from the first touch on, until the kernel wants it for others.
So a broker that has written 10 GB seems to use 10 GB, a container with a limit kills it, and a leak would not be seen.
Here the mapping lets go of pages that are durable and lie well before the end of the log. Nothing is
written and nothing is forgotten: the bytes stay in the page cache (`Files.is_resident` still finds them there), and a
reader who comes back meets one minor fault per 64 KiB (0.3 us).

It does so once a second for what was written since, and once a minute for all, because readers of older messages
touch pages again. That takes 40 us per MiB that was held and 40 us per GiB that was not, beside the interpreter lock.
"""

from __future__ import annotations

from typing import Final

from contrailmq.store.base.clock import Clock
from contrailmq.store.files import Files
from contrailmq.store.log.mapped_file_queue import MappedFileQueue

KEPT_BYTES: Final = 64 << 20  # before the end: where nearly all reading is
STEP_BYTES: Final = 1 << 20
SWEEP_MS: Final = 60_000


class LeftPages:
    """Owner: the housekeeping thread."""

    def __init__(self, files: Files, clock: Clock, log_files: MappedFileQueue, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._files = files
        self._clock = clock
        self._log_files = log_files
        self._kept_bytes = kept_bytes
        self._released_to = 0
        self._swept_ms = clock.monotonic_ms()

    def tick(self) -> None:
        """Let go of what was left behind since the last call."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms, self._released_to = now_ms, 0
        end = min(self._log_files.flushed_where, self._log_files.max_offset - self._kept_bytes)
        for file in self._log_files.files:
            start, stop = max(self._released_to, file.base), min(end, file.end)
            if stop < file.end:
                stop -= (stop - file.base) % STEP_BYTES
            if start < stop and not file.is_locked_in_memory and file.hold():
                try:
                    self._files.release_pages(file.mapping, start - file.base, stop - start)
                finally:
                    file.release()
                self._released_to = stop
