"""Concurrent consumption: no order, retries by the broker.

Each chunk of a pull is one call. What succeeded leaves the cache; what failed is handed back to the broker,
which delivers it again after a delay that grows with each failure, and ends in the dead-letter queue. When handing back
fails, the message stays here and is tried again after five seconds: it is never dropped.

One message that hangs blocks the commit of its queue, not its consumption, until the cache spans 2000 offsets; after
`consume_timeout_s` it is handed back and given up here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from contrailmq.client.consuming.consume_watch import ConsumeWatch
from contrailmq.client.consuming.listener_pool import Call, ListenerPool
from contrailmq.client.consuming.process_queue import Assignment
from contrailmq.client.consuming.send_back import SendBack
from contrailmq.client.hooks import user_error_log
from contrailmq.client.offset_store import OffsetTable
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import ConsumeOutcome, ConsumeResult, MessageModel
from contrailmq.client.settings import PushConsumerOptions

_log = user_error_log("contrailmq.client.consumer")

LOCAL_RETRY_S: Final = 5.0
EXPIRED_AT_ONCE: Final = 16
EXPIRED_LEVEL: Final = 3


class ConcurrentConsumption:
    """Gives pulled messages to the listener in chunks and settles what it says."""

    def __init__(
        self,
        options: PushConsumerOptions,
        pool: ListenerPool,
        offsets: OffsetTable,
        send_back: SendBack,
        watch: ConsumeWatch,
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        self._options = options
        self._pool = pool
        self._offsets = offsets
        self._send_back = send_back
        self._watch = watch
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._later: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()

    def submit(self, assignment: Assignment, messages: list[ReceivedMessage]) -> None:
        size = self._options.consume_batch_size
        if len(messages) <= size:
            self._submit_chunk(assignment, messages)
            return
        for start in range(0, len(messages), size):
            self._submit_chunk(assignment, messages[start : start + size])

    def _submit_chunk(self, assignment: Assignment, chunk: list[ReceivedMessage]) -> None:
        self._pool.submit(_ChunkCall(self, assignment, chunk))

    def begin(self, assignment: Assignment, chunk: list[ReceivedMessage]) -> bool:
        """Whether the chunk is still ours to consume. Runs where the listener runs."""
        if assignment.cache.is_dropped:
            return False
        now_s = self._loop.time()
        for message in chunk:
            message.consume_start_s = now_s
        if self._watch.is_on:
            self._watch.before(assignment.queue, chunk)
        return True

    def settle(self, assignment: Assignment, chunk: list[ReceivedMessage], call: Call) -> None:
        """What the listener said of a chunk."""
        if not call.was_run:
            return
        outcome = call.outcome()
        self._watch.after(assignment.queue, chunk, outcome, call.error)
        if call.error is not None:
            _log.warning("the listener raised for %s, retry later: %r", chunk[0], call.error, exc_info=call.error)
        failed = self._failed(chunk, outcome)
        if not failed or self._options.model is MessageModel.BROADCASTING:
            self._finish(assignment, chunk)  # broadcasting has no retries: a failure was logged above
            return
        task = self._spawn(self._settle_failed(assignment, chunk, failed, outcome.delay_level), "send-back")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _failed(self, chunk: list[ReceivedMessage], outcome: ConsumeOutcome) -> list[ReceivedMessage]:
        if outcome.result is not ConsumeResult.SUCCESS:
            return chunk
        return [] if outcome.acknowledged is None else chunk[max(0, outcome.acknowledged) :]

    async def _settle_failed(
        self, assignment: Assignment, chunk: list[ReceivedMessage], failed: list[ReceivedMessage], delay_level: int
    ) -> None:
        """Hand each failed message back; what cannot be handed back is tried again here later."""
        stuck: list[ReceivedMessage] = []
        for message in failed:
            if assignment.cache.is_dropped:
                return  # the queue's next owner gets all of it again
            if not await self._send_back.send_back(message, topic=assignment.queue.topic, delay_level=delay_level):
                message.reconsume_times += 1
                stuck.append(message)
        stuck_offsets = {message.queue_offset for message in stuck}
        self._finish(assignment, [message for message in chunk if message.queue_offset not in stuck_offsets])
        if stuck:
            task = self._spawn(self._retry_here(assignment, stuck), "local-retry")
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _retry_here(self, assignment: Assignment, messages: list[ReceivedMessage]) -> None:
        await asyncio.sleep(LOCAL_RETRY_S)
        if not assignment.cache.is_dropped:
            self.submit(assignment, messages)

    def _finish(self, assignment: Assignment, done: list[ReceivedMessage]) -> None:
        """Take messages out of the cache and move the offset."""
        cache = assignment.cache
        offset = cache.remove(done)
        if offset >= 0 and not cache.is_dropped:
            self._offsets.raise_to(assignment.queue, offset)
        assignment.room.set()

    async def clean_expired(self, assignment: Assignment) -> None:
        """Hand back what a listener has held for longer than the consume timeout."""
        for message in assignment.cache.oldest(EXPIRED_AT_ONCE):
            assert isinstance(message, ReceivedMessage)
            began_s = message.consume_start_s
            if not began_s or self._loop.time() - began_s <= self._options.consume_timeout_s:
                return
            _log.warning("a listener holds %r for over %.0f s: handed back", message, self._options.consume_timeout_s)
            if await self._send_back.send_back(message, topic=assignment.queue.topic, delay_level=EXPIRED_LEVEL):
                self._finish(assignment, [message])

    async def close(self) -> None:
        """Settle what is being settled; local retries are given up (their offsets were never committed)."""
        for task in self._later:
            task.cancel()
        if self._settling:
            await asyncio.gather(*self._settling, return_exceptions=True)


class _ChunkCall(Call):
    """A listener call for some messages of one queue."""

    __slots__ = ("_assignment", "_chunk", "_consumption")

    def __init__(
        self, consumption: ConcurrentConsumption, assignment: Assignment, chunk: list[ReceivedMessage]
    ) -> None:
        super().__init__(chunk)
        self._consumption = consumption
        self._assignment = assignment
        self._chunk = chunk

    def is_wanted(self) -> bool:
        return self._consumption.begin(self._assignment, self._chunk)

    def done(self) -> None:
        self._consumption.settle(self._assignment, self._chunk, self)
