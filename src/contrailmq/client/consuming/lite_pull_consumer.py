"""The lite pull consumer: the caller asks for messages when it wants them.

    async with aio.LitePullConsumer("audit", namesrv="127.0.0.1:9876") as pull:
        pull.subscribe("Orders")
        messages = await pull.poll(timeout=1.0)
        await pull.commit()

Use either `subscribe`, which shares queues with the group's other members, or `assign`, which takes the given queues.
Pulling fills a bounded cache in the background. With `auto_commit` (the default) each `poll` marks the messages of
earlier polls as done; they are committed every five seconds and at shutdown, but not when an exception leaves the
`with`. There are no retries: the caller keeps or forwards a message that it could not handle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Final, Unpack

from contrailmq.client.consuming.consume_watch import ConsumeWatch, filtered
from contrailmq.client.consuming.group_consumer import GroupConsumer
from contrailmq.client.consuming.listener_pool import SUCCESS
from contrailmq.client.consuming.process_queue import Assignment
from contrailmq.client.consuming.pulling import SUSPEND_LITE_S, Pulled, PullRequest, pull
from contrailmq.client.consuming.running_info import running_info
from contrailmq.client.consuming.subscription import SqlFilter, Subscription
from contrailmq.client.errors import ClientError, ClientStateError, OffsetNotStoredError, OffsetOutOfRangeError
from contrailmq.client.hooks import user_error_log
from contrailmq.client.life import State
from contrailmq.client.namespace import unwrap, wrap
from contrailmq.client.producing.trace import TraceDispatcher, open_trace
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import PullStatus
from contrailmq.client.settings import LitePullConsumerOptions, LitePullConsumerSettings
from contrailmq.client.transport.routes import subscribe_queues
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import RETRY_PREFIX, ContrailError, MessageQueue, Property, StoredMessage
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError

_log = user_error_log("contrailmq.client.consumer")

FLOW_CONTROL_WAIT_S: Final = 0.02
POLL_COUNT_MAX: Final = 256  # messages that one poll returns at most: whole pulls until then

QueuesListener = Callable[[str, list[MessageQueue]], None]


class LitePullConsumer(GroupConsumer):
    """Hands out messages of its queues on request."""

    consume_type = "CONSUME_ACTIVELY"

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[LitePullConsumerSettings]) -> None:
        self.options = LitePullConsumerOptions(namesrv=namesrv, **settings)
        super().__init__(group, self.options)
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._assigned: set[MessageQueue] | None = None  # None: subscribe mode
        self._paused: set[MessageQueue] = set()
        self._ready: deque[tuple[Assignment, list[ReceivedMessage]]] = deque()
        self._arrived = asyncio.Event()
        self._ready_count = 0
        self._room = asyncio.Event()
        self._consumed: dict[MessageQueue, int] = {}
        self._auto_commit_at_s = 0.0
        self._listeners: dict[str, tuple[QueuesListener, list[MessageQueue]]] = {}
        self._trace: TraceDispatcher | None = None
        self._watch = ConsumeWatch(self.group, self.options.hooks, None)

    async def __aexit__(self, *exc: object) -> None:
        if exc and exc[0] is not None:
            self.forget_polled()
        await self.shutdown()

    def forget_polled(self) -> None:
        """What was polled may not have been handled: shutdown shall not commit it."""
        self._consumed.clear()

    # Which queues.
    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Share a topic's queues with the group's other members."""
        if self._assigned is not None:
            raise ClientStateError("subscribe and assign exclude each other: this consumer has assigned queues")
        super().subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        super().unsubscribe(topic)
        self._listeners.pop(topic, None)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, whatever other members do. Replaces an earlier assignment."""
        self.set_assigned(queues)
        if self._life.is_running:
            await self._apply_assigned()

    def set_assigned(self, queues: Iterable[MessageQueue]) -> None:
        """What `assign` does before the start."""
        if self._subscriptions:
            raise ClientStateError("subscribe and assign exclude each other: this consumer has subscriptions")
        self._assigned = {self._real(queue) for queue in queues}

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._shown(sorted(self._assignments))

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic."""
        real = wrap(self.options.namespace, topic)
        return self._shown(subscribe_queues(real, await self._running().refresh_route(real)))

    def on_topic_queues_changed(self, topic: str, listener: QueuesListener) -> None:
        """Tell `listener(topic, queues)` when the topic's set of queues changes; looked at every 30 s."""
        self._listeners[topic] = (listener, [])

    # Life.
    async def start(self) -> None:
        if self._was_entered and self._life.is_running:
            return
        self._life.begin()
        try:
            instance = await self._join()
        except BaseException:  # a cancelled start has failed too
            self._life.state = State.FAILED
            raise
        try:
            if self.options.trace:
                self._trace = open_trace(instance, self.options, group=self.group, kind="CONSUME")
                self._watch = ConsumeWatch(self.group, self.options.hooks, self._trace)
            self._auto_commit_at_s = instance.loop.time() + self.options.auto_commit_interval_s
            await self._enter_group()
            self._tasks.append(instance.spawn(self._watch_topics(), "topics"))
            if self._assigned is not None:
                await self._apply_assigned()
        except BaseException:  # the same, and what was opened is closed
            self._life.state = State.FAILED
            await self._close_all()
            raise
        self._life.state = State.RUNNING

    async def shutdown(self) -> None:
        """Stop pulling, store the offsets, leave the group."""
        if self._life.end():
            await self._close_all()

    async def _close_all(self) -> None:
        try:
            await self._stop_tasks()
            await asyncio.gather(*(assignment.stop() for assignment in self._assignments.values()))
            if self.options.auto_commit:
                self._move_consumed()
            await self._persist_finally(list(self._assignments))
        finally:  # also when it was cancelled: a member that does not read would keep its queues for ever
            for assignment in self._assignments.values():
                assignment.abandon()
            self._assignments.clear()
            self._arrived.set()
            if self._trace is not None:
                await self._trace.close()
            await self._leave()

    # Messages.
    async def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """The next messages, or an empty list when none came within `timeout` seconds."""
        if timeout < 0:
            raise ClientError(f"poll's timeout is {timeout} s: it must not be negative")
        loop = self._running().loop
        if self.options.auto_commit and loop.time() >= self._auto_commit_at_s:
            self._auto_commit_at_s = loop.time() + self.options.auto_commit_interval_s
            self._move_consumed()
        deadline_s = loop.time() + timeout
        while not (messages := self._take_ready()):
            self._life.check_running()
            self._arrived.clear()
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                break
            await set_within(self._arrived, left_s)
        return messages

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Messages one by one, until the consumer is shut down."""
        while self._life.is_running:
            try:
                messages = await self.poll()
            except ClientStateError:
                return
            for message in messages:
                yield message

    def _take_ready(self) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        while self._ready and len(messages) < POLL_COUNT_MAX:
            assignment, batch = self._ready.popleft()
            self._ready_count -= len(batch)
            if assignment.cache.is_dropped:
                continue
            offset = assignment.cache.remove(batch)
            if offset >= 0:
                self._consumed[assignment.queue] = offset
            assignment.room.set()
            if self._watch.is_on:  # handed out is consumed, as far as anybody here can tell
                self._watch.before(assignment.queue, batch)
                self._watch.after(assignment.queue, batch, SUCCESS, None)
            messages += batch
        self._room.set()
        return messages

    # Offsets.
    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store how far the caller is, everything polled so far or the given offsets; the broker has it on return.

        Raises OffsetNotStoredError if a broker did not store it. It is still tried again every five seconds.
        """
        self._running()
        table = self._offsets().table
        if offsets is None:
            self._move_consumed()
            await self._store_now(list(self._assignments))
            return
        for queue, offset in offsets.items():
            if offset < 0:
                raise ClientError(f"offset {offset} for {queue} cannot be committed: it must not be negative")
            table.update(self._real(queue), offset)
        await self._store_now([self._real(queue) for queue in offsets])

    async def _store_now(self, queues: list[MessageQueue]) -> None:
        failed = await self._offsets().persist(queues)
        if failed:
            raise OffsetNotStoredError(self._shown(failed))

    def _move_consumed(self) -> None:
        table = self._offsets().table
        for queue, offset in self._consumed.items():
            if queue in self._assignments:
                table.raise_to(queue, offset)

    async def committed(self, queue: MessageQueue) -> int:
        """The stored offset, -1 when there is none."""
        self._running()
        return await self._offsets().read_stored(self._real(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset that the queue has; cached messages of the queue are forgotten."""
        real = self._real(queue)
        self._assigned_queue(real)
        low = await self._queue_offset(real, RequestCode.GET_MIN_OFFSET)
        high = await self._queue_offset(real, RequestCode.GET_MAX_OFFSET)
        if not low <= offset <= high:
            raise OffsetOutOfRangeError(f"offset {offset} of {queue} does not exist: the queue holds {low} to {high}")
        old = self._assigned_queue(real)
        await old.stop()
        self._offsets().table.remove(real)
        self._consumed[real] = offset  # stored when it is time to commit, as after a poll
        self._begin(real, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self._queue_offset(self._real(queue), RequestCode.GET_MIN_OFFSET))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self._queue_offset(self._real(queue), RequestCode.GET_MAX_OFFSET))

    async def seek_to_timestamp(self, queue: MessageQueue, time_ms: int) -> None:
        """Continue at the first message that was stored at or after the time."""
        await self.seek(queue, await self.offset_for_timestamp(queue, time_ms))

    async def offset_for_timestamp(self, queue: MessageQueue, time_ms: int) -> int:
        return await self._queue_offset(self._real(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues; what is cached is still handed out."""
        self._paused.update(self._real(queue) for queue in queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            real = self._real(queue)
            self._paused.discard(real)
            if real in self._assignments:
                self._assignments[real].room.set()

    def _assigned_queue(self, real: MessageQueue) -> Assignment:
        assignment = self._assignments.get(real)
        if assignment is None:
            raise ClientStateError(f"{real} is not assigned to this consumer: it has {self.assignment}")
        return assignment

    # Queues come and go.
    def _owned(self) -> Collection[MessageQueue]:
        return list(self._assignments) if self._assigned is None else []

    def _read(self) -> Collection[MessageQueue]:
        return list(self._assignments)

    async def _take(self, queue: MessageQueue) -> bool:
        self._offsets().table.remove(queue)
        self._begin(queue, await self._start_offset(queue))
        return True

    async def _drop(self, queue: MessageQueue) -> bool:
        assignment = self._assignments.pop(queue, None)
        if assignment is None:
            return True
        await assignment.stop()
        store = self._offsets()
        offset = self._consumed.pop(queue, None)
        if self.options.auto_commit and offset is not None:
            store.table.raise_to(queue, offset)
        await store.persist([queue])
        store.table.remove(queue)
        return True

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        instance = self._running()
        assignment = self._assignments[queue] = Assignment(queue, offset, instance.loop.time())
        assignment.tasks.append(instance.spawn(self._pull_loop(assignment), "lite-pull"))

    async def _apply_assigned(self) -> None:
        wanted = self._assigned or set()
        for queue in [queue for queue in self._assignments if queue not in wanted]:
            await self._drop(queue)
        for queue in sorted(wanted - self._assignments.keys()):
            await self._running().route(queue.topic)
            await self._take(queue)

    def topics(self) -> set[str]:
        return super().topics() | {queue.topic for queue in self._assigned or ()}

    # The pull loop of one queue.
    async def _pull_loop(self, assignment: Assignment) -> None:
        while not assignment.cache.is_dropped:
            try:
                await self._wait_for_turn(assignment)
                pulled = await self._pull(assignment)
            except ContrailError as exc:
                is_flow_control = isinstance(exc, ResponseError) and exc.code == ResponseCode.FLOW_CONTROL
                if not is_flow_control:
                    _log.info("pull of %s is tried again: %s", assignment.queue, exc)
                    self._running_or_ending().refresh_soon(assignment.queue.topic)
                await asyncio.sleep(FLOW_CONTROL_WAIT_S if is_flow_control else self.options.pull_retry_delay_s)
                continue
            self._take_pulled(assignment, pulled)

    async def _wait_for_turn(self, assignment: Assignment) -> None:
        cache, options = assignment.cache, self.options
        while True:
            is_full = cache.count > options.pull_threshold_count or cache.size_bytes > options.pull_threshold_bytes
            if is_full or cache.span > options.max_span or assignment.queue in self._paused:
                assignment.room.clear()
                await assignment.room.wait()
            elif self._ready_count > options.pull_threshold_all:
                self._room.clear()
                await self._room.wait()
            else:
                return

    async def _pull(self, assignment: Assignment) -> Pulled:
        instance = self._running_or_ending()
        assignment.cache.last_pull_s = instance.loop.time()
        topic = assignment.queue.topic
        request = PullRequest(
            assignment.queue,
            assignment.next_offset,
            self._subscriptions.get(topic) or Subscription(topic),
            self.options.pull_batch_size,
            self.options.pull_batch_bytes,
            suspend_s=SUSPEND_LITE_S,
            broker_id=assignment.broker_id,
            is_lite=True,
            carries_subscription=True,
        )
        pulled = await pull(instance, self.group, request)
        assignment.broker_id = pulled.suggested_id
        return pulled

    def _take_pulled(self, assignment: Assignment, pulled: Pulled) -> None:
        if assignment.cache.is_dropped:
            return
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            _log.warning(
                "%s has no offset %d, goes on at %d", assignment.queue, assignment.next_offset, pulled.next_offset
            )
        assignment.next_offset = pulled.next_offset
        self.damaged_count += pulled.damaged
        messages = pulled.messages
        if messages and self.options.hooks is not None:
            messages = filtered(self.options.hooks, assignment.queue, messages)
        if not messages:
            if not assignment.cache.count and pulled.status is not PullStatus.OFFSET_ILLEGAL:
                self._consumed[assignment.queue] = pulled.next_offset
            return
        for message in messages if assignment.queue.topic.startswith(RETRY_PREFIX) else ():
            message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)
        for message in messages if self.options.namespace else ():
            message.topic = unwrap(self.options.namespace, message.topic)
        assignment.cache.put(messages)
        self._ready.append((assignment, messages))
        self._ready_count += len(messages)
        self._arrived.set()

    async def _watch_topics(self) -> None:
        while True:
            for topic, (listener, known) in list(self._listeners.items()):
                try:
                    queues = await self.fetch_queues(topic)
                except ContrailError as exc:
                    _log.info("the queues of %s are looked at again later: %s", topic, exc)
                    continue
                self._listeners[topic] = (listener, queues)
                if known and queues != known:
                    self._tell(listener, topic, queues)
            await asyncio.sleep(self.options.topic_metadata_interval_s)

    def _tell(self, listener: QueuesListener, topic: str, queues: list[MessageQueue]) -> None:
        try:
            listener(topic, queues)
        except Exception:  # noqa: BLE001 -- user code must not stop the watching
            _log.exception("the listener for queues of %s raised", topic)

    # What brokers may ask.
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moved the offsets: continue there."""
        for queue, offset in offsets.items():
            if queue in self._assignments:
                await self._assignments[queue].stop()
                self._consumed.pop(queue, None)
                self._offsets().table.remove(queue)
                self._offsets().table.update(queue, offset)
                self._begin(queue, offset)

    def running_info(self) -> ConsumerRunningInfo:
        return running_info(self, self._assignments, self._watch.counts)

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        raise ClientStateError("a pull consumer has no listener to run")
