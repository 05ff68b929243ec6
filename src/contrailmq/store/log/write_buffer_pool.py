"""RocketMQ's TransientStorePool: buffers in front of the commit log's newest files.

With `transient_store_pool_enable`, append writes into a buffer of one file's size, and a committer copies it to the
file with pwrite every 200 ms or 4 pages. That takes page faults and writeback out of the put path. The price: what was
not committed is lost with the process, not only with the machine. Readers, dispatch and replication see committed
bytes only.

Buffers are anonymous mappings (their pages exist when first written), locked in memory where the limit allows. When
the pool is empty the next file is written through its mapping, as RocketMQ 4.x does (5.x would never commit it); with
`fast_fail_if_no_buffer_in_store_pool` the put is refused instead.
"""

from __future__ import annotations

import logging
import mmap
import threading
from typing import Final

from contrailmq.store.files import Files

_log = logging.getLogger(__name__)

LOW_WATER_RATIO: Final = 0.4  # RocketMQ warns below this


class WriteBufferPool:
    """Thread-safe; borrowed from and returned to the front, so that a warm buffer is used first."""

    def __init__(self, files: Files, *, buffer_count: int, buffer_bytes: int) -> None:
        self._files = files
        self._count = buffer_count
        self._guard = threading.Lock()
        self._free = [files.map_memory(buffer_bytes) for _ in range(buffer_count)]
        for buffer in self._free:
            try:
                files.lock_memory(buffer)
            except OSError as exc:
                _log.warning("write buffer of %d bytes is not locked in memory: %s", buffer_bytes, exc)
                break

    @property
    def free_count(self) -> int:
        return len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """A buffer, or None when all are in use."""
        with self._guard:
            buffer = self._free.pop() if self._free else None
        if len(self._free) < self._count * LOW_WATER_RATIO:
            _log.warning("write buffer pool: %d of %d buffers are left", len(self._free), self._count)
        return buffer

    def give_back(self, buffer: mmap.mmap) -> None:
        with self._guard:
            self._free.append(buffer)

    def close(self) -> None:
        with self._guard:
            for buffer in self._free:
                self._files.unmap(buffer)
            self._free.clear()
