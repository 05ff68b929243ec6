"""The simple consumer: messages are received, handled and acknowledged one by one, in any order, by anybody.

    async with aio.SimpleConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders", "paid || shipped")
        for message in await consumer.receive(max_messages=16, invisible_duration=30.0):
            ...
            await consumer.ack(message)

It holds no queues. Brokers hand messages out for `invisible_duration` seconds (POP, `docs/pop.md`), and what is not
acknowledged by then comes again, to any member of the group. So there is no rebalance, one slow message holds nothing
up, and a consumer that dies gives its messages back by doing nothing.

A `receive` asks the sources (`pop_sources.py`) one after the other for what is there, and returns what the first one
gives that has something. If none has, it waits: at a single source by a long poll, at several until one of them tells
that it has something, which is then popped. So messages are taken from one source only, and only when they are wanted.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from typing import Final, Unpack

from contrailmq.client.consuming import popping
from contrailmq.client.consuming.pop_clock import PopClock
from contrailmq.client.consuming.pop_sources import Source, Sources
from contrailmq.client.consuming.popping import ANY_QUEUE, BATCH_COUNT_MAX, Popped, PopRequest
from contrailmq.client.consuming.running_info import running_info
from contrailmq.client.consuming.subscriber import Subscriber, now_ms
from contrailmq.client.consuming.subscription import SqlFilter
from contrailmq.client.errors import ClientConfigError, ClientError, NoRouteError
from contrailmq.client.hooks import user_error_log
from contrailmq.client.life import State
from contrailmq.client.namespace import unwrap, wrap
from contrailmq.client.records import PoppedMessage, ReceivedMessage
from contrailmq.client.results import ConsumeFromWhere, MessageModel
from contrailmq.client.settings import SimpleConsumerOptions, SimpleConsumerSettings, check_range
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import TopicRoute
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import RETRY_PREFIX, ContrailError, MessageQueue, StoredMessage
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from contrailmq.wire.bodies import ConsumerData
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ResponseError

_log = user_error_log("contrailmq.client.consumer")

POLL_S_MAX: Final = 15.0  # that a broker is asked to wait; a longer `timeout` asks again
ENDING_S: Final = 0.06  # brokers do not wait for less
INVISIBLE_S_MAX: Final = 12 * 3600.0  # RocketMQ's own; brokers have a limit of theirs (timerMaxDelaySec, three days)
_FINAL: Final = (  # asking again, or asking another broker, would not change the answer
    ResponseCode.NO_PERMISSION,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.INVALID_PARAMETER,
)


class SimpleConsumer(Subscriber):
    """Receives messages for a time, and acknowledges them."""

    consume_type = "CONSUME_ACTIVELY"

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[SimpleConsumerSettings]) -> None:
        self.options = SimpleConsumerOptions(namesrv=namesrv, **settings)
        super().__init__(group, self.options)
        self._sources: Sources | None = None
        self._clocks: defaultdict[str, PopClock] = defaultdict(PopClock)  # by broker
        self._lost_attempts: dict[Source, str] = {}  # of ordered pops whose answer did not come

    # Life.
    async def start(self) -> None:
        if self._was_entered and self._life.is_running:
            return
        self._life.begin()
        self.start_ms = now_ms()
        try:
            instance = self._instance = ClientInstance.acquire(self.options.client_id(), self.options)
            try:
                instance.join_consumer(self)
            except BaseException:  # whatever it was, the connections are given back
                await instance.release()
                raise
            self._sources = Sources(instance.spawn)
            try:
                await self._show_up()
            except BaseException:  # cancelled, too
                await self._leave()
                raise
        except BaseException:  # a cancelled start has failed too
            self._life.state = State.FAILED
            raise
        self._life.state = State.RUNNING

    async def shutdown(self) -> None:
        """Leave the group. What was received and not acknowledged comes again when its time is over."""
        if not self._life.end():
            return
        assert self._sources is not None
        self._sources.close()
        await self._leave()

    # Messages.
    async def receive(
        self, max_messages: int = 16, invisible_duration: float = 30.0, timeout: float = 15.0
    ) -> list[StoredMessage]:
        """Up to `max_messages` (1 to 32) of one topic, invisible to others for `invisible_duration` seconds.

        An empty list when none came within `timeout` seconds; 0 takes only what is there. Brokers that cannot be
        reached are asked again while there is time, and their error is raised if none could be asked. Raises
        NoRouteError when no subscribed topic exists, and ResponseError for what a broker does not allow.
        """
        loop = self._running().loop
        if not self._subscriptions:
            raise ClientError("this consumer has no subscription: call subscribe before receive")
        check_range("max_messages", max_messages, 1, BATCH_COUNT_MAX)
        check_range("invisible_duration", invisible_duration, 0.001, INVISIBLE_S_MAX)
        check_range("timeout", timeout, 0.0, 86_400.0)
        return list(await self._receive(max_messages, invisible_duration, loop.time() + timeout))

    async def ack(self, message: StoredMessage) -> None:
        """The message is done: nobody gets it again once this has returned. Twice is once.

        Raises ReceiptExpiredError when its invisible time is over: it may be with another consumer. After any other
        error nobody knows whether the broker has put it down: acknowledge again.
        """
        instance, popped = self._running(), _received(message)
        popping.check_live(popped, instance.loop.time())
        await popping.acknowledge(instance, self.group, popped)

    async def change_invisible_duration(self, message: StoredMessage, seconds: float) -> None:
        """Let others have the message in `seconds` from now, and not before; 0 is at once.

        Raises ReceiptExpiredError when the message was acknowledged, or its invisible time was over before.
        """
        check_range("seconds", seconds, 0.0, INVISIBLE_S_MAX)
        instance, popped = self._running(), _received(message)
        popping.check_live(popped, instance.loop.time())
        await popping.change(instance, self.group, popped, seconds)

    async def _receive(self, max_count: int, invisible_s: float, deadline_s: float) -> list[PoppedMessage]:
        """Rounds over the sources, until one gives something or the time is over."""
        instance, sources = self._running(), self._sources
        assert sources is not None
        was_answered, error, is_first = False, None, True
        while True:
            sources.changed.clear()
            if is_first:
                await self._find_routes(instance)
            all_of_them = sources.in_turn(self._routes())
            is_only = len(all_of_them) == 1
            for source in all_of_them:
                left_s = deadline_s - instance.loop.time()
                if not sources.is_open(source) and not (is_first and left_s <= 0):
                    continue
                # The first answer of a broker tells its clock, which one that is held does not.
                is_held = is_only and self._clocks[source.broker_name].is_known
                poll_s = min(max(left_s, 0.0), POLL_S_MAX) if is_held else 0.0
                try:
                    popped = await self._pop(source, max_count, invisible_s, poll_s)
                except ContrailError as exc:
                    self._check_curable(exc)
                    error = exc
                    sources.rest(source)
                    continue
                was_answered = True
                if popped is None:
                    sources.rest(source)
                elif popped:
                    return popped
                elif not is_only:
                    sources.watch(source, self._ask)
            is_first = False
            left_s = deadline_s - instance.loop.time()
            if left_s <= ENDING_S:
                break
            if not (is_only and sources.is_open(all_of_them[0])):
                await set_within(sources.changed, left_s)
            self._life.check_running()
        if not was_answered:
            self._raise_unless_asked(all_of_them, error)
        return []

    def _raise_unless_asked(self, all_of_them: list[Source], error: ContrailError | None) -> None:
        if error is not None:
            raise error
        if not all_of_them:
            namesrv = self._running().name_servers.text
            remedy = "create the topic, or check its name"
            raise NoRouteError(self._shown_topic(sorted(self._subscriptions)[0]), namesrv=namesrv, remedy=remedy)

    def _check_curable(self, exc: ContrailError) -> None:
        """Raise what would be the same the next time, and what comes of a shutdown."""
        self._life.check_running()
        if isinstance(exc, ResponseError) and exc.code in _FINAL:
            raise exc

    async def _find_routes(self, instance: ClientInstance) -> None:
        """Of topics that were subscribed to a moment ago, or do not exist yet."""
        for topic in [topic for topic in self._subscriptions if topic not in instance.routes]:
            try:
                await instance.refresh_route(topic)
            except ContrailError as exc:
                self._life.check_running()
                _log.info("topic %s has no route yet, it is looked up every second: %s", topic, exc)

    def _routes(self) -> dict[str, TopicRoute]:
        known = self._running().routes
        return {topic: known[topic] for topic in self._subscriptions if topic in known}

    async def _pop(
        self, source: Source, max_count: int, invisible_s: float, poll_s: float
    ) -> list[PoppedMessage] | None:
        """What a source gives; None when its broker holds as many pops as it may."""
        instance, options = self._running(), self.options
        subscription = self._subscriptions.get(source.topic)
        if subscription is None:
            return []  # unsubscribed meanwhile
        attempt = self._lost_attempts.pop(source, None) or (uuid.uuid4().hex if options.orderly else None)
        request = PopRequest(
            MessageQueue(source.topic, source.broker_name, ANY_QUEUE),
            subscription,
            max_count,
            invisible_s,
            poll_s,
            poll_s + options.request_timeout_s,
            is_from_first=options.from_where is ConsumeFromWhere.FIRST_OFFSET,
            is_ordered=options.orderly,
            attempt_id=attempt,
        )
        try:
            popped = await popping.pop(instance, self.group, request, self._clocks[source.broker_name])
        except ContrailError:
            if attempt is not None:
                self._lost_attempts[source] = attempt  # the answer may be lost: the same messages are asked for again
            instance.refresh_soon(source.topic)
            raise
        self.damaged_count += popped.damaged
        return None if popped.is_refused else await self._sift(instance, popped)

    async def _sift(self, instance: ClientInstance, popped: Popped) -> list[PoppedMessage]:
        """What the caller gets: not what the exact filter leaves out, and not what came again too often."""
        kept, limit = [], self.options.max_reconsume_times
        for message in popped.unwanted:
            await _try_to_settle(popping.acknowledge(instance, self.group, message), message)
        for message in popped.messages:
            if 0 <= limit < message.reconsume_times:
                await _try_to_settle(popping.bury(instance, self.group, message), message)
                continue
            if message.topic.startswith(RETRY_PREFIX):
                message.topic = message.asked_topic
            message.topic = unwrap(self.options.namespace, message.topic)
            kept.append(message)
        return kept

    async def _ask(self, source: Source) -> None:
        """Wait at a source until it may have something."""
        subscription = self._subscriptions.get(source.topic)
        if subscription is not None:
            queue = MessageQueue(source.topic, source.broker_name, ANY_QUEUE)
            await popping.has_messages(
                self._running(),
                self.group,
                queue,
                subscription,
                poll_s=POLL_S_MAX,
                is_ordered=self.options.orderly,
            )

    # As a member of the group.
    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Want a topic: `"*"`, tags as `"paid || shipped"`, or an `SqlFilter`. Also while running."""
        super().subscribe(topic, expression)
        self._forget(topic)

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic. What was received of it can still be acknowledged."""
        super().unsubscribe(topic)
        self._forget(topic)

    def _forget(self, topic: str) -> None:
        if self._sources is not None:
            self._sources.forget(wrap(self.options.namespace, topic))

    def _wishes_changed(self) -> None:
        if self._sources is not None:
            self._sources.changed.set()

    def heartbeat(self) -> ConsumerData:
        return self._heartbeat(MessageModel.CLUSTERING, self.options.from_where)

    def request_rebalance(self) -> None:
        """There is nothing to share."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Brokers reset by themselves: the next pop begins there."""

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        return {}

    def running_info(self) -> ConsumerRunningInfo:
        return running_info(self, {}, {}, is_orderly=self.options.orderly)

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        raise ClientConfigError("a simple consumer has no listener")


def _received(message: StoredMessage) -> PoppedMessage:
    if isinstance(message, PoppedMessage):
        return message
    raise ClientError(f"{message!r} has no receipt handle: only what a SimpleConsumer received can be acknowledged")


async def _try_to_settle(settling: Coroutine[object, object, None], message: PoppedMessage) -> None:
    """What nobody waits for: if it fails, the message comes again and is settled then."""
    try:
        await settling
    except ContrailError as exc:
        _log.info("message %s comes again when its invisible time is over: %s", message.message_id, exc)
