"""What the timer needs of the message store, and nothing more: tests give it a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from contrailmq.message import StoredMessage
from contrailmq.store.base.status import AppendResult, Copy
from contrailmq.store.config import StoreConfig


class TimerHost(Protocol):
    """What the timer needs of the message store."""

    config: StoreConfig

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        tags_code: int,
        keys: str | None,
        unique_key: str | None,
        flag: int = ...,
        sys_flag: int = ...,
        born_time_ms: int = ...,
        born_host: bytes = ...,
        store_host: bytes = ...,
        reconsume_times: int = ...,
        prepared_transaction_offset: int = ...,
    ) -> AppendResult: ...

    @property
    def append_copies(self) -> Callable[[Sequence[Copy]], int]: ...

    def is_resident(self, physical_offset: int) -> bool:
        """Whether a place of the log is in memory."""

    def read_cold(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        """A record as a copy that the calling thread reads from the disk."""

    def read_units(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tags code) of dispatched messages from a queue offset on."""

    def read_record(self, physical_offset: int, size_bytes: int | None = None) -> bytes | None: ...

    def read_log(self, offset: int, max_bytes: int) -> memoryview | None:
        """Readable bytes of the mapped log from an offset on, within one file."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def flush(self, offset: int) -> None:
        """Make the log durable up to an offset; blocks, and raises StoreError when that cannot be."""

    @property
    def log_min_offset(self) -> int: ...

    @property
    def log_max_offset(self) -> int: ...

    @property
    def dispatched_offset(self) -> int:
        """Messages of the log before it are in their queues."""


class Elsewhere(Protocol):
    """Another broker: where a slave that stands in for its master delivers, as its own log takes no messages."""

    def hand_over(self, messages: Sequence[tuple[StoredMessage, int]]) -> int:
        """How many of these, from the first on, another broker has; the others are on their way from now on.

        Each comes with the time at which it is due there, 0 for one that is due. To be asked again until all are there.
        """
