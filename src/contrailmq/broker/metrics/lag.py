"""How far groups are behind, for a page: of every group that has committed something, connected or not.

RocketMQ's page shows groups with a live connection only, so that a group vanishes from it on the day when its consumers
have died. Here each pair of group and topic in the offset table is shown for as long as both exist.

    lag      := sum over queues of end - committed        a queue that was never committed counts 0, as in RocketMQ
    inflight := sum of pulled - committed
    ready    := sum of end - pulled
    latency  := now - store time of the oldest message that lag (queueing latency: ready) counts, 0 if none
    POP: inflight := what was handed out and not acknowledged, ready := end - what the next pop reads, lag := both

The ends of queues are read once for all groups. 2,000 topics x 500 groups would be a million pairs: as many are looked
at as a page may show (metricsOtelCardinalityLimit), in turns of the loop, and how many are left out is a figure of its
own. Store times lie in the log, which may not be in memory: workers read them, TIMES_AT_ONCE at a time. What was read
is kept for the next page: a group that stands still, which is the one with old messages, costs nothing more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.offsets import SEPARATOR
from contrailmq.broker.turns import in_turns
from contrailmq.message import DLQ_PREFIX, RETRY_PREFIX

TIMES_AT_ONCE: Final = 64  # 0.5 ms of a worker, which the loop may have to wait for
TIMES_MAX: Final = 20_000  # read for one page; the latency of those beyond is on the next ones

Place = tuple[str, int, int]  # topic, queue, offset
# (topic, group, queue) -> where the next pop reads, and which offsets are in flight; None where nothing was popped
Popped = Callable[[str, str, int], tuple[int, Collection[int]] | None]


@dataclass(slots=True)
class Behind:
    """One group in one topic. A latency of -1 is not known yet."""

    group: str
    topic: str
    is_retry: bool
    lag: int
    inflight: int
    ready: int
    oldest: tuple[Place, ...]  # first messages that lag counts
    oldest_ready: tuple[Place, ...]
    lag_ms: int = 0
    queueing_ms: int = 0


class LagSurvey:
    """Owner: the broker's figures. `rows` are of the newest `take`."""

    def __init__(self, node: BrokerNode, readers: Executor) -> None:
        self._node, self._readers = node, readers
        self._times_ms: dict[Place, int] = {}
        self.rows: list[Behind] = []
        self.popped: Popped = lambda topic, group, queue_id: None
        self.left_out = 0  # pairs beyond the limit
        self.took_s = 0.0

    async def take(self, pairs_max: int) -> None:
        began_s = time.monotonic()
        self._node.dispatch_now()
        keys = self._node.offsets.keys(pairs_max)
        self.left_out = len(self._node.offsets) - len(keys)
        ends: dict[str, list[int]] = {}
        rows = []
        known: dict[Place, int] = {}
        unknown: dict[Place, None] = {}
        async for key in in_turns(keys):
            row = self._row(key, ends)
            if row is not None:
                rows.append(row)
                self._sort_out((*row.oldest, *row.oldest_ready), known, unknown)
        self._times_ms = known  # what nobody needs any more is forgotten
        await self._read_times(list(islice(unknown, TIMES_MAX)))
        now_ms = self._node.now_ms()
        async for row in in_turns(rows):
            row.lag_ms, row.queueing_ms = self._age(row.oldest, now_ms), self._age(row.oldest_ready, now_ms)
        self.rows = rows
        self.took_s = time.monotonic() - began_s

    def _sort_out(self, places: Sequence[Place], known: dict[Place, int], unknown: dict[Place, None]) -> None:
        """Which store times were read for an earlier page, and which are not known."""
        for place in places:
            time_ms = self._times_ms.get(place)
            if time_ms is not None:
                known[place] = time_ms
            else:
                unknown[place] = None

    def _row(self, key: str, ends: dict[str, list[int]]) -> Behind | None:
        node = self._node
        stored_topic, _, group = key.partition(SEPARATOR)
        topic = node.topics.get(stored_topic)
        if topic is None or group not in node.groups:
            return None
        shown, is_retry = _shown(stored_topic, group)
        if shown is None:
            return None
        limits = ends.get(stored_topic)
        if limits is None:
            limits = [node.store.max_offset(stored_topic, queue_id) for queue_id in range(topic.read_queues)]
            ends[stored_topic] = limits
        committed, pulled = node.offsets.queues(group, stored_topic), node.offsets.pulled(group, stored_topic)
        lag = inflight = ready = 0
        oldest: list[Place] = []
        oldest_ready: list[Place] = []
        for queue_id, offset in committed.items():
            if queue_id >= len(limits):
                continue
            end = limits[queue_id]
            popped = self.popped(stored_topic, group, queue_id)
            if popped is not None:
                at, taken, first = min(popped[0], end), len(popped[1]), next(iter(popped[1]), popped[0])
            else:
                at = min(max(pulled.get(queue_id, offset), offset), end)
                taken, first = max(at - offset, 0), offset
            left = max(end - at, 0)
            lag, inflight, ready = lag + taken + left, inflight + taken, ready + left
            if taken or left:
                oldest.append((stored_topic, queue_id, first))
            if left:
                oldest_ready.append((stored_topic, queue_id, at))
        return Behind(group, shown, is_retry, lag, inflight, ready, tuple(oldest), tuple(oldest_ready))

    async def _read_times(self, places: Sequence[Place]) -> None:
        loop = asyncio.get_running_loop()
        for begin in range(0, len(places), TIMES_AT_ONCE):
            part = places[begin : begin + TIMES_AT_ONCE]
            found = await loop.run_in_executor(self._readers, self._times_of, part)
            self._times_ms.update(zip(part, found, strict=True))

    def _times_of(self, places: Sequence[Place]) -> list[int]:
        """By a worker."""
        store = self._node.store
        # An offset before the first message that is still there: the oldest that the group can get is that one.
        return [
            store.store_time_at(topic, queue_id, max(offset, store.min_offset(topic, queue_id)))
            for topic, queue_id, offset in places
        ]

    def _age(self, places: Sequence[Place], now_ms: int) -> int:
        if not places:
            return 0
        times = [self._times_ms[place] for place in places if self._times_ms.get(place, -1) > 0]
        return max(now_ms - min(times), 0) if times else -1


def _shown(stored_topic: str, group: str) -> tuple[str | None, bool]:
    """The topic in the label, and whether it is its retry topic. A push group's retry and dead letters are not shown,
    as in RocketMQ; POP has a retry topic for each topic: %RETRY%group_topic, or with a + in between."""
    if stored_topic.startswith(DLQ_PREFIX):
        return None, False
    if not stored_topic.startswith(RETRY_PREFIX):
        return stored_topic, False
    rest = stored_topic[len(RETRY_PREFIX) :]
    if rest.startswith(group) and rest[len(group) : len(group) + 1] in ("_", "+"):
        return rest[len(group) + 1 :], True
    return None, False
