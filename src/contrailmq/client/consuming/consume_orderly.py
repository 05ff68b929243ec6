"""Consumption in order: one call at a time for each queue, under the broker's lock.

Each queue has a task that takes messages from the front of its cache, gives them to the listener and waits. Success
commits; failure puts them back and the queue rests for a moment, so the same message comes again before any later one.
A message that failed `max_reconsume_times` times is sent to the dead-letter queue and the queue goes on.

Nothing is consumed while the lock is not ours. When the queue is given up, the running call is waited for first, so
the next owner never overlaps with it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from contrailmq.client.consuming.consume_watch import ConsumeWatch
from contrailmq.client.consuming.listener_pool import ListenerPool
from contrailmq.client.consuming.process_queue import Assignment
from contrailmq.client.consuming.queue_locks import QueueLocks
from contrailmq.client.consuming.send_back import SendBack
from contrailmq.client.hooks import user_error_log
from contrailmq.client.offset_store import OffsetTable
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import ConsumeOutcome, ConsumeResult, MessageModel
from contrailmq.client.settings import PushConsumerOptions
from contrailmq.client.transport.waiting import set_within

_log = user_error_log("contrailmq.client.consumer")

LOCK_REFUSED_WAIT_S: Final = 3.0
SUSPEND_MIN_S: Final = 0.01
SUSPEND_MAX_S: Final = 30.0


class OrderlyConsumption:
    """Runs one task a queue."""

    def __init__(
        self,
        options: PushConsumerOptions,
        pool: ListenerPool,
        offsets: OffsetTable,
        send_back: SendBack,
        watch: ConsumeWatch,
        locks: QueueLocks,
    ) -> None:
        self._options = options
        self._pool = pool
        self._offsets = offsets
        self._send_back = send_back
        self._watch = watch
        self._locks = locks
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Assignment, asyncio.Event] = {}

    @property
    def _needs_lock(self) -> bool:
        return self._options.model is MessageModel.CLUSTERING

    def is_locked(self, assignment: Assignment) -> bool:
        cache = assignment.cache
        return not self._needs_lock or (cache.is_locked and not cache.is_lock_expired(self._loop.time()))

    async def lock(self, assignments: list[Assignment]) -> None:
        """Get or renew the locks."""
        locked = await self._locks.lock(assignment.queue for assignment in assignments)
        for assignment in assignments:
            assignment.cache.is_locked = assignment.queue in locked
            if assignment.cache.is_locked:
                assignment.cache.last_lock_s = self._loop.time()

    async def run_queue(self, assignment: Assignment) -> None:
        """Consume the queue until it is dropped."""
        cache = assignment.cache
        idle = self._idle[assignment] = asyncio.Event()
        idle.set()
        try:
            while not cache.is_dropped:
                if not cache.has_waiting:
                    assignment.arrived.clear()
                    await assignment.arrived.wait()
                    continue
                if not self.is_locked(assignment):
                    await self.lock([assignment])
                    if not self.is_locked(assignment):
                        await asyncio.sleep(LOCK_REFUSED_WAIT_S)
                    continue
                idle.clear()
                try:
                    rest_s = await self._consume_next(assignment)
                finally:
                    idle.set()
                if rest_s:
                    await asyncio.sleep(rest_s)
        finally:
            self._idle.pop(assignment, None)

    async def wait_idle(self, assignment: Assignment, wait_s: float) -> bool:
        """Whether no call of the queue runs any more."""
        idle = self._idle.get(assignment)
        if idle is None:
            return True
        return await set_within(idle, wait_s)

    async def _consume_next(self, assignment: Assignment) -> float:
        """One call and its settlement; returns how long the queue shall rest."""
        cache, queue = assignment.cache, assignment.queue
        batch = cache.take(self._options.consume_batch_size)
        messages = [message for message in batch if isinstance(message, ReceivedMessage)]

        def begin() -> bool:
            if cache.is_dropped:
                return False
            if self._watch.is_on:  # only for a call that is run; its end is reported too
                self._watch.before(queue, messages)
            return True

        call = await self._pool.run(messages, begin)
        if not call.was_run:
            cache.put_back()
            return 0.0
        outcome = call.outcome()
        self._watch.after(queue, messages, outcome, call.error)
        if call.error is not None:
            _log.warning(
                "the listener raised for %r, the queue rests: %r", messages[0], call.error, exc_info=call.error
            )
        return await self._settle(assignment, messages, outcome)

    async def _settle(self, assignment: Assignment, messages: list[ReceivedMessage], outcome: ConsumeOutcome) -> float:
        result = outcome.result
        rest_s = self._options.suspend_s if outcome.suspend_ms is None else outcome.suspend_ms / 1000
        rest_s = min(max(rest_s, SUSPEND_MIN_S), SUSPEND_MAX_S)
        if result is ConsumeResult.RETRY:
            if await self._try_again(messages):
                assignment.cache.put_back(messages)
                return rest_s
            result = ConsumeResult.COMMIT  # all of them went to the dead-letter queue
        if not self._options.auto_commit:
            if result is ConsumeResult.ROLLBACK:
                assignment.cache.put_back()
                return rest_s
            if result is ConsumeResult.SUCCESS:
                return 0.0  # consumed, committed later
        offset = assignment.cache.commit()
        if offset >= 0:
            self._offsets.raise_to(assignment.queue, offset)
        assignment.room.set()
        return 0.0

    async def _try_again(self, messages: list[ReceivedMessage]) -> bool:
        """Count the failure; whether any of the messages must be tried again."""
        limit = self._options.max_reconsume_times
        again = False
        for message in messages:
            if 0 <= limit <= message.reconsume_times:
                if await self._send_back.send_to_retry_topic(message):
                    continue
            else:
                message.reconsume_times += 1
            again = True
        return again
