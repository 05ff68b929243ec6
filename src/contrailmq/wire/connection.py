"""One TCP connection, as an asyncio protocol: frames in, joined writes out, requests in both directions.

A wakeup of the loop brings a chunk of bytes. Everything whole in it is parsed at once, the handler is called once with
all requests, and whatever it answers during that call leaves in one write. Answers that come later (from a flush, a
held pull, another task) are gathered until the loop comes round and leave in one write too. Per message this is 4 to 10
times cheaper than reading and writing frame by frame. A wakeup that brings more work than `slice_s` of the loop's time
is served in slices: between them the other connections have their turn, and the answers so far leave.

Bounds, so that one peer cannot take the process down:
  - a peer that does not read: at `write_high_bytes` of unsent answers we stop reading from it; at `write_bytes_max`
    the connection is cut; with no progress at all the idle rule cuts it;
  - unanswered requests of the peer: at `in_flight_max` we stop reading until some are answered;
  - unanswered requests of ours: at `in_flight_max` `invoke` raises TooManyRequestsError;
  - bytes of an unfinished frame: FrameParser's limit, and for all connections of a server together `ration`;
  - bodies that a server would decode for too long are refused here (`body_bounds`).

A connection is in one of four states, and an event leads from one to the next (`NEXT`; other events change nothing):

    state     | what is read     | answers, requests of ours | made | stop, half-closed | ended  | lost
    CLOSED    | -                | dropped, refused          | OPEN | -                 | -      | -
    OPEN      | served           | sent                      | -    | DRAINING          | ENDING | CLOSED
    DRAINING  | served or busy   | sent                      | -    | -                 | ENDING | CLOSED
    ENDING    | thrown away      | dropped, refused          | -    | -                 | -      | CLOSED

DRAINING (drain.py) is for servers that stop and for peers that have sent their end. When nothing is left to answer, and
no request is half read (for which we wait `linger_s` at most, also when it waits for its share of the ration), we say
so with a FIN and go on reading, and throwing away, until the peer closes too, for another `linger_s` at most: a socket
closed with unread bytes is reset, and a reset may overtake answers. A peer that takes none of its answers for `stuck_s`
is cut. The loop, too, may begin to close a transport when a write fails; `connection_lost` follows then.

Everything here runs on the loop's thread; from another thread go through `loop.call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from contrailmq.wire.body_bounds import FREE_BYTES, refusal
from contrailmq.wire.codes import ResponseCode, request_name
from contrailmq.wire.drain import Drain, unread_bytes
from contrailmq.wire.errors import (
    ConnectionClosedError,
    RemoteProtocolError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from contrailmq.wire.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameParser, encode_request, encode_response
from contrailmq.wire.header import FLAG_ONEWAY, FLAG_RESPONSE, Command, Fields
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.ration import Ration

__all__ = ["DEFAULT_LIMITS", "SERVER_LIMITS", "Connection", "Handler", "Limits"]

# States. Plain numbers: a compiled comparison costs nothing, and the first two are those of an open connection.
OPEN: Final = 0
DRAINING: Final = 1
ENDING: Final = 2
CLOSED: Final = 3

# Events that change the state.
MADE: Final = "made"  # by the loop
STOP: Final = "stop"  # our server stops
HALF_CLOSED: Final = "half-closed"  # the peer has sent its end and is owed answers
ENDED: Final = "ended"  # we have closed it, cut it or sent our end
LOST: Final = "lost"  # by the loop, which has let go of it

NEXT: Final[dict[str, dict[int, int]]] = {
    MADE: {CLOSED: OPEN},
    STOP: {OPEN: DRAINING},
    HALF_CLOSED: {OPEN: DRAINING},
    ENDED: {OPEN: ENDING, DRAINING: ENDING},
    LOST: {OPEN: CLOSED, DRAINING: CLOSED, ENDING: CLOSED},
}

# What the ration knows of the frame that is half read.
_NO_FRAME: Final = 0
_HELD_FRAME: Final = 1
_WAITING_FRAME: Final = 2  # for its share: nothing is read until it is there

_OPAQUE_MAX: Final = 0x7FFFFFFF
JOIN_BYTES_MAX: Final = 256 * 1024  # RocketMQ's limit for one pull from memory
COPY_BYTES_MAX: Final = 16 * 1024  # of one slice: to copy 32 KiB costs 10 us more than to hand them over as they are
SLICE_COMMANDS: Final = 8  # the clock is looked at after so many requests, unless some may take milliseconds each
LARGE_BODY_BYTES: Final = 8192  # a body that may be work for milliseconds: the clock is looked at after each of them
PARSED_COMMANDS_MAX: Final = 512  # of one read, before the others have their turn: some 2 ms
_TLS_BYTES_MAX: Final = 256 * 1024  # what the loop's TLS may have read from the socket and not handed over


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection; the module's essay says what happens at each."""

    write_high_bytes: int = 1024 * 1024
    write_bytes_max: int = 64 * 1024 * 1024  # 4 answers of the largest size; Java's high water mark is 0 (unbounded)
    in_flight_max: int = 65536  # Java's async and oneway semaphores have this many permits
    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    body_bytes_free: int = FRAME_BYTES_MAX  # larger bodies of requests are held against `body_bounds`
    slice_commands: int = SLICE_COMMANDS
    slice_s: float = 0.005
    linger_s: float = 0.5  # many round trips; peers close as soon as they read our end
    stuck_s: float = 5.0  # a connection that ends, whose peer has not taken a byte for so long, is cut


