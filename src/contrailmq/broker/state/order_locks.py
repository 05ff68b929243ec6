"""Locks of queues for orderly consumption: at most one client of a group works on a queue.

A lock belongs to (group, queue) and lives 60 s past its last renewal; clients renew every 20 s and trust their own
lock for 30 s, so an expired lock is never believed by its former owner. Locks are kept in memory only: a restarted
broker grants again, which is why orderly consumers may see a message twice but never two at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from contrailmq.message import MessageQueue

LOCK_MS: Final = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime


class OrderLocks:
    """Owner: the broker's loop. Time comes in as `now_ms`, monotonic."""

    __slots__ = ("_groups", "_lock_ms")

    def __init__(self, lock_ms: int = LOCK_MS) -> None:
        self._lock_ms = lock_ms
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Lock or renew what is free or already this client's; returns the queues that it now holds."""
        held = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or now_ms - owner[1] > self._lock_ms:
                held[queue] = (client_id, now_ms)
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Drop this client's own locks on the queues; those of others stay."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        owner = self._groups.get(group, {}).get(queue)
        return None if owner is None or now_ms - owner[1] > self._lock_ms else owner[0]

    def is_any_locked(self, group: str, now_ms: int) -> bool:
        """Whether a client of the group holds a live lock: the group consumes in order."""
        return any(now_ms - at <= self._lock_ms for _, at in self._groups.get(group, {}).values())

    def expire(self, now_ms: int) -> int:
        """Forget dead locks; returns how many."""
        dropped = 0
        for group, held in list(self._groups.items()):
            live = {queue: owner for queue, owner in held.items() if now_ms - owner[1] <= self._lock_ms}
            dropped += len(held) - len(live)
            if live:
                self._groups[group] = live
            else:
                del self._groups[group]
        return dropped
