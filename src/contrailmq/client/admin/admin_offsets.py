"""Administration of where groups go on: what moving them would mean, queue by queue, and moving them.

First a plan, then the act: `OffsetPlan` says for each queue where the group is, where it would be, what it would get a
second time and what it would never get. `move_offsets` does what a plan shows, even when more messages have come since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from contrailmq.client.admin.admin_groups import AdminGroups, OffsetPlace
from contrailmq.client.errors import OffsetOutOfRangeError
from contrailmq.message import MessageQueue

Target = Callable[[MessageQueue], Awaitable[int]]  # where a group would go on in a queue


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One queue's part of a reset: where the group is, and where it would be."""

    queue: MessageQueue
    now: int  # -1: it has no offset
    target: int
    begin: int
    end: int

    @property
    def again(self) -> int:
        """Messages that the group would get a second time."""
        return max(0, self.now - max(self.target, self.begin)) if self.now >= 0 else 0

    @property
    def skipped(self) -> int:
        """Messages that it would never get."""
        return max(0, self.target - max(self.now, self.begin))


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    group: str
    topic: str
    moves: list[OffsetMove] = field(default_factory=list)

    @property
    def targets(self) -> dict[MessageQueue, int]:
        return {move.queue: move.target for move in self.moves}

    @property
    def sentence(self) -> str:
        again, skipped = sum(move.again for move in self.moves), sum(move.skipped for move in self.moves)
        left = sum(max(0, move.end - max(move.target, move.begin)) for move in self.moves)
        parts = [f"{left} messages will wait"]
        parts += [f"{again} will be consumed again"] if again else []
        parts += [f"{skipped} will never be consumed"] if skipped else []
        return f"{self.group} on {self.topic}: " + ", ".join(parts)


class AdminOffsets(AdminGroups):
    """Offsets of groups."""

    async def plan_offsets(self, group: str, topic: str, to: int | OffsetPlace) -> OffsetPlan:
        """What it means to go on at a time (epoch milliseconds) or at an end. Changes nothing."""
        return await self._plan(group, topic, await self.queues(topic), lambda queue: self._target(queue, to))

    async def plan_offset(self, group: str, topic: str, offset: int, *, queue: str = "") -> OffsetPlan:
        """What it means to go on at an offset, in one queue (`broker-a:3`) or in all of them. Changes nothing.

        OffsetOutOfRangeError when a named queue does not have the offset, or none of them does. Where some are shorter,
        the group goes on at their ends.
        """
        if offset < 0:
            raise OffsetOutOfRangeError(f"offset {offset} is negative: give 0 or more")
        queues = await self.queues(topic)
        chosen = [item for item in queues if queue in ("", place_text(item))]
        if not chosen:
            known = ", ".join(map(place_text, queues))
            raise OffsetOutOfRangeError(f"topic {topic} has no queue {queue} to read: it has {known}")

        async def target(_: MessageQueue) -> int:
            return offset

        plan = await self._plan(group, topic, chosen, target)
        if not any(move.begin <= offset <= move.end for move in plan.moves):
            spans = ", ".join(f"{place_text(move.queue)} {move.begin} to {move.end}" for move in plan.moves)
            raise OffsetOutOfRangeError(f"no queue of topic {topic} has the offset {offset}: they have {spans}")
        return plan

    async def move_offsets(self, group: str, targets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets; members that run go on there at once."""
        is_online = await self.consumers(group) is not None
        for queue, offset in targets.items():
            if is_online:
                await self._reset_running(group, queue, offset)
            else:
                await self.set_offset(group, queue, offset)

    async def _plan(self, group: str, topic: str, queues: list[MessageQueue], target: Target) -> OffsetPlan:
        moves = await asyncio.gather(*(self._move(group, queue, target) for queue in queues))
        return OffsetPlan(group, topic, list(moves))

    async def _move(self, group: str, queue: MessageQueue, target: Target) -> OffsetMove:
        now, begin, end, wanted = await asyncio.gather(
            self.offset(group, queue), self.min_offset(queue), self.max_offset(queue), target(queue)
        )
        return OffsetMove(queue, now, min(max(wanted, begin), end), begin, end)


def place_text(queue: MessageQueue) -> str:
    """A queue as one types it."""
    return f"{queue.broker_name}:{queue.queue_id}"
