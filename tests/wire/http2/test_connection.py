"""A connection of ours with another implementation's client: whatever it may do is served, whatever the windows."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.wire.http2.connection import CALLS_A_TURN, IDLE_S, LINGER_S, PING_AFTER_S, PING_S, STREAMS_MAX
from contrailmq.wire.http2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from contrailmq.wire.http2.hpack import indexed, literal
from contrailmq.wire.http2.sending import WRITE_HIGH_BYTES
from how_many import examples
from waiting_for import until_async

from .ends import PLAIN_ONLY, Ends, Raw

pytestmark = PLAIN_ONLY

OPENING = indexed(3) + indexed(6) + literal(":path", "/echo")


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


@settings(max_examples=examples(300), deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 1000, 20_000, 70_000, 200_000]), min_size=1, max_size=5),
    window=st.sampled_from([None, 1, 100, 5000, 1_000_000]),
    part_bytes=st.sampled_from([1000, 16_384, 50_000, 1_000_000]),
    padded=st.booleans(),
    many_fields=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_every_request_is_answered_with_its_own_bytes(
    sizes: list[int], window: int | None, part_bytes: int, padded: bool, many_fields: bool, seed: int
) -> None:
    """Interleaved, with padding, continued header blocks, bytes split anywhere, and windows of one byte."""
    if window == 1:
        sizes = [min(size, 1000) for size in sizes]

    async def main() -> None:
        ends = Ends(seed=seed, window=window, part_bytes=part_bytes)
        await ends.exchange()
        more = tuple((f"x-{number}", "v" * 600) for number in range(40)) if many_fields else ()
        bodies = {ends.open(more=more): ends.random.randbytes(size) for size in sizes}
        await ends.send(bodies, padded=padded)
        assert {stream_id: bytes(ends.answers.get(stream_id, b"")) for stream_id in bodies} == bodies
        assert all(ends.heads[stream_id][-1] == ("x-kind", "echo") for stream_id in bodies)
        assert all(ends.ends[stream_id] == [("x-end", "yes")] for stream_id in bodies)
        assert not ends.resets
        assert not ends.connection.streams
        assert all(len(seen.fields) == 4 + len(more) for seen in ends.connection.seen)

    run(main())


def test_large_messages_flow_both_ways() -> None:
    async def main() -> None:
        ends = Ends(seed=3)
        body = ends.random.randbytes(6 * 1024 * 1024)
        stream_id = ends.open()
        await ends.send({stream_id: body})
        assert bytes(ends.answers[stream_id]) == body

    run(main())


def test_what_one_read_brings_is_answered_in_one_write() -> None:
    async def main() -> None:
        raw = Raw().begin()
        before = raw.transport.writes
        raw.feed(b"".join(frame(HEADERS, 5, 2 * number + 1, OPENING) for number in range(50)))
        assert raw.transport.writes == before + 1
        assert [one[:3] for one in raw.frames()[-2:]] == [(HEADERS, 4, 99), (HEADERS, 5, 99)]

    run(main())


def test_a_read_of_many_calls_is_served_in_turns() -> None:
    async def main() -> None:
        raw = Raw().begin()
        count = 3 * CALLS_A_TURN
        raw.feed(b"".join(frame(HEADERS, 5, 2 * number + 1, OPENING) for number in range(count)))
        assert len(raw.connection.seen) == CALLS_A_TURN
        assert not raw.transport.is_reading
        raw.feed(frame(HEADERS, 5, 2 * count + 1, OPENING))  # one more, which comes meanwhile
        for turn in (2, 3):
            await asyncio.sleep(0)
            assert len(raw.connection.seen) == turn * CALLS_A_TURN
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(raw.connection.seen) == count + 1
        assert raw.transport.is_reading

    run(main())


def test_a_window_that_becomes_negative_is_waited_for() -> None:
    """The client takes back window that was used already."""

    async def main() -> None:
        raw = Raw(is_answering=False).begin()
        raw.feed(frame(HEADERS, 4, 1, OPENING))
        [stream] = raw.connection.seen
        stream.send(b"a" * 10_000)
        raw.feed(frame(SETTINGS, 0, 0, b"\0\4" + (5000).to_bytes(4, "big")))
        await asyncio.sleep(0)
        assert stream.send_window == -5000
        stream.send(b"b" * 100)
        stream.finish(literal("x-end", "1"))
        raw.transport.take()
        raw.feed(frame(WINDOW_UPDATE, 0, 1, (5000).to_bytes(4, "big")))
        await asyncio.sleep(0)
        assert raw.frames() == [], "the window is 0"
        raw.feed(frame(WINDOW_UPDATE, 0, 1, (60).to_bytes(4, "big")))
        await asyncio.sleep(0)
        assert raw.frames() == [(DATA, 0, 1, b"b" * 60)]
        raw.feed(frame(SETTINGS, 0, 0, b"\0\4" + (5040).to_bytes(4, "big")))
        await asyncio.sleep(0)
        [_, rest, end, no_more] = raw.frames()
        assert rest == (DATA, 0, 1, b"b" * 40)
        assert end[:3] == (HEADERS, 5, 1)
        assert no_more == (RST_STREAM, 0, 1, b"\0\0\0\0"), "the client need not send the rest"

    run(main())


def test_a_full_socket_holds_back_answers_and_reading() -> None:
    async def main() -> None:
        raw = Raw(is_answering=False).begin()
        raw.feed(frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        raw.feed(frame(SETTINGS, 0, 0, b"\0\4" + (1 << 30).to_bytes(4, "big")))
        raw.feed(frame(HEADERS, 4, 1, OPENING))
        raw.transport.take()
        [stream] = raw.connection.seen
        stream.send(b"x" * (4 * WRITE_HIGH_BYTES))
        await asyncio.sleep(0)
        sent_bytes = len(raw.transport.take())
        assert WRITE_HIGH_BYTES <= sent_bytes <= 2 * WRITE_HIGH_BYTES, "not all at once"
        raw.connection.pause_writing()
        assert not raw.transport.is_reading
        for _ in range(5):
            await asyncio.sleep(0)
        assert raw.transport.take() == b""
        assert stream.all_sent_count == 0
        raw.connection.resume_writing()
        assert raw.transport.is_reading
        for _ in range(10):
            await asyncio.sleep(0)
        sent_bytes += len(raw.transport.take())
        assert sent_bytes > 4 * WRITE_HIGH_BYTES
        assert stream.all_sent_count == 1

    run(main())


def test_streams_that_wait_have_their_turns() -> None:
    async def main() -> None:
        raw = Raw(is_answering=False).begin()
        raw.feed(frame(SETTINGS, 0, 0, b"\0\4" + (1 << 30).to_bytes(4, "big")))
        raw.feed(frame(HEADERS, 4, 1, OPENING) + frame(HEADERS, 4, 3, OPENING))
        raw.transport.take()
        for stream in raw.connection.seen:
            stream.send(b"x" * 100_000)
        await asyncio.sleep(0)
        order = [one[2] for one in raw.frames()]
        assert order[:4] == [1, 3, 1, 3], "and not all of one before the other"

    run(main())


def test_streams_beyond_their_number_are_refused_and_the_others_served() -> None:
    async def main() -> None:
        raw = Raw(is_answering=False).begin()
        for number in range(STREAMS_MAX + 2):
            raw.feed(frame(HEADERS, 4, 2 * number + 1, OPENING))
        refused = [one for one in raw.frames() if one[0] == RST_STREAM]
        assert refused == [
            (RST_STREAM, 0, 2 * number + 1, REFUSED_STREAM.to_bytes(4, "big"))
            for number in (STREAMS_MAX, STREAMS_MAX + 1)
        ]
        raw.feed(frame(RST_STREAM, 0, 1, b"\0\0\0\x08") + frame(HEADERS, 4, 2 * STREAMS_MAX + 5, OPENING))
        assert len(raw.connection.seen) == STREAMS_MAX + 1
        assert raw.connection.seen[0].cause

    run(main())


def test_pings_are_answered() -> None:
    async def main() -> None:
        ends = Ends()
        ends.client.ping(b"12345678")
        await ends.exchange()
        assert ends.pongs == 1

    run(main())


def test_a_drained_connection_finishes_its_calls_and_refuses_new_ones() -> None:
    async def main() -> None:
        ends = Ends()
        stream_id = ends.open()
        await ends.exchange()
        ends.connection.drain("the server stops")
        assert not ends.transport.is_closed
        await asyncio.sleep(0)
        got = ends.transport.take()  # a GOAWAY, which the client has not read when it opens another one
        late = ends.open(end=True)
        ends.feed(ends.client.data_to_send())
        late_got = ends.transport.take()
        assert late_got.endswith(REFUSED_STREAM.to_bytes(4, "big")), late
        ends.connection.data_received(frame(DATA, END_STREAM, stream_id, b"the rest"))
        await asyncio.sleep(0)
        assert b"the rest" in ends.transport.take()
        late = ends.open(end=True)
        ends.feed(ends.client.data_to_send())
        assert ends.transport.take().endswith(REFUSED_STREAM.to_bytes(4, "big")), late
        await until_async(lambda: ends.transport.is_closed)
        assert got[3] == 7
        assert got[9:13] == stream_id.to_bytes(4, "big")

    run(main())


def test_a_lost_connection_is_told_to_its_streams_and_listeners() -> None:
    async def main() -> None:
        ends = Ends(is_answering=False)
        closed: list[object] = []
        ends.connection.on_close.append(closed.append)
        ends.open()
        await ends.exchange()
        ends.connection.connection_lost(ConnectionResetError("reset"))
        assert ends.connection.seen[0].cause == "reset"
        assert ends.connection.seen[0].is_done
        assert closed == [ends.connection]

    run(main())


class Clock:
    """A loop whose timers run when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.now_s = 1000.0
        monkeypatch.setattr(loop, "time", lambda: self.now_s)
        monkeypatch.setattr(loop, "call_later", self._later)

    def _later(self, after_s: float, work: Callable[..., None], *given: object) -> Clock:
        self.timers.append((after_s, functools.partial(work, *given)))
        return self

    def cancel(self) -> None:
        if self.timers:  # else it is the one that has just run
            self.timers.pop()

    def run_next(self) -> float:
        after_s, work = self.timers.pop()
        self.now_s += after_s
        work()
        return after_s


