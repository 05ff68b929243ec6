"""A fault that lasts is told when it begins, every hour, and when it ends."""

from __future__ import annotations

import logging

import pytest

from contrailmq._faults import REMIND_S, LastingFault, duration_text


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_begin_hours_and_end_are_told_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    fault = LastingFault(logging.getLogger("t"), "the disk of /data is full", level=logging.WARNING, clock_s=clock)
    fault.is_over()
    assert caplog.messages == []
    for _ in range(2 * 3600 + 1):
        fault.goes_on("0 bytes free")
        clock.now_s += 1
    fault.is_over("there is room")
    fault.is_over("there is room")
    fault.goes_on("3 bytes free")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the disk of /data is full: 0 bytes free"),
        ("WARNING", "the disk of /data is full, for 1 h 0 min now (seen 3601 times): 0 bytes free"),
        ("WARNING", "the disk of /data is full, for 2 h 0 min now (seen 7201 times): 0 bytes free"),
        ("INFO", "the disk of /data is full: there is room, after 2 h 0 min"),
        ("WARNING", "the disk of /data is full: 3 bytes free"),
    ]
    assert REMIND_S == 3600


def test_each_kind_of_reason_is_told_once_and_the_end_in_words_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    fault = LastingFault(logging.getLogger("t"), "a stands still", mended="a runs", clock_s=clock)
    for seconds in range(10):
        fault.goes_on(f"no address ({seconds})", kind="unknown")
        fault.goes_on(f"refused ({seconds})", kind="refused")
        clock.now_s += 1
    fault.is_over("from 7 on")
    fault.goes_on("refused again", kind="refused")
    assert caplog.messages == [
        "a stands still: no address (0)",
        "a stands still: refused (0)",
        "a runs: from 7 on, after 10 s",
        "a stands still: refused again",
    ]


def test_reasons_of_ever_new_kinds_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    fault = LastingFault(logging.getLogger("t"), "a stands still", clock_s=Clock())
    for number in range(1000):
        fault.goes_on(number, kind=str(number))
    assert caplog.messages == [f"a stands still: {number}" for number in range(8)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (303.0, "5 min 3 s"), (7800.0, "2 h 10 min")],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
