"""The blocking faces of the clients.

    with Producer("shop", namesrv="127.0.0.1:9876") as producer:
        result = producer.send(Message("Orders", b"..."))

Each wraps the asyncio client of the same name and runs it on the process's background loop (see `loop_thread.py`), so
both behave alike; what is written there holds here. They are safe to use from many threads at once, also in a thread
that runs an event loop of its own.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar, Unpack

from contrailmq.client import lite_pull_consumer, producer, push_consumer, transaction_producer
from contrailmq.client.direct import IS_POSSIBLE, DirectSends, Failed
from contrailmq.client.errors import ClientStateError
from contrailmq.client.listener_pool import Listener
from contrailmq.client.lite_pull_consumer import QueuesListener
from contrailmq.client.loop_thread import LoopThread
from contrailmq.client.results import SendResult, TransactionResult
from contrailmq.client.selectors import Selector
from contrailmq.client.sending import FirstTry
from contrailmq.client.settings import LitePullConsumerSettings, ProducerSettings, PushConsumerSettings
from contrailmq.client.subscription import SqlFilter
from contrailmq.client.transaction_producer import Check, Execute
from contrailmq.message import Message, MessageQueue, StoredMessage

T = TypeVar("T")


class _AsyncClient(Protocol):
    async def start(self) -> None: ...
    async def shutdown(self) -> None: ...


class _Ending(NamedTuple):
    """A shutdown, and the thread that does it."""

    thread: int
    ended: threading.Event


class _Blocking:
    """Starts, stops and calls an asyncio client on the background loop."""

    def __init__(self, client: _AsyncClient) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        self._ending: _Ending | None = None
        self._ending_lock = threading.RLock()  # a signal handler may come in the middle

    def start(self) -> None:
        """Begin. A second start is an error, as is one after shutdown."""
        if self._thread is not None:
            self._thread.run(self._client.start())
            return
        thread = LoopThread.acquire()
        try:
            thread.run(self._client.start())
        except BaseException:  # Ctrl-C too: the thread ends with its last user
            thread.release()
            raise
        self._thread = thread

    def shutdown(self) -> None:
        """End; twice, or before the start, is silently nothing. Beside another thread's shutdown, wait for that one."""
        thread = self._thread
        if thread is None:
            return
        thread.check_not_here()
        here = threading.get_ident()
        with self._ending_lock:
            other = self._ending
            mine = self._ending = other or _Ending(here, threading.Event())
        if other is not None:
            if other.thread != here:  # else a signal handler, whose end the other one's waits for
                other.ended.wait()
            return
        try:
            thread.run(self._client.shutdown())
        finally:
            self._thread = None
            thread.release()
            mine.ended.set()

    def _run(self, work: Coroutine[object, object, T]) -> T:
        if self._thread is None:
            work.close()
            raise ClientStateError(f"{type(self).__name__} is not running: use `with`, or call start() first")
        return self._thread.run(work)

    def _is_on_loop(self) -> bool:
        return self._thread is not None and self._thread.is_here

    def _do(self, action: Callable[[], T]) -> T:
        """Call a plain method of the client where its state lives."""
        if self._thread is None:
            return action()

        async def on_loop() -> T:
            return action()

        return self._thread.run(on_loop())


