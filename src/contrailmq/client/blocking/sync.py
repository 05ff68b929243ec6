"""The blocking faces of the clients.

Made by tools/blocking_clients.py: change the asyncio clients, or blocking/base.py, and run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Unpack

from contrailmq.client.blocking.base import (
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPushConsumer,
    BlockingSimpleConsumer,
)
from contrailmq.client.consuming import lite_pull_consumer, push_consumer, simple_consumer
from contrailmq.client.consuming.listener_pool import Listener
from contrailmq.client.consuming.lite_pull_consumer import QueuesListener
from contrailmq.client.consuming.subscription import SqlFilter
from contrailmq.client.producing import producer, transaction_producer
from contrailmq.client.producing.selectors import Selector
from contrailmq.client.producing.transaction_producer import Check, Execute
from contrailmq.client.results import TransactionResult
from contrailmq.client.settings import (
    LitePullConsumerSettings,
    ProducerSettings,
    PushConsumerSettings,
    SimpleConsumerSettings,
)
from contrailmq.message import Message, MessageQueue, StoredMessage


class Producer(BlockingProducer):
    """Sends messages in the name of a producer group."""

    _client: producer.Producer

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[ProducerSettings]) -> None:
        super().__init__(producer.Producer(group, namesrv=namesrv, **settings))

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._client.client_id)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> None:
        """Send without an answer: fast, and nobody learns whether the message was stored."""
        self._run(self._client.send_oneway(message, queue=queue, selector=selector, arg=arg))

    def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> StoredMessage:
        """Send a request and wait for a consumer's reply, all within `timeout`."""
        return self._run(self._client.request(message, timeout=timeout, queue=queue, selector=selector, arg=arg))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message by `SendResult.recall_handle`; returns the id of the recalled message."""
        return self._run(self._client.recall(topic, recall_handle))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic can be sent to."""
        return self._run(self._client.queues(topic))


class TransactionProducer(Producer):
    """A producer whose messages wait for a local transaction."""

    _client: transaction_producer.TransactionProducer

    def __init__(
        self,
        group: str,
        *,
        execute: Execute,
        check: Check,
        namesrv: str | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        BlockingProducer.__init__(
            self,
            transaction_producer.TransactionProducer(group, execute=execute, check=check, namesrv=namesrv, **settings),
        )

    def send_in_transaction(
        self, message: Message, arg: object = None, *, timeout: float | None = None
    ) -> TransactionResult:
        """Send a half message, run `execute`, report. Raises only when the half message could not be stored."""
        return self._run(self._client.send_in_transaction(message, arg, timeout=timeout))


class PushConsumer(BlockingPushConsumer):
    """Delivers the messages of its share of queues to a listener."""

    _client: push_consumer.PushConsumer

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[PushConsumerSettings]) -> None:
        super().__init__(push_consumer.PushConsumer(group, namesrv=namesrv, **settings))

    @property
    def is_running(self) -> bool:
        return self._client.is_running

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._client.client_id)

    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Want a topic: `"*"`, tags as `"paid || shipped"`, or an `SqlFilter`. Also while running."""
        self._do(lambda: self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic."""
        self._do(lambda: self._client.unsubscribe(topic))

    def listen(self, listener: Listener) -> None:
        """Set the listener: `def` (runs in threads) or `async def` (runs on the loop)."""
        self._do(lambda: self._client.listen(listener))

    def suspend(self) -> None:
        """Stop pulling; what is cached is still consumed."""
        self._do(lambda: self._client.suspend())

    def resume(self) -> None:
        self._do(lambda: self._client.resume())

    def resize_pool(self, consume_threads: int) -> None:
        """Change how many listener calls run at a time."""
        self._do(lambda: self._client.resize_pool(consume_threads))

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this consumer's now; with `pop` a queue id of -1 is all queues of the broker."""
        return self._do(lambda: self._client.queues)


class LitePullConsumer(BlockingLitePullConsumer):
    """Hands out messages of its queues on request."""

    _client: lite_pull_consumer.LitePullConsumer

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[LitePullConsumerSettings]) -> None:
        super().__init__(lite_pull_consumer.LitePullConsumer(group, namesrv=namesrv, **settings))

    @property
    def is_running(self) -> bool:
        return self._client.is_running

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._client.client_id)

    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Share a topic's queues with the group's other members."""
        self._do(lambda: self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        self._do(lambda: self._client.unsubscribe(topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._do(lambda: self._client.assignment)

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic."""
        return self._run(self._client.fetch_queues(topic))

    def on_topic_queues_changed(self, topic: str, listener: QueuesListener) -> None:
        """Tell `listener(topic, queues)` when the topic's set of queues changes; looked at every 30 s."""
        self._do(lambda: self._client.on_topic_queues_changed(topic, listener))

    def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """The next messages, or an empty list when none came within `timeout` seconds."""
        return self._run(self._client.poll(timeout))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store how far the caller is, everything polled so far or the given offsets; the broker has it on return."""
        self._run(self._client.commit(offsets))

    def committed(self, queue: MessageQueue) -> int:
        """The stored offset, -1 when there is none."""
        return self._run(self._client.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset that the queue has; cached messages of the queue are forgotten."""
        self._run(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._run(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._run(self._client.seek_to_end(queue))

    def seek_to_timestamp(self, queue: MessageQueue, time_ms: int) -> None:
        """Continue at the first message that was stored at or after the time."""
        self._run(self._client.seek_to_timestamp(queue, time_ms))

    def offset_for_timestamp(self, queue: MessageQueue, time_ms: int) -> int:
        return self._run(self._client.offset_for_timestamp(queue, time_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues; what is cached is still handed out."""
        self._do(lambda: self._client.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._do(lambda: self._client.resume(queues))


class SimpleConsumer(BlockingSimpleConsumer):
    """Receives messages for a time, and acknowledges them."""

    _client: simple_consumer.SimpleConsumer

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[SimpleConsumerSettings]) -> None:
        super().__init__(simple_consumer.SimpleConsumer(group, namesrv=namesrv, **settings))

    @property
    def is_running(self) -> bool:
        return self._client.is_running

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._client.client_id)

    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Want a topic: `"*"`, tags as `"paid || shipped"`, or an `SqlFilter`. Also while running."""
        self._do(lambda: self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """No longer want a topic. What was received of it can still be acknowledged."""
        self._do(lambda: self._client.unsubscribe(topic))

    def receive(
        self, max_messages: int = 16, invisible_duration: float = 30.0, timeout: float = 15.0
    ) -> list[StoredMessage]:
        """Up to `max_messages` (1 to 32) of one topic, invisible to others for `invisible_duration` seconds."""
        return self._run(self._client.receive(max_messages, invisible_duration, timeout))

    def ack(self, message: StoredMessage) -> None:
        """The message is done: nobody gets it again once this has returned. Twice is once."""
        self._run(self._client.ack(message))

    def change_invisible_duration(self, message: StoredMessage, seconds: float) -> None:
        """Let others have the message in `seconds` from now, and not before; 0 is at once."""
        self._run(self._client.change_invisible_duration(message, seconds))
