"""What the blocking clients have by hand: their life, and where they do more than wait for their asyncio twin.

`sync.py` and `sync_admin.py` are generated from the asyncio clients (tools/blocking_clients.py): each public method is
run on the process's background loop (`loop_thread.py`), so both behave alike. They are safe to use from many threads at
once, also in a thread that runs an event loop of its own. Here is what cannot be derived: starting and stopping,
sends without the loop (`direct.py`), a consumer as an iterator, and an Admin that connects for each call.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

from contrailmq.client.admin import admin
from contrailmq.client.blocking.direct import IS_POSSIBLE, DirectSends, Failed
from contrailmq.client.blocking.loop_thread import LoopThread
from contrailmq.client.consuming import lite_pull_consumer, push_consumer, simple_consumer
from contrailmq.client.errors import ClientStateError
from contrailmq.client.producing import producer
from contrailmq.client.producing.selectors import Selector
from contrailmq.client.producing.sending import FirstTry
from contrailmq.client.results import SendResult
from contrailmq.message import Message, MessageQueue, StoredMessage

T = TypeVar("T")


class AsyncClient(Protocol):
    async def start(self) -> None: ...
    async def shutdown(self) -> None: ...


class _Ending(NamedTuple):
    """A shutdown, and the thread that does it."""

    thread: int
    ended: threading.Event


class Blocking:
    """Starts, stops and calls an asyncio client on the background loop."""

    _client: AsyncClient

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        self._ending: _Ending | None = None
        self._ending_lock = threading.RLock()  # a signal handler may come in the middle

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

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

    def _started(self) -> LoopThread:
        if self._thread is None:
            raise ClientStateError(f"{type(self).__name__} is not running: use `with`, or call start() first")
        return self._thread

    def _run(self, work: Coroutine[object, object, T]) -> T:
        try:
            thread = self._started()
        except ClientStateError:
            work.close()
            raise
        return thread.run(work)

    def _do(self, action: Callable[[], T]) -> T:
        """Call a plain method of the client where its state lives."""
        if self._thread is None:
            return action()

        async def on_loop() -> T:
            return action()

        return self._thread.run(on_loop())


class BlockingProducer(Blocking):
    """A producer whose plain sends do not need the loop."""

    _client: producer.Producer

    def __init__(self, client: producer.Producer) -> None:
        super().__init__(client)
        self._direct: DirectSends | None = None

    def start(self) -> None:
        super().start()
        if self._direct is None and IS_POSSIBLE:
            self._direct = DirectSends(self._client)

    def shutdown(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        super().shutdown()

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
        direct = self._short_way(queue)
        if direct is not None and selector is None:
            try:
                result = direct.send(message, timeout)
            except Failed as exc:
                return self._send_again(exc, timeout)
            if result is not None:
                return result
        return self._run(self._client.send(message, queue=queue, selector=selector, arg=arg, timeout=timeout))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | None = None
    ) -> SendResult:
        """Send messages of one topic in one request, to one queue."""
        direct = self._short_way(queue)
        if direct is not None:
            try:
                result = direct.send_batch(messages, timeout)
            except Failed as exc:
                return self._send_again(exc, timeout)
            if result is not None:
                return result
        return self._run(self._client.send_batch(messages, queue=queue, timeout=timeout))

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
        thread = self._started()
        return thread.submit(self._client.send(message, queue=queue, selector=selector, arg=arg, timeout=timeout))

    def _short_way(self, queue: MessageQueue | None) -> DirectSends | None:
        """None for a chosen queue, and on the loop's own thread, which would wait for itself."""
        direct = self._direct
        if direct is None or queue is not None or (self._thread is not None and self._thread.is_here):
            return None
        return direct

    def _send_again(self, first: Failed, timeout: float | None) -> SendResult:
        failed = FirstTry(first.broker_name, first.elapsed_s, first.cause)
        return self._run(self._client.send_again(first.outgoing, timeout=timeout, failed=failed))


class BlockingPushConsumer(Blocking):
    """A consumer may be entered before it subscribes."""

    _client: push_consumer.PushConsumer

    def __enter__(self) -> Self:
        self.start()
        self._client.mark_entered()
        return self


class BlockingSimpleConsumer(Blocking):
    """A consumer may be entered before it subscribes."""

    _client: simple_consumer.SimpleConsumer

    def __enter__(self) -> Self:
        self.start()
        self._client.mark_entered()
        return self


class BlockingLitePullConsumer(Blocking):
    """A consumer may be entered before it subscribes, and iterated over."""

    _client: lite_pull_consumer.LitePullConsumer

    def __enter__(self) -> Self:
        self.start()
        self._client.mark_entered()
        return self

    def __exit__(self, *exc: object) -> None:
        if exc and exc[0] is not None:
            self._do(self._client.forget_polled)
        self.shutdown()

    def __iter__(self) -> Iterator[StoredMessage]:
        """Messages one by one, until the consumer is shut down."""
        while self._client.is_running:
            yield from self._run(self._client.poll())

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; before the start, too."""
        wanted = list(queues)
        if self._thread is None:
            self._client.set_assigned(wanted)
        else:
            self._run(self._client.assign(wanted))


class BlockingAdmin:
    """Between `start` and `shutdown` it keeps its connections; else each call connects and leaves nothing open."""

    def __init__(self, make: Callable[[], admin.Admin]) -> None:
        self._make = make
        self._open: tuple[LoopThread, admin.Admin] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def start(self) -> None:
        """Keep the connections from here to `shutdown`. A second start is an error."""
        if self._open is not None:
            raise ClientStateError("this Admin is running: start it once, and again only after shutdown")
        client, thread = self._make(), LoopThread.acquire()
        try:
            thread.run(client.start())
        except BaseException:  # Ctrl-C too: the thread ends with its last user
            thread.release()
            raise
        self._open = (thread, client)

    def shutdown(self) -> None:
        """Close the connections; the object can still be used, as if it had never been started."""
        if self._open is not None:
            (thread, client), self._open = self._open, None
            try:
                thread.run(client.shutdown())
            finally:
                thread.release()

    def _call(self, ask: Callable[[admin.Admin], Coroutine[object, object, T]]) -> T:
        if self._open is not None:
            thread, client = self._open
            return thread.run(ask(client))

        async def once() -> T:
            async with self._make() as client:
                return await ask(client)

        thread = LoopThread.acquire()
        try:
            return thread.run(once())
        finally:
            thread.release()