class Producer(_Blocking):
    """Sends messages in the name of a producer group."""

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[ProducerSettings]) -> None:
        self._producer = producer.Producer(group, namesrv=namesrv, **settings)
        self._direct: DirectSends | None = None
        super().__init__(self._producer)

    def start(self) -> None:
        super().start()
        if self._direct is None and IS_POSSIBLE:
            self._direct = DirectSends(self._producer)

    def shutdown(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        super().shutdown()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it."""
        direct = self._direct
        if direct is not None and queue is None and selector is None and not self._is_on_loop():
            try:
                result = direct.send(message, timeout)
            except Failed as exc:
                return self._send_again(exc, timeout)
            if result is not None:
                return result
        return self._run(self._producer.send(message, queue=queue, selector=selector, arg=arg, timeout=timeout))

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Start a send and go on; ask the future for its result."""
        if self._thread is None:
            raise ClientStateError("Producer is not running: use `with`, or call start() first")
        return self._thread.submit(
            self._producer.send(message, queue=queue, selector=selector, arg=arg, timeout=timeout)
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> None:
        """Send without an answer, in one try: nobody learns whether the message was stored."""
        self._run(self._producer.send_oneway(message, queue=queue, selector=selector, arg=arg))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue."""
        direct = self._direct
        if direct is not None and queue is None and not self._is_on_loop():
            try:
                result = direct.send_batch(messages, timeout)
            except Failed as exc:
                return self._send_again(exc, timeout)
            if result is not None:
                return result
        return self._run(self._producer.send_batch(messages, queue=queue, timeout=timeout))

    def _send_again(self, first: Failed, timeout: float | None) -> SendResult:
        failed = FirstTry(first.broker_name, first.elapsed_s, first.cause)
        return self._run(self._producer.send_again(first.outgoing, timeout=timeout, failed=failed))

    def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> StoredMessage:
        """Send a request and wait for a consumer's reply."""
        return self._run(self._producer.request(message, timeout=timeout, queue=queue, selector=selector, arg=arg))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message."""
        return self._run(self._producer.recall(topic, recall_handle))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the topic can be sent to."""
        return self._run(self._producer.queues(topic))

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._producer.client_id)


class TransactionProducer(Producer):
    """A producer whose messages wait for a local transaction."""

    def __init__(
        self,
        group: str,
        *,
        execute: Execute,
        check: Check,
        namesrv: str | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._transactions = transaction_producer.TransactionProducer(
            group, execute=execute, check=check, namesrv=namesrv, **settings
        )
        self._producer = self._transactions
        self._direct = None
        _Blocking.__init__(self, self._transactions)

    def send_in_transaction(
        self, message: Message, arg: object = None, *, timeout: float | None = None
    ) -> TransactionResult:
        """Send a half message, run `execute(message, arg)`, commit or roll back as it says."""
        return self._run(self._transactions.send_in_transaction(message, arg, timeout=timeout))


class PushConsumer(_Blocking):
    """Delivers messages to a listener."""

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[PushConsumerSettings]) -> None:
        self._consumer = push_consumer.PushConsumer(group, namesrv=namesrv, **settings)
        super().__init__(self._consumer)

    def __enter__(self) -> Self:
        """Starts. A consumer may be entered before it subscribes."""
        self.start()
        self._consumer.mark_entered()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Want a topic: `"*"`, tags as `"paid || shipped"`, or an `SqlFilter`."""
        self._do(lambda: self._consumer.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        self._do(lambda: self._consumer.unsubscribe(topic))

    def listen(self, listener: Listener) -> None:
        """Set the listener: `handle(messages: list[StoredMessage])`, `def` or `async def`."""
        self._do(lambda: self._consumer.listen(listener))

    def suspend(self) -> None:
        """Stop pulling; what is cached is still consumed."""
        self._do(self._consumer.suspend)

    def resume(self) -> None:
        self._do(self._consumer.resume)

    def resize_pool(self, consume_threads: int) -> None:
        """Change how many listener calls run at a time."""
        self._do(lambda: self._consumer.resize_pool(consume_threads))

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are this consumer's now."""
        return self._do(lambda: self._consumer.queues)

    @property
    def is_running(self) -> bool:
        return self._consumer.is_running

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._consumer.client_id)


class LitePullConsumer(_Blocking):
    """Hands out messages on request."""

    def __init__(self, group: str, *, namesrv: str | None = None, **settings: Unpack[LitePullConsumerSettings]) -> None:
        self._consumer = lite_pull_consumer.LitePullConsumer(group, namesrv=namesrv, **settings)
        super().__init__(self._consumer)

    def __enter__(self) -> Self:
        """Starts. A consumer may be entered before it subscribes."""
        self.start()
        self._consumer.mark_entered()
        return self

    def __exit__(self, *exc: object) -> None:
        if exc and exc[0] is not None:
            self._do(self._consumer.forget_polled)
        self.shutdown()

    def __iter__(self) -> Iterator[StoredMessage]:
        """Messages one by one, until the consumer is shut down."""
        while self._consumer.is_running:
            yield from self.poll()

    def subscribe(self, topic: str, expression: str | SqlFilter | None = "*") -> None:
        """Share a topic's queues with the group's other members."""
        self._do(lambda: self._consumer.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        self._do(lambda: self._consumer.unsubscribe(topic))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues."""
        wanted = list(queues)
        if self._thread is None:
            self._consumer.set_assigned(wanted)
        else:
            self._run(self._consumer.assign(wanted))

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._do(lambda: self._consumer.assignment)

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic."""
        return self._run(self._consumer.fetch_queues(topic))

    def on_topic_queues_changed(self, topic: str, listener: QueuesListener) -> None:
        self._do(lambda: self._consumer.on_topic_queues_changed(topic, listener))

    def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """The next messages, or an empty list when none came within `timeout` seconds."""
        return self._run(self._consumer.poll(timeout))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store how far the caller is."""
        self._run(self._consumer.commit(offsets))

    def committed(self, queue: MessageQueue) -> int:
        """The stored offset, -1 when there is none."""
        return self._run(self._consumer.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._run(self._consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._run(self._consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._run(self._consumer.seek_to_end(queue))

    def seek_to_timestamp(self, queue: MessageQueue, time_ms: int) -> None:
        self._run(self._consumer.seek_to_timestamp(queue, time_ms))

    def offset_for_timestamp(self, queue: MessageQueue, time_ms: int) -> int:
        return self._run(self._consumer.offset_for_timestamp(queue, time_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._do(lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._do(lambda: self._consumer.resume(queues))

    @property
    def is_running(self) -> bool:
        return self._consumer.is_running

    @property
    def client_id(self) -> str:
        return self._do(lambda: self._consumer.client_id)