DEFAULT_LIMITS: Final = Limits()
# A hostile JSON header of 16 MiB keeps the loop busy for 0.5 s, one of 512 KiB for 20 ms; requests of clients stay
# below 100 KiB, unless they have properties that no broker takes, which is worth an answer. Answers may be larger
# (140,000 messages in a batch are answered with 4.6 MB of ids): clients take all.
SERVER_LIMITS: Final = Limits(header_bytes_max=512 * 1024, body_bytes_free=FREE_BYTES)


class _Waiting(NamedTuple):
    """A request of ours that has no answer yet."""

    future: asyncio.Future[Command]
    deadline_s: float
    code: int
    timeout_s: float


class Connection:
    """One peer. Servers get it in their handler, clients from `RemotingClient.connect`.

    An asyncio.Protocol in all but its base class (`as_protocol`): compiled, a class without one is the faster.

    `peer` is (host, port). `attributes` belongs to the application. `on_close` holds callables that run once, when the
    connection has ended, for whatever reason.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        limits: Limits = DEFAULT_LIMITS,
        ration: Ration | None = None,
        on_open: Callable[[Connection], None] | None = None,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._in_flight_max = limits.in_flight_max  # as it stands there, for the path of every request
        self._body_bytes_free = limits.body_bytes_free
        self._slice_commands = limits.slice_commands
        self._ration = ration
        self._frame = _NO_FRAME
        self._on_open = on_open
        self._loop = asyncio.get_running_loop()
        self._state = CLOSED
        self._drain: Drain | None = None  # once it may be DRAINING
        self._transport: asyncio.Transport | None = None
        self._parser = FrameParser(
            frame_bytes_max=limits.frame_bytes_max,
            header_bytes_max=limits.header_bytes_max,
            commands_max=PARSED_COMMANDS_MAX,
        )
        self._out: list[bytes | memoryview] = []
        self._out_has_views = False
        self._is_flush_due = False  # scheduled, or the handler runs, after which what it answered leaves
        self._is_reading, self._is_write_paused = True, False
        self._backlog: deque[Command] = deque()  # requests that were read and wait for their slice
        self._is_slice_scheduled = False
        self._unsent_bytes_seen = 0
        self._waiting: dict[int, _Waiting] = {}
        self._next_opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._close_cause = "the peer closed it"
        self.peer: tuple[str, int] = ("", 0)
        self.host = ""  # of the peer
        self.attributes: dict[str, object] = {}
        self.on_close: list[Callable[[Connection], None]] = []
        self.in_flight = 0  # requests of the peer that are not answered yet
        self.late_answers = 0  # answers to nothing: late, repeated or made up
        self.last_active_s = self._loop.time()

    # ------------------------------------------------------------------------------------------------- for everybody

    @property
    def is_open(self) -> bool:
        return self._state <= DRAINING and self._transport is not None and not self._transport.is_closing()

    @property
    def state(self) -> int:
        """OPEN, DRAINING, ENDING or CLOSED."""
        return self._state

    @property
    def is_writable(self) -> bool:
        """False while the peer does not read what we send."""
        return not self._is_write_paused

    @property
    def address(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    @property
    def own_address(self) -> str:  # as the peer reached it
        return "{}:{}".format(*self._transport.get_extra_info("sockname")) if self._transport is not None else ""

    def reply(self, data: bytes) -> None:
        """Send one answer (a whole frame). Silently dropped when the connection is gone: nobody waits for it."""
        self.in_flight -= 1
        self._out.append(data)
        if not self._is_flush_due:
            self._schedule_flush()

    def reply_parts(self, parts: Sequence[bytes | memoryview], size_bytes: int) -> None:
        """Send one answer of `size_bytes` in all, given as a frame head and slices (of mapped files).

        Answers of many slices are joined, with all others of the wakeup: one copy costs less than the event loop's
        bookkeeping for each slice. Of large ones, and of a large slice, the loop keeps the slices until they are sent:
        the caller drops them and does not `release()` them.
        """
        self.in_flight -= 1
        self._out.extend(parts)
        if size_bytes > JOIN_BYTES_MAX or (len(parts) == 2 and size_bytes > COPY_BYTES_MAX):
            self._out_has_views = True
        if not self._is_flush_due:
            self._schedule_flush()

    def forget(self, count: int = 1) -> None:
        """Requests that will deliberately never be answered (an END_TRANSACTION of unknown state) are not in flight."""
        self.in_flight -= count

    def invoke(
        self, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> asyncio.Future[Command]:
        """Send a request and return the future of its answer (any response code).

        The future ends with RequestTimeoutError or ConnectionClosedError; the call itself raises TooManyRequestsError,
        ConnectionClosedError or LocalProtocolError, and then nothing was sent.
        """
        return self.invoke_frame(code, lambda opaque: encode_request(code, ext, body, opaque=opaque), timeout_s)

    def invoke_frame(
        self, code: int, frame_of: Callable[[int], bytes], timeout_s: float = 3.0
    ) -> asyncio.Future[Command]:
        """The same for a caller that encodes the frame itself, given its opaque."""
        waiting = self._waiting
        if len(waiting) >= self._limits.in_flight_max:
            raise TooManyRequestsError(self.address, self._limits.in_flight_max)
        opaque = self._take_opaque()
        self._send(frame_of(opaque))
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_s
        waiting[opaque] = _Waiting(future, deadline_s, code, timeout_s)
        if self._timer is None or deadline_s < self._timer_at_s:
            self._arm(deadline_s)
        return future

    def oneway(self, code: int, ext: Fields | None = None, body: bytes = b"", remark: str | None = None) -> None:
        """Send a request that is never answered. ConnectionClosedError when the connection is known to be gone."""
        self._send(encode_request(code, ext, body, opaque=self._take_opaque(), is_oneway=True, remark=remark))

    async def writable(self) -> None:
        """Wait until the peer reads again; raises ConnectionClosedError when it never will."""
        while self._is_write_paused and self.is_open:
            if self._writable is None:
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)
        if not self.is_open:
            raise ConnectionClosedError(self.address, self._close_cause)

    def close(self, cause: str = "we closed it") -> None:
        """Send what is queued, then close. Requests of ours that wait end with ConnectionClosedError.

        A peer that does not read is waited for as long as it takes some of it every `stuck_s`.
        """
        if self.is_open:
            self._close_cause = cause
            self._flush()
        if self.is_open and self._transport is not None:  # else that was its last answer, or too much
            self._enter(ENDED)
            self._transport.close()
            self._watch_closing(self._transport)

    def abort(self, cause: str) -> None:
        """Close at once; queued bytes are lost."""
        if self._transport is not None:
            self._close_cause = cause
            self._out.clear()
            self._enter(ENDED)
            self._transport.abort()

    def drain(self) -> None:
        """Serve what has arrived, refuse what is new, and close when all is answered (see the module)."""
        if not self.is_open or (self._drain is not None and self._drain.is_stopping):
            return
        assert self._transport is not None
        self._draining().stop(unread_bytes(self._transport))
        self._enter(STOP)
        self._loop.call_later(self._limits.linger_s, self._lose_patience)
        self._watch_draining()
        self._maybe_finish()

    def close_if_idle(self, now_s: float, idle_s: float) -> bool:
        """Close when for `idle_s` nothing was read and nothing queued was taken by the peer."""
        if not self.is_open:
            return False
        assert self._transport is not None
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes_seen:
            self.last_active_s = now_s
        self._unsent_bytes_seen = unsent_bytes
        if now_s - self.last_active_s < idle_s:
            return False
        self.abort(
            f"idle for {idle_s:g} s" + (f" with {unsent_bytes} bytes that it does not read" if unsent_bytes else "")
        )
        return True

    def _watch_closing(self, transport: asyncio.Transport) -> None:
        """The loop waits for ever until the peer has read what is queued; we do not."""
        if unsent_bytes := transport.get_write_buffer_size():
            self._unsent_bytes_seen = unsent_bytes
            self._loop.call_later(self._limits.stuck_s, self._end_stuck)

    def _end_stuck(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size() < self._unsent_bytes_seen:
            self._watch_closing(transport)
        else:
            transport.abort()

    def _watch_draining(self, before: tuple[int, int] = (0, 0)) -> None:
        """Cut a peer that takes none of its answers: it keeps us from reading what we owe it, and from our end."""
        transport = self._transport
        if transport is None:
            return
        unsent_bytes, in_flight = now = (transport.get_write_buffer_size(), self.in_flight)
        if 0 < before[0] <= unsent_bytes and in_flight == before[1]:  # and none was added meanwhile
            self.abort(f"it left {unsent_bytes} bytes unread for {self._limits.stuck_s:g} s while we stop")
        else:
            self._loop.call_later(self._limits.stuck_s, self._watch_draining, now)

    # ------------------------------------------------------------------------------------------- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not of asyncio's class
        self._transport.set_write_buffer_limits(high=self._limits.write_high_bytes)
        self._enter(MADE)
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.peer = self.host, _ = str(peername[0]), int(peername[1])
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self._state != OPEN and not self._goes_on(data):
            return
        self.last_active_s = self._loop.time()
        try:
            commands = self._parser.feed(data)
        except RemoteProtocolError as exc:
            self._violated(exc)
            return
        is_next = bool(commands)
        if self._parser.too_long:
            is_next = True
            self._refuse_long_headers()
        requests: list[Command] = []
        unanswered, body_bytes_free, largest_bytes = 0, self._body_bytes_free, 0
        for command in commands:
            flag = command.flag
            if flag & FLAG_RESPONSE:
                self._answered(command)
                continue
            body_bytes = len(command.body)
            if body_bytes > body_bytes_free and self._refused(command):
                continue
            if body_bytes > largest_bytes:
                largest_bytes = body_bytes
            requests.append(command)
            if not flag & FLAG_ONEWAY:
                unanswered += 1
        if requests:
            self.in_flight += unanswered
            if self._drain is not None and self._drain.is_refusing:
                self._refuse_new(requests)
            elif self._backlog:
                self._backlog.extend(requests)
            else:
                self._serve(requests, largest_bytes)
        if self._parser.error is not None:
            self._violated(self._parser.error)
        elif self._backlog or self._parser.has_more:
            self._schedule_slice()
        elif self.in_flight >= self._in_flight_max:
            self._update_reading()
        if self._ration is not None and (self._frame or self._parser.buffered_bytes):
            self._report(self._ration, is_next=is_next)

    def _report(self, ration: Ration, *, is_next: bool) -> None:
        """Tell the ration what is held of an unfinished frame, and whether it is the next after a whole one."""
        held_bytes = self._parser.buffered_bytes
        if held_bytes > 0:
            has_share = ration.hold(self, held_bytes, self._parser.wanted_bytes, is_next=is_next)
            self._frame = _HELD_FRAME if has_share else _WAITING_FRAME
        else:
            self._frame = _NO_FRAME
            ration.drop(self)
        if (self._frame == _WAITING_FRAME) is self._is_reading:
            self._update_reading()

    def _hold_nothing(self) -> None:
        if self._frame != _NO_FRAME and self._ration is not None:
            self._frame = _NO_FRAME
            self._parser = FrameParser()  # nothing is parsed from here on
            self._ration.drop(self)

    def go_on(self) -> None:
        """The ration has a share for the frame that waits."""
        self._frame = _HELD_FRAME
        self._update_reading()

    def cut(self, cause: str) -> None:
        peer_warnings.warn("cut for want of memory", f"{self.address}: {cause}")
        self.abort(cause)

    def _serve(self, requests: list[Command], largest_bytes: int) -> None:
        """Hand requests to the handler, as many as a slice of time takes; the rest waits in the backlog."""
        was_due, self._is_flush_due = self._is_flush_due, True
        try:
            step = 1 if largest_bytes > LARGE_BODY_BYTES else self._slice_commands
            if len(requests) <= step:
                self._handler(self, requests)
                return
            end_s = time.monotonic() + self._limits.slice_s
            for start in range(0, len(requests), step):
                self._handler(self, requests[start : start + step])
                if time.monotonic() >= end_s:
                    self._backlog.extendleft(reversed(requests[start + step :]))
                    break
        finally:
            self._is_flush_due = was_due
            self._flush()

    def _schedule_slice(self) -> None:
        if not self._is_slice_scheduled and self._state <= DRAINING:
            self._is_slice_scheduled = True
            self._loop.call_soon(self._serve_slice)
        self._update_reading()

    def _serve_slice(self) -> None:
        """The next slice of what was read, unless the peer does not read: then `resume_writing` goes on."""
        self._is_slice_scheduled = False
        if self._state >= ENDING or self._is_write_paused:
            return
        if self._backlog:
            requests = [self._backlog.popleft() for _ in range(min(len(self._backlog), self._slice_commands))]
            self._serve(requests, max([len(request.body) for request in requests]))
        if self._backlog:
            self._schedule_slice()
        else:
            self.data_received(b"")  # frames that the parser has not looked at yet
            self._update_reading()

    def eof_received(self) -> bool:
        """A half-closed peer still gets the answers to what it asked; nothing else keeps the connection."""
        self._flush()  # what is queued must not be lost when the loop closes the transport after us
        transport = self._transport
        if transport is None or self._state >= ENDING:
            return False
        if self.in_flight > 0 and not _is_tls(transport):  # TLS has no half-closed state
            self._draining().has_eof = True
            self._enter(HALF_CLOSED)
            return True
        self._enter(ENDED)
        self._watch_closing(transport)
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._release_writers()
        if self._backlog or self._parser.has_more:
            self._schedule_slice()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._close_cause = str(exc) or type(exc).__name__
        self._enter(LOST)
        self._transport = None
        self._out.clear()
        self._backlog.clear()
        self._hold_nothing()
        self._release_writers()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            if not entry.future.done():
                entry.future.set_exception(ConnectionClosedError(self.address, self._close_cause))
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback(self)

    # ---------------------------------------------------------------------------------------------------- our own

    def _enter(self, event: str) -> None:
        self._state = NEXT[event].get(self._state, self._state)

    def _send(self, data: bytes) -> None:
        if not self.is_open:
            raise ConnectionClosedError(self.address, self._close_cause)
        self._out.append(data)
        if not self._is_flush_due:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        self._is_flush_due = True
        self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._is_flush_due = False
        if not self._is_write_paused:
            self.last_active_s = self._loop.time()
        self._flush()

    def _flush(self) -> None:
        """One write for everything that was gathered."""
        out, transport = self._out, self._transport
        if out:
            self._out = []
            if transport is None or self._state >= ENDING or transport.is_closing():
                return
            if self._out_has_views:
                self._out_has_views = False
                transport.writelines(out)
            else:
                transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self._is_write_paused:
                unsent_bytes = transport.get_write_buffer_size()
                if unsent_bytes > self._limits.write_bytes_max:
                    cause = f"it left {unsent_bytes} bytes unread, the bound is {self._limits.write_bytes_max}"
                    peer_warnings.warn("cut a peer that does not read", f"{self.address}: {cause}")
                    self.abort(cause)
                    return
        if not self._is_reading:
            self._update_reading()
        if self._state == DRAINING:
            self._maybe_finish()

    def _draining(self) -> Drain:
        if self._drain is None:
            self._drain = Drain()
        return self._drain

    def _goes_on(self, data: bytes) -> bool:
        """While it is not just open: whether what was read is looked at."""
        if self._state != DRAINING:
            return False
        if data and self._drain is not None and self._transport is not None:
            self._drain.note_read(len(data), unread_bytes(self._transport))
            self._loop.call_soon(self._maybe_finish)
        return True

    def _maybe_finish(self) -> None:
        """While draining: send our end when nothing is owed any more."""
        drain, transport = self._drain, self._transport
        if self._state != DRAINING or drain is None or transport is None:
            return
        is_answered = self.in_flight <= 0 and not self._out and not self._backlog and not self._parser.has_more
        if not is_answered or not drain.may_end(self._parser.buffered_bytes, transport):
            return
        self._enter(ENDED)
        if drain.has_eof or transport.is_closing() or not transport.can_write_eof():
            transport.close()  # TLS says its own goodbye
            self._watch_closing(transport)
            return
        self._close_cause = "we stop"
        self._hold_nothing()
        try:
            transport.write_eof()
        except OSError:  # asyncio's own loop: the peer has reset the connection, and the loop has not seen it yet
            transport.abort()
            return
        if not self._is_reading:
            transport.resume_reading()
        self._loop.call_later(self._limits.linger_s, transport.close)

    def _lose_patience(self) -> None:
        drain, transport = self._drain, self._transport
        if drain is None or transport is None:
            return
        drain.is_patient = False
        if self._frame == _WAITING_FRAME:
            here_bytes = self._parser.buffered_bytes + unread_bytes(transport)
            if here_bytes + (_TLS_BYTES_MAX if _is_tls(transport) else 0) < self._parser.wanted_bytes:
                drain.owed_bytes = 0  # a frame that had not arrived whole: its share is not waited for
        self._maybe_finish()

    def _refuse_new(self, requests: list[Command]) -> None:
        remark = "this server is stopping and takes no new requests: ask another, or later"
        for request in requests:
            if not request.is_oneway:
                self.reply(encode_response(request, ResponseCode.SYSTEM_BUSY, remark=remark))

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._state >= ENDING or transport.is_closing():
            return
        should_read = (
            not self._is_write_paused
            and self._frame != _WAITING_FRAME
            and not self._backlog
            and not self._parser.has_more
            and self.in_flight < self._limits.in_flight_max
        )
        if should_read is not self._is_reading:
            self._is_reading = should_read
            if should_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _answered(self, command: Command) -> None:
        entry = self._waiting.pop(command.opaque, None)
        if entry is None:
            self.late_answers += 1
        elif not entry.future.done():
            entry.future.set_result(command)

    def _refused(self, request: Command) -> bool:
        """Answer a request whose body nobody should decode; False when there is nothing against it."""
        cause = refusal(request.code, request.body)
        if cause is None:
            return False
        peer_warnings.warn("refused a body", f"{self.address}: {cause}")
        if not request.is_oneway:
            self._send(encode_response(request, ResponseCode.INVALID_PARAMETER, remark=cause))
        return True

    def _refuse_long_headers(self) -> None:
        too_long, self._parser.too_long = self._parser.too_long, []
        for request, size_bytes in too_long:
            cause = (
                f"{request_name(request.code)}: header of {size_bytes} bytes is above the limit of "
                f"{self._limits.header_bytes_max}: move data into the body"
            )
            peer_warnings.warn("refused a header", f"{self.address}: {cause}")
            if not request.flag & (FLAG_RESPONSE | FLAG_ONEWAY) and self.is_open:
                self._send(encode_response(request, ResponseCode.INVALID_PARAMETER, remark=cause))

    def _violated(self, error: RemoteProtocolError) -> None:
        peer_warnings.warn("closed a peer that broke the protocol", f"{self.address}: {error}")
        self.close(f"protocol violation: {error}")

    def _release_writers(self) -> None:
        if self._writable is not None:
            writable, self._writable = self._writable, None
            writable.set_result(None)

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 0
        return opaque

    def _arm(self, deadline_s: float) -> None:
        """One timer per connection, for the earliest deadline: a request answered in time costs nothing here."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        expired = [opaque for opaque, entry in self._waiting.items() if entry.deadline_s <= now_s]
        for opaque in expired:
            entry = self._waiting.pop(opaque)
            if not entry.future.done():
                entry.future.set_exception(RequestTimeoutError(self.address, entry.code, entry.timeout_s))
        if self._waiting:
            self._arm(min(entry.deadline_s for entry in self._waiting.values()))


def as_protocol(factory: Callable[[], Connection]) -> Callable[[], asyncio.Protocol]:
    """The same, for loops: they call what a connection has and look at no class."""
    return cast(Callable[[], asyncio.Protocol], factory)


def _is_tls(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("ssl_object") is not None


Handler = Callable[[Connection, list[Command]], None]
