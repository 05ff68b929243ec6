"""Where a group's next pop of a queue reads, and when that becomes its committed offset.

The position moves with every pop; the committed offset, which everybody else sees and files hold, follows when the
pop's checkpoint is on the disk (in_flight.py says why). If somebody else moves the committed offset, by a commit of a
consumer that pulls, the position moves there. What an operator sets counts at once, also if it is the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.in_flight import InFlight, PopQueue, QueueKey
from contrailmq.message import RETRY_PREFIX

FROM_LAST: Final = 1  # initMode
FLUSH_MS: Final = 300  # how long a moved position may wait for the log's own flush


class Positions:
    """Owner: the loop."""

    def __init__(self, node: BrokerNode, in_flight: InFlight) -> None:
        self._node = node
        self._in_flight = in_flight
        self._behind: dict[QueueKey, PopQueue] = {}  # whose committed offset is behind
        self._flush_ms = 0  # when to ask for a flush, in monotonic time
        self.on_reset: Callable[[QueueKey], None] = lambda key: None

    def current(self, key: QueueKey, init_mode: int) -> int:
        """Without any change: for questions, and for queues that are busy."""
        topic, group, queue_id = key
        queue = self._in_flight.queues.get(key)
        stored = self._node.offsets.query(group, topic, queue_id)
        if stored is None:
            return self._initial(topic, queue_id, init_mode)
        return queue.next_offset if queue is not None and queue.committed == stored else stored

    def queue(self, key: QueueKey, init_mode: int) -> PopQueue:
        """A queue for a pop, at its position: a reset that waits is carried out, a first position committed."""
        topic, group, queue_id = key
        offsets = self._node.offsets
        reset = offsets.take_reset(group, topic, queue_id) if offsets.has_resets else None
        if reset is not None:
            self.on_reset(key)
        known = offsets.stored(f"{topic}@{group}", queue_id)
        stored = self._initial(topic, queue_id, init_mode) if known is None else known
        if known is None:
            offsets.commit(group, topic, queue_id, stored)
        queue = self._in_flight.queues.get(key)
        if queue is None:
            queue = self._in_flight.queues[key] = PopQueue(key, stored, stored)
            self._in_flight.popped.add(key)
        elif queue.committed != known:  # somebody else moved it, or it was removed with its topic
            queue.next_offset = queue.committed = stored
            queue.uncommitted.clear()
        return queue

    def set_by_hand(self, key: QueueKey) -> None:
        """An operator has set the committed offset: go on from there, and commit nothing of before."""
        topic, group, queue_id = key
        queue, offset = self._in_flight.queues.get(key), self._node.offsets.stored(f"{topic}@{group}", queue_id)
        if queue is not None and offset is not None:
            queue.next_offset = queue.committed = offset
            queue.uncommitted.clear()
            self._behind.pop(key, None)

    def moved(self, queue: PopQueue, next_offset: int, record_end: int) -> None:
        """A pop has read up to there; its checkpoint ends there in the log (0: it wrote none)."""
        queue.next_offset = next_offset
        if not record_end and not queue.uncommitted:
            self._commit(queue, next_offset)
            return
        end = record_end or queue.uncommitted[-1][0]
        queue.uncommitted.append((end, next_offset))
        self._behind[queue.key] = queue
        if not self._flush_ms:
            self._flush_ms = self._node.monotonic_ms() + FLUSH_MS

    def commit_durable(self) -> None:
        """Commit what is on the disk by now; ask for a flush where the log takes its time."""
        if not self._behind:
            self._flush_ms = 0
            return
        durable = self._node.store.durable_offset
        for queue in list(self._behind.values()):
            done = 0
            for end, _ in queue.uncommitted:
                if end > durable:
                    break
                done += 1
            if done:
                self._commit(queue, queue.uncommitted[done - 1][1])
                del queue.uncommitted[:done]
            if not queue.uncommitted:
                del self._behind[queue.key]
        now_ms = self._node.monotonic_ms()
        if self._behind and now_ms >= self._flush_ms and self._node.store.writable:
            self._flush_ms = now_ms + FLUSH_MS
            self._node.store.request_flush()

    def forget(self, is_gone: Callable[[QueueKey], bool]) -> None:
        """Commit nothing more of queues whose topic or group is gone."""
        for key in [key for key in self._behind if is_gone(key)]:
            del self._behind[key]

    def _commit(self, queue: PopQueue, offset: int) -> None:
        topic, group, queue_id = queue.key
        if self._node.offsets.stored(f"{topic}@{group}", queue_id) == queue.committed:
            self._node.offsets.commit(group, topic, queue_id, offset)
            queue.committed = offset

    def _initial(self, topic: str, queue_id: int, init_mode: int) -> int:
        store = self._node.store
        self._node.dispatch_now()  # a group that begins at the end begins after all that was stored before
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if init_mode != FROM_LAST or topic.startswith(RETRY_PREFIX):
            return low
        if (
            low <= 0
            and self._node.config.init_pop_offset_by_check_msg_in_mem
            and self._is_first_recent(topic, queue_id)
        ):
            return 0
        return max(high - 1, 0)

    def _is_first_recent(self, topic: str, queue_id: int) -> bool:
        """A topic that just began: a new group gets all of it (the reference looks whether it is in memory)."""
        units = self._node.store.read_units(topic, queue_id, 0, 1)
        return bool(units) and self._node.store.is_resident(units[0][0])
