"""However much peers do wrong, the log gets a bounded number of lines, and every warning is counted in one of them."""

from __future__ import annotations

import logging
import re

import pytest

from contrailmq.wire import connection as connection_module
from contrailmq.wire.peer_warnings import IN_FULL, PERIOD_S, SHOWN_MAX, PeerWarnings

from .peers import Run, connected, echo

LOG = "contrailmq.wire.peer_warnings"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings(clock: Clock) -> PeerWarnings:
    return PeerWarnings(logging.getLogger(LOG), clock)


def left_out(line: str) -> int:
    found = re.search(r"(\d+) more warnings", line)
    return int(found[1]) if found else 0


def test_what_a_terminal_would_act_on_is_escaped(warnings: PeerWarnings, caplog: pytest.LogCaptureFixture) -> None:
    warnings.warn("a cause", "said \x1b[2J\nERROR forged")
    assert caplog.messages == ["a cause: said \\x1b[2J\\nERROR forged"]


def test_the_first_warnings_of_a_cause_are_written_and_the_others_counted(
    warnings: PeerWarnings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(IN_FULL + 990):
        warnings.warn("broken frame", f"peer {number}")
        clock.now_s += PERIOD_S / 2000
    assert caplog.messages == [f"broken frame: peer {number}" for number in range(IN_FULL)]
    caplog.clear()
    clock.now_s += PERIOD_S
    warnings.warn("broken frame", "after")
    assert caplog.messages == [
        "broken frame: 990 more warnings like these in 90 s were left out",
        "broken frame: after",
    ]


def test_a_flood_writes_a_bounded_number_of_lines_and_none_goes_uncounted(
    warnings: PeerWarnings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    count, periods = 100_000, 10
    for number in range(count):
        warnings.warn("broken frame", f"peer {number}")
        clock.now_s += periods * PERIOD_S / count
    clock.now_s += PERIOD_S
    warnings.tell()
    counted = sum(left_out(line) for line in caplog.messages)
    in_full = sum(not left_out(line) for line in caplog.messages)
    assert counted + in_full == count
    assert len(caplog.messages) <= (periods + 1) * (IN_FULL + 1)


def test_one_cause_does_not_hide_another(warnings: PeerWarnings, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1000):
        warnings.warn("broken frame", "hostile")
    caplog.clear()
    warnings.warn("TLS handshake failed", "expired certificate")
    assert caplog.messages == ["TLS handshake failed: expired certificate"]


def test_a_flood_that_has_ended_is_told_once(
    warnings: PeerWarnings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(IN_FULL + 5):
        warnings.warn("broken frame", "hostile")
    caplog.clear()
    warnings.tell()
    assert caplog.messages == []  # its period is not over
    clock.now_s += PERIOD_S
    warnings.tell()
    warnings.tell()
    assert caplog.messages == ["broken frame: 5 more warnings like these in 60 s were left out"]


def test_a_long_text_of_a_peer_is_cut(warnings: PeerWarnings, caplog: pytest.LogCaptureFixture) -> None:
    warnings.warn("broken frame", "x" * 1_000_000)
    [line] = caplog.messages
    assert len(line) < SHOWN_MAX + 60
    assert line.endswith("... (1000000 characters)")


def test_a_thousand_connections_that_break_the_protocol_write_ten_lines(
    run: Run, warnings: PeerWarnings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "peer_warnings", warnings)

    async def main() -> None:
        for _ in range(1000):
            connection, transport = connected(echo)
            connection.data_received(b"GET / HTTP/1.1\r\n")
            assert transport.is_closing()

    run(main())
    assert len(caplog.messages) == IN_FULL
    assert "closed a peer that broke the protocol: 10.0.0.1:4711: frame length" in caplog.messages[0]
