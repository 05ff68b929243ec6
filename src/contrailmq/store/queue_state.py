"""What the writer of the log keeps of a queue, takes of a message, and leaves of a record for dispatch."""

from __future__ import annotations

from contrailmq.message import TOPIC_BYTES_MAX, SystemTopic
from contrailmq.message.record import HEAD_V4_BYTES
from contrailmq.store.refusals import topic_refusal


class QueueState:
    """What the writer knows of one queue. Owned by the commit log, changed under the put lock."""

    __slots__ = (
        "is_schedule",
        "key",
        "next_offset",
        "overhead_bytes",
        "put_bytes",
        "put_count",
        "queue_id",
        "refusal",
        "topic",
        "topic_part",
    )

    def __init__(self, topic: str, queue_id: int, next_offset: int) -> None:
        encoded = topic.encode("utf-8", "replace")
        self.topic = topic
        self.queue_id = int(queue_id)  # True is 1, also in the name of its directory
        self.key = (topic, self.queue_id)
        self.next_offset = next_offset
        self.topic_part = bytes((len(encoded),)) + encoded if len(encoded) <= TOPIC_BYTES_MAX else b""
        self.overhead_bytes = HEAD_V4_BYTES + 1 + len(encoded) + 2
        self.refusal = topic_refusal(topic, len(encoded), queue_id)
        self.is_schedule = topic == SystemTopic.SCHEDULE  # its units hold delivery times
        self.put_count = 0
        self.put_bytes = 0


DispatchFact = tuple[QueueState, int, int, int, int, int, str | None, str | None, int, bytes, str | None]
"""What append leaves for dispatch about one record, as a plain tuple because it is made for each message:
state, physical offset, size in bytes, tags code, store time (ms), queue offset, keys, unique key, system flag,
properties, and the tags where the caller of append knew them (None says nothing)."""

NewRecord = tuple[str, bytes, bytes, int, str | None, str | None, str | None, int]
"""topic, body, properties, tags code, keys, unique key, tags, flag"""
