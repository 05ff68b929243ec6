"""Lite topics that got no message for the time that their parent allows (lite.topic.expiration, in minutes) go.

Whether groups have read them does not matter, as in the reference. None goes within minLiteTTl of the broker's start or
of its newest message. Their messages stay in the log, and in the parent's queues, until they expire there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from contrailmq.broker.lite.registry import Registry
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.lite_names import QUEUE_ID, expiration_minutes, lite_queues, parent_and_lite
from contrailmq.broker.state.offsets import OFFSETS_FILE

LOOKED_MAX: Final = 50  # lite topics that are looked at in one tick: each may be a read of the disk
_MINUTE_MS: Final = 60_000


class LiteExpiring:
    def __init__(self, node: BrokerNode, registry: Registry, mark_soon: Callable[[str], None]) -> None:
        self._node = node
        self._registry = registry
        self._mark_soon = mark_soon
        self._due_ms = 0  # monotonic: when to look again
        self._left: list[str] = []

    def tick(self) -> None:
        node = self._node
        now_ms = node.monotonic_ms()
        if not self._left and now_ms >= self._due_ms:
            self._due_ms = now_ms + node.config.lite_ttl_check_interval
            if now_ms - node.started_monotonic_ms >= node.config.min_lite_ttl:
                self._left = [queue for queue in lite_queues(node.store) if self._minutes(queue) > 0]
        looked, self._left = self._left[:LOOKED_MAX], self._left[LOOKED_MAX:]
        gone = [queue for queue in looked if self._is_expired(queue)]
        if gone:
            self.delete(gone)

    def delete(self, queues: list[str]) -> None:
        node = self._node
        node.delete_queues(queues)
        node.offsets.remove_topics(frozenset(queues))
        self._registry.forget(queues)
        self._mark_soon(DELETED_FILE)
        self._mark_soon(OFFSETS_FILE)

    def _minutes(self, queue: str) -> int:
        found = parent_and_lite(queue)
        topic = None if found is None else self._node.topics.get(found[0])
        return expiration_minutes(topic) if topic is not None and topic.is_lite else -1

    def _is_expired(self, queue: str) -> bool:
        store = self._node.store
        end = store.max_offset(queue, QUEUE_ID)
        units = store.read_units(queue, QUEUE_ID, end - 1, 1) if end > 0 else []
        if units and units[0][0] < store.log_min_offset:
            return True  # its messages are gone from the log
        newest_ms = store.store_time_at(queue, QUEUE_ID, end - 1) if units else 0
        if newest_ms <= 0:
            return False
        silent_ms = self._node.now_ms() - newest_ms
        return silent_ms >= self._node.config.min_lite_ttl and silent_ms > self._minutes(queue) * _MINUTE_MS > 0
