"""What a peer can make fail or warn again and again writes a bounded number of lines, and the first one its trace."""

from __future__ import annotations

import logging

import pytest

from broker.harness import Bench, Link
from contrailmq.broker.handlers import Handlers
from contrailmq.broker.mistakes import Mistakes
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.peer_warnings import IN_FULL, PERIOD_S, PeerWarnings


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def fail() -> None:
    raise KeyError("what a peer wrote")


def noted(mistakes: Mistakes, what: str) -> None:
    try:
        fail()
    except KeyError:
        mistakes.note(what)


def test_a_mistake_that_comes_again_has_one_trace_and_a_few_lines_in_a_period(caplog: pytest.LogCaptureFixture) -> None:
    clock, log = Clock(), logging.getLogger("contrailmq.broker")
    mistakes = Mistakes(log, PeerWarnings(log, clock), clock)
    for _ in range(1000):
        noted(mistakes, "request 310 failed")
    assert [record.exc_info is not None for record in caplog.records] == [True] + [False] * IN_FULL
    assert caplog.messages[1] == "request 310 failed: KeyError: 'what a peer wrote'"
    caplog.clear()
    clock.now_s += PERIOD_S
    noted(mistakes, "request 310 failed")
    noted(mistakes, "request 310 failed")
    assert caplog.messages == [
        "request 310 failed",
        f"request 310 failed: {999 - IN_FULL} more warnings like these in 60 s were left out",
        "request 310 failed: KeyError: 'what a peer wrote'",
    ]


def test_a_mistake_elsewhere_has_its_own_trace(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("contrailmq.broker")
    mistakes = Mistakes(log, PeerWarnings(log))
    noted(mistakes, "request 310 failed")
    try:
        int("x")
    except ValueError:
        mistakes.note("request 310 failed")
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_request_that_makes_us_fail_is_answered_each_time_and_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, bench: Bench
) -> None:
    handlers, link = Handlers(), Link()

    def broken(connection: Peer, command: Command) -> bytes | None:
        raise ZeroDivisionError("by a peer")

    handlers.register(77, broken)
    handlers.handle(link, [bench.command(77) for _ in range(500)])
    answers = link.take()
    assert len(answers) == 500
    assert {(answer.code, answer.remark) for answer in answers} == {(1, "ZeroDivisionError: by a peer")}
    assert 1 <= len(caplog.records) <= 2 + IN_FULL


def test_clones_of_offsets_of_topics_that_are_not_there_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, bench: Bench
) -> None:
    for number in range(100):
        assert bench.ask(314, {"srcGroup": "a", "destGroup": "b", "topic": f"Gone{number}"}).code == 0
    assert len([line for line in caplog.messages if "not cloned" in line]) <= 1 + IN_FULL
