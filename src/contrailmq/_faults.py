"""A fault that lasts is logged when it begins, every hour (or `remind_s`), and when it ends, not at every try.

A fault with several kinds of reason logs each kind once: what an operator must do about the second is not in the line
about the first.

Code that keeps trying (a table that cannot be saved, a NameServer that is away) calls `goes_on` after each try
that failed and `is_over` after one that did not. Both cost a comparison while nothing changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

REMIND_S: Final = 3600.0
KINDS_MAX: Final = 8  # of reasons of one fault that get a line of their own: a bound, should they keep changing


class LastingFault:
    """One thing that can be wrong for a while. `what` begins every line: "the tables in /data are not saved".

    `mended` begins the last line instead, where `what` does not fit it: "the tables in /data are saved".
    """

    def __init__(
        self,
        log: logging.Logger,
        what: str,
        *,
        mended: str = "",
        level: int = logging.ERROR,
        clock_s: Callable[[], float] = time.monotonic,
        remind_s: float = REMIND_S,
    ) -> None:
        self._log, self._what, self._level, self._clock_s = log, what, level, clock_s
        self._remind_s = remind_s
        self._mended = mended or what
        self._began_s = self._told_s = 0.0
        self._times = 0
        self._told_kinds: set[str] = set()

    @property
    def is_on(self) -> bool:
        return self._times > 0

    def goes_on(self, why: object, *, kind: str = "", error: BaseException | None = None) -> None:
        """It is wrong now, for this reason. `error` is one of ours: its traceback is logged at the begin."""
        now_s = self._clock_s()
        self._times += 1
        if self._times == 1:
            self._began_s = now_s
            self._told_kinds.clear()
        if kind not in self._told_kinds and len(self._told_kinds) < KINDS_MAX:
            self._told_s = now_s
            self._told_kinds.add(kind)
            self._log.log(self._level, "%s: %s", self._what, why, exc_info=error)
        elif now_s - self._told_s >= self._remind_s:
            self._told_s = now_s
            lasted = duration_text(now_s - self._began_s)
            self._log.log(self._level, "%s, for %s now (seen %d times): %s", self._what, lasted, self._times, why)

    def is_over(self, how: str = "well again") -> None:
        """It is not wrong now. `how` says what that means, in the line that ends the fault."""
        if self._times:
            lasted = duration_text(self._clock_s() - self._began_s)
            self._times = 0
            self._log.info("%s: %s, after %s", self._mended, how, lasted)


def duration_text(seconds: float) -> str:
    """For people: `0.4 s`, `12 s`, `5 min 3 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
