"""A call of gRPC: a stream of HTTP/2, what its handler knows of its client, and how its answers leave.

A handler is a coroutine `call(request, context)`; the context is the `Call`. What it does with it:

    unary           returns the answer
    server stream   `await context.write(answer)` for each
    both stream     the request is an asynchronous iterator, answers as above

An exception of a handler becomes what its `Method.failed` makes of it: an answer, or a status of gRPC. A handler is
cancelled when the client cancels, its connection ends, the time limit is over, or the server stops.

A request that is not whole holds at most what the `Ration` of all connections gives it: until it has its share, the
stream's window stays at what it was at first. Of a stream of requests, the next ones are let in as the handler reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn
from urllib.parse import quote

from contrailmq.proxy.rpc.call_task import CallTask
from contrailmq.proxy.rpc.framing import (
    HEAD_BLOCK,
    MESSAGE_BYTES_MAX,
    OK_BLOCK,
    PREFIX_BYTES,
    CallError,
    MessageReader,
    Status,
    error_block,
    metadata_of,
    packed,
    seconds_of,
    trailers,
    unpacked,
)
from contrailmq.wire.http2.connection import Connection
from contrailmq.wire.http2.hpack import METHOD, PATH, Field
from contrailmq.wire.http2.sending import STREAM_WINDOW, Stream
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.ration import Ration

__all__ = ["BOTH_STREAM", "SERVER_STREAM", "UNARY", "Call", "CallConnection", "Calls", "Method", "StreamBroken"]

_log = logging.getLogger("contrailmq.proxy")

UNARY: Final = 0
SERVER_STREAM: Final = 1
BOTH_STREAM: Final = 2
STREAMED_BYTES_MAX: Final = 8 * 1024 * 1024  # of one request of a stream: they wait until the handler reads
UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024  # of requests that are not whole, of all connections
DEADLINE_STEP_S: Final = 0.02  # a time limit ends at most so much later: one look for many calls


class StreamBroken(Exception):
    """A handler writes to somebody who is gone."""


class Method:
    """What is done with the calls of one path.

    `read` raises an exception for bytes that are no request. `failed` turns an exception of `read` or the handler into
    the answer, or into the status that the call ends with.
    """

    def __init__(
        self,
        name: str,
        kind: int,
        *,
        read: Callable[[bytes], Any],
        write: Callable[[Any], bytes],
        call: Callable[[Any, Any], Any],
        failed: Callable[[Exception], Any],
    ) -> None:
        self.name, self.kind = name, kind
        self.read, self.write, self.call, self.failed = read, write, call, failed
        self.bytes_max: int = STREAMED_BYTES_MAX if kind == BOTH_STREAM else MESSAGE_BYTES_MAX


class Calls:
    """What the connections of a port share: the methods by their paths, and what is under way."""

    def __init__(self, methods: dict[str, Method], served: dict[str, int]) -> None:
        self.methods, self.served = methods, served
        self.ration = Ration(UNFINISHED_BYTES_MAX)
        self.waiting: set[CallTask] = set()  # handlers that have begun and wait for something
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.written.set_result(None)  # what a write that need not wait is waited for with
        self._all_ended: asyncio.Event | None = None

    def ended(self, task: CallTask) -> None:
        self.waiting.discard(task)
        if self._all_ended is not None and not self.waiting:
            self._all_ended.set()

    def all_ended(self) -> asyncio.Event:
        """Set when no handler waits any more."""
        self._all_ended = asyncio.Event()
        return self._all_ended


class CallConnection(Connection):
    """A client's connection."""

    def __init__(self, calls: Calls, *, refusal: str = "", on_open: Callable[[Connection], None] | None = None) -> None:
        super().__init__(refusal=refusal, on_open=on_open)
        self.calls = calls
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0

    def new_stream(self, stream_id: int) -> Stream:
        return Call(self, stream_id)

    def watch(self, deadline_s: float) -> None:
        """One timer for the earliest time limit: a call that is answered in time costs nothing here."""
        if self._deadline_timer is None or deadline_s < self._deadline_s:
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            self._deadline_s = deadline_s
            self._deadline_timer = self.loop.call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._deadline_timer = None
        now_s = self.loop.time()
        next_s = 0.0
        for stream in list(self.streams.values()):
            deadline_s = stream.deadline_s if isinstance(stream, Call) else 0.0
            if deadline_s == 0.0:
                continue
            if deadline_s <= now_s and isinstance(stream, Call):
                stream.end(Status.DEADLINE_EXCEEDED, "the time limit of the call is over")
            elif next_s == 0.0 or deadline_s < next_s:
                next_s = deadline_s
        if next_s and self.is_open:
            self.watch(max(next_s, now_s + DEADLINE_STEP_S))

    def end_calls(self, text: str) -> None:
        """Those that are under way; then the connection closes."""
        for stream in list(self.streams.values()):
            if isinstance(stream, Call):
                stream.end(Status.UNAVAILABLE, text)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        super().connection_lost(exc)


