"""The cache between pulling and consuming one queue, and the arithmetic of what may be committed.

Messages enter in offset order and leave in any order (concurrent listeners finish when they finish). What may be
committed is the lowest offset that is still inside, or one past the highest ever put when nothing is: so a crash
repeats messages but never skips one.

Orderly consumption takes messages from the front into `_consuming`, and either commits them all or puts them back.

Used on the client's loop only; no locks. An OrderedDict, because finding the first key of a dict from which
the front was deleted scans the holes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from contrailmq.client.transport.routes import MASTER_ID
from contrailmq.message import MessageQueue, StoredMessage

PULL_EXPIRES_AFTER_S: Final = 120.0  # a queue without a pull for so long is dropped and taken again
LOCK_EXPIRES_AFTER_S: Final = 30.0  # brokers keep a lock for 60 s; half of that is trusted here


class ProcessQueue:
    """The messages of one queue that are pulled and not yet consumed. Owned by one consumer."""

    __slots__ = (
        "_bytes",
        "_consuming",
        "_messages",
        "is_dropped",
        "is_locked",
        "last_lock_s",
        "last_pull_s",
        "queue_offset_max",
    )

    def __init__(self, now_s: float = 0.0) -> None:
        self._messages: OrderedDict[int, StoredMessage] = OrderedDict()
        self._consuming: OrderedDict[int, StoredMessage] = OrderedDict()
        self._bytes = 0
        self.queue_offset_max = -1
        self.is_dropped = False
        self.is_locked = False
        self.last_pull_s = now_s
        self.last_lock_s = now_s

    # What flow control looks at.
    @property
    def count(self) -> int:
        return len(self._messages) + len(self._consuming)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def span(self) -> int:
        """Distance between the first and the last cached offset."""
        if not self._messages:
            return 0
        return next(reversed(self._messages)) - next(iter(self._messages))

    @property
    def offset_range(self) -> tuple[int, int]:
        """Lowest and highest cached offset; (0, 0) when empty. For reports."""
        if not self._messages:
            return 0, 0
        return next(iter(self._messages)), next(reversed(self._messages))

    @property
    def first_offset(self) -> int | None:
        """Of the first message that is not done, in whichever hands; None when all are."""
        first = [next(iter(part)) for part in (self._consuming, self._messages) if part]
        return min(first, default=None)

    @property
    def consuming_count(self) -> int:
        return len(self._consuming)

    @property
    def has_waiting(self) -> bool:
        return bool(self._messages)

    def is_pull_expired(self, now_s: float) -> bool:
        return now_s - self.last_pull_s > PULL_EXPIRES_AFTER_S

    def is_lock_expired(self, now_s: float) -> bool:
        return now_s - self.last_lock_s > LOCK_EXPIRES_AFTER_S

    def put(self, messages: Iterable[StoredMessage]) -> None:
        """Add what a pull brought, in offset order. An offset that is inside already is left alone."""
        cache = self._messages
        for message in messages:
            offset = message.queue_offset
            if offset not in cache:
                cache[offset] = message
                self._bytes += len(message.stored_body)
                if offset > self.queue_offset_max:
                    self.queue_offset_max = offset

    def remove(self, messages: Sequence[StoredMessage]) -> int:
        """Messages that are done. Returns the offset that may be committed, or -1 when nothing was inside."""
        cache = self._messages
        if not cache:
            return -1
        for message in messages:
            removed = cache.pop(message.queue_offset, None)
            if removed is not None:
                self._bytes -= len(removed.stored_body)
        return next(iter(cache)) if cache else self.queue_offset_max + 1

    def oldest(self, count: int) -> list[StoredMessage]:
        """Up to `count` messages from the front, left inside."""
        return [message for message, _ in zip(self._messages.values(), range(count), strict=False)]

    # Orderly consumption.
    def take(self, count: int) -> list[StoredMessage]:
        """Move up to `count` messages from the front to the consuming side."""
        taken: list[StoredMessage] = []
        while self._messages and len(taken) < count:
            offset, message = self._messages.popitem(last=False)
            self._consuming[offset] = message
            taken.append(message)
        return taken

    def commit(self) -> int:
        """Everything taken is done. Returns the offset that may be committed, or -1 when nothing was taken."""
        if not self._consuming:
            return -1
        last = next(reversed(self._consuming))
        self._bytes -= sum(len(message.stored_body) for message in self._consuming.values())
        self._consuming.clear()
        return last + 1

    def put_back(self, messages: Sequence[StoredMessage] | None = None) -> None:
        """Taken messages (None: all) return to the front, in order."""
        chosen = list(self._consuming.values()) if messages is None else list(messages)
        for message in sorted(chosen, key=_offset_of, reverse=True):
            if self._consuming.pop(message.queue_offset, None) is not None:
                self._messages[message.queue_offset] = message
                self._messages.move_to_end(message.queue_offset, last=False)

    def clear(self) -> None:
        self._messages.clear()
        self._consuming.clear()
        self._bytes = 0


def _offset_of(message: StoredMessage) -> int:
    return message.queue_offset


class Assignment:
    """One queue that a consumer has: its cache, its tasks, and the signals between pulling and consuming.

    Owned by one consumer and used on its loop only. `queue` has its namespace.
    """

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
        """The same without waiting; the tasks that were cancelled."""
        self.cache.is_dropped = True
        current = asyncio.current_task()
        others = [task for task in self.tasks if task is not current]
        for task in others:
            task.cancel()
        return others
