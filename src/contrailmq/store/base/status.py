"""What putting and getting can answer: RocketMQ's statuses, in RocketMQ's order, and the results that carry them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from contrailmq.message import StoredMessage, offset_message_id
from contrailmq.store.base.get_result import GetResult as GetResult
from contrailmq.store.base.get_result import GetStatus as GetStatus
from contrailmq.store.base.get_result import Limits as Limits


class PutStatus(enum.Enum):
    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    PUT_TO_REMOTE_BROKER_FAIL = 11
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    WHEEL_TIMER_FLOW_CONTROL = 13
    WHEEL_TIMER_MSG_ILLEGAL = 14
    WHEEL_TIMER_NOT_ENABLE = 15

    @property
    def is_stored(self) -> bool:
        """The message is in the log (RocketMQ counts such a put as ok even when a flush or a slave was late)."""
        return self in _STORED


_STORED = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)


class AppendResult(NamedTuple):
    """What the log did with one message. Not durable and not in its queue yet. `reason` says why not, where not."""

    status: PutStatus
    physical_offset: int = -1
    size_bytes: int = 0
    queue_offset: int = -1
    store_time_ms: int = 0
    reason: str = ""


class Copy(NamedTuple):
    """A record of the log that is to be written again. (A plain tuple where many are.)"""

    topic: str
    queue_id: int
    head_and_body: bytearray  # of the old record, with IPv4 hosts; its size, places and store time are overwritten
    properties: bytes
    tags_code: int
    keys: str | None
    unique_key: str | None
    tags: str | None
    sys_flag: int

    @property
    def record_bytes(self) -> int:
        """Of the new record, with the lengths of topic and properties."""
        return len(self.head_and_body) + len(self.topic.encode()) + len(self.properties) + 3


class BatchResult(NamedTuple):
    """What the log did with a batch: all or nothing. `queue_offset` is the first one, the others follow it."""

    status: PutStatus
    physical_offsets: Sequence[int] = ()
    size_bytes: int = 0
    queue_offset: int = -1
    store_time_ms: int = 0
    reason: str = ""


class PutResult(NamedTuple):
    """What an embedded put did. `message_id` is the unique id, `offset_message_id` says where the record lies.

    `append_ms` is the time until the record was in the log (RocketMQ's pagecacheRT): durability comes on top of it.
    """

    status: PutStatus
    message_id: str
    queue_id: int
    queue_offset: int = -1
    physical_offset: int = -1
    size_bytes: int = 0
    store_time_ms: int = 0
    store_host: bytes = b""
    reason: str = ""
    append_ms: int = 0

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.store_host, self.physical_offset) if self.physical_offset >= 0 else ""


class Arrival(NamedTuple):
    """A message became readable. `queue_offset` is its own; `properties` are its bytes in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_time_ms: int
    properties: bytes


class MessageFilter(Protocol):
    """Which messages a read wants. Both stages may say yes too often, never no too often."""

    def match_unit(self, tags_code: int, ext: object) -> bool:
        """By the queue unit alone; `ext` is the queue's extension unit, or None."""

    def match_record(self, record: memoryview) -> bool:
        """By the record."""


R_co = TypeVar("R_co", covariant=True)


class QueueRead(Protocol[R_co]):
    """Reading a queue from an offset on.

    An answer has at most the store's maxTransfer... messages and bytes. A reader that can take more says so:
    `bulk_bytes` raises the limit of bytes to its value, and `max_count` is then the limit of messages.
    """

    def __call__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int = ...,
        bulk_bytes: int = 0,
        filter: MessageFilter | None = None,
    ) -> R_co: ...


Read = QueueRead[GetResult]
WarmRead = QueueRead[GetResult | None]  # None: that would touch pages that are not in memory


class Messages(Sequence[StoredMessage]):
    """What an embedded get found: a sequence of messages with the status of the read."""

    __slots__ = ("_messages", "max_offset", "min_offset", "next_offset", "status")

    def __init__(
        self, status: GetStatus, next_offset: int, min_offset: int, max_offset: int, messages: list[StoredMessage]
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self._messages)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._messages[index]

    def __repr__(self) -> str:
        return f"<Messages {self.status.name}: {len(self)}, next {self.next_offset}>"
