"""What a peer may not do: its connection, or its stream, ends by the error that HTTP/2 has for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.wire.http2.allowance import ALLOWANCE, RESET_COST, SETTINGS_COST
from contrailmq.wire.http2.connection import CONNECTION_WINDOW
from contrailmq.wire.http2.frames import (
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    frame,
)
from contrailmq.wire.http2.hpack import indexed, literal
from contrailmq.wire.http2.sending import STREAM_WINDOW
from contrailmq.wire.peer_warnings import peer_warnings
from how_many import examples

from .ends import PLAIN_ONLY, Raw

pytestmark = PLAIN_ONLY

OPENING = indexed(3) + indexed(6) + literal(":path", "/echo")
MANY = 2 * ALLOWANCE


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


@pytest.fixture(autouse=True)
def _allowance_of_the_log() -> None:
    peer_warnings._periods.clear()


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


BOMB = b"\x40\x01a" + b"\x7f\x81\x1e" + b"x" * 3968
ENDS: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "a frame that is too large": (lambda: b"\0\x40\1\0\0\0\0\0\1", FRAME_SIZE_ERROR, "16385 bytes"),
    "fields that cannot be unpacked": (lambda: frame(HEADERS, 4, 1, b"\xff\xff\xff\xff"), COMPRESSION_ERROR, "number"),
    "a compression bomb": (
        lambda: frame(HEADERS, 5, 1, BOMB) + frame(HEADERS, 5, 3, b"\xbe" * 20),
        ENHANCE_YOUR_CALM,
        "larger than 32768",
    ),
    "continuations without end": (
        lambda: frame(HEADERS, 0, 1, OPENING) + frame(CONTINUATION, 0, 1) * 20,
        ENHANCE_YOUR_CALM,
        "in 17 parts",
    ),
    "a header block that is too large": (
        lambda: frame(HEADERS, 0, 1, OPENING) + frame(CONTINUATION, 0, 1, b"\0" * FRAME_BYTES_MAX) * 3,
        ENHANCE_YOUR_CALM,
        "32768 bytes",
    ),
    "another frame inside a header block": (
        lambda: frame(HEADERS, 0, 1, OPENING) + frame(PING, 0, 0, b"12345678"),
        PROTOCOL_ERROR,
        "inside a header block",
    ),
    "another stream inside a header block": (
        lambda: frame(HEADERS, 0, 1, OPENING) + frame(CONTINUATION, 4, 3),
        PROTOCOL_ERROR,
        "inside a header block",
    ),
    "a continuation of nothing": (lambda: frame(CONTINUATION, 4, 1), PROTOCOL_ERROR, "no header block"),
    "data on no stream": (lambda: frame(DATA, 0, 0, b"abc"), PROTOCOL_ERROR, "nobody has opened"),
    "data on a stream that is not open": (lambda: frame(DATA, 0, 5, b"abc"), PROTOCOL_ERROR, "nobody has opened"),
    "padding longer than its frame": (
        lambda: frame(HEADERS, 4, 1, OPENING) + frame(DATA, 8, 1, b"\x05abc"),
        PROTOCOL_ERROR,
        "padding",
    ),
    "a priority that is cut": (lambda: frame(HEADERS, 0x24, 1, b"abc"), FRAME_SIZE_ERROR, "priority"),
    "an even stream": (lambda: frame(HEADERS, 5, 2, OPENING), PROTOCOL_ERROR, "odd"),
    "a window of the connection beyond its end": (
        lambda: frame(WINDOW_UPDATE, 0, 0, number(0x7FFF_FFFF)),
        FLOW_CONTROL_ERROR,
        "2147549182",
    ),
    "a window that grows by nothing": (lambda: frame(WINDOW_UPDATE, 0, 0, number(0)), PROTOCOL_ERROR, "by 0"),
    "a window of a stream that is not open": (lambda: frame(WINDOW_UPDATE, 0, 7, number(1)), PROTOCOL_ERROR, "opened"),
    "a window update of 3 bytes": (lambda: frame(WINDOW_UPDATE, 0, 0, b"abc"), FRAME_SIZE_ERROR, "WINDOW_UPDATE"),
    "an initial window beyond its end": (
        lambda: frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
        FLOW_CONTROL_ERROR,
        "4294967295",
    ),
    "an initial window that takes one stream beyond its end": (
        lambda: (
            frame(HEADERS, 4, 1, OPENING)
            + frame(WINDOW_UPDATE, 0, 1, number(0x7FFF_0000))
            + frame(SETTINGS, 0, 0, b"\0\4" + number(0x7FFF_FFFF))
        ),
        FLOW_CONTROL_ERROR,
        "by SETTINGS",
    ),
    "settings that are cut": (lambda: frame(SETTINGS, 0, 0, b"abc"), FRAME_SIZE_ERROR, "3 bytes"),
    "settings of a stream": (lambda: frame(SETTINGS, 0, 1), PROTOCOL_ERROR, "SETTINGS"),
    "an acknowledgement with settings": (lambda: frame(SETTINGS, 1, 0, b"abcdef"), FRAME_SIZE_ERROR, "SETTINGS"),
    "frames smaller than HTTP/2 has": (
        lambda: frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
        PROTOCOL_ERROR,
        "at most 1 bytes",
    ),
    "a ping of 3 bytes": (lambda: frame(PING, 0, 0, b"abc"), FRAME_SIZE_ERROR, "PING"),
    "a ping on a stream": (lambda: frame(PING, 0, 1, b"12345678"), PROTOCOL_ERROR, "PING"),
    "a reset of no stream": (lambda: frame(RST_STREAM, 0, 0, number(8)), PROTOCOL_ERROR, "RST_STREAM"),
    "a reset of a stream that is not open": (lambda: frame(RST_STREAM, 0, 3, number(8)), PROTOCOL_ERROR, "opened"),
    "a goodbye that is cut": (lambda: frame(GOAWAY, 0, 0, b"abc"), FRAME_SIZE_ERROR, "GOAWAY"),
    "a push": (lambda: frame(PUSH_PROMISE, 4, 1, number(2)), PROTOCOL_ERROR, "PUSH_PROMISE"),
    "data over the window of a stream": (
        lambda: frame(HEADERS, 4, 1, OPENING) + frame(DATA, 0, 1, b"x" * FRAME_BYTES_MAX) * 5,
        FLOW_CONTROL_ERROR,
        "window of a stream",
    ),
    "pings": (lambda: frame(PING, 0, 0, b"12345678") * MANY, ENHANCE_YOUR_CALM, "PING"),
    "settings": (lambda: frame(SETTINGS, 0, 0) * (MANY // SETTINGS_COST), ENHANCE_YOUR_CALM, "SETTINGS"),
    "priorities": (lambda: frame(PRIORITY, 0, 1, b"12345") * MANY, ENHANCE_YOUR_CALM, "say nothing"),
    "frames of an unknown kind": (lambda: frame(99, 0, 1) * MANY, ENHANCE_YOUR_CALM, "say nothing"),
    "data of no bytes": (
        lambda: frame(HEADERS, 4, 1, OPENING) + frame(DATA, 0, 1) * MANY,
        ENHANCE_YOUR_CALM,
        "empty DATA",
    ),
    "streams that are opened and reset": (
        lambda: b"".join(
            frame(HEADERS, 4, 2 * one + 1, OPENING) + frame(RST_STREAM, 0, 2 * one + 1, number(8))
            for one in range(MANY // (RESET_COST - 2))
        ),
        ENHANCE_YOUR_CALM,
        "opened and reset",
    ),
    "streams beyond their number": (
        lambda: b"".join(frame(HEADERS, 4, 2 * one + 1, OPENING) for one in range(MANY)),
        ENHANCE_YOUR_CALM,
        "4096",
    ),
    "data for streams that have ended": (
        lambda: frame(HEADERS, 5, 1, OPENING) + frame(DATA, 0, 1, b"x") * MANY,
        ENHANCE_YOUR_CALM,
        "have ended",
    ),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("is_split", [False, True], ids=["at once", "in pieces"])
def test_an_abuse_ends_its_connection_with_its_error_and_one_line(
    name: str, is_split: bool, caplog: pytest.LogCaptureFixture
) -> None:
    make, wanted, text = ENDS[name]
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        raw = Raw(is_answering=name.startswith("data for")).begin()
        data = make()
        step = 9973 if is_split else len(data)
        for start in range(0, len(data), step):
            raw.feed(data[start : start + step])
            while raw.connection._is_turn_due:  # noqa: ASYNC110 (a turn of the loop each)
                await asyncio.sleep(0)
        code, said = raw.said_goodbye()
        assert (code, text in said) == (wanted, True), said
        assert all(stream.is_done for stream in raw.connection.seen)
        assert all(stream.cause for stream in raw.connection.seen if not raw.connection.is_answering)

    run(main())
    assert len([line for line in caplog.messages if text in line and "10.0.0.9:4321" in line]) == 1, caplog.messages


def test_data_over_the_connection_s_window_ends_it() -> None:
    """Its credit comes back as data arrives, so it can only be beaten by one who counts more than it was given."""

    async def main() -> None:
        raw = Raw(is_answering=False).begin()
        raw.connection._receive_left = 10
        raw.feed(frame(HEADERS, 4, 1, OPENING) + frame(DATA, 0, 1, b"x" * 11))
        code, said = raw.said_goodbye()
        assert code == FLOW_CONTROL_ERROR
        assert "connection's window" in said

    run(main())


def test_the_connection_s_window_comes_back_in_large_steps() -> None:
    async def main() -> None:
        raw = Raw().begin()
        raw.feed(frame(HEADERS, 4, 1, OPENING))
        updates, total = 0, 0
        for _ in range(CONNECTION_WINDOW // FRAME_BYTES_MAX):
            raw.feed(frame(DATA, 0, 1, b"x" * FRAME_BYTES_MAX))
            for kind, _, stream_id, payload in raw.frames():
                if (kind, stream_id) == (WINDOW_UPDATE, 0):
                    updates, total = updates + 1, total + int.from_bytes(payload, "big")
        assert updates == 1
        assert total == CONNECTION_WINDOW // 2 + FRAME_BYTES_MAX
        assert STREAM_WINDOW < CONNECTION_WINDOW

    run(main())


STREAM_ENDS = {
    "data behind its end": (
        frame(HEADERS, 5, 1, OPENING) + frame(DATA, 0, 1, b"more"),
        STREAM_CLOSED,
    ),
    "a second header block": (frame(HEADERS, 4, 1, OPENING) + frame(HEADERS, 4, 1, OPENING), PROTOCOL_ERROR),
    "no path": (frame(HEADERS, 5, 1, indexed(3) + indexed(6)), PROTOCOL_ERROR),
    "two paths": (frame(HEADERS, 5, 1, OPENING + literal(":path", "/b")), PROTOCOL_ERROR),
    "an answer's field": (frame(HEADERS, 5, 1, OPENING + indexed(8)), PROTOCOL_ERROR),
    "a path behind other fields": (
        frame(HEADERS, 5, 1, indexed(3) + indexed(6) + literal("a", "b") + literal(":path", "/b")),
        PROTOCOL_ERROR,
    ),
    "a field of HTTP/1": (frame(HEADERS, 5, 1, OPENING + literal("connection", "close")), PROTOCOL_ERROR),
    "a line break": (frame(HEADERS, 5, 1, OPENING + literal("a", "b\r\nc: d")), PROTOCOL_ERROR),
    "a window beyond its end": (
        frame(HEADERS, 4, 1, OPENING) + frame(WINDOW_UPDATE, 0, 1, number(0x7FFF_FFFF)),
        FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", STREAM_ENDS)
def test_what_is_wrong_with_one_request_ends_that_stream_only(name: str) -> None:
    data, wanted = STREAM_ENDS[name]

    async def main() -> None:
        raw = Raw(is_answering=False).begin()
        raw.feed(data)
        assert (RST_STREAM, 0, 1, number(wanted)) in raw.frames()
        raw.connection.is_answering = True
        raw.feed(frame(HEADERS, 5, 3, OPENING))
        assert [one[:3] for one in raw.frames()] == [(HEADERS, 4, 3), (HEADERS, 5, 3)]

    run(main())


@pytest.mark.parametrize("request_", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /a HTTP/1.0\r\n\r\n"])
def test_http_1_gets_an_answer_that_it_understands(request_: bytes) -> None:
    async def main() -> None:
        raw = Raw()
        raw.feed(request_)
        said = raw.transport.take()
        assert said.startswith(b"HTTP/1.1 426 ")
        assert b"gRPC" in said
        assert raw.transport.is_closed

    run(main())


@pytest.mark.parametrize("data", [b"\0\0\0\x10\0\0\0\x0c", b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"])
def test_another_protocol_is_told_so(data: bytes) -> None:
    async def main() -> None:
        raw = Raw()
        for byte in data:
            raw.feed(bytes((byte,)))
            if raw.transport.is_closed:
                break
        code, said = raw.said_goodbye()
        assert code == PROTOCOL_ERROR
        assert "no HTTP/2" in said

    run(main())


@settings(max_examples=examples(1000), deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.tuples(
                st.integers(0, 10), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 5]), st.binary(max_size=20)
            ).map(lambda one: frame(*one)),
            st.just(frame(HEADERS, 4, 1, OPENING)),
            st.just(frame(HEADERS, 5, 3, OPENING)),
        ),
        max_size=20,
    ),
    step=st.sampled_from([1, 7, 100_000]),
)
def test_no_bytes_raise_or_answer_a_stream_twice(parts: list[bytes], step: int) -> None:
    async def main() -> None:
        raw = Raw()
        data = PREFACE + b"".join(parts)
        for start in range(0, len(data), step):
            raw.feed(data[start : start + step])
        await asyncio.sleep(0)
        ended = [one[2] for one in raw.frames() if one[0] == HEADERS and one[1] & 1]
        assert len(ended) == len(set(ended))

    run(main())