class Call(Stream):
    """One call. Handlers use what follows `for handlers`."""

    def __init__(self, connection: CallConnection, stream_id: int) -> None:
        super().__init__(connection, stream_id)
        self._connection = connection
        self._fields: list[Field] = []
        self._method: Method | None = None
        self._is_gzip = False
        self.deadline_s = 0.0  # on the loop's clock; 0: no limit
        self._reader: MessageReader | None = None  # once a message does not come whole in one frame
        self._request: bytes | None = None  # of a call that has one
        self._requests: Requests | None = None
        self._is_rationed = False
        self._task: CallTask | None = None
        self._is_headed = False
        self._sent: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------------------------------------ for handlers

    def metadata(self, name: str) -> str:
        """The first value of a key that is not `-bin`; empty when there is none."""
        for field in self._fields:
            if field.name == name and field.value:
                return field.value
        return ""

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return metadata_of(self._fields)

    def peer(self) -> str:
        """`ipv4:host:port`, or `ipv6:` with the brackets as gRPC writes them."""
        host, port = self._connection.host, self._connection.port
        return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def time_remaining(self) -> float | None:
        """Seconds to the time limit, if there is one."""
        return max(self.deadline_s - self.connection.loop.time(), 0.0) if self.deadline_s else None

    def write(self, message: Any) -> asyncio.Future[None]:
        """Send an answer. To be awaited: it is done when the network has taken it all."""
        method = self._method
        if self.is_done or method is None:
            raise StreamBroken(f"{self._connection.address} has ended the call")
        self._send_message(method.write(message))
        if not self.has_unsent:
            return self._connection.calls.written
        if self._sent is None or self._sent.done():
            self._sent = self.connection.loop.create_future()
        return self._sent

    async def abort(self, status: Status, text: str) -> NoReturn:
        """End the call with a status of gRPC."""
        raise CallError(status, text)

    # ------------------------------------------------------------------------------------------ called by connections

    def opened(self, fields: list[Field], is_end: bool) -> None:
        self._fields = fields
        try:
            if not self._begin(fields):
                return
            method = self._method
            if method is not None and method.kind == BOTH_STREAM:
                self._reader = MessageReader(method.bytes_max)
                self._requests = Requests(self)
                self._run(method, self._requests)
            if is_end:
                self._input_ended()
        except CallError as exc:
            self.end(exc.status, str(exc))

    def received(self, data: bytes, start: int, end: int, is_end: bool) -> None:
        try:
            if self._reader is None and self._request is None and _is_one_message(data, start, end):
                self._take(data[start] == 1, data[start + PREFIX_BYTES : end])
            elif start < end:
                self._receive_part(data, start, end)
            if is_end and not self.is_done:
                self._input_ended()
        except CallError as exc:
            self.end(exc.status, str(exc))

    def lost(self, cause: str) -> None:
        self._let_go()

    def sent_all(self) -> None:
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    # ------------------------------------------------------------------------------------------- the ration's reader

    @property
    def host(self) -> str:
        return self._connection.host

    def go_on(self) -> None:
        """There is room for the rest of the request."""
        if not self.is_done and self._reader is not None:
            self._widen(self._reader.wanted_bytes - self._reader.held_bytes)

    def cut(self, cause: str) -> None:
        peer_warnings.warn("ended a gRPC call for want of memory", f"{self._connection.address}: {cause}")
        self.end(Status.RESOURCE_EXHAUSTED, cause)

    # ---------------------------------------------------------------------------------------------------- the request

    def _begin(self, fields: list[Field]) -> bool:
        """Find the method; False when the call has ended by what its fields say."""
        path = kind = encoding = ""
        connection = self._connection
        for field in fields:
            name = field.name
            if field.kind == PATH:
                path = field.value
            elif field.kind == METHOD:
                if field.value != "POST":
                    self._refuse(405, f"{field.value[:20]} is no gRPC: calls are made by POST")
                    return False
            elif name == "content-type":
                kind = field.value
            elif name == "grpc-timeout":
                self.deadline_s = connection.loop.time() + seconds_of(field.value)
            elif name == "grpc-encoding":
                encoding = field.value
        if kind != "application/grpc" and not kind.startswith(("application/grpc+", "application/grpc;")):
            self._refuse(415, f"content-type is {kind[:80]!r}: application/grpc is taken")
            return False
        if encoding and encoding != "identity":
            if encoding != "gzip":
                raise CallError(
                    Status.UNIMPLEMENTED, f"grpc-encoding is {encoding[:40]!r}: identity and gzip are taken"
                )
            self._is_gzip = True
        self._method = connection.calls.methods.get(path)
        if self._method is None:
            raise CallError(Status.UNIMPLEMENTED, f"there is no method {path[:200]}")
        return True

    def _refuse(self, http_status: int, text: str) -> None:
        self.finish(error_block(http_status, Status.UNKNOWN, text))

    def _receive_part(self, data: bytes, start: int, end: int) -> None:
        method = self._method
        if method is None:
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = MessageReader(method.bytes_max)
            if self.deadline_s:
                self._connection.watch(self.deadline_s)
        found = reader.feed(data, start, end)
        for is_packed, message in found:
            self._take(is_packed, message)
        self._hold(reader, is_next=bool(found))

    def _hold(self, reader: MessageReader, *, is_next: bool) -> None:
        """Tell the ration what is held of a message, and let in the rest of it if there is room."""
        ration = self._connection.calls.ration
        held_bytes = reader.held_bytes
        if held_bytes:
            self._is_rationed = True
            wanted_bytes = max(reader.wanted_bytes, PREFIX_BYTES)
            has_room = ration.hold(self, held_bytes, wanted_bytes, is_next=is_next)
            if not self.is_done:
                self._widen(wanted_bytes - held_bytes if has_room else 0)
            return
        if self._is_rationed:
            self._is_rationed = False
            ration.drop(self)
        self._widen(0)

    def _widen(self, rest_bytes: int) -> None:
        """Give so much window that the rest of a message comes, and of streams what is usual, unless requests wait."""
        requests = self._requests
        held_bytes = self._reader.held_bytes if self._reader is not None else 0
        waiting_bytes = requests.waiting_bytes if requests is not None else 0
        wanted_bytes = STREAM_WINDOW - held_bytes - waiting_bytes if requests is not None else 0
        if not waiting_bytes:
            wanted_bytes = max(wanted_bytes, rest_bytes)
        more_bytes = wanted_bytes - self.receive_left
        if more_bytes >= STREAM_WINDOW // 2 or rest_bytes > self.receive_left:
            self.grant(more_bytes)

    def _take(self, is_packed: bool, message: bytes) -> None:
        """A whole message."""
        if is_packed:
            if not self._is_gzip:
                raise CallError(Status.INTERNAL, "a message is compressed, and grpc-encoding does not say how")
            message = unpacked(message)
        if self._requests is not None:
            self._requests.put(message)
        elif self._request is None:
            self._request = message
        else:
            raise CallError(Status.UNIMPLEMENTED, "a second request message in a call that takes one")

    def _input_ended(self) -> None:
        if self._reader is not None and self._reader.held_bytes:
            raise CallError(Status.INTERNAL, f"the request ends {self._reader.held_bytes} bytes inside a message")
        if self._requests is not None:
            self._requests.end()
            return
        method, request, self._request = self._method, self._request, None
        if request is None:
            raise CallError(Status.UNIMPLEMENTED, "the call has no request message")
        self._reader = None
        if method is not None:
            self._run(method, request)

    # ----------------------------------------------------------------------------------------------------- its answer

    def _run(self, method: Method, request: Any) -> None:
        calls = self._connection.calls
        calls.served[method.name] += 1
        if method.kind != BOTH_STREAM:
            try:
                request = method.read(request)
            except Exception as exc:  # noqa: BLE001 (the method says what becomes of it)
                self._failed(method, exc)
                return
        task = self._task = CallTask(self.connection.loop, method.call(request, self), self._ended)
        task.start()
        if not task.done():
            calls.waiting.add(task)
            if self.deadline_s:
                self._connection.watch(self.deadline_s)

    def _ended(self, answer: Any, error: BaseException | None) -> None:
        """The handler has returned, or raised."""
        task, self._task = self._task, None
        if task is not None:
            self._connection.calls.ended(task)
        method = self._method
        assert method is not None
        if error is None:
            if self.is_done:
                return
            if method.kind == UNARY:
                self._send_message(method.write(answer))
            self._finish_well()
        elif isinstance(error, CallError):
            self.end(error.status, str(error))
        elif isinstance(error, asyncio.CancelledError):
            self.end(Status.CANCELLED, "the call was cancelled")
        elif isinstance(error, StreamBroken):
            self._let_go()
        elif isinstance(error, Exception):
            self._failed(method, error)
        else:
            raise error

    def _failed(self, method: Method, error: Exception) -> None:
        answer = method.failed(error)
        if self.is_done:
            return
        if isinstance(answer, CallError):
            self.end(answer.status, str(answer))
        else:
            self._send_message(method.write(answer))
            self._finish_well()

    def _send_message(self, data: bytes) -> None:
        if not self._is_headed:
            self._is_headed = True
            self.send_head(HEAD_BLOCK)
        self.send(packed(data))

    def _finish_well(self) -> None:
        if not self._is_headed:  # a stream without an answer
            self._is_headed = True
            self.send_head(HEAD_BLOCK)
        self.finish(OK_BLOCK)
        self._let_go()

    def end(self, status: Status, text: str) -> None:
        """End the call with a status; what was written and not sent is dropped, and the handler cancelled."""
        if not self.is_done:
            self.drop_unsent()
            self.finish(trailers(status, text) if self._is_headed else error_block(200, status, text))
        self._let_go()

    def _let_go(self) -> None:
        """Nothing more comes of it."""
        if self._is_rationed:
            self._is_rationed = False
            self._connection.calls.ration.drop(self)
        if self._requests is not None:
            self._requests.end()
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    def read(self, message: bytes) -> Any:
        """A request of a stream."""
        assert self._method is not None
        return self._method.read(message)

    def next_request_taken(self) -> None:
        """The handler of a stream has taken one: the client may send more."""
        reader = self._reader
        if reader is not None and not self.is_done:
            self._widen(max(reader.wanted_bytes - reader.held_bytes, 0))


class Requests:
    """The requests of a stream, for `async for`. Owner: its call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waiting: deque[bytes] = deque()
        self._is_ended = False
        self._arrival: asyncio.Future[None] | None = None
        self.waiting_bytes = 0

    def put(self, message: bytes) -> None:
        self._waiting.append(message)
        self.waiting_bytes += PREFIX_BYTES + len(message)
        self._tell()

    def end(self) -> None:
        self._is_ended = True
        self._tell()

    def _tell(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        while not self._waiting:
            if self._is_ended:
                raise StopAsyncIteration
            self._arrival = self._call.connection.loop.create_future()
            await self._arrival
        message = self._waiting.popleft()
        self.waiting_bytes -= PREFIX_BYTES + len(message)
        self._call.next_request_taken()
        return self._call.read(message)


def _is_one_message(data: bytes, start: int, end: int) -> bool:
    """Whether this is one whole message and nothing else, as nearly always."""
    body = start + PREFIX_BYTES
    if end < body or data[start] > 1:
        return False
    return (data[start + 1] << 24 | data[start + 2] << 16 | data[start + 3] << 8 | data[start + 4]) == end - body
