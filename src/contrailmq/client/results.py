"""What calls give back and what listeners answer: values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from contrailmq.message import MessageQueue


class SendStatus(enum.Enum):
    """How far the message got. All four mean that the master stored it: none is an error."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"


class SendResult(NamedTuple):
    """The broker's acknowledgement.

    `message_id` is the unique id that consumers see (of a batch: all of them, joined by commas); `offset_message_id`
    is the physical place. `queue_offset` of a batch is that of its first message.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    is_trace_on: bool = True
    recall_handle: str | None = None


class TransactionState(enum.Enum):
    """What became of the local transaction. UNKNOWN makes the broker ask again later."""

    COMMIT = 8
    ROLLBACK = 12
    UNKNOWN = 0


class TransactionResult(NamedTuple):
    """A half message's acknowledgement and the state that was reported for it."""

    send_result: SendResult
    state: TransactionState

    @property
    def status(self) -> SendStatus:
        return self.send_result.status

    @property
    def message_id(self) -> str:
        return self.send_result.message_id

    @property
    def queue(self) -> MessageQueue:
        return self.send_result.queue

    @property
    def queue_offset(self) -> int:
        return self.send_result.queue_offset


class MessageModel(enum.Enum):
    """CLUSTERING: each message to one member of the group. BROADCASTING: each message to every member, no retries."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    """Where a group begins that has no offset stored. A stored offset always wins.

    LAST_OFFSET on a young topic may still begin at 0: brokers answer 0 for a queue whose first message is in memory.
    TIMESTAMP begins at the first message that was stored at or after `consume_timestamp_ms`, on young topics too (the
    Java client begins at 0 there).
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeResult(enum.Enum):
    """A listener's explicit answer. Returning None means SUCCESS and an exception means RETRY (Java: null is RETRY).

    RETRY is "later" for both kinds of listener: a concurrent one sends the message back to the broker, which delivers
    it again after a growing delay; an orderly one stops its queue for a moment and sees the same message again.
    COMMIT and ROLLBACK are for orderly listeners of a consumer with `auto_commit=False`.
    """

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"

    def with_details(
        self, *, acknowledged: int | None = None, delay_level: int = 0, suspend_ms: int | None = None
    ) -> ConsumeOutcome:
        """The same answer with more control; see `ConsumeOutcome`."""
        return ConsumeOutcome(self, acknowledged, delay_level, suspend_ms)


@dataclass(frozen=True, slots=True)
class ConsumeOutcome:
    """A listener's answer in full.

    `acknowledged`: with SUCCESS, only so many messages from the front of the batch succeeded; the rest is retried.
    `delay_level`: of the retry; 0 lets the broker choose (3 + number of failures), -1 is straight to the DLQ.
    `suspend_ms`: how long an orderly queue rests (10 to 30000 ms).
    """

    result: ConsumeResult
    acknowledged: int | None = None
    delay_level: int = 0
    suspend_ms: int | None = None


class PullStatus(enum.Enum):
    """What a pull found."""

    FOUND = 0
    NO_NEW_MESSAGE = 19
    NO_MATCHED_MESSAGE = 20
    OFFSET_ILLEGAL = 21
