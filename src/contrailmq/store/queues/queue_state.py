"""What the writer of the log keeps of a queue, takes of a message, and leaves of a record for dispatch."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Final

from contrailmq.message import TOPIC_BYTES_MAX, SystemTopic, java_hash
from contrailmq.message.record import HEAD_V4_BYTES
from contrailmq.store.queues.refusals import topic_refusal

TAG_KIND: Final = "T"  # between topic and tag in the text that the index hashes
TAGS_MAX: Final = 10_000  # that are remembered, of all queues together: 3 MB
TAG_LENGTH_MAX: Final = 64  # of one that is: a producer with a tag per message must not fill memory


class QueueState:
    """What the writer knows of one queue. Owned by the commit log, changed under the put lock."""

    __slots__ = (
        "is_indexed",
        "is_schedule",
        "key",
        "key_seed",
        "next_offset",
        "overhead_bytes",
        "put_bytes",
        "put_count",
        "queue_id",
        "refusal",
        "tag_hashes",
        "tag_seed",
        "tags_met",
        "topic",
        "topic_part",
    )

    def __init__(self, topic: str, queue_id: int, next_offset: int, *, is_indexed: bool = True) -> None:
        encoded = topic.encode("utf-8", "replace")
        self.topic = topic
        self.queue_id = int(queue_id)  # True is 1, also in the name of its directory
        self.key = (topic, self.queue_id)
        self.next_offset = next_offset
        self.topic_part = bytes((len(encoded),)) + encoded if len(encoded) <= TOPIC_BYTES_MAX else b""
        self.overhead_bytes = HEAD_V4_BYTES + 1 + len(encoded) + 2
        self.refusal = topic_refusal(topic, len(encoded), queue_id)
        self.is_indexed = is_indexed  # where not, nobody asks for the hashes of its keys
        self.is_schedule = topic == SystemTopic.SCHEDULE  # its units hold delivery times
        self.put_count = 0
        self.put_bytes = 0
        self.key_seed, self.tag_seed = _seeds(topic)
        self.tag_hashes: dict[str, int] = {}  # for the index
        self.tags_met: dict[bytes, tuple[int, int]] = {}  # UTF-8 -> code and hash for the index

    def meet_tags(self, tags: str) -> int:
        """The hash under which the index enters these tags, remembered."""
        tag_hash = java_hash(tags, seed=self.tag_seed)
        if len(tags) <= TAG_LENGTH_MAX:
            _memory.make_room(self)
            self.tag_hashes[tags] = tag_hash
        return tag_hash

    def meet_encoded_tags(self, tags: bytes) -> tuple[int, int]:
        """Their code for queues and their hash for the index, remembered."""
        text = str(tags, "utf-8", "replace")
        met = java_hash(text), java_hash(text, seed=self.tag_seed)
        if len(tags) <= TAG_LENGTH_MAX:
            _memory.make_room(self)
            self.tags_met[tags] = met
        return met


class _TagMemory:
    """How many tags the queues of this process remember, and which queues do: one limit for all of them.

    Each queue has dictionaries of its own, where a tag is found without making a key of topic and tag. Threads append
    without a lock, and so they come here: a race may let in a few tags more, and those who met them register again.
    """

    __slots__ = ("_numbers", "_queues")

    def __init__(self) -> None:
        self._numbers = itertools.count()  # of tags since all were forgotten; a sum of ours would lose some to races
        self._queues: dict[QueueState, None] = {}

    def make_room(self, queue: QueueState) -> None:
        """For one more tag of this queue; when there are too many, all queues forget theirs."""
        if next(self._numbers) >= TAGS_MAX - 1:
            queues, self._queues, self._numbers = self._queues, {}, itertools.count()
            for each in list(queues):
                each.tag_hashes.clear()
                each.tags_met.clear()
        self._queues[queue] = None


_memory: Final = _TagMemory()


@lru_cache(maxsize=10_000)
def _seeds(topic: str) -> tuple[int, int]:
    """Hashes of what precedes a key and a tag in the texts that the index hashes."""
    seed = java_hash(topic + "#")
    return seed, java_hash(f"{TAG_KIND}#", seed=seed)


DispatchFact = tuple[QueueState, int, int, int, int, int, list[int], int, bytes]
"""What append leaves for dispatch about one record, as a plain tuple because it is made for each message:
state, physical offset, size in bytes, tags code, store time (ms), queue offset, key hashes (keys.py), system flag and
properties."""

Draft = tuple[QueueState, int, int, int, list[int], int, bytes]
"""A record on its way into the log: state, size in bytes, how many offsets of its queue it takes (none when PREPARED or
ROLLBACK), tags code, key hashes, system flag and properties."""

NewRecord = tuple[str, bytes, bytes, int, str | None, str | None, str | None, int]
"""topic, body, properties, tags code, keys, unique key, tags, flag"""
