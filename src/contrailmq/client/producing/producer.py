"""The producer: send, batches, oneway, request-reply, recall.

    async with aio.Producer("shop", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("Orders", b"...", tags="paid", keys=["o-17"]))

A producer is safe to use from any number of tasks of its loop; keep many sends in flight with `asyncio.gather` or
`send_async`. Each send gets a unique id of its own, also when the same Message object is sent again (a message that
carries one already keeps it).

A send that raises may still have stored the message, for example after a timeout. Consumers must therefore cope with
duplicates; see `contrailmq.idempotent`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import time
import uuid
from collections.abc import Sequence
from typing import Final, Self, Unpack

from contrailmq.client.errors import (
    CREATE_REPLY_MESSAGE,
    ClientConfigError,
    ClientError,
    ReplyTimeoutError,
)
from contrailmq.client.hooks import ClientHooks, SendEvent, tell
from contrailmq.client.life import Life, State
from contrailmq.client.namespace import wrap
from contrailmq.client.producing.batch import check_batch, pack_batch
from contrailmq.client.producing.selectors import Selector
from contrailmq.client.producing.sending import FirstTry, Outgoing, Sender, offered_queues
from contrailmq.client.producing.trace import (
    MessageType,
    TraceDispatcher,
    TracedMessage,
    open_trace,
    publish_record,
    recall_record,
)
from contrailmq.client.results import SendResult
from contrailmq.client.settings import ProducerOptions, ProducerSettings
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import (
    ContrailError,
    Message,
    MessageError,
    MessageQueue,
    Property,
    StoredMessage,
    check_group,
    check_message,
)
from contrailmq.wire.codes import RequestCode

_DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
_DELAY_PROPERTIES: Final = (
    Property.DELAY,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELIVER_MS,
    "__STARTDELIVERTIME",
)


class Producer:
    """Sends messages in the name of a producer group."""

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[ProducerSettings]) -> None:
        check_group(group)
        if group == _DEFAULT_GROUP:
            raise ClientConfigError(f"producer group {group!r} is reserved: choose your own name")
        self.options = ProducerOptions(namesrv=namesrv, **settings)
        self.group = wrap(self.options.namespace, group)
        self._life = Life(f"producer {group!r}")
        self._sender: Sender | None = None
        self._trace: TraceDispatcher | None = None
        self._in_flight = 0
        self._room: asyncio.Event = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    @property
    def client_id(self) -> str:
        return self._running().instance.client_id

    async def start(self) -> None:
        """Join the client instance. Needs no broker yet: routes are found when they are needed."""
        self._life.begin()
        try:
            instance = ClientInstance.acquire(self.options.client_id(), self.options)
        except BaseException:  # a cancelled start has failed too
            self._life.state = State.FAILED
            raise
        try:
            sender = Sender(instance, self.group, self.options)
            instance.join_producer(sender)
            if self.options.trace:
                self._trace = open_trace(instance, self.options, group=self.group, kind="PRODUCE")
        except BaseException:  # the same, and what was opened is closed
            self._life.state = State.FAILED
            await instance.release()
            raise
        self._sender = sender
        self._life.state = State.RUNNING

    async def shutdown(self) -> None:
        """Tell the brokers, close the connections. Sends that still wait fail."""
        if not self._life.end():
            return
        sender = self._sender
        assert sender is not None
        try:
            if self._trace is not None:
                await self._trace.close()
            await sender.instance.leave_producer(sender)
        finally:  # also when it was cancelled
            await sender.instance.release()

    # Sending.
    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        Without a queue, a failed try goes to another broker, all within `timeout` seconds (default `send_timeout_s`).
        With `queue`, or with `selector(queues, message, arg)`, there is one try. A broker that cannot be reached, as
        while it restarts, and a topic without a route are waited for within the same time: nothing was sent yet. So is
        a master whose slave answers in its place: nothing was stored yet.
        Raises SendFailedError after the last try, ResponseError when a broker refuses, MessageError for a message that
        may not be sent.
        """
        sender = self._running()
        outgoing = sender.check(message)
        if len(outgoing.body) >= self.options.compress_over_bytes:
            await sender.compress(outgoing)
        if selector is not None:
            timeout_s = self.options.send_timeout_s if timeout is None else timeout
            deadline_s = sender.instance.loop.time() + timeout_s
            queue = sender.select(await sender.wait_for_route(outgoing.topic, timeout_s), message, selector, arg)
            timeout = deadline_s - sender.instance.loop.time()
        return await self._send(sender, outgoing, [message], queue, timeout)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float | None = None,
    ) -> asyncio.Task[SendResult]:
        """Start a send; await the task for its result."""
        return asyncio.get_running_loop().create_task(
            self.send(message, queue=queue, selector=selector, arg=arg, timeout=timeout)
        )

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> None:
        """Send without an answer: fast, and nobody learns whether the message was stored.

        One try: a broker that cannot be reached gives an error at once.
        """
        sender = self._running()
        outgoing = await sender.prepare(message)
        if selector is not None:
            queue = sender.select(await sender.queues_of(outgoing.topic), message, selector, arg)
        hooks = self.options.hooks
        if hooks is None:
            await sender.send_oneway(outgoing, queue)
            return
        event = SendEvent(self.group, message.topic, [message], queue)
        outgoing = self._ask_hooks(hooks, event, outgoing)
        try:
            await sender.send_oneway(outgoing, queue)
        except BaseException as exc:  # a cancellation too: the hook sees every end
            event.error = exc
            raise
        finally:
            tell(hooks.after_send, event)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request; all are stored, in order, in one queue, or none is.

        `queue_offset` of the result is the first message's. Cut long lists with `split_batch`.
        """
        sender = self._running()
        return await self._send(sender, self.pack(messages), messages, queue, timeout)

    def pack(self, messages: Sequence[Message]) -> Outgoing:
        """A batch ready to go; in any thread."""
        check_batch(messages)
        limit = self.options.max_message_bytes
        for number, message in enumerate(messages):
            # All have one topic, so its name is checked once; the full check explains what is wrong with a body.
            if not number or message.body.__class__ is not bytes or not 0 < len(message.body) <= limit:
                check_message(message, body_bytes_max=limit)
        body, ids = pack_batch(messages, namespace=self.options.namespace)
        if len(body) > self.options.max_message_bytes:
            raise MessageError(
                f"the batch takes {len(body)} bytes, the limit is {self.options.max_message_bytes}: use split_batch",
                field="batch",
                size=len(body),
                limit=self.options.max_message_bytes,
            )
        topic = wrap(self.options.namespace, messages[0].topic)
        wait = messages[0].properties.get(Property.WAIT, "true")
        outgoing = Outgoing(topic, body, {Property.WAIT: wait}, ",".join(ids))
        outgoing.code = RequestCode.SEND_BATCH_MESSAGE
        outgoing.is_batch = True
        return outgoing

    def direct_sender(self) -> Sender | None:
        """For sends that take the short way (`direct`), in any thread; None when this producer's may not."""
        options, sender = self.options, self._sender
        if (
            self._life.state is not State.RUNNING
            or sender is None
            or options.hooks is not None
            or self._trace is not None
            or options.send_latency_fault_enable
            or options.retry_another_broker_when_not_store_ok
            or not sender.instance.remoting.is_plain
        ):
            return None
        return sender

    async def send_again(self, outgoing: Outgoing, *, timeout: float | None, failed: FirstTry) -> SendResult:
        """The tries that follow the first, which was not made here."""
        timeout_s = self.options.send_timeout_s if timeout is None else timeout
        return await self._running().send(outgoing, timeout_s=timeout_s, failed=failed)

    async def _send(
        self,
        sender: Sender,
        outgoing: Outgoing,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> SendResult:
        timeout_s = self.options.send_timeout_s if timeout is None else timeout
        # A count and an event, not a semaphore: its context manager costs a tenth of a whole send.
        while self._in_flight >= self.options.in_flight_max:
            self._room.clear()
            await self._room.wait()
        self._in_flight += 1
        try:
            if self.options.hooks is None and self._trace is None:
                return await sender.send(outgoing, timeout_s=timeout_s, queue=queue)
            return await self._send_watched(outgoing, messages, queue, timeout_s)
        finally:
            self._in_flight -= 1
            self._room.set()

    async def _send_watched(
        self, outgoing: Outgoing, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float
    ) -> SendResult:
        """A send that hooks and the trace look at."""
        sender, hooks = self._running(), self.options.hooks
        event = SendEvent(self.group, messages[0].topic, messages, queue)
        start_s, start_ms = time.monotonic(), time.time_ns() // 1_000_000
        if hooks is not None:
            outgoing = self._ask_hooks(hooks, event, outgoing)
        try:
            event.result = await sender.send(outgoing, timeout_s=timeout_s, queue=queue)
        except BaseException as exc:
            event.error = exc
            raise
        finally:
            if hooks is not None:
                tell(hooks.after_send, event)
            cost_ms = round((time.monotonic() - start_s) * 1000)
            self._trace_send(sender, event, outgoing, start_ms=start_ms, cost_ms=cost_ms)
        return event.result

    def _ask_hooks(self, hooks: ClientHooks, event: SendEvent, outgoing: Outgoing) -> Outgoing:
        """`check_send` may forbid; what `before_send` adds to the messages' properties travels with them."""
        hooks.check_send(event)
        tell(hooks.before_send, event)
        if outgoing.is_batch:
            return self.pack(event.messages)
        outgoing.properties = {**outgoing.properties, **event.messages[0].properties}
        return outgoing

    def _trace_send(self, sender: Sender, event: SendEvent, outgoing: Outgoing, *, start_ms: int, cost_ms: int) -> None:
        result = event.result
        if self._trace is None or (result is not None and not result.is_trace_on):
            return
        address = sender.instance.master_address(result.queue.broker_name) if result is not None else None
        traced = TracedMessage(
            topic=event.topic,
            message_id=outgoing.message_id,
            tags=outgoing.properties.get(Property.TAGS, ""),
            keys=outgoing.properties.get(Property.KEYS, ""),
            store_host=address,
            body_bytes=sum(len(message.body) for message in event.messages),
            offset_message_id=result.offset_message_id if result is not None else None,
            message_type=message_type(outgoing),
        )
        region = result.region_id if result is not None else "DefaultRegion"
        self._trace.add(
            publish_record(
                traced,
                time_ms=start_ms,
                region=region,
                group=self.group,
                cost_ms=cost_ms,
                is_success=result is not None,
            )
        )

    # Request and reply.
    async def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> StoredMessage:
        """Send a request and wait for a consumer's reply, all within `timeout`.

        Raises ReplyTimeoutError when the request was stored and no reply came; what `send` raises when it was not.
        """
        sender = self._running()
        instance = sender.instance
        correlation_id = str(uuid.uuid4())
        asked = Message(message.topic, message.body, flag=message.flag)
        asked.properties = {
            **message.properties,
            Property.CORRELATION_ID: correlation_id,
            Property.REPLY_TO_CLIENT: instance.client_id,
            Property.TTL: str(round(timeout * 1000)),
        }
        topic = wrap(self.options.namespace, message.topic)
        reply: asyncio.Future[StoredMessage] = instance.loop.create_future()
        instance.replies[correlation_id] = reply
        deadline_s = instance.loop.time() + timeout
        try:
            if topic not in instance.routes:  # the broker must know this client before the reply comes
                await sender.wait_for_route(topic, timeout)
                with contextlib.suppress(TimeoutError):  # then no time is left for the send, which says so
                    async with asyncio.timeout_at(deadline_s):
                        await instance.send_heartbeats()
            left_s = deadline_s - instance.loop.time()
            await self.send(asked, queue=queue, selector=selector, arg=arg, timeout=left_s)
            async with asyncio.timeout_at(deadline_s):
                return await reply
        except TimeoutError as exc:
            if isinstance(exc, ContrailError):
                raise
            raise ReplyTimeoutError(message.topic, correlation_id=correlation_id, timeout_s=timeout) from None
        finally:
            instance.replies.pop(correlation_id, None)

    # Delayed messages.
    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message by `SendResult.recall_handle`; returns the id of the recalled message.

        The broker must have recall enabled (`recallMessageEnable`); too late is an error.
        """
        sender = self._running()
        real_topic = wrap(self.options.namespace, topic)
        broker_name = broker_of_handle(recall_handle)
        if real_topic not in sender.instance.routes:
            await sender.queues_of(real_topic)
        address = await sender.instance.find_master(broker_name, real_topic)
        ext = {"producerGroup": self.group, "topic": real_topic, "recallHandle": recall_handle, "bname": broker_name}
        answer = await sender.instance.call(address, RequestCode.RECALL_MESSAGE, ext)
        message_id = answer.ext.get("msgId", "")
        if self._trace is not None:
            now_ms = time.time_ns() // 1_000_000
            traced = TracedMessage(topic, message_id)
            self._trace.add(
                recall_record(traced, time_ms=now_ms, region="DefaultRegion", group=self.group, is_success=True)
            )
        return message_id

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic can be sent to."""
        sender = self._running()
        return offered_queues(await sender.queues_of(wrap(self.options.namespace, topic)), self.options.namespace)

    def _running(self) -> Sender:
        self._life.check_running()
        assert self._sender is not None
        return self._sender


def create_reply(request: StoredMessage, body: bytes) -> Message:
    """The reply to a consumed request: send it with any producer."""
    properties = request.properties
    cluster = properties.get(Property.CLUSTER)
    if not cluster or Property.REPLY_TO_CLIENT not in properties:
        raise ClientError(
            f"message {request.message_id} is not a request: it has no CLUSTER and REPLY_TO_CLIENT properties",
            code=CREATE_REPLY_MESSAGE,
        )
    reply = Message(f"{cluster}_REPLY_TOPIC", body)
    for name in (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL):
        if name in properties:
            reply.properties[name] = properties[name]
    reply.properties[Property.MESSAGE_TYPE] = "reply"
    return reply


def broker_of_handle(recall_handle: str) -> str:
    """The broker name inside a recall handle: base64url of `v1 topic broker deliverMs uniqueKey`."""
    try:
        parts = base64.urlsafe_b64decode(recall_handle.encode()).decode().split(" ")
    except (binascii.Error, UnicodeDecodeError, ValueError) as exc:
        raise ClientError(f"recall handle {recall_handle[:64]!r} is not base64url text") from exc
    if len(parts) != 5 or parts[0] != "v1":
        raise ClientError(f"recall handle {recall_handle[:64]!r} is not of the form `v1 topic broker time id`")
    return parts[2]


def message_type(outgoing: Outgoing) -> MessageType:
    if outgoing.properties.get(Property.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION_HALF
    if any(name in outgoing.properties for name in _DELAY_PROPERTIES):
        return MessageType.DELAY
    return MessageType.NORMAL
