"""The kernel of every send: choose a queue, make the request, read the answer, try again elsewhere.

Producers, the trace dispatcher and consumers that hand a message back use it. It knows routes, retries and fault
tolerance, but no hooks, transactions or life cycle. Retries follow RocketMQ 5.x: after a lost connection, a timeout or
a response code that allows it, another broker is tried within one time budget. Other codes fail at once, and a queue
that the caller chose is tried once. A send that reached nobody (connection refused, no route) is repeated with pauses
until the time is over, and so is one that a slave refused (`tries`). FLUSH_DISK_TIMEOUT and the like are results: the
message is stored.

A small message to a known topic takes few awaits: with 256 sends in flight, a producer is bound by its own CPU.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from contrailmq.client.errors import BrokerNotFoundError, ClientConfigError, NoRouteError
from contrailmq.client.fault_tolerance import FaultTolerance
from contrailmq.client.namespace import unwrap, wrap
from contrailmq.client.producing.selectors import Selector
from contrailmq.client.producing.send_template import SendTemplate
from contrailmq.client.producing.tries import Tries
from contrailmq.client.results import SendResult, SendStatus
from contrailmq.client.settings import ProducerOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import TopicRoute, publish_queues
from contrailmq.message import (
    RETRY_PREFIX,
    Compression,
    ContrailError,
    Message,
    MessageError,
    MessageQueue,
    Property,
    SysFlag,
    SystemTopic,
    check_message,
    check_topic,
    compress,
    create_unique_id,
    encode_properties,
)
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectError, RequestTimeoutError, ResponseError
from contrailmq.wire.header import Command
from contrailmq.wire.requests import SendMessageResponse

COMPRESS_IN_THREAD_BYTES: Final = 64 * 1024  # about 1 ms of zlib: more than that must not block the loop
TEMPLATES_MAX: Final = 1024  # a cache: producers of more topics than that build them again
_MASK: Final = 0x7FFFFFFF

_STATUS_OF: Final = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
_STATUS: Final[dict[int, SendStatus]] = {int(code): status for code, status in _STATUS_OF.items()}
_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SystemTopic.SCHEDULE,
        SystemTopic.HALF,
        SystemTopic.OP_HALF,
        SystemTopic.CHECK_MAX_TIME,
        SystemTopic.SELF_TEST,
        SystemTopic.OFFSET_MOVED,
    }
)


class Outgoing:
    """A message ready to go: everything that stays the same over the tries."""

    __slots__ = ("body", "code", "flag", "is_batch", "message_id", "properties", "sys_flag", "topic")

    def __init__(self, topic: str, body: bytes, properties: dict[str, str], message_id: str, flag: int = 0) -> None:
        self.topic = topic  # with its namespace
        self.body = body
        self.properties = properties
        self.message_id = message_id
        self.flag = flag
        self.sys_flag = 0
        self.code = RequestCode.SEND_MESSAGE_V2
        self.is_batch = False


class FirstTry(NamedTuple):
    """A try that failed elsewhere (`direct`)."""

    broker_name: str
    elapsed_s: float
    cause: ContrailError


class _Publish:
    """The queues of one topic and whose turn it is."""

    __slots__ = ("cursor", "queues")

    def __init__(self, queues: list[MessageQueue]) -> None:
        self.queues = queues
        self.cursor = random.getrandbits(31)


class Sender:
    """Sends in the name of one producer group. A member of its client instance; used on its loop only."""

    def __init__(self, instance: ClientInstance, group: str, options: ProducerOptions) -> None:
        self.instance = instance
        self.group = group
        self.options = options
        self.faults = FaultTolerance(instance.loop.time, ladder=options.latency_ladder)
        self._publish: dict[str, _Publish] = {}
        self._wanted: set[str] = set()
        self._templates: dict[tuple[str, str, RequestCode], SendTemplate] = {}

    # As a member of the instance.
    def topics(self) -> set[str]:
        return self._wanted

    def want(self, topic: str) -> None:
        """Keep the route of a topic, so that its brokers get heartbeats of this producer."""
        self._wanted.add(topic)

    def subscribed_topics(self) -> set[str]:
        return set()

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        queues = publish_queues(topic, route)
        known = self._publish.get(topic)
        if known is None:
            self._publish[topic] = _Publish(queues)
        else:
            known.queues = queues

    # Making ready.
    async def prepare(self, message: Message) -> Outgoing:
        """Check and encode what does not depend on the queue."""
        outgoing = self.check(message)
        if len(outgoing.body) >= self.options.compress_over_bytes:
            await self.compress(outgoing)
        return outgoing

    def check(self, message: Message) -> Outgoing:
        """The same without compression: no await on the way of small messages."""
        options = self.options
        topic = wrap(options.namespace, message.topic) if options.namespace else message.topic
        body = message.body
        # A topic that has a route has a legal name; the full check explains what is wrong.
        if topic not in self._publish or body.__class__ is not bytes or not 0 < len(body) <= options.max_message_bytes:
            check_message(message, body_bytes_max=options.max_message_bytes)
            if topic in _FORBIDDEN_TOPICS:
                raise MessageError(f"topic {topic!r} is the broker's own: nobody may send to it", field="topic")
        properties = dict(message.properties)
        message_id = properties.get(Property.UNIQUE_KEY)
        if message_id is None:
            message_id = properties[Property.UNIQUE_KEY] = create_unique_id()
        if options.namespace:
            properties[Property.INSTANCE_ID] = options.namespace
        outgoing = Outgoing(topic, body, properties, message_id, message.flag)
        if properties.get(Property.TRANSACTION_PREPARED) == "true":
            outgoing.sys_flag |= SysFlag.TRANSACTION_PREPARED
        if properties.get(Property.MESSAGE_TYPE) == "reply":
            outgoing.code = RequestCode.SEND_REPLY_MESSAGE_V2
        return outgoing

    async def compress(self, outgoing: Outgoing) -> None:
        kind, level = self.options.compression, self.options.compress_level
        if len(outgoing.body) >= COMPRESS_IN_THREAD_BYTES:
            packed = await asyncio.to_thread(compress, outgoing.body, kind, level)
        else:
            packed = compress(outgoing.body, kind, level)
        if len(packed) >= len(outgoing.body):
            return  # noise, pictures: as it is it is smaller, and a body of the largest size stays within it
        outgoing.body = packed
        outgoing.sys_flag |= SysFlag.COMPRESSED | (kind if kind is not Compression.ZLIB_OLD else 0)

    # Queues.
    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic (with namespace) can be sent to; never empty."""
        return (self._known(topic) or await self._find(topic)).queues

    async def _find(self, topic: str) -> _Publish:
        check_topic(topic)
        self._wanted.add(topic)
        try:
            route = await self.instance.refresh_route(topic)
        except NoRouteError:
            route = await self.instance.default_route(
                self.options.default_topic, topic, queues_max=self.options.default_topic_queues
            )
        self.route_changed(topic, route)
        publish = self._publish[topic]
        if not publish.queues:
            raise NoRouteError(
                topic,
                namesrv=self.instance.name_servers.text,
                remedy="no broker of it is writable and has a master: look at its permission and at the brokers",
            )
        return publish

    async def _find_within(self, tries: Tries) -> _Publish:
        """The time of a send begins with the search for its route, which is waited for as long as that lasts."""
        while True:
            try:
                async with asyncio.timeout(tries.left_s()):
                    return await self._find(tries.topic)
            except TimeoutError:
                name_servers = self.instance.name_servers.text
                cause = RequestTimeoutError(name_servers, RequestCode.GET_ROUTEINFO_BY_TOPIC, tries.timeout_s)
                tries.add_failed(None, tries.last or cause)
            except ContrailError as exc:
                if not exc.retriable:
                    raise
                tries.add_failed(None, exc)
            await tries.pause()
            if tries.left_s() <= 0 or self.instance.remoting.is_closed:
                raise tries.error() from tries.last

    async def wait_for_route(self, topic: str, timeout_s: float) -> list[MessageQueue]:
        """As `queues_of`, but a topic without a route is waited for; SendFailedError when the time is over."""
        publish = self._known(topic)
        if publish is None:
            publish = await self._find_within(Tries(topic, self.instance.loop.time, timeout_s))
        return publish.queues

    def _known(self, topic: str) -> _Publish | None:
        publish = self._publish.get(topic)
        return publish if publish is not None and publish.queues else None

    def _choose(self, publish: _Publish, tries: Tries | None = None) -> MessageQueue:
        last_broker = tries.last_broker if tries is not None else None
        queues = publish.queues
        count = len(queues)
        if self.options.send_latency_fault_enable:
            for is_usable in (self.faults.is_available, self.faults.is_reachable):
                for _ in range(count):
                    publish.cursor = (publish.cursor + 1) & _MASK
                    queue = queues[publish.cursor % count]
                    if queue.broker_name != last_broker and is_usable(queue.broker_name):
                        return queue
        if last_broker is not None:
            publish.cursor = random.getrandbits(31)
            for _ in range(count):
                publish.cursor = (publish.cursor + 1) & _MASK
                if queues[publish.cursor % count].broker_name != last_broker:
                    return queues[publish.cursor % count]
        publish.cursor = (publish.cursor + 1) & _MASK
        return queues[publish.cursor % count]

    def select(self, queues: Sequence[MessageQueue], message: Message, selector: Selector, arg: object) -> MessageQueue:
        """Let the caller's function choose; it sees the topic without namespace, as the caller wrote it."""
        seen = offered_queues(queues, self.options.namespace)
        chosen = selector(seen, message, arg)
        if not isinstance(chosen, MessageQueue) or chosen.topic != message.topic:
            raise ClientConfigError(f"the selector returned {chosen!r}: it must be one of the queues it was given")
        return chosen

    # Sending.
    async def send(
        self,
        outgoing: Outgoing,
        *,
        timeout_s: float,
        queue: MessageQueue | None = None,
        failed: FirstTry | None = None,
    ) -> SendResult:
        """To the given queue once, or to any queue with retries; `failed` was the first of them."""
        clock_s = self.instance.loop.time
        if failed is not None:
            tries = Tries(outgoing.topic, clock_s, timeout_s, failed.elapsed_s)
            tries.add_failed(failed.broker_name, failed.cause)
            self.faults.record_failure(failed.broker_name, is_reachable=not isinstance(failed.cause, ResponseError))
            self.instance.refresh_soon(outgoing.topic)
            return await self._go_on(outgoing, tries, None)
        publish = self._known(outgoing.topic)
        if queue is not None or publish is None:
            own = self._own_queue(queue, outgoing) if queue is not None else None
            return await self._go_on(outgoing, Tries(outgoing.topic, clock_s, timeout_s), own)
        # The usual case: the first try succeeds, and nothing is noted for others.
        start_s, chosen = clock_s(), self._choose(publish)
        try:
            result = await self._try(outgoing, chosen, timeout_s)
        except ContrailError as exc:
            if not exc.retriable:
                raise
            tries = Tries(outgoing.topic, clock_s, timeout_s, clock_s() - start_s)
            tries.add_failed(chosen.broker_name, exc)
        else:
            if result.status is SendStatus.OK or not self.options.retry_another_broker_when_not_store_ok:
                return result
            tries = Tries(outgoing.topic, clock_s, timeout_s, clock_s() - start_s)
            tries.add_unsafe(chosen.broker_name, result)
        return await self._go_on(outgoing, tries, None)

    async def _go_on(self, outgoing: Outgoing, tries: Tries, own: MessageQueue | None) -> SendResult:
        """Try until it is stored, the tries are used up, or the time is over."""
        while tries.reached <= self.options.retry_times and not self.instance.remoting.is_closed:
            chosen = own or self._choose(self._known(outgoing.topic) or await self._find_within(tries), tries)
            left_s = tries.left_s()
            if left_s <= 0:
                break
            if chosen.broker_name in tries.resting:
                await tries.pause()
                continue
            try:
                result = await self._try(outgoing, chosen, left_s)
            except ContrailError as exc:
                tries.add_failed(chosen.broker_name, exc)
                if not exc.retriable or (own is not None and tries.reached):
                    raise
                continue
            if result.status is SendStatus.OK or own or not self.options.retry_another_broker_when_not_store_ok:
                return result
            tries.add_unsafe(chosen.broker_name, result)
        if tries.unsafe is not None:
            return tries.unsafe
        raise tries.error() from tries.last

    async def send_oneway(self, outgoing: Outgoing, queue: MessageQueue | None = None) -> None:
        """Hand it to the connection; nobody learns whether it was stored. One try, which waits for no broker."""
        chosen = self._own_queue(queue, outgoing) if queue is not None else None
        if chosen is None:
            chosen = self._choose(self._known(outgoing.topic) or await self._find(outgoing.topic))
        address = await self._master(chosen.broker_name, outgoing.topic)
        await self.instance.remoting.oneway(address, outgoing.code, self._ext(outgoing, chosen), outgoing.body)

    def _own_queue(self, queue: MessageQueue, outgoing: Outgoing) -> MessageQueue:
        """The queue of the caller's choice, as brokers know it."""
        if wrap(self.options.namespace, queue.topic) != outgoing.topic:
            raise MessageError(
                f"queue {queue} is not of the message's topic {outgoing.topic!r}: choose one of producer.queues(topic)",
                field="queue",
            )
        return queue._replace(topic=outgoing.topic)

    async def _master(self, broker_name: str, topic: str) -> str:
        """The broker's address. A topic that is not there yet has the default topic's brokers: one will create it."""
        address = self.instance.master_address(broker_name)
        if address is None:
            await self._find(topic)
            address = self.instance.master_address(broker_name)
        if address is None:
            raise BrokerNotFoundError(broker_name)
        return address

    async def _try(self, outgoing: Outgoing, queue: MessageQueue, timeout_s: float) -> SendResult:
        instance = self.instance
        name = queue.broker_name
        start_s = instance.loop.time()
        address = instance.master_address(name)
        connection = instance.remoting.ready(address) if address is not None else None
        try:
            if connection is None or address is None or outgoing.topic.startswith(RETRY_PREFIX):
                address = await self._connect(name, outgoing.topic, timeout_s)
                left_s = max(0.0, timeout_s - (instance.loop.time() - start_s))
                answer = await instance.remoting.invoke(
                    address, outgoing.code, self._ext(outgoing, queue), outgoing.body, timeout_s=left_s
                )
            else:
                answer = await connection.invoke_frame(
                    outgoing.code, lambda opaque: self.frame(outgoing, queue, opaque), timeout_s
                )
        except ContrailError:
            self.faults.record_failure(name, is_reachable=True)
            instance.refresh_soon(outgoing.topic)
            raise
        try:
            result = self.outcome(answer, outgoing, queue, address)
        except ResponseError as exc:
            self.faults.record_failure(name, is_reachable=False)
            if exc.wants_master:
                instance.refresh_soon(outgoing.topic)
            raise
        if self.options.send_latency_fault_enable:
            self.faults.record_success(name, instance.loop.time() - start_s)
        return result

    async def _connect(self, broker_name: str, topic: str, timeout_s: float) -> str:
        """The address of the broker, which is connected then. A host that is gone lets dialling hang for long."""
        address = broker_name
        try:
            async with asyncio.timeout(timeout_s):
                address = await self._master(broker_name, topic)
                await self.instance.remoting.connect(address)
        except TimeoutError:
            raise ConnectError(address, f"no connection within {timeout_s:.3f} s") from None
        return address

    # What `direct` needs too, in any thread.
    def known_place(self, topic: str) -> tuple[MessageQueue, str] | None:
        """Whose turn it is, and its broker's address; None when one of them must be asked for first."""
        publish = self._publish.get(topic)
        queues = publish.queues if publish is not None else []  # once: the loop may put another list in its place
        if publish is None or not queues or topic.startswith(RETRY_PREFIX):
            return None
        publish.cursor = (publish.cursor + 1) & _MASK
        queue = queues[publish.cursor % len(queues)]
        address = self.instance.master_address(queue.broker_name)
        return None if address is None else (queue, address)

    def frame(self, outgoing: Outgoing, queue: MessageQueue, opaque: int) -> bytes:
        return self._template(outgoing, queue.broker_name).render(
            outgoing.body,
            encode_properties(outgoing.properties),
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_ms=time.time_ns() // 1_000_000,
            flag=outgoing.flag,
            opaque=opaque,
        )

    def outcome(self, answer: Command, outgoing: Outgoing, queue: MessageQueue, address: str) -> SendResult:
        """What an answer says; ResponseError when it is a refusal."""
        status = _STATUS.get(answer.code)
        if status is None:
            raise ResponseError(answer.code, answer.remark, request_code=outgoing.code, address=address)
        return self._result(status, answer, outgoing, queue)

    def _template(self, outgoing: Outgoing, broker_name: str) -> SendTemplate:
        key = (outgoing.topic, broker_name, outgoing.code)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[key] = SendTemplate(
                outgoing.code,
                group=self.group,
                topic=outgoing.topic,
                default_topic=self.options.default_topic,
                default_queues=self.options.default_topic_queues,
                broker_name=broker_name,
                is_batch=outgoing.is_batch,
            )
        return template

    def _ext(self, outgoing: Outgoing, queue: MessageQueue) -> dict[str, str | int]:
        """The short names of SEND_MESSAGE_V2."""
        properties = outgoing.properties
        ext: dict[str, str | int] = {
            "a": self.group,
            "b": outgoing.topic,
            "c": self.options.default_topic,
            "d": self.options.default_topic_queues,
            "e": queue.queue_id,
            "f": outgoing.sys_flag,
            "g": time.time_ns() // 1_000_000,
            "h": outgoing.flag,
            "j": 0,
            "k": "false",
            "m": "true" if outgoing.is_batch else "false",
            "n": queue.broker_name,
        }
        if outgoing.topic.startswith(RETRY_PREFIX):
            properties = dict(properties)
            ext["j"] = properties.pop(Property.RECONSUME_TIME, "0")
            limit = properties.pop(Property.MAX_RECONSUME_TIMES, None)
            if limit is not None:
                ext["l"] = limit
        ext["i"] = encode_properties(properties).decode()
        return ext

    def _result(self, status: SendStatus, answer: Command, outgoing: Outgoing, queue: MessageQueue) -> SendResult:
        header = answer.header(SendMessageResponse)
        topic = unwrap(self.options.namespace, outgoing.topic) if self.options.namespace else outgoing.topic
        return SendResult(
            status,
            header.batch_uniq_id or outgoing.message_id,
            header.msg_id,
            MessageQueue(topic, queue.broker_name, header.queue_id),
            header.queue_offset,
            header.transaction_id,
            header.msg_region or "DefaultRegion",
            header.trace_on is not False,
            header.recall_handle,
        )


def offered_queues(queues: Sequence[MessageQueue], namespace: str) -> list[MessageQueue]:
    """Queues as the user knows them."""
    return [queue._replace(topic=unwrap(namespace, queue.topic)) for queue in queues]
