"""One queue that a consumer has: its cache, its tasks, and the signals between pulling and consuming."""

from __future__ import annotations

import asyncio

from contrailmq.client.consuming.process_queue import ProcessQueue
from contrailmq.client.transport.routes import MASTER_ID
from contrailmq.message import MessageQueue


class Assignment:
    """Owned by one consumer, used on its loop only. `queue` has its namespace."""

    __slots__ = ("arrived", "broker_id", "cache", "next_offset", "queue", "room", "tasks")

    def __init__(self, queue: MessageQueue, next_offset: int, now_s: float) -> None:
        self.queue = queue
        self.cache = ProcessQueue(now_s)
        self.next_offset = next_offset
        self.broker_id = MASTER_ID
        self.tasks: list[asyncio.Task[None]] = []
        self.arrived = asyncio.Event()  # messages wait to be consumed (orderly)
        self.room = asyncio.Event()  # the cache got smaller

    async def stop(self) -> None:
        """End the tasks. The cache is dropped: nothing of it is given to a listener any more."""
        others = self.abandon()
        await asyncio.gather(*others, return_exceptions=True)
        self.tasks.clear()

    def abandon(self) -> list[asyncio.Task[None]]:
        """The same without waiting; the tasks that were told to end."""
        self.cache.is_dropped = True
        current = asyncio.current_task()
        others = [task for task in self.tasks if task is not current]
        for task in others:
            task.cancel()
        return others
