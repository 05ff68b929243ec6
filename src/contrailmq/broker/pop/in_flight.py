"""Messages in flight: handed to a consumer, not acknowledged yet, due again when their invisible time is over.

A message is in flight if the log holds a *checkpoint* that names it and no acknowledgement of it after that. That is
the whole state. It is one fact per message, it is in the log, and so it is as durable and as replicated as messages
are. This table is that fact in memory; `recovery.py` makes it again from the log.

    pop     a checkpoint of up to 32 messages of a queue goes to the log, then the messages go to the consumer
    ack     an acknowledgement goes to the log, then the consumer is answered
    change  a checkpoint of the one message, then an acknowledgement of it under the old one
    due     a copy to the retry topic (or the dead letters), then the broker's own acknowledgement of the original

Both kinds of records are Apache's, byte for byte, and take Apache's way: through the timer to the revive log. Apache's
broker can take over at any moment and sees the same state, since "revived" is written as an acknowledgement too. We do
not read the revive log while we run, and so nothing waits for its order: no scan, no merge, no second of precision.

What a crash costs
------------------
A kill leaves the log whole. Between checkpoint and answer: the messages come when their time is over, as after a
lost answer. Between copy and acknowledgement: the copy names its original (POP_OF), and the next start finds it among
the newest messages of the retry topic. Between the two records of a change: of two checkpoints with one message the
newer counts. So nothing is lost, and nothing comes twice that was acknowledged.

A power failure may cut the log. The group's offset must then not be ahead of the checkpoints that are left, or messages
would be skipped. So the committed offset follows the position (`next_offset`) only when the checkpoint is on the disk
(`uncommitted`). Under SYNC_FLUSH every answer waits for its record as well; otherwise the last moments are lost as
those of messages are, and these messages come again.

Bounds and cost
---------------
A checkpoint takes about 400 bytes of memory and each of its messages 100; there are at most popCkMaxBufferSize of them,
and popCkOffsetMaxQueueSize in one queue of a group. Beyond that a pop finds nothing. Who never acknowledges gets each
message retryMaxTimes + 1 times, then it is a dead letter. A pop writes one record of 0.4 KB, an acknowledgement one
too, and the timer copies each once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final, Protocol

QueueKey = tuple[str, str, int]  # topic as stored, group, queue

_HEAP_SLACK: Final = 1024


class Connected(Protocol):
    @property
    def is_open(self) -> bool: ...


class Checkpoint:
    """Messages of one queue that were handed out together. `left` of them are in flight."""

    __slots__ = (
        "broker_name", "due_ms", "group", "invisible_ms", "is_suspended", "left", "offsets", "physical_offset",
        "pop_time_ms", "queue_id", "revive_queue", "start_offset", "store_time_ms", "topic", "tries",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        group: str,
        queue_id: int,
        *,
        start_offset: int,
        offsets: tuple[int, ...],
        pop_time_ms: int,
        invisible_ms: int,
        revive_queue: int,
        broker_name: str,
        is_suspended: bool = False,
    ) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.start_offset = start_offset
        self.offsets = offsets
        self.pop_time_ms = pop_time_ms
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.broker_name = broker_name
        self.is_suspended = is_suspended
        self.left = 0
        self.tries = 0  # to revive it, which failed
        self.due_ms = 0  # in steady time
        self.physical_offset = -1  # of its record, and when that was stored
        self.store_time_ms = 0

    @property
    def key(self) -> QueueKey:
        return self.topic, self.group, self.queue_id

    def __repr__(self) -> str:
        return f"<Checkpoint {self.key} {self.pop_time_ms}+{self.invisible_ms} {self.offsets}>"


class PopQueue:
    """A queue as one group pops it."""

    __slots__ = ("committed", "key", "next_offset", "reader", "uncommitted", "waiting")

    def __init__(self, key: QueueKey, next_offset: int, committed: int) -> None:
        self.key = key
        self.next_offset = next_offset  # where the next pop reads
        self.committed = committed  # in the table of offsets, as far as we know
        self.uncommitted: list[tuple[int, int]] = []  # (end of a checkpoint's record, the position after it)
        self.waiting: dict[int, Checkpoint] = {}  # offset -> the checkpoint that it is in flight under
        self.reader: Connected | None = None  # for whom a worker reads

    @property
    def is_busy(self) -> bool:
        """Whether a worker reads for a pop; what it finds for a connection that has gone is dropped."""
        return self.reader is not None and self.reader.is_open

    @property
    def is_idle(self) -> bool:
        """Whether the table of offsets says all that there is to say."""
        return self.next_offset == self.committed and not (self.waiting or self.uncommitted or self.is_busy)


class InFlight:
    """Owner: the loop."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, PopQueue] = {}
        self.popped: set[QueueKey] = set()  # queues that a group has popped, since the start or just before it
        self.checkpoints = 0
        self.messages = 0
        self._by_time: list[tuple[int, int, Checkpoint]] = []
        self._sequence = 0

    # --- changes

    def clear(self) -> None:
        self.queues.clear()
        self.popped.clear()
        self._by_time.clear()
        self.checkpoints = self.messages = 0

    def add(self, queue: PopQueue, checkpoint: Checkpoint) -> list[tuple[Checkpoint, int]]:
        """Its messages are in flight from now on; those that were already, and under which checkpoint.

        A message is in flight under one checkpoint, the newest.
        """
        replaced = []
        for offset in checkpoint.offsets:
            old = queue.waiting.get(offset)
            if old is not None:
                self.settle(queue, offset)
                replaced.append((old, offset))
            queue.waiting[offset] = checkpoint
        checkpoint.left = len(checkpoint.offsets)
        if checkpoint.left:
            self.checkpoints += 1
            self.messages += checkpoint.left
            self.await_time(checkpoint)
        return replaced

    def await_time(self, checkpoint: Checkpoint) -> None:
        """Have it come out of `due` when its time is over."""
        self._sequence += 1
        heapq.heappush(self._by_time, (checkpoint.due_ms, self._sequence, checkpoint))

    def find(self, key: QueueKey, offset: int, pop_time_ms: int) -> Checkpoint | None:
        """Under which checkpoint a message is in flight, if it was popped then.

        Where that pop began to read is not asked for: a client that changed the invisible time may still say where the
        whole batch began (RocketMQ #9583).
        """
        queue = self.queues.get(key)
        found = None if queue is None else queue.waiting.get(offset)
        return found if found is not None and found.pop_time_ms == pop_time_ms else None

    def settle(self, queue: PopQueue, offset: int) -> None:
        """A message is not in flight any more."""
        checkpoint = queue.waiting.pop(offset)
        checkpoint.left -= 1
        self.messages -= 1
        if not checkpoint.left:
            self.checkpoints -= 1
            if len(self._by_time) > _HEAP_SLACK + 4 * self.checkpoints:
                self._by_time = [entry for entry in self._by_time if entry[2].left]
                heapq.heapify(self._by_time)

    def forget(self, is_gone: Callable[[QueueKey], bool]) -> None:
        """Nothing of these queues is in flight: their topic or group is gone."""
        for queue in [queue for key, queue in self.queues.items() if is_gone(key)]:
            for offset in list(queue.waiting):
                self.settle(queue, offset)
            del self.queues[queue.key]
        self.popped = {key for key in self.popped if not is_gone(key)}

    # --- questions

    def open_offsets(self, checkpoint: Checkpoint) -> list[int]:
        """The messages that are still in flight under it."""
        waiting = self.queues[checkpoint.key].waiting if checkpoint.key in self.queues else {}
        return [offset for offset in checkpoint.offsets if waiting.get(offset) is checkpoint]

    def due(self, now_ms: int, max_count: int) -> Iterator[Checkpoint]:
        """Take out what is due by steady time: whose millisecond is over, as consumers see it by the wall clock, whose
        milliseconds begin at another moment."""
        for _ in range(max_count):
            checkpoint = self._take_due(now_ms)
            if checkpoint is None:
                return
            yield checkpoint

    def _take_due(self, now_ms: int) -> Checkpoint | None:
        by_time = self._by_time
        while by_time and (by_time[0][0] < now_ms or not by_time[0][2].left):
            checkpoint = heapq.heappop(by_time)[2]
            if checkpoint.left:
                return checkpoint
        return None

    @property
    def first_due_ms(self) -> int | None:
        return self._by_time[0][0] if self._by_time else None

    def all(self) -> Iterator[Checkpoint]:
        """Every checkpoint with messages in flight, once."""
        for queue in self.queues.values():
            yield from dict.fromkeys(queue.waiting.values())

    def in_flight(self, key: QueueKey) -> int:
        queue = self.queues.get(key)
        return 0 if queue is None else len(queue.waiting)
