"""Answers of a SYNC_MASTER that wait until enough slaves have their message.

    needed  := inSyncReplicas, this broker included
               with enableAutoInSyncReplicas: as many of these as are in sync, but minInSyncReplicas at least
    refused := enableAutoInSyncReplicas or minInSyncReplicas > 1, and fewer are in sync than needed, or than
               minInSyncReplicas: "in-sync replicas not enough", and nothing is stored
    waits   := needed > 1, until as many have reported the end of the record; slaveTimeout from the send on

An answer that waits in vain is FLUSH_SLAVE_TIMEOUT: the message is stored, consumers get it, and slaves may still. With
RocketMQ 5's defaults (inSyncReplicas=1) a SYNC_MASTER waits for nobody. RocketMQ looks at minInSyncReplicas and at
enableAutoInSyncReplicas only beside enableSlaveActingMaster; whoever sets them here gets what they say.
"""

from __future__ import annotations

from collections.abc import Callable

from contrailmq.broker.state.parked import Outcome, ParkedAnswers
from contrailmq.store import StoreConfig

Reached = Callable[[int], int]  # how many slaves -> the offset up to which at least so many have the log, or -1


class Replicas:
    """Owner: the node. Runs on the loop's thread."""

    def __init__(self, config: StoreConfig, monotonic_ms: Callable[[], int]) -> None:
        self._config = config
        self._monotonic_ms = monotonic_ms
        self._waiting: dict[int, ParkedAnswers] = {}  # by how many slaves they need
        # Replaced by whoever serves the slaves (cluster/replication.py).
        self.reached_by: Reached = _by_nobody
        self.slaves_in_sync: Callable[[], int] = int
        self.on_shortage: Callable[[], None] = lambda: None  # `shortage` has changed
        self.shortage = ""  # why messages that wait are refused before they are stored
        self.is_awaited = config.waits_for_slaves
        self._is_checked = self.is_awaited and (config.enable_auto_in_sync_replicas or config.min_in_sync_replicas > 1)
        self.look()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def needed(self) -> int:
        """How many copies a message needs that is stored now, the one here included."""
        config = self._config
        if not config.enable_auto_in_sync_replicas:
            return config.in_sync_replicas
        return max(config.min_in_sync_replicas, min(config.in_sync_replicas, 1 + self.slaves_in_sync()))

    def wait(self, end_offset: int, release: Callable[[Outcome], None]) -> bool:
        """Call `release` once, later: when enough slaves have the log up to there, or not in time. False, and no call:
        they have it already, or nobody needs to."""
        slaves = self.needed() - 1
        if slaves <= 0 or self.reached_by(slaves) >= end_offset:
            return False
        deadline_ms = self._monotonic_ms() + self._config.slave_timeout
        self._waiting.setdefault(slaves, ParkedAnswers()).park(end_offset, deadline_ms, release)
        return True

    def late_text(self, end_offset: int) -> str:
        """What an answer that waited in vain says."""
        config = self._config
        have = 1
        while self.reached_by(have) >= end_offset:
            have += 1
        return (
            f"stored, but {have} of {self.needed()} copies (inSyncReplicas={config.in_sync_replicas}) were there "
            f"within slaveTimeout={config.slave_timeout} ms; {self.slaves_in_sync()} slaves are in sync"
        )

    # --- news

    def advanced(self) -> None:
        """A slave has reported, or is gone."""
        for slaves, parked in self._waiting.items():
            if parked:
                parked.advanced(self.reached_by(slaves))
        self.look()

    def expire(self, now_ms: int) -> None:
        for parked in self._waiting.values():
            parked.expire(now_ms)
        self.look()

    def look(self) -> None:
        """Whether enough slaves are in sync to store what waits for them."""
        if not self._is_checked:
            return
        config, copies = self._config, 1 + self.slaves_in_sync()
        least = self.needed() if config.enable_auto_in_sync_replicas else config.min_in_sync_replicas
        shortage = ""
        if copies < least:
            shortage = (
                f"in-sync replicas not enough: {copies} of {least} (minInSyncReplicas={config.min_in_sync_replicas}), "
                "this broker included; nothing was stored. Start the slaves, or lower minInSyncReplicas"
            )
        if shortage != self.shortage:
            self.shortage = shortage
            self.on_shortage()


def _by_nobody(_slaves: int) -> int:
    return -1
