"""What consumers of queues share: rebalance and offsets.

A `GroupConsumer` belongs to a consumer group. It keeps a set of queues: every 20 s, and at once when the broker says
that the membership changed, when a route changed, or when a round left something undone, it computes its share (see
`rebalance.py`), drops what is no longer its own and takes what is new. What taking and dropping mean is the subclass's
business: a push consumer starts and stops a pull loop.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection
from typing import Final

from contrailmq.client.consuming.remote_offsets import RemoteOffsetStore
from contrailmq.client.consuming.subscriber import Subscriber, now_ms
from contrailmq.client.errors import number
from contrailmq.client.hooks import user_error_log
from contrailmq.client.offset_store import NO_OFFSET, LocalOffsetStore, OffsetStore
from contrailmq.client.rebalance import allocate
from contrailmq.client.results import ConsumeFromWhere, MessageModel
from contrailmq.client.settings import ConsumerOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import TopicRoute, subscribe_queues
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import RETRY_PREFIX, ContrailError, MessageQueue
from contrailmq.wire.bodies import ConsumerData, ConsumerList, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ResponseError

_log = user_error_log("contrailmq.client.consumer")

REBALANCE_GAP_S: Final = 0.02  # a burst of notifications is one round
UNBALANCED_RETRY_S: Final = 1.0
FINAL_PERSIST_S: Final = 3.0
FINAL_PERSIST_EVERY_S: Final = 0.2
DEFAULT_TIMESTAMP_BACK_MS: Final = 30 * 60 * 1000


class GroupConsumer(Subscriber):
    """A member of a consumer group. Subclasses say what having a queue means."""

    def __init__(self, group: str, options: ConsumerOptions) -> None:
        super().__init__(group, options)
        self._base_options = options
        self._store: OffsetStore | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._rebalance_wanted = asyncio.Event()

    def _wishes_changed(self) -> None:
        self.request_rebalance()

    def heartbeat(self) -> ConsumerData:
        return self._heartbeat(self._base_options.model, self._base_options.from_where)

    # Life, shared steps.
    async def _join(self) -> ClientInstance:
        """Become a member of a client instance and open the offset store."""
        options = self._base_options
        is_broadcasting = options.model is MessageModel.BROADCASTING
        self.start_ms = now_ms()
        instance = ClientInstance.acquire(options.client_id(keep_default_name=is_broadcasting), options)
        try:
            if is_broadcasting:
                self._store = LocalOffsetStore(options.offset_directory, client_id=instance.client_id, group=self.group)
            else:
                exact = options.from_where is ConsumeFromWhere.TIMESTAMP
                self._store = RemoteOffsetStore(instance, self.group, is_exact=exact)
            await self._store.load()
            instance.join_consumer(self)
        except BaseException:  # cancelled or failed: the shared instance is given back
            await instance.release()
            raise
        self._instance = instance
        return instance

    async def _enter_group(self) -> None:
        """Show up, and take the first share of queues."""
        instance = self._running()
        await self._show_up()
        self._tasks = [
            instance.spawn(self._rebalance_loop(), "rebalance"),
            instance.spawn(self._persist_loop(), "offsets"),
        ]
        self.request_rebalance()

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # Rebalance.
    def request_rebalance(self) -> None:
        """A round as soon as possible."""
        self._rebalance_wanted.set()

    async def _rebalance_loop(self) -> None:
        wait_s = self._base_options.rebalance_interval_s
        while True:
            if await set_within(self._rebalance_wanted, wait_s):
                await asyncio.sleep(REBALANCE_GAP_S)
            self._rebalance_wanted.clear()
            is_balanced = await self._rebalance()
            wait_s = self._base_options.rebalance_interval_s if is_balanced else UNBALANCED_RETRY_S

    async def _rebalance(self) -> bool:
        """One round over all topics. False when something must be tried again soon."""
        is_balanced = True
        for queue in [queue for queue in self._owned() if queue.topic not in self._subscriptions]:
            is_balanced &= await self._drop(queue)
        for topic in list(self._subscriptions):
            try:
                is_balanced &= await self._rebalance_topic(topic)
            except ResponseError as exc:
                if topic.startswith(RETRY_PREFIX):
                    continue
                _log.info("rebalance of %s for group %s is tried again: %s", topic, self.group, exc)
                is_balanced = False
            except ContrailError as exc:
                _log.warning("rebalance of %s for group %s is tried again: %s", topic, self.group, exc)
                is_balanced = False
        return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        instance = self._running()
        route = instance.routes.get(topic)
        if route is None:
            return True  # looked up elsewhere; a found route requests a round
        everything = subscribe_queues(topic, route)
        if not everything:
            return True
        if self._base_options.model is MessageModel.BROADCASTING:
            share = everything
        else:
            members = await self._members(topic, route)
            share = allocate(
                self._base_options.strategy, client_id=instance.client_id, queues=everything, client_ids=members
            )
            if instance.client_id not in members:
                instance.heartbeat_soon()
                return False
        return await self._apply(topic, everything, share)

    async def _apply(self, topic: str, everything: list[MessageQueue], share: list[MessageQueue]) -> bool:
        is_balanced, is_changed = True, False
        now_s = self._running().loop.time()
        for queue in [queue for queue in self._owned() if queue.topic == topic]:
            if queue not in share or self._is_stale(queue, now_s):
                dropped = await self._drop(queue)
                is_balanced &= dropped and queue not in share
                is_changed = True
        owned = set(self._owned())
        for queue in share:
            if queue not in owned and topic in self._subscriptions:
                try:
                    taken = await self._take(queue)
                except ContrailError as exc:
                    _log.warning("queue %s is not taken yet: %s", queue, exc)
                    taken = False
                is_balanced &= taken
                is_changed = True
        if is_changed:
            self._share_changed(topic, everything)
        return is_balanced

    def _share_changed(self, topic: str, everything: list[MessageQueue]) -> None:
        self._running().heartbeat_soon()
        listener = self._base_options.on_queues_changed
        if listener is None:
            return
        mine = [queue for queue in self._owned() if queue.topic == topic]
        try:
            listener(self._shown_topic(topic), self._shown(everything), self._shown(mine))
        except Exception:  # noqa: BLE001 -- user code must not stop the rebalance
            _log.exception("on_queues_changed raised for topic %s; the queues are taken anyway", topic)

    async def _members(self, topic: str, route: TopicRoute) -> list[str]:
        """The group's client ids, from any broker of the topic."""
        instance = self._running()
        last: ContrailError | None = None
        for broker in route.brokers:
            try:
                address, _ = await instance.find_reader(broker.name, topic)
                answer = await instance.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}
                )
            except ContrailError as exc:
                last = exc
                instance.heartbeat_soon()
                instance.refresh_soon(topic)
                continue
            return decode_body(answer.body, ConsumerList).consumer_id_list
        assert last is not None
        raise last

    # Offsets.
    async def _start_offset(self, queue: MessageQueue) -> int:
        """Where a newly taken queue begins: the stored offset, else what `from_where` says."""
        store = self._offsets()
        stored = await store.read_stored(queue)
        if stored != NO_OFFSET:
            return stored
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        where = self._base_options.from_where
        if where is ConsumeFromWhere.FIRST_OFFSET or (where is ConsumeFromWhere.LAST_OFFSET and is_retry):
            return 0
        if where is ConsumeFromWhere.LAST_OFFSET or is_retry:
            return await self._queue_offset(queue, RequestCode.GET_MAX_OFFSET)
        since_ms = self._base_options.consume_timestamp_ms
        if since_ms is None:
            since_ms = self.start_ms - DEFAULT_TIMESTAMP_BACK_MS
        return await self._queue_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=since_ms)

    async def _queue_offset(self, queue: MessageQueue, code: RequestCode, **more: int) -> int:
        instance = self._running()
        address, _ = await instance.find_reader(queue.broker_name, queue.topic)
        ext: dict[str, str | int] = {
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "bname": queue.broker_name,
            **more,
        }
        answer = await instance.call(address, code, ext)
        return number(answer.ext, "offset")

    async def _persist_loop(self) -> None:
        while True:
            await asyncio.sleep(self._base_options.persist_offsets_interval_s)
            await self._offsets().persist(self._read())

    async def _persist_finally(self, queues: list[MessageQueue]) -> None:
        """The last chance: a broker that restarts right now is waited for, because what is not stored comes again."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FINAL_PERSIST_S
        left = await self._offsets().persist(queues)
        while left and loop.time() < deadline_s:
            await asyncio.sleep(FINAL_PERSIST_EVERY_S)
            left = await self._offsets().persist(left)

    # What brokers may ask (see `server_requests.py`).
    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets in memory."""
        return {queue: offset for queue, offset in self._offsets().table.items() if queue.topic == topic}

    # For subclasses.
    @abstractmethod
    def _owned(self) -> Collection[MessageQueue]:
        """The queues that are this member's now."""

    def _read(self) -> Collection[MessageQueue]:
        """The queues whose offsets are stored every five seconds."""
        return self._owned()

    @abstractmethod
    async def _take(self, queue: MessageQueue) -> bool:
        """Begin with a queue; False when it cannot be had yet."""

    @abstractmethod
    async def _drop(self, queue: MessageQueue) -> bool:
        """Give a queue up; False when it cannot be given up yet."""

    def _is_stale(self, queue: MessageQueue, now_s: float) -> bool:
        """Whether the queue's loop looks stuck, so that it must be dropped and taken again."""
        return False

    def _offsets(self) -> OffsetStore:
        assert self._store is not None
        return self._store
