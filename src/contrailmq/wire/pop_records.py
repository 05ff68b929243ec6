"""The JSON of POP: checkpoints and acknowledgements in the revive log, and the bodies of requests.

The members are Java's one-letter names, in alphabetical order as Java writes them. A checkpoint says that messages
`so + d[i]` of a queue were handed to a group at `pt` for `it` milliseconds. An acknowledgement names one of them (`ao`)
or several (`aol`), and the checkpoint by group, topic, queue, `so` and `pt`. Readers take Java's long names too, which
older brokers wrote.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType, field

CHECKPOINT_TAG = "ck"
ACK_TAG = "ack"
BATCH_ACK_TAG = "bAck"


class CheckpointBody(msgspec.Struct, kw_only=True, gc=False):
    """PopCheckPoint."""

    bitmap: int = field(name="bm", default=0)
    broker_name: str | None = field(name="bn", default=None)
    group: str | None = field(name="c", default=None)
    distances: list[int] | None = field(name="d", default=None)  # absent in old ones: 0, 1, ..
    invisible_ms: int = field(name="it", default=0)
    count: int = field(name="n", default=0)
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    revive_time_ms: int = field(name="reviveTime", default=0)
    revive_offset: int = field(name="ro", default=0)
    put_again: str | UnsetType = field(name="rp", default=UNSET)
    start_offset: int = field(name="so", default=0)
    is_suspended: bool = field(name="sp", default=False)
    topic: str | None = field(name="t", default=None)

    @property
    def offsets(self) -> tuple[int, ...]:
        distances = range(self.count) if self.distances is None else self.distances
        return tuple([self.start_offset + distance for distance in distances])


class AckBody(msgspec.Struct, kw_only=True, gc=False):
    """AckMsg, BatchAckMsg."""

    offset: int = field(name="ao", default=-1)
    offsets: list[int] | UnsetType = field(name="aol", default=UNSET)
    broker_name: str | UnsetType = field(name="bn", default=UNSET)
    group: str = field(name="c", default="")
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    start_offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")


_LONG_NAMES = {
    "ackOffset": "ao",
    "ackOffsetList": "aol",
    "brokerName": "bn",
    "consumerGroup": "c",
    "popTime": "pt",
    "queueId": "q",
    "startOffset": "so",
    "topic": "t",
}


def decode_checkpoint_body(data: bytes) -> CheckpointBody | None:
    """None when it is not one: nobody can say then which messages it is about."""
    try:
        return msgspec.json.decode(data, type=CheckpointBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode_ack_body(data: bytes) -> AckBody | None:
    try:
        members = msgspec.json.decode(data, type=dict[str, object])
        return msgspec.convert({_LONG_NAMES.get(name, name): value for name, value in members.items()}, AckBody)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


# ------------------------------------------------------------------------------------------------- bodies of requests


class BatchAckEntry(msgspec.Struct, kw_only=True, gc=False):
    """Messages of one pop from one queue. `topic` is the normal one; `mark` says which retry topic is meant."""

    bits: str = field(name="b", default="")
    group: str = field(name="c", default="")
    invisible_ms: int = field(name="it", default=0)
    pop_time_ms: int = field(name="pt", default=0)
    queue_id: int = field(name="q", default=0)
    mark: str = field(name="r", default="0")
    revive_queue: int = field(name="rq", default=0)
    start_offset: int = field(name="so", default=0)
    topic: str = field(name="t", default="")


class BatchAckBody(msgspec.Struct, kw_only=True):
    """BATCH_ACK_MESSAGE(200151)."""

    acks: list[BatchAckEntry] = []
    broker_name: str | None = field(name="brokerName", default=None)


class QueryAssignmentBody(msgspec.Struct, kw_only=True, rename="camel"):
    """QUERY_ASSIGNMENT(400)."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: str | None = None


class AssignedQueue(msgspec.Struct, kw_only=True, rename="camel"):
    broker_name: str
    queue_id: int
    topic: str


class AssignmentEntry(msgspec.Struct, kw_only=True, rename="camel"):
    message_queue: AssignedQueue
    mode: str = "PULL"


class AssignmentBody(msgspec.Struct, kw_only=True, rename="camel"):
    """What QUERY_ASSIGNMENT answers. No list: keep what you have; an empty one: you have none."""

    message_queue_assignments: list[AssignmentEntry] | None = None


class RequestModeBody(msgspec.Struct, kw_only=True, rename="camel"):
    """SET_MESSAGE_REQUEST_MODE(401), and an entry of GET_ALL_MESSAGE_REQUEST_MODE(402)."""

    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: int = 0
    topic: str = ""
