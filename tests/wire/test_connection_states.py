"""The states of a connection: the table itself, and random events against what must hold whatever happens.

Hypothesis feeds requests (whole, half, small and large), ends of the peer, blocked and resumed writes, late answers,
stops, closings, aborts and losses, in any order that a loop could produce. The model below knows nothing of the
connection's insides: it keeps what the peer has asked, what was answered while the connection was open, and what the
transport was given.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.connection import (
    CLOSED,
    DRAINING,
    ENDED,
    ENDING,
    HALF_CLOSED,
    LOST,
    MADE,
    NEXT,
    OPEN,
    STOP,
    Connection,
    Limits,
)
from contrailmq.wire.errors import ConnectionClosedError
from contrailmq.wire.frame import FRAME_BYTES_MAX, FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.ration import FREE_BYTES, Ration
from how_many import examples

from .peers import CountingTransport, Run, connected, echo

STATES = (OPEN, DRAINING, ENDING, CLOSED)
LARGE = encode_request(310, {"a": "g"}, bytes(2 * FREE_BYTES), opaque=1, is_oneway=True)


def test_the_table_leads_from_state_to_state_as_the_document_says() -> None:
    """Every pair that is not named here changes nothing."""
    expected = {
        (MADE, CLOSED): OPEN,
        (STOP, OPEN): DRAINING,
        (HALF_CLOSED, OPEN): DRAINING,
        (ENDED, OPEN): ENDING,
        (ENDED, DRAINING): ENDING,
        (LOST, OPEN): CLOSED,
        (LOST, DRAINING): CLOSED,
        (LOST, ENDING): CLOSED,
    }
    assert {(event, state): following for event, row in NEXT.items() for state, following in row.items()} == expected


@pytest.mark.parametrize("state", STATES)
def test_an_answer_is_sent_in_an_open_state_and_dropped_in_the_others(state: int, run: Run) -> None:
    async def main() -> None:
        held: list[Command] = []
        connection, transport = connected(lambda _, commands: held.extend(commands))
        connection.data_received(encode_request(105, None, opaque=1))
        reach(connection, state)
        assert connection.state == state
        connection.reply(encode_response(held[0], 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(transport.writes) == (1 if state in (OPEN, DRAINING) else 0)

    run(main())


@pytest.mark.parametrize("state", STATES)
def test_a_request_of_ours_is_sent_in_an_open_state_and_refused_in_the_others(state: int, run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(lambda _, __: None)
        connection.data_received(encode_request(105, None, opaque=1))  # keeps it from ending while it drains
        reach(connection, state)
        if state in (OPEN, DRAINING):
            connection.oneway(40)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(transport.writes) == 1
        else:
            with pytest.raises(ConnectionClosedError):
                connection.oneway(40)

    run(main())


@pytest.mark.parametrize(("state", "answers"), [(OPEN, [0]), (DRAINING, [2]), (ENDING, []), (CLOSED, [])])
def test_what_is_read_is_served_refused_or_thrown_away(state: int, answers: list[int], run: Run) -> None:
    """2 is SYSTEM_BUSY."""

    async def main() -> None:
        connection, transport = connected(lambda _, __: None)
        connection.data_received(encode_request(105, None, opaque=1))
        reach(connection, state)
        connection._handler = echo  # type: ignore[method-assign]
        connection.data_received(encode_request(105, None, opaque=2))
        await asyncio.sleep(0)
        assert [answer.code for answer in FrameParser().feed(b"".join(transport.writes))] == answers

    run(main())


def test_an_answer_that_was_just_given_leaves_before_the_loop_closes_for_the_peer_s_end(run: Run) -> None:
    async def main() -> None:
        held: list[Command] = []
        connection, transport = connected(lambda _, commands: held.extend(commands))
        connection.data_received(encode_request(105, None, opaque=1))
        connection.reply(encode_response(held[0], 0))
        assert connection.eof_received() is False
        assert len(transport.writes) == 1

    run(main())


def reach(connection: Connection, state: int) -> None:
    if state == DRAINING:
        connection.drain()
    elif state == ENDING:
        connection.close()
    elif state == CLOSED:
        connection.connection_lost(None)


class Strict(CountingTransport):
    """A transport that takes nothing after its end."""

    def write(self, data: bytes) -> None:
        assert not self.is_closing(), "written to a transport that is closing"
        super().write(data)

    def write_eof(self) -> None:
        assert not self.has_written_eof
        super().write_eof()


ENDS = ("drain", "drain", "eof", "eof", "close", "abort", "lost")

BURST = ("data", "blocked", "resumed", "wait", *(["reply"] * 6), *(f"reply {end}" for end in ENDS), *ENDS)


class Events(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.failures: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.ration = Ration(FRAME_BYTES_MAX)
        self.transport = Strict()
        self.connection = self.loop.run_until_complete(self._connect())
        self.opaque = 100
        self.held: list[Command] = []  # requests that are not answered
        self.asked: set[int] = set()
        self.answered: set[int] = set()  # while the connection was open
        self.half_read = b""  # of a frame
        self.invoked: list[asyncio.Future[Command]] = []
        self.waiting: list[asyncio.Future[None]] = []  # for a peer that reads again
        self.ended: list[Connection] = []
        self.is_lossy = False  # it was cut, or lost: what was queued then may be lost
        self.has_eof = self.is_stopping = self.is_lost = False
        self.connection.on_close.append(self.ended.append)

    async def _connect(self) -> Connection:
        limits = Limits(linger_s=3600, stuck_s=3600)  # no timer fires here
        connection = Connection(self._handle, limits=limits, ration=self.ration)
        connection.connection_made(self.transport)  # type: ignore[arg-type]
        return connection

    def _handle(self, _: Connection, commands: list[Command]) -> None:
        self.held.extend(command for command in commands if not command.is_oneway)

    def _run(self, *calls: Callable[[], object]) -> None:
        """All in one turn of the loop, and then the turns that they ask for."""

        async def main() -> None:
            for call in calls:
                call()
            for _ in range(4):
                await asyncio.sleep(0)

        self.loop.run_until_complete(main())

    def _can_read(self) -> bool:
        return not (self.is_lost or self.has_eof or self.transport.is_closing()) and self.transport.is_reading

    # What the peer does.

    @initialize(count=st.integers(2, 5), cut=st.sampled_from([0, 0, 7]))
    def first_data(self, count: int, cut: int) -> None:
        self._data(count, cut)

    @rule(count=st.integers(1, 3), cut=st.integers(0, 40))
    def data(self, count: int, cut: int) -> None:
        self._data(count, cut)

    def _data(self, count: int, cut: int) -> None:
        """Whole requests, and the beginning of one more that the next data completes."""
        if not self._can_read():
            return
        first = self.opaque + 1
        self.opaque += count + (cut > 0)
        opaques = range(first, self.opaque + 1)
        self.asked.update(opaques)
        data = self.half_read + b"".join(encode_request(105, {"topic": "T"}, opaque=opaque) for opaque in opaques)
        end = len(data) - cut
        self.half_read = data[end:]
        self._run(lambda: self.connection.data_received(data[:end]))

    @precondition(lambda self: not self.half_read)
    @rule()
    def large_frame(self) -> None:
        """One that needs a share of the ration, all but its last byte, which the next data brings."""
        if self._can_read():
            self.half_read = LARGE[-1:]
            self._run(lambda: self.connection.data_received(LARGE[:-1]))

    @rule(is_blocked=st.booleans())
    def write(self, is_blocked: bool) -> None:
        if not self.is_lost:
            self._run(self.connection.pause_writing if is_blocked else self.connection.resume_writing)

    # What the application does.

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), in_parts=st.booleans(), end=st.sampled_from(("", "", "", *ENDS)))
    def reply(self, which: int, in_parts: bool, end: str) -> None:
        """Answer a request, whose answer is not on its way yet when the connection begins to end."""
        command = self.held.pop(which % len(self.held))
        if self.connection.is_open:
            self.answered.add(command.opaque)
        frame = encode_response(command, 0, None, b"body")
        parts = [frame[:10], memoryview(frame)[10:]]

        def answer() -> None:
            if in_parts:
                self.connection.reply_parts(parts, len(frame))
            else:
                self.connection.reply(frame)

        self._run(answer, *([lambda: self._end(end)] if end else []))

    @rule(end=st.sampled_from(ENDS))
    def end(self, end: str) -> None:
        self._run(lambda: self._end(end))

    def _end(self, end: str) -> None:
        if end == "drain":
            self.is_stopping = True
            self.connection.drain()
        elif end == "close":
            self.connection.close()
        elif end == "abort":
            self.is_lossy = True
            self.connection.abort("a test")
        elif end == "eof" and self._can_read():
            self.has_eof = True
            if not self.connection.eof_received():
                self.transport.close()  # as the loop does
        elif end == "lost" and not self.is_lost:
            self.is_lost = self.is_lossy = True
            self.transport.close()
            self.connection.connection_lost(ConnectionResetError("reset"))

    @precondition(lambda self: len(self.invoked) < 2)
    @rule()
    def invoke(self) -> None:
        is_open = self.connection.is_open
        if not is_open:
            with pytest.raises(ConnectionClosedError):
                self.connection.invoke(40)
        else:
            self._run(lambda: self.invoked.append(self.connection.invoke(40, timeout_s=3600)))

    @precondition(lambda self: len(self.waiting) < 2)
    @rule()
    def wait_until_writable(self) -> None:
        self._run(lambda: self.waiting.append(asyncio.ensure_future(self.connection.writable())))

    @rule(seed=st.integers(0, 2**32))
    def burst(self, seed: int) -> None:
        """Many events in one step, all equally likely; what must hold is checked after each."""
        chosen = random.Random(seed)
        for event in chosen.choices(BURST, k=12):
            if event == "data":
                self._data(chosen.randint(1, 2), 0)
            elif event.startswith("reply") and self.held:
                self.reply(which=chosen.randrange(9), in_parts=False, end=event.removeprefix("reply").strip())
            elif event in ("blocked", "resumed"):
                self.write(is_blocked=event == "blocked")
            elif event == "wait" and len(self.waiting) < 2:
                self.wait_until_writable()
            elif event in ENDS:
                self.end(end=event)
            self.check()

    def check(self) -> None:
        self.its_state_is_that_of_its_transport()
        self.no_answer_is_lost_or_doubled()
        self.what_owes_nothing_ends_when_it_drains()
        self.whoever_waits_is_told_when_it_is_over()
        self.nothing_fails_on_the_loop()

    # What must hold.

    @invariant()
    def its_state_is_that_of_its_transport(self) -> None:
        state, transport = self.connection.state, self.transport
        if self.is_lost:
            assert state == CLOSED
        elif transport.is_closing() or transport.has_written_eof:
            assert state == ENDING
        else:
            assert state == (DRAINING if self.is_stopping or self.has_eof else OPEN)
        assert self.connection.is_open == (state in (OPEN, DRAINING))

    @invariant()
    def no_answer_is_lost_or_doubled(self) -> None:
        answers = [command for command in FrameParser().feed(b"".join(self.transport.writes)) if command.is_response]
        counts = Counter(answer.opaque for answer in answers)
        assert all(count == 1 for count in counts.values())
        assert set(counts) <= self.asked
        refused = {answer.opaque for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY}
        assert self.is_stopping or not refused
        sent = set(counts) - refused
        assert sent <= self.answered
        if not self.is_lossy:
            assert sent == self.answered

    @invariant()
    def what_owes_nothing_ends_when_it_drains(self) -> None:
        if self.connection.state == DRAINING:
            assert self.held or self.half_read

    @invariant()
    def whoever_waits_is_told_when_it_is_over(self) -> None:
        if self.is_lost:
            assert all(future.done() for future in self.invoked)
            assert all(future.done() for future in self.waiting)
            assert self.ended == [self.connection]
            assert (self.ration.shared_bytes, self.ration.loose_bytes, self.ration.waiting_count) == (0, 0, 0)
        else:
            assert not any(future.done() for future in self.invoked)
            assert self.ended == []

    @invariant()
    def nothing_fails_on_the_loop(self) -> None:
        """As a write to a transport that is closing would."""
        assert self.failures == []

    def teardown(self) -> None:
        self._run(lambda: self._end("lost"))
        self.whoever_waits_is_told_when_it_is_over()
        for request in self.invoked:
            request.exception()
        for waiter in self.waiting:
            waiter.exception()
        self.loop.close()


Events.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=8, deadline=None)
TestEvents = Events.TestCase
