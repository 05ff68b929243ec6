"""The server's side of an HTTP/2 connection, as an asyncio protocol (RFC 9113).

A wakeup brings a chunk of bytes. All frames that are whole in it are served at once, and everything that answers them
in the same turn of the loop leaves in one write. A chunk that opens more than CALLS_A_TURN calls is served in parts, so
that other connections have their turn between them.

An application derives from `Connection` (which streams it makes) and from `Stream` (what is done with a request). Both
sides of a stream go on apart: the peer ends its own by END_STREAM, we end ours by the last fields (`finish`), and a
stream that has ended on both sides is forgotten. Where we end first, the peer is told that the rest is not wanted.

How answers leave is said in `sending`. Of what comes in, the connection's window is given back as data comes, a
stream's by the application (`grant`), which so bounds what it holds of a request.

What a peer may not do ends this one connection, with a GOAWAY that says why and a line in the log:

    frames larger than FRAME_BYTES_MAX          FRAME_SIZE_ERROR
    data beyond a window, a window beyond 2^31  FLOW_CONTROL_ERROR
    header blocks above BLOCK_BYTES_MAX, of more than CONTINUATIONS_MAX parts, or above hpack.LIST_BYTES_MAX unpacked,
    and floods of what leads nowhere (`allowance`)   ENHANCE_YOUR_CALM
    no preface within PREFACE_S, or another protocol, of which HTTP/1 gets an answer that it understands

A peer that does not read is not read from either, as long as more than WRITE_HIGH_BYTES wait in the socket. One that
is silent for PING_AFTER_S gets a PING, and is cut when nothing comes within PING_S. One without calls for IDLE_S is
sent away in good order, as Apache's proxy does.

Everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from contrailmq.wire.http2.allowance import PING_COST, RESET_COST, SETTINGS_COST, Allowance
from contrailmq.wire.http2.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NAMES,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_CLOSED,
    STREAM_MASK,
    WINDOW_BEFORE,
    WINDOW_MAX,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Error,
    frame,
    goaway,
    read_settings,
    reset,
    settings,
    window_update,
)
from contrailmq.wire.http2.hpack import (
    LIST_BYTES_MAX,
    METHOD,
    PATH,
    REGULAR,
    SCHEME,
    Field,
    HeaderDecoder,
    HeaderListTooLarge,
    HpackError,
)
from contrailmq.wire.http2.hpack import MALFORMED as MALFORMED_FIELD
from contrailmq.wire.http2.sending import STREAM_WINDOW, WRITE_HIGH_BYTES, Sender, Stream
from contrailmq.wire.peer_warnings import peer_warnings

__all__ = ["Connection"]

STREAMS_MAX: Final = 4096  # of a connection at a time; what it opens beyond that is refused
CONNECTION_WINDOW: Final = 8 * 1024 * 1024  # on the way to us at most: 1 Gbit/s over 60 ms
BLOCK_BYTES_MAX: Final = LIST_BYTES_MAX  # of a header block as it comes
CONTINUATIONS_MAX: Final = 16  # of a block
CALLS_A_TURN: Final = 64  # some 5 ms
PREFACE_S: Final = 10.0
PING_AFTER_S: Final = 30.0
PING_S: Final = 10.0
IDLE_S: Final = 120.0
LINGER_S: Final = 0.5  # many round trips: what the peer has sent before it knew of our end is refused, not cut
STUCK_S: Final = 5.0  # a connection that ends, whose peer has not taken all by then, is cut
HTTP_1: Final = b"HTTP/1.1 426 Upgrade Required\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
HTTP_1_TEXT: Final = b"this port serves gRPC, which needs HTTP/2\n"
_FIRST_LINE_BYTES: Final = 16

# States.
BEGINNING: Final = 0  # the preface has not come yet
OPEN: Final = 1
DRAINING: Final = 2  # no new streams
ENDED: Final = 3

_OUR_SETTINGS: Final = settings(
    {
        MAX_CONCURRENT_STREAMS: STREAMS_MAX,
        INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        MAX_HEADER_LIST_SIZE: LIST_BYTES_MAX,
    }
) + window_update(0, CONNECTION_WINDOW - WINDOW_BEFORE)
_OUR_PING: Final = frame(PING, 0, 0, b"contrail")


class Connection(Sender):
    """An asyncio.Protocol in all but its base class: compiled, a class without one is the faster.

    `on_close` holds callables that run once, when it has ended, for whatever reason. With `refusal`, it takes no call
    and says this text instead.
    """

    def __init__(self, *, refusal: str = "", on_open: Callable[[Connection], None] | None = None) -> None:
        super().__init__()
        self._refusal, self._on_open = refusal, on_open
        self._state: int = BEGINNING
        self._decoder = HeaderDecoder()
        self._allowance = Allowance(self.loop.time())
        self.streams: dict[int, Stream] = {}
        self._last_id = 0
        # What has come and is not served: a part of a frame, in chunks, and how much is needed to go on.
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._needed_bytes = len(PREFACE)
        self._calls_left = 0  # of this turn
        self._is_turn_due = False
        # A header block that is not whole.
        self._block: list[bytes] | None = None
        self._block_bytes = 0
        self._block_stream = 0
        self._block_flags = 0
        self._receive_left: int = CONNECTION_WINDOW
        self._is_reading = True
        self._timer: asyncio.TimerHandle | None = None
        self._has_heard = True  # something since the last look
        self._is_pinged = False
        self._is_peer_leaving = False  # it opens no more streams, and says so
        self._idle_since_s: float = self.loop.time()
        self.host = ""
        self.port = 0
        self.on_close: list[Callable[[Any], None]] = []

    def new_stream(self, stream_id: int) -> Stream:
        """The application's."""
        raise AssertionError("the application's class makes its streams")

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_open(self) -> bool:
        return self._state < ENDED

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        if self._to_send:
            self._to_send.pop(stream.id, None)
        if not self.streams:
            self._idle_since_s = self.loop.time()
            if self._state == DRAINING:
                self.loop.call_soon(self._maybe_finish)

    def drain(self, cause: str) -> None:
        """Take no new streams, and close when those that are open have ended.

        Clients close first, as soon as they read it. What they have opened meanwhile is refused by its stream, so that
        they try it elsewhere: of a connection that was closed over it, they would not know whether it was served.
        """
        if self._state == BEGINNING:
            self._end(cause)
        elif self._state == OPEN:
            self.write(goaway(self._last_id, NO_ERROR, cause))
            self._state = DRAINING
            self._maybe_finish()

    def close(self, code: int, text: str) -> None:
        """Say why, send what is queued and close; streams are lost."""
        if self._state < ENDED and self._transport is not None:
            self.write(goaway(self._last_id, code, text))
            self._end(text)

    def abort(self, cause: str) -> None:
        """Close at once; what is queued may be lost."""
        self._end(cause)
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------------- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.host, self.port = str(peername[0]), int(peername[1])
        self._timer = self.loop.call_later(PREFACE_S, self._look)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self._state == ENDED:
            return
        self._has_heard = True
        if self._rest_bytes:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._needed_bytes or self._is_turn_due:
                return
            data = b"".join(self._rest)
            self._rest.clear()
            self._rest_bytes = 0
        self._serve(data)

    def _serve(self, data: bytes) -> None:
        was_due, self._is_flush_due = self._is_flush_due, True
        try:
            at = self._preface(data) if self._state == BEGINNING else 0
            if self._state != BEGINNING:
                at = self._frames(data, at)
            if at < len(data) and self._state != ENDED:
                self._rest.append(data[at:] if at else data)
                self._rest_bytes = len(data) - at
        except Http2Error as exc:
            self._violated(exc.code, str(exc))
        finally:
            self._is_flush_due = was_due
            self._flush()

    def eof_received(self) -> bool:
        """A peer that has sent its end makes no calls, and those of gRPC wait for no answers either."""
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._update_reading()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc is not None else "the peer closed the connection")
        self._transport = None
        self._out.clear()
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback(self)

    # ------------------------------------------------------------------------------------------------ what comes in

    def _preface(self, data: bytes) -> int:
        """How much of it is here; all of it opens the connection."""
        if not data.startswith(PREFACE[: len(data)]):
            raise Http2Error(PROTOCOL_ERROR, _other_protocol(data))
        if len(data) < len(PREFACE):
            return 0
        self._state = OPEN
        self._needed_bytes = HEAD_BYTES
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(PING_AFTER_S, self._look)
        self.write(_OUR_SETTINGS)
        if self._refusal:
            peer_warnings.warn("plain connection refused", f"{self.address}: {self._refusal}")
            self.close(PROTOCOL_ERROR, self._refusal)
        return len(PREFACE)

    def _frames(self, data: bytes, at: int) -> int:
        """Serve all that are whole; returns where the next one begins."""
        end = len(data)
        self._calls_left = CALLS_A_TURN
        while self._state != ENDED:
            if end - at < HEAD_BYTES:
                self._needed_bytes = HEAD_BYTES
                break
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if size > FRAME_BYTES_MAX:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame of {size} bytes, the limit is {FRAME_BYTES_MAX}")
            start = at + HEAD_BYTES
            if end - start < size:
                self._needed_bytes = HEAD_BYTES + size
                break
            if self._calls_left <= 0:
                self._next_turn()
                break
            stream_id = (data[at + 5] & 0x7F) << 24 | data[at + 6] << 16 | data[at + 7] << 8 | data[at + 8]
            kind = data[at + 3]
            if self._block is not None and (kind != CONTINUATION or stream_id != self._block_stream):
                raise Http2Error(PROTOCOL_ERROR, f"a frame of kind {kind} inside a header block")
            flags = data[at + 4]
            at = start + size
            if kind == DATA:
                self._data(flags, stream_id, data, start, at)
            elif kind == HEADERS:
                self._headers(flags, stream_id, data, start, at)
            else:
                self._other(kind, flags, stream_id, data[start:at])
        return at

    def _next_turn(self) -> None:
        self._is_turn_due = True
        self._update_reading()
        self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Go on with what was read."""
        self._is_turn_due = False
        data = b"".join(self._rest)
        self._rest.clear()
        self._rest_bytes = 0
        if self._state != ENDED:
            self._serve(data)
            self._update_reading()

    def _data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        size = end - start
        self._receive_left -= size
        if self._receive_left < CONNECTION_WINDOW // 2:
            if self._receive_left < 0:
                raise Http2Error(FLOW_CONTROL_ERROR, f"data {-self._receive_left} bytes beyond the connection's window")
            self.write(window_update(0, CONNECTION_WINDOW - self._receive_left))
            self._receive_left = CONNECTION_WINDOW
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_peer_done:
            self._check_was_open(stream_id, "DATA")
            self._spend(PING_COST, "data for streams that have ended")
            if stream is not None:
                self._break(stream, STREAM_CLOSED, "data behind its end")
            else:
                self.write(reset(stream_id, STREAM_CLOSED))
            return
        stream.receive_left -= size
        if stream.receive_left < 0:
            raise Http2Error(FLOW_CONTROL_ERROR, f"data {-stream.receive_left} bytes beyond the window of a stream")
        if flags & PADDED:
            end -= _padding(data, start, end)
            start += 1
        is_end = flags & END_STREAM != 0
        if start == end and not is_end:
            self._spend(PING_COST, "empty DATA frames")
        stream.is_peer_done = is_end
        stream.received(data, start, end, is_end)

    def _headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if flags & PADDED:
            end -= _padding(data, start, end)
            start += 1
        if flags & WITH_PRIORITY:
            start += 5
            if start > end:
                raise Http2Error(FRAME_SIZE_ERROR, "HEADERS that end inside their priority")
        if flags & END_HEADERS:
            self._block_done(flags, stream_id, data[start:end])
            return
        self._block, self._block_bytes = [data[start:end]], end - start
        self._block_stream, self._block_flags = stream_id, flags

    def _continuation(self, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise Http2Error(PROTOCOL_ERROR, "CONTINUATION of no header block")
        block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > BLOCK_BYTES_MAX or len(block) > CONTINUATIONS_MAX:
            text = (
                f"a header block of {self._block_bytes} bytes in {len(block)} parts: {BLOCK_BYTES_MAX} bytes in "
                f"{CONTINUATIONS_MAX} parts are taken at most"
            )
            raise Http2Error(ENHANCE_YOUR_CALM, text)
        if flags & END_HEADERS:
            self._block = None
            self._block_done(self._block_flags, self._block_stream, b"".join(block))

    def _block_done(self, flags: int, stream_id: int, block: bytes) -> None:
        try:
            fields = self._decoder.decode(block)
        except HeaderListTooLarge as exc:
            raise Http2Error(ENHANCE_YOUR_CALM, str(exc)) from None
        except HpackError as exc:
            raise Http2Error(COMPRESSION_ERROR, str(exc)) from None
        stream = self.streams.get(stream_id)
        is_end = flags & END_STREAM != 0
        if stream is not None:
            self._ends_with_fields(stream, is_end)
            return
        if stream_id & 1 == 0:
            raise Http2Error(PROTOCOL_ERROR, f"a client opens stream {stream_id}: its numbers are odd")
        if stream_id <= self._last_id:  # its last fields, if we have ended it before
            self._spend(PING_COST, "fields of streams that have ended")
            return
        self._last_id = stream_id
        if self._state != OPEN or len(self.streams) >= STREAMS_MAX:
            self._spend(PING_COST, f"streams beyond the {STREAMS_MAX} that a connection may have open")
            self.write(reset(stream_id, REFUSED_STREAM))
            return
        self._calls_left -= 1
        self._allowance.called()
        stream = self.streams[stream_id] = self.new_stream(stream_id)
        if not _is_request(fields):
            self._spend(RESET_COST, "requests whose fields are not HTTP/2's")
            self._break(stream, PROTOCOL_ERROR, "its fields are no request")
            return
        stream.is_peer_done = is_end
        stream.opened(fields, is_end)

    def _ends_with_fields(self, stream: Stream, is_end: bool) -> None:
        """Fields behind the data: gRPC's clients have none to say."""
        if stream.is_peer_done or not is_end:
            self._spend(RESET_COST, "second header blocks")
            self._break(stream, STREAM_CLOSED if stream.is_peer_done else PROTOCOL_ERROR, "a second header block")
            return
        stream.is_peer_done = True
        stream.received(b"", 0, 0, True)

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == CONTINUATION:
            self._continuation(flags, payload)
        elif kind == PING:
            _check_frame(kind, len(payload) == 8, stream_id == 0)
            if not flags & ACK:
                self._spend(PING_COST, "PING frames")
                self.write(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            self._reset(stream_id, payload)
        elif kind == SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == GOAWAY:
            _check_frame(kind, len(payload) >= 8, stream_id == 0)
            if self._state == OPEN:
                self._state = DRAINING
                self._is_peer_leaving = True
                self._maybe_finish()
        elif kind == PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "PUSH_PROMISE of a client")
        else:  # PRIORITY, and what nobody knows
            self._spend(PING_COST, "frames that say nothing")

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        _check_frame(WINDOW_UPDATE, len(payload) == 4, True)
        increment = int.from_bytes(payload, "big") & STREAM_MASK
        if increment == 0:
            raise Http2Error(PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream_id == 0:
            self.send_window += increment
            if self.send_window > WINDOW_MAX:
                raise Http2Error(FLOW_CONTROL_ERROR, f"a window of {self.send_window} bytes, at most {WINDOW_MAX}")
            if self._to_send:
                self.pump_soon()
        else:
            stream = self.streams.get(stream_id)
            if stream is None:
                self._check_was_open(stream_id, "WINDOW_UPDATE")
                return
            self._widen(stream, increment)
            if stream.send_window > WINDOW_MAX:
                self._break(stream, FLOW_CONTROL_ERROR, f"a window of {stream.send_window} bytes")

    def _widen(self, stream: Stream, more: int) -> None:
        stream.send_window += more
        if stream.has_unsent and stream.send_window > 0:
            self.wait_to_send(stream)
            self.pump_soon()

    def _reset(self, stream_id: int, payload: bytes) -> None:
        _check_frame(RST_STREAM, len(payload) == 4, stream_id != 0)
        self._spend(RESET_COST, "streams that are opened and reset")
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_was_open(stream_id, "RST_STREAM")
            return
        stream.is_done = stream.is_peer_done = True
        self.forget(stream)
        stream.lost("the client cancelled the call")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_frame(SETTINGS, not (flags & ACK and payload), stream_id == 0)
        if flags & ACK:
            return
        self._spend(SETTINGS_COST, "SETTINGS frames")
        for key, value in read_settings(payload):
            if key == INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise Http2Error(FLOW_CONTROL_ERROR, f"an initial window of {value} bytes, at most {WINDOW_MAX}")
                more, self.peer_stream_window = value - self.peer_stream_window, value
                for stream in self.streams.values():
                    self._widen(stream, more)  # to less than 0, perhaps: nothing is sent until it is more
                    if stream.send_window > WINDOW_MAX:
                        raise Http2Error(FLOW_CONTROL_ERROR, f"a window of {stream.send_window} bytes by SETTINGS")
            elif key == MAX_FRAME_SIZE and value < FRAME_BYTES_MAX:
                raise Http2Error(PROTOCOL_ERROR, f"frames of at most {value} bytes, {FRAME_BYTES_MAX} are the least")
        self.write(SETTINGS_ACK)

    def _check_was_open(self, stream_id: int, what: str) -> None:
        if stream_id > self._last_id or stream_id & 1 == 0:
            raise Http2Error(PROTOCOL_ERROR, f"{what} on stream {stream_id}, which nobody has opened")

    def _spend(self, cost: int, what: str) -> None:
        if not self._allowance.take(cost, self.loop.time()):
            raise Http2Error(ENHANCE_YOUR_CALM, f"too many {what}: send fewer, or open another connection")

    def _break(self, stream: Stream, code: int, cause: str) -> None:
        stream.abandon(code)
        stream.lost(cause)

    def _violated(self, code: int, text: str) -> None:
        peer_warnings.warn("closed a gRPC client that broke the protocol", f"{self.address}: {text}")
        if text.startswith("HTTP/1"):
            self._out[:] = [HTTP_1, HTTP_1_TEXT]
            self._end(text)
        else:
            self.close(code, text)

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._state == ENDED or transport.is_closing():
            return
        should_read = not self._is_write_paused and not self._is_turn_due
        if should_read is not self._is_reading:
            self._is_reading = should_read
            if should_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # ------------------------------------------------------------------------------------------------------ its end

    def _look(self) -> None:
        """Every PING_AFTER_S, or PING_S after a ping."""
        self._timer = None
        if self._state == BEGINNING:
            self._violated(PROTOCOL_ERROR, f"no HTTP/2 preface within {PREFACE_S:g} s")
            return
        if self._state == ENDED:
            return
        if self._is_pinged and not self._has_heard:
            self.abort(f"nothing came for {PING_AFTER_S + PING_S:g} s, and no answer to a PING")
            return
        if not self.streams and self.loop.time() - self._idle_since_s >= IDLE_S:
            self.drain(f"no call for {IDLE_S:g} s")
            return
        self._is_pinged = not self._has_heard
        self._has_heard = False
        if self._is_pinged:
            self.write(_OUR_PING)
        self._timer = self.loop.call_later(PING_S if self._is_pinged else PING_AFTER_S, self._look)

    def _maybe_finish(self) -> None:
        if self._state != DRAINING or self.streams:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(
            0.0 if self._is_peer_leaving else LINGER_S, self._end, "all calls have ended"
        )

    def _end(self, cause: str) -> None:
        """Send what is queued and close; whoever waits for an answer or a request hears of it."""
        if self._state == ENDED:
            return
        self._state = ENDED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        streams, self.streams = self.streams, {}
        self._to_send.clear()
        self._rest.clear()
        for stream in streams.values():
            stream.is_done = stream.is_peer_done = True
            stream.lost(cause)
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._flush()
            transport.close()
            self.loop.call_later(STUCK_S, transport.abort)


def _padding(data: bytes, start: int, end: int) -> int:
    """How many bytes at the end are padding, which the first byte says."""
    size = data[start] if start < end else 0
    if size + 1 > end - start:
        raise Http2Error(PROTOCOL_ERROR, f"{size} bytes of padding in {end - start} bytes")
    return size


def _check_frame(kind: int, is_whole: bool, is_in_place: bool) -> None:
    if not is_in_place:
        raise Http2Error(PROTOCOL_ERROR, f"{NAMES[kind]} on a stream where it has no place")
    if not is_whole:
        raise Http2Error(FRAME_SIZE_ERROR, f"{NAMES[kind]} of another size than it has")


def _is_request(fields: list[Field]) -> bool:
    """Each of a request's own fields once, before all others, and nothing that HTTP/2 does not know."""
    seen = 0
    is_behind = False
    for field in fields:
        kind = field.kind
        if kind == REGULAR:
            is_behind = True
        elif kind == MALFORMED_FIELD or is_behind or seen >> kind & 1:
            return False
        else:
            seen |= 1 << kind
    needed = 1 << METHOD | 1 << PATH | 1 << SCHEME
    return seen & needed == needed


def _other_protocol(data: bytes) -> str:
    first = data[:_FIRST_LINE_BYTES]
    if b" /" in first and first.split(b" ")[0].isupper():
        return f"HTTP/1 ({first!r}): gRPC needs HTTP/2"
    return f"no HTTP/2: it begins with {first!r}"