def test_a_silent_peer_gets_a_ping_and_is_cut_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        raw = Raw(is_answering=False).begin()
        raw.feed(frame(HEADERS, 4, 1, OPENING))
        assert clock.run_next() == PING_AFTER_S
        assert clock.run_next() == PING_AFTER_S
        await asyncio.sleep(0)
        [(kind, flags, _, payload)] = raw.frames()
        assert (kind, flags) == (PING, 0)
        raw.feed(frame(PING, 1, 0, payload))
        assert clock.run_next() == PING_S
        assert clock.run_next() == PING_AFTER_S
        await asyncio.sleep(0)
        assert raw.frames()[0][0] == PING
        assert clock.run_next() == PING_S
        assert raw.transport.is_aborted
        assert "no answer to a PING" in raw.connection.seen[0].cause

    run(main())


def test_a_connection_without_calls_is_sent_away_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        raw = Raw().begin()
        waited_s = 0.0
        while not raw.transport.is_closed:
            raw.feed(frame(PING, 0, 0, b"12345678"))  # it lives
            waited_s += clock.run_next()
        assert IDLE_S <= waited_s <= IDLE_S + PING_AFTER_S + LINGER_S
        [goodbye] = [payload for kind, _, _, payload in raw.frames() if kind == GOAWAY]
        assert goodbye[4:] == b"\0\0\0\0no call for 120 s"

    run(main())


def test_a_preface_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        raw = Raw()
        raw.feed(PREFACE[:10])
        clock.run_next()
        assert raw.said_goodbye() == (1, "no HTTP/2 preface within 10 s")

    run(main())


def test_a_connection_that_is_refused_says_why() -> None:
    async def main() -> None:
        raw = Raw(refusal="this port takes TLS only")
        raw.feed(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 5, 1, OPENING))
        assert raw.said_goodbye() == (1, "this port takes TLS only")
        assert not raw.connection.seen

    run(main())
