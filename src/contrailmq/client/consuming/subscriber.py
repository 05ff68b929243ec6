"""What every consumer is: a member of a group that wants topics.

A `Subscriber` keeps its subscriptions, tells brokers of them in heartbeats, and joins and leaves a client instance. How
it gets messages is the subclass's business: `group_consumer.py` shares queues with the group's other members,
`simple_consumer.py` asks brokers for messages of any queue.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Final, Self

from contrailmq.client.consuming.subscription import TAG, SqlFilter, Subscription, make_subscription
from contrailmq.client.errors import ClientConfigError
from contrailmq.client.hooks import user_error_log
from contrailmq.client.life import Life, State
from contrailmq.client.namespace import unwrap, wrap
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import ConsumeFromWhere, MessageModel
from contrailmq.client.settings import ClientOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import TopicRoute
from contrailmq.message import ContrailError, MessageQueue, check_group, check_topic
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from contrailmq.wire.bodies import CheckClientBody, ConsumerData, encode_body
from contrailmq.wire.codes import RequestCode

_log = user_error_log("contrailmq.client.consumer")

_DEFAULT_GROUP: Final = "DEFAULT_CONSUMER"


class Subscriber(ABC):
    """A member of a consumer group. Subclasses say how it gets messages."""

    consume_type: str

    def __init__(self, group: str, options: ClientOptions) -> None:
        check_group(group)
        if group == _DEFAULT_GROUP:
            raise ClientConfigError(f"consumer group {group!r} is reserved: choose your own name")
        self._client_options = options
        self.group = wrap(options.namespace, group)
        self._life = Life(f"consumer {group!r}")
        self._subscriptions: dict[str, Subscription] = {}
        self._instance: ClientInstance | None = None
        self.start_ms = 0
        self.damaged_count = 0  # damaged records from brokers: left out and logged
        self._version = 0
        self._was_entered = False

    async def __aenter__(self) -> Self:
        """A consumer may be entered before it subscribes; calling `start` inside is allowed and does nothing."""
        await self.start()
        self.mark_entered()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    def mark_entered(self) -> None:
        self._was_entered = True

    @property
    def is_running(self) -> bool:
        return self._life.is_running

    @property
    def client_id(self) -> str:
        return self._running().client_id

    @property
    def namesrv(self) -> str:
        return self._running().name_servers.text

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def shutdown(self) -> None: ...

    # Subscriptions.
    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Want a topic: `"*"`, tags as `"paid || shipped"`, or an `SqlFilter`. Also while running."""
        check_topic(topic)
        name = wrap(self._client_options.namespace, topic)
        # Brokers keep what has the higher version: a clock that was set back must not make a newer wish the older one.
        self._version = max(now_ms(), self._version + 1)
        self._subscriptions[name] = make_subscription(name, expression, version=self._version)
        if self._life.is_running:
            self._running().heartbeat_soon()
            self._running().refresh_soon(name)
            self._wishes_changed()

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic."""
        self._subscriptions.pop(wrap(self._client_options.namespace, topic), None)
        if self._life.is_running:
            self._running().heartbeat_soon()
            self._wishes_changed()

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return dict(self._subscriptions)

    @abstractmethod
    def _wishes_changed(self) -> None:
        """Subscriptions or routes are others than before. Called while the consumer runs."""

    # As a member of the instance.
    def topics(self) -> set[str]:
        return set(self._subscriptions)

    def subscribed_topics(self) -> set[str]:
        return set(self._subscriptions)

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        self._wishes_changed()

    @abstractmethod
    def heartbeat(self) -> ConsumerData: ...

    def _heartbeat(self, model: MessageModel, from_where: ConsumeFromWhere) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=model.value,
            consume_from_where=from_where.value,
            subscription_data_set=[item.as_body() for item in self._subscriptions.values()],
        )

    # What brokers may ask (see `server_requests.py`).
    @abstractmethod
    def request_rebalance(self) -> None: ...

    @abstractmethod
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    @abstractmethod
    def offsets_of(self, topic: str) -> dict[MessageQueue, int]: ...

    @abstractmethod
    def running_info(self) -> ConsumerRunningInfo: ...

    @abstractmethod
    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult: ...

    # Life, shared steps.
    async def _show_up(self) -> None:
        """Find the routes, let the brokers check SQL filters, and tell them of this member."""
        instance = self._running()
        for topic in list(self._subscriptions):
            try:
                await instance.refresh_route(topic)
            except ContrailError as exc:
                _log.info("topic %s has no route yet, it is looked up every second: %s", topic, exc)
        for subscription in list(self._subscriptions.values()):
            if subscription.expression_type != TAG:
                await self._check_filter(subscription)
        await instance.send_heartbeats()

    async def _check_filter(self, subscription: Subscription) -> None:
        """Ask one broker of the topic whether it can filter so; an error stops the start."""
        instance = self._running()
        route = instance.routes.get(subscription.topic)
        if route is None or not route.brokers:
            return
        address, _ = await instance.find_reader(route.brokers[0].name, subscription.topic)
        body = CheckClientBody(
            client_id=instance.client_id,
            group=self.group,
            namespace=self._client_options.namespace or None,
            subscription_data=subscription.as_body(),
        )
        await instance.call(address, RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(body))

    async def _leave(self) -> None:
        instance = self._running_or_ending()
        try:
            await instance.leave_consumer(self)
            await self._last_words()
        finally:  # also when it was cancelled
            await instance.release()

    async def _last_words(self) -> None:  # noqa: B027 -- most have none
        """What is left to say when brokers know that this member has left, before the connections are closed."""

    def _running(self) -> ClientInstance:
        if self._life.state is not State.STARTING:
            self._life.check_running()
        assert self._instance is not None
        return self._instance

    def _running_or_ending(self) -> ClientInstance:
        assert self._instance is not None
        return self._instance

    # Names as the user writes them, and as brokers have them.
    def _shown_topic(self, topic: str) -> str:
        return unwrap(self._client_options.namespace, topic)

    def _shown(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        return [queue._replace(topic=self._shown_topic(queue.topic)) for queue in queues]

    def _real(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=wrap(self._client_options.namespace, queue.topic))


def now_ms() -> int:
    return time.time_ns() // 1_000_000
