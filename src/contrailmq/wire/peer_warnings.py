"""Warnings about what peers do wrong, bounded: a hostile peer must not fill the log, nor hide another's fault in it.

Each cause (a word of ours, never the peer's) has its own allowance: in a period of PERIOD_S the first IN_FULL warnings
are written as they come and the others are only counted. The first warning after a period, or `tell` when none comes,
writes how many were left out. So one cause writes at most IN_FULL + 1 lines in a period, whatever peers send, and no
count is lost. Text of peers is cut at SHOWN_MAX characters, and what a terminal would act on is escaped.

Everything here runs on the loop's thread, or under the interpreter's lock where several loops share a process: a count
may then be off by one, a line is never lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contrailmq.message.printable import printable

__all__ = ["IN_FULL", "PERIOD_S", "SHOWN_MAX", "PeerWarnings", "peer_warnings"]

PERIOD_S: Final = 60.0
IN_FULL: Final = 10  # of one cause in one period
SHOWN_MAX: Final = 500  # characters of one warning


@dataclass(slots=True)
class _Period:
    begin_s: float
    written: int = 0
    left_out: int = 0


class PeerWarnings:
    """The allowance of every cause. `log` gets the lines, `clock_s` tells the time (it must not go back)."""

    def __init__(self, log: logging.Logger, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock_s = log, clock_s
        self._periods: dict[str, _Period] = {}
        self.counts: dict[str, int] = {}  # by cause, of this process

    def warn(self, cause: str, what: str) -> None:
        """Write `what` if the cause has something left of its allowance, count it otherwise."""
        now_s = self._clock_s()
        self.counts[cause] = self.counts.get(cause, 0) + 1
        period = self._periods.get(cause)
        if period is None or now_s - period.begin_s >= PERIOD_S:
            self._tell(cause, now_s)
            period = self._periods[cause] = _Period(now_s)
        if period.written < IN_FULL:
            period.written += 1
            what = printable(what)
            shown = what if len(what) <= SHOWN_MAX else f"{what[:SHOWN_MAX]}... ({len(what)} characters)"
            self._log.warning("%s: %s", cause, shown)
        else:
            period.left_out += 1

    def tell(self) -> None:
        """Write what was left out in periods that are over. For timers: a flood that has ended is reported too."""
        now_s = self._clock_s()
        for cause in [cause for cause, period in self._periods.items() if now_s - period.begin_s >= PERIOD_S]:
            self._tell(cause, now_s)
            del self._periods[cause]

    def _tell(self, cause: str, now_s: float) -> None:
        period = self._periods.get(cause)
        if period is not None and period.left_out:
            text = "%s: %d more warnings like these in %.0f s were left out"
            self._log.warning(text, cause, period.left_out, now_s - period.begin_s)


peer_warnings: Final = PeerWarnings(logging.getLogger(__name__))  # of this process
