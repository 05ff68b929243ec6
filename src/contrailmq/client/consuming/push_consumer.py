"""The push consumer: messages come to a listener.

    consumer = aio.PushConsumer("billing", namesrv="127.0.0.1:9876", from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Orders", "paid || shipped")
    consumer.listen(handle)                     # def or async def handle(messages: list[StoredMessage])
    await consumer.start()

One long-polling loop per queue fills a bounded cache (`process_queue.py`). Offsets advance when listeners are done and
are written every five seconds, with each pull, when a queue is given up and at shutdown. Delivery is at least once:
use `contrailmq.idempotent` or a business key. None means success, an exception means retry (in Java null is a retry).

With `pop=True` there are no queues of its own and no offsets: brokers hand messages out, and each is acknowledged
(`pop_consumption.py`). Everything about membership, listeners, hooks and shutdown is the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from typing import Final, Unpack

from contrailmq.client.consuming.consume_concurrent import ConcurrentConsumption
from contrailmq.client.consuming.consume_orderly import OrderlyConsumption
from contrailmq.client.consuming.consume_watch import ConsumeWatch, filtered
from contrailmq.client.consuming.group_consumer import GroupConsumer
from contrailmq.client.consuming.listener_pool import Listener, ListenerPool
from contrailmq.client.consuming.pop_assignment import assigned_queues
from contrailmq.client.consuming.pop_consumption import PopConsumption
from contrailmq.client.consuming.process_queue import Assignment
from contrailmq.client.consuming.pulling import SUSPEND_PUSH_S, Pulled, PullRequest, pull
from contrailmq.client.consuming.queue_locks import RENEW_EVERY_S, QueueLocks
from contrailmq.client.consuming.running_info import running_info
from contrailmq.client.consuming.send_back import SendBack
from contrailmq.client.consuming.subscription import Subscription
from contrailmq.client.errors import ClientConfigError, ClientStateError
from contrailmq.client.life import State
from contrailmq.client.namespace import unwrap
from contrailmq.client.producing.trace import TraceDispatcher, open_trace
from contrailmq.client.records import PoppedMessage, ReceivedMessage
from contrailmq.client.results import ConsumeResult, MessageModel, PullStatus
from contrailmq.client.settings import PushConsumerOptions, PushConsumerSettings, check_range
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import subscribe_queues
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import RETRY_PREFIX, ContrailError, MessageQueue, Property, retry_topic
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ResponseError

_log = logging.getLogger("contrailmq.client.consumer")

PAUSED_WAIT_S: Final = 1.0
FULL_LOOK_S: Final = 30.0  # a listener may hold a full cache for hours; far less than PULL_EXPIRES_AFTER_S
FLOW_CONTROL_WAIT_S: Final = 0.02
UNLOCK_WAIT_S: Final = 0.5
RESET_WAIT_S: Final = 10.0  # Java's pause between dropping queues and writing the new offsets
_UNKNOWN_HERE: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


class PushConsumer(GroupConsumer):
    """Delivers the messages of its share of queues to a listener."""

    consume_type = "CONSUME_PASSIVELY"

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[PushConsumerSettings]) -> None:
        self.options = PushConsumerOptions(namesrv=namesrv, **settings)
        super().__init__(group, self.options)
        self._listener: Listener | None = None
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._is_suspended = False
        self._trace: TraceDispatcher | None = None
        self._pool: ListenerPool | None = None
        self._concurrent: ConcurrentConsumption | None = None
        self._orderly: OrderlyConsumption | None = None
        self._locks: QueueLocks | None = None
        self._popping: PopConsumption | None = None

    def listen(self, listener: Listener) -> None:
        """Set the listener: `def` (runs in threads) or `async def` (runs on the loop)."""
        if self._life.state is not State.CREATED and self._listener is not None:
            raise ClientStateError("the listener is set before start, once")
        self._listener = listener
        if self._life.is_running:
            self._open_pool(self._running())
            self.request_rebalance()

    # Life.
    async def start(self) -> None:
        """Join the group and begin to consume. A consumer that was entered with `with` waits for its listener."""
        if self._was_entered and self._life.is_running:
            return
        self._life.begin()
        if self.options.model is MessageModel.CLUSTERING and not (self.options.pop and self.options.orderly):
            self._subscribe_retries()
        try:
            instance = await self._join()
        except BaseException:  # a cancelled start has failed too
            self._life.state = State.FAILED
            raise
        try:
            if self.options.trace:
                self._trace = open_trace(instance, self.options, group=self.group, kind="CONSUME")
            if self._listener is not None:
                self._open_pool(instance)
            await self._enter_group()
        except BaseException:  # the same, and what was opened is closed
            self._life.state = State.FAILED
            await self._close_all()
            raise
        self._tasks.append(instance.spawn(self._clean_expired_loop(), "expired"))
        if self.options.orderly and self.options.model is MessageModel.CLUSTERING and not self.options.pop:
            self._tasks.append(instance.spawn(self._renew_locks_loop(), "locks"))
        self._life.state = State.RUNNING

    async def shutdown(self) -> None:
        """Stop pulling, wait for running listeners, store the offsets, leave the group.

        Messages that were pulled and not given to the listener are simply delivered again to the next owner.
        """
        if self._life.end():
            await self._close_all()

    def _subscribe_retries(self) -> None:
        topic = retry_topic(self.group)
        self._subscriptions[topic] = Subscription(topic, version=time.time_ns() // 1_000_000)

    def _open_pool(self, instance: ClientInstance) -> None:
        assert self._listener is not None
        options = self.options
        pool = self._pool = ListenerPool(self._listener, options.consume_threads)
        watch = self._watch = ConsumeWatch(self.group, options.hooks, self._trace)
        if options.pop:
            self._popping = PopConsumption(
                options, instance, self.group, pool, watch, self._subscriptions, self._show_popped
            )
            self._popping.is_suspended = self._is_suspended
            return
        send_back = SendBack(instance, self.group, max_reconsume_times=options.max_reconsume_times)
        table = self._offsets().table
        self._locks = QueueLocks(instance, self.group)
        if options.orderly:
            self._orderly = OrderlyConsumption(options, pool, table, send_back, watch, self._locks)
        else:
            self._concurrent = ConcurrentConsumption(options, pool, table, send_back, watch, instance.spawn)

    async def _close_all(self) -> None:
        try:
            await self._end_consumption()
        finally:  # also when it failed or was cancelled: a member that does not consume would keep its queues for ever
            if self._pool is not None:
                self._pool.abandon()
            for assignment in self._assignments.values():
                assignment.abandon()
            self._assignments.clear()
            if self._trace is not None:
                await self._trace.close()
            await self._leave()

    async def _end_consumption(self) -> None:
        await self._stop_tasks()
        if self._popping is not None:
            self._popping.stop_popping()
        for assignment in self._assignments.values():
            for task in assignment.tasks[:1]:  # the pull loop; an orderly queue's second task ends below
                task.cancel()
            if self._orderly is not None:
                assignment.cache.is_dropped = True
                assignment.arrived.set()
        if self._pool is not None:
            self._pool.refuse_new()
            if not await self._pool.close(self.options.shutdown_wait_s):
                _log.warning(
                    "listeners still ran after %.1f s: their messages come again", self.options.shutdown_wait_s
                )
        if self._popping is not None:
            await self._popping.close()
            return
        if self._concurrent is not None:
            await self._concurrent.close()
        await asyncio.gather(*(assignment.stop() for assignment in self._assignments.values()))
        await self._persist_finally(list(self._assignments))
        if self._orderly is not None and self._locks is not None and self.options.model is MessageModel.CLUSTERING:
            await self._locks.unlock(list(self._assignments))

    async def _last_words(self) -> None:
        if self._popping is not None:
            await self._popping.let_go_of_the_last()

    # Dynamic operations.
    def suspend(self) -> None:
        """Stop pulling; what is cached is still consumed."""
        self._suspend(True)

    def resume(self) -> None:
        self._suspend(False)
        self.request_rebalance()

    def _suspend(self, is_suspended: bool) -> None:
        self._is_suspended = is_suspended
        if self._popping is not None:
            self._popping.is_suspended = is_suspended

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    def resize_pool(self, consume_threads: int) -> None:
        """Change how many listener calls run at a time."""
        check_range("consume_threads", consume_threads, 1, 1000)
        if self._pool is None:
            raise ClientStateError("the consumer has no listener yet")
        self._pool.resize(consume_threads)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this consumer's now; with `pop` a queue id of -1 is all queues of the broker."""
        return self._shown(sorted(queue for queue in self._owned() if not queue.topic.startswith(RETRY_PREFIX)))

    # Queues come and go.
    def _owned(self) -> Collection[MessageQueue]:
        return self._popping.queues if self._popping is not None else list(self._assignments)

    async def _rebalance_topic(self, topic: str) -> bool:
        if not self.options.pop:
            return await super()._rebalance_topic(topic)
        instance = self._running()
        route = instance.routes.get(topic)
        if route is None:
            return True
        share = await assigned_queues(instance, self.group, topic, route)
        if share is None:
            instance.heartbeat_soon()
            return False
        return await self._apply(topic, subscribe_queues(topic, route), share)

    def _is_stale(self, queue: MessageQueue, now_s: float) -> bool:
        assignment = self._assignments.get(queue)
        return assignment is not None and assignment.cache.is_pull_expired(now_s)

    async def _take(self, queue: MessageQueue) -> bool:
        if self._pool is None:
            return True  # nobody listens yet; `listen` requests a round
        if self._popping is not None:
            self._popping.take(queue)
            return True
        instance = self._running()
        self._offsets().table.remove(queue)
        assignment = Assignment(queue, 0, instance.loop.time())
        if self._orderly is not None and self.options.model is MessageModel.CLUSTERING:
            await self._orderly.lock([assignment])
            if not assignment.cache.is_locked:
                return False
        assignment.next_offset = await self._start_offset(queue)
        self._assignments[queue] = assignment
        assignment.tasks.append(instance.spawn(self._pull_loop(assignment), "pull"))
        if self._orderly is not None:
            assignment.tasks.append(instance.spawn(self._orderly.run_queue(assignment), "orderly"))
        return True

    async def _drop(self, queue: MessageQueue) -> bool:
        if self._popping is not None:
            self._popping.drop(queue)
            return True
        assignment = self._assignments.get(queue)
        if assignment is None:
            return True  # given up meanwhile: its offset was repaired
        assignment.cache.is_dropped = True
        if self._orderly is not None and not await self._orderly.wait_idle(assignment, UNLOCK_WAIT_S):
            return False  # its listener still runs: keep the lock, try again in a second
        await assignment.stop()
        self._assignments.pop(queue, None)
        store = self._offsets()
        await store.persist([queue])
        store.table.remove(queue)
        if self._orderly is not None and self._locks is not None and self.options.model is MessageModel.CLUSTERING:
            await self._locks.unlock([queue])
        return True

    # The pull loop of one queue.
    async def _pull_loop(self, assignment: Assignment) -> None:
        while not assignment.cache.is_dropped:
            try:
                if not await self._wait_for_turn(assignment):
                    continue
                pulled = await self._pull(assignment)
            except ContrailError as exc:
                await asyncio.sleep(self._after_failure(assignment, exc))
                continue
            if pulled.status is PullStatus.OFFSET_ILLEGAL:
                self._running().spawn(self._repair_offset(assignment, pulled), "repair-offset")
                return
            self._take_pulled(assignment, pulled)

    async def _wait_for_turn(self, assignment: Assignment) -> bool:
        """Flow control: True when a pull may go out now."""
        cache, options = assignment.cache, self.options
        cache.last_pull_s = self._running().loop.time()  # a loop that waits for a reason is not stuck (see `_is_stale`)
        if self._is_suspended:
            await asyncio.sleep(PAUSED_WAIT_S)
            return False
        is_full = cache.count > options.pull_threshold_count or cache.size_bytes > options.pull_threshold_bytes
        if is_full or (self._orderly is None and cache.span > options.max_span):
            assignment.room.clear()
            await set_within(assignment.room, FULL_LOOK_S)
            return False
        if self._orderly is not None and not self._orderly.is_locked(assignment):
            await asyncio.sleep(options.pull_retry_delay_s)
            return False
        return True

    async def _pull(self, assignment: Assignment) -> Pulled:
        queue, options = assignment.queue, self.options
        instance = self._running()
        assignment.cache.last_pull_s = instance.loop.time()
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            raise ClientStateError(f"topic {queue.topic!r} is no longer subscribed")
        committed = 0
        if options.model is MessageModel.CLUSTERING:
            committed = self._offsets().table.get(queue) or 0
        request = PullRequest(
            queue,
            assignment.next_offset,
            subscription,
            options.pull_batch_size,
            options.pull_batch_bytes,
            commit_offset=committed,
            suspend_s=SUSPEND_PUSH_S,
            broker_id=assignment.broker_id,
        )
        pulled = await pull(instance, self.group, request)
        assignment.broker_id = pulled.suggested_id
        return pulled

    def _take_pulled(self, assignment: Assignment, pulled: Pulled) -> None:
        if assignment.cache.is_dropped:
            return
        assignment.next_offset = pulled.next_offset
        self.damaged_count += pulled.damaged
        messages = pulled.messages
        if messages and self.options.hooks is not None:
            messages = filtered(self.options.hooks, assignment.queue, messages)
        if not messages:
            if not assignment.cache.count:
                self._offsets().table.raise_to(assignment.queue, pulled.next_offset)
            return
        self._show(assignment.queue, messages)
        assignment.cache.put(messages)
        if self._concurrent is not None:
            self._concurrent.submit(assignment, messages)
        else:
            assignment.arrived.set()

    def _show(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> None:
        """The topic as the user knows it: the original one of a retried message, without namespace."""
        if queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)
        if self.options.namespace:
            for message in messages:
                message.topic = unwrap(self.options.namespace, message.topic)

    def _show_popped(self, queue: MessageQueue, messages: list[PoppedMessage]) -> None:
        """A group's retry topic names the origin in a property; POP's retry topics are asked for by it."""
        for message in messages:
            if message.topic.startswith(RETRY_PREFIX):
                message.topic = message.properties.get(Property.RETRY_TOPIC, queue.topic)
            message.topic = unwrap(self.options.namespace, message.topic)

    def _after_failure(self, assignment: Assignment, exc: ContrailError) -> float:
        instance = self._running_or_ending()
        if isinstance(exc, ResponseError):
            if exc.code == ResponseCode.FLOW_CONTROL:
                return FLOW_CONTROL_WAIT_S
            if exc.code in _UNKNOWN_HERE:
                instance.heartbeat_soon()
                return min(0.1, self.options.pull_retry_delay_s)
        _log.info("pull of %s is tried again: %s", assignment.queue, exc)
        instance.refresh_soon(assignment.queue.topic)
        return self.options.pull_retry_delay_s

    async def _repair_offset(self, assignment: Assignment, pulled: Pulled) -> None:
        """The broker has no such offset (deleted, or reset there): begin where it says.

        A queue that ends before what was read of it has lost its end, or not got it back yet. Nobody wants anything to
        be passed over then: what listeners still have comes again. (Java's client commits what the broker says, and
        when its listeners fail, nobody gets those messages again.)
        """
        offset, first = pulled.next_offset, assignment.cache.first_offset
        if pulled.max_offset < assignment.next_offset and first is not None:
            offset = min(offset, first)
        _log.warning("queue %s has no offset %d, it begins at %d", assignment.queue, assignment.next_offset, offset)
        store = self._offsets()
        assignment.cache.is_dropped = True
        store.table.freeze_at(assignment.queue, offset)
        await store.persist([assignment.queue])
        await assignment.stop()
        self._assignments.pop(assignment.queue, None)
        store.table.remove(assignment.queue)
        self.request_rebalance()

    # Loops.
    async def _clean_expired_loop(self) -> None:
        while self._orderly is None:
            await asyncio.sleep(self.options.consume_timeout_s)
            if self._concurrent is not None:
                for assignment in list(self._assignments.values()):
                    await self._concurrent.clean_expired(assignment)

    async def _renew_locks_loop(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            if self._orderly is not None and self._assignments:
                await self._orderly.lock(list(self._assignments.values()))

    # What brokers may ask.
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin elsewhere: drop the queues, let running listeners end, write the offsets, take the queues again."""
        store = self._offsets()
        mine = [queue for queue in offsets if queue in self._assignments and queue.topic == topic]
        for queue in mine:
            await self._assignments[queue].stop()
        if mine and self._pool is not None:
            await self._pool.wait_idle(RESET_WAIT_S)
        for queue in mine:
            self._assignments.pop(queue, None)
            store.table.freeze_at(queue, offsets[queue])
            await store.persist([queue])
            store.table.remove(queue)
        self.request_rebalance()

    def running_info(self) -> ConsumerRunningInfo:
        counts = self._watch.counts if self._pool is not None else {}
        return running_info(
            self,
            self._assignments,
            counts,
            threads=self.options.consume_threads,
            is_orderly=self.options.orderly,
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        """Run the listener once on a message that an administrator picked; offsets and retries are not touched."""
        if self._pool is None:
            raise ClientConfigError("the consumer has no listener")
        self._show(MessageQueue(message.topic, message.broker_name, message.queue_id), [message])
        began_s = time.monotonic()
        call = await self._pool.run([message], lambda: True)
        outcome = call.outcome()
        names = {
            ConsumeResult.SUCCESS: "CR_SUCCESS",
            ConsumeResult.RETRY: "CR_LATER",
            ConsumeResult.COMMIT: "CR_COMMIT",
            ConsumeResult.ROLLBACK: "CR_ROLLBACK",
        }
        return ConsumeMessageDirectlyResult(
            auto_commit=self.options.auto_commit,
            consume_result="CR_THROW_EXCEPTION" if call.error is not None else names[outcome.result],
            order=self.options.orderly,
            remark=repr(call.error) if call.error is not None else None,
            spent_time_mills=round((time.monotonic() - began_s) * 1000),
        )
